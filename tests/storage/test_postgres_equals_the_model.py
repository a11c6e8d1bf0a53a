"""Random calls to the model and to PostgreSQL, with one clock: every answer is the same."""

import pytest

from tenure.storage.postgres.address import read
from tenure.storage.postgres.storage import PostgresStorage
from tests.storage.test_sqlite_equals_the_model import patch
from tests.storage.twins import LIMITS, STEPS, Twins, kept, too_old_and_too_much

pytestmark = [pytest.mark.postgres, pytest.mark.thorough]


def twins_on(url: str, seed: int) -> Twins:
    return Twins(lambda clock: PostgresStorage(read(url), clock=clock), seed)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed in (3, 6) else pytest.mark.slow) for seed in range(8)]
)
async def test_every_answer_is_that_of_the_model(empty_schema: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch, EVENTS_KEPT=kept(seed))
    if seed % 2:
        patch(monkeypatch, **LIMITS)
    twins = twins_on(empty_schema, seed)
    await twins.walk(STEPS // 4)
    await twins.storage.close()


async def test_jobs_over_the_age_and_over_the_count_are_trimmed_together(empty_schema: str) -> None:
    twins = twins_on(empty_schema, 0)
    await too_old_and_too_much(twins)
    await twins.storage.close()
