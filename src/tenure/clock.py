"""The only module that reads the wall clock, the machine's uptime and its entropy.

The two kinds of time are never mixed: `now` is an instant for records, `uptime` only measures waits. All waits go
through the running event loop, so that a loop with virtual time controls all of them.
"""

import os
import random
import struct
import time
from typing import Protocol, cast

SECOND = 1_000_000
"""One second in microseconds, the unit of every instant and duration in a record."""


class Clock(Protocol):
    """A source of time."""

    def now(self) -> int:
        """Return the wall clock, in microseconds since 1970 (UTC). It may step."""
        ...

    def uptime(self) -> float:
        """Return seconds from an arbitrary start. It never steps back, and continues while the machine is suspended."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> int:
        """Return the wall clock, in microseconds since 1970 (UTC)."""
        return time.time_ns() // 1000

    def uptime(self) -> float:
        """Return seconds since boot, including suspend where the system supports it (`CLOCK_BOOTTIME`)."""
        return time.clock_gettime(_UPTIME)


# time.monotonic stops during suspend on Linux, but a lease continues to run out.
_UPTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class _Entropy(random.SystemRandom):
    """The machine's entropy; the 8-byte words from which ids are made are fetched in blocks."""

    def randbytes(self, n: int) -> bytes:
        """Return random bytes."""
        if n != _WORD:
            return super().randbytes(n)
        process = os.getpid()
        try:
            return _words[process].pop()
        except LookupError:
            first, *more = struct.unpack(_BLOCK, os.urandom(struct.calcsize(_BLOCK)))
            _words.setdefault(process, []).extend(more)
            return cast("bytes", first)


_WORD = 8
_BLOCK = "8s" * 64

_words: dict[int, list[bytes]] = {}
"""The unused words, by process id. Any thread of the process takes one. A forked child never finds its parent's words,
even if a server in C forked it and the fork hook below was not called."""

os.register_at_fork(after_in_child=_words.clear)


def entropy() -> random.Random:
    """Return a source of randomness that two processes never share, not even after a fork."""
    return _Entropy()
