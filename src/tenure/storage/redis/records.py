"""Encodes new jobs for scripts, and decodes the records that a partition keeps (lua/parts/record_format.lua).

A record has numbers at fixed places and msgpack for the rest. Fields that no script reads are sent as text. Long
payloads and results are kept outside the record.
"""

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct, structs

from tenure.core.document import read_progress
from tenure.core.frames import framed
from tenure.core.job import (
    CollectKey,
    JobRecord,
    Key,
    MergeKey,
    NewJob,
    OnExpire,
    Policy,
    RateKey,
    RecordedError,
    Ref,
    RunRecord,
    StallTerms,
    ThrottleKey,
    unreadable_record,
)
from tenure.core.lifecycle import State
from tenure.core.transition import too_late
from tenure.storage.policies import DEFAULT_POLICY, decode_policy

_LEASE = StallTerms().lease

_encode = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode
_headers = msgspec.json.Decoder(dict[str, str]).decode
_error = msgspec.json.Decoder(RecordedError).decode


class RequestEncoder(Struct):
    """Collects the arguments of a script call: one request that the script reads by name, and raw bytes after it.

    The servers' msgpack has no type for bytes, so a request refers to bytes by their place among the arguments.
    """

    blobs: list[bytes] = []

    def put(self, *blobs: bytes) -> int:
        """Add bytes as further arguments; return the place of the first."""
        first = _FIRST + len(self.blobs)
        self.blobs.extend(blobs)
        return first

    def finish(self, request: object) -> list[bytes]:
        """Return the arguments of the script."""
        return [_encode(request), *self.blobs]


_FIRST = 3
"""The place of the first bytes that are put."""


class EncodedJob(Struct, omit_defaults=True, kw_only=True):
    """A new job as a script reads it; see `NewJob`. `payload`: its place among the script's arguments."""

    queue: str
    id: str
    task: str
    payload: int
    headers: str | None = None
    tags: tuple[str, ...] = ()
    delay: int = 0
    run_at: int | None = None
    priority: int = 0
    boost: int = 0
    lifo: bool = False
    fair_key: str | None = None
    weight: int = 1
    ttl: int | None = None
    timeout: int | None = None
    deadline: int | None = None
    heartbeat_timeout: int | None = None
    keys: tuple[tuple[str, int], ...] = ()
    rates: tuple[tuple[str, int, int], ...] = ()
    merge: MergeKey | None = None
    throttle: ThrottleKey | None = None
    lease: int = _LEASE
    max_stalls: int = 1
    start_grace: int = 0
    renewed: bool = True
    pinned: tuple[str, ...] = ()
    on_expire: OnExpire = "fail"
    policy: str | None = None
    schedule: str | None = None
    tick: int | None = None
    parent: str | None = None


class FixedFields(Struct, omit_defaults=True, kw_only=True):
    """The fields of a record that seldom change: the same bytes for all jobs of a call, encoded and decoded once."""

    task: str
    headers: str | None = None
    tags: tuple[str, ...] = ()
    priority: int = 0
    boost: int = 0
    lifo: bool = False
    fair_key: str | None = None
    weight: int = 1
    ttl: int | None = None
    deadline: int | None = None
    heartbeat_timeout: int | None = None
    keys: tuple[tuple[str, int], ...] = ()
    rates: tuple[tuple[str, int, int], ...] = ()
    merge: MergeKey | None = None
    max_stalls: int = 1
    start_grace: int = 0
    renewed: bool = True
    pinned: tuple[str, ...] = ()
    on_expire: str = "fail"
    policy: str | None = None
    schedule: str | None = None
    tick: int | None = None
    parent: str | None = None


class RareFields(Struct, omit_defaults=True, kw_only=True):
    """The fields that only a few records have."""

    expires_at: int | None = None
    collected: int = 0
    collected_bytes: int = 0
    parked_under: str | None = None
    owner: str | None = None
    suspect_until: int | None = None
    progress_until: int | None = None
    quarantined: bool = False
    put_back_used: bool = False
    cancel_at: int | None = None
    cancel_reason: str | None = None
    cancel_by: str | None = None
    redrive_at: int | None = None
    redrives: int = 0
    error: str | None = None
    reason: str | None = None
    fault: str | None = None
    progress: float | str | None = None
    progress_note: str | None = None
    data: str | None = None
    """Only in the answers of scripts; it is stored apart from the record."""
    data_number: int = 0
    logged: bool = False
    """The job has a log; only scripts use this field."""


