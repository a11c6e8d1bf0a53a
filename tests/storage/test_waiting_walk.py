"""Random walks over the memory model with jobs that wait, and mutants of the model that they must catch."""

from collections.abc import Callable

import pytest

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
def test_an_entry_that_is_advanced_before_its_delivery_is_noticed() -> None:
    assert caught(lambda seed: Walk(seed, careless=True)) is not None


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", [one for one in WAITING_MUTANTS if one.harmless], ids=lambda one: one.name)
def test_a_harmless_mutant_is_not_caught(mutant: Mutant) -> None:
    for seed in range(20):
        Walk(seed, mutant.model).run(LENGTH)
