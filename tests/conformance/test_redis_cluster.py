"""The Redis storage passes the suite on a Cluster, its queues in several partitions on three shards."""

from collections.abc import AsyncIterator

import pytest

from tenure.core.events import JobRepaired
from tenure.storage.protocol import Storage
from tenure.storage.redis.address import read
from tenure.storage.redis.storage import RedisStorage
from tenure.testing import ManualClock
from tenure_testing.conformance import NoFlowsConformance, StorageConformance
from tenure_testing.conformance.helpers import events_of


@pytest.mark.cluster
class TestRedisCluster(StorageConformance, NoFlowsConformance):
    one_log = False
    one_order = False

    @pytest.fixture
    async def storage(self, clock: ManualClock, cluster_url: str) -> AsyncIterator[Storage]:
        storage = RedisStorage(read(f"{cluster_url}&partitions=3"), clock=clock)
        await storage.open()
        yield storage
        assert await events_of(storage, JobRepaired) == []
        await storage.close()
