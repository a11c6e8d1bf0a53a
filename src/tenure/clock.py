"""The only reader of the wall, of the machine's uptime and of its entropy.

Two readings, never mixed: `now` is an instant and belongs in a record, `uptime` measures a wait and belongs nowhere
else. Everything that waits does so through the running event loop, so a loop with virtual time moves all of it.
"""

import os
import random
import struct
import time
from typing import Protocol, cast

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


class _Entropy(random.SystemRandom):
    """The machine's entropy, of which the words that ids are made of are fetched by the block."""

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
"""Those that nobody has taken yet, by the process that may. Any thread of it takes one; a child of it has none of them,
though it was forked by a server in C, which calls no hooks."""

os.register_at_fork(after_in_child=_words.clear)


def entropy() -> random.Random:
    """Return a source of chance that two processes never share, not even after a fork."""
    return _Entropy()
