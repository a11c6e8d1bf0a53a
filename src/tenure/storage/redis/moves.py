"""Encodes jobs of another storage, and calls of an outbox, for the script that stores them, and decodes its answer."""

from typing import Any

import msgspec
from msgspec import Struct

from tenure.core.document import stored_progress
from tenure.core.job import JobDetail, JobRecord, RunRecord
from tenure.core.move import CallAnswer, MoveBatch, MoveReceipt, as_moved
from tenure.storage.redis.records import (
    PAST_RUN,
    EncodedJob,
    RequestEncoder,
    encode_error,
    encode_headers,
    encode_job,
    encode_policy,
)

_encode = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode
_NEVER = -1


class _Arrival(Struct, omit_defaults=True):
    """A job as the script reads it; the numbers are places among the script's arguments."""

    id: str
    fields: dict[str, Any]
    payload: int
    data: int | None = None
    holder: int | None = None
    ended: int | None = None
    runs: list[int] | None = None
    log: list[int] | None = None


class _Receive(Struct):
    move: str
    queue: str
    expected: int | None
    arrivals: list[_Arrival]
    calls: list[tuple[str, EncodedJob]]
    jobs: int


def encode_receive(batch: MoveBatch) -> list[bytes]:
    """Return the request to store the jobs and the calls of a batch."""
    encoder = RequestEncoder()
    arrivals = [_encode_arrival(detail, encoder) for detail in batch.jobs]
    calls = [(call.name, encode_job(call.job, encoder)) for call in batch.calls]
    jobs = len(arrivals) + len(calls)
    return encoder.finish(_Receive(batch.move, batch.queue, batch.expected, arrivals, calls, jobs))


def decode_receive(reply: Any) -> MoveReceipt:
    """Return the answer to a batch."""
    number, taken, answers, applied = reply
    return MoveReceipt(
        number,
        tuple(id_.decode() for id_ in taken),
        tuple(
            CallAnswer(name.decode(), action.decode(), id_.decode(), *retry_in)
            for name, action, id_, *retry_in in answers
        ),
        applied=bool(applied),
    )


def _encode_arrival(detail: JobDetail, encoder: RequestEncoder) -> _Arrival:
    job = as_moved(detail.job)
    arrival = _Arrival(job.id, _fields(job), encoder.put(job.payload))
    if job.data is not None:
        arrival.data = encoder.put(job.data)
    runs = detail.runs
    if runs and runs[-1].number == job.starts:
        # The record holds the last run.
        last, runs = runs[-1], runs[:-1]
        arrival.fields |= {"run_fence": last.fence, "started": last.start}
        if last.end is not None:
            arrival.fields["run_end"] = last.end
        arrival.holder, arrival.ended = encoder.put(_holder(last)), encoder.put(_ended(last))
    if runs:
        arrival.runs = [encoder.put(_past_run(run)) for run in runs]
    if detail.log:
        arrival.log = [
            encoder.put(
                _encode(
                    {
                        "at": line.at,
                        "run": line.run,
                        "level": line.level,
                        "message": line.message,
                        "line": number,
                        **({"fields": _json(line.fields).decode()} if line.fields else {}),
                    }
                )
            )
            for number, line in enumerate(detail.log, detail.log_dropped + 1)
        ]
    return arrival


def _fields(job: JobRecord) -> dict[str, Any]:
    """Return the fields of a record that a script keeps (lua/parts/record.lua), without those at their defaults."""
    stall = job.stall
    fields = {
        "task": job.task,
        "state": job.state.value,
        "headers": encode_headers(job.headers),
        "tags": job.tags or None,
        "score": job.score,
        "priority": job.priority or None,
        "boost": job.boost or None,
        "lifo": job.lifo or None,
        "fair_key": job.fair_key,
        "weight": job.weight if job.weight != 1 else None,
        "run_at": job.run_at,
        "ttl": job.ttl,
        "expires_at": job.expires_at,
        "timeout": job.timeout,
        "deadline": job.deadline,
        "heartbeat_timeout": job.heartbeat_timeout,
        "keys": [(key.name, key.limit) for key in job.keys] or None,
        "rates": [(rate.name, rate.interval, rate.burst) for rate in job.rates] or None,
        "merge": job.merge,
        "collected": job.collected or None,
        "collected_bytes": job.collected_bytes or None,
        "lease": stall.lease,
        "max_stalls": stall.max_stalls,
        "start_grace": stall.start_grace or None,
        "renewed": stall.renewed,
        "pinned": stall.pinned or None,
        "on_expire": job.policy.on_expire,
        "policy": encode_policy(job.policy),
        "fence": job.fence or None,
        "settled_fence": job.settled_fence or None,
        "starts": job.starts or None,
        "failures": job.failures or None,
        "stalls": job.stalls or None,
        "releases": job.releases or None,
        "quarantined": job.quarantined or None,
        "put_back_used": job.put_back_used or None,
        "cancel_at": job.cancel_at,
        "cancel_reason": job.cancel_reason,
        "cancel_by": job.cancel_by,
        "created": job.created,
        "started": job.started,
        "finished": job.finished,
        "redrive_at": job.redrive_at,
        "redrives": job.redrives or None,
        "error": encode_error(job.error),
        "reason": job.reason,
        "fault": job.fault,
        "progress": stored_progress(job.progress),
        "progress_note": job.progress_note,
        "data_number": job.data_number or None,
        "schedule": job.schedule,
        "tick": job.tick,
        "parent": job.parent,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _holder(run: RunRecord) -> bytes:
    return _encode((run.owner, run.worker, run.host, run.pid))


def _ended(run: RunRecord) -> bytes:
    return _encode({"ended": run.ended, "reason": run.reason, "detail": run.detail})


def _past_run(run: RunRecord) -> bytes:
    holder = _holder(run)
    end = _NEVER if run.end is None else run.end
    return PAST_RUN.pack(run.number, run.fence, run.start, end, len(holder)) + holder + _ended(run)
