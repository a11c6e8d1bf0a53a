"""Names that nobody else makes: time-ordered job ids and owner ids."""

import threading
from random import Random

from holdfast.clock import Clock

_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
"""What the first digit after the version's group is made of a random one: its upper two bits tell the variant."""


class JobIds:
    """Makes UUIDs of version 7 (RFC 9562) that sort in the order they were made, also within one millisecond.

    The twelve bits after the version hold the fraction of the millisecond, so ids of several processes of one host
    sort by time as well.
    """

    def __init__(self, clock: Clock, rng: Random) -> None:
        self._clock = clock
        self._rng = rng
        self._lock = threading.Lock()
        self._last = 0
        self._instant = (-1, "")
        """The latest millisecond, and how an id of it begins."""

    def make(self) -> str:
        """Return the next id."""
        now = self._clock.now()
        ticks = (now << 12) // 1000
        with self._lock:
            if ticks <= self._last:
                ticks = self._last + 1
            self._last = ticks
        millisecond, begins = self._instant
        if ticks >> 12 != millisecond:
            millisecond = ticks >> 12
            text = f"{millisecond:012x}"
            begins = f"{text[:8]}-{text[8:]}-7"
            self._instant = (millisecond, begins)
        chance = self._rng.randbytes(8).hex()
        return f"{begins}{ticks & 0xFFF:03x}-{_VARIANT[chance[0]]}{chance[1:4]}-{chance[4:]}"


def owner_id(rng: Random) -> str:
    """Return 64 random bits that name one incarnation of one process."""
    return f"{rng.getrandbits(64):016x}"
