"""The Redis storage passes the suite."""

from collections.abc import AsyncIterator

import pytest

from holdfast.core.events import JobRepaired
from holdfast.storage.protocol import Storage
from holdfast.storage.redis.address import read
from holdfast.storage.redis.storage import RedisStorage
from holdfast.testing import ManualClock
from holdfast.testing.conformance import StorageConformance
from holdfast.testing.conformance.material import told_of


@pytest.mark.redis
class TestRedis(StorageConformance):
    @pytest.fixture
    async def storage(self, clock: ManualClock, redis_url: str) -> AsyncIterator[Storage]:
        storage = RedisStorage(read(redis_url), clock=clock)
        await storage.open()
        yield storage
        # No index may ever contradict its records, whatever is asked in whatever order.
        assert await told_of(storage, JobRepaired) == []
        await storage.close()
