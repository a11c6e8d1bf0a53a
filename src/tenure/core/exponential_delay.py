"""How long to rest before the next try of what has failed: twice as long each time, and never the same for two."""

from random import Random

from msgspec import Struct


class ExponentialDelay(Struct, frozen=True):
    """The shortest and the longest rest, in seconds."""

    first: float
    last: float

    def rest(self, failures: int, rng: Random) -> float:
        """Return the rest after so many failures in a row (1 or more), in seconds: between half and all of its length.

        Drawn, so that many who lost the same thing at once do not come back for it at once.
        """
        # 2^63 times anything is beyond any last rest, and an unbounded power of two would be an unbounded integer.
        longest = min(self.last, self.first * float(1 << min(failures - 1, 63)))
        return longest * (0.5 + rng.random() / 2)
