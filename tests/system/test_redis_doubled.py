"""A network on which scripts arrive twice: no job stalls without having run, and none runs twice."""

import asyncio

import pytest

from holdfast import Holdfast, Job, JobStalled, Stall, TaskOptions
from holdfast.core.job import JobDetail
from holdfast.storage.redis.library import verb
from holdfast.testing.proxy import Proxy
from tests.servers import RedisServer

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

JOBS = 660
SHARE = 0.3


@pytest.mark.parametrize("which", ["first", "either"])
async def test_where_scripts_arrive_twice_no_job_stalls_that_has_not_run(redis_server: RedisServer, which: str) -> None:
    second = {verb("exchange").sha.encode()} if which == "either" else set[bytes]()
    with Proxy(redis_server.port, seed=15, doubled=SHARE, second=second) as proxy:
        app = Holdfast(f"redis://{proxy.address}/0", defaults=TaskOptions(stall=Stall(max_count=0)))
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
            # Within less than a lease: no job of a lost claim waits until its lease is over.
            async with asyncio.timeout(18):
                results = [await job.result() for job in jobs]
            details: list[JobDetail] = [await job.info() for job in jobs]
            for worker in workers:
                await worker.stop()

    assert results == list(range(JOBS))
    assert proxy.scripts_doubled > 50
    assert stalled == []
    assert {(detail.job.stalls, detail.job.failures) for detail in details} == {(0, 0)}
    # Each has run once; what was handed back had not begun.
    assert {detail.job.starts - detail.job.releases for detail in details} == {1}
    assert {run.reason for detail in details for run in detail.runs if run.ended == "released"} <= {"prefetch"}
