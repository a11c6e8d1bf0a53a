"""Moves of jobs that are not active, in SQL: they expire, are deleted, or change by an operator's action."""

import logging

from msgspec import structs

from tenure.core.events import JobFailed, JobRepaired, QueueDrained
from tenure.core.job import CollectKey, DebounceKey, JobRecord, Key, Ref, unreadable_record
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.transition import expired, expiry
from tenure.storage.protocol import RATE, job_topic
from tenure.storage.sqlite import concurrency_keys, rates, rows
from tenure.storage.sqlite.rows import Row
from tenure.storage.sqlite.settings import recorded
from tenure.storage.sqlite.statements import query
from tenure.storage.sqlite.transaction import Transaction

_JOB = query("get", "job")
_BY_SEQ = query("get", "by_seq")
_EXPIRE = query("exchange", "expire")
_DELETE = tuple(query("revise", name) for name in ("delete", "delete_runs", "delete_log"))
_DELETE_CALLS = query("revise", "delete_calls")
_TAKEN_IN = query("get", "taken_in")
_GATHERED = query("get", "gathered")
_MEND = query("mend", "mend")
_SET_ASIDE = query("mend", "set_aside")
_RENAME = query("mend", "rename")
_NAMED = query("mend", "named")
_SLOTS_OF_NONE = query("mend", "slots_of_none")
_SLOTS_OF = query("mend", "slots_of")
_CALLS_OF_NONE = query("mend", "calls_of_none")
_MOVE_CALLS = query("mend", "move_calls")
_COUNT = query("tally", "count")
_LOOK_AT_ONCE = query("tally", "look_at_once")
_MISCOUNTED = query("mend", "miscounted")
_RECOUNT_KEYS = query("mend", "recount_keys")
_FORGET_KEYS = query("mend", "forget_keys")
_QUEUES = query("find", "queues")

logger = logging.getLogger("tenure")


def find_job(step: Transaction, ref: Ref) -> tuple[int, JobRecord] | None:
    """Return a job's seq and record; a collecting job comes without its collected calls."""
    row = step.one(_JOB, (ref.queue, ref.id))
    return None if row is None else (row[0], _read(step, row))


def the_job(step: Transaction, seq: int) -> JobRecord:
    """Return the record of an existing job as this transaction has left it, without its collected calls."""
    row = step.one(_BY_SEQ, (seq,))
    if row is None:
        raise AssertionError(f"job {seq} is gone, though nobody has dropped it")
    return _read(step, row)


def whole(step: Transaction, row: Row) -> JobRecord:
    """Return the record in a row of `job`, with all of its collected calls."""
    job = _read(step, row)
    if not job.gathered:
        return job
    calls = step.all(_GATHERED, (job.queue, job.id))
    return structs.replace(job, payload=b"".join(payload for (payload,) in calls))


def _read(step: Transaction, row: Row) -> JobRecord:
    """Return the record in a row. An unreadable record is repaired, if this transaction may write.

    The repair may end the job: then its state is failed, although the caller looked for another one.
    """
    job, flaws = rows.checked(row)
    return _mend(step, row, job, flaws) if flaws is not None and step.mends else job


