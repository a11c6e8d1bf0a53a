"""The Redis storage passes the suite on a Cluster, its queues in several partitions on three shards."""

from collections.abc import AsyncIterator

import pytest
from msgspec import structs

from tenure.core.events import JobRepaired
from tenure.core.job import Ref
from tenure.core.move import MoveMark
from tenure.core.waiting import Dependent, Links
from tenure.errors import StorageMovedError
from tenure.storage.protocol import Storage
from tenure.storage.redis.address import read
from tenure.storage.redis.storage import RedisStorage
from tenure.storage.revisions import Settings, Target
from tenure.testing import ManualClock
from tenure_testing.conformance import StorageConformance
from tenure_testing.conformance.flows import end_next
from tenure_testing.conformance.helpers import claim_one, events_of, new_job
from tenure_testing.conformance.waiting import END, carry_all, linked


@pytest.mark.cluster
class TestRedisCluster(StorageConformance):
    one_log = False
    one_order = False

    @pytest.fixture
    async def storage(self, clock: ManualClock, cluster_url: str) -> AsyncIterator[Storage]:
        storage = RedisStorage(read(f"{cluster_url}&partitions=3"), clock=clock)
        await storage.open()
        yield storage
        assert await events_of(storage, JobRepaired) == []
        await storage.close()

    @pytest.fixture(autouse=True)
    def _keep_clock(self, clock: ManualClock) -> None:
        self._time = clock

    async def test_dependents_in_another_queue_are_notified(self, storage: Storage) -> None:
        # The queue is in another partition, so the outbox carries the token.
        waiter = structs.replace(linked("b", after=["a"]), queue="other")
        links = Links(dependents=(Dependent(Ref("other", "b"), "a", END),))
        await storage.enqueue([waiter, structs.replace(new_job("a"), links=links)])
        await end_next(storage)
        await carry_all(storage, self._time)

        assert (await claim_one(storage, queue="other")).ref == Ref("other", "b")

    async def test_a_flow_is_stored_whole_or_not_at_all(self, storage: Storage) -> None:
        # A call to several partitions that fails is made again, and stores what is missing.
        await storage.tune(Target("queue", "gone"), Settings(moved=MoveMark("memory://elsewhere", "move")))
        source = structs.replace(linked("a", to=["b"]), queue="gone")
        with pytest.raises(StorageMovedError):
            await storage.enqueue([linked("b", after=["a"]), source])
        answers = await storage.enqueue([linked("b", after=["a"]), structs.replace(source, queue="here")])

        assert [answer.action for answer in answers] == ["duplicate", "created"]