class _RunEnd(Struct):
    """How a run ended. The words are not checked, because a newer version may have written a new one."""

    ended: str | None = None
    reason: str | None = None
    detail: str | None = None


_GOING_ON = _RunEnd()

PLACED = (
    *("state", "made", "score", "run_at", "created", "lease", "timeout"),
    *("starts", "failures", "stalls", "releases", "fence", "settled_fence"),
    *("heard_at", "lease_until", "run_until", "started", "finished", "kept_until"),
)
"""The fields at fixed places of a record."""

HEAD = struct.Struct("<BBBIIIdddddd")
RUN = struct.Struct("<IIIIIIdddddddddd")
PAST_RUN = struct.Struct("<IdddI")
"""A record's head, its run, and an entry of the list of earlier runs; fields of variable length follow."""

FORM = 2
RAN, RESULT, APART, RESULT_APART = 2, 32, 64, 128
_NEVER = -1.0
_STATES: tuple[State, ...] = (
    *(State.EXPIRED, State.DELAYED, State.WAITING, State.ACTIVE),
    *(State.COMPLETED, State.FAILED, State.CANCELLED, State.EXPIRED),
)

_TOO_LARGE = 1 << 62
"""All instants, durations, counts and scores of a valid record are below this."""

_UNREADABLE = (
    *(msgspec.MsgspecError, struct.error, ValueError, OverflowError, LookupError, TypeError, AttributeError),
    RecursionError,
)
"""The exceptions that decoding a corrupt record may raise."""

_NO_RUN = (0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0)
_NOTHING_RARE = RareFields()

_read_fixed = msgspec.msgpack.Decoder(FixedFields).decode
_read_rare = msgspec.msgpack.Decoder(RareFields).decode
_read_ended = msgspec.msgpack.Decoder(_RunEnd).decode
_read_any: Callable[[bytes], Any] = msgspec.msgpack.Decoder().decode
_read_holder = msgspec.msgpack.Decoder(tuple[str, str, str, int]).decode


class RecordLayout(Struct, frozen=True, gc=False):
    """The parts of a record. `run`: the numbers of its run, or `_NO_RUN` if the job has not run."""

    head: tuple[Any, ...]
    run: tuple[Any, ...]
    fixed: bytes
    payload: bytes | None
    rare: RareFields
    holder: bytes
    ended: bytes
    result: bytes | None


def split_record(body: bytes) -> RecordLayout:
    """Return the parts of a record."""
    head = HEAD.unpack_from(body)
    marks, fixed, load, rare = head[2:6]
    at = HEAD.size
    run = _NO_RUN
    if marks & RAN:
        run = RUN.unpack_from(body, at)
        at += RUN.size
    kept, at = body[at : at + fixed], at + fixed
    payload = None
    if not marks & APART:
        payload, at = body[at : at + load], at + load
    rare_fields = _NOTHING_RARE
    if rare:
        rare_fields, at = _read_rare(body[at : at + rare]), at + rare
    holder, at = body[at : at + run[4]], at + run[4]
    ended, at = body[at : at + run[5]], at + run[5]
    return RecordLayout(head, run, kept, payload, rare_fields, holder, ended, body[at:] if marks & RESULT else None)


def encode_ref(ref: Ref) -> str:
    """Return a job's reference as scripts use it. The names of queues and jobs contain no NUL."""
    return f"{ref.queue}\0{ref.id}"


def decode_ref(joined: bytes) -> Ref:
    """Return the job that a script's reference names."""
    queue, _, job = joined.decode().partition("\0")
    return Ref(queue, job)


