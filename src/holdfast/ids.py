"""Names that nobody else makes: time-ordered job ids and owner ids."""

import threading
from random import Random

from holdfast.clock import Clock


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

    def make(self) -> str:
        """Return the next id."""
        now = self._clock.now()
        ticks = (now // 1000) << 12 | (now % 1000) * 4096 // 1000
        with self._lock:
            ticks = self._last = max(ticks, self._last + 1)
        number = (ticks >> 12) << 80 | 0x7 << 76 | (ticks & 0xFFF) << 64 | 0b10 << 62 | self._rng.getrandbits(62)
        text = f"{number:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def owner_id(rng: Random) -> str:
    """Return 64 random bits that name one incarnation of one process."""
    return f"{rng.getrandbits(64):016x}"
