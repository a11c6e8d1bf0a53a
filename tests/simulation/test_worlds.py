"""Worlds made from seeds: real workers, keepers and reapers in virtual time, with every kind of fault.

These are a few of them, and the fixed plans; `make simulate` runs any number, and CI 2,000. The first world of each
kind runs before each commit, the others, marked slow, in `make test`.
"""

from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import get_args

import pytest

from tenure.core.deduplication import EnqueueAction
from tenure_testing.simulation.plan import FEATURES, SCENARIOS, STEPS
from tenure_testing.simulation.recovery_checks import SimulatedRecovery
from tenure_testing.simulation.world import World

pytestmark = pytest.mark.thorough

SEEDS = 40
CHUNK = 10
OFTEN = 6

first_and_more = pytest.mark.parametrize(
    "seeds", [range(1), pytest.param(range(1, OFTEN), marks=pytest.mark.slow)], ids=["first", "more"]
)


def corpus() -> list[tuple[int, str]]:
    lines = [
        line.partition("#")[0].split(maxsplit=1)
        for line in Path(__file__).with_name("seeds.txt").read_text().splitlines()
    ]
    return [(int(line[0]), line[1].strip() if len(line) > 1 else "") for line in lines if line]


@pytest.mark.parametrize(("seed", "scenario"), corpus())
def test_a_world_that_once_failed_holds(seed: int, scenario: str) -> None:
    World(seed, SCENARIOS.get(scenario), name=scenario).run()


@pytest.mark.fault("F13")
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(CHUNK, SEEDS, CHUNK))]
)
def test_every_invariant_holds_under_random_faults(first: int) -> None:
    for seed in range(first, first + CHUNK):
        World(seed).run()


@first_and_more
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_invariant_holds_in_the_fixed_plans(scenario: str, seeds: range) -> None:
    for seed in seeds:
        World(seed, SCENARIOS[scenario], name=scenario).run()


@first_and_more
def test_no_live_job_is_run_again_because_the_storage_froze(seeds: range) -> None:
    for seed in seeds:
        world = World(seed, SCENARIOS["freeze"], name="freeze").run()

        assert world.environment.fault_log.counts()["freeze"] == 1
        assert not world.environment.accounts.stalls


@first_and_more
@pytest.mark.parametrize("seconds", STEPS)
def test_no_live_job_is_run_again_because_the_clock_was_stepped(seconds: float, seeds: range) -> None:
    for seed in seeds:
        world = World(seed, replace(SCENARIOS["one step"], steps=(seconds,))).run()

        assert not world.environment.accounts.stalls


@pytest.mark.slow
@pytest.mark.parametrize("seconds", STEPS)
def test_a_dead_workers_jobs_are_recovered_in_time_after_a_clock_step(seconds: float) -> None:
    # A step back by less than a lease looks like a younger lease; a longer one is noticed, and costs two beats.
    plan = replace(SCENARIOS["step and death"], steps=(seconds,))
    lease = plan.timing.lease.total_seconds()
    bound = plan.timing.recovery_bound.total_seconds() + (seconds if seconds < lease else lease / 2) + 1
    recovered: list[SimulatedRecovery] = []
    for seed in range(OFTEN):
        recovered += World(seed, plan).run().environment.accounts.recoveries

    assert recovered
    assert max(recovery_.seconds for recovery_ in recovered) <= bound


@pytest.mark.slow
def test_some_event_handler_gets_each_stall() -> None:
    hearing = (seed for seed in range(1_000) if World(seed).plan.hearing)
    heard = 0
    for seed in islice(hearing, 20):
        heard += len(World(seed).run().environment.heard)

    assert heard


@pytest.mark.slow
def test_the_merging_world_produces_every_kind_of_receipt() -> None:
    counts: Counter[str] = Counter()
    for seed in range(OFTEN):
        counts += World(seed, SCENARIOS["merging"], name="merging").run().environment.accounts.receipts

    # "pending" is the answer of a call in the user's transaction, and a world has no other database.
    assert set(counts) == {*get_args(EnqueueAction)} - {"pending"}


@pytest.mark.slow
def test_some_world_collects_several_calls_for_one_handler() -> None:
    def most_items(seed: int) -> int:
        entries = World(seed, SCENARIOS["merging"], name="merging").run().environment.journal.entries
        return max((len(entry.items) for entry in entries if entry.items is not None), default=0)

    # Every other world collects three items or more; the first of them ends the search.
    assert any(most_items(seed) > 2 for seed in range(4 * OFTEN))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["schedules", "all tick"])
def test_ticks_are_handled_though_many_come_at_the_same_time(scenario: str) -> None:
    ticks: Counter[str] = Counter()
    for seed in range(OFTEN):
        ticks += World(seed, SCENARIOS[scenario], name=scenario).run().environment.accounts.ticking.counts()

    assert {"fired", "skipped", "superseded"} <= set(ticks)


def test_every_feature_is_used_in_some_worlds() -> None:
    plans = [World(seed).plan for seed in range(100)]

    assert {feature for plan in plans for feature in plan.features} == set(FEATURES)
    assert any(plan.schedules and plan.exact for plan in plans)
    assert any(plan.schedules and not plan.exact for plan in plans)


def test_a_world_is_the_same_each_time() -> None:
    for seed in (3, 11, 147):
        first, second = World(seed).run().trace_text(), World(seed).run().trace_text()

        assert first == second
        assert len(first) > 1_000
