"""Finds the position of handlers: from the frames of threads and coroutines, or from a dump that a process writes."""
