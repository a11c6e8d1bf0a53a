"""What those who build on Tenure test with: a clock that moves by hand here, the storages' suite in `conformance`."""

from tenure.testing.clock import ManualClock

__all__ = ["ManualClock"]
