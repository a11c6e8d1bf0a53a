"""Rows and records: how a job, a run and a log line lie in the tables, and how they are read back."""

from functools import lru_cache
from typing import Any

import msgspec

from holdfast.core.events import AnyEvent, from_log, stamped
from holdfast.core.frames import framed
from holdfast.core.job import (
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
)
from holdfast.core.lifecycle import State
from holdfast.core.merge import merge_name
from holdfast.core.retry import Backoff

Row = tuple[Any, ...]

_STATES = {state.value: state for state in State}
_encode = msgspec.json.Encoder().encode
_headers = msgspec.json.Decoder(dict[str, str]).decode
_names = msgspec.json.Decoder(tuple[str, ...]).decode
keys = msgspec.json.Decoder(tuple[Key, ...]).decode
rates = msgspec.json.Decoder(tuple[RateKey, ...]).decode
_merge: msgspec.json.Decoder[MergeKey] = msgspec.json.Decoder(MergeKey)
_error = msgspec.json.Decoder(RecordedError).decode
_read_policy = msgspec.json.Decoder(Policy).decode
_STRICTEST = Policy(retry=Backoff(max_attempts=1), on_worker_lost="fail")
_DEFAULT_POLICY = Policy()
_DEFAULT_POLICY_TEXT = _encode(_DEFAULT_POLICY).decode()


def text(value: object) -> str | None:
    """Return a structured field as it is kept: JSON, or NULL where it is empty."""
    return _encode(value).decode() if value else None


def error_text(error: RecordedError | None) -> str | None:
    """Return an error as it is kept."""
    return None if error is None else _encode(error).decode()


def wished(job: NewJob, run_at: int, now: int, score: int) -> Row:
    """Return the row of a new job that comes into line with a score, or is due later."""
    stall = job.stall
    collects = isinstance(job.merge, CollectKey)
    return (
        job.queue,
        job.id,
        job.task,
        "delayed" if run_at > now else "waiting",
        text(job.headers),
        text(job.tags),
        score,
        job.priority,
        job.boost,
        job.lifo,
        job.fair_key,
        job.weight,
        run_at,
        job.ttl,
        now + job.ttl if job.ttl is not None else None,
        job.timeout,
        job.deadline,
        job.heartbeat_timeout,
        text(job.keys),
        text(job.rates),
        None if job.merge is None else merge_name(job.merge),
        text(job.merge),
        collects,
        len(framed(job.payload)) if collects else 0,
        stall.lease,
        stall.max_stalls,
        stall.start_grace,
        stall.renewed,
        text(stall.pinned),
        _policy_text(job.policy),
        now,
        job.schedule,
        job.tick,
        job.parent,
        # What a job gathers stands beside it, call by call.
        b"" if collects else job.payload,
    )


def record(row: Row) -> JobRecord:
    """Return the record that a row of `job` holds: of one that collects without what it has gathered."""
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
        gathered,
        gathered_bytes,
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
        progress,
        progress_note,
        schedule,
        tick,
        parent,
        payload,
        result,
        quarantined,
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
        gathered=gathered,
        gathered_bytes=gathered_bytes,
        parked_under=parked_under,
        stall=_terms(lease, max_stalls, start_grace, renewed, pinned),
        policy=_policy(policy),
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
        progress=progress,
        progress_note=progress_note,
        schedule=schedule,
        tick=tick,
        parent=parent,
    )


def run(row: Row) -> RunRecord:
    """Return the run that a row holds."""
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
    """Return the log line that a row holds."""
    at, number, level, message, fields = row
    return LogLine(at=at, run=number, level=level, message=message, fields=_headers(fields) if fields else {})


def event(row: Row) -> AnyEvent:
    """Return the event that a row holds, under its cursor."""
    cursor, at, body = row
    return stamped(from_log(body), cursor, at)


# A queue's jobs share a handful of policies and terms, which are decoded once each.
@lru_cache(1024)
def _policy(body: str) -> Policy:
    try:
        return _read_policy(body)
    except msgspec.MsgspecError:
        # A newer version may have written a word that this one does not know. The job must not hold up those behind it,
        # nor its reaper, so it is judged by the strictest policy there is: whatever goes wrong, it is not run again.
        return _STRICTEST


@lru_cache(1024)
def _terms(lease: int, max_stalls: int, start_grace: int, renewed: int, pinned: str | None) -> StallTerms:
    return StallTerms(lease, max_stalls, start_grace, bool(renewed), _names(pinned) if pinned else ())


def _policy_text(policy: Policy) -> str:
    return _DEFAULT_POLICY_TEXT if policy is _DEFAULT_POLICY else _encode(policy).decode()
