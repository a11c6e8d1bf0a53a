"""Encodes the requests of the read verbs (get, find, survey, events) for their scripts, and decodes the answers.

Each script call is short, so one answer may take several calls: an `encode_*` function says where a call starts, a
`decode_*` function how far it got.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from tenure.core.document import read_progress
from tenure.core.duration import moment
from tenure.core.events import AnyEvent, EventsTrimmed, UnreadableEvent, stamped
from tenure.core.fingerprint import FaultSurvey, shown_error
from tenure.core.internal import included
from tenure.core.job import JobDetail, JobRecord, LogLine, Owner, Ref
from tenure.core.leadership import Term
from tenure.core.lifecycle import TERMINAL, State
from tenure.storage.cursors import DuePlace, place_of
from tenure.storage.protocol import (
    QUEUE_RATE,
    EventReader,
    Query,
    QueueSurvey,
    Settings,
    StartLimit,
    Survey,
    UnknownTask,
    WorkerSurvey,
    task_of_place,
)
from tenure.storage.redis.records import (
    RequestEncoder,
    decode_detail,
    decode_error,
    decode_record,
    decode_ref,
    encode_ref,
)
from tenure.storage.redis.revise import decode_schedule, decode_settings

_INDEXES_AT_ONCE = 224
"""Number of indexes that one call of a listing reads."""

_LOOKED_UP_AT_ONCE = 128
"""Number of queues in which one call looks for a job id."""

_DUE_AT_ONCE = 64
"""Number of queues whose delayed jobs one call merges by due instant."""

LOOKED_AT_ONCE = 150
"""Number of jobs that one call of a listing by due instant looks at (`LOOKS` of the script)."""

GOT_AT_ONCE = 100
"""Maximum number of jobs that one call asks for."""

SURVEYED_AT_ONCE = 50
"""Number of queues that one call of a survey counts."""

_STATES = (
    State.DELAYED,
    State.WAITING,
    State.WAITING,
    State.ACTIVE,
    State.COMPLETED,
    State.FAILED,
    State.CANCELLED,
    State.EXPIRED,
)
"""The state of the jobs in each index of a queue, in the order in which a survey counts the indexes."""

_ENDED = tuple(state for state in State if state in TERMINAL)

_NONE = Settings()


class _Find(Struct, omit_defaults=True, kw_only=True):
    """A query as a script reads it."""

    queues: Sequence[str] | None = None
    after: int | None = None
    span: int = 0
    states: Sequence[str] | None = None
    tasks: Sequence[str] | None = None
    reasons: Sequence[str] | None = None
    tags: Sequence[str] | None = None
    owner: str | None = None
    key: str | None = None
    schedule: str | None = None
    fault: str | None = None
    created_after: int | None = None
    created_before: int | None = None
    ended_after: int | None = None
    ended_before: int | None = None
    id: str | None = None
    merge: str | None = None
    before: int | None = None
    above: int = 0
    looks: int | None = None
    due: DuePlace | None = None
    limit: int


class _Survey(Struct, omit_defaults=True, kw_only=True):
    queues: Sequence[str] | None = None
    after: int | None = None
    span: int = 0
    whole: bool = False
    faults: int | None = None


class _Reader(Struct, omit_defaults=True, kw_only=True):
    name: str
    caller: str
    begin: int | None = None


class _Events(Struct, omit_defaults=True, kw_only=True):
    after: int | None = None
    limit: int
    ref: str | None = None
    reader: _Reader | None = None
    age: int | None = None


class _Worker(Struct, kw_only=True):
    """A worker as a script keeps it. `number`: workers that started later have higher numbers."""

    number: int
    name: str = ""
    host: str = ""
    pid: int = 0
    queues: tuple[str, ...] = ()
    concurrency: int = 0
    active: int = 0
    turned_ago: int = 0
    stopping: bool = False
    started: int = 0
    died: bool = False
    lag: int = 0
    memory: int = 0
    quiet: bool = False
    tasks: dict[str, int] | None = None
    unstopped: tuple[Ref, ...] = ()
    why: str = ""
    alarm: str = ""


class _EncodedLogLine(Struct, kw_only=True):
    """A log line as a script keeps it; `fields` is JSON text."""

    at: int
    run: int
    level: str
    message: str
    line: int
    fields: str | None = None


class FoundPart(Struct):
    """What one call of a listing found: jobs with their sequence numbers, newest first.

    `looked_to`: there may be more jobs with numbers below this. `after`: the number after which there are more queues.
    `looks`: at how many jobs it has looked.
    """

    found: list[tuple[int, JobRecord]]
    looked_to: int | None
    after: int | None
    looks: int


class DuePart(Struct):
    """What one call found of delayed jobs, by due instant: as `FoundPart`, with places instead of numbers."""

    found: list[tuple[DuePlace, JobRecord]]
    looked_to: DuePlace | None = None
    after: int | None = None


class EventsPart(Struct):
    """What one call read of the event log.

    `trimmed`: an `EventsTrimmed` to report first, if events were trimmed. `next`: the number of the last event that
    was examined. `last`: the number of the newest event.
    """

    trimmed: list[AnyEvent]
    events: list[AnyEvent]
    next: int
    last: int


class SurveyPart(Struct):
    """What one call of a survey counted. `whole`: the raw data that belongs to no queue."""

    rows: list[list[Any]]
    after: int | None
    now: int
    faults: list[FaultSurvey]
    whole: list[Any]


_line = msgspec.msgpack.Decoder(_EncodedLogLine).decode
_worker = msgspec.msgpack.Decoder(_Worker).decode
_fields = msgspec.json.Decoder(dict[str, str]).decode
_event: msgspec.msgpack.Decoder[AnyEvent] = msgspec.msgpack.Decoder(AnyEvent)
_any = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode


# ── get ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_get(refs: Sequence[Ref]) -> list[bytes]:
    """Return the request for jobs."""
    return RequestEncoder().finish({"refs": [encode_ref(ref) for ref in refs]})


def decode_get(reply: Any) -> list[JobDetail | None]:
    """Return the jobs; if there are fewer than were asked for, they are the first of those."""
    return [_detail(*found) if found else None for found in reply]


def _detail(
    ref: bytes,
    body: bytes,
    payload: bytes,
    result: bytes | None,
    runs: Sequence[bytes],
    log: Sequence[bytes],
    trace: bytes | None,
) -> JobDetail:
    job, known = decode_detail(decode_ref(ref), body, payload, result, runs, None if trace is None else trace.decode())
    lines = [_line_of(body, number) for number, body in enumerate(log, 1)]
    dropped = lines[-1].line - len(lines) if lines else 0
    return JobDetail(job, known, tuple(_log_line(line) for line in lines), dropped)


def _line_of(body: bytes, number: int) -> _EncodedLogLine:
    try:
        return _line(body)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return _EncodedLogLine(at=0, run=0, level="error", message=f"unreadable: {body[:200]!r}", line=number)


def _log_line(line: _EncodedLogLine) -> LogLine:
    return LogLine(
        at=line.at,
        run=line.run,
        level=line.level,
        message=line.message,
        fields=_fields(line.fields) if line.fields else {},
    )


# ── find ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_find(
    query: Query,
    *,
    limit: int,
    queues: Sequence[str] | None,
    after: int | None = None,
    before: int | None = None,
    above: int = 0,
    looks: int | None = None,
    due: DuePlace | None = None,
) -> list[bytes]:
    """Return the request for a page of jobs with sequence numbers between `above` and `before`.

    `queues`: the queues to look in; None: those of the partition after the number `after`. `looks`: at how many jobs to
    look at most. `due`: list by due instant, after this place.
    """
    return RequestEncoder().finish(
        _Find(
            queues=queues,
            after=after,
            span=queues_at_once(query),
            states=[state.value for state in dict.fromkeys(query.states or _states_of(query))] or None,
            tasks=query.tasks or None,
            reasons=query.reasons or None,
            tags=query.tags or None,
            owner=query.owner,
            key=query.key,
            schedule=query.schedule,
            fault=query.fault,
            created_after=query.created_after,
            created_before=query.created_before,
            ended_after=query.ended_after,
            ended_before=query.ended_before,
            id=query.id,
            merge=query.merge,
            before=before,
            above=above,
            looks=looks,
            due=due,
            limit=limit,
        )
    )


def decode_due(reply: Any) -> DuePart:
    """Return the delayed jobs that were found, each with its place."""
    found, looked_to, after, _ = reply
    return DuePart(
        [
            (_place(at), decode_record(decode_ref(ref), body, payload, result))
            for at, ref, body, payload, result in found
        ],
        None if looked_to is None else _place(looked_to),
        after,
    )


def _place(parts: tuple[int, bytes, bytes]) -> DuePlace:
    at, queue, id_ = parts
    return at, queue.decode(), id_.decode()


def _states_of(query: Query) -> tuple[State, ...]:
    """Return the states that the conditions imply; empty: any."""
    if query.fault is not None:
        return (State.FAILED,)
    return _ENDED if query.ended_after is not None or query.ended_before is not None else ()


def queues_at_once(query: Query) -> int:
    """Return the number of queues in which one call looks for a query's jobs."""
    if query.id is not None:
        return _LOOKED_UP_AT_ONCE
    if query.order == "due":
        return _DUE_AT_ONCE
    states = len(set(query.states)) + (State.WAITING in query.states)
    return _INDEXES_AT_ONCE // (2 if query.merge is not None else states or len(_STATES))


