"""Decides which ticks of a schedule get their jobs now, and which are given up.

            given up          made up for          on time
    ──┼─────┼─────┼─────┼─────╫─────┼─────┼────────╫──┼──► now
    after                     `most`      late by more than the grace, or not

A tick on time always gets its job: a leader's death must not cost a tick. The policy decides about missed ticks.
"""

import functools
from typing import assert_never

from msgspec import Struct, structs

from tenure.core.cron import Cron, Every, Rhythm, Within
from tenure.core.schedule import Missed, Schedule

STEP = 100
"""How many ticks of one schedule get their jobs in one step; the next step follows at once."""


class Turn(Struct, frozen=True):
    """The ticks that one step handles: first some are given up, then others get their jobs.

    `given_up`: how many; `given_up_to`: the latest of them (None: none). `more`: ticks remain for another step.
    """

    ticks: tuple[int, ...] = ()
    given_up: int = 0
    given_up_to: int | None = None
    more: bool = False


def turn(
    rhythm: Rhythm, *, after: int, now: int, grace: int, missed: Missed = "latest", most: int | None = None
) -> Turn:
    """Decide about the ticks after one instant, up to and including now.

    A tick is missed if it is late by more than `grace` microseconds. Of the missed ticks, `skip` keeps none, `latest`
    keeps the latest one unless a tick on time follows, and `all` keeps the newest `most` of them, or all.
    """
    late_until = now - grace - 1
    on_time = rhythm.between(max(after, late_until), now, STEP + 1)
    if after >= late_until:
        # No tick was missed.
        return Turn(ticks=on_time[:STEP], more=len(on_time) > STEP)
    match missed:
        case "skip":
            made_up = tuple[int, ...]()
        case "latest":
            made_up = () if on_time else rhythm.newest(after, late_until, 1)
        case "all":
            made_up = (
                rhythm.between(after, late_until, STEP + 1) if most is None else rhythm.newest(after, late_until, most)
            )
        case _:
            assert_never(missed)
    kept_from = made_up[0] - 1 if made_up else late_until
    ticks = made_up + on_time
    return Turn(
        ticks=ticks[:STEP],
        given_up=rhythm.count(after, kept_from),
        given_up_to=next(iter(rhythm.newest(after, kept_from, 1)), None),
        more=len(ticks) > STEP,
    )


def rhythm_of(schedule: Schedule) -> Rhythm:
    """Return the rhythm that gives a schedule its ticks.

    Raises:
        UsageError: its text or its time zone is unknown here.
    """
    rhythm = _cron(schedule.cron, schedule.tz) if schedule.every is None else Every(schedule.every)
    if schedule.start is None and schedule.end is None:
        return rhythm
    return Within(rhythm, schedule.start, schedule.end)


@functools.lru_cache(maxsize=256)
def _cron(text: str | None, tz: str) -> Cron:
    """Parse a cron text. Reapers need the same few texts again at each tick."""
    return Cron.parse(text, tz)


def begun(schedule: Schedule, now: int) -> Schedule:
    """Return a schedule that begins now.

    Raises:
        UsageError: its text or its time zone is unknown here.
    """
    return structs.replace(schedule, created=now, last_tick=now, next_tick=rhythm_of(schedule).next_after(now))
