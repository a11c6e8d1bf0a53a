"""Checks sweeps and reclaims: they take only jobs of lost holders, and a complete sweep leaves nothing due."""

from collections.abc import Mapping, Sequence

from tenure.core.job import JobRecord, Owner, Ref, UniqueKey
from tenure.core.lease import longest_lease
from tenure.core.lifecycle import State
from tenure.core.transition import is_expired
from tenure.storage.protocol import (
    PAUSED,
    RATE,
    UNKNOWN,
    ReclaimResult,
    StalledLease,
    SweepRequest,
    SweepResult,
)
from tenure_testing.simulation.accounts import Accounts
from tenure_testing.simulation.job_history import shown


class SweepChecks:
    """Checks sweeps and reclaims of one world."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._require = accounts.require

    def swept(
        self, bid: SweepRequest, answer: SweepResult, before: Mapping[Ref, JobRecord], changed: Sequence[Ref]
    ) -> None:
        """Check what a sweep did, and that a complete one left nothing that was due."""
        now = self._accounts.clock.now()
        for stalled in answer.stalled:
            was = before[stalled.lease.ref]
            over = was.suspect_until is not None and was.suspect_until <= now
            self._require(over, "I5", f"{was.ref}: reclaimed before its grace was over: {shown(was)}")
            self._taken(bid.owner, stalled, was)
        taken = [stalled.lease.ref for stalled in answer.stalled]
        for ref in changed:
            was, job = before[ref], self._accounts.model.records[ref]
            if ref in taken:
                continue
            match was.state, job.state:
                case State.ACTIVE, State.ACTIVE:
                    fine = (was.fence, was.owner) == (job.fence, job.owner)
                case State.FAILED, State.WAITING:
                    fine = was.redrive_at is not None and was.redrive_at <= now
                case State.FAILED, State.FAILED:
                    # The job's rule has given up, because a later job with its key exists.
                    fine = was.redrive_at is not None and was.redrive_at <= now and isinstance(was.merge, UniqueKey)
                case State.DELAYED | State.WAITING, State.WAITING | State.EXPIRED:
                    fine = True
                case _:
                    fine = False
            self._require(fine, "I3", f"{ref}: swept from {shown(was)} to {shown(job)}")
            if job.state is State.ACTIVE:
                self._suspected(bid, was, job, now)
        if answer.retry_in is None:
            if bid.term is not None:
                self._accounts.recovery_checks.led(bid.owner.id, self._accounts.clock.uptime(), bid.term)
            self._accounts.calls.swept(now)
            self._accounts.pacing.swept(now)
            self._accounts.ticking.swept(answer.due, now)
        if answer.retry_in is None and not answer.more:
            self._all_swept(before, now, bid.grace)

    def reclaimed(self, dead: str, owner: Owner, answer: ReclaimResult, before: Mapping[Ref, JobRecord]) -> None:
        """Check that the jobs taken from a dead owner were its own."""
        self._accounts.recoverers[owner.id] = owner.name
        for stalled in answer.stalled:
            was = before[stalled.lease.ref]
            self._require(was.owner == dead, "I5", f"{was.ref}: reclaimed for the death of {dead}: {shown(was)}")
            mine = self._accounts.recoverers.get(dead, owner.name) == owner.name
            self._require(mine, "I5", f"{was.ref}: taken from {dead}, an owner id of another supervisor")
            self._taken(owner, stalled, was)

    def _suspected(self, bid: SweepRequest, was: JobRecord, job: JobRecord, now: int) -> None:
        """Check that only expired or overlong leases are suspected, and that each suspect gets its grace."""
        longest = longest_lease(job.stall)
        out = was.lease_until is not None and not now < was.lease_until <= now + longest
        again = was.suspect_until is not None and was.suspect_until > now + max(job.stall.lease // 2, bid.grace)
        self._require(out or again, "I5", f"{job.ref}: suspected before its lease had ended: {shown(was)}")
        least = min(bid.grace, job.stall.lease // 2)
        enough = job.suspect_until is not None and job.suspect_until >= now + least
        self._require(enough, "I5", f"{job.ref}: suspected without a grace: {shown(job)}")

    def _all_swept(self, before: Mapping[Ref, JobRecord], now: int, grace: int) -> None:
        """Check that a complete sweep of the leader left nothing that was due."""
        for ref, job in self._accounts.model.records.items():
            number, flaw = self._left_over(before[ref], job, now, grace)
            if flaw:
                self._accounts.fail(number, f"{ref}: {flaw} at {now}: {shown(job)}")

    def _left_over(self, was: JobRecord, job: JobRecord, now: int, grace: int) -> tuple[str, str]:
        """Return the invariant and what a complete sweep left undone for a job, or an empty text."""
        number, flaw = "I16", ""
        match job.state:
            case State.ACTIVE if job.suspect_until is None:
                if not now < (job.lease_until or 0) <= now + longest_lease(job.stall):
                    flaw = f"its lease ends at {job.lease_until}, and it is not suspected"
            case State.ACTIVE:
                if was.suspect_until is not None and was.suspect_until <= now:
                    flaw = "its grace was over, and it was not reclaimed"
                elif job.suspect_until is not None and job.suspect_until > now + max(job.stall.lease // 2, grace):
                    flaw = "its grace ends further ahead than it is long"
            case State.WAITING if job.parked_under is not None and self._has_room(job):
                flaw = f"parked under {job.parked_under}, with room"
            case State.WAITING | State.DELAYED if is_expired(job, now):
                number, flaw = "I10", f"not expired, and its time was over at {job.expires_at}"
            case State.DELAYED if job.run_at <= now:
                flaw = f"due since {job.run_at}, and not promoted"
            case State.FAILED if job.redrive_at is not None and job.redrive_at <= now:
                flaw = f"its rule was to redrive it at {job.redrive_at}"
            case _ if self._accounts.forgettable(job):
                number, flaw = "I8", "kept for longer than it must be"
            case _:
                pass
        return number, flaw

    def _has_room(self, job: JobRecord) -> bool:
        """Return True if a parked job could be ready: it has a free slot, and no ready job may take the slot."""
        name = job.parked_under or ""
        if name == PAUSED + job.task:
            return not self._accounts.setting("task", job.task).paused
        if name.startswith(UNKNOWN):
            return False
        if name.startswith(RATE):
            now = self._accounts.clock.now()
            waits = self._accounts.pacing.kept_waiting(
                job, self._accounts.rates(job), self._accounts.model.records, now
            )
            # A job's own rate releases it only once the queue's rate allows a start.
            return waits and not self._accounts.closed(job.queue, now)
        active = 0
        for other in self._accounts.model.records.values():
            if other.queue != job.queue or name not in [key.name for key in other.keys]:
                continue
            if other.state is State.WAITING and other.parked_under is None:
                return False
            active += other.state is State.ACTIVE
        return active < self._accounts.limits[job.queue, name]

    def _taken(self, owner: Owner, stalled: StalledLease, was: JobRecord) -> None:
        job = stalled.lease.job
        story = self._accounts.story(job.ref)
        run = story.run
        if run is None or was.state is not State.ACTIVE:
            self._accounts.fail("I3", f"{job.ref}: reclaimed while no run of it was open: {shown(was)}")
        self._accounts.raise_fence(story, job.fence)
        self._require(job.owner == owner.id, "I5", f"{job.ref}: reclaimed by {owner.id}, but its owner is {job.owner}")
        self._require(was.starts == job.starts, "I7", f"{job.ref}: a reclaim counted a start")
        lost_by = next(holder for holder in reversed(run.holders) if holder not in self._accounts.recoverers)
        self._accounts.recovery_checks.excused(was, run, stalled.reason, self._accounts.clock.uptime(), lost_by=lost_by)
        run.taken = job.fence
        limit = was.run_until is not None and was.run_until <= self._accounts.clock.now()
        run.reason = run.reason or ("overrun" if limit else stalled.reason)
        run.holders.append(owner.id)
        if len(run.holders) > 2:
            # The reaper was lost too. The bound for that case differs.
            run.reason = "reaper lost"
        self._accounts.note("reaped", job.id, run.number, stalled.reason)
