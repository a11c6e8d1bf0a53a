"""What those who build on Holdfast test with: a clock that moves by hand here, the storages' suite in `conformance`."""

from holdfast.testing.clock import ManualClock

__all__ = ["ManualClock"]
