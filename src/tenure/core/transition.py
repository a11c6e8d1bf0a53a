"""Computes a job's record after a claim, reclaim, expiry or redrive, and the events that report these changes.

Every storage that works on whole records uses these functions. A storage that changes records in a script of its own
implements the same rules there, and the conformance suite verifies that they agree.
"""

from typing import Literal

from msgspec import structs

from tenure.core.deduplication import due_at
from tenure.core.document import Progress
from tenure.core.duration import duration_text, moment
from tenure.core.events import (
    JobCollected,
    JobDebounced,
    JobDeduplicated,
    JobEnqueued,
    JobExpired,
    JobProgressed,
    JobRescheduled,
    JobStarted,
    JobSuspected,
    RunFenced,
)
from tenure.core.job import (
    CollectKey,
    DebounceKey,
    JobRecord,
    NewJob,
    Owner,
    RecordedError,
    Ref,
    StallReason,
    StallSetting,
)
from tenure.core.lease import REAPER_LEASE, lease_end, next_fence, run_limit
from tenure.core.lifecycle import State
from tenure.core.order import entered_at, score_at


def claimed(job: JobRecord, owner: str, now: int, setting: StallSetting | None) -> JobRecord:
    """Return the job's record at the start of its next run under that owner. `setting`: its queue's stall setting."""
    stall = job.stall if setting is None else job.stall.with_setting(setting)
    run_until = run_limit(now, lease=stall.lease, timeout=job.timeout, deadline=job.deadline)
    progress_until = now + job.heartbeat_timeout if job.heartbeat_timeout is not None else None
    return structs.replace(
        job,
        state=State.ACTIVE,
        stall=stall,
        fence=next_fence(job.fence, now),
        owner=owner,
        heard_at=now,
        lease_until=lease_end(
            now,
            stall.lease,
            run_until=run_until,
            progress_until=progress_until,
            not_before=now + stall.start_grace,
        ),
        run_until=run_until,
        progress_until=progress_until,
        starts=job.starts + 1,
        started=now,
    )


def reclaimed(job: JobRecord, owner: str, now: int) -> JobRecord:
    """Return an active job's record after a reclaim: the same run under a new fence, with the reaper's short lease."""
    return structs.replace(
        job,
        fence=next_fence(job.fence, now),
        owner=owner,
        heard_at=now,
        lease_until=now + REAPER_LEASE,
        suspect_until=None,
        run_until=None,
        progress_until=None,
    )


def is_expired(job: JobRecord, now: int) -> bool:
    """Return True if a job that has not started is too old to start. It is too old from `expires_at` on, inclusive."""
    return job.expires_at is not None and job.expires_at <= now


def expired(job: JobRecord, now: int) -> JobRecord:
    """Return the record of a job that waited too long, if its policy keeps it."""
    return structs.replace(
        job,
        state=State.EXPIRED,
        parked_under=None,
        quarantined=False,
        put_back_used=False,
        finished=now,
        error=too_late(job.ttl),
        reason=None,
        redrive_at=None,
    )


def too_late(ttl: int | None) -> RecordedError:
    """Return the error of a job that waited too long. It depends only on the time to live."""
    return RecordedError(
        "JobExpiredError", f"the job did not start within its time to live of {duration_text(ttl or 0)}"
    )


def expiry(job: JobRecord, now: int) -> JobExpired:
    """Return the event for a job that waited too long."""
    ttl = job.ttl or 0
    return JobExpired(
        queue=job.queue,
        id=job.id,
        task=job.task,
        run=job.starts,
        ttl=ttl / 1_000_000,
        # The age counts from the start of the time to live: the enqueue, or the due time of the last redrive.
        age=(now - (job.expires_at or now) + ttl) / 1_000_000,
        on_expire=job.policy.on_expire,
    )


def redriven(job: JobRecord, now: int, *, delay: int = 0, by_rule: bool = False) -> JobRecord:
    """Return the record of a redriven job: new budgets and time to live. Fence and starts continue to rise.

    An operator's redrive also resets the rule's count; otherwise no automatic redrives would be left. The error of an
    unreadable record stays: such a job must not run, because its neutral values may, for example, lack its keys.
    """
    run_at = now + delay
    return structs.replace(
        job,
        state=State.DELAYED if delay else State.WAITING,
        run_at=run_at,
        score=score_at(run_at, boost=job.boost, lifo=job.lifo),
        expires_at=None if job.ttl is None else run_at + job.ttl,
        failures=0,
        stalls=0,
        releases=0,
        redrives=job.redrives + 1 if by_rule else 0,
        redrive_at=None,
        cancel_at=None,
        cancel_reason=None,
        cancel_by=None,
        finished=None,
        kept_until=None,
        error=None if job.unreadable is None else job.error,
        reason=None,
        fault=None,
        progress=None,
        progress_note=None,
    )


