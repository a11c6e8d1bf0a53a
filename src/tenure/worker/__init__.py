"""Runs jobs: claims them, executes their handlers, settles their outcomes, renews their leases."""
