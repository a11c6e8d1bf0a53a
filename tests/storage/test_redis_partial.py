"""Answers in part: no lease is lost because something else in the same call came to nothing."""

from collections.abc import AsyncIterator, Callable
from random import Random

import pytest

from holdfast.core.lifecycle import State
from holdfast.core.outcome import Interrupted
from holdfast.core.settlement import settlement
from holdfast.errors import NotDurableError, StorageUnavailableError
from holdfast.storage.protocol import Order
from holdfast.storage.redis import connections
from holdfast.storage.redis.address import read
from holdfast.storage.redis.routes import slot
from holdfast.storage.redis.storage import RedisStorage
from holdfast.testing.conformance.material import ALICE, BOB, bid, new_job, record, settled
from holdfast.worker.strays import strays
from tests.clusters import RedisCluster


@pytest.fixture
async def replicated(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RedisStorage]:
    monkeypatch.setattr(connections, "CONFIRMING", 0.1)
    storage = RedisStorage(read(f"{redis_url}&durability=replicated"))
    yield storage
    await storage.close()


async def test_where_no_replica_confirms_a_claim_nothing_is_run_and_the_storage_can_be_asked_what_was_claimed(
    replicated: RedisStorage,
) -> None:
    with pytest.raises(NotDurableError):
        await replicated.enqueue([new_job("job")])
    # A failover might take back the claim, and another worker would run the job beside us.
    with pytest.raises(NotDurableError):
        await replicated.exchange(ALICE, order=Order(("default",), 1))
    probe = await replicated.exchange(ALICE, order=Order(("default",), 0))
    [stray] = await strays(replicated, ALICE.id, ("default",), lambda key: None)
    handed_back = settlement(stray, Interrupted("prefetch"), Random(7))
    answer = await replicated.exchange(ALICE, [handed_back], Order(("default",), 0))

    assert (probe.unanswered, stray.ref.id) == (False, "job")
    # Not acknowledged, so it is sent again; it is done all the same.
    assert answer.verdicts == ()
    job = await record(replicated, stray.ref)
    assert (job.state, job.stalls, job.releases) == (State.WAITING, 0, 1)


def two_queues(cluster: RedisCluster, storage: RedisStorage) -> tuple[str, str]:
    """Return queues of different masters."""
    names = [f"queue-{number}" for number in range(64)]
    holders = {name: cluster.holder(slot(storage.bases_of(f"queue:{name}")[0])) for name in names}
    first = names[0]
    return first, next(name for name in names if holders[name] is not holders[first])


async def test_a_shard_that_says_nothing_keeps_no_lease_of_another_from_its_holder(
    start_cluster: Callable[..., RedisCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    # By its own default a Cluster serves nothing while a part of it is away.
    redis_cluster = start_cluster(cluster_require_full_coverage=False)
    monkeypatch.setattr(connections, "ANSWERING", 1.0)
    storage = RedisStorage(read(redis_cluster.url))
    try:
        here, there = two_queues(redis_cluster, storage)
        await storage.enqueue([new_job("a", queue=here), new_job("b", queue=there), new_job("c", queue=here)])
        frozen = redis_cluster.holder(slot(storage.bases_of(f"queue:{there}")[0]))
        frozen.freeze()
        try:
            first = await storage.exchange(ALICE, order=Order((here, there), 2))
            second = await storage.exchange(BOB, [settled(first.leases[0])], Order((there, here), 2))
            with pytest.raises(StorageUnavailableError):
                await storage.exchange(ALICE, order=Order((there,), 1))
        finally:
            frozen.thaw()
        swept = await storage.sweep(bid())
        third = await storage.exchange(ALICE, order=Order((here, there), 0))
    finally:
        await storage.close()

    assert [lease.ref.id for lease in first.leases] == ["a", "c"]
    # It had room for none when that shard was asked; what it was asked for may have been done all the same.
    assert (first.unanswered, first.doubtful) == (True, True)
    # Asked no more, for the moment: nothing new can be in doubt there.
    assert (second.unanswered, second.doubtful) == (True, False)
    assert not swept.troubles
    assert (third.unanswered, third.doubtful) == (False, False)
