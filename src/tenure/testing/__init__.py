"""The testing kit: runs the jobs of an app inside a test, on a clock that the test moves."""

from tenure.testing.clock import ManualClock
from tenure.testing.jobs import JobTester

__all__ = ["JobTester", "ManualClock"]
