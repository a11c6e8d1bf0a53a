"""Where handlers are: read off the frames of threads and coroutines, or off what a process writes down when asked."""
