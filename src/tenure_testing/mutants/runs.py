"""Mutants of claims, settlements, renewals, sweeps, reclaims and operator commands."""

from collections.abc import Mapping

from msgspec import structs

from tenure.clock import Clock
from tenure.core.decision import Decision, PutBack, RunEnd
from tenure.core.job import JobRecord, NewJob, Owner, Ref, StallReason
from tenure.core.lane import Lane, LaneClaims
from tenure.core.leadership import Term
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.settlement import Settlement
from tenure.core.transition import refused
from tenure.storage.memory.model import Model
from tenure.storage.protocol import (
    PAUSED,
    CancelJob,
    ClaimRequest,
    DeleteJob,
    EnqueueResult,
    EventPage,
    EventReader,
    LeaseRenewal,
    ReclaimResult,
    RedriveJob,
    RenewRequest,
    RenewResult,
    Revision,
    RevisionResult,
    SettlementResult,
    StalledLease,
    SweepRequest,
    SweepResult,
)
from tenure_testing.mutants.registry import mutant

# ── numbered claims ───────────────────────────────────────────────────────────────────────────────────────────────────


@mutant("lost claims")
class ClaimsTwice(Model):
    """A numbered call claims each time it arrives, even with a number that was used before."""

    def _has_seen(self, owner: Owner, lane: Lane, now: int) -> bool:
        self._hand_back(owner, lane, now)
        return False


@mutant("lost claims")
class KeepsLostClaims(Model):
    """The claims of a call whose answer was lost stay with their owner."""

    def _hand_back(self, owner: Owner, lane: Lane, now: int) -> None:
        known = self._claims.get((owner.id, lane.id), LaneClaims())
        self._claims[owner.id, lane.id] = known.finished(lane, now)


@mutant("lost claims")
class HandsBackWhatIsUnderWay(Model):
    """A renewal puts back claims whose answer may still arrive."""

    def renew(self, beat: RenewRequest) -> RenewResult:
        """See `Model.renew`."""
        lanes = tuple(structs.replace(lane, number=lane.number + 1) for lane in beat.lanes)
        return super().renew(structs.replace(beat, lanes=lanes))


# ── write guards ─────────────────────────────────────────────────────────────────────────────────────────────────────


@mutant()
class NoFence(Model):
    """The current owner of a job may settle it under the fence of an earlier run."""

    def _holds(self, job: JobRecord, owner: str, fence: int) -> bool:
        return job.state is State.ACTIVE and job.owner == owner


@mutant()
class NoOwner(Model):
    """Any caller that knows the fence may settle the job."""

    def _holds(self, job: JobRecord, owner: str, fence: int) -> bool:
        return job.state is State.ACTIVE and job.fence == fence


