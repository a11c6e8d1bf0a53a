"""Fires schedules that are due: each tick becomes exactly one job, however many reapers sweep.

    sweep lists due schedules ──► which ticks get their jobs ──► plan, from each expected last tick to the next

`plan` is atomic: it advances a schedule and enqueues its job, or does neither. If a reaper dies, the next sweep lists
the schedules that are still due.
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
"""For how long a sweep skips a schedule that cannot be read here, if too many are due; in microseconds."""


class TickResults(Struct, frozen=True):
    """The result of firing the schedules that were due.

    `more`: ticks are left, or schedules that the sweep did not list; continue at once. `next_tick`: microseconds from
    the sweep to the earliest next tick of the schedules that were advanced, at least 0. `troubles`: the errors of the
    schedules that failed, by name; all others were advanced.
    """

    more: bool = False
    next_tick: int | None = None
    troubles: Mapping[str, str] = {}


async def tick_all(storage: Storage, due: Sequence[Schedule], now: int) -> TickResults:
    """Advance each schedule to its latest past tick, and enqueue the jobs of the ticks that get one.

    Raises:
        StorageError: the storage does not answer; schedules that were not advanced stay due.
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
            # For example, the time zone is unknown here, or a later version wrote the text. Another reaper may be able
            # to read it, and the other schedules continue.
            troubles[name] = _trouble(name, error)
            if full:
                # Otherwise a sweep that lists only such schedules would never list any other.
                steps[name] = [Tick(name, schedule.last_tick, schedule.last_tick, now + PUT_OFF)]
            continue
        if more:
            left.add(name)
    refused = await _send(storage, steps)
    # Refused schedules stay due. To continue at once because of them would be an endless loop.
    done = [ticks[-1] for name, ticks in steps.items() if name not in refused]
    return TickResults(
        more=bool(left - refused.keys()) or (full and bool(done)),
        next_tick=min((max(0, tick.next_tick - now) for tick in done if tick.next_tick is not None), default=None),
        troubles=troubles | refused,
    )


def moves(schedule: Schedule, now: int) -> tuple[list[Tick], bool]:
    """Return the steps that advance a schedule, each from the tick of the previous step, and whether more remain.

    Raises:
        UsageError: the rhythm of the schedule cannot be read here.
    """
    rhythm = rhythm_of(schedule)
    last = schedule.last_tick
    if schedule.is_ahead(now):
        # The clock was set back. A repeated tick has the same job id, so its job is found as long as it is retained.
        return [Tick(schedule.name, last, now, rhythm.next_after(now))], False
    ticks = list[Tick]()
    after = last if schedule.next_tick is None else max(last, schedule.next_tick - 1)
    if schedule.begins_now:
        first = schedule.created
        ticks.append(Tick(schedule.name, last, first, rhythm.next_after(first), job_for(schedule, first)))
        last = after = first
    advance = turn(rhythm, after=after, now=now, grace=schedule.grace, missed=schedule.missed, most=schedule.most)
    if advance.given_up_to is not None:
        to = advance.given_up_to
        ticks.append(Tick(schedule.name, last, to, rhythm.next_after(to), missed=advance.given_up))
        last = to
    for tick in advance.ticks:
        ticks.append(Tick(schedule.name, last, tick, rhythm.next_after(tick), job_for(schedule, tick)))
        last = tick
    if not ticks:
        # The instant that was due is not a tick any more, for example because the rules of its time zone have changed.
        ticks.append(Tick(schedule.name, last, last, rhythm.next_after(max(last, now))))
    return ticks, advance.more


def job_for(schedule: Schedule, tick: int) -> NewJob:
    """Return the job of one tick; its id depends only on the schedule and the tick."""
    return structs.replace(schedule.job, id=tick_id(schedule.name, tick), schedule=schedule.name, tick=tick)


def tick_id(name: str, tick: int) -> str:
    """Return the id of a tick's job: `cron:nightly:20261121T040000Z`."""
    at = moment(tick)
    return f"cron:{name}:{at:%Y%m%dT%H%M%S}{f'.{at.microsecond:06}' if at.microsecond else ''}Z"


async def _send(storage: Storage, steps: Mapping[str, Sequence[Tick]]) -> dict[str, str]:
    """Plan all steps in as few calls as possible; return the errors, by schedule name."""
    every = [tick for ticks in steps.values() for tick in ticks]
    try:
        for start in range(0, len(every), DUE_LIMIT):
            await storage.plan(every[start : start + DUE_LIMIT])
    except StorageError:
        raise
    except Exception:
        # One step failed. Planned one by one, it does not block the others. Steps that were done are not repeated:
        # their last tick is not the expected one any more.
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
