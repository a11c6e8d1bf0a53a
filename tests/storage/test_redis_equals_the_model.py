"""Random calls to the model and to Redis, with one clock: every answer is the same."""

import hashlib

import pytest

from tenure.storage.memory import model, schedules
from tenure.storage.protocol import CHORE_LIMITS
from tenure.storage.redis import partition
from tenure.storage.redis.address import read
from tenure.storage.redis.script_constants import definition
from tenure.storage.redis.script_library import Script, verb
from tenure.storage.redis.storage import RedisStorage
from tests.storage.model_comparison import LIMITS, STEPS, ModelComparison, check_trimming_by_age_and_count

pytestmark = pytest.mark.redis

LOW = {name: LIMITS[name] for name in ("EXPIRE_LIMIT", "SCAN_LIMIT", "DUE_LIMIT")}
"""Limits that are reached in the model's order. The scripts divide the others differently, so that none takes long."""

LAST_LIMIT = definition("LOOK_LIMIT, DUE_LIMIT, RUNS_KEPT, LOG_LINES_KEPT, CALLS_KEPT, UNKNOWN_LOOKS, PLACE_LIMIT")
"""The line that defines the last of the scripts' limits."""

A_SWEEP_AFTER_THE_CLOCK_WAS_SET_BACK = 201
"""A seed with which jobs were once released before a rate allowed them to start."""

A_CLAIM_THAT_RAN_OUT_OF_TIME = 408
"""A seed with which a claim once skipped a queue with due jobs."""


SEEDS = range(9)


def comparison_on(url: str, seed: int) -> ModelComparison:
    return ModelComparison(lambda clock: RedisStorage(read(url), clock=clock), seed, in_turn=True)


def lower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits, in the model as in the scripts and their callers."""

    def low(name: str) -> Script:
        before, last, after = verb(name).text.partition(LAST_LIMIT)
        assert last
        lines = "".join(f"\n{limit} = {value}" for limit, value in LOW.items())
        text = f"{before}{last}{lines}{after}"
        return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    monkeypatch.setattr(partition, "verb", low)
    monkeypatch.setitem(CHORE_LIMITS, "expired", LOW["EXPIRE_LIMIT"])
    for name, value in LOW.items():
        for module in (model, schedules, partition):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)


@pytest.mark.parametrize("seed", [*SEEDS, A_SWEEP_AFTER_THE_CLOCK_WAS_SET_BACK, A_CLAIM_THAT_RAN_OUT_OF_TIME])
async def test_every_answer_is_that_of_the_model(redis_url: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed in SEEDS and seed % 2:
        lower(monkeypatch)
    comparison = comparison_on(redis_url, seed)
    await comparison.run(STEPS)
    await comparison.storage.close()


async def test_jobs_over_the_age_and_over_the_count_are_trimmed_together(redis_url: str) -> None:
    comparison = comparison_on(redis_url, 0)
    await check_trimming_by_age_and_count(comparison)
    await comparison.storage.close()