@mutant()
class NoStateGuard(Model):
    """The last holder of a job may settle it under its fence in any state of the job."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._last: dict[Ref, str | None] = {}

    def _holds(self, job: JobRecord, owner: str, fence: int) -> bool:
        return job.fence == fence and (job.owner or self._last.get(job.ref)) == owner

    def _apply(self, job: JobRecord, decision: Decision, now: int) -> None:
        self._last[job.ref] = job.owner or self._last.get(job.ref)
        super()._apply(job, decision, now)


@mutant()
class SuspectMayNotWrite(Model):
    """A suspect may neither settle nor renew, although its lease was not taken."""

    def _holds(self, job: JobRecord, owner: str, fence: int) -> bool:
        return super()._holds(job, owner, fence) and job.suspect_until is None


@mutant()
class ClaimKeepsFence(Model):
    """A claim does not raise the fence."""

    def _start(self, job: JobRecord, owner: Owner, now: int) -> Lease:
        return _again_under(self, super()._start(job, owner, now), job.fence)


@mutant()
class ReclaimKeepsFence(Model):
    """A reclaim does not raise the fence."""

    def _reclaim(self, job: JobRecord, owner: Owner, now: int, reason: StallReason | None = None) -> StalledLease:
        taken = super()._reclaim(job, owner, now, reason)
        return structs.replace(taken, lease=_again_under(self, taken.lease, job.fence))


@mutant("coarse clock")
class FenceIsTheTime(Model):
    """A fence is the time only, so that two fences of one instant are equal."""

    def _start(self, job: JobRecord, owner: Owner, now: int) -> Lease:
        return _again_under(self, super()._start(job, owner, now), now)


# ── settlements ───────────────────────────────────────────────────────────────────────────────────────────────────────


@mutant()
class SettleTwice(Model):
    """A settlement that is repeated after a lost answer is applied again."""

    def _settle(self, owner: Owner, settlement: Settlement, now: int) -> SettlementResult:
        verdict = super()._settle(owner, settlement, now)
        if verdict.verdict != "duplicate":
            return verdict
        self._apply(self._jobs[settlement.ref], settlement.decision, now)
        for event in settlement.events:
            self._record(event, now)
        return SettlementResult(settlement.ref, settlement.fence, "done")


@mutant()
class NoDuplicateRule(Model):
    """A settlement that is repeated after a lost answer is refused as lost."""

    def _settle(self, owner: Owner, settlement: Settlement, now: int) -> SettlementResult:
        verdict = super()._settle(owner, settlement, now)
        if verdict.verdict != "duplicate":
            return verdict
        self._record(refused(self._jobs[settlement.ref], owner.id, settlement.fence, "settle"), now)
        return SettlementResult(settlement.ref, settlement.fence, "lost")


@mutant()
class StallNotCharged(Model):
    """A stall is not charged."""

    def _apply(self, job: JobRecord, decision: Decision, now: int) -> None:
        if decision.charge == "stalls":
            decision = structs.replace(decision, charge=None)
        super()._apply(job, decision, now)


@mutant()
class StallChargedAsFailure(Model):
    """A stall is charged as a failed attempt."""

    def _apply(self, job: JobRecord, decision: Decision, now: int) -> None:
        if decision.charge == "stalls":
            decision = structs.replace(decision, charge="failures")
        super()._apply(job, decision, now)


@mutant()
class PutBackToTheEnd(Model):
    """A job that is put back at once loses its place in the queue."""

    def _apply(self, job: JobRecord, decision: Decision, now: int) -> None:
        super()._apply(job, decision, now)
        if isinstance(decision, PutBack) and not decision.after:
            back = self._jobs[job.ref]
            self._replace(back, structs.replace(back, score=now - job.boost))


@mutant()
class NoRest(Model):
    """A job put back for later is ready at once."""

    def _apply(self, job: JobRecord, decision: Decision, now: int) -> None:
        if isinstance(decision, PutBack):
            decision = structs.replace(decision, after=0)
        super()._apply(job, decision, now)


@mutant()
class CancelForgotten(Model):
    """A job that was asked to stop is put back as if it was not."""

    def _settle(self, owner: Owner, settlement: Settlement, now: int) -> SettlementResult:
        job = self._jobs.get(settlement.ref)
        if job is not None and job.cancel_at is not None and self._holds(job, owner.id, settlement.fence):
            self._jobs[settlement.ref] = structs.replace(job, cancel_at=None, cancel_reason=None, cancel_by=None)
        return super()._settle(owner, settlement, now)


@mutant()
class Unannounced(Model):
    """A settlement's events are not recorded with it."""

    def _settle(self, owner: Owner, settlement: Settlement, now: int) -> SettlementResult:
        return super()._settle(owner, structs.replace(settlement, events=()), now)


@mutant()
class RunLeftOpen(Model):
    """A settlement does not close the row of its run."""

    def _close_run(self, job: JobRecord, ended: RunEnd, now: int) -> None:
        """Leave the row open."""


# ── enqueue and claim ─────────────────────────────────────────────────────────────────────────────────────────────────


@mutant()
class EnqueuedTwice(Model):
    """A repeated enqueue creates the job again."""

    def _enqueue(self, new: NewJob, now: int, offset: int) -> EnqueueResult:
        if (job := self._jobs.get(new.ref)) is not None and job.state is not State.ACTIVE:
            self._drop(job)
        return super()._enqueue(new, now, offset)


@mutant()
class IndexForgotten(Model):
    """A job that changes its state stays in its old index."""

    def _replace(self, before: JobRecord, after: JobRecord) -> None:
        places = list(self._indexes._places(before))  # pyright: ignore[reportPrivateUsage]
        super()._replace(before, after)
        for index, at in places:
            index.add(at, before.ref)


@mutant()
class ClaimedBeforeItIsDue(Model):
    """A claim takes delayed jobs, too."""

    def _claim(self, owner: Owner, order: ClaimRequest, now: int) -> list[Lease]:
        for queue in order.queues:
            for _, ref in list(self._queues[queue].delayed):
                self._promote(self._jobs[ref], now)
        return super()._claim(owner, order, now)


