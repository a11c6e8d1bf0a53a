"""The schedules in SQL: create, pause and remove them, and advance them so that each tick happens once."""

from collections.abc import Sequence

import msgspec

from tenure.core.job import NewJob, Ref
from tenure.core.lifecycle import State
from tenure.core.schedule import AHEAD, Fate, Schedule, after_tick, fate_of, may_fire, paused_at, redefined
from tenure.storage.protocol import (
    DUE_LIMIT,
    Change,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ScheduleResult,
    Tick,
)
from tenure.storage.sqlite import concurrency_keys, enqueue
from tenure.storage.sqlite.statements import query
from tenure.storage.sqlite.transaction import Transaction

_KNOWN = query("plan", "known")
_PUT = query("plan", "put")
_REMOVE = query("plan", "remove")
_UNFINISHED = query("plan", "unfinished")
_DUE = query("plan", "due")
_AHEAD = query("plan", "ahead")
_COMING = query("plan", "coming")
_SCHEDULES = query("survey", "schedules")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Schedule).decode


def plan(step: Transaction, changes: Sequence[Change]) -> list[ScheduleResult]:
    """Change schedules, in the order given."""
    planned = [_change(step, change, offset) for offset, change in enumerate(changes)]
    concurrency_keys.let_in(step)
    return planned


def due(step: Transaction) -> tuple[tuple[Schedule, ...], int | None]:
    """Return the due schedules, and how long until the next tick of another one.

    Schedules with a due tick come first, earliest first. Then come those whose last tick lies ahead of the clock.
    """
    come = step.all(_DUE, (step.now, DUE_LIMIT))
    come += step.all(_AHEAD, {"until": step.now + AHEAD, "now": step.now, "limit": DUE_LIMIT - len(come)})
    row = step.one(_COMING, (step.now,))
    coming = None if row is None or row[0] is None else row[0] - step.now
    return tuple(_decode(body) for (body,) in come), coming


def schedules(step: Transaction) -> tuple[Schedule, ...]:
    """Return all schedules by name."""
    return tuple(_decode(body) for (body,) in step.all(_SCHEDULES))


def _change(step: Transaction, change: Change, offset: int) -> ScheduleResult:
    row = step.one(_KNOWN, (change.name,))
    known = None if row is None else _decode(row[0])
    match change:
        case PutSchedule(schedule):
            _keep(step, redefined(known, schedule, step.now))
        case _ if known is None:
            return ScheduleResult(change.name, "gone")
        case PauseSchedule(paused=paused, next_tick=next_tick):
            _keep(step, paused_at(known, step.now, paused=paused, next_tick=next_tick))
        case RemoveSchedule():
            step.run(_REMOVE, (change.name,))
        case Tick():
            return _move_on(step, known, change, offset)
    return ScheduleResult(change.name, "done")


def _move_on(step: Transaction, known: Schedule, asked: Tick, offset: int) -> ScheduleResult:
    if not known.is_at_tick(asked.expected):
        return ScheduleResult(asked.name, "superseded")
    fate = None if asked.job is None else _fire(step, known, asked.job, offset)
    after, told = after_tick(known, asked.tick, asked.next_tick, missed=asked.missed, fate=fate, now=step.now)
    _keep(step, after)
    for event in told:
        step.record(event)
    return ScheduleResult(asked.name, "done", fate if isinstance(fate, Ref) else None)


def _fire(step: Transaction, known: Schedule, job: NewJob, offset: int) -> Fate:
    unfinished = (State(state) for (state,) in step.all(_UNFINISHED, {"name": known.name}))
    if not may_fire(known.overlap, unfinished):
        return "overlap"
    receipt = enqueue.remember(step, job, offset)
    return fate_of(receipt.made, receipt.ref)


def _keep(step: Transaction, schedule: Schedule) -> None:
    body = _encode(schedule).decode()
    step.run(_PUT, (schedule.name, body, schedule.last_tick, schedule.next_tick, schedule.paused))
