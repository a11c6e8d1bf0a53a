"""The only reader of the wall, of the machine's uptime and of its entropy.

Two readings, never mixed: `now` is an instant and belongs in a record, `uptime` measures a wait and belongs nowhere
else. Everything that waits does so through the running event loop, so a loop with virtual time moves all of it.
"""

import random
import time
from typing import Protocol

SECOND = 1_000_000
"""One second in microseconds, the unit of every instant and duration in a record."""


class Clock(Protocol):
    """What tells the time."""

    def now(self) -> int:
        """Return the wall clock, in microseconds since 1970 (UTC). It may step."""
        ...

    def uptime(self) -> float:
        """Return seconds from an arbitrary start. It never steps back, and goes on while the machine sleeps."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> int:
        """Return the wall clock, in microseconds since 1970 (UTC)."""
        return time.time_ns() // 1000

    def uptime(self) -> float:
        """Return seconds since boot, suspend included where the system tells (`CLOCK_BOOTTIME`)."""
        return time.clock_gettime(_UPTIME)


# time.monotonic stands still during suspend on Linux; a lease does not.
_UPTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def entropy() -> random.Random:
    """Return a source of chance that two processes never share, not even after a fork."""
    return random.SystemRandom()