@mutant("hush")
class PausedQueueGives(Model):
    """A paused queue still gives out jobs."""

    def _paused(self, queue: str) -> bool:
        return False


@mutant()
class MoreThanOrdered(Model):
    """A claim returns one job more than requested."""

    def _claim(self, owner: Owner, order: ClaimRequest, now: int) -> list[Lease]:
        return super()._claim(owner, structs.replace(order, room=order.room + 1), now)


@mutant()
class OutOfOrder(Model):
    """A claim skips the first job of the queue."""

    def _claim(self, owner: Owner, order: ClaimRequest, now: int) -> list[Lease]:
        lines = [self._queues[queue].ready for queue in order.queues if len(self._queues[queue].ready) > 1]
        first = [(line, *next(iter(line))) for line in lines]
        for line, at, ref in first:
            line.drop(at, ref)
        leases = super()._claim(owner, order, now)
        for line, at, ref in first:
            line.add(at, ref)
        return leases


@mutant("old and new code")
class UnknownInLine(Model):
    """A job that its worker does not know is put back as ready for all workers."""

    def _apply(self, job: JobRecord, decision: Decision, now: int) -> None:
        if isinstance(decision, PutBack):
            decision = structs.replace(decision, until_known=False)
        super()._apply(job, decision, now)


@mutant("old and new code")
class GivenToWorkersThatDoNotKnowIt(Model):
    """A claim ignores which tasks its caller knows."""

    def _claim(self, owner: Owner, order: ClaimRequest, now: int) -> list[Lease]:
        return super()._claim(owner, structs.replace(order, tasks=None), now)


@mutant("old and new code")
class UnknownNeverOffered(Model):
    """A job that is parked until a worker knows its task is never offered to any worker."""

    def _claim(self, owner: Owner, order: ClaimRequest, now: int) -> list[Lease]:
        return super()._claim(owner, structs.replace(order, tasks={}), now)


@mutant()
class StartNotCounted(Model):
    """A claim does not count the run it begins."""

    def _start(self, job: JobRecord, owner: Owner, now: int) -> Lease:
        lease = super()._start(job, owner, now)
        uncounted = structs.replace(lease.job, starts=job.starts)
        self._replace(lease.job, uncounted)
        return Lease(uncounted)


@mutant("rules")
class SlotsIgnored(Model):
    """A job starts although its key is at its limit."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._indexes.full = self._full  # type: ignore[method-assign]

    def _full(self, job: JobRecord, now: int, tasks: Mapping[str, int] | None = None) -> str | None:
        del now, tasks
        return PAUSED + job.task if self._task_paused(job.task) else None


@mutant("rules")
class SlotsCounted(Model):
    """A slot is a counter instead of a holder, and a stall or a failure does not decrease it."""

    def _apply(self, job: JobRecord, decision: Decision, now: int) -> None:
        super()._apply(job, decision, now)
        if decision.charge in ("stalls", "failures") and isinstance(decision, PutBack):
            for key in job.keys:
                self._indexes.keys[job.queue, key.name].holders[Ref(job.queue, f"{job.id} {now}")] = None


@mutant("rules")
class NobodyUnparked(Model):
    """A freed slot unparks no job, neither at once nor by a sweep."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._indexes.unpark = self._unpark_none  # type: ignore[method-assign]

    def _unpark_none(self, queue: str, name: str, now: int, *, room: int | None = None) -> int:
        return 0


@mutant("rules")
class LimitForgotten(Model):
    """A key keeps its first limit, even if later jobs set another one."""

    def _enqueue(self, new: NewJob, now: int, offset: int) -> EnqueueResult:
        slots = {key.name: self._indexes.keys.get((new.queue, key.name)) for key in new.keys}
        limits = {name: known.limit for name, known in slots.items() if known is not None}
        receipt = super()._enqueue(new, now, offset)
        for name, limit in limits.items():
            if (new.queue, name) in self._indexes.keys:
                self._indexes.keys[new.queue, name].limit = limit
        return receipt


@mutant("rules")
class PausedTaskGives(Model):
    """The jobs of a paused task are given out."""

    def _task_paused(self, task: str) -> bool:
        return False


# ── time to live, retention, rules ────────────────────────────────────────────────────────────────────────────────────


@mutant("rules")
class NeverExpires(Model):
    """A sweep does not look for jobs that have waited too long."""

    def _expire_aged(self, now: int) -> int:
        return 0