def encode_job(job: NewJob, encoder: RequestEncoder) -> EncodedJob:
    """Return a new job as a script reads it."""
    stall = job.stall
    return EncodedJob(
        queue=job.queue,
        id=job.id,
        task=job.task,
        payload=encoder.put(framed(job.payload) if isinstance(job.merge, CollectKey) else job.payload),
        headers=encode_headers(job.headers),
        tags=job.tags,
        delay=job.delay,
        run_at=job.run_at,
        priority=job.priority,
        boost=job.boost,
        lifo=job.lifo,
        fair_key=job.fair_key,
        weight=job.weight,
        ttl=job.ttl,
        timeout=job.timeout,
        deadline=job.deadline,
        heartbeat_timeout=job.heartbeat_timeout,
        keys=tuple((key.name, key.limit) for key in job.keys),
        rates=tuple((rate.name, rate.interval, rate.burst) for rate in job.rates),
        merge=job.merge,
        throttle=job.throttle,
        lease=stall.lease,
        max_stalls=stall.max_stalls,
        start_grace=stall.start_grace,
        renewed=stall.renewed,
        pinned=stall.pinned,
        on_expire=job.policy.on_expire,
        policy=encode_policy(job.policy),
        schedule=job.schedule,
        tick=job.tick,
        parent=job.parent,
    )


def without_identity(job: NewJob) -> NewJob:
    """Return a new job without its id and payload, which differ from job to job."""
    return structs.replace(job, id="", payload=b"")


def encode_fixed(like: NewJob) -> bytes | None:
    """Return the encoded fixed fields of all jobs that are like this one.

    Returns None if the job is not plain (see parts/record_format.lua), or is not to run at once.
    """
    # The next call is usually for the same task, made from the same template.
    if like.headers:
        # Do not cache: the caller owns the dict and may have changed it since.
        return _encode_fixed(like)
    known = _latest.get(like.task)
    if known is None or known[0] != like:
        if len(_latest) >= _TASKS:
            _latest.clear()
        known = _latest[like.task] = like, _encode_fixed(like)
    return known[1]


_TASKS = 1024

_latest: dict[str, tuple[NewJob, bytes | None]] = {}
"""For each task: its latest job without id and payload, and that job's encoded fixed fields."""


def _encode_fixed(job: NewJob) -> bytes | None:
    if (
        job.keys
        or job.rates
        or job.merge is not None
        or job.throttle is not None
        or job.fair_key is not None
        or job.lifo
        or job.schedule is not None
        or job.deadline is not None
        or job.heartbeat_timeout is not None
        or job.ttl is not None
        or job.delay
        or job.run_at is not None
        or job.stall.start_grace
    ):
        return None
    return _encode(
        FixedFields(
            task=job.task,
            headers=encode_headers(job.headers),
            tags=job.tags,
            priority=job.priority,
            boost=job.boost,
            weight=job.weight,
            max_stalls=job.stall.max_stalls,
            renewed=job.stall.renewed,
            pinned=job.stall.pinned,
            on_expire=job.policy.on_expire,
            policy=encode_policy(job.policy),
            tick=job.tick,
            parent=job.parent,
        )
    )


def sequence_number(body: bytes) -> int:
    """Return the sequence number under which a record was made."""
    return int(HEAD.unpack_from(body)[6])


def decode_record(ref: Ref, body: bytes, payload: bytes, result: bytes | None = None) -> JobRecord:
    """Decode a partition's record of a job. `payload`, `result`: used if the record does not hold them itself.

    Fields that cannot be decoded get neutral values, and the job's error says so.
    """
    try:
        return _decode_record(ref, split_record(body), payload, result)
    except _UNREADABLE as error:
        return _salvage(ref, body, payload, error)


def decode_detail(
    ref: Ref, body: bytes, payload: bytes, result: bytes | None, before: Sequence[bytes], trace: str | None
) -> tuple[JobRecord, tuple[RunRecord, ...]]:
    """Return a job's record and its runs. `before`: the earlier runs; the record itself holds the last one."""
    job = decode_record(ref, body, payload, result)
    if job.starts == 0:
        return job, ()
    try:
        parts = split_record(body)
        run = parts.run
        last = _decode_run(job.starts, int(run[8]), run[12], run[14], parts.holder, parts.ended, trace)
        return job, (*map(_decode_past_run, before), last)
    except _UNREADABLE:
        # The runs cannot be decoded, but the job can be shown.
        return job, ()


