"""Moves of jobs that are not active, in SQL: they expire, are deleted, or change by an operator's action."""

import logging

from msgspec import structs

from tenure.core.events import JobFailed, JobRepaired, QueueDrained
from tenure.core.figures import TaskCounts, end_of
from tenure.core.job import CollectKey, DebounceKey, JobRecord, Key, Ref, unreadable_record
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.transition import expired, expiry
from tenure.storage.protocol import RATE, job_topic
from tenure.storage.sql import concurrency_keys, rates, rows
from tenure.storage.sql.columns import Row, UndecodableText
from tenure.storage.sql.lists import json_rows
from tenure.storage.sql.settings import records_event
from tenure.storage.sql.transaction import NO_FRONT, UNKNOWN_FRONT, Transaction

_DELETE = ("revise.delete", "revise.delete_runs", "revise.delete_log")

logger = logging.getLogger("tenure")


def find_job(tx: Transaction, ref: Ref) -> tuple[int, JobRecord] | None:
    """Return a job's seq and record; a collecting job comes without its collected calls."""
    row = tx.one("get.job", {"queue": ref.queue, "id": ref.id})
    return None if row is None else (row[0], _read(tx, row))


def job_at(tx: Transaction, seq: int) -> JobRecord:
    """Return the record of an existing job as this transaction has left it, without its collected calls."""
    row = tx.one("get.by_seq", {"seq": seq})
    if row is None:
        raise AssertionError(f"job {seq} is gone, although this transaction has not deleted it")
    return _read(tx, row)


def read_job(tx: Transaction, row: Row) -> JobRecord:
    """Return the record in a row of `job`, with all of its collected calls."""
    job = _read(tx, row)
    if not job.collected:
        return job
    calls = tx.all("get.calls", {"queue": job.queue, "job": job.id})
    return structs.replace(job, payload=b"".join(payload for (payload,) in calls))


def _read(tx: Transaction, row: Row) -> JobRecord:
    """Return the record in a row. An unreadable record is repaired, if this transaction may write.

    The repair may end the job: then its state is failed, although the caller looked for another one.
    """
    job, flaws = rows.checked(row)
    return _repair(tx, row, job, flaws) if flaws is not None and tx.repairs else job


def _repair(tx: Transaction, row: Row, job: JobRecord, flaws: str) -> JobRecord:
    """Replace unreadable values by neutral ones, and record an error that says so.

    Because of the error the job fails at its next run, instead of running with neutral values. A job without a valid
    state, queue or id cannot run, and fails at once.
    """
    seq, was, kept = row[0], row[4], rows.repaired_values(row, job)
    renamed = UndecodableText in (type(row[1]), type(row[2]))
    if renamed:
        job = _rename(tx, seq, job)
    ends = was != job.state or (renamed and job.state not in TERMINAL)
    tx.run("repair.repair", kept)
    tx.record(
        JobRepaired(
            queue=job.queue,
            id=job.id,
            task=job.task,
            run=job.starts,
            found=f"unreadable: {flaws}",
            repair="set aside" if ends or job.state not in TERMINAL else "emptied",
        )
    )
    logger.error("job %s (%s) in queue %s has an unreadable record: %s", job.id, job.task, job.queue, flaws)
    if ends:
        tx.run("repair.fail", {"now": tx.now, "seq": seq})
        tx.record(
            JobFailed(
                queue=job.queue,
                id=job.id,
                task=job.task,
                run=job.starts,
                attempt=job.attempt,
                reason="undecodable",
                error=unreadable_record(flaws),
            )
        )
        tx.topics.append(job_topic(job.ref))
    if ends or not job.keys:
        _free_keys(tx, job)
    # The counters of its queue may be wrong because of the unreadable values.
    tx.recounted.add(job.queue)
    return structs.replace(job, state=State.FAILED, reason="undecodable", finished=tx.now) if ends else job


def _rename(tx: Transaction, seq: int, job: JobRecord) -> JobRecord:
    """Give a job a queue and an id that can be read. Its former ones are lost, and with them what it held by them."""
    id_ = f"{job.id}-{seq}"
    while tx.one("repair.exists", {"queue": job.queue, "id": id_}) is not None:
        id_ += "-"
    tx.run("repair.rename", {"queue": job.queue, "id": id_, "seq": seq})
    for queue, key, holder in tx.all("repair.orphaned_slots"):
        held = (Key(key, 1),)
        concurrency_keys.release(tx, queue, holder, held)
        concurrency_keys.mark_freed(tx, queue, held)
    tx.recounted.update(queue for (queue,) in tx.all("find.queues"))
    if isinstance(job.merge, DebounceKey | CollectKey):
        _move_calls(tx, job, id_)
    return structs.replace(job, id=id_)