@mutant("coarse clock")
class AgedOnlyAfterItsTime(Model):
    """A job expires only after the end of its time, not at it (> for >=)."""

    def _expire_aged(self, now: int) -> int:
        return super()._expire_aged(now - 1)


@mutant("rules")
class ClaimOfTheAged(Model):
    """A claim does not check the age of a job."""

    def _claim(self, owner: Owner, order: ClaimRequest, now: int) -> list[Lease]:
        aged: dict[Ref, int] = {}
        for queue in order.queues:
            for _, ref in list(self._queues[queue].ready) if queue in self._queues else ():
                job = self._jobs[ref]
                if job.expires_at is not None and job.expires_at <= now:
                    aged[ref] = job.expires_at
                    self._replace(job, structs.replace(job, expires_at=None))
        leases = super()._claim(owner, order, now)
        for ref, end in aged.items():
            self._replace(self._jobs[ref], structs.replace(self._jobs[ref], expires_at=end))
        return [Lease(self._jobs[lease.ref]) for lease in leases]


@mutant("rules")
class ExpiredInSilence(Model):
    """Expiry records no event."""

    def _expire(self, job: JobRecord, now: int) -> None:
        recorded = len(self._event_log.events)
        super()._expire(job, now)
        del self._event_log.events[recorded:]


@mutant("rules")
class DiscardedAtOnce(Model):
    """Expired jobs are always discarded, even if they should be kept."""

    def _expire(self, job: JobRecord, now: int) -> None:
        super()._expire(structs.replace(job, policy=structs.replace(job.policy, on_expire="discard")), now)


@mutant("rules")
class ForgottenTooSoon(Model):
    """Finished jobs are deleted a minute too early."""

    def _trim(self, now: int) -> int:
        return super()._trim(now + 60_000_000)


@mutant("rules")
class KeptForEver(Model):
    """Finished jobs are never deleted."""

    def _trim(self, now: int) -> int:
        return 0


@mutant("rules")
class RuleForEver(Model):
    """A rule redrives a dead letter without end, because its redrives are not counted."""

    def _redrive(self, job: JobRecord, now: int, *, delay: int = 0, by: str | None, by_rule: bool = False) -> None:
        super()._redrive(job, now, delay=delay, by=by, by_rule=by_rule)
        redriven = self._jobs[job.ref]
        self._replace(redriven, structs.replace(redriven, redrives=0))


@mutant("rules")
class RuleTooSoon(Model):
    """A rule redrives a dead letter a second before its time."""

    def _redrive_due(self, now: int) -> int:
        return super()._redrive_due(now + 1_000_000)


@mutant("rules")
class RuleForgotten(Model):
    """A sweep does not look for dead letters that a rule puts back."""

    def _redrive_due(self, now: int) -> int:
        return 0


@mutant()
class QuarantineForgotten(Model):
    """A job that went down with its process is put back without quarantine."""

    def _apply(self, job: JobRecord, decision: Decision, now: int) -> None:
        marked = isinstance(decision, PutBack) and decision.quarantine
        super()._apply(job, structs.replace(decision, quarantine=False) if marked else decision, now)


@mutant()
class QuarantineForGood(Model):
    """A job in quarantine stays there after any end of its next run."""

    def _apply(self, job: JobRecord, decision: Decision, now: int) -> None:
        again = isinstance(decision, PutBack) and job.quarantined
        super()._apply(job, structs.replace(decision, quarantine=True) if again else decision, now)


@mutant("failing workers")
class PutBackForgotten(Model):
    """A free put-back is not remembered, so that every later one is free, too."""

    def _apply(self, job: JobRecord, decision: Decision, now: int) -> None:
        used = isinstance(decision, PutBack) and decision.put_back_used
        super()._apply(job, structs.replace(decision, put_back_used=False) if used else decision, now)


@mutant("failing workers")
class PutBackNeverRestored(Model):
    """A charge does not restore the free put-back, so that each later one is charged."""

    def _apply(self, job: JobRecord, decision: Decision, now: int) -> None:
        again = isinstance(decision, PutBack) and job.put_back_used
        super()._apply(job, structs.replace(decision, put_back_used=True) if again else decision, now)


# ── renewals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@mutant("calm")
class DeafToBeats(Model):
    """A renewal extends no lease."""

    def _extend(self, job: JobRecord, renewal: LeaseRenewal, now: int) -> None:
        """Leave the lease unchanged."""


