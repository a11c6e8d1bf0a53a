"""Schedule options: what to do with missed ticks, and with ticks that come while an earlier job is unfinished."""

from dataclasses import dataclass
from datetime import timedelta
from typing import get_args

from tenure.clock import SECOND
from tenure.core.check import shown, whole
from tenure.core.duration import Duration, duration, micros
from tenure.core.schedule import GRACE, Missed, Overlap
from tenure.errors import UsageError
from tenure.options.merging import fill
from tenure.options.timing import Timing

MADE_UP = 1_000
"""The largest `All.max`."""


@dataclass(frozen=True, init=False)
class All:
    """Enqueue a job for every missed tick, the oldest first: `missed=All()`, which equals `missed="all"`.

    `max`: only for the newest `max` missed ticks, from 1 to 1,000; None for all.
    """

    max: int | None

    def __init__(self, max: int | None = None) -> None:  # noqa: A002 - the name
        """Set the limit.

        Raises:
            UsageError: `max` is not a whole number from 1 to 1,000.
        """
        fill(self, max=None if max is None else whole(max, field="All.max", least=1, most=MADE_UP))


MissedTicks = Missed | All
"""What to do with missed ticks: "skip", "latest", "all" or All(max=36)."""


def missed_policy(value: object) -> tuple[Missed, int | None]:
    """Return the policy for missed ticks, and the largest number of ticks that it makes up for (None: no limit).

    Raises:
        UsageError: the policy is unknown.
    """
    if isinstance(value, All):
        return "all", value.max
    words: tuple[Missed, ...] = get_args(Missed)
    for word in words:
        if value == word:
            return word, None
    raise UsageError(f'missed = {shown(value)} is unknown; use one of "skip", "latest", "all", All(max=36)')


def grace_micros(value: Duration) -> int:
    """Return how late a tick may be before it counts as missed, in microseconds.

    Raises:
        UsageError: it is not a duration, or is below 1 s.
    """
    length = micros(duration(value, field="grace"))
    if length < SECOND:
        raise UsageError(
            f"grace = {shown(value)} is less than a second: ticks would be missed in normal operation; give more"
        )
    return length


def grace_of(timing: Timing) -> timedelta:
    """Return the default grace: 10 s, or longer if this timing may need longer to replace a dead leader."""
    return max(timedelta(microseconds=GRACE), timing.leader_ttl + 2 * timing.sweep)


def valid_overlap(value: object) -> Overlap:
    """Return the policy for a tick that comes while a job of an earlier tick is unfinished.

    Raises:
        UsageError: the policy is unknown.
    """
    words: tuple[Overlap, ...] = get_args(Overlap)
    for word in words:
        if value == word:
            return word
    raise UsageError(f'overlap = {shown(value)} is unknown; use one of "skip", "queue_one", "allow"')
