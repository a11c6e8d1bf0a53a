"""Schedules that are due, made into jobs: one tick is one job, whoever sweeps, however often and with how many others.

    sweep names what is due ──► which ticks get their jobs ──► plan, from each expected last tick to the next

Whoever dies in between has moved a schedule on and enqueued its job, or neither; the next sweep names what is left.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from holdfast.core.duration import moment
from holdfast.core.job import NewJob
from holdfast.core.schedule import Schedule
from holdfast.core.ticks import rhythm_of, turn
from holdfast.errors import StorageError
from holdfast.storage.protocol import DUE_LIMIT, Storage, Tick


class Ticked(Struct, frozen=True):
    """What became of the schedules that were due.

    `more`: ticks are left, go on at once. `next_tick`: microseconds from the sweep to the next tick of one of them.
    `troubles`: schedules that could not be dealt with, one line each; the others were.
    """

    more: bool = False
    next_tick: int | None = None
    troubles: tuple[str, ...] = ()


async def tick_all(storage: Storage, due: Sequence[Schedule], now: int) -> Ticked:
    """Move each schedule on to the last tick that has come, with a job for each that gets one.

    Raises:
        StorageError: the storage cannot be asked; what was not done is due again.
    """
    steps = dict[str, list[Tick]]()
    troubles = list[str]()
    more, ahead = False, list[int]()
    for schedule in due:
        try:
            ticks, left = moves(schedule, now)
        except Exception as error:
            # A zone that is unknown here, or a text of a later version: others may read it, and all others go on.
            troubles.append(_trouble(schedule.name, error))
            continue
        steps[schedule.name] = ticks
        more = more or left
        ahead += [tick.next_tick for tick in ticks[-1:] if tick.next_tick is not None]
    troubles += await _send(storage, steps)
    moved = len(steps) > len(troubles)
    return Ticked(
        more=more or (moved and len(due) >= DUE_LIMIT),
        next_tick=min((tick - now for tick in ahead), default=None),
        troubles=tuple(troubles),
    )


def moves(schedule: Schedule, now: int) -> tuple[list[Tick], bool]:
    """Return how a schedule is moved on, each step from where the one before left it, and whether there are more.

    Raises:
        UsageError: its rhythm cannot be read here.
    """
    rhythm = rhythm_of(schedule)
    last = schedule.last_tick
    if schedule.is_ahead(now):
        # The clock was set back. What comes again has its job by its id, as long as that is remembered.
        return [Tick(schedule.name, last, now, rhythm.next_after(now))], False
    after = last if schedule.next_tick is None else max(last, schedule.next_tick - 1)
    told = turn(rhythm, after=after, now=now, grace=schedule.grace, missed=schedule.missed, most=schedule.most)
    ticks = list[Tick]()
    if told.given_up_to is not None:
        to = told.given_up_to
        ticks.append(Tick(schedule.name, last, to, rhythm.next_after(to), missed=told.given_up))
        last = to
    for tick in told.ticks:
        ticks.append(Tick(schedule.name, last, tick, rhythm.next_after(tick), job_for(schedule, tick)))
        last = tick
    if not ticks:
        # What it was due for is no tick any more, as when the rules of its zone have changed.
        ticks.append(Tick(schedule.name, last, last, rhythm.next_after(max(last, now))))
    return ticks, told.more


def job_for(schedule: Schedule, tick: int) -> NewJob:
    """Return the job of one tick; its id is the same whoever makes it."""
    return structs.replace(schedule.job, id=tick_id(schedule.name, tick), schedule=schedule.name, tick=tick)


def tick_id(name: str, tick: int) -> str:
    """Return the id of a tick's job: `cron:nightly:20261121T040000Z`."""
    at = moment(tick)
    return f"cron:{name}:{at:%Y%m%dT%H%M%S}{f'.{at.microsecond:06}' if at.microsecond else ''}Z"


async def _send(storage: Storage, steps: Mapping[str, Sequence[Tick]]) -> list[str]:
    """Plan all steps, in as few trips as may be; return what failed, a line each."""
    every = [tick for ticks in steps.values() for tick in ticks]
    try:
        for start in range(0, len(every), DUE_LIMIT):
            await storage.plan(every[start : start + DUE_LIMIT])
    except StorageError:
        raise
    except Exception:
        # One of them cannot be done; alone it holds up no other. What was done is not done again: its last tick is not
        # the expected one any more.
        return [trouble for name, ticks in steps.items() if (trouble := await _alone(storage, name, ticks)) is not None]
    return []


async def _alone(storage: Storage, name: str, ticks: Sequence[Tick]) -> str | None:
    try:
        for start in range(0, len(ticks), DUE_LIMIT):
            await storage.plan(ticks[start : start + DUE_LIMIT])
    except StorageError:
        raise
    except Exception as error:
        return _trouble(name, error)
    return None


def _trouble(name: str, error: Exception) -> str:
    return f"schedule {name!r}: {error!r}"
