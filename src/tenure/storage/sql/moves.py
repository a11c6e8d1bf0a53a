"""Moves in SQL: stores jobs that come from another storage, with their whole records, and calls of an outbox."""

from itertools import count
from typing import Any

import msgspec
from msgspec import structs

from tenure.core.job import CollectKey, JobDetail, JobRecord
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.move import MoveBatch, MoveReceipt, answers_of, as_moved
from tenure.core.order import entered_at
from tenure.storage.protocol import queue_topic
from tenure.storage.sql import concurrency_keys, fair_queue, rows
from tenure.storage.sql.enqueue import holder, store_all
from tenure.storage.sql.settings import require_here
from tenure.storage.sql.transaction import Transaction
from tenure.storage.sql.transitions import merged_into

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(MoveReceipt).decode


def receive(tx: Transaction, batch: MoveBatch) -> MoveReceipt:
    """Store the jobs and the calls of a batch, if its number is the expected one."""
    require_here(tx, batch.queue)
    target = {"kind": "move", "name": f"{batch.move}/{batch.queue}"}
    row = tx.one("tune.setting", target)
    known = MoveReceipt() if row is None else _decode(row[0])
    if batch.expected != known.number:
        return known
    concurrency_keys.load(tx, (detail.job for detail in batch.jobs))
    taken = tuple(detail.job.id for detail in batch.jobs if _arrive(tx, detail))
    if taken:
        tx.topics.append(queue_topic(batch.queue))
    [results] = store_all(tx, [[call.job for call in batch.calls]])
    concurrency_keys.release_freed(tx)
    receipt = MoveReceipt(
        known.number + 1,
        (*taken, *(call.name for call in batch.calls)),
        answers_of(batch.calls, ((result.action, result.ref.id, result.retry_in) for result in results)),
    )
    tx.run("tune.set", {**target, "body": _encode(receipt).decode()})
    return structs.replace(receipt, applied=True)


def _arrive(tx: Transaction, detail: JobDetail) -> bool:
    """Store a job, and return True, unless its id is known or another job holds its unique key."""
    job = as_moved(detail.job)
    ends = job.state in TERMINAL
    if merged_into(tx, job.ref) is not None or (not ends and holder(tx, job) is not None):
        return False
    if job.state is State.WAITING:
        at = entered_at(job.score, boost=job.boost, lifo=job.lifo)
        job = structs.replace(job, score=fair_queue.score(tx, job, at))
    if not tx.run("receive.insert", _columns(job)):
        return False
    row = tx.one("receive.seq", {"queue": job.queue, "id": job.id})
    if row is None:
        raise AssertionError(f"{job.ref} was inserted, but is not there")
    tx.count_move(job.queue, to=job.state, since=job.score if job.finished is None else job.finished)
    if job.redrive_at is not None and job.state is State.FAILED:
        tx.count_move(job.queue, to="ruled")
    if not ends:
        concurrency_keys.register(tx, job)
    if isinstance(job.merge, CollectKey):
        # All collected calls together, each in its frame.
        call = {"queue": job.queue, "id": job.id, "job": job.id, "place": 0, "payload": job.payload}
        tx.run("enqueue.insert_call", call)
    _store_history(tx, int(row[0]), detail)
    return True


def _store_history(tx: Transaction, seq: int, detail: JobDetail) -> None:
    tx.many("receive.insert_run", [{"seq": seq, **structs.asdict(run)} for run in detail.runs])
    lines = zip(count(detail.log_dropped + 1), detail.log, strict=False)
    tx.many(
        "renew.log_one",
        [
            {
                "seq": seq,
                "line": number,
                "at": line.at,
                "run": line.run,
                "level": line.level,
                "message": line.message,
                "fields": rows.text(line.fields),
                "number": 0,
            }
            for number, line in lines
        ],
    )


def _columns(job: JobRecord) -> dict[str, Any]:
    """Return by name the columns of a job."""
    values = structs.asdict(job) | rows.stored_fields(job)
    del values["stall"]
    if isinstance(job.merge, CollectKey):
        values["payload"] = b""
    return values
