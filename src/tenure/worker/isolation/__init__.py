"""Runs handlers in isolated processes (`run="process"`)."""
