"""The delay before the next retry after a failure: it doubles each time, with jitter."""

from random import Random

from msgspec import Struct


class ExponentialDelay(Struct, frozen=True):
    """The shortest and the longest delay, in seconds."""

    first: float
    last: float

    def rest(self, failures: int, rng: Random) -> float:
        """Return the delay after `failures` failures in a row (1 or more), in seconds.

        It is a random value between half and all of its length, so that many clients that fail together do not retry
        together.
        """
        # 2^63 times any delay exceeds every maximum, and without a bound the power of two would be a huge integer.
        longest = min(self.last, self.first * float(1 << min(failures - 1, 63)))
        return longest * (0.5 + rng.random() / 2)
