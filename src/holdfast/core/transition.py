"""What a record becomes when it is claimed or reclaimed, and what is told of a write that came too late for it.

Every storage that works on whole records uses these; one that moves them in a script of its own says the same there,
and the conformance suite holds it to that.
"""

from typing import Literal

from msgspec import structs

from holdfast.core.events import RunFenced
from holdfast.core.job import JobRecord, StallReason, StallSetting
from holdfast.core.lease import REAPER_LEASE, lease_end, next_fence, run_limit
from holdfast.core.lifecycle import State


def claimed(job: JobRecord, owner: str, now: int, setting: StallSetting | None) -> JobRecord:
    """Return a job as its next run begins under that owner. `setting`: what its queue says of stalls."""
    stall = job.stall if setting is None else job.stall.under(setting)
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
    """Return an active job as a reaper holds it: the same run, under a new fence, for as long as a decision takes."""
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


def stall_reason(job: JobRecord, now: int) -> StallReason:
    """Say which of its two clocks an active job that nobody renewed has outrun."""
    return "no_progress" if job.progress_until is not None and job.progress_until <= now else "lease_expired"


def silence(job: JobRecord, now: int) -> int:
    """Return for how long nothing has been heard of a job's holder, in microseconds."""
    return max(0, now - (job.heard_at or now))


def refused(job: JobRecord, owner: str, fence: int, write: Literal["settle", "renew"]) -> RunFenced:
    """Return what is told of a write by this owner under this fence, when the job has gone on without it."""
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