def decode_find(reply: Any) -> FoundPart:
    """Return the jobs that were found."""
    found, looked_to, after, looks = reply
    return FoundPart(
        [(made, decode_record(decode_ref(ref), body, payload, result)) for made, ref, body, payload, result in found],
        looked_to,
        after,
        looks,
    )


# ── survey ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_survey(
    queues: Sequence[str] | None, *, after: int | None = None, whole: bool = False, faults: int = 0
) -> list[bytes]:
    """Return the request to count some queues; `whole`: also return the data that belongs to no queue."""
    return RequestEncoder().finish(
        _Survey(queues=queues, after=after, span=SURVEYED_AT_ONCE, whole=whole, faults=faults or None)
    )


def decode_survey(reply: Any) -> SurveyPart:
    """Return the counts."""
    rows, after, now, faults, *whole = reply
    return SurveyPart(rows, after, now, [_fault(*row) for row in faults], whole)


def survey_of(
    requested: Sequence[str] | None,
    rows: Iterable[list[Any]],
    faults: Sequence[FaultSurvey],
    whole: Sequence[Any],
    now: int,
    *,
    scope: str,
) -> Survey:
    """Return a survey of the queues asked for, or of all. `scope`: the scope of the partition's leader."""
    settings, discarded, workers, seen, schedules, leader, limits = whole
    settings_of = {_names(target): decode_settings(body) for target, body in _pairs(settings)}
    lost = {queue.decode(): int(count) for queue, count in _pairs(discarded)}
    tuned = {name: setting for (kind, name), setting in settings_of.items() if kind == "queue"}
    tasks = {name: setting for (kind, name), setting in sorted(settings_of.items()) if kind == "task"}
    counted = {queue.decode(): row for queue, *row in rows}
    if requested is None:
        counted = {queue: row for queue, row in counted.items() if any(row[2:])}
    limits_of = _limits(limits)
    terms, swept_at = _leader({field.decode(): value for field, value in _pairs(leader)}, now, scope)
    return Survey(
        queues=tuple(
            _queue(
                name, counted.get(name, _EMPTY), now, lost.get(name, 0), tuned.get(name, _NONE), limits_of.get(name, [])
            )
            for name in sorted(included({*counted, *tuned, *lost}, ()) if requested is None else set(requested))
        ),
        paused_tasks=tuple(name for name, task in tasks.items() if task.paused),
        task_rates={name: rate for name, task in tasks.items() if (rate := task.rate) is not None},
        workers=_workers(dict(_pairs(workers)), dict(_pairs(seen)), now),
        schedules=tuple(sorted((decode_schedule(body) for body in schedules), key=lambda schedule: schedule.name)),
        faults=tuple(faults),
        leaders=terms,
        swept_ago=None if swept_at is None else now - swept_at,
        now=now,
    )