def _move_calls(tx: Transaction, job: JobRecord, id_: str) -> None:
    """Give the calls that were merged into a job its new queue and id, so that their callers find it.

    `job`: has the unreadable queue or id. Of the calls whose job does not exist, those belong to it whose job's queue
    and id are the most similar.
    """

    def similarity(row: Row) -> int:
        return sum(map(str.__eq__, row[1], job.queue)) + sum(map(str.__eq__, row[2], job.id))

    calls = max(tx.all("repair.orphaned_calls"), key=similarity, default=None)
    if calls is not None:
        tx.run("repair.move_calls", {"queue": job.queue, "id": id_, "row": calls[0]})


def recount(tx: Transaction) -> None:
    """Correct the counters of queues with repaired jobs, after all other writes of the transaction."""
    for queue in sorted(tx.recounted):
        unfinished = tx.unfinished(queue)
        counts = [
            (queue, state, -difference, None) for state, difference in tx.all("repair.wrong_counters", {"queue": queue})
        ]
        tx.run("tally.count", {"counts": json_rows(counts)})
        tx.run("repair.recount_keys", {"queue": queue})
        tx.run("repair.delete_keys", {"queue": queue})
        # Jobs that were repaired into an end state are under the queue's retention from now on.
        tx.run("tally.trim_now", {"queue": queue})
        if unfinished:
            record_if_drained(tx, queue)
    if tx.recounted:
        # The repaired jobs may be at another place in their order.
        tx.reset_fronts()
    tx.recounted.clear()
    tx.flush()


def _free_keys(tx: Transaction, job: JobRecord) -> None:
    """Remove a job from the holders of all keys that it holds, and offer these and its own keys to other jobs."""
    held = tuple(Key(name, 1) for (name,) in tx.all("repair.slots", {"queue": job.queue, "id": job.id}))
    concurrency_keys.release(tx, job.queue, job.id, held)
    concurrency_keys.mark_freed(tx, job.queue, (*job.keys, *held))


def merged_into(tx: Transaction, call: Ref) -> Ref | None:
    """Return the job that a call was merged into."""
    row = tx.one("get.merged_into", {"queue": call.queue, "id": call.id})
    return None if row is None else Ref(call.queue, row[0])


def is_past_lifetime(job: JobRecord, now: int) -> bool:
    """Return True if a completed job's own lifetime is over: it counts as deleted, even before a sweep."""
    return job.state is State.COMPLETED and job.kept_until is not None and job.kept_until <= now


def record_move(tx: Transaction, job: JobRecord, to: State | None, *, score: int = UNKNOWN_FRONT) -> None:
    """Record the effects of a job's move out of a state that is not active.

    `to`: None if it is deleted. `score`: the one with which it waits, as far as it does and that is known.
    """
    tx.count_move(job.queue, left=job.state, to=to, since=score if to is State.WAITING else tx.now)
    if job.parked_under is not None and to is not State.WAITING:
        tx.count_move(job.queue, left="parked", since=NO_FRONT)
        if job.parked_under.startswith(RATE):
            rates.delete_opening(tx, job.queue, job.parked_under)
    if job.kept_until is not None and job.state is State.COMPLETED:
        tx.count_move(job.queue, left="kept")
    if job.redrive_at is not None and job.state is State.FAILED:
        tx.count_move(job.queue, left="ruled")
    concurrency_keys.count(tx, job.queue, job.keys, _unfinished(to) - _unfinished(job.state))
    was_in_line = job.state is State.WAITING and job.parked_under is None
    if was_in_line and to is not State.WAITING:
        concurrency_keys.mark_job_freed(tx, job)


def delete(tx: Transaction, seq: int, job: JobRecord) -> int:
    """Delete a job that is not active, with its runs, its log and its merged calls.

    Returns how many calls it answered for, including its own.
    """
    calls = 1
    for statement in _DELETE:
        tx.run(statement, {"seq": seq})
    if isinstance(job.merge, DebounceKey | CollectKey):
        # For a collecting job, its own call is one of them.
        calls += tx.run("revise.delete_calls", {"queue": job.queue, "job": job.id}) - bool(job.collected)
    record_move(tx, job, None)
    return calls


def expire(tx: Transaction, seq: int, job: JobRecord) -> int:
    """Expire a job that is too old to start, or delete it at once; return 1, or how many calls were deleted with it."""
    calls = 1
    if job.state in TERMINAL:
        # The repair of its record has ended the job.
        return calls
    if job.policy.on_expire == "discard":
        calls = delete(tx, seq, job)
        tx.count_move(job.queue, to="discarded")
    else:
        error = rows.error_text(expired(job, tx.now).error)
        tx.run("exchange.expire", {"now": tx.now, "error": error, "seq": seq})
        record_move(tx, job, State.EXPIRED)
    tx.record(expiry(job, tx.now))
    tx.count_figures([TaskCounts(job.queue, job.task, end_of("expired"))])
    record_if_drained(tx, job.queue)
    tx.topics.append(job_topic(job.ref))
    return calls


def record_if_drained(tx: Transaction, queue: str) -> None:
    """Record that a queue has no unfinished jobs, if it records that event."""
    if records_event(tx, queue, "queue_drained") and not tx.unfinished(queue):
        tx.record(QueueDrained(queue=queue))


def _unfinished(state: State | None) -> bool:
    return state is not None and state not in TERMINAL
