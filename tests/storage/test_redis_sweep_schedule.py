"""A reaper's rounds over the cells of a Cluster: whom it sweeps, whom it leaves alone, and what brings it back."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from itertools import count

import pytest

from tenure.clock import SECOND
from tenure.core.events import LeadershipLost
from tenure.core.job import Owner
from tenure.errors import StorageUnavailableError
from tenure.storage.protocol import DeleteJob, RenewRequest, SweepRequest, SweepResult
from tenure.storage.redis.address import read
from tenure.storage.redis.routes import slot
from tenure.storage.redis.storage import RedisStorage
from tenure.testing.conformance.material import (
    ALICE,
    DEPUTY,
    QUEUE,
    REAPER,
    claim_one,
    enqueue,
    new_job,
    settle,
    told_of,
)
from tests.clusters import RedisCluster

pytestmark = pytest.mark.cluster

QUEUES = tuple(f"queue-{number}" for number in range(6))
TERM = 4 * SECOND


def bid(owner: Owner = REAPER, *, rest: int = 10 * SECOND) -> SweepRequest:
    return SweepRequest(owner, term=TERM, rest=rest)


@pytest.fixture
async def storage(cluster_url: str) -> AsyncIterator[RedisStorage]:
    storage = RedisStorage(read(cluster_url))
    yield storage
    await storage.close()


def scopes(storage: RedisStorage, *queues: str) -> set[str]:
    bases = storage.bases_of("any")
    return {f"cell {bases.index(base)}" for queue in queues for base in storage.bases_of(f"queue:{queue}")}


def led(swept: SweepResult) -> set[str]:
    return {term.scope for term in swept.terms}


async def until(holds: Callable[[], Awaitable[bool]], *, within: float = 5.0) -> None:
    async with asyncio.timeout(within):
        while not await holds():  # noqa: ASYNC110 - across processes nobody else can tell
            await asyncio.sleep(0.02)


async def test_only_cells_in_use_are_swept_and_led(storage: RedisStorage) -> None:
    nothing = await storage.sweep(bid())

    assert (nothing.terms, nothing.did) == ((), {})

    await enqueue(storage, *(new_job(queue=queue) for queue in QUEUES))

    async def all_led() -> bool:
        return led(await storage.sweep(bid())) == scopes(storage, *QUEUES)

    await until(all_led)  # a hint brings it to where there was nothing
    await until(lambda: has_nothing_to_do(storage))

    resting = await storage.sweep(bid())

    assert led(resting) == scopes(storage, *QUEUES)
    assert resting.retry_in is None
    assert resting.again_in is not None
    assert resting.again_in <= 2 * SECOND


async def has_nothing_to_do(storage: RedisStorage) -> bool:
    return (await storage.sweep(bid())).did == {}


async def test_a_change_by_whomever_ends_the_rest_of_its_cell_alone(storage: RedisStorage, cluster_url: str) -> None:
    await enqueue(storage, *(new_job(queue=queue) for queue in QUEUES))
    await until(lambda: has_nothing_to_do(storage))
    before = await storage.survey()
    another = RedisStorage(read(cluster_url))
    lease = await claim_one(another, queue=QUEUES[0])

    async def awake() -> bool:
        return not await has_nothing_to_do(storage)

    await until(awake)

    # As long as there is a lease it is swept each time, and the others are not.
    assert [(await storage.sweep(bid())).did["suspected"] for _ in range(3)] == [0, 0, 0]

    await settle(another, ALICE, lease)
    await another.close()
    await until(lambda: has_nothing_to_do(storage))

    assert {(term.scope, term.epoch) for term in (await storage.survey()).leaders} == {
        (term.scope, term.epoch) for term in before.leaders
    }


async def test_who_does_not_lead_asks_again_when_the_term_is_over_or_something_stirs(storage: RedisStorage) -> None:
    await enqueue(storage, new_job())
    await until(lambda: has_nothing_to_do(storage))
    follower = await storage.sweep(bid(DEPUTY))

    assert (follower.terms, follower.did) == ((), {})
    assert follower.retry_in is not None

    await storage.sweep(bid(rest=0))  # as if it had not rested
    [term] = [term for term in (await storage.survey()).leaders if term.scope in scopes(storage, QUEUE)]
    await storage.resign(term)
    await enqueue(storage, new_job("stirs"))

    async def leads() -> bool:
        return led(await storage.sweep(bid(DEPUTY))) >= scopes(storage, QUEUE)

    await until(leads, within=20)


async def test_a_cell_that_is_empty_again_is_led_no_more(storage: RedisStorage) -> None:
    soon = SweepRequest(REAPER, term=SECOND, every=SECOND // 10, rest=SECOND // 2)
    [ref] = await enqueue(storage, new_job())

    async def is_led(held: bool = True) -> bool:
        return bool((await storage.sweep(soon)).terms) is held

    await until(is_led)
    await storage.revise([DeleteJob(ref)])
    await until(lambda: is_led(False))

    assert (await storage.survey()).leaders == ()
    assert [lost.reason for lost in await told_of(storage, LeadershipLost)] == ["resigned"]

    await enqueue(storage, new_job())
    await until(is_led)


async def test_a_cell_that_moves_to_another_server_is_still_swept(redis_cluster: RedisCluster) -> None:
    storage = RedisStorage(read(redis_cluster.url))
    await enqueue(storage, *(new_job(queue=queue) for queue in QUEUES))
    await until(lambda: has_nothing_to_do(storage))
    for heir in redis_cluster.masters[:2]:
        await asyncio.to_thread(redis_cluster.move, [slot(base) for base in storage.bases_of("any")], heir)
        for number, queue in enumerate(QUEUES):
            await claim_one(storage, queue=queue)
            await enqueue(storage, new_job(f"{heir.port} {number}", queue=queue))
        seen: set[str] = set()

        async def all_awake(seen: set[str] = seen) -> bool:
            swept = await storage.sweep(bid())
            seen |= led(swept) if swept.did else set()
            return seen == scopes(storage, *QUEUES)

        await until(all_awake, within=20)

        assert (await storage.sweep(bid())).troubles == ()
    await storage.close()


async def test_a_cell_on_its_way_keeps_no_other_of_its_server_from_being_swept(redis_cluster: RedisCluster) -> None:
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
            return led(await storage.sweep(bid(rest=SECOND))) == scopes(storage, queue)
        return False

    await until(is_led, within=20)
    await storage.close()


async def test_a_server_that_is_lost_keeps_no_other_cell_from_being_swept(redis_cluster: RedisCluster) -> None:
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
        return bool((await storage.sweep(bid(DEPUTY, rest=SECOND))).troubles)

    await until(troubled, within=30)
    swept = await storage.sweep(bid())

    assert led(swept) >= scopes(storage, *left)
    assert swept.did

    await storage.renew(RenewRequest(REAPER, last=True))
    await storage.close()