@mutant("calm")
class BeatBeyondTheLimit(Model):
    """A renewal extends a lease past the run's limit and its progress limit."""

    def _extend(self, job: JobRecord, renewal: LeaseRenewal, now: int) -> None:
        super()._extend(job, renewal, now)
        renewed = self._jobs[job.ref]
        self._replace(renewed, structs.replace(renewed, lease_until=now + job.stall.lease, suspect_until=None))


@mutant("calm")
class BeatClearsSuspicion(Model):
    """A renewal ends the suspicion even of a run whose limit or progress limit has passed."""

    def _extend(self, job: JobRecord, renewal: LeaseRenewal, now: int) -> None:
        super()._extend(job, renewal, now)
        renewed = self._jobs[job.ref]
        self._replace(renewed, structs.replace(renewed, suspect_until=None))


@mutant()
class SuspectForGood(Model):
    """A renewal during the grace does not end the suspicion."""

    def _extend(self, job: JobRecord, renewal: LeaseRenewal, now: int) -> None:
        super()._extend(job, renewal, now)
        renewed = self._jobs[job.ref]
        self._replace(renewed, structs.replace(renewed, suspect_until=job.suspect_until))


# ── sweeps and reclaims ───────────────────────────────────────────────────────────────────────────────────────────────


@mutant("clock")
class NoPauseGuard(Model):
    """A sweep does not notice that no process has swept for long, so a stepped clock looks like silence."""

    def sweep(self, bid: SweepRequest) -> SweepResult:
        """Sweep as if it were the first time."""
        self._swept_at = None
        return super().sweep(bid)


@mutant()
class OnePhase(Model):
    """A sweep reclaims at once what it has just suspected."""

    def sweep(self, bid: SweepRequest) -> SweepResult:
        """Sweep, and take all suspects."""
        swept = super().sweep(bid)
        if swept.retry_in is not None:
            return swept
        now = self._clock.now()
        taken = [self._reclaim(self._jobs[ref], bid.owner, now) for _, ref in list(self._indexes.suspects)]
        return structs.replace(swept, stalled=(*swept.stalled, *taken))


@mutant()
class NoGrace(Model):
    """A suspect has no grace: the next sweep reclaims it."""

    def _suspect(self, now: int, grace: int) -> int:
        return super()._suspect(now, 0)


@mutant("calm")
class NobodySuspected(Model):
    """A sweep does not look for expired leases."""

    def _suspect(self, now: int, grace: int) -> int:
        return 0


@mutant("coarse clock")
class OutOnlyAfterItsEnd(Model):
    """A lease expires only after its end, not at it (> for >=)."""

    def _suspect(self, now: int, grace: int) -> int:
        at_its_end = [self._jobs[ref] for at, ref in self._indexes.leases if at == now]
        suspected = super()._suspect(now, grace)
        for job in at_its_end:
            self._replace(self._jobs[job.ref], job)
        return suspected


@mutant("coarse clock")
class OverOnlyAfterItsGrace(Model):
    """A grace is over only after its end, not at it (> for >=)."""

    def sweep(self, bid: SweepRequest) -> SweepResult:
        """Sweep, with a microsecond more for suspects whose grace ends now."""
        now = self._clock.now()
        for ref in [ref for at, ref in self._indexes.suspects if at == now]:
            self._replace(self._jobs[ref], structs.replace(self._jobs[ref], suspect_until=now + 1))
        return super().sweep(bid)


@mutant("coarse clock")
class DueOnlyAfterItsTime(Model):
    """A delayed job is due only after its instant, not at it (> for >=)."""

    def _promote_due(self, now: int) -> int:
        return super()._promote_due(now - 1)


@mutant("clock and death")
class LeaseOfTheFuture(Model):
    """A lease that ends too far ahead after the clock was set back is accepted."""

    def _suspect(self, now: int, grace: int) -> int:
        ahead = [self._jobs[ref] for at, ref in self._indexes.leases if at > now + self._jobs[ref].stall.lease]
        suspected = super()._suspect(now, grace)
        for job in ahead:
            self._replace(self._jobs[job.ref], job)
        return suspected


@mutant("clock and death")
class GraceOfTheFuture(Model):
    """A grace that ends too far ahead after the clock was set back is accepted."""

    def _suspect(self, now: int, grace: int) -> int:
        suspects = [self._jobs[ref] for _, ref in self._indexes.suspects]
        suspected = super()._suspect(now, grace)
        for job in suspects:
            self._replace(self._jobs[job.ref], job)
        return suspected