def _fault(
    queue: bytes,
    name: bytes,
    count: int,
    first: int,
    last: int,
    newest: Sequence[bytes],
    task: bytes,
    reason: bytes | None,
    error: bytes | None,
) -> FaultSurvey:
    return FaultSurvey(
        queue=queue.decode(),
        fault=name.decode(),
        count=count,
        first=first,
        last=last,
        newest=tuple((int(at), id_.decode()) for id_, at in _pairs(newest)),
        task=task.decode(),
        reason=None if reason is None else reason.decode(),
        error=None if error is None else shown_error(decode_error(error)),
    )


_EMPTY: list[Any] = [0, None, [], *(0 for _ in _STATES)]


def _limits(flat: Sequence[bytes]) -> dict[str, list[StartLimit]]:
    """Return the limits of each queue, sorted by name."""
    limits: dict[str, list[StartLimit]] = {}
    for (queue, name), until in sorted((_names(place), int(until)) for place, until in _pairs(flat)):
        limits.setdefault(queue, []).append(StartLimit(None if name == QUEUE_RATE else name, until))
    return limits


def _queue(
    name: str, row: list[Any], now: int, discarded: int, settings: Settings, limits: Sequence[StartLimit]
) -> QueueSurvey:
    ready, oldest, unknown, *counted = row
    counts: dict[State, int] = {}
    for state, jobs in zip(_STATES, counted, strict=True):
        counts[state] = counts.get(state, 0) + jobs
    return QueueSurvey(
        queue=name,
        counts={state: counts[state] for state in sorted(counts) if counts[state]},
        oldest_waiting=None if oldest is None else max(0, now - oldest),
        parked=counts[State.WAITING] - ready,
        discarded=discarded,
        unknown=tuple(
            UnknownTask(*task_of_place(name.decode()), max(0, now - since))
            for name, since in zip(unknown[::2], unknown[1::2], strict=True)
        ),
        settings=settings,
        limits=tuple(limits),
    )


