"""The operator's hand in SQL: cancel, redrive, delete, reschedule."""

from holdfast.core.events import JobCancelled, JobDeleted, JobRedriven
from holdfast.core.job import JobRecord
from holdfast.core.lifecycle import REDRIVABLE, TERMINAL, State
from holdfast.storage.protocol import (
    Cancel,
    Delete,
    Redrive,
    Reschedule,
    Revised,
    Revision,
    job_topic,
    queue_topic,
)
from holdfast.storage.sqlite.queries import query
from holdfast.storage.sqlite.settling import find_job
from holdfast.storage.sqlite.step import Step

_ASK_TO_STOP = query("revise", "ask_to_stop")
_CANCEL = query("revise", "cancel")
_REDRIVE = query("revise", "redrive")
_RESCHEDULE = query("revise", "reschedule")
_DELETE = tuple(query("revise", name) for name in ("delete", "delete_runs", "delete_log"))


def revise(step: Step, revision: Revision) -> Revised:
    """Do what the revision asks, where the job's state allows it."""
    found = find_job(step, revision.ref)
    if found is None:
        return Revised(revision.ref, "gone")
    seq, job = found
    match revision:
        case Cancel(reason=reason, by=by) if job.state is State.ACTIVE:
            if job.cancel_at is None:
                step.run(_ASK_TO_STOP, (step.now, reason, by, seq))
            return Revised(job.ref, "asked", job.state)
        case Cancel() if job.state not in TERMINAL:
            _cancel(step, seq, job, revision)
        case Redrive() if job.state in REDRIVABLE:
            _redrive(step, seq, job, revision)
        case Delete(by=by) if job.state is not State.ACTIVE:
            for statement in _DELETE:
                step.run(statement, (seq,))
            step.moved(job.queue, left=job.state)
            step.record(JobDeleted(queue=job.queue, id=job.id, task=job.task, run=job.starts, by=by, was=job.state))
        case Reschedule() if job.state in (State.DELAYED, State.WAITING):
            _reschedule(step, seq, job, revision)
        case _:
            return Revised(job.ref, "refused", job.state)
    step.knocked.append(job_topic(job.ref))
    return Revised(job.ref, "done", job.state)


def _cancel(step: Step, seq: int, job: JobRecord, asked: Cancel) -> None:
    step.run(_CANCEL, {"now": step.now, "reason": asked.reason, "by": asked.by, "seq": seq})
    step.moved(job.queue, left=job.state, to=State.CANCELLED)
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


def _redrive(step: Step, seq: int, job: JobRecord, asked: Redrive) -> None:
    expires_at = step.now + job.expires_at - job.created if job.expires_at is not None else None
    step.run(_REDRIVE, {"now": step.now, "expires_at": expires_at, "seq": seq})
    step.moved(job.queue, left=job.state, to=State.WAITING)
    step.record(JobRedriven(queue=job.queue, id=job.id, task=job.task, run=job.starts, by=asked.by, was=job.state))
    step.knocked.append(queue_topic(job.queue))


def _reschedule(step: Step, seq: int, job: JobRecord, asked: Reschedule) -> None:
    run_at = job.run_at if asked.delay is None else step.now + asked.delay
    boost = job.boost if asked.boost is None else asked.boost
    ready_at = job.score + job.boost if asked.delay is None else max(run_at, step.now)
    state = State.DELAYED if run_at > step.now else State.WAITING
    priority = job.priority if asked.priority is None else asked.priority
    step.run(_RESCHEDULE, (state.value, run_at, priority, boost, ready_at - boost, seq))
    step.moved(job.queue, left=job.state, to=state)
    step.knocked.append(queue_topic(job.queue))
