"""A network on which scripts arrive twice: no job stalls without having run, and none runs twice."""

import asyncio
import logging
import time
from collections import Counter
from random import Random

import pytest

from tenure import Job, JobStalled, Stall, TaskOptions, Tenure
from tenure.clock import SystemClock
from tenure.core.job import Owner
from tenure.core.lifecycle import State
from tenure.metrics import MetricsRegistry
from tenure.processes.process import ProcessExit
from tenure.storage.protocol import ClaimRequest, Query
from tenure.storage.redis.script_library import verb
from tenure.storage.urls import locate
from tenure.supervisor.recovery import CrashRecovery, DeadWorker
from tenure_testing.conformance.helpers import new_job
from tenure_testing.proxy import Proxy
from tests.servers import RedisServer

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

JOBS = 660
SHARE = 0.3


@pytest.mark.parametrize("which", ["first", "either"])
async def test_scripts_that_arrive_twice_stall_no_job_that_did_not_run(redis_server: RedisServer, which: str) -> None:
    second = {verb("exchange").sha.encode()} if which == "either" else set[bytes]()
    with Proxy(redis_server.port, seed=15, doubled=SHARE, second=second) as proxy:
        app = Tenure(f"redis://{proxy.address}/0", defaults=TaskOptions(stall=Stall(max_count=0)))
        stalled: list[JobStalled] = []

        @app.task
        async def task(number: int) -> int:
            await asyncio.sleep(0.005 * (number % 5))
            return number

        @app.on(JobStalled)
        async def note(event: JobStalled) -> None:
            stalled.append(event)

        async with app:
            workers = [app.worker(concurrency=4) for _ in range(3)]
            for worker in workers:
                await worker.start()
            jobs: list[Job[int]] = []
            for first in range(0, JOBS, 20):
                jobs += await app.enqueue_many(task.call(number) for number in range(first, first + 20))
                await asyncio.sleep(0.02)
            # Within less than a lease: no job of a lost claim waits until its lease expires.
            async with asyncio.timeout(18):
                results = [await job.result() for job in jobs]
            details = [await job.info() for job in jobs]
            for worker in workers:
                await worker.stop()

    assert results == list(range(JOBS))
    assert proxy.scripts_doubled > 50
    assert stalled == []
    assert {(detail.job.stalls, detail.job.failures) for detail in details} == {(0, 0)}
    # Each has run once; what was released had not begun.
    assert {detail.job.starts - detail.job.releases for detail in details} == {1}
    assert {run.reason for detail in details for run in detail.runs if run.ended == "released"} <= {"prefetch"}


async def test_jobs_of_a_doubled_reclaim_are_charged_to_the_death_at_once(
    redis_server: RedisServer,
) -> None:
    workers = [Owner(f"{number:016x}", f"host:{number}", "host", number) for number in range(1, 11)]
    supervisor = Owner("f" * 16, "supervisor host:99", "host", 99)
    direct = locate(f"redis://127.0.0.1:{redis_server.port}/0")
    await direct.enqueue([new_job(f"{number:03}") for number in range(3 * len(workers))])
    for worker in workers:
        assert len((await direct.exchange(worker, (), ClaimRequest((new_job("x").queue,), 3))).leases) == 3
    second = {verb("reclaim").sha.encode()}
    with Proxy(redis_server.port, seed=15, doubled=1.0, second=second) as proxy:
        storage = locate(f"redis://{proxy.address}/0")
        logger = logging.getLogger("recovery")
        recovery = CrashRecovery(
            supervisor, clock=SystemClock(), rng=Random(1), logger=logger, metrics=MetricsRegistry()
        )
        for worker in workers:
            dead = DeadWorker(worker.id, worker.pid, ProcessExit(-9), time.time_ns() // 1000)
            assert await recovery.recover(dead, storage, within=30.0) == 3
        await storage.close()
    jobs = (await direct.find(Query(limit=100))).jobs
    stalled = [event for event in (await direct.events(limit=1_000)).events if isinstance(event, JobStalled)]
    await direct.close()

    assert proxy.scripts_doubled > len(workers)
    assert [(job.state, job.stalls) for job in jobs] == [(State.WAITING, 1)] * (3 * len(workers))
    assert {event.reason for event in stalled} == {"process_died"}
    assert Counter(event.owner for event in stalled) == {worker.id: 3 for worker in workers}
