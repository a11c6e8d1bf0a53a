"""Random calls to the model and to Redis, with one clock: every answer is the same."""

import pytest

from holdfast.storage.redis.address import read
from holdfast.storage.redis.storage import RedisStorage
from tests.storage.twins import STEPS, Twins, too_old_and_too_much

pytestmark = pytest.mark.redis


def twins_on(url: str, seed: int) -> Twins:
    return Twins(lambda clock: RedisStorage(read(url), clock=clock), seed, in_turn=True)


@pytest.mark.parametrize("seed", range(8))
async def test_every_answer_is_that_of_the_model(redis_url: str, seed: int) -> None:
    twins = twins_on(redis_url, seed)
    await twins.walk(STEPS)
    await twins.storage.close()


async def test_what_is_too_old_and_what_is_too_much_go_together(redis_url: str) -> None:
    twins = twins_on(redis_url, 0)
    await too_old_and_too_much(twins)
    await twins.storage.close()
