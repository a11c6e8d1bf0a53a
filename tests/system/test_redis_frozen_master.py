"""One master of a Cluster is frozen: workers keep their jobs on the other masters, and continue with them."""

import asyncio
import time
from collections.abc import Callable

import pytest

from tenure import Tenure, Timing, current_job
from tenure.client.schedules import AT_ONCE
from tenure.core.events import JobCompleted, JobReleased, JobRetried, JobStalled, RunFenced, WorkerStarted
from tenure.core.job import Owner
from tenure.storage.redis.address import read
from tenure.storage.redis.routes import slot
from tenure.storage.redis.storage import RedisStorage
from tests.clusters import RedisCluster
from tests.servers import RedisServer

pytestmark = [pytest.mark.system, pytest.mark.cluster]


@pytest.fixture
def cluster(start_cluster: Callable[..., RedisCluster]) -> RedisCluster:
    """Return a Cluster that continues while a part of it is unavailable, because its nodes time out late."""
    return start_cluster(cluster_require_full_coverage=False)


class Places:
    """Queues and owners by the master that keeps them."""

    def __init__(self, cluster: RedisCluster) -> None:
        self._cluster = cluster
        self._storage = RedisStorage(read(cluster.url))

    def master(self, topic: str) -> RedisServer:
        """Return the master that keeps what is named by this topic."""
        return self._cluster.holder(slot(self._storage.bases_of(topic)[0]))

    def queue(self, *, on: RedisServer) -> str:
        """Return a queue that a master keeps."""
        return next(f"queue-{n}" for n in range(1_000) if self.master(f"queue:queue-{n}") is on)

    def owner(self, *, on: RedisServer) -> Owner:
        """Return an owner whose record a master keeps."""
        ids = (f"{n:016x}" for n in range(1_000))
        # The data of a name lie where a queue of that name would lie.
        found = next(job_id for job_id in ids if self.master(f"queue:{job_id}") is on)
        return Owner(found, "worker", "host", 1)


LONG = 12.0
"""Seconds that a run takes: one and a half leases."""


@pytest.mark.parametrize("home", ["frozen", "healthy"])
async def test_a_run_on_a_healthy_master_keeps_its_lease(cluster: RedisCluster, home: str) -> None:
    places = Places(cluster)
    healthy, frozen = cluster.masters[:2]
    here, there = places.queue(on=healthy), places.queue(on=frozen)
    app = Tenure(cluster.url, name="frozen", timing=Timing.fast())
    begun, released = asyncio.Event(), asyncio.Event()
    ran: list[str] = []

    @app.task(queue=here, singleton=True)
    async def alone(seconds: float) -> str:
        ran.append("alone")
        for _ in range(3):
            current_job().log.info("going on")
            await asyncio.sleep(seconds / 3)
        return "done"

    @app.task(queue=there)
    async def waits() -> None:
        ran.append("waits")
        current_job().log.info("begun")
        begun.set()
        await released.wait()

    owner = places.owner(on=frozen if home == "frozen" else healthy)
    async with app:
        async with app.worker(queues=[here, there], owner_id=owner.id, drain="5s"):
            held = await waits.enqueue()
            await begun.wait()
            frozen.freeze()
            try:
                job = await alone.enqueue(LONG)
                assert await job.result(timeout=60) == "done"
                detail = await job.info()
            finally:
                frozen.thaw()
                released.set()
            await held.result(timeout=30)
            thawed = await held.info()
        # The worker has stopped, so it has reported its start, with the first beat that the thawed master answered.
        events = (await (await app.opened()).events(limit=10_000)).events

    assert ran == ["waits", "alone"]
    assert [line.message for line in detail.log] == ["going on"] * 3
    # The frozen master has received every request that was given up; it carries all of them out when it continues.
    assert [line.message for line in thawed.log] == ["begun"]
    assert len([event for event in events if isinstance(event, WorkerStarted)]) == 1
    troubles = (JobReleased, JobRetried, JobStalled, RunFenced)
    assert [event for event in events if isinstance(event, troubles) and event.id == job.id] == []


async def test_a_worker_with_schedules_and_handlers_works_with_a_frozen_master(
    cluster: RedisCluster,
) -> None:
    places = Places(cluster)
    # That of the first partition: it gets more requests than the others.
    frozen = cluster.holder(slot(read(cluster.url).bases[0]))
    healthy = next(master for master in cluster.masters if master is not frozen)
    here, there = places.queue(on=healthy), places.queue(on=frozen)
    thawed = asyncio.Event()

    app = Tenure(cluster.url, name="outage", timing=Timing.fast())

    @app.cron("* * * * * *", queue=here, name="here")
    async def healthy_tick() -> None:
        pass

    @app.cron("* * * * * *", queue=there, name="there")
    async def frozen_tick() -> None:
        thawed.set()

    once, every = asyncio.Event(), asyncio.Event()

    @app.on(JobCompleted)
    def heard_once(event: JobCompleted) -> None:
        if event.queue == here:
            once.set()

    @app.on(JobCompleted, scope="every")
    def heard_every(event: JobCompleted) -> None:
        if event.queue == here:
            every.set()

    frozen.freeze()
    try:
        plain = Tenure(cluster.url, name="plain", timing=Timing.fast())
        asked_at = time.monotonic()
        async with plain, plain.worker(queues=[here]):
            took_plain = time.monotonic() - asked_at
        asked_at = time.monotonic()
        async with app:
            worker = app.worker(queues=[here, there], drain="1s")
            await worker.start()
            took = time.monotonic() - asked_at
            try:
                async with asyncio.timeout(30):
                    await once.wait()
                    await every.wait()
                assert not thawed.is_set()
                frozen.thaw()
                async with asyncio.timeout(30):
                    await thawed.wait()
            finally:
                await worker.stop()
    finally:
        frozen.thaw()

    print(f"started in {took:.1f} s, a plain worker in {took_plain:.1f} s")
    assert took < took_plain + AT_ONCE + 4
