"""What a schedule makes of ticks that were missed, and of those that come while an earlier one's job is unfinished."""

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
"""How many missed ticks may be asked to be made up for by number."""


@dataclass(frozen=True, init=False)
class All:
    """Make up for every tick that was missed, the oldest first: `missed=All()`, which is also `missed="all"`.

    `max`: only for the newest so many of them.
    """

    max: int | None

    def __init__(self, max: int | None = None) -> None:  # noqa: A002 - the word
        """Take how many.

        Raises:
            UsageError: it is no whole number from 1 to 1,000.
        """
        fill(self, max=None if max is None else whole(max, field="All.max", least=1, most=MADE_UP))


MissedTicks = Missed | All
"""What becomes of ticks that were missed: "skip", "latest", "all" or All(max=36)."""


def catching_up(given: object) -> tuple[Missed, int | None]:
    """Return what becomes of missed ticks, and of how many at most.

    Raises:
        UsageError: it is no such policy.
    """
    if isinstance(given, All):
        return "all", given.max
    words: tuple[Missed, ...] = get_args(Missed)
    for word in words:
        if given == word:
            return word, None
    raise UsageError(f'missed = {shown(given)} is unknown; use one of "skip", "latest", "all", All(max=36)')


def graceful(given: Duration) -> int:
    """Return by how much a tick may be late before it is missed, in microseconds.

    Raises:
        UsageError: it is no duration, or one below a second.
    """
    length = micros(duration(given, field="grace"))
    if length < SECOND:
        raise UsageError(
            f"grace = {shown(given)} is less than a second: ticks would be missed while all is well; give more"
        )
    return length


def grace_of(timing: Timing) -> timedelta:
    """Return the grace that is built in: 10 s, or longer where it may take longer until a dead leader is followed."""
    return max(timedelta(microseconds=GRACE), timing.leader_ttl + 2 * timing.sweep)


def overlapping(given: object) -> Overlap:
    """Return what becomes of a tick while a job of an earlier one is unfinished.

    Raises:
        UsageError: it is no such policy.
    """
    words: tuple[Overlap, ...] = get_args(Overlap)
    for word in words:
        if given == word:
            return word
    raise UsageError(f'overlap = {shown(given)} is unknown; use one of "skip", "queue_one", "allow"')
