"""Schedules that are due, made into jobs: one tick is one job, whoever sweeps, however often and with how many others.

    sweep names what is due ──► which ticks get their jobs ──► plan, from each expected last tick to the next

Whoever dies in between has moved a schedule on and enqueued its job, or neither; the next sweep names what is left.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from tenure.core.duration import moment
from tenure.core.job import NewJob
from tenure.core.schedule import Schedule
from tenure.core.ticks import rhythm_of, turn
from tenure.errors import StorageError
from tenure.storage.protocol import DUE_LIMIT, Storage, Tick

PUT_OFF = 60_000_000
"""For how long a schedule that cannot be read here is not named, where too many are due; in microseconds."""


class TickResults(Struct, frozen=True):
    """What became of the schedules that were due.

    `more`: ticks are left, or schedules that were not named; go on at once. `next_tick`: microseconds from the sweep to
    the next tick of one that was moved on, never less than none. `troubles`: what became of those that could not be
    dealt with, by their names; the others were.
    """

    more: bool = False
    next_tick: int | None = None
    troubles: Mapping[str, str] = {}


async def tick_all(storage: Storage, due: Sequence[Schedule], now: int) -> TickResults:
    """Move each schedule on to the last tick that has come, with a job for each that gets one.

    Raises:
        StorageError: the storage cannot be asked; what was not done is due again.
    """
    steps = dict[str, list[Tick]]()
    troubles = dict[str, str]()
    left = set[str]()
    full = len(due) >= DUE_LIMIT
    for schedule in due:
        name = schedule.name
        try:
            steps[name], more = moves(schedule, now)
        except Exception as error:
            # A zone that is unknown here, or a text of a later version: others may read it, and all others go on.
            troubles[name] = _trouble(name, error)
            if full:
                # Else as many of them as a sweep names would keep out all others for ever.
                steps[name] = [Tick(name, schedule.last_tick, schedule.last_tick, now + PUT_OFF)]
            continue
        if more:
            left.add(name)
    refused = await _send(storage, steps)
    # What could not be done is due as it was: going on at once because of it would never end.
    done = [ticks[-1] for name, ticks in steps.items() if name not in refused]
    return TickResults(
        more=bool(left - refused.keys()) or (full and bool(done)),
        next_tick=min((max(0, tick.next_tick - now) for tick in done if tick.next_tick is not None), default=None),
        troubles=troubles | refused,
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


async def _send(storage: Storage, steps: Mapping[str, Sequence[Tick]]) -> dict[str, str]:
    """Plan all steps, in as few trips as may be; return what failed, by the names of the schedules."""
    every = [tick for ticks in steps.values() for tick in ticks]
    try:
        for start in range(0, len(every), DUE_LIMIT):
            await storage.plan(every[start : start + DUE_LIMIT])
    except StorageError:
        raise
    except Exception:
        # One of them cannot be done; alone it holds up no other. What was done is not done again: its last tick is not
        # the expected one any more.
        alone = {name: await _alone(storage, name, ticks) for name, ticks in steps.items()}
        return {name: trouble for name, trouble in alone.items() if trouble is not None}
    return {}


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