def retimed(job: JobRecord, now: int, *, delay: int | None, priority: int | None, boost: int | None) -> JobRecord:
    """Return a job that has not started with a new time or priority; None leaves a value unchanged.

    A job whose new delay is over enters its queue again, with the score that it would get in an empty queue.
    """
    run_at = job.run_at if delay is None else now + delay
    # Without a delay it keeps its state: if the clock was set back, its old time might lie ahead again.
    later = job.state is State.DELAYED if delay is None else run_at > now
    new_boost = job.boost if boost is None else boost
    entered = entered_at(job.score, boost=job.boost, lifo=job.lifo) if delay is None else max(run_at, now)
    return structs.replace(
        job,
        state=State.DELAYED if later else State.WAITING,
        parked_under=None if later else job.parked_under,
        run_at=run_at,
        priority=job.priority if priority is None else priority,
        boost=new_boost,
        score=score_at(entered, boost=new_boost, lifo=job.lifo),
    )


def collecting(job: JobRecord, key: CollectKey, now: int, *, ttl: int | None, offset: int, size: int) -> JobRecord:
    """Return a collecting job's record after one more call, except for the call's arguments, which take `size` bytes.

    `offset`: the call's position among several calls. A delayed job that is now due enters its queue with the score
    that it would get in an empty queue.
    """
    calls, size = job.collected + 1, job.collected_bytes + size
    run_at = due_at(key, first=job.created, calls=calls, now=now, size=size)
    after = structs.replace(
        job,
        collected=calls,
        collected_bytes=size,
        merge=key,
        ttl=ttl,
        expires_at=None if ttl is None else now + ttl,
        created=min(job.created, now),
    )
    if job.state is State.WAITING and run_at <= now:
        return after
    return structs.replace(
        after,
        state=State.DELAYED if run_at > now else State.WAITING,
        parked_under=None,
        run_at=run_at,
        score=score_at(run_at + offset, boost=job.boost, lifo=job.lifo),
    )


def stall_reason(job: JobRecord, now: int) -> StallReason:
    """Return which deadline an active job missed: its lease, or its progress deadline.

    The progress deadline caused the end of the lease only if it bounded the lease. An exclusive run's lease may outlast
    it.
    """
    bounded = job.progress_until is not None and (job.lease_until is None or job.lease_until <= job.progress_until)
    return "no_progress" if bounded and (job.progress_until or 0) <= now else "lease_expired"


def silence(job: JobRecord, now: int) -> int:
    """Return how long ago the job's holder last showed that it is alive, in microseconds."""
    return max(0, now - (job.heard_at or now))


def refused(job: JobRecord, owner: str, fence: int, write: Literal["settle", "renew"]) -> RunFenced:
    """Return the event for a refused write by this owner under this fence: another run is the current one by now."""
    return RunFenced(
        queue=job.queue,
        id=job.id,
        task=job.task,
        run=job.starts,
        fence=fence,
        current_fence=job.fence,
        owner=owner,
        write=write,
    )


def enqueued(job: JobRecord) -> JobEnqueued:
    """Return the optional event for a new job."""
    return JobEnqueued(queue=job.queue, id=job.id, task=job.task, due_at=moment(job.run_at), priority=job.priority)


def merged(new: NewJob, into: Ref, collected: int) -> JobDeduplicated | JobDebounced | JobCollected:
    """Return the optional event for a call that was merged into an existing job."""
    key = "" if new.merge is None else new.merge.key
    match new.merge:
        case DebounceKey():
            return JobDebounced(queue=into.queue, id=into.id, task=new.task, key=key, replaced_by=new.id)
        case CollectKey():
            return JobCollected(queue=into.queue, id=into.id, task=new.task, key=key, count=collected)
        case _:
            return JobDeduplicated(queue=new.queue, id=new.id, task=new.task, key=key, existing_id=into.id)


def rescheduled(job: JobRecord, by: str | None) -> JobRescheduled:
    """Return the optional event for a job with a new time or priority."""
    return JobRescheduled(
        queue=job.queue,
        id=job.id,
        task=job.task,
        run=job.starts,
        due_at=moment(job.run_at),
        priority=job.priority,
        by=by,
    )


def begun(job: JobRecord, owner: Owner) -> JobStarted:
    """Return the optional event for a run that has just begun."""
    return JobStarted(
        queue=job.queue,
        id=job.id,
        task=job.task,
        run=job.starts,
        attempt=job.attempt,
        owner=owner.id,
        host=owner.host,
        pid=owner.pid,
        fence=job.fence,
        redelivered=job.starts > 1,
    )


def progressed(job: JobRecord, value: Progress, note: str | None) -> JobProgressed:
    """Return the optional event for a handler's progress."""
    return JobProgressed(queue=job.queue, id=job.id, task=job.task, run=job.starts, value=value, note=note)


def suspected(job: JobRecord, now: int) -> JobSuspected:
    """Return the optional event for a lease that has run out."""
    return JobSuspected(
        queue=job.queue,
        id=job.id,
        task=job.task,
        run=job.starts,
        owner=job.owner or "",
        silent_for=silence(job, now) / 1_000_000,
    )
