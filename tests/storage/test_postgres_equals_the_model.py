"""Random calls to the model and to PostgreSQL, with one clock: every answer is the same."""

import pytest

from tenure.storage.postgres.address import read
from tenure.storage.postgres.storage import PostgresStorage
from tests.storage.model_comparison import (
    LIMITS,
    STEPS,
    ModelComparison,
    check_trimming_by_age_and_count,
    event_retention,
)
from tests.storage.test_sqlite_equals_the_model import patch

pytestmark = [pytest.mark.postgres, pytest.mark.thorough]


def comparison_on(url: str, seed: int) -> ModelComparison:
    return ModelComparison(lambda clock: PostgresStorage(read(url), clock=clock), seed)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed in (3, 6) else pytest.mark.slow) for seed in range(8)]
)
async def test_every_answer_is_that_of_the_model(empty_schema: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch, EVENTS_KEPT=event_retention(seed))
    if seed % 2:
        patch(monkeypatch, **LIMITS)
    comparison = comparison_on(empty_schema, seed)
    await comparison.run(STEPS // 4)
    await comparison.storage.close()


async def test_jobs_over_the_age_and_over_the_count_are_trimmed_together(empty_schema: str) -> None:
    comparison = comparison_on(empty_schema, 0)
    await check_trimming_by_age_and_count(comparison)
    await comparison.storage.close()
