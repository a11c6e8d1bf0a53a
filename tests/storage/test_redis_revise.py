"""Administrative calls on Redis that are too large for one script: the rest is done soon anyway."""

from collections.abc import AsyncIterator

import pytest

from tenure.core.job import Key, RateKey
from tenure.core.schedule import Schedule
from tenure.storage.protocol import (
    CLAIM_LIMIT,
    PROMOTE_LIMIT,
    CancelJob,
    ClaimRequest,
    DeleteJob,
    PauseSchedule,
    PutSchedule,
    RedriveJob,
    RemoveSchedule,
    ScheduleResult,
    Settings,
    SweepRequest,
    Target,
    Tick,
)
from tenure.storage.redis.address import read
from tenure.storage.redis.partition import CHANGES_PER_CALL, REVISIONS_PER_CALL
from tenure.storage.redis.storage import RedisStorage
from tenure.testing import ManualClock
from tests.servers import RedisServer
from tests.storage.helpers import job, owner

pytestmark = pytest.mark.redis
WORKER = owner(name="w")


@pytest.fixture
async def storage(redis_url: str) -> AsyncIterator[RedisStorage]:
    storage = RedisStorage(read(redis_url), clock=ManualClock())
    yield storage
    await storage.close()


async def park_all(storage: RedisStorage) -> None:
    while (await storage.exchange(WORKER, (), ClaimRequest(("q",), 10))).left:
        pass


async def parked(storage: RedisStorage) -> int:
    return (await storage.survey(["q"])).queues[0].parked


async def test_resuming_a_task_does_not_search_thousands_of_parked_jobs(storage: RedisStorage) -> None:
    full, kept = 3_000, 2 * PROMOTE_LIMIT + 50
    for first in range(0, full, 500):
        await storage.enqueue([job(f"full-{n}", keys=(Key(f"{n:05}", 0),)) for n in range(first, first + 500)])
    await park_all(storage)
    await storage.tune(Target("task", "kept"), Settings(paused=True))
    await storage.enqueue([job(f"kept-{n}", task="kept") for n in range(kept)])
    await park_all(storage)

    assert await parked(storage) == full + kept

    await storage.tune(Target("task", "kept"), Settings(paused=False))

    assert await parked(storage) == full + kept - PROMOTE_LIMIT

    claimed = (await storage.exchange(WORKER, (), ClaimRequest(("q",), PROMOTE_LIMIT))).leases
    while (await storage.sweep(SweepRequest(WORKER, None))).more:
        pass

    assert len(claimed) == PROMOTE_LIMIT

    assert await parked(storage) == full


async def test_more_revisions_than_a_script_makes_are_made_anyway(storage: RedisStorage) -> None:
    jobs = [job(f"{n:03}") for n in range(2 * REVISIONS_PER_CALL + 20)]
    await storage.enqueue(jobs)
    cancelled = await storage.revise([CancelJob(item.ref) for item in (*jobs, jobs[0])])
    redriven = await storage.revise([RedriveJob(item.ref) for item in jobs])

    assert [(item.ref, item.verdict) for item in cancelled] == [
        *((item.ref, "done") for item in jobs),
        (jobs[0].ref, "refused"),
    ]
    assert {result.verdict for result in redriven} == {"done"}
    assert await storage.revise([]) == []


async def test_ticks_of_one_call_are_in_the_order_they_were_given(storage: RedisStorage) -> None:
    names = [f"{n:02}" for n in range(3 * CHANGES_PER_CALL, 0, -1)]
    await storage.plan([PutSchedule(Schedule(name=name, job=job(""), every=9, next_tick=9)) for name in names])
    planned = await storage.plan([Tick(name, 0, 9, 18, job(name, schedule=name, tick=9)) for name in names])
    claimed = (await storage.exchange(WORKER, (), ClaimRequest(("q",), CLAIM_LIMIT))).leases

    assert [(result.verdict, result.ref and result.ref.id) for result in planned] == [("done", name) for name in names]
    assert [lease.ref.id for lease in claimed] == names


async def test_a_removed_schedule_leaves_only_its_jobs_behind(redis_server: RedisServer) -> None:
    def keys() -> set[bytes]:
        return set(redis_server.command("KEYS", "*"))

    storage = RedisStorage(read(redis_server.url), clock=ManualClock())
    await storage.open()
    before = keys()
    await storage.plan([PutSchedule(Schedule(name="s", job=job(""), every=9, next_tick=9))])
    await storage.plan([Tick("s", 0, 9, 18, job("of-a-tick", schedule="s", tick=9))])
    await storage.plan([RemoveSchedule("s")])

    assert [key for key in keys() if b"schedule" in key or b":ticks" in key or b"reached" in key] == []
    assert await storage.plan([PauseSchedule("s", True)]) == [ScheduleResult("s", "gone")]

    await storage.revise([DeleteJob(job("of-a-tick").ref)])
    await storage.close()

    assert {key.split(b":")[1] for key in keys() - before} <= {
        b"counters",
        b"events",
        b"queues",
        b"dues",
        b"clock",
        b"leader",
    }


async def test_jobs_that_a_new_rate_allows_are_released_by_the_next_claims(storage: RedisStorage) -> None:
    queues, slow = [f"q{n}" for n in range(3)], (RateKey("task:t", 3_600_000_000),)
    for queue in queues:
        await storage.enqueue([job(f"{n}", queue, rates=slow) for n in range(PROMOTE_LIMIT)])
        while (await storage.exchange(WORKER, (), ClaimRequest((queue,), 1))).left:
            pass
    await storage.tune(Target("task", "t"), Settings(rate=RateKey("task:t", 0)))
    claimed = 0
    for queue in queues:
        while leases := (await storage.exchange(WORKER, (), ClaimRequest((queue,), CLAIM_LIMIT))).leases:
            claimed += len(leases)
    left = sum(survey.parked for survey in (await storage.survey(queues)).queues)

    assert (left, claimed) == (0, 3 * (PROMOTE_LIMIT - 1))
