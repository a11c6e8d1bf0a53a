"""Checks each job taken from a holder in a simulated world: for a valid cause (I5), and in time (I16)."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from tenure.clock import SECOND
from tenure.core.job import JobRecord, Ref
from tenure.core.leadership import LATE
from tenure.options import Timing
from tenure_testing.simulation.call_checks import Require
from tenure_testing.simulation.fault_log import EVERYWHERE, FaultLog
from tenure_testing.simulation.job_history import RunHistory

PROCESS_DEATH_BOUND = 1.0
"""The seconds after the death of a supervised process within which its jobs are claimable."""


@dataclass(frozen=True)
class SimulatedRecovery:
    """A job taken from a lost holder: how long that took, and how long it may take."""

    ref: Ref
    reason: str
    seconds: float
    bound: float
    clear: bool
    """True if there was no other fault meanwhile. The bound holds only then."""


class RecoveryChecks:
    """An account of all jobs that were taken from a lost holder and put back."""

    def __init__(
        self,
        require: Require,
        fault_log: FaultLog,
        timing: Timing,
        *,
        overruns: frozenset[str],
        died: Mapping[str, float],
        slack: float,
    ) -> None:
        self.all: list[SimulatedRecovery] = []
        self._require = require
        self._fault_log = fault_log
        self._timing = timing
        self._overruns = overruns
        self._died = died
        self._slack = slack
        self._terms: dict[str, tuple[float, float]] = {}
        """When each reaper last swept as the leader, and for how many seconds it led from then on."""

    def excused(self, job: JobRecord, run: RunHistory, reason: str, now: float, *, lost_by: str) -> None:
        """Check that a run was reclaimed for a valid cause, because live jobs must not run again.

        `lost_by`: the last holder, not counting the owner ids that crash recoveries use. A frozen storage or a stepped
        clock alone is not a valid cause.
        """
        holder = run.holders[-1]
        lease = job.stall.lease / SECOND
        near = self._fault_log.between(run.heard - 1.5 * lease, now)
        own = [fault for fault in near if fault.where == holder]
        common = [fault for fault in near if fault.where == EVERYWHERE]
        limited = job.timeout is not None or job.heartbeat_timeout is not None
        if reason == "process_died":
            fine = lost_by in self._died
        elif run.taken is not None:
            # A reaper was lost, late or stopped before it settled. A fault of the reaper or of an earlier holder
            # excuses it.
            fine = bool(common) or any(fault.where in run.holders for fault in near)
        elif reason == "no_progress":
            fine = job.heartbeat_timeout is not None and now - run.signed >= job.heartbeat_timeout / SECOND
            fine = fine or bool(common)
        else:
            fine = (
                any(fault.kind in ("kill", "pause", "cut", "lid", "fail") for fault in own)
                or any(fault.kind == "block" and (limited or fault.until >= run.claimed) for fault in own)
                or (bool(common) and any(fault.kind == "stop" for fault in own))
                or any(fault.kind == "net" for fault in common)
                or len(common) > 1
                or (
                    job.task in self._overruns and job.timeout is not None and now - run.claimed >= job.timeout / SECOND
                )
            )
        self._require(
            fine,
            "I5",
            f"{job.ref}: run {run.number} of {holder} was reaped ({reason}) though its holder lives; it was last heard "
            f"{now - run.heard:.1f} s ago; troubles near: {[(t.kind, t.where, t.since, t.until) for t in near]}",
        )

    def led(self, owner: str, now: float, term: int) -> None:
        """Record that a reaper swept as the leader, and leads for `term` microseconds more."""
        self._terms[owner] = now, term / SECOND

    def recovered(self, job: JobRecord, run: RunHistory, now: float) -> None:
        """Record that a lost run was settled, and check that this was in time."""
        out = _lease_end(job, run)
        match run.reason:
            case "process_died":
                since = self._died[run.owner]
            case "no_progress":
                since = run.signed
            case "overrun" if not run.exclusive:
                since = out
            case "overrun" | "lease_expired":
                since = run.heard
            case _:
                return
        bound = PROCESS_DEATH_BOUND if run.reason == "process_died" else self._claimable_at(out, run) - since
        # For half a lease after time itself was in doubt, the grace is longer.
        doubt = job.stall.lease / 2 / SECOND + 2 * self._timing.sweep.total_seconds()
        # Processes that died or left long before no longer matter: another one leads, and their jobs are back.
        long_ago = since - self._timing.recovery_bound.total_seconds()
        clear = all(
            fault.where in run.holders[:1] or (fault.kind in ("kill", "stop", "fail") and fault.since < long_ago)
            for fault in self._fault_log.between(since - doubt, now)
        )
        recovery = SimulatedRecovery(job.ref, run.reason, now - since, bound + self._slack, clear)
        self.all.append(recovery)
        if clear:
            self._require(
                recovery.seconds <= recovery.bound,
                "I16",
                f"{job.ref}: recovered ({run.reason}) after {recovery.seconds:.3f} s, more than {recovery.bound:.3f} s",
            )

    def _claimable_at(self, out: float, run: RunHistory) -> float:
        """Return when the job of a lost run can be claimed at the latest, if its lease is out at `out`.

        A sweep notices that within `Timing.sweep`. After `Timing.grace`, a sweep within another `Timing.sweep` reclaims
        the job. If the lost holder led the sweeps itself, one of these two sweeps may come later: when the term of its
        last sweep is over, and a follower has asked again, which it does up to `LATE` seconds later (a quarter of
        `Timing.sweep` if that is less).
        """
        sweep, grace = self._timing.sweep.total_seconds(), self._timing.grace.total_seconds()
        suspected = out + sweep
        led_at, term = self._terms.get(run.owner, (-inf, 0.0))
        next_leader = led_at + term + min(LATE, sweep / 4)
        if led_at < out:
            suspected = max(suspected, next_leader)
        reclaimed = suspected + grace + sweep
        # From the end of the grace on, its own sweep would have reclaimed the job.
        return max(reclaimed, next_leader) if led_at < suspected + grace else reclaimed


def _lease_end(job: JobRecord, run: RunHistory) -> float:
    """Return when the lease of a run is out that is not renewed any more.

    The limits of a run bound its lease, but not the lease of an exclusive run, once its holder has renewed it: the
    right must not pass to another run while the handler goes on (decision 014).
    """
    ends = [run.heard + job.stall.lease / SECOND]
    if job.timeout is not None and not run.exclusive:
        # The holder has a beat after the timeout to settle the run.
        ends.append(run.started + (job.timeout + job.stall.lease // 4) / SECOND)
    if job.heartbeat_timeout is not None and not run.exclusive:
        ends.append(run.signed + job.heartbeat_timeout / SECOND)
    return min(ends)
