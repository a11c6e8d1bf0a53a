"""The trial of a few mutants: caught, harmless, or broken; `make mutants` tries all."""

from collections.abc import Iterator

import pytest

from tenure.core.job import JobRecord
from tenure.storage.memory.model import Model
from tenure_testing.mutants import MUTANTS, mutant
from tenure_testing.mutants.trials import main, tried

pytestmark = pytest.mark.thorough


class Broken(Model):
    """A mutant whose own code fails."""

    def _holds(self, job: JobRecord, owner: str, fence: int) -> bool:
        raise LookupError(job.id)


class Same(Model):
    """A mutant that removes nothing."""


@pytest.fixture
def newcomers() -> Iterator[None]:
    known = dict(MUTANTS)
    mutant("calm")(Broken)
    mutant("calm")(Same)
    yield
    MUTANTS.clear()
    MUTANTS.update(known)


def test_there_are_twenty_mutants_with_different_descriptions() -> None:
    harmful = [item for item in MUTANTS.values() if not item.harmless]

    assert len(harmful) >= 20
    assert len({mutant.guard for mutant in harmful}) == len(harmful)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "invariant"),
    [
        ("claim_keeps_fence", "I4"),
        ("settle_twice", "I2"),
        ("paused_queue_gives", "I14"),
        ("cron_without_compare", "I12"),
        ("unique_freed_by_another", "I13"),
        ("collect_drops_the_last", "I13"),
        ("rate_taken_by_an_empty_poll", "I6"),
        ("fair_by_the_clock", "I14"),
    ],
)
def test_a_mutant_is_caught_in_a_world_that_holds_without_it(name: str, invariant: str) -> None:
    trial = tried(name, seeds=20)

    assert trial.passed
    assert trial.seed is not None
    assert trial.invariant == invariant


def test_a_harmless_mutant_is_not_caught() -> None:
    trial = tried("always_leader", seeds=3)

    assert trial.passed
    assert trial.seed is None


@pytest.mark.usefixtures("newcomers")
def test_an_undetected_mutant_fails_the_trial(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["same", "claim_keeps_fence", "--seeds", "2", "--processes", "1"]) == 1

    output = capsys.readouterr().out

    assert "1 of 2; 0 of 0 harmless ones left alone" in output
    assert "same: no world has found it out" in output


@pytest.mark.usefixtures("newcomers")
def test_a_mutant_whose_own_code_breaks_does_not_count_as_caught() -> None:
    trial = tried("broken", seeds=1)

    assert trial.crashed
    assert trial.invariant == "LookupError"
    assert not trial.passed
