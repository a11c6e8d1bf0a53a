"""Checks of a single record: the place in the indexes that it must have, and the end that its lease may have."""

from tenure.core.job import JobRecord
from tenure.core.lifecycle import State
from tenure.core.retention import KeepRule


def place_of(job: JobRecord) -> tuple[str, int] | None:
    """Return the one index that must contain a job, and its number there."""
    match job.state:
        case State.WAITING if job.parked_under is not None:
            return f"parked {job.queue} {job.parked_under}", job.score
        case State.WAITING:
            return f"ready {job.queue}", job.score
        case State.DELAYED:
            return f"delayed {job.queue}", job.run_at
        case State.SUSPENDED if job.links is not None and job.links.wake_at is not None:
            return f"timers {job.queue}", job.links.wake_at
        case State.ACTIVE if job.suspect_until is not None:
            return "suspects", job.suspect_until
        case State.ACTIVE:
            return "leases", job.lease_until or 0
        case _:
            return None


def may_be_forgotten(job: JobRecord, keep: KeepRule, now: int) -> bool:
    """Return True if a finished job has been kept for as long as it must be."""
    if job.kept_until is not None:
        return job.kept_until <= now
    # No world reaches the maximum number of jobs to keep.
    return job.finished is not None and job.finished + keep.age <= now


def right_lease_end(job: JobRecord, now: int, *, exclusive: bool = False) -> int:
    """Return when a lease that is given or renewed at that instant must end: at the earliest of its limits.

    `exclusive`: it was renewed for a run whose worker enforces the limits itself.
    """
    # A run cannot have started later than now. If it seems so, the clock was set back since.
    started = min(job.started or now, now)
    limits = [max(now + job.stall.lease, started + job.stall.start_grace)]
    if not exclusive:
        limits += [limit for limit in (job.run_until, job.progress_until) if limit is not None]
    return min(limits)


def flaw_of_lease(was: JobRecord, job: JobRecord, now: int, *, exclusive: bool) -> str:
    """Describe what is wrong with a renewed lease, or return an empty text."""
    lease, end = job.stall.lease, right_lease_end(job, now, exclusive=exclusive)
    if job.lease_until != end:
        return f"ends at {job.lease_until}, not at {end}"
    if job.timeout is not None and not (job.run_until and job.run_until <= now + job.timeout + lease // 4):
        return f"its run may last until {job.run_until}, longer than it has"
    if job.heartbeat_timeout is not None and not (
        job.progress_until and job.progress_until <= now + job.heartbeat_timeout
    ):
        return f"it may be silent until {job.progress_until}, longer than it has"
    if job.suspect_until != (None if end > now else was.suspect_until):
        return f"is suspected until {job.suspect_until}"
    return ""