@mutant("death")
class TermForLife(Model):
    """The term of a dead leader never ends."""

    def _elect(self, owner: Owner, length: int, now: int) -> tuple[Term, int]:
        if self._term is not None and self._term[0].owner != owner.id:
            return self._term[0], length
        return super()._elect(owner, length, now)


@mutant("death under a supervisor")
class AnybodysDeath(Model):
    """A supervisor reclaims the jobs of live owners, too."""

    def reclaim(self, dead: str, owner: Owner) -> ReclaimResult:
        """Take every active job of any owner."""
        now = self._clock.now()
        held = [job for job in self._jobs.values() if job.state is State.ACTIVE]
        return ReclaimResult(tuple(self._reclaim(job, owner, now, "process_died") for job in held))


# ── operator commands ─────────────────────────────────────────────────────────────────────────────────────────────────


@mutant()
class CancelledWhileItRuns(Model):
    """A cancellation ends an active job at once, instead of asking its run to stop."""

    def _revise(self, revision: Revision, now: int) -> RevisionResult:
        job = self._jobs.get(revision.ref)
        if isinstance(revision, CancelJob) and job is not None and job.state is State.ACTIVE:
            self._replace(job, structs.replace(job, state=State.WAITING, owner=None))
        return super()._revise(revision, now)


@mutant("")
class DeletedWhileItRuns(Model):
    """An active job can be deleted."""

    def _revise(self, revision: Revision, now: int) -> RevisionResult:
        job = self._jobs.get(revision.ref)
        if isinstance(revision, DeleteJob) and job is not None and job.state is State.ACTIVE:
            self._replace(job, structs.replace(job, state=State.WAITING, owner=None))
        return super()._revise(revision, now)


@mutant("")
class LeftInTheIndex(Model):
    """A deleted job stays in its index."""

    def _drop(self, job: JobRecord) -> None:
        super()._drop(job)
        self._queues[job.queue].ready.add(job.score, job.ref)


@mutant("")
class RedriveKeepsBudgets(Model):
    """A redrive does not reset the counters of the job."""

    def _revise(self, revision: Revision, now: int) -> RevisionResult:
        before = self._jobs.get(revision.ref)
        revised = super()._revise(revision, now)
        if isinstance(revision, RedriveJob) and before is not None and revised.verdict == "done":
            job = self._jobs[revision.ref]
            self._replace(job, structs.replace(job, failures=before.failures, stalls=before.stalls))
        return revised


# ── reading events ────────────────────────────────────────────────────────────────────────────────────────────────────


@mutant("hearing")
class LentToAll(Model):
    """A batch of events is lent to all callers of a reader at the same time."""

    def events(
        self, cursor: str | None, limit: int, reader: EventReader | None = None, of: Ref | None = None
    ) -> EventPage:
        """Treat all callers as the same one."""
        return super().events(cursor, limit, reader and structs.replace(reader, caller="any"), of)


@mutant("hearing")
class ReaderForgotten(Model):
    """The position of a reader in the log is not stored."""

    def events(
        self, cursor: str | None, limit: int, reader: EventReader | None = None, of: Ref | None = None
    ) -> EventPage:
        """Forget all readers first."""
        self._event_log.readers.clear()
        return super().events(cursor, limit, reader, of)


# ── harmless ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@mutant("", harmless=True)
class AlwaysLeader(Model):
    """Every candidate leads. Elections only save work; jobs are safe without them."""

    def _elect(self, owner: Owner, length: int, now: int) -> tuple[Term, int]:
        self._term = None
        return super()._elect(owner, length, now)


@mutant("", harmless=True)
class AnybodyResigns(Model):
    """A resignation ends the term of any leader."""

    def resign(self, term: Term) -> None:
        """End the current term."""
        super().resign(self._term[0] if self._term is not None else term)


def _again_under(model: Model, lease: Lease, fence: int) -> Lease:
    """Return the same lease under another fence."""
    job = structs.replace(lease.job, fence=fence)
    model._replace(lease.job, job)  # pyright: ignore[reportPrivateUsage]
    runs = model._runs[job.ref]  # pyright: ignore[reportPrivateUsage]
    runs[-1] = structs.replace(runs[-1], fence=fence)
    return Lease(job)
