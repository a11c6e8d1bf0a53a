"""The commands that idle processes send to Redis, and the memory that a job needs there."""

import asyncio
import re
import socket
from collections import Counter
from collections.abc import Callable
from time import monotonic

import pytest

from tenure.core.job import NewJob
from tenure.core.lifecycle import State
from tenure.storage.redis.subscriptions import PING_EVERY
from tenure.storage.urls import locate
from tests.clusters import RedisCluster
from tests.servers import RedisServer, subscribed
from tests.system.worker_fleet import WorkerFleet

pytestmark = pytest.mark.system

SOURCES = 5
"""Claims, beats, sweeps, pings and server checks: a window may contain one more of each than on average."""


def overheard(port: int, seconds: float) -> Counter[str]:
    """Count the commands of clients to a server within this many seconds by name; those of scripts are left out."""
    seen = bytearray()
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(b"MONITOR\r\n")
        until = monotonic() + seconds
        while (left := until - monotonic()) > 0:
            line.settimeout(left)
            try:
                seen += line.recv(65_536)
            except TimeoutError:
                break
    sent = re.findall(rb'^\+[\d.]+ \[\d+ ([^\]]+)\] "([^"]+)"', bytes(seen), re.MULTILINE)
    return Counter(command.decode().lower() for who, command in sent if who != b"lua")


@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("queues", "each_second"), [(1, 1), (200, 20)])
async def test_an_idle_worker_makes_one_call_a_second_and_has_one_subscription(
    make_fleet: Callable[..., WorkerFleet], redis_server: RedisServer, queues: int, each_second: int
) -> None:
    # Worker, keeper and reaper in one process, with the built-in timing.
    here = make_fleet(url=redis_server.url, no_handlers="1", lease="20s", sweep="2s", grace="3s")
    served = ",".join(["default", *(f"q{number}" for number in range(1, queues))])
    worker = here.alone("-q", served)

    async def at_work() -> bool:
        return await here.pids() == [worker.pid]

    await here.until(at_work, within=30)
    await here.storage.close()
    seconds = 60.0
    asked = await asyncio.to_thread(overheard, redis_server.port, seconds)
    print(f"{queues} queues: {asked.total() / seconds:.2f} commands a second: {dict(asked)}")
    assert asked.total() <= each_second * seconds + SOURCES, asked
    # The number of waiting jobs and the handlers' work add nothing to that.
    assert asked.total() <= seconds + SOURCES, asked
    assert len(subscribed(redis_server)) == 1, subscribed(redis_server)


@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.cluster
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("queues", "each_second"), [(1, 3), (200, 20)])
async def test_an_idle_worker_sends_a_cluster_few_commands(
    make_fleet: Callable[..., WorkerFleet], redis_cluster: RedisCluster, queues: int, each_second: int
) -> None:
    # The worker serves the queues of sixteen partitions on three servers, or of one partition.
    names = ["default", *(f"q{number}" for number in range(1, queues))]
    here = make_fleet(url=redis_cluster.url, no_handlers="1", lease="20s", sweep="2s", grace="3s")
    worker = here.alone("-q", ",".join(names))
    # Queues that are in use, each with an ended job.
    await here.storage.enqueue(
        [NewJob(queue=name, id="job", task="fleet_app.quick", payload=b"[[1],{}]") for name in names]
    )

    async def over() -> bool:
        return await here.pids() == [worker.pid] and not await here.count(State.WAITING, State.DELAYED, State.ACTIVE)

    await here.until(over, within=60)
    await here.storage.close()
    await asyncio.sleep(15)  # until the partitions are skipped
    seconds = 60.0
    asked = await asyncio.gather(
        *(asyncio.to_thread(overheard, master.port, seconds) for master in redis_cluster.masters)
    )
    counts = sum(asked, Counter[str]())
    print(f"{queues} queues, three servers: {counts.total() / seconds:.2f} commands a second: {dict(counts)}")
    # Two event loops, the worker's and the keeper's, subscribe to each server. A PING detects a dead connection there.
    pings = counts.pop("ping")
    assert pings <= len(redis_cluster.masters) * 2 * seconds / PING_EVERY + SOURCES, pings
    assert counts.total() <= each_second * seconds + SOURCES, counts


async def test_a_waiting_job_of_200_bytes_takes_a_kibibyte_at_most(redis_server: RedisServer) -> None:
    def used() -> int:
        return int(redis_server.command("INFO", "memory")["used_memory"])

    storage = locate(redis_server.url)
    try:
        jobs = [
            NewJob(
                queue="default", id=f"01a1ffc7-b4e3-757c-8d4a-{number:012x}", task="fleet_app.quick", payload=bytes(200)
            )
            for number in range(10_100)
        ]
        await storage.enqueue(jobs[:100])  # with everything that exists once, and the scripts
        before = used()
        for start in range(100, len(jobs), 1_000):
            await storage.enqueue(jobs[start : start + 1_000])
        each = (used() - before) / 10_000
    finally:
        await storage.close()
    print(f"{each:.0f} bytes a job")
    assert each <= 1024