def _decode_past_run(body: bytes) -> RunRecord:
    number, fence, start, end, holder = PAST_RUN.unpack_from(body)
    at = PAST_RUN.size
    return _decode_run(number, int(fence), start, end, body[at : at + holder], body[at + holder :], None)


def _decode_run(
    number: int, fence: int, start: float, end: float, holder: bytes, ended: bytes, trace: str | None
) -> RunRecord:
    owner, worker, host, pid = _holder(holder)
    how = _read_ended(ended) if ended else _GOING_ON
    return RunRecord(
        number=number,
        fence=fence,
        owner=owner,
        worker=worker,
        host=host,
        pid=pid,
        start=int(start),
        end=_or_none(end),
        ended=how.ended,
        reason=how.reason,
        detail=how.detail,
        trace=trace,
    )


def _decode_record(ref: Ref, parts: RecordLayout, payload: bytes, result: bytes | None) -> JobRecord:
    _, number, _, _, _, _, _, score, run_at, created, lease, timeout = parts.head
    starts, failures, stalls, releases, _, _, fence, settled, _, heard, ends, limit, started, finished, _, kept = (
        parts.run
    )
    if not (
        abs(score) < _TOO_LARGE
        and abs(run_at) < _TOO_LARGE
        and abs(created) < _TOO_LARGE
        and 0 <= lease < _TOO_LARGE
        and abs(timeout) < _TOO_LARGE
    ):
        raise ValueError("a number is out of range")
    like = _shared_fields(
        ref.queue, number, lease, timeout, starts, failures, stalls, releases, parts.fixed, parts.holder
    )
    job = structs.replace(
        like,
        id=ref.id,
        payload=payload if parts.payload is None else parts.payload,
        # Copy them: the record in the cache is shared, and the caller may change the dict.
        headers=like.headers.copy(),
        score=int(score),
        run_at=int(run_at),
        created=int(created),
        fence=int(fence),
        heard_at=None if heard == _NEVER else int(heard),
        lease_until=None if ends == _NEVER else int(ends),
        run_until=None if limit == _NEVER else int(limit),
        started=None if started == _NEVER else int(started),
    )
    if settled or finished != _NEVER or kept != _NEVER or result is not None or parts.result is not None:
        job = structs.replace(
            job,
            settled_fence=int(settled),
            finished=_or_none(finished),
            kept_until=_or_none(kept),
            result=result if parts.result is None else parts.result,
        )
    return job if parts.rare is _NOTHING_RARE else _with_rare_fields(job, parts.rare)


@lru_cache(1024)
def _shared_fields(
    queue: str,
    number: int,
    lease: float,
    timeout: float,
    starts: int,
    failures: int,
    stalls: int,
    releases: int,
    fixed: bytes,
    holder: bytes,
) -> JobRecord:
    """Return a record with the fields that many records share, such as all jobs of a call that one worker claimed."""
    fields, state = _read_fixed(fixed), _STATES[number]
    return JobRecord(
        queue=queue,
        id="",
        task=fields.task,
        state=state,
        payload=b"",
        headers=_headers(fields.headers) if fields.headers else {},
        tags=fields.tags,
        score=0,
        priority=fields.priority,
        boost=fields.boost,
        lifo=fields.lifo,
        fair_key=fields.fair_key,
        weight=fields.weight,
        run_at=0,
        ttl=fields.ttl,
        timeout=_or_none(timeout),
        deadline=fields.deadline,
        heartbeat_timeout=fields.heartbeat_timeout,
        keys=tuple(Key(*key) for key in fields.keys),
        rates=tuple(RateKey(*rate) for rate in fields.rates),
        merge=fields.merge,
        stall=StallTerms(int(lease), fields.max_stalls, fields.start_grace, fields.renewed, fields.pinned),
        policy=DEFAULT_POLICY if fields.policy is None else decode_policy(fields.policy),
        owner=_holder(holder)[0] if holder and state is State.ACTIVE else None,
        starts=starts,
        failures=failures,
        stalls=stalls,
        releases=releases,
        created=0,
        error=too_late(fields.ttl) if state is State.EXPIRED else None,
        schedule=fields.schedule,
        tick=fields.tick,
        parent=fields.parent,
    )


