"""A Cluster under work: its slots move and its masters change places, and the jobs of all queues complete."""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from tenure import Job, Tenure
from tenure.client.task import Bound
from tenure.core.events import JobStalled
from tenure.core.lifecycle import State
from tenure.errors import StorageUnavailableError
from tenure.storage.redis.address import read
from tenure.storage.redis.routes import slot
from tests.clusters import RedisCluster

pytestmark = [pytest.mark.system, pytest.mark.cluster]

QUEUES = [f"queue-{number}" for number in range(8)]
JOBS = 100


async def test_queues_lie_on_all_shards(redis_cluster: RedisCluster) -> None:
    bases = read(redis_cluster.url).bases

    assert {redis_cluster.holder(slot(base)) for base in bases} == set(redis_cluster.masters)


async def test_each_job_runs_once_while_slots_move_and_masters_change(
    start_cluster: Callable[..., RedisCluster],
) -> None:
    cluster = start_cluster(replicas=1)
    app = Tenure(cluster.url, name="moving")
    ran: Counter[str] = Counter()

    @app.task
    async def work(name: str) -> str:
        ran[name] += 1
        await asyncio.sleep(0.01)
        return name

    async def shake() -> None:
        slots = [slot(base) for base in read(cluster.url).bases]
        for place in (0, 1):
            heir = cluster.masters[place]
            await asyncio.to_thread(cluster.move, slots, heir)
        await asyncio.to_thread(cluster.fail_over, cluster.masters[0])

    names = [f"{queue}/{number}" for number in range(JOBS) for queue in QUEUES]
    async with app, app.worker(queues=QUEUES, concurrency=20):
        shaking = asyncio.create_task(shake())
        jobs = [await enqueued(work.options(queue=name.partition("/")[0], id=name), name) for name in names]
        results = [await job.result(timeout=60) for job in jobs]
        await shaking
        storage = await app.opened()
        survey = await storage.survey()
        page = await storage.events(limit=10_000)

    assert [job.id for job in jobs] == results == names
    assert sum(queue.counts.get(State.COMPLETED, 0) for queue in survey.queues) == len(names)
    stalled = Counter(event.id for event in page.events if isinstance(event, JobStalled))
    twice = {job.id: ran[name] - 1 for job, name in zip(jobs, names, strict=True) if ran[name] > 1}
    assert all(stalled[job] >= again for job, again in twice.items())


async def enqueued(call: Bound[[str], str], name: str) -> Job[str]:
    """Enqueue as a persistent client does: again with the same id, while a shard accepts no writes."""
    while True:
        try:
            return await call.enqueue(name)
        except StorageUnavailableError:
            await asyncio.sleep(0.1)
