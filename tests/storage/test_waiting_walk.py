"""Random walks over the memory model with jobs that wait, and mutants of the model that they must catch."""

from collections.abc import Callable, Iterable, Sequence

import pytest

from tenure.core.job import JobRecord
from tenure.core.steps import NewStep
from tenure.core.waiting import NeedOutcome
from tenure.storage.memory.model import Model
from tenure.storage.requests import RenewRequest, RenewResult
from tenure_testing.mutants import MUTANTS, Mutant, flows
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


WAITING_MUTANTS = [one for one in MUTANTS.values() if one.model.__module__ == flows.__name__]


class RecordsAnyStep(Model):
    """Records a step of a run that is not the current one."""

    def renew(self, beat: RenewRequest) -> RenewResult:
        """Renew, after the steps were recorded."""
        for renewal in beat.renewals:
            if (job := self._jobs.get(renewal.ref)) is not None:
                self._add_steps(job, renewal.steps, self._clock.now())
        return super().renew(beat)


class LastStepWins(Model):
    """Replaces the record of a step by a later one."""

    def _add_steps(self, job: JobRecord, steps: Iterable[NewStep], now: int) -> None:
        for step in steps:
            self._steps.get(job.ref, {}).pop(step.name, None)
            super()._add_steps(job, [step], now)


class ForgetsSteps(Model):
    """Forgets the steps of a job that is awakened."""

    def _wake(self, job: JobRecord, outcomes: Sequence[NeedOutcome], now: int) -> None:
        self._steps.pop(job.ref, None)
        super()._wake(job, outcomes, now)


STEP_MUTANTS = (RecordsAnyStep, LastStepWins, ForgetsSteps)
"""Mutants that only the walks can catch, because no simulated handler records steps yet."""


def caught(walk: Callable[[int], Walk]) -> int | None:
    """Return the first seed whose walk fails; None if all walks hold."""
    for seed in range(SEEDS):
        try:
            walk(seed).run(LENGTH)
        except (WalkError, LookupError):
            return seed
    return None


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", [one for one in WAITING_MUTANTS if not one.harmless], ids=lambda one: one.name)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    assert caught(lambda seed: Walk(seed, mutant.model)) is not None


@pytest.mark.thorough
@pytest.mark.parametrize("model", STEP_MUTANTS)
def test_a_mutant_of_steps_is_caught(model: type[Model]) -> None:
    assert caught(lambda seed: Walk(seed, model)) is not None


@pytest.mark.thorough
def test_an_entry_that_is_advanced_before_its_delivery_is_noticed() -> None:
    assert caught(lambda seed: Walk(seed, careless=True)) is not None


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", [one for one in WAITING_MUTANTS if one.harmless], ids=lambda one: one.name)
def test_a_harmless_mutant_is_not_caught(mutant: Mutant) -> None:
    for seed in range(20):
        Walk(seed, mutant.model).run(LENGTH)
