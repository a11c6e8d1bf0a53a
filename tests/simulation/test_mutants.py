"""Each guard is needed: without it the simulation finds a violation soon, and with it none in the same worlds."""

import pytest

from holdfast.storage.model import Model
from holdfast.testing.invariants import Violation
from holdfast.testing.mutants import MUTANTS
from holdfast.testing.plan import SCENARIOS
from holdfast.testing.world import World

WHERE = {
    "no_fence": ("noise", 20),
    "no_owner": ("noise", 20),
    "no_state_guard": ("noise", 20),
    "no_pause_guard": ("clock", 60),
    "settle_twice": ("noise", 20),
}
"""In which set piece a mutant must be caught, and within how many seeds."""


def caught(model: type[Model], scenario: str, seeds: int) -> int | None:
    """Return the first seed at which the model breaks an invariant."""
    for seed in range(seeds):
        try:
            World(seed, SCENARIOS[scenario], model=model).run()
        except Violation:
            return seed
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str) -> None:
    scenario, seeds = WHERE[name]

    seed = caught(MUTANTS[name], scenario, seeds)

    assert seed is not None, f"{name} passed {seeds} seeds of {scenario!r}"

    World(seed, SCENARIOS[scenario], name=scenario).run()
