"""The retry policy of failed jobs, as data, and the calculation of its delays."""

from random import Random
from typing import Literal, assert_never

from msgspec import Struct

BackoffKind = Literal["fixed", "linear", "exponential"]


class Backoff(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many attempts a job has, and the delays between them; durations in microseconds.

    `pinned`: the call itself set a delay, so no function of its task replaces these delays. A stored job contains only
    the values that differ from these defaults, so a changed default also changes stored jobs.
    """

    max_attempts: int = 3
    kind: BackoffKind = "exponential"
    base: int = 1_000_000
    cap: int = 600_000_000
    jitter: float = 0.25
    pinned: bool = False

    def delay(self, failures: int, rng: Random) -> int:
        """Return the delay after this number of failures (1 or more), in microseconds; never above the cap."""
        match self.kind:
            case "fixed":
                rest = self.base
            case "linear":
                rest = self.base * failures
            case "exponential":
                # 2^63 µs exceeds any cap, and without a bound the power of two would be a huge integer.
                rest = self.base << min(failures - 1, 63)
            case _:
                assert_never(self.kind)
        rest = min(rest, self.cap)
        return min(round(rest * (1 + self.jitter * (2 * rng.random() - 1))), self.cap)
