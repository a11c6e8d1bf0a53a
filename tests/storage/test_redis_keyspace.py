"""Redis keeps nothing of deleted jobs: no key is left that no verb would ever read again."""

from collections.abc import Iterator

import pytest
import redis
from msgspec import structs

from tenure.core.job import Owner, Policy, RateKey
from tenure.core.lane import Lane
from tenure.core.lifecycle import State
from tenure.core.outcome import Returned
from tenure.core.settlement import settlement
from tenure.storage.protocol import (
    WORKER_KEPT,
    ClaimRequest,
    DeleteJob,
    Query,
    RemoveSchedule,
    RenewRequest,
    Settings,
    SweepRequest,
    Target,
)
from tenure.storage.redis.address import read
from tenure.storage.redis.storage import RedisStorage
from tests.servers import client_of, command
from tests.storage.twins import QUEUES, STEPS, TASKS, Twins

pytestmark = pytest.mark.redis

DAY = 86_400

OF_THE_CELL = {
    "schema": "the layout",
    "identity": "how a worker tells the partition from another that took its place",
    "clock": "how far the clock has come, so that it is known when it is set back",
    "counters": "the numbers of jobs",
    "leader": "who led last, and when it was swept",
    "sweep": "where the sweeps go on",
    "events": "the log: empty, it still knows its last number",
    "readers": "how far each named reader has come",
    "settings": "what people have said of queues and tasks",
    "discarded": "how many jobs of each queue ever expired without a record",
    "queues": "the queues of which there are jobs, settings, or a count of the discarded",
}
"""The keys that a partition has once, for any content, and the purpose of each."""

MOST = 24
"""How much each may hold when all jobs are deleted: an entry for each kind of thing, not for each job."""


@pytest.mark.parametrize("seed", range(2))
async def test_nothing_is_left_of_deleted_jobs(redis_url: str, seed: int) -> None:
    twins = Twins(lambda clock: RedisStorage(read(redis_url), clock=clock), seed, in_turn=True)
    await twins.walk(STEPS)
    # A Cluster that moves a slot redirects a script before it starts, as long as the one key that it names is nowhere.
    assert "" not in dict(keys_of(redis_url))

    await come_to_an_end(twins)
    left = dict(keys_of(redis_url))
    await twins.storage.close()

    assert set(left) <= set(OF_THE_CELL)
    assert left.pop("events") == 0
    assert left.pop("identity") == len("0123456789abcdef 1767225600000000")
    assert max(left.values()) <= MOST


async def test_a_queue_without_settings_is_forgotten_with_its_jobs(redis_url: str) -> None:
    twins = Twins(lambda clock: RedisStorage(read(redis_url), clock=clock), 0)
    for _ in range(20):
        jobs = [structs.replace(twins.new_job(), policy=Policy(), schedule=None) for _ in range(5)]
        await twins.storage.enqueue(jobs)
        await twins.storage.exchange(twins.owners[0], (), ClaimRequest(QUEUES, 3))
        twins.clock.advance(3)
    await forgotten(twins)
    left = dict(keys_of(redis_url))
    await twins.storage.close()

    assert "queues" not in left
    assert set(left) <= set(OF_THE_CELL)


async def come_to_an_end(twins: Twins) -> None:
    """Reset the settings, let the workers leave, and let every job end."""
    storage = twins.storage
    for task in TASKS:
        await storage.tune(Target("task", task), Settings(paused=False, rate=RateKey(f"task:{task}", 0)))
    for queue in QUEUES:
        await storage.tune(Target("queue", queue), Settings(paused=False, rate=RateKey("queue", 0), record=()))
    await storage.plan([RemoveSchedule(schedule.name) for schedule in (await storage.survey()).schedules])
    for owner in twins.owners[1:]:
        await storage.renew(RenewRequest(owner, last=True))
    await forgotten(twins)


async def forgotten(twins: Twins) -> None:
    """Let time delete what it deletes; delete the unfinished jobs, and some that have ended."""
    storage = twins.storage
    while jobs := (await storage.find(Query(limit=1000))).jobs:
        unfinished = [job.ref for job in jobs if job.finished is None and job.state is not State.ACTIVE]
        ended = [job.ref for job in jobs if job.finished is not None]
        await storage.revise([DeleteJob(ref) for ref in unfinished + ended[::3]])
        twins.clock.advance(DAY)
        await swept(twins)
    # The log is kept for a week.
    twins.clock.advance(8 * DAY)
    await swept(twins)


async def swept(twins: Twins) -> None:
    """Sweep until there is nothing left to be swept; settle what has stalled."""
    storage, owner = twins.storage, twins.owners[0]
    while True:
        answer = await storage.sweep(SweepRequest(owner, None))
        leases = [settlement(stall.lease, Returned(b""), twins.dice) for stall in answer.stalled]
        await storage.exchange(owner, leases, None)
        assert answer.troubles == ()
        if not answer.more and not leases:
            return


def keys_of(url: str) -> Iterator[tuple[str, int]]:
    """Yield the kind of each key that has no lifetime of its own, and how much it holds."""
    server, _, options = url.partition("?")
    namespace = options.rpartition("namespace=")[2]
    with client_of(server) as client:
        for key in found(client, f"{{{namespace}*"):
            kind = key.decode().partition("}:")[2].partition(":")[0]
            if command(client, "TTL", key) < 0:
                yield kind, size_of(client, key)


def found(client: redis.Redis, pattern: str) -> Iterator[bytes]:
    cursor: bytes | int = 0
    while True:
        cursor, keys = command(client, "SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
        yield from keys
        if int(cursor) == 0:
            return


def size_of(client: redis.Redis, key: bytes) -> int:
    sizes = {b"string": "STRLEN", b"hash": "HLEN", b"zset": "ZCARD", b"list": "LLEN", b"stream": "XLEN"}
    size: int = command(client, sizes[command(client, "TYPE", key)], key)
    return size


async def test_the_state_of_a_claim_lane_expires_by_itself(redis_url: str) -> None:
    storage = RedisStorage(read(redis_url))
    await storage.exchange(Owner("a"), (), ClaimRequest(QUEUES, 1, Lane(0, 1)))
    await storage.close()
    server, _, options = redis_url.partition("?")
    namespace = options.rpartition("namespace=")[2]
    with client_of(server) as client:
        [key] = found(client, f"{{{namespace}*:claims:*")
        lifetime = command(client, "PTTL", key)

    assert WORKER_KEPT / 2 < lifetime * 1000 <= WORKER_KEPT
