"""Leases: the right to run a job for a limited time.

A worker that claims a job gets a lease: the right to run the job and to settle it once, under a fence number that only
rises.

    claim ──► lease (fence 7) ──renew──► lease ──settle──► gone
                    │
                    └─ out, and silent through its grace ──reclaim──► lease (fence 8), the reaper's

After the reclaim, fence 7 cannot settle anything. The holder need not be notified. It knows when it sent the request
for the lease (or its renewal), and the storage cannot have started the lease earlier. So the holder may act until
`trusted_until` on its own clock, which keeps a margin for clocks that run at slightly different rates.
"""

from msgspec import Struct

from tenure.core.job import JobRecord, Ref, StallTerms

REAPER_LEASE = 5_000_000
"""How long a reaper holds a reclaimed job, in microseconds. It does not renew this lease, so jobs of a dead reaper are
reclaimed too."""


class Lease(Struct, frozen=True, gc=False):
    """The right to settle one run of a job. `job` is the record after the claim or the reclaim."""

    job: JobRecord

    @property
    def ref(self) -> Ref:
        """The job's identity."""
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
    """Return the next fence. It follows the clock, so it rises even if a failover lost the last fence."""
    return max(fence + 1, now)


def margin(lease: int) -> int:
    """Return how long before its end a holder stops trusting a lease, in microseconds."""
    return lease // 10 if lease < 20_000_000 else 2_000_000


def trusted_until(asked_at: float, lease: int) -> float:
    """Return the uptime, in seconds, until which a lease requested at uptime `asked_at` is certainly still held."""
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
    """Return the end of a lease given or renewed now: never past the run's own limit or its progress deadline.

    `not_before`: the end of the start grace; a run needs no beats before it. `exclusive`: the worker itself enforces
    both limits, because the run's right must not pass to another run before its handler has ended.
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

    `beat`: the seconds between two beats. The result is half of that, so that an unresponsive part delays the renewal
    of leases in the other parts by less than a beat. It is at least one second, if the total limit allows it, for slow
    networks.
    """
    return min(max(beat / 2, 1.0), limit * 0.8)


def longest_lease(terms: StallTerms) -> int:
    """Return the longest valid lease of a job with these terms, counted from now."""
    return max(terms.lease, terms.start_grace, REAPER_LEASE)


def run_limit(now: int, *, lease: int, timeout: int | None, deadline: int | None) -> int | None:
    """Return when a run that starts now is certainly over: its limits, plus one beat for its worker to report."""
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
    """Return the new time limit and progress deadline of a renewed run.

    Its keeper measures `ran` and `silent` on a monotonic clock. Limits counted from these values stay right when the
    storage's clock is set. None keeps the stored limit.
    """
    if ran is not None:
        run_until = run_limit(now - ran, lease=lease, timeout=timeout, deadline=deadline)
    if silent is not None and heartbeat_timeout is not None:
        progress_until = now + heartbeat_timeout - silent
    return run_until, progress_until


def grace_end(now: int, *, terms: StallTerms, lease_until: int, grace: int, resumed_at: int | None) -> int:
    """Return until when an expired lease stays a suspect.

    Usually the grace applies. Two beats (half the lease) apply in two cases. First, no process swept for a while: the
    storage or the whole host stood still, so every holder is late. It has two beats from the first sweep after that.
    Second, the lease ends further ahead than it is long: the clock was set back.
    """
    beats = terms.lease // 2
    if lease_until > now + longest_lease(terms):
        return now + beats
    if resumed_at is not None and resumed_at <= now:
        return max(now + grace, resumed_at + beats)
    return now + grace
