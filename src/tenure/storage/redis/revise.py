"""Encodes the requests of revise, tune and plan for their scripts, and decodes the answers."""

from collections.abc import Sequence
from typing import Any, Literal, assert_never

import msgspec
from msgspec import Struct, structs

from tenure.core.job import Ref
from tenure.core.lifecycle import State
from tenure.core.schedule import Missed, Overlap, Schedule
from tenure.storage.protocol import (
    CancelJob,
    Change,
    DeleteJob,
    PauseSchedule,
    PutSchedule,
    RedriveJob,
    RemoveSchedule,
    RescheduleJob,
    RetainJob,
    Revision,
    RevisionResult,
    ScheduleResult,
    Settings,
    Target,
    Tick,
)
from tenure.storage.redis.records import EncodedJob, RequestEncoder, ref_text, wish

_whole = msgspec.json.Encoder().encode
_read_whole = msgspec.json.Decoder(Schedule).decode
_read = msgspec.msgpack.Decoder(dict[str, Any]).decode


class EncodedRevision(Struct, omit_defaults=True, kw_only=True):
    """A revision as a script reads it."""

    kind: Literal["cancel", "redrive", "delete", "reschedule", "retain"]
    ref: str
    reason: str | None = None
    by: str | None = None
    delay: int | None = None
    ended: int | None = None
    priority: int | None = None
    boost: int | None = None
    ttl: int | None = None


class _Tune(Struct, omit_defaults=True):
    kind: str
    name: str
    settings: Settings
    by: str | None = None


class EncodedSchedule(Struct, omit_defaults=True, kw_only=True):
    """A schedule as a script keeps it; see `Schedule`. `rest`: the whole schedule as it was put, as JSON text."""

    cron: str | None = None
    tz: str
    every: int | None = None
    missed: Missed
    overlap: Overlap
    paused: bool
    made: int
    last_tick: int
    next_tick: int | None = None
    last_id: str | None = None
    rest: str


class EncodedScheduleChange(Struct, omit_defaults=True, kw_only=True):
    """A change to a schedule as a script reads it. `place`: the position of a tick in its call, from 0."""

    kind: Literal["put", "pause", "remove", "tick"]
    name: str
    schedule: EncodedSchedule | None = None
    paused: bool | None = None
    expected: int | None = None
    tick: int | None = None
    next_tick: int | None = None
    missed: int | None = None
    job: EncodedJob | None = None
    place: int | None = None


_timed = msgspec.msgpack.Decoder(EncodedSchedule).decode


def ask_revise(revisions: Sequence[Revision]) -> list[bytes]:
    """Return the request to revise jobs."""
    return RequestEncoder().sealed([_revising(asked) for asked in revisions])


def answer_revise(reply: Any, revisions: Sequence[Revision]) -> list[RevisionResult]:
    """Return the result of each revision."""
    return [_revised(asked.ref, *answer) for answer, asked in zip(reply, revisions, strict=True)]


def ask_tune(target: Target, settings: Settings, by: str | None) -> list[bytes]:
    """Return the request to merge settings into those in force."""
    return RequestEncoder().sealed(_Tune(target.kind, target.name, settings, by))


def answer_tune(reply: Any) -> Settings:
    """Return the settings in force."""
    return settings_of(reply)


def ask_plan(changes: Sequence[Change], first: int = 0) -> list[bytes]:
    """Return the request to change schedules. `first`: the position of the first of them in the whole call."""
    parcel = RequestEncoder()
    return parcel.sealed([_changing(asked, parcel, place) for place, asked in enumerate(changes, first)])


def answer_plan(reply: Any, changes: Sequence[Change]) -> list[ScheduleResult]:
    """Return the result of each change."""
    return [_planned(asked, *answer) for answer, asked in zip(reply, changes, strict=True)]


def settings_of(body: bytes) -> Settings:
    """Decode settings as a partition keeps them."""
    told = {} if body == _NOTHING else _read(body)
    # A script encodes a map without fields as an empty list.
    return msgspec.convert(
        {name: value or {} if name in ("stall", "retention") else value for name, value in told.items()}, Settings
    )


def schedule_of(body: bytes) -> Schedule:
    """Decode a schedule as a partition keeps it."""
    kept = _timed(body)
    return structs.replace(
        _read_whole(kept.rest),
        paused=kept.paused,
        made=kept.made,
        last_tick=kept.last_tick,
        next_tick=kept.next_tick,
        last_id=kept.last_id,
    )


_NOTHING = b"\x90"


def _revising(asked: Revision) -> EncodedRevision:
    ref = ref_text(asked.ref)
    match asked:
        case CancelJob(reason=reason, by=by):
            return EncodedRevision(kind="cancel", ref=ref, reason=reason, by=by)
        case RedriveJob(by=by, delay=delay, ended=ended):
            return EncodedRevision(kind="redrive", ref=ref, by=by, delay=delay, ended=ended)
        case DeleteJob(by=by, ended=ended):
            return EncodedRevision(kind="delete", ref=ref, by=by, ended=ended)
        case RescheduleJob(delay=delay, priority=priority, boost=boost, by=by):
            return EncodedRevision(kind="reschedule", ref=ref, delay=delay, priority=priority, boost=boost, by=by)
        case RetainJob(ttl=ttl):
            return EncodedRevision(kind="retain", ref=ref, ttl=ttl)
        case _:
            assert_never(asked)


def _revised(ref: Ref, verdict: bytes, state: bytes | None = None, holder: bytes | None = None) -> RevisionResult:
    word: Any = verdict.decode()
    return RevisionResult(
        ref,
        word,
        None if state is None else State(state.decode()),
        None if holder is None else Ref(ref.queue, holder.decode()),
    )


def _changing(asked: Change, parcel: RequestEncoder, place: int) -> EncodedScheduleChange:
    match asked:
        case PutSchedule(schedule):
            return EncodedScheduleChange(kind="put", name=schedule.name, schedule=_put(schedule))
        case PauseSchedule(name=name, paused=paused, next_tick=next_tick):
            return EncodedScheduleChange(kind="pause", name=name, paused=paused, next_tick=next_tick)
        case RemoveSchedule(name=name):
            return EncodedScheduleChange(kind="remove", name=name)
        case Tick():
            return EncodedScheduleChange(
                kind="tick",
                name=asked.name,
                expected=asked.expected,
                tick=asked.tick,
                next_tick=asked.next_tick,
                missed=asked.missed,
                job=None if asked.job is None else wish(asked.job, parcel),
                place=place,
            )
        case _:
            assert_never(asked)


def _put(schedule: Schedule) -> EncodedSchedule:
    return EncodedSchedule(
        cron=schedule.cron,
        tz=schedule.tz,
        every=schedule.every,
        missed=schedule.missed,
        overlap=schedule.overlap,
        paused=schedule.paused,
        made=schedule.made,
        last_tick=schedule.last_tick,
        next_tick=schedule.next_tick,
        last_id=schedule.last_id,
        rest=_whole(schedule).decode(),
    )


def _planned(asked: Change, verdict: bytes, id_: bytes | None = None) -> ScheduleResult:
    word: Any = verdict.decode()
    ref = None
    if isinstance(asked, Tick) and asked.job is not None and id_ is not None:
        ref = Ref(asked.job.queue, id_.decode())
    return ScheduleResult(asked.name, word, ref)