def _workers(workers: Mapping[bytes, bytes], seen: Mapping[bytes, bytes], now: int) -> tuple[WorkerSurvey, ...]:
    known = [(owner.decode(), _worker(body), int(float(seen.get(owner, b"0")))) for owner, body in workers.items()]
    known.sort(key=lambda entry: (entry[1].number, entry[0]))
    return tuple(
        WorkerSurvey(
            owner=Owner(owner, worker.name, worker.host, worker.pid),
            queues=worker.queues,
            concurrency=worker.concurrency,
            active=worker.active,
            started=worker.started,
            seen_ago=max(0, now - at),
            turned_ago=max(0, now - at) + worker.turned_ago,
            stopping=worker.stopping,
            died=worker.died,
            lag=worker.lag,
            memory=worker.memory,
            quiet=worker.quiet,
            tasks=worker.tasks,
            unstopped=worker.unstopped,
            why=worker.why,
            alarm=worker.alarm,
        )
        for owner, worker, at in known
    )


def _leader(leader: Mapping[str, bytes], now: int, scope: str) -> tuple[tuple[Term, ...], int | None]:
    swept_at = int(leader["swept_at"]) if "swept_at" in leader else None
    if "owner" not in leader or int(leader["until"]) <= now:
        return (), swept_at
    return (Term(scope, leader["owner"].decode(), int(leader["epoch"]), int(leader["length"])),), swept_at


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Return the pairs of a map, which a script returns as a flat list."""
    return zip(flat[::2], flat[1::2], strict=True)


def _names(joined: bytes) -> tuple[str, str]:
    kind, _, name = joined.decode().partition("\0")
    return kind, name


# ── events ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_events(
    after: int | None,
    limit: int,
    *,
    reader: EventReader | None = None,
    ref: Ref | None = None,
    age: int | None = None,
) -> list[bytes]:
    """Return the request for the events after a number; None: after the newest, or at a reader's place.

    `age`: use the events recorded in the last `age` microseconds instead.
    """
    kept = None
    if reader is not None:
        begin = None if reader.begin is None else place_of(reader.begin)
        kept = _Reader(name=reader.name, caller=reader.caller, begin=begin)
    job = None if ref is None else encode_ref(ref)
    return RequestEncoder().finish(_Events(after=after, limit=limit, ref=job, reader=kept, age=age))


def decode_events(reply: Any) -> EventsPart:
    """Return the events that were read."""
    entries, last_looked_at, oldest, last = reply
    return EventsPart(
        [] if oldest is None else [EventsTrimmed(oldest=str(oldest))],
        [_entry(number, dict(_pairs(fields))) for number, fields in entries],
        last_looked_at,
        last,
    )


def _entry(number: bytes, fields: Mapping[bytes, bytes]) -> AnyEvent:
    event = _decoded(fields[b"e"])
    if b"o" in fields and not isinstance(event, UnreadableEvent):
        event = structs.replace(event, **_any(fields[b"o"]))
    return stamped(event, number.decode().partition("-")[2], int(fields[b"t"]))


def _decoded(body: bytes) -> AnyEvent:
    """Decode an event of the log. An undecodable event must not stop the reader of those after it."""
    try:
        return _event.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return _decoded_otherwise(body)


def _decoded_otherwise(body: bytes) -> AnyEvent:
    """Decode an event that a script made, with instants in microseconds; otherwise return the raw content."""
    try:
        fields = _any(body)
        shown = _json(fields).decode()
    except (msgspec.MsgspecError, RecursionError, TypeError, ValueError):
        return UnreadableEvent(body=body.decode(errors="replace"))
    try:
        values: dict[str, Any] = dict(fields)
        if isinstance(fields.get("value"), str):
            # A progress object is JSON text for scripts.
            values["value"] = read_progress(fields["value"])
        named = ("due_at", "tick", "until")
        instants = {name: moment(fields[name]) for name in named if isinstance(fields.get(name), int)}
        return _event.decode(_encode({**values, **instants}))
    except (msgspec.MsgspecError, RecursionError, AttributeError, TypeError, ValueError, OverflowError):
        return UnreadableEvent(body=shown)
