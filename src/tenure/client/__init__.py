"""Defines tasks, builds and enqueues calls, and gives callers a handle on each job."""
