"""The Redis storage passes the suite."""

from collections.abc import AsyncIterator

import pytest

from tenure.core.events import JobRepaired
from tenure.storage.protocol import Storage
from tenure.storage.redis.address import read
from tenure.storage.redis.storage import RedisStorage
from tenure.testing import ManualClock
from tenure_testing.conformance import NoFlowsConformance, StorageConformance
from tenure_testing.conformance.helpers import events_of


@pytest.mark.redis
class TestRedis(StorageConformance, NoFlowsConformance):
    @pytest.fixture
    async def storage(self, clock: ManualClock, redis_url: str) -> AsyncIterator[Storage]:
        storage = RedisStorage(read(redis_url), clock=clock)
        await storage.open()
        yield storage
        # Indexes must agree with their records after every call.
        assert await events_of(storage, JobRepaired) == []
        await storage.close()
