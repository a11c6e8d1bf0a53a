"""Redis keeps nothing of deleted jobs: no key stays that no verb will ever read again."""

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
from tests.storage.model_comparison import QUEUES, STEPS, TASKS, ModelComparison

pytestmark = pytest.mark.redis

DAY = 86_400

OF_THE_CELL = {
    "schema": "the layout",
    "identity": "how a worker tells the partition from one that replaced it",
    "clock": "the latest time, to detect that the clock was set back",
    "counters": "the numbers of jobs",
    "leader": "the last leader, and the time of the last sweep",
    "sweep": "the position of the sweeps",
    "events": "the event log: an empty one still has its last number",
    "readers": "the position of each named reader",
    "settings": "the settings of queues and tasks",
    "discarded": "how many jobs of each queue expired without a record",
    "queues": "the queues that have jobs, settings, or a count of discarded jobs",
}
"""The keys that a partition has once, for any content, and the purpose of each."""

MOST = 24
"""The maximum size of each when all jobs are deleted: an entry for each kind of content, not for each job."""


@pytest.mark.parametrize("seed", range(2))
async def test_nothing_is_left_of_deleted_jobs(redis_url: str, seed: int) -> None:
    comparison = ModelComparison(lambda clock: RedisStorage(read(redis_url), clock=clock), seed, in_turn=True)
    await comparison.run(STEPS)
    # A Cluster that moves a slot redirects a script before it starts only if the one key that it names does not exist.
    assert "" not in dict(keys_of(redis_url))

    await end_everything(comparison)
    left = dict(keys_of(redis_url))
    await comparison.storage.close()

    assert set(left) <= set(OF_THE_CELL)
    assert left.pop("events") == 0
    assert left.pop("identity") == len("0123456789abcdef 1767225600000000")
    assert max(left.values()) <= MOST


async def test_a_queue_without_settings_is_forgotten_with_its_jobs(redis_url: str) -> None:
    comparison = ModelComparison(lambda clock: RedisStorage(read(redis_url), clock=clock), 0)
    for _ in range(20):
        jobs = [structs.replace(comparison.new_job(), policy=Policy(), schedule=None) for _ in range(5)]
        await comparison.storage.enqueue(jobs)
        await comparison.storage.exchange(comparison.owners[0], (), ClaimRequest(QUEUES, 3))
        comparison.clock.advance(3)
    await delete_all(comparison)
    left = dict(keys_of(redis_url))
    await comparison.storage.close()

    assert "queues" not in left
    assert set(left) <= set(OF_THE_CELL)


async def end_everything(comparison: ModelComparison) -> None:
    """Reset the settings, let the workers leave, and let every job end."""
    storage = comparison.storage
    for task in TASKS:
        await storage.tune(Target("task", task), Settings(paused=False, rate=RateKey(f"task:{task}", 0)))
    for queue in QUEUES:
        await storage.tune(Target("queue", queue), Settings(paused=False, rate=RateKey("queue", 0), record=()))
    await storage.plan([RemoveSchedule(schedule.name) for schedule in (await storage.survey()).schedules])
    for owner in comparison.owners[1:]:
        await storage.renew(RenewRequest(owner, last=True))
    await delete_all(comparison)


async def delete_all(comparison: ModelComparison) -> None:
    """Delete the unfinished jobs and some of the ended ones; retention deletes the others."""
    storage = comparison.storage
    while jobs := (await storage.find(Query(limit=1000))).jobs:
        unfinished = [job.ref for job in jobs if job.finished is None and job.state is not State.ACTIVE]
        ended = [job.ref for job in jobs if job.finished is not None]
        await storage.revise([DeleteJob(ref) for ref in unfinished + ended[::3]])
        comparison.clock.advance(DAY)
        await sweep_all(comparison)
    # The log is kept for a week.
    comparison.clock.advance(8 * DAY)
    await sweep_all(comparison)


async def sweep_all(comparison: ModelComparison) -> None:
    """Sweep until nothing is left to do, and settle the stalled runs."""
    storage, owner = comparison.storage, comparison.owners[0]
    while True:
        answer = await storage.sweep(SweepRequest(owner, None))
        leases = [settlement(stall.lease, Returned(b""), comparison.dice) for stall in answer.stalled]
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
