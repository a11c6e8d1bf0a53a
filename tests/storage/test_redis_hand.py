"""The operator's hand on Redis at sizes that one call does not do for: what is left is done soon all the same."""

from collections.abc import AsyncIterator

import pytest

from holdfast.core.job import Key
from holdfast.storage.protocol import PROMOTE_LIMIT, Bid, Order, Settings, Target
from holdfast.storage.redis.address import read
from holdfast.storage.redis.storage import RedisStorage
from holdfast.testing import ManualClock
from tests.storage.worlds import job, owner

pytestmark = pytest.mark.redis
WORKER = owner(name="w")


@pytest.fixture
async def storage(redis_url: str) -> AsyncIterator[RedisStorage]:
    storage = RedisStorage(read(redis_url), clock=ManualClock())
    yield storage
    await storage.close()


async def park_all(storage: RedisStorage) -> None:
    while (await storage.exchange(WORKER, (), Order(("q",), 10))).left:
        pass


async def parked(storage: RedisStorage) -> int:
    return (await storage.survey(["q"])).queues[0].parked


async def test_what_a_pause_has_kept_is_not_looked_for_among_thousands(storage: RedisStorage) -> None:
    full, kept = 3_000, 2 * PROMOTE_LIMIT + 50
    for first in range(0, full, 500):
        await storage.enqueue([job(f"full-{n}", keys=(Key(f"{n:05}", 0),)) for n in range(first, first + 500)])
    await park_all(storage)
    await storage.tune(Target("task", "kept"), Settings(paused=True))
    await storage.enqueue([job(f"kept-{n}", task="kept") for n in range(kept)])
    await park_all(storage)

    assert await parked(storage) == full + kept

    await storage.tune(Target("task", "kept"), Settings(paused=False))

    assert await parked(storage) == full + kept - PROMOTE_LIMIT

    claimed = (await storage.exchange(WORKER, (), Order(("q",), PROMOTE_LIMIT))).leases
    while (await storage.sweep(Bid(WORKER, None))).more:
        pass

    assert len(claimed) == PROMOTE_LIMIT

    assert await parked(storage) == full
