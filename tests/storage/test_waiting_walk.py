"""Random walks over the memory model with jobs that wait, and mutants of the model that they must catch."""

from collections.abc import Callable, Sequence

import pytest
from msgspec import structs

from tenure.core.decision import Suspend
from tenure.core.job import JobRecord, Ref
from tenure.core.lifecycle import State
from tenure.core.transition import redriven
from tenure.core.waiting import Inbox, Links, NeedOutcome, Verdict, WaitToken, evaluate
from tenure.storage.memory.model import Model
from tenure.storage.protocol import RevisionResult
from tenure.storage.waiting import AdvanceEntry
from tests.storage.waiting_walk import Walk, WalkError

LENGTH = 150
SEEDS = 120
"""How many walks a mutant may take until it is caught."""


@pytest.mark.parametrize("seed", range(12))
def test_a_random_walk_keeps_the_invariants(seed: int) -> None:
    Walk(seed).run(LENGTH)


@pytest.mark.thorough
def test_many_random_walks_keep_the_invariants() -> None:
    for seed in range(100, 300):
        Walk(seed).run(LENGTH)


class LosesEntries(Model):
    """Writes no entry of the outbox."""

    def _write_entry(self, end: object, now: int) -> None:
        pass


class AdvancesAnyEntry(Model):
    """Advances the latest entry of a job, also if it is for a later end."""

    def _advance_entry(self, done: AdvanceEntry, now: int) -> RevisionResult:
        latest = max((one.number for one in self.outbox if one.ref == done.ref), default=done.number)
        return super()._advance_entry(structs.replace(done, number=latest), now)


class _LastInbox(Inbox):
    """Keeps the token that came last."""

    def deliver(self, token: WaitToken) -> bool:
        box = self.boxes.get(token.box)
        if box is not None:
            box.completed.pop(token.key, None)
            box.failed.pop(token.key, None)
        return super().deliver(token)


class LastTokenWins(Model):
    """Replaces the token under a key by a later one."""

    def _inbox(self, ref: Ref) -> Inbox:
        return self._inboxes.setdefault(ref, _LastInbox())


class _CountingInbox(Inbox):
    """Counts a token each time it arrives."""

    def deliver(self, token: WaitToken) -> bool:
        return super().deliver(structs.replace(token, key=f"{token.key}+{self.box(token.box).arrived}"))


class CountsDeliveries(Model):
    """Counts deliveries, and not keys."""

    def _inbox(self, ref: Ref) -> Inbox:
        return self._inboxes.setdefault(ref, _CountingInbox())


class SuspendsBlindly(Model):
    """Suspends a run without a look at what has arrived."""

    def _suspend(self, job: JobRecord, freed: JobRecord, decision: Suspend, now: int) -> None:
        links = structs.replace(job.links or Links(), wait=decision.wait, wake_at=None)
        self._replace(job, structs.replace(freed, state=State.SUSPENDED, expires_at=None, links=links))


class DeletesSilently(Model):
    """Notifies no dependent of a deleted job."""

    def _hand_over(self, job: JobRecord, *, completed: bool = False) -> None:
        if job.ref in self._jobs:
            super()._hand_over(job, completed=completed)


class ExpiresSilently(Model):
    """Notifies no dependent of an expired job."""

    def _hand_over(self, job: JobRecord, *, completed: bool = False) -> None:
        if job.state is not State.EXPIRED:
            super()._hand_over(job, completed=completed)


class StallsSilently(Model):
    """Notifies no dependent of a job that failed by its stalls."""

    def _hand_over(self, job: JobRecord, *, completed: bool = False) -> None:
        if job.reason != "stalled":
            super()._hand_over(job, completed=completed)


class NeverResumes(Model):
    """Leaves a dependent failed although the job that it needs has completed since."""

    def _resume(self, job: JobRecord, now: int) -> None:
        pass


class ResumesTooEarly(Model):
    """Resumes a dependent although another need is broken still."""

    def _resume(self, job: JobRecord, now: int) -> None:
        self._replace(job, redriven(job, now))


class WakesInAnyState(Model):
    """Judges a job that is not suspended any more."""

    def _arrived(self, job: JobRecord, now: int) -> None:
        if job.state in (State.ACTIVE, State.WAITING) and job.links is not None and job.links.wait is not None:
            self._judge(job, now)
        else:
            super()._arrived(job, now)


class MetUnsealed(Model):
    """Treats a box without a seal as complete."""

    def _verdict(self, job: JobRecord, now: int) -> Verdict:
        if job.links is None or job.links.wait is None:
            return super()._verdict(job, now)
        needs = tuple(structs.replace(need, count=need.count or 0) for need in job.links.wait.needs)
        return evaluate(structs.replace(job.links.wait, needs=needs), self._inbox(job.ref), now)


class ForgetsTimers(Model):
    """Records no outcome of a need that time has met."""

    def _wake(self, job: JobRecord, outcomes: Sequence[NeedOutcome], now: int) -> None:
        super()._wake(job, tuple(outcome for outcome in outcomes if outcome.by != "timer"), now)


class KeepsBudgets(Model):
    """Awakens a job with the failures and stalls of its last stretch."""

    def _wake(self, job: JobRecord, outcomes: Sequence[NeedOutcome], now: int) -> None:
        super()._wake(job, outcomes, now)
        woken = self._jobs[job.ref]
        self._replace(woken, structs.replace(woken, failures=job.failures, stalls=job.stalls + 1))


class DeliversTwice(Model):
    """Delivers everything twice, which is harmless."""

    def _hand_over(self, job: JobRecord, *, completed: bool = False) -> None:
        super()._hand_over(job, completed=completed)
        super()._hand_over(job, completed=completed)


MUTANTS = (
    *(LosesEntries, AdvancesAnyEntry, LastTokenWins, CountsDeliveries, SuspendsBlindly, DeletesSilently),
    *(ExpiresSilently, StallsSilently, NeverResumes, ResumesTooEarly, WakesInAnyState, MetUnsealed, ForgetsTimers),
    *(KeepsBudgets,),
)


def caught(walk: Callable[[int], Walk]) -> int | None:
    """Return the first seed whose walk fails; None if all walks hold."""
    for seed in range(SEEDS):
        try:
            walk(seed).run(LENGTH)
        except (WalkError, LookupError):
            return seed
    return None


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_caught(mutant: type[Model]) -> None:
    assert caught(lambda seed: Walk(seed, mutant)) is not None


@pytest.mark.thorough
def test_an_entry_that_is_advanced_before_its_delivery_is_noticed() -> None:
    assert caught(lambda seed: Walk(seed, careless=True)) is not None


@pytest.mark.thorough
def test_a_second_delivery_is_harmless() -> None:
    for seed in range(20):
        Walk(seed, DeliversTwice).run(LENGTH)
