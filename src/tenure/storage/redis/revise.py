"""Encodes the requests of revise, tune and plan for their scripts, and decodes the answers."""

from collections.abc import Sequence
from typing import Any, Literal, assert_never

import msgspec
from msgspec import Struct, structs

from tenure.core.job import Ref
from tenure.core.lifecycle import State
from tenure.core.schedule import Missed, Overlap, Schedule
from tenure.errors import FlowError
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
from tenure.storage.redis.records import EncodedJob, RequestEncoder, encode_job, encode_ref
from tenure.storage.waiting import AdvanceEntry, DeliverToken, SealBox, Subscribe

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
    move: str | None = None


class _Tune(Struct, omit_defaults=True):
    kind: str
    name: str
    settings: Settings
    by: str | None = None
    lift: str | None = None
    expected: Settings | None = None


class EncodedSchedule(Struct, omit_defaults=True, kw_only=True):
    """A schedule as a script keeps it; see `Schedule`. `rest`: the whole schedule as it was put, as JSON text."""

    cron: str | None = None
    tz: str
    every: int | None = None
    limit: int | None = None
    start: int | None = None
    stop: int | None = None
    immediately: bool = False
    runs: int = 0
    missed: Missed
    overlap: Overlap
    paused: bool
    created: int
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


def encode_revise(revisions: Sequence[Revision]) -> list[bytes]:
    """Return the request to revise jobs."""
    return RequestEncoder().finish([_encode_revision(revision) for revision in revisions])


def decode_revise(reply: Any, revisions: Sequence[Revision]) -> list[RevisionResult]:
    """Return the result of each revision."""
    return [_revision_result(revision.ref, *answer) for answer, revision in zip(reply, revisions, strict=True)]


def encode_tune(target: Target, settings: Settings, by: str | None, expected: Settings | None) -> list[bytes]:
    """Return the request to merge settings into those in force, if these are the expected ones."""
    return RequestEncoder().finish(
        _Tune(target.kind, target.name, structs.replace(settings, lift=None), by, settings.lift, expected)
    )


def decode_tune(reply: Any) -> Settings:
    """Return the settings in force."""
    return decode_settings(reply)


def encode_plan(changes: Sequence[Change], first: int = 0) -> list[bytes]:
    """Return the request to change schedules. `first`: the position of the first of them in the whole call."""
    encoder = RequestEncoder()
    return encoder.finish([_encode_change(change, encoder, place) for place, change in enumerate(changes, first)])


def decode_plan(reply: Any, changes: Sequence[Change]) -> list[ScheduleResult]:
    """Return the result of each change."""
    return [_schedule_result(change, *answer) for answer, change in zip(reply, changes, strict=True)]


def decode_settings(body: bytes) -> Settings:
    """Decode settings as a partition keeps them."""
    fields = {} if body == _NOTHING else _read(body)
    # A script encodes a map without fields as an empty list.
    return msgspec.convert(
        {name: value or {} if name in ("stall", "retention", "moved") else value for name, value in fields.items()},
        Settings,
    )


def decode_schedule(body: bytes) -> Schedule:
    """Decode a schedule as a partition keeps it."""
    kept = _timed(body)
    return structs.replace(
        _read_whole(kept.rest),
        paused=kept.paused,
        created=kept.created,
        last_tick=kept.last_tick,
        next_tick=kept.next_tick,
        last_id=kept.last_id,
        runs=kept.runs,
    )


_NOTHING = b"\x90"


def _encode_revision(revision: Revision) -> EncodedRevision:
    ref = encode_ref(revision.ref)
    match revision:
        case CancelJob(reason=reason, by=by, ended=ended):
            return EncodedRevision(kind="cancel", ref=ref, reason=reason, by=by, ended=ended)
        case RedriveJob(by=by, delay=delay, ended=ended):
            return EncodedRevision(kind="redrive", ref=ref, by=by, delay=delay, ended=ended)
        case DeleteJob(by=by, ended=ended, move=move):
            return EncodedRevision(kind="delete", ref=ref, by=by, ended=ended, move=move)
        case RescheduleJob(delay=delay, priority=priority, boost=boost, by=by, ended=ended):
            return EncodedRevision(
                kind="reschedule", ref=ref, delay=delay, priority=priority, boost=boost, by=by, ended=ended
            )
        case RetainJob(ttl=ttl, ended=ended):
            return EncodedRevision(kind="retain", ref=ref, ttl=ttl, ended=ended)
        case DeliverToken() | SealBox() | Subscribe() | AdvanceEntry():
            raise FlowError("a token is delivered, and Redis does not keep flows yet")
        case _:
            assert_never(revision)


def _revision_result(
    ref: Ref, verdict: bytes, state: bytes | None = None, holder: bytes | None = None
) -> RevisionResult:
    word: Any = verdict.decode()
    return RevisionResult(
        ref,
        word,
        None if state is None else State(state.decode()),
        None if holder is None else Ref(ref.queue, holder.decode()),
    )


def _encode_change(change: Change, encoder: RequestEncoder, place: int) -> EncodedScheduleChange:
    match change:
        case PutSchedule(schedule):
            return EncodedScheduleChange(kind="put", name=schedule.name, schedule=_encode_schedule(schedule))
        case PauseSchedule(name=name, paused=paused, next_tick=next_tick):
            return EncodedScheduleChange(kind="pause", name=name, paused=paused, next_tick=next_tick)
        case RemoveSchedule(name=name):
            return EncodedScheduleChange(kind="remove", name=name)
        case Tick():
            return EncodedScheduleChange(
                kind="tick",
                name=change.name,
                expected=change.expected,
                tick=change.tick,
                next_tick=change.next_tick,
                missed=change.missed,
                job=None if change.job is None else encode_job(change.job, encoder),
                place=place,
            )
        case _:
            assert_never(change)


def _encode_schedule(schedule: Schedule) -> EncodedSchedule:
    return EncodedSchedule(
        cron=schedule.cron,
        tz=schedule.tz,
        every=schedule.every,
        limit=schedule.limit,
        start=schedule.start,
        stop=schedule.end,
        immediately=schedule.immediately,
        runs=schedule.runs,
        missed=schedule.missed,
        overlap=schedule.overlap,
        paused=schedule.paused,
        created=schedule.created,
        last_tick=schedule.last_tick,
        next_tick=schedule.next_tick,
        last_id=schedule.last_id,
        rest=_whole(schedule).decode(),
    )


def _schedule_result(change: Change, verdict: bytes, id_: bytes | None = None) -> ScheduleResult:
    word: Any = verdict.decode()
    ref = None
    if isinstance(change, Tick) and change.job is not None and id_ is not None:
        ref = Ref(change.job.queue, id_.decode())
    return ScheduleResult(change.name, word, ref)
