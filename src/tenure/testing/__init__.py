"""Test tools for code that uses Tenure: a manual clock. Tests of storages are in the distribution `tenure-testing`."""

from tenure.testing.clock import ManualClock

__all__ = ["ManualClock"]
