"""Many worlds at once: their figures, the seeds that fail and what is kept of them, and the generated page."""

import json
from pathlib import Path

import pytest

from tenure.testing import ManualClock
from tenure_testing import evidence
from tenure_testing.mutants import MUTANTS
from tenure_testing.mutants.trials import tried
from tenure_testing.simulate import keep, main
from tenure_testing.simulation.campaign import made, run_worlds, shrunk
from tenure_testing.simulation.figures import WorldFigures
from tenure_testing.simulation.violation import Violation

pytestmark = pytest.mark.thorough

NOISE = ("kill", "pause", "storm", "lost_request", "lost_answer", "late", "echo", "lost_notice")


@pytest.fixture(scope="module")
def failed() -> WorldFigures:
    """Return the figures of the first world that detects a missing guard."""
    for seed in range(20):
        world = made(seed, scenario="noise", model=MUTANTS["settle_twice"].model)
        try:
            world.run()
        except Violation as violation:
            return WorldFigures.of(world, violation)
    raise AssertionError("no world has detected it")


@pytest.mark.slow
def test_figures_are_the_same_on_one_process_and_on_two() -> None:
    one, two = (list(run_worlds(range(12), processes=processes)) for processes in (1, 2))

    assert one == two


def test_figures_add_up() -> None:
    parts = list(run_worlds(range(3), scenario="noise", processes=1))
    figures = WorldFigures()
    for part in parts:
        figures.add(part)
    data = figures.as_data()

    assert figures.seeds == 3
    assert sum(figures.jobs.values()) == sum(sum(part.jobs.values()) for part in parts) == 3 * 16
    assert figures.runs == sum(part.runs for part in parts)
    assert figures.again == figures.announced > 0
    assert (data["lost"], data["double_outcomes"], data["repaired"], data["failed_seeds"]) == (0, 0, 0, [])


def test_a_fault_that_is_left_out_does_not_occur() -> None:
    (figures,) = run_worlds([1], scenario="noise", without=NOISE, processes=1)

    assert not figures.faults


def test_a_failed_world_prints_how_to_replay_it(failed: WorldFigures) -> None:
    (failure,) = failed.failures

    assert failure.command == f"python -m tenure_testing.simulate --seed {failure.seed} --scenario 'noise'"
    assert failure.command in failure.story
    assert failed.outcomes["double outcomes"] == 1
    assert failed.violations == {"I2": 1}


def test_a_failed_world_is_shrunk_to_the_faults_it_needs(failed: WorldFigures) -> None:
    (failure,) = failed.failures
    smallest = shrunk(failure, model=MUTANTS["settle_twice"].model)

    assert 0 < len(smallest.plan.kinds) < len(NOISE)
    assert "--without" in smallest.command
    with pytest.raises(Violation, match=r"^I2"):
        smallest.run()


def test_a_failed_world_is_kept_once(failed: WorldFigures, tmp_path: Path) -> None:
    corpus = tmp_path / "seeds.txt"
    (failure,) = failed.failures
    for _ in range(2):
        keep(corpus, failure)
    (line,) = corpus.read_text().splitlines()

    assert line.split("#")[0].strip() == f"{failure.seed} noise"
    assert "# I2" in line


def test_the_evidence_is_generated_from_the_figures(failed: WorldFigures, tmp_path: Path) -> None:
    trials = [tried("settle_twice", seeds=20)]
    page, data = evidence.write(
        tmp_path / "deep" / "simulation", failed, trials, command="make it", at="abc", clock=ManualClock(), took=1.2
    )
    output = json.loads(data.read_text())

    assert "| commit | abc |" in page.read_text()
    assert "2026-01-01 00:00 UTC" in page.read_text()
    assert "1 of 1; 0 of 0 harmless ones left alone" in page.read_text()
    assert (output["seeds"], output["double_outcomes"], output["command"]) == (1, 1, "make it")
    assert output["mutants"][0]["seed"] == failed.failures[0].seed


def test_the_command_line_runs_many_worlds_and_replays_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3-4", "--scenario", "calm", "--processes", "1"]) == 0
    assert "2 (0 failed)" in capsys.readouterr().out
    assert main(["--seed", "3", "--scenario", "calm"]) == 0
    assert "at rest" in capsys.readouterr().out
