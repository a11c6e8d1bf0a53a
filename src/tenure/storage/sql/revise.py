"""Operator actions in SQL: cancel, redrive, delete, reschedule and retain jobs."""

from collections.abc import Sequence

from tenure.core.events import JobCancelled, JobDeleted, JobRedriven
from tenure.core.figures import TaskCounts, end_of
from tenure.core.job import JobRecord
from tenure.core.lifecycle import REDRIVABLE, TERMINAL, State
from tenure.core.transition import redriven, rescheduled, retimed
from tenure.storage.protocol import (
    CancelJob,
    DeleteJob,
    RedriveJob,
    RescheduleJob,
    RetainJob,
    Revision,
    RevisionResult,
    job_topic,
    owner_topic,
    queue_topic,
)
from tenure.storage.sql import concurrency_keys, fair_queue, rows
from tenure.storage.sql.enqueue import free_window, holder
from tenure.storage.sql.settings import records_event, setting
from tenure.storage.sql.transaction import Transaction
from tenure.storage.sql.transitions import delete, find_job, is_past_lifetime, record_if_drained, record_move


def revise(tx: Transaction, revisions: Sequence[Revision]) -> list[RevisionResult]:
    """Apply each revision, if the job's state allows it."""
    revised = [_revise(tx, revision) for revision in revisions]
    concurrency_keys.release_freed(tx)
    return revised


def _revise(tx: Transaction, revision: Revision) -> RevisionResult:
    found = find_job(tx, revision.ref)
    if found is None or is_past_lifetime(found[1], tx.now):
        return RevisionResult(revision.ref, "gone")
    seq, job = found
    if revision.ended not in (None, job.finished or 0):
        return RevisionResult(job.ref, "changed", job.state)
    if isinstance(revision, DeleteJob) and revision.move is not None:
        mark = setting(tx, "queue", job.queue).moved
        if mark is None or mark.id != revision.move:
            return RevisionResult(job.ref, "refused", job.state)
    match revision:
        case CancelJob() if job.state is State.ACTIVE:
            _ask_to_stop(tx, seq, job, revision)
            return RevisionResult(job.ref, "asked", job.state)
        case CancelJob() if job.state not in TERMINAL:
            _cancel(tx, seq, job, revision)
        case RedriveJob() if job.state in REDRIVABLE and (replacement := holder(tx, job)) is not None:
            return RevisionResult(job.ref, "refused", job.state, replacement)
        case RedriveJob(by=by, delay=delay) if job.state in REDRIVABLE:
            redrive(tx, seq, job, delay=delay, by=by)
        case DeleteJob(by=by) if job.state is not State.ACTIVE:
            delete(tx, seq, job)
            free_window(tx, job)
            tx.record(JobDeleted(queue=job.queue, id=job.id, task=job.task, run=job.starts, by=by, was=job.state))
            if job.state not in TERMINAL:
                record_if_drained(tx, job.queue)
        case RescheduleJob() if job.state in (State.DELAYED, State.WAITING):
            _reschedule(tx, seq, job, revision)
        case RetainJob(ttl=ttl) if job.state is State.COMPLETED:
            tx.run("revise.retain", {"kept_until": tx.now + ttl, "seq": seq})
            tx.count_move(job.queue, to="kept", jobs=0 if job.kept_until is not None else 1)
        case _:
            return RevisionResult(job.ref, "refused", job.state)
    tx.topics.append(job_topic(job.ref))
    return RevisionResult(job.ref, "done", job.state)


def redrive(
    tx: Transaction, seq: int, job: JobRecord, *, delay: int = 0, by: str | None, by_rule: bool = False
) -> None:
    """Put an ended job back in its queue."""
    again = redriven(job, tx.now, delay=delay, by_rule=by_rule)
    score = fair_queue.score(tx, again, again.run_at) if again.state is State.WAITING else again.score
    tx.run(
        "revise.redrive",
        {
            "state": again.state,
            "run_at": again.run_at,
            "score": score,
            "expires_at": again.expires_at,
            "redrives": again.redrives,
            "error": rows.error_text(again.error),
            "seq": seq,
        },
    )
    record_move(tx, job, again.state, score=score)
    tx.record(JobRedriven(queue=job.queue, id=job.id, task=job.task, run=job.starts, by=by, was=job.state))
    tx.topics += [queue_topic(job.queue), job_topic(job.ref)]


def _ask_to_stop(tx: Transaction, seq: int, job: JobRecord, revision: CancelJob) -> None:
    if job.cancel_at is None:
        tx.run("revise.ask_to_stop", {"now": tx.now, "reason": revision.reason, "by": revision.by, "seq": seq})
        tx.topics.append(owner_topic(job.owner or ""))


def _cancel(tx: Transaction, seq: int, job: JobRecord, revision: CancelJob) -> None:
    tx.run("revise.cancel", {"now": tx.now, "reason": revision.reason, "by": revision.by, "seq": seq})
    record_move(tx, job, State.CANCELLED)
    tx.count_figures([TaskCounts(job.queue, job.task, end_of("cancelled"))])
    tx.record(
        JobCancelled(
            queue=job.queue,
            id=job.id,
            task=job.task,
            run=job.starts,
            reason=revision.reason,
            by=revision.by,
            was=job.state,
        )
    )
    record_if_drained(tx, job.queue)


def _reschedule(tx: Transaction, seq: int, job: JobRecord, revision: RescheduleJob) -> None:
    after = retimed(job, tx.now, delay=revision.delay, priority=revision.priority, boost=revision.boost)
    in_line = revision.delay is not None and after.state is State.WAITING
    score = fair_queue.score(tx, after, tx.now) if in_line else after.score
    tx.run(
        "revise.reschedule",
        {
            "state": after.state,
            "parked_under": after.parked_under,
            "run_at": after.run_at,
            "priority": after.priority,
            "boost": after.boost,
            "score": score,
            "seq": seq,
        },
    )
    record_move(tx, job, after.state, score=score)
    if records_event(tx, job.queue, "rescheduled"):
        tx.record(rescheduled(after, revision.by))
    tx.topics.append(queue_topic(job.queue))
