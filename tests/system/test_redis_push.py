"""Processes notify each other by push; the record is decisive, and a lost notification costs one poll."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

import pytest

from tenure import JobCompleted, Tenure
from tenure.client import handle
from tenure.client.handle import Job
from tenure.core.job import Ref
from tenure.core.lifecycle import State
from tenure.events import follow
from tenure.storage.protocol import EVENTS_END, CancelJob
from tenure_testing.proxy import ProxiedConnection, Proxy
from tests.servers import RedisServer, subscribed
from tests.system.worker_fleet import WorkerFleet, timing_of

pytestmark = pytest.mark.system

USUAL = {"lease": "20s", "sweep": "2s", "grace": "3s"}
"""The built-in timing, with a beat of 5 s; a worker polls for jobs every 5 s."""

SECOND = 1_000_000
SOON = SECOND
"""A push takes milliseconds; the rest is for processes that wait for a core."""

LONG = 60.0
"""Seconds between two polls; within them only a push can have brought the news."""


@pytest.fixture
async def here(make_fleet: Callable[..., WorkerFleet], redis_server: RedisServer) -> WorkerFleet:
    """A fleet with one busy worker."""
    here = make_fleet(url=redis_server.url, **USUAL)
    worker = here.alone("-c", "10")

    async def at_work() -> bool:
        return await here.pids() == [worker.pid]

    await here.until(at_work, within=30)
    return here


class Waiter:
    """Another process, as far as the worker knows: it enqueues jobs of the app's task and waits for them."""

    def __init__(self, fleet: WorkerFleet, url: str = "") -> None:
        self._fleet = fleet
        self.app = Tenure(url or fleet.url, timing=timing_of(fleet.env))

        @self.app.task(name="fleet_app.nap")
        async def nap(seconds: float) -> str:
            return f"the app rests for {seconds} s"

        self.nap = nap

    async def late(self, job: Job[str]) -> int:
        """Wait for a result; return how many microseconds after its handler's end it arrived."""
        assert await job.result(timeout="30s") == "rested"
        came_at = self._fleet.storage_now()
        [end] = [line.at for line in self._fleet.lines() if line.what == "end" and line.id == job.id]
        return came_at - end


@contextlib.asynccontextmanager
async def waiter(fleet: WorkerFleet, url: str = "") -> AsyncGenerator[Waiter]:
    caller = Waiter(fleet, url)
    try:
        yield caller
    finally:
        await caller.app.storage.close()


async def running(fleet: WorkerFleet, refs: list[Ref]) -> None:
    """Wait until all of these jobs run."""

    async def all_run() -> bool:
        return {ref.id for ref in refs} <= {line.id for line in fleet.lines() if line.what == "start"}

    await fleet.until(all_run, within=10)


async def test_a_job_starts_and_its_result_arrives_by_push(here: WorkerFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "POLL", LONG)
    async with waiter(here) as caller:
        # One after the other: each finds a worker and a waiting caller that nothing else wakes.
        for _ in range(5):
            enqueued_at = here.storage_now()
            job = await caller.nap.enqueue(0.3)
            assert await caller.late(job) < SOON
            [start] = [line.at for line in here.lines() if line.what == "start" and line.id == job.id]
            assert start - enqueued_at < SOON


async def test_events_arrive_by_push(
    here: WorkerFleet, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "POLL", LONG)
    async with waiter(here) as caller, contextlib.aclosing(follow.follow(caller.app.storage, EVENTS_END)) as events:
        story = asyncio.ensure_future(anext(aiter(events)))

        async def both_listen() -> bool:
            return len(subscribed(redis_server)) == 2

        await here.until(both_listen, within=10)  # otherwise it would read them as already existing events
        for _ in range(5):
            job = await caller.nap.enqueue(0.3)
            event = await asyncio.wait_for(story, 10)
            came_at = here.storage_now()
            assert isinstance(event, JobCompleted)
            assert event.id == job.id
            assert event.at is not None
            assert came_at - event.at.timestamp() * SECOND < SOON
            story = asyncio.ensure_future(anext(aiter(events)))
        story.cancel()
        await asyncio.gather(story, return_exceptions=True)


async def test_a_cancel_reaches_runs_by_push_long_before_the_next_beat(here: WorkerFleet) -> None:
    async with waiter(here) as caller:
        jobs = await caller.app.enqueue_many(caller.nap.call(60.0) for _ in range(6))
        await running(here, [job.ref for job in jobs])
        for job in jobs:
            [revised] = await here.storage.revise([CancelJob(job.ref, "enough", "me")])
            assert revised.verdict == "asked"

        async def all_over() -> bool:
            return await here.count(State.CANCELLED) == len(jobs)

        await here.until(all_over, within=10)
        ended = [detail.job for detail in await here.details([job.ref for job in jobs])]
        waits = [(job.finished or 0) - (job.cancel_at or 0) for job in ended]
        assert max(waits) < SOON, waits


async def test_a_subscription_that_is_killed_again_and_again_costs_one_poll(
    here: WorkerFleet, redis_server: RedisServer
) -> None:
    async with waiter(here) as caller:
        jobs = await caller.app.enqueue_many(caller.nap.call(2.0) for _ in range(5))
        waiting = asyncio.gather(*(caller.late(job) for job in jobs))
        killed = 0
        while not waiting.done():
            killed += redis_server.command("CLIENT", "KILL", "TYPE", "pubsub")
            await asyncio.sleep(0.02)
        assert killed >= 5
        late = await waiting
        assert max(late) < handle.POLL * SECOND + SOON, late


async def test_a_subscription_that_has_fallen_silent_costs_one_poll(
    here: WorkerFleet, redis_server: RedisServer
) -> None:
    with Proxy(redis_server.port) as proxy:
        async with waiter(here, f"redis://{proxy.address}/0") as caller:
            jobs = await caller.app.enqueue_many(caller.nap.call(3.0) for _ in range(5))
            waiting = asyncio.gather(*(caller.late(job) for job in jobs))
            await running(here, [job.ref for job in jobs])
            line = await listening(here, redis_server, proxy)
            line.silent = True
            late = await waiting
            assert max(late) < handle.POLL * SECOND + SOON, late


async def listening(fleet: WorkerFleet, server: RedisServer, proxy: Proxy) -> ProxiedConnection:
    """Return the connection by which a process behind a proxy subscribes, once there is one."""
    found: list[ProxiedConnection] = []

    async def subscription() -> bool:
        ports = {int(client["addr"].rpartition(":")[2]) for client in subscribed(server)}
        found[:] = [line for line in list(proxy.lines) if line.port in ports]
        return len(found) == 1

    await fleet.until(subscription, within=10)
    return found[0]
