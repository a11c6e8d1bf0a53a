"""The sweep schedule of a reaper on a Cluster: the partitions that it sweeps, those it skips, and when it returns."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from itertools import count

import pytest

from tenure.clock import SECOND
from tenure.core.job import Owner
from tenure.errors import StorageUnavailableError
from tenure.storage.protocol import RenewRequest, SweepRequest, SweepResult
from tenure.storage.redis.address import read
from tenure.storage.redis.routes import slot
from tenure.storage.redis.storage import RedisStorage
from tenure_testing.conformance.helpers import (
    ALICE,
    DEPUTY,
    QUEUE,
    REAPER,
    claim_one,
    enqueue,
    new_job,
    settle,
)
from tests.clusters import RedisCluster

pytestmark = pytest.mark.cluster

QUEUES = tuple(f"queue-{number}" for number in range(6))
TERM = 4 * SECOND


def bid(owner: Owner = REAPER, *, max_skip: int = 10 * SECOND) -> SweepRequest:
    return SweepRequest(owner, term=TERM, max_skip=max_skip)


@pytest.fixture
async def storage(cluster_url: str) -> AsyncIterator[RedisStorage]:
    storage = RedisStorage(read(cluster_url))
    yield storage
    await storage.close()


def scopes(storage: RedisStorage, *queues: str) -> set[str]:
    bases = storage.bases_of("any")
    return {f"partition {bases.index(base)}" for queue in queues for base in storage.bases_of(f"queue:{queue}")}


def led(swept: SweepResult) -> set[str]:
    return {term.scope for term in swept.terms}


async def until(holds: Callable[[], Awaitable[bool]], *, within: float = 5.0) -> None:
    async with asyncio.timeout(within):
        while not await holds():  # noqa: ASYNC110 - no event can be awaited across processes
            await asyncio.sleep(0.02)


async def test_partitions_without_work_are_led_and_skipped(storage: RedisStorage) -> None:
    first = await storage.sweep(bid())

    assert first.did
    assert len(first.terms) == len(storage.bases_of("any"))

    await until(lambda: has_nothing_to_do(storage))
    skipping = await storage.sweep(bid())

    assert (skipping.did, skipping.retry_in) == ({}, None)
    assert skipping.terms == first.terms


async def has_nothing_to_do(storage: RedisStorage) -> bool:
    return (await storage.sweep(bid())).did == {}


async def test_a_change_ends_the_skip_of_its_partition_only(storage: RedisStorage, cluster_url: str) -> None:
    await enqueue(storage, *(new_job(queue=queue) for queue in QUEUES))
    await until(lambda: has_nothing_to_do(storage))
    before = await storage.survey()
    another = RedisStorage(read(cluster_url))
    lease = await claim_one(another, queue=QUEUES[0])

    async def awake() -> bool:
        return not await has_nothing_to_do(storage)

    await until(awake)

    # A partition with a lease is swept in each turn.
    assert [(await storage.sweep(bid())).did["suspected"] for _ in range(3)] == [0, 0, 0]

    await settle(another, ALICE, lease)
    await another.close()
    await until(lambda: has_nothing_to_do(storage))

    assert {(term.scope, term.epoch) for term in (await storage.survey()).leaders} == {
        (term.scope, term.epoch) for term in before.leaders
    }


async def test_a_follower_asks_again_when_a_term_ends_or_after_a_change(storage: RedisStorage) -> None:
    await enqueue(storage, new_job())
    await until(lambda: has_nothing_to_do(storage))
    follower = await storage.sweep(bid(DEPUTY))

    assert (follower.terms, follower.did) == ((), {})
    assert follower.retry_in is not None

    await storage.sweep(bid(max_skip=0))  # ends the skip
    [term] = [term for term in (await storage.survey()).leaders if term.scope in scopes(storage, QUEUE)]
    await storage.resign(term)
    await enqueue(storage, new_job("changes"))

    async def leads() -> bool:
        return led(await storage.sweep(bid(DEPUTY))) >= scopes(storage, QUEUE)

    await until(leads, within=20)


async def test_a_partition_that_moves_to_another_server_is_still_swept(redis_cluster: RedisCluster) -> None:
    storage = RedisStorage(read(redis_cluster.url))
    await enqueue(storage, *(new_job(queue=queue) for queue in QUEUES))
    await until(lambda: has_nothing_to_do(storage))
    for heir in redis_cluster.masters[:2]:
        await asyncio.to_thread(redis_cluster.move, [slot(base) for base in storage.bases_of("any")], heir)
        for number, queue in enumerate(QUEUES):
            await claim_one(storage, queue=queue)
            await enqueue(storage, new_job(f"{heir.port} {number}", queue=queue))

        async def all_swept() -> bool:
            # A sweep that finds a lease cuts the term to its length without a skip.
            swept = await storage.sweep(bid())
            terms = [term for term in (await storage.survey()).leaders if term.scope in scopes(storage, *QUEUES)]
            return bool(swept.did) and all(term.length == TERM for term in terms)

        await until(all_swept, within=20)

        assert (await storage.sweep(bid())).troubles == ()
    await storage.close()


async def test_a_migrating_partition_does_not_keep_others_from_being_swept(redis_cluster: RedisCluster) -> None:
    storage = RedisStorage(read(redis_cluster.url))
    await storage.sweep(bid())
    bases = storage.bases_of("any")
    source, heir = redis_cluster.holder(slot(bases[0])), redis_cluster.masters[0]
    if heir is source:
        heir = redis_cluster.masters[1]
    neighbour = next(base for base in bases[1:] if redis_cluster.holder(slot(base)) is source)
    names = {node: node.command("CLUSTER", "MYID") for node in (source, heir)}
    heir.command("CLUSTER", "SETSLOT", slot(bases[0]), "IMPORTING", names[source])
    source.command("CLUSTER", "SETSLOT", slot(bases[0]), "MIGRATING", names[heir])
    queue = next(name for name in map("queue-{}".format, count()) if storage.bases_of(f"queue:{name}")[0] == neighbour)
    await enqueue(storage, new_job(queue=queue))

    async def is_led() -> bool:
        with suppress(StorageUnavailableError):
            return led(await storage.sweep(bid(max_skip=SECOND))) >= scopes(storage, queue)
        return False

    await until(is_led, within=20)
    await storage.close()


async def test_a_lost_server_does_not_keep_other_partitions_from_being_swept(redis_cluster: RedisCluster) -> None:
    for node in redis_cluster.nodes:
        node.command("CONFIG", "SET", "cluster-require-full-coverage", "no")
    storage = RedisStorage(read(redis_cluster.url))
    await enqueue(storage, *(new_job(queue=queue) for queue in QUEUES))
    await until(lambda: has_nothing_to_do(storage))
    lost = redis_cluster.holder(slot(storage.bases_of(f"queue:{QUEUES[0]}")[0]))
    left = [queue for queue in QUEUES if redis_cluster.holder(slot(storage.bases_of(f"queue:{queue}")[0])) is not lost]
    for queue in left:
        await claim_one(storage, queue=queue)  # these are swept each time
    lost.kill()

    async def troubled() -> bool:
        return bool((await storage.sweep(bid(DEPUTY, max_skip=SECOND))).troubles)

    await until(troubled, within=30)
    swept = await storage.sweep(bid())

    assert led(swept) >= scopes(storage, *left)
    assert swept.did

    await storage.renew(RenewRequest(REAPER, last=True))
    await storage.close()
