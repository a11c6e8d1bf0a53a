"""Test tools for code that builds on Tenure: a manual clock here, and the conformance suite in `conformance`."""

from tenure.testing.clock import ManualClock

__all__ = ["ManualClock"]
