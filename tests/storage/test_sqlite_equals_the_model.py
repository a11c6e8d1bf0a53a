"""Random calls to the model and to SQLite, with one clock: every answer is the same."""

from pathlib import Path

import pytest

from tenure.storage.memory import enqueue, event_log, job_indexes, model, schedules
from tenure.storage.sql import (
    claim,
    concurrency_keys,
    exchange,
    rates,
    reading,
    sweep_steps,
    transaction,
    unknown_tasks,
)
from tenure.storage.sql import schedules as sqlite_timetable
from tenure.storage.sqlite.storage import SQLiteStorage
from tests.storage.model_comparison import (
    LIMITS,
    STEPS,
    ModelComparison,
    check_trimming_by_age_and_count,
    event_retention,
)

pytestmark = pytest.mark.thorough

MODULES = (
    enqueue,
    schedules,
    model,
    job_indexes,
    event_log,
    exchange,
    claim,
    rates,
    reading,
    concurrency_keys,
    sweep_steps,
    transaction,
    unknown_tasks,
    sqlite_timetable,
)
"""The modules that import constants of the protocol."""


def patch(monkeypatch: pytest.MonkeyPatch, **constants: object) -> None:
    """Set constants of the protocol in all modules of the model and of SQLite that import them."""
    for name, value in constants.items():
        for module in MODULES:
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)


def comparison_on(path: Path, seed: int) -> ModelComparison:
    return ModelComparison(lambda clock: SQLiteStorage(path, clock=clock), seed)


# `make quick` runs one seed of each kind; `make test` runs all.
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed in (3, 6) else pytest.mark.slow) for seed in range(8)]
)
async def test_every_answer_is_that_of_the_model(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch, EVENTS_KEPT=event_retention(seed))
    if seed % 2:
        patch(monkeypatch, **LIMITS)
    comparison = comparison_on(tmp_path / "jobs.db", seed)
    await comparison.run(STEPS)
    await comparison.storage.close()


async def test_jobs_over_the_age_and_over_the_count_are_trimmed_together(tmp_path: Path) -> None:
    comparison = comparison_on(tmp_path / "jobs.db", 0)
    await check_trimming_by_age_and_count(comparison)
    await comparison.storage.close()