def _with_rare_fields(job: JobRecord, rare: RareFields) -> JobRecord:
    """Return a record with its rare fields set."""
    return structs.replace(
        job,
        expires_at=rare.expires_at,
        collected=rare.collected,
        collected_bytes=rare.collected_bytes,
        parked_under=rare.parked_under,
        owner=job.owner if rare.owner is None else rare.owner,
        suspect_until=rare.suspect_until,
        progress_until=rare.progress_until,
        quarantined=rare.quarantined,
        put_back_used=rare.put_back_used,
        cancel_at=rare.cancel_at,
        cancel_reason=rare.cancel_reason,
        cancel_by=rare.cancel_by,
        redrive_at=rare.redrive_at,
        redrives=rare.redrives,
        error=job.error if job.state is State.EXPIRED or rare.error is None else _error(rare.error),
        reason=rare.reason,
        fault=rare.fault,
        progress=read_progress(rare.progress),
        progress_note=rare.progress_note,
        data=None if rare.data is None else rare.data.encode(),
        data_number=rare.data_number,
    )


def _salvage(ref: Ref, body: bytes, payload: bytes, error: Exception) -> JobRecord:
    """Return the readable fields of a corrupt record: enough to settle its run."""
    head: tuple[Any, ...] = (0,) * HEAD.size
    run, rare, task = _NO_RUN, _NOTHING_RARE, ""
    state: State = State.FAILED
    cause = repr(error)
    with suppress(*_UNREADABLE):
        head = HEAD.unpack_from(body)
        number = int(head[1])
        state = _STATES[number] if 0 < number < len(_STATES) else State.FAILED
        at = HEAD.size
        if head[2] & RAN:
            run = RUN.unpack_from(body, at)
            at += RUN.size
        fixed = _read_any(body[at : at + head[3]])
        named = fixed.get("task")
        task = named if isinstance(named, str) else ""
        at += head[3]
        if not head[2] & APART:
            payload, at = body[at : at + head[4]], at + head[4]
        rare = _read_rare(body[at : at + head[5]]) if head[5] else _NOTHING_RARE
    numbers = [int(number) if abs(number) < _TOO_LARGE else 0 for number in (*head[8:10], *run[:4], *run[6:8])]
    run_at, created, starts, failures, stalls, releases, fence, settled = numbers
    job = JobRecord(
        queue=ref.queue,
        id=ref.id,
        task=task,
        state=state,
        payload=payload,
        score=0,
        run_at=run_at,
        created=created,
        starts=starts,
        failures=failures,
        stalls=stalls,
        releases=releases,
        fence=fence,
        settled_fence=settled,
        finished=_or_none(run[13]) if abs(run[13]) < _TOO_LARGE else None,
    )
    with suppress(*_UNREADABLE):
        job = _with_rare_fields(job, rare)
    return structs.replace(job, error=unreadable_record(cause))


def _or_none(number: float) -> int | None:
    return None if number == _NEVER else int(number)


_holder = lru_cache(256)(_read_holder)


def decode_error(body: bytes) -> RecordedError | None:
    """Return a stored error; None if it cannot be decoded."""
    try:
        return _error(body)
    except _UNREADABLE:
        return None


def encode_error(error: RecordedError | None) -> str | None:
    """Return an error in its stored form."""
    return None if error is None else _json(error).decode()


def encode_headers(headers: dict[str, str]) -> str | None:
    """Return headers in their stored form."""
    return _json(headers).decode() if headers else None


def encode_policy(policy: Policy) -> str | None:
    """Return a policy in its stored form; None if it is the default one."""
    return None if policy == DEFAULT_POLICY else _json(policy).decode()
