"""Converts between records and table rows of jobs, runs, log lines and events."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import structs

from tenure.core.deduplication import merge_name
from tenure.core.document import read_progress, stored_progress
from tenure.core.events import AnyEvent, from_log, stamped
from tenure.core.fingerprint import FaultSurvey, shown_error
from tenure.core.frames import framed
from tenure.core.job import (
    CollectKey,
    JobRecord,
    Key,
    LogLine,
    MergeKey,
    NewJob,
    Policy,
    RateKey,
    RecordedError,
    RunRecord,
    StallTerms,
    unreadable_record,
)
from tenure.core.lifecycle import State
from tenure.core.text import storable
from tenure.storage.policies import DEFAULT_POLICY, STRICTEST_POLICY, decode_policy
from tenure.storage.sql.columns import (
    COLUMNS,
    COUNTS,
    LARGE,
    NEUTRAL,
    NUMBERS,
    TOO_LARGE,
    Row,
    UndecodableText,
    is_sane_row,
)


class ReadyJob(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """A job at the head of its queue. A `plain` one consists only of this and its payload, of `size` bytes."""

    seq: int
    plain: int
    size: int
    id: str
    task: str
    headers: str | None
    tags: str | None
    score: int
    priority: int
    boost: int
    run_at: int
    timeout: int | None
    lease: int
    max_stalls: int
    start_grace: int
    renewed: int
    pinned: str | None
    policy: str
    created: int
    limits: tuple[str | None, str | None] | None


_STATES = {state.value: state for state in State}
_encode = msgspec.json.Encoder().encode
_headers = msgspec.json.Decoder(dict[str, str]).decode
_names = msgspec.json.Decoder(tuple[str, ...]).decode
keys = msgspec.json.Decoder(tuple[Key, ...]).decode
rates = msgspec.json.Decoder(tuple[RateKey, ...]).decode
_merge: msgspec.json.Decoder[MergeKey] = msgspec.json.Decoder(MergeKey)
_error = msgspec.json.Decoder(RecordedError).decode
_ready = msgspec.json.Decoder(list[ReadyJob]).decode
UNREADABLE = (msgspec.MsgspecError, RecursionError)
"""The exceptions that a damaged text raises when it is decoded; msgspec does not convert the second."""
UNREADABLE_ERROR = _encode(unreadable_record("*")).decode().partition("*")[0]
"""The beginning of a stored error that says that the record was unreadable."""
_DEFAULT_POLICY_TEXT = _encode(DEFAULT_POLICY).decode()


def text(value: object) -> str | None:
    """Return a structured field as stored: JSON, or NULL if it is empty."""
    return _encode(value).decode() if value else None


def error_text(error: RecordedError | None) -> str | None:
    """Return an error as stored."""
    return None if error is None else _encode(error).decode()


def new_job(job: NewJob, run_at: int, now: int) -> dict[str, Any]:
    """Return by name the columns of a new job, except its score."""
    stall = job.stall
    collects = isinstance(job.merge, CollectKey)
    return {
        "queue": job.queue,
        "id": job.id,
        "task": job.task,
        "state": "delayed" if run_at > now else "waiting",
        "headers": text(job.headers),
        "tags": text(job.tags),
        "priority": job.priority,
        "boost": job.boost,
        "lifo": int(job.lifo),
        "fair_key": job.fair_key,
        "weight": job.weight,
        "run_at": run_at,
        "ttl": job.ttl,
        "expires_at": now + job.ttl if job.ttl is not None else None,
        "timeout": job.timeout,
        "deadline": job.deadline,
        "heartbeat_timeout": job.heartbeat_timeout,
        "keys": text(job.keys),
        "rates": text(job.rates),
        "merge_key": None if job.merge is None else merge_name(job.merge),
        "merge": text(job.merge),
        "collected": int(collects),
        "collected_bytes": len(framed(job.payload)) if collects else 0,
        "lease": stall.lease,
        "max_stalls": stall.max_stalls,
        "start_grace": stall.start_grace,
        "renewed": int(stall.renewed),
        "pinned": text(stall.pinned),
        "policy": _policy_text(job.policy),
        "now": now,
        "schedule": job.schedule,
        "tick": job.tick,
        "parent": job.parent,
        # Collected calls are stored separately, call by call.
        "payload": b"" if collects else job.payload,
    }


def stored_fields(job: JobRecord) -> dict[str, Any]:
    """Return by name those columns of a job whose values differ from the fields of its record."""
    stall = job.stall
    return {
        "state": job.state.value,
        "headers": text(job.headers),
        "tags": text(job.tags),
        "lifo": int(job.lifo),
        "keys": text(job.keys),
        "rates": text(job.rates),
        "merge_key": None if job.merge is None else merge_name(job.merge),
        "merge": text(job.merge),
        "lease": stall.lease,
        "max_stalls": stall.max_stalls,
        "start_grace": stall.start_grace,
        "renewed": int(stall.renewed),
        "pinned": text(stall.pinned),
        "policy": _policy_text(job.policy),
        "error": error_text(job.error),
        "progress": stored_progress(job.progress),
        "quarantined": int(job.quarantined),
        "put_back_used": int(job.put_back_used),
    }


def key_columns(job: NewJob) -> tuple[str | None, str | None, str | None]:
    """Return the columns `keys`, `merge_key` and `merge` of a new job."""
    return text(job.keys), None if job.merge is None else merge_name(job.merge), text(job.merge)


def ready(jobs: str) -> list[ReadyJob]:
    """Return the jobs of a list made by `exchange.ready`."""
    return _ready(str(jobs))


def plain_job(queue: str, job: ReadyJob, payload: bytes) -> JobRecord:
    """Return the record of a plain job that has never started."""
    record = JobRecord(
        queue=queue,
        id=job.id,
        task=job.task,
        state=State.WAITING,
        payload=payload,
        headers=_headers(job.headers) if job.headers else {},
        tags=_names(job.tags) if job.tags else (),
        score=job.score,
        priority=job.priority,
        boost=job.boost,
        run_at=job.run_at,
        timeout=job.timeout,
        stall=_terms(job.lease, job.max_stalls, job.start_grace, job.renewed, job.pinned),
        policy=decode_policy(job.policy),
        created=job.created,
    )
    if job.limits is None:
        return record
    named, paced = job.limits
    return structs.replace(
        record, keys=keys(named) if named else record.keys, rates=rates(paced) if paced else record.rates
    )


def record(row: Row) -> JobRecord:
    """Return the record in a row of `job`; a collecting job comes without its collected calls.

    Unreadable values become neutral, and the record's error says so.
    """
    return checked(row)[0]


def checked(row: Row) -> tuple[JobRecord, str | None]:
    """Return the record in a row, and which of its columns are unreadable and why; None if all are readable."""
    try:
        if is_sane_row(row):
            return _record(row), None
    except (*UNREADABLE, KeyError):
        pass
    cleaned, bad = _cleaned(row)
    if not bad:
        # The bad values are in columns that do not belong to the record.
        return _record(cleaned), None
    flaws = "; ".join(bad)
    return structs.replace(_record(cleaned), error=unreadable_record(flaws)), flaws


def repaired_values(row: Row, job: JobRecord) -> dict[str, Any]:
    """Return by name the values that replace an unreadable row: neutral values, and an error that says so."""
    cleaned, _ = _cleaned(row)
    values = dict(zip(COLUMNS, cleaned, strict=False))
    values["merge_key"] = None if job.merge is None else merge_name(job.merge)
    if job.state is not State.COMPLETED:
        values["error"] = error_text(job.error)
    return values


def _record(row: Row) -> JobRecord:
    (
        _,
        queue,
        id_,
        task,
        state,
        headers,
        tags,
        score,
        priority,
        boost,
        lifo,
        fair_key,
        weight,
        run_at,
        ttl,
        expires_at,
        timeout,
        deadline,
        heartbeat_timeout,
        named,
        paced,
        _,
        merge,
        collected,
        collected_bytes,
        parked_under,
        lease,
        max_stalls,
        start_grace,
        renewed,
        pinned,
        policy,
        fence,
        settled_fence,
        owner,
        heard_at,
        lease_until,
        suspect_until,
        run_until,
        progress_until,
        starts,
        failures,
        stalls,
        releases,
        cancel_at,
        cancel_reason,
        cancel_by,
        created,
        started,
        finished,
        kept_until,
        redrive_at,
        redrives,
        error,
        reason,
        fault,
        progress,
        progress_note,
        schedule,
        tick,
        parent,
        payload,
        result,
        quarantined,
        put_back_used,
        data,
        data_number,
        *_,
    ) = row
    return JobRecord(
        queue=queue,
        id=id_,
        task=task,
        state=_STATES[state],
        payload=payload,
        headers=_headers(headers) if headers else {},
        tags=_names(tags) if tags else (),
        score=score,
        priority=priority,
        boost=boost,
        lifo=bool(lifo),
        fair_key=fair_key,
        weight=weight,
        run_at=run_at,
        ttl=ttl,
        expires_at=expires_at,
        timeout=timeout,
        deadline=deadline,
        heartbeat_timeout=heartbeat_timeout,
        keys=keys(named) if named else (),
        rates=rates(paced) if paced else (),
        merge=_merge.decode(merge) if merge else None,
        collected=collected,
        collected_bytes=collected_bytes,
        parked_under=parked_under,
        stall=_terms(lease, max_stalls, start_grace, renewed, pinned),
        policy=decode_policy(policy),
        fence=fence,
        settled_fence=settled_fence,
        owner=owner,
        heard_at=heard_at,
        lease_until=lease_until,
        suspect_until=suspect_until,
        run_until=run_until,
        progress_until=progress_until,
        starts=starts,
        failures=failures,
        stalls=stalls,
        releases=releases,
        quarantined=bool(quarantined),
        put_back_used=bool(put_back_used),
        cancel_at=cancel_at,
        cancel_reason=cancel_reason,
        cancel_by=cancel_by,
        created=created,
        started=started,
        finished=finished,
        kept_until=kept_until,
        redrive_at=redrive_at,
        redrives=redrives,
        result=result,
        error=_error(error) if error else None,
        reason=reason,
        fault=fault,
        progress=progress if progress is None else read_progress(progress),
        progress_note=progress_note,
        data=data,
        data_number=data_number,
        schedule=schedule,
        tick=tick,
        parent=parent,
    )


def fault(row: Row, newest: Sequence[Row]) -> FaultSurvey:
    """Return the fault in a row. `newest`: the end, id, task, reason and error of each job that it names."""
    queue, name, jobs, first, last = row
    _, _, task, reason, error = newest[0]
    try:
        shown = shown_error(_error(error)) if error else None
    except UNREADABLE:
        shown = None
    return FaultSurvey(
        queue=queue,
        fault=name,
        count=jobs,
        first=first,
        last=last,
        newest=tuple(job[:2] for job in newest),
        task=task,
        reason=reason,
        error=shown,
    )


def run(row: Row) -> RunRecord:
    """Return the run in a row."""
    number, fence, owner, worker, host, pid, start, end, ended, reason, detail, trace = row
    return RunRecord(
        number=number,
        fence=fence,
        owner=owner,
        worker=worker,
        host=host,
        pid=pid,
        start=start,
        end=end,
        ended=ended,
        reason=reason,
        detail=detail,
        trace=trace,
    )


def log_line(row: Row) -> LogLine:
    """Return the log line in a row."""
    at, number, level, message, fields, _ = row
    try:
        decoded = _headers(str(fields)) if fields else {}
    except UNREADABLE:
        decoded = {"unreadable": fields}
    return LogLine(at=at, run=number, level=level, message=message, fields=decoded)


def event(row: Row) -> AnyEvent:
    """Return the event in a row, with its cursor."""
    cursor, at, body = row
    return stamped(from_log(body), cursor, at)


# Jobs of a queue share few terms, so each is decoded once.
@lru_cache(1024)
def _terms(lease: int, max_stalls: int, start_grace: int, renewed: int, pinned: str | None) -> StallTerms:
    return StallTerms(lease, max_stalls, start_grace, bool(renewed), _names(pinned) if pinned else ())


def _policy_text(policy: Policy) -> str:
    return _DEFAULT_POLICY_TEXT if policy == DEFAULT_POLICY else _encode(policy).decode()


_DECODERS: dict[str, Callable[[Any], object]] = {
    "headers": _headers,
    "tags": _names,
    "keys": keys,
    "rates": rates,
    "merge": _merge.decode,
    "pinned": _names,
    "policy": decode_policy,
    "error": _error,
    "progress": read_progress,
}


def _cleaned(row: Row) -> tuple[Row, list[str]]:
    """Return a row with neutral values in place of unreadable ones, and the list of these with reasons."""
    values, bad = list(row), list[str]()
    for place, (name, value) in enumerate(zip(COLUMNS, row, strict=False)):
        why = _flaw(name, value)
        if why is not None:
            bad.append(f"{name}: {why}")
            if name == "policy":
                values[place] = _STRICTEST_TEXT
            elif type(value) is not UndecodableText or name in _DECODERS or name in NEUTRAL:
                values[place] = NEUTRAL.get(name)
            else:
                values[place] = storable(str(value))
    return tuple(values), bad


def _flaw(name: str, value: Any) -> str | None:
    """Return why a column's value is unreadable, None if it is readable."""
    if type(value) is UndecodableText:
        return "not UTF-8"
    if value is None:
        return None
    if name == "state":
        return None if value in _STATES else f"{value!r} is not a state"
    if name in _DECODERS:
        try:
            _DECODERS[name](value)
        except UNREADABLE as error:
            return str(error) if value or name == "policy" else None
        return None
    if name in COUNTS:
        return None if (name == "weight") <= value < TOO_LARGE else f"{value} is out of range"
    if name not in LARGE and name not in NUMBERS:
        return None
    return None if -TOO_LARGE < value < TOO_LARGE else f"{value} is out of range"


_STRICTEST_TEXT = _encode(STRICTEST_POLICY).decode()
