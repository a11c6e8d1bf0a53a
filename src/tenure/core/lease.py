"""Leases: permission that runs out.

Whoever claims a job gets a lease: the right to run it and to settle it once, under a fence that only rises.

    claim ──► lease (fence 7) ──renew──► lease ──settle──► gone
                    │
                    └─ out, and silent through its grace ──reclaim──► lease (fence 8), the reaper's

From the reclaim on, fence 7 settles nothing. The holder need not wait to be told: it asked for the lease (or its
renewal) at a moment it knows, and the storage cannot have counted from any earlier one, so `trusted_until` of its own
clock it is safe, less a margin for clocks that run at slightly different rates.
"""

from msgspec import Struct

from tenure.core.job import JobRecord, Ref, StallTerms

REAPER_LEASE = 5_000_000
"""How long a reaper holds what it reclaimed, in microseconds; it is not renewed, so a dead reaper is itself reaped."""


class Lease(Struct, frozen=True, gc=False):
    """The right to settle one run of a job. `job` is the record as the claim or the reclaim left it."""

    job: JobRecord

    @property
    def ref(self) -> Ref:
        """The job's name."""
        return self.job.ref

    @property
    def fence(self) -> int:
        """The fencing token of this lease."""
        return self.job.fence

    @property
    def run(self) -> int:
        """The number of the run that this lease is for."""
        return self.job.starts


def next_fence(fence: int, now: int) -> int:
    """Return the fence after this one: it rises even where a failover forgot the last, for it follows the clock."""
    return max(fence + 1, now)


def margin(lease: int) -> int:
    """Return how long before its end a holder stops trusting a lease, in microseconds."""
    return lease // 10 if lease < 20_000_000 else 2_000_000


def trusted_until(asked_at: float, lease: int) -> float:
    """Return the uptime, in seconds, until which a lease asked for at that uptime surely is still ours."""
    return asked_at + (lease - margin(lease)) / 1_000_000


def lease_end(
    now: int,
    length: int,
    *,
    run_until: int | None,
    progress_until: int | None,
    not_before: int = 0,
    exclusive: bool = False,
) -> int:
    """Return when a lease given or renewed now runs out: never past the run's own limit or its progress clock.

    `not_before`: the end of the start grace, until which a young run is not asked for beats. `exclusive`: the worker
    keeps both limits itself, since the run's right must not pass to another one before its handler has ended.
    """
    end = max(now + length, not_before)
    if exclusive:
        return end
    if run_until is not None and run_until < end:
        end = run_until
    if progress_until is not None and progress_until < end:
        end = progress_until
    return end


def answer_limit(beat: float, limit: float) -> float:
    """Return how many seconds each part of a storage gets to answer a beat that has `limit` seconds in all.

    `beat`: the seconds between two beats. Half of them, so that a part that is silent delays the renewal of leases in
    the other parts by less than a beat; a second at least, where the whole limit allows it, for a slow network.
    """
    return min(max(beat / 2, 1.0), limit * 0.8)


def longest_lease(terms: StallTerms) -> int:
    """Return the length that no sound lease on a job of these terms exceeds, counted from now."""
    return max(terms.lease, terms.start_grace, REAPER_LEASE)


def run_limit(now: int, *, lease: int, timeout: int | None, deadline: int | None) -> int | None:
    """Return when a run that starts now is surely over: its limits, and a beat for its worker to say so."""
    limits = [limit for limit in (now + timeout if timeout is not None else None, deadline) if limit is not None]
    return min(limits) + lease // 4 if limits else None


def renewed_limits(
    now: int,
    *,
    lease: int,
    timeout: int | None,
    deadline: int | None,
    heartbeat_timeout: int | None,
    run_until: int | None,
    progress_until: int | None,
    ran: int | None,
    silent: int | None,
) -> tuple[int | None, int | None]:
    """Return when a renewed run's own limit and its progress clock run out.

    Its keeper measures how long it has `ran` and been `silent` on a clock that nobody sets. Counted from there, they
    stay right when the storage's clock is set; None leaves what the storage remembers.
    """
    if ran is not None:
        run_until = run_limit(now - ran, lease=lease, timeout=timeout, deadline=deadline)
    if silent is not None and heartbeat_timeout is not None:
        progress_until = now + heartbeat_timeout - silent
    return run_until, progress_until


def grace_end(now: int, *, terms: StallTerms, lease_until: int, grace: int, resumed_at: int | None) -> int:
    """Return until when a lease that has run out stays a mere suspect.

    Usually the grace. Two beats (half the lease) where time itself is in doubt: nobody swept for a while, so the
    storage or the whole host stood still and every holder is late alike; or the lease ends further ahead than it is
    long, so the clock was set back.
    """
    beats = terms.lease // 2
    resumed = resumed_at is not None and resumed_at <= now < resumed_at + beats
    set_back = lease_until > now + longest_lease(terms)
    return now + (beats if resumed or set_back else grace)