def _mend(step: Transaction, row: Row, job: JobRecord, flaws: str) -> JobRecord:
    """Replace unreadable values by neutral ones, and record an error that says so.

    Because of the error the job fails at its next run, instead of running with neutral values. A job without a valid
    state, queue or id cannot run, and fails at once.
    """
    seq, was, kept = row[0], row[4], rows.as_kept(row, job)
    renamed = rows.Garbled in (type(row[1]), type(row[2]))
    if renamed:
        job = _rename(step, seq, job)
    ends = was != job.state or (renamed and job.state not in TERMINAL)
    step.run(_MEND, kept)
    step.record(
        JobRepaired(
            queue=job.queue,
            id=job.id,
            task=job.task,
            run=job.starts,
            found=f"unreadable: {flaws}",
            mended="set aside" if ends or job.state not in TERMINAL else "emptied",
        )
    )
    logger.error("job %s (%s) in queue %s has an unreadable record: %s", job.id, job.task, job.queue, flaws)
    if ends:
        step.run(_SET_ASIDE, (step.now, seq))
        step.record(
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
        step.knocked.append(job_topic(job.ref))
    if ends or not job.keys:
        _free_keys(step, job)
    # The counters of its queue may be wrong because of the unreadable values.
    step.recounted.add(job.queue)
    return structs.replace(job, state=State.FAILED, reason="undecodable", finished=step.now) if ends else job


def _rename(step: Transaction, seq: int, job: JobRecord) -> JobRecord:
    """Give a job a queue and an id that can be read. Its former ones are lost, and with them what it held by them."""
    id_ = f"{job.id}-{seq}"
    while step.one(_NAMED, (job.queue, id_)) is not None:
        id_ += "-"
    step.run(_RENAME, (job.queue, id_, seq))
    for queue, key, holder in step.all(_SLOTS_OF_NONE):
        held = (Key(key, 1),)
        concurrency_keys.leave(step, queue, holder, held)
        concurrency_keys.offer(step, queue, held)
    step.recounted.update(queue for (queue,) in step.all(_QUEUES))
    if isinstance(job.merge, DebounceKey | CollectKey):
        _move_calls(step, job, id_)
    return structs.replace(job, id=id_)


def _move_calls(step: Transaction, job: JobRecord, id_: str) -> None:
    """Give the calls that were merged into a job its new queue and id, so that their callers find it.

    `job`: has the unreadable queue or id. Of the calls whose job does not exist, those belong to it whose job's queue
    and id are the most similar.
    """

    def similarity(row: Row) -> int:
        return sum(map(str.__eq__, row[1], job.queue)) + sum(map(str.__eq__, row[2], job.id))

    calls = max(step.all(_CALLS_OF_NONE), key=similarity, default=None)
    if calls is not None:
        step.run(_MOVE_CALLS, (job.queue, id_, calls[0]))


def recount(step: Transaction) -> None:
    """Correct the counters of queues with repaired jobs, after all other writes of the transaction."""
    for queue in sorted(step.recounted):
        unfinished = step.unfinished(queue)
        for state, difference in step.all(_MISCOUNTED, {"queue": queue}):
            step.run(_COUNT, (queue, state, -difference))
        step.run(_RECOUNT_KEYS, {"queue": queue})
        step.run(_FORGET_KEYS, {"queue": queue})
        # Jobs that were repaired into an end state are under the queue's retention from now on.
        step.run(_LOOK_AT_ONCE, (queue,))
        if unfinished:
            tell_if_drained(step, queue)
    step.recounted.clear()
    step.write_down()


def _free_keys(step: Transaction, job: JobRecord) -> None:
    """Remove a job from the holders of all keys that it holds, and offer these and its own keys to other jobs."""
    held = tuple(Key(name, 1) for (name,) in step.all(_SLOTS_OF, (job.queue, job.id)))
    concurrency_keys.leave(step, job.queue, job.id, held)
    concurrency_keys.offer(step, job.queue, (*job.keys, *held))


def taken_in(step: Transaction, call: Ref) -> Ref | None:
    """Return the job that a call was merged into."""
    row = step.one(_TAKEN_IN, (call.queue, call.id))
    return None if row is None else Ref(call.queue, row[0])


def past(job: JobRecord, now: int) -> bool:
    """Return True if a completed job's own lifetime is over: it counts as deleted, even before a sweep."""
    return job.state is State.COMPLETED and job.kept_until is not None and job.kept_until <= now


def moved(step: Transaction, job: JobRecord, to: State | None) -> None:
    """Record the effects of a job's move out of a state that is not active; `to`: None if it is deleted."""
    step.moved(job.queue, left=job.state, to=to)
    if job.parked_under is not None and to is not State.WAITING:
        step.moved(job.queue, left="parked")
        if job.parked_under.startswith(RATE):
            rates.forget_opening(step, job.queue, job.parked_under)
    if job.kept_until is not None and job.state is State.COMPLETED:
        step.moved(job.queue, left="kept")
    if job.redrive_at is not None and job.state is State.FAILED:
        step.moved(job.queue, left="ruled")
    concurrency_keys.count(step, job.queue, job.keys, _unfinished(to) - _unfinished(job.state))
    was_in_line = job.state is State.WAITING and job.parked_under is None
    if was_in_line and to is not State.WAITING:
        concurrency_keys.offer_place(step, job)


def drop(step: Transaction, seq: int, job: JobRecord) -> int:
    """Delete a job that is not active, with its runs, its log and its merged calls.

    Returns how many calls it answered for, including its own.
    """
    calls = 1
    for statement in _DELETE:
        step.run(statement, (seq,))
    if isinstance(job.merge, DebounceKey | CollectKey):
        # For a collecting job, its own call is one of them.
        calls += step.run(_DELETE_CALLS, (job.queue, job.id)) - bool(job.gathered)
    moved(step, job, None)
    return calls


def expire(step: Transaction, seq: int, job: JobRecord) -> int:
    """Expire a job that is too old to start, or delete it at once; return 1, or how many calls were deleted with it."""
    calls = 1
    if job.state in TERMINAL:
        # The repair of its record has ended the job.
        return calls
    if job.policy.on_expire == "discard":
        calls = drop(step, seq, job)
        step.moved(job.queue, to="discarded")
    else:
        error = rows.error_text(expired(job, step.now).error)
        step.run(_EXPIRE, {"now": step.now, "error": error, "seq": seq})
        moved(step, job, State.EXPIRED)
    step.record(expiry(job, step.now))
    tell_if_drained(step, job.queue)
    step.knocked.append(job_topic(job.ref))
    return calls


def tell_if_drained(step: Transaction, queue: str) -> None:
    """Record that a queue has no unfinished jobs, if it records that event."""
    if recorded(step, queue, "queue_drained") and not step.unfinished(queue):
        step.record(QueueDrained(queue=queue))


def _unfinished(state: State | None) -> bool:
    return state is not None and state not in TERMINAL
