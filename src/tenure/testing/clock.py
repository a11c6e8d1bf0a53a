"""A clock that moves only when a test moves it."""

from tenure.clock import SECOND

START = 1_767_225_600 * SECOND
"""The first instant of 2026, where a manual clock begins."""


class ManualClock:
    """Time moved by hand, exact to the microsecond. It is a `Clock`, and any thread may read it."""

    def __init__(self, start: int = START) -> None:
        self._wall = start
        self._uptime = 0

    def now(self) -> int:
        """Return the wall clock, in microseconds since 1970 (UTC)."""
        return self._wall

    def uptime(self) -> float:
        """Return the seconds that have passed since the clock was made."""
        return self._uptime / SECOND

    def advance(self, seconds: float) -> None:
        """Advance both the wall clock and the uptime.

        Raises:
            ValueError: `seconds` is negative. Only the wall clock can go back, by `step_wall`.
        """
        if seconds < 0:
            raise ValueError(f"time cannot pass backwards ({seconds} s); step_wall moves the wall alone")
        passed = round(seconds * SECOND)
        self._wall += passed
        self._uptime += passed

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward, or back with a negative number. The uptime does not change."""
        self._wall += round(seconds * SECOND)
