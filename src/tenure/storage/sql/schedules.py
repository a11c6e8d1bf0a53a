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
from tenure.storage.sql import concurrency_keys, enqueue
from tenure.storage.sql.settings import setting
from tenure.storage.sql.transaction import Transaction

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Schedule).decode


def plan(tx: Transaction, changes: Sequence[Change]) -> list[ScheduleResult]:
    """Change schedules, in the order given."""
    planned = [_change(tx, change, offset) for offset, change in enumerate(changes)]
    concurrency_keys.release_freed(tx)
    return planned


def due(tx: Transaction) -> tuple[tuple[Schedule, ...], int | None]:
    """Return the due schedules, and how long until the next tick of another one.

    Schedules with a due tick come first, earliest first. Then come those whose last tick lies ahead of the clock.
    """
    due_now = tx.all("plan.due", {"now": tx.now, "limit": DUE_LIMIT})
    due_now += tx.all("plan.ahead", {"until": tx.now + AHEAD, "now": tx.now, "limit": DUE_LIMIT - len(due_now)})
    row = tx.one("plan.next_tick", {"now": tx.now})
    coming = None if row is None or row[0] is None else row[0] - tx.now
    return tuple(_decode(body) for (body,) in due_now), coming


def schedules(tx: Transaction) -> tuple[Schedule, ...]:
    """Return all schedules by name."""
    return tuple(_decode(body) for (body,) in tx.all("survey.schedules"))


def _change(tx: Transaction, change: Change, offset: int) -> ScheduleResult:
    row = tx.one("plan.known", {"name": change.name})
    known = None if row is None else _decode(row[0])
    match change:
        case PutSchedule(schedule):
            _store(tx, redefined(known, schedule, tx.now))
        case _ if known is None:
            return ScheduleResult(change.name, "gone")
        case PauseSchedule(paused=paused, next_tick=next_tick):
            _store(tx, paused_at(known, tx.now, paused=paused, next_tick=next_tick))
        case RemoveSchedule():
            tx.run("plan.remove", {"name": change.name})
        case Tick():
            return _tick(tx, known, change, offset)
    return ScheduleResult(change.name, "done")


def _tick(tx: Transaction, known: Schedule, tick: Tick, offset: int) -> ScheduleResult:
    moved = tick.job is not None and setting(tx, "queue", tick.job.queue).moved_to is not None
    if moved or not known.is_at_tick(tick.expected):
        return ScheduleResult(tick.name, "superseded")
    fate = None if tick.job is None else _fire(tx, known, tick.job, offset)
    after, events = after_tick(known, tick.tick, tick.next_tick, missed=tick.missed, fate=fate, now=tx.now)
    _store(tx, after)
    for event in events:
        tx.record(event)
    return ScheduleResult(tick.name, "done", fate if isinstance(fate, Ref) else None)


def _fire(tx: Transaction, known: Schedule, job: NewJob, offset: int) -> Fate:
    unfinished = (State(state) for (state,) in tx.all("plan.unfinished_states", {"name": known.name}))
    if not may_fire(known.overlap, unfinished):
        return "overlap"
    receipt = enqueue.store(tx, job, offset)
    return fate_of(receipt.action, receipt.ref)


def _store(tx: Transaction, schedule: Schedule) -> None:
    body = _encode(schedule).decode()
    tx.run(
        "plan.put",
        {
            "name": schedule.name,
            "body": body,
            "last_tick": schedule.last_tick,
            "next_tick": schedule.next_tick,
            "paused": schedule.paused,
        },
    )
