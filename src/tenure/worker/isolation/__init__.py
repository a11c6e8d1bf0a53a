"""Handlers in processes of their own (`run="process"`)."""
