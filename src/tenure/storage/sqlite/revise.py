"""Operator actions in SQL: cancel, redrive, delete, reschedule and retain jobs."""

from collections.abc import Sequence

from tenure.core.events import JobCancelled, JobDeleted, JobRedriven
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
from tenure.storage.sqlite import concurrency_keys, fair_queue, rows
from tenure.storage.sqlite.enqueue import free_window, holder
from tenure.storage.sqlite.settings import recorded
from tenure.storage.sqlite.statements import query
from tenure.storage.sqlite.transaction import Transaction
from tenure.storage.sqlite.transitions import drop, find_job, moved, past, tell_if_drained

_ASK_TO_STOP = query("revise", "ask_to_stop")
_CANCEL = query("revise", "cancel")
_REDRIVE = query("revise", "redrive")
_RESCHEDULE = query("revise", "reschedule")
_RETAIN = query("revise", "retain")


def revise(step: Transaction, revisions: Sequence[Revision]) -> list[RevisionResult]:
    """Apply each revision, if the job's state allows it."""
    revised = [_revise(step, revision) for revision in revisions]
    concurrency_keys.let_in(step)
    return revised


def _revise(step: Transaction, revision: Revision) -> RevisionResult:
    found = find_job(step, revision.ref)
    if found is None or past(found[1], step.now):
        return RevisionResult(revision.ref, "gone")
    seq, job = found
    if isinstance(revision, RedriveJob | DeleteJob) and revision.ended not in (None, job.finished):
        return RevisionResult(job.ref, "refused", job.state)
    match revision:
        case CancelJob() if job.state is State.ACTIVE:
            _ask_to_stop(step, seq, job, revision)
            return RevisionResult(job.ref, "asked", job.state)
        case CancelJob() if job.state not in TERMINAL:
            _cancel(step, seq, job, revision)
        case RedriveJob() if job.state in REDRIVABLE and (there := holder(step, job)) is not None:
            return RevisionResult(job.ref, "refused", job.state, there)
        case RedriveJob(by=by, delay=delay) if job.state in REDRIVABLE:
            redrive(step, seq, job, delay=delay, by=by)
        case DeleteJob(by=by) if job.state is not State.ACTIVE:
            drop(step, seq, job)
            free_window(step, job)
            step.record(JobDeleted(queue=job.queue, id=job.id, task=job.task, run=job.starts, by=by, was=job.state))
            if job.state not in TERMINAL:
                tell_if_drained(step, job.queue)
        case RescheduleJob() if job.state in (State.DELAYED, State.WAITING):
            _reschedule(step, seq, job, revision)
        case RetainJob(ttl=ttl) if job.state is State.COMPLETED:
            step.run(_RETAIN, (step.now + ttl, seq))
            step.moved(job.queue, to="kept", jobs=0 if job.kept_until is not None else 1)
        case _:
            return RevisionResult(job.ref, "refused", job.state)
    step.knocked.append(job_topic(job.ref))
    return RevisionResult(job.ref, "done", job.state)


def redrive(
    step: Transaction, seq: int, job: JobRecord, *, delay: int = 0, by: str | None, by_rule: bool = False
) -> None:
    """Put an ended job back in its queue."""
    again = redriven(job, step.now, delay=delay, by_rule=by_rule)
    waits = again.state is State.WAITING
    step.run(
        _REDRIVE,
        {
            "state": again.state,
            "run_at": again.run_at,
            "score": fair_queue.score(step, again, again.run_at) if waits else again.score,
            "expires_at": again.expires_at,
            "redrives": again.redrives,
            "error": rows.error_text(again.error),
            "seq": seq,
        },
    )
    moved(step, job, again.state)
    step.record(JobRedriven(queue=job.queue, id=job.id, task=job.task, run=job.starts, by=by, was=job.state))
    step.knocked += [queue_topic(job.queue), job_topic(job.ref)]


def _ask_to_stop(step: Transaction, seq: int, job: JobRecord, asked: CancelJob) -> None:
    if job.cancel_at is None:
        step.run(_ASK_TO_STOP, (step.now, asked.reason, asked.by, seq))
        step.knocked.append(owner_topic(job.owner or ""))


def _cancel(step: Transaction, seq: int, job: JobRecord, asked: CancelJob) -> None:
    step.run(_CANCEL, {"now": step.now, "reason": asked.reason, "by": asked.by, "seq": seq})
    moved(step, job, State.CANCELLED)
    step.record(
        JobCancelled(
            queue=job.queue,
            id=job.id,
            task=job.task,
            run=job.starts,
            reason=asked.reason,
            by=asked.by,
            was=job.state,
        )
    )
    tell_if_drained(step, job.queue)


def _reschedule(step: Transaction, seq: int, job: JobRecord, asked: RescheduleJob) -> None:
    after = retimed(job, step.now, delay=asked.delay, priority=asked.priority, boost=asked.boost)
    in_line = asked.delay is not None and after.state is State.WAITING
    score = fair_queue.score(step, after, step.now) if in_line else after.score
    step.run(_RESCHEDULE, (after.state, after.parked_under, after.run_at, after.priority, after.boost, score, seq))
    moved(step, job, after.state)
    if recorded(step, job.queue, "rescheduled"):
        step.record(rescheduled(after, asked.by))
    step.knocked.append(queue_topic(job.queue))
