"""Steps of durable handlers on Redis: full memory, moves, redrives and deletes, and the replicas of a server."""

from collections.abc import AsyncIterator, Callable

import pytest

from tenure.core.lifecycle import State
from tenure.core.move import MoveBatch
from tenure.core.outcome import Rejected
from tenure.core.steps import NewStep
from tenure.core.waiting import SLEEP, Need
from tenure.errors import NotDurableError, StorageFullError
from tenure.storage.redis import connections
from tenure.storage.redis.address import read
from tenure.storage.redis.storage import RedisStorage
from tenure.storage.requests import LeaseRenewal, RenewRequest, RenewResult
from tenure.storage.revisions import DeleteJob, RedriveJob
from tenure.testing import ManualClock
from tenure_testing.conformance.helpers import ALICE, ERROR, QUEUE, claim_one, look, new_job, settle, start
from tenure_testing.conformance.steps import CHARGED, REFUSED, names_of, record_steps, signal_need, steps_of
from tenure_testing.conformance.waiting import DAY, ref_of, suspend
from tests.redis_consistency import PartitionContents, inconsistencies
from tests.servers import RedisServer, client_of, until

pytestmark = pytest.mark.redis

StartRedis = Callable[..., RedisServer]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def storage(redis_url: str, clock: ManualClock) -> AsyncIterator[RedisStorage]:
    storage = RedisStorage(read(redis_url), clock=clock)
    yield storage
    await storage.close()


async def test_a_full_memory_refuses_a_step_as_a_whole_and_no_beat(redis_server: RedisServer) -> None:
    storage = RedisStorage(read(redis_server.url))
    lease = await start(storage, new_job("a"))
    redis_server.command("CONFIG", "SET", "maxmemory", "1kb")
    with pytest.raises(StorageFullError):
        await record_steps(storage, lease, CHARGED, REFUSED)
    beat = await storage.renew(RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence),)))
    assert beat == RenewResult()
    assert await names_of(storage) == []

    redis_server.command("CONFIG", "SET", "maxmemory", "0")
    await record_steps(storage, lease, CHARGED, REFUSED)
    assert await names_of(storage) == ["charge", "ship"]
    await storage.close()


@pytest.mark.valkey
async def test_a_step_is_acknowledged_once_a_replica_has_it(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, replica = start_redis(), start_redis()
    replica.command("REPLICAOF", "127.0.0.1", server.port)
    until(lambda: replica.command("ROLE")[3] == b"connected", "the replica to have all")
    until(lambda: server.command("ROLE")[2], "the server to know of its replica")
    storage = RedisStorage(read(f"{server.url}?durability=replicated"))
    lease = await start(storage, new_job("a"))
    monkeypatch.setattr(connections, "WRITING", 0.3)
    replica.freeze()
    with pytest.raises(NotDurableError):
        await record_steps(storage, lease, CHARGED)
    replica.thaw()
    monkeypatch.undo()

    assert await record_steps(storage, lease, CHARGED) == RenewResult()
    assert await names_of(storage) == ["charge"]
    await storage.close()


async def test_a_move_carries_steps_with_all_of_their_fields(
    storage: RedisStorage, redis_urls: Callable[[], str], clock: ManualClock
) -> None:
    lease = await start(storage, new_job("a"))
    await record_steps(storage, lease, CHARGED, NewStep("pause", "sleep", "timer"), REFUSED)
    await settle(storage, ALICE, lease, Rejected(ERROR))
    target = RedisStorage(read(redis_urls()), clock=clock)
    detail = await look(storage, ref_of("a"))
    await target.receive(MoveBatch("m1", QUEUE, 0, (detail,)))
    assert await steps_of(target) == list(detail.steps)

    # The target knows of them: it forgets failures, and adds after the last one.
    await target.revise([RedriveJob(ref_of("a"))])
    await record_steps(target, await claim_one(target), NewStep("ship"))
    assert await names_of(target) == ["charge", "pause", "ship"]
    await target.close()


async def test_steps_after_a_redrive_come_after_those_that_it_kept(storage: RedisStorage, redis_url: str) -> None:
    # All at one instant, so that only the numbers tell the order.
    lease = await start(storage, new_job("a"))
    failed = [NewStep(f"x{number}", by="failed") for number in range(3)]
    await record_steps(storage, lease, *failed, NewStep("z"), NewStep("y"))
    for name in ("c", "b"):
        await settle(storage, ALICE, lease, Rejected(ERROR))
        await storage.revise([RedriveJob(lease.ref)])
        lease = await claim_one(storage)
        await record_steps(storage, lease, NewStep(name), NewStep("x", by="failed"), NewStep(f"{name}2"))

    assert await names_of(storage) == ["z", "y", "c", "c2", "b", "x", "b2"]
    assert len(_checked(redis_url).hash("steps", f"{QUEUE}\0a")) == 8


async def test_a_forgotten_time_leaves_the_other_needs_as_they_are(storage: RedisStorage, clock: ManualClock) -> None:
    until_when = clock.now() + DAY
    needs = (
        signal_need(step='approved@"a\\b"', until=until_when),
        Need(box=SLEEP, until=until_when + 1, step="pause"),
        signal_need(2, step="approved", until=until_when + 3),
    )
    await suspend(storage, await start(storage, new_job("a")), *needs)
    clock.advance(86_401)
    await settle(storage, ALICE, await claim_one(storage), Rejected(ERROR))
    await storage.revise([RedriveJob(ref_of("a"))])
    links = (await look(storage, ref_of("a"))).job.links

    assert await names_of(storage) == ["pause"]
    assert links is not None
    assert links.wait is not None
    assert [need.until for need in links.wait.needs] == [0, until_when + 1, 0]
    assert [need.step for need in links.wait.needs] == [need.step for need in needs]


async def test_a_deleted_job_leaves_no_steps_behind(storage: RedisStorage, redis_url: str) -> None:
    lease = await start(storage, new_job("a"))
    await record_steps(storage, lease, CHARGED, REFUSED)
    await settle(storage, ALICE, lease, Rejected(ERROR))
    assert (await look(storage, lease.ref)).job.state is State.FAILED
    assert _checked(redis_url).names("steps") == [f"{QUEUE}\0a"]
    await storage.revise([DeleteJob(lease.ref)])

    assert _checked(redis_url).names("steps") == []


def _checked(url: str) -> PartitionContents:
    """Return the contents of a namespace, which must not contradict each other."""
    base = "{" + url.rpartition("namespace=")[2] + "}"
    with client_of(url.partition("?")[0]) as client:
        assert inconsistencies(client, base) == []
        return PartitionContents(client, base)
