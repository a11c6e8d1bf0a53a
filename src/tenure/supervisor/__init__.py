"""The parent process: starts, watches, recovers and restarts worker processes."""
