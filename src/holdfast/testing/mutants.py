"""Models with one guard taken out each: a simulation that lets one of them pass is worth nothing."""

from holdfast.clock import Clock
from holdfast.core.decision import Decision
from holdfast.core.job import JobRecord, Owner, Ref
from holdfast.core.lifecycle import State
from holdfast.core.settlement import Settlement
from holdfast.storage.model import Model
from holdfast.storage.protocol import Bid, Swept, Verdict


class NoFence(Model):
    """Whoever owns a job now may settle it, be it for a run long past."""

    def _holds(self, job: JobRecord, owner: str, fence: int) -> bool:
        return job.state is State.ACTIVE and job.owner == owner


class NoOwner(Model):
    """Whoever knows the fence may settle the job."""

    def _holds(self, job: JobRecord, owner: str, fence: int) -> bool:
        return job.state is State.ACTIVE and job.fence == fence


class NoStateGuard(Model):
    """Whoever held a job last under its fence may settle it, whatever its state has become."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._last: dict[Ref, str | None] = {}

    def _holds(self, job: JobRecord, owner: str, fence: int) -> bool:
        return job.fence == fence and (job.owner or self._last.get(job.ref)) == owner

    def _apply(self, job: JobRecord, decision: Decision, now: int) -> None:
        self._last[job.ref] = job.owner or self._last.get(job.ref)
        super()._apply(job, decision, now)


class NoPauseGuard(Model):
    """A sweep does not notice that nobody has swept for long, so a stepped clock looks like silence."""

    def sweep(self, bid: Bid) -> Swept:
        """Sweep as if it were the first time."""
        self._swept_at = None
        return super().sweep(bid)


class SettleTwice(Model):
    """A settlement that comes again, its answer being lost, is applied again."""

    def _settle(self, owner: Owner, asked: Settlement, now: int) -> Verdict:
        verdict = super()._settle(owner, asked, now)
        if verdict.verdict != "duplicate":
            return verdict
        self._apply(self._jobs[asked.ref], asked.decision, now)
        for event in asked.events:
            self._record(event, now)
        return Verdict(asked.ref, asked.fence, "done")


MUTANTS: dict[str, type[Model]] = {
    "no_fence": NoFence,
    "no_owner": NoOwner,
    "no_state_guard": NoStateGuard,
    "no_pause_guard": NoPauseGuard,
    "settle_twice": SettleTwice,
}
