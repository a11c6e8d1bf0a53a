"""Skipped partitions of a Cluster: dead workers are noticed and due jobs start there in time."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from tenure import Tenure, Timing
from tenure.clock import SECOND
from tenure.core.events import JobStalled, JobSuspected, LeadershipAcquired, LeadershipLost, ScheduleFired
from tenure.core.job import Ref
from tenure.core.lifecycle import State
from tenure.storage.redis.address import read
from tenure.storage.redis.storage import RedisStorage
from tests.system.worker_fleet import WorkerFleet

pytestmark = [pytest.mark.system, pytest.mark.cluster]

TIMING = Timing(lease="4s", sweep="400ms", grace="600ms")
SETTINGS = {"lease": "4s", "sweep": "400ms", "grace": "600ms", "no_handlers": "1"}
SLACK = timedelta(milliseconds=500)
"""Added to each bound, because the test shares two cores with others."""


async def leader_of_skipped(here: WorkerFleet, queue: str) -> int | None:
    """Return the leader of a queue's partition if it is skipped: then its term is longer than usual."""
    storage = here.storage
    assert isinstance(storage, RedisStorage)
    [base] = storage.bases_of(f"queue:{queue}")
    scope = f"partition {read(here.url).bases.index(base)}"
    survey = await here.survey()
    pids = {worker.owner.id: worker.owner.pid for worker in survey.workers}
    longest = TIMING.leader_ttl.total_seconds() * SECOND
    return next((pids[term.owner] for term in survey.leaders if term.scope == scope and term.length > longest), None)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("leads", ["the killed one", "the other one"])
async def test_a_worker_killed_in_a_skipped_partition_is_detected_in_time(
    make_fleet: Callable[..., WorkerFleet], cluster_url: str, leads: str
) -> None:
    here = make_fleet(url=cluster_url, **SETTINGS)

    async with Tenure(cluster_url) as app:
        await app.queue("default").record(JobSuspected)
    queues = ["default", "elsewhere"] if leads == "the killed one" else ["elsewhere", "default"]
    first = here.alone("-q", queues[0])

    async def is_skipped() -> bool:
        return await leader_of_skipped(here, "default") == first.pid

    async def ran() -> bool:
        return await here.count(State.COMPLETED) == 1

    async def alone() -> bool:
        return await here.pids() == [first.pid]

    # The only worker leads all partitions.
    await here.until(alone, within=30)
    here.enqueue("quick", 1)
    await here.until(is_skipped, within=20)
    second = here.alone("-q", queues[1])
    victim, survivor = (first, second) if leads == "the killed one" else (second, first)

    async def both() -> bool:
        return len(await here.pids()) == 2

    await here.until(both, within=30)
    await here.until(ran, within=20)
    await here.until(is_skipped, within=20)
    [job] = here.enqueue("nap", 60)

    async def started() -> bool:
        return any(line.id == job.id for line in here.lines())

    await here.until(started, within=20)
    victim.kill()
    victim.wait()
    killed_at = here.storage_now()

    async def announced() -> bool:
        return any(isinstance(event, JobStalled) for event in await here.events())

    await here.until(announced, within=30)
    events = await here.events()
    suspected = [event for event in events if isinstance(event, JobSuspected)][-1]
    [stalled] = [event for event in events if isinstance(event, JobStalled)]
    assert suspected.at is not None
    assert stalled.at is not None
    noticed = timedelta(microseconds=round(suspected.at.timestamp() * SECOND) - killed_at)
    waited = stalled.at - suspected.at
    print(f"{leads} leads: suspected after {noticed.total_seconds():.2f} s, for {waited.total_seconds():.2f} s")

    assert {suspected.id, stalled.id} == {job.id}
    # A skip must not delay this.
    assert noticed <= TIMING.lease + TIMING.sweep + SLACK
    # The grace, or, if the machine delayed all sweeps for a while, two beats: a live holder would have been as late.
    grace = TIMING.grace if waited < TIMING.lease / 2 else TIMING.lease / 2
    assert grace <= waited <= grace + TIMING.sweep + SLACK
    assert survivor.poll() is None

    here.worker("-q", "default")

    async def again() -> bool:
        return any(line.id == job.id and line.run == 2 for line in here.lines())

    await here.until(again, within=20)


@pytest.mark.timeout(120)
async def test_due_jobs_of_a_skipped_partition_start_in_time_under_one_leader(
    make_fleet: Callable[..., WorkerFleet], cluster_url: str
) -> None:
    here = make_fleet(url=cluster_url, **SETTINGS)
    workers = [here.worker("-q", "default"), here.worker("-q", "default")]
    app = Tenure(cluster_url, timing=TIMING)

    @app.task(name="fleet_app.quick")
    async def quick(number: int) -> int:
        return number

    async def both() -> bool:
        return len(await here.pids()) == len(workers)

    async def is_skipped() -> bool:
        return await leader_of_skipped(here, "default") is not None

    runs = 0

    async def ran() -> bool:
        return await here.count(State.COMPLETED) >= runs

    async def fired() -> bool:
        return sum(isinstance(event, ScheduleFired) for event in await here.events()) >= 3

    await here.until(both, within=30)
    async with app:
        late: list[float] = []
        for number in range(5):
            job = await quick.options(delay=0.3 * number).enqueue(number)
            runs += 1
            await here.until(ran, within=20)
            [detail] = await here.details([Ref("default", job.id)])
            late.append((detail.runs[0].start - detail.job.run_at) / SECOND)
            await here.until(is_skipped, within=20)
        await app.schedules.put("tick", quick.call(0), every="3s")
        await here.until(fired, within=30)
    events = await here.events()
    ticks = [event.late_by for event in events if isinstance(event, ScheduleFired)]
    print("late by:", *(f"{item:.3f}" for item in late), "ticks:", *(f"{tick:.3f}" for tick in ticks))

    assert max(*late, *ticks) <= (TIMING.sweep + SLACK).total_seconds()
    terms = [event for event in events if isinstance(event, LeadershipAcquired | LeadershipLost)]
    assert all(isinstance(event, LeadershipAcquired) for event in terms)
    assert len(terms) == len({event.scope for event in terms})
