"""Makes unique ids: time-ordered job ids, and owner ids."""

from random import Random

from tenure.clock import Clock

_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
"""Maps a random digit to the first digit of the fourth group, whose upper two bits name the variant."""

_FIFTEEN_DIGITS = 1 << 60
"""Set above an instant's bits, so that `hex` writes the instant with its leading zeros."""


class JobIds:
    """Makes UUIDs of version 7 (RFC 9562) that sort in the order of creation, also within one millisecond.

    The twelve bits after the version hold the fraction of the millisecond, so ids of several processes of one host
    sort by time as well.
    """

    def __init__(self, clock: Clock, rng: Random) -> None:
        self._clock = clock
        self._rng = rng
        self._last = 0

    def make(self) -> str:
        """Return the next id."""
        ticks = (self._clock.now() << 12) // 1000
        # Two threads at once may get the same instant; the random part makes their ids differ.
        if ticks <= self._last:
            ticks = self._last + 1
        self._last = ticks
        instant = hex(_FIFTEEN_DIGITS | ticks)
        chance = self._rng.randbytes(8).hex("-", 6)
        return f"{instant[3:11]}-{instant[11:15]}-7{instant[15:]}-{_VARIANT[chance[0]]}{chance[1:]}"


def owner_id(rng: Random) -> str:
    """Return 64 random bits that name one incarnation of one process."""
    return f"{rng.getrandbits(64):016x}"
