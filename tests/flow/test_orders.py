"""What an operator can order one worker to do: go quiet, resume, stop."""

import asyncio

import pytest

from tenure import State, Tenure, Timing, UsageError
from tenure.core.events import WorkerStopped, WorkerStopping
from tenure.core.job import Owner
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import RenewRequest, RenewResult, Settings, Target, WorkerSurvey
from tests.flow.conftest import FAST, Harness, RunScenario


def napping(app: Tenure) -> Tenure:
    """Return the app with a task that sleeps for a while."""

    @app.task(name="nap")
    async def nap(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "rested"

    return app


async def order(harness: Harness, owner: Owner, settings: Settings) -> None:
    """Give a worker an order."""
    await harness.storage.tune(Target("worker", owner.id), settings)


async def seen(harness: Harness, owner: Owner) -> WorkerSurvey:
    """Return what a worker reports of itself."""
    [found] = [worker for worker in (await harness.storage.survey()).workers if worker.owner.id == owner.id]
    return found


def test_a_quiet_worker_finishes_its_runs_and_claims_again_when_resumed(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = napping(harness.app(timing=FAST))
        worker = app.worker()
        await harness.start(worker)
        nap = app.find_task("nap")
        running = await nap.enqueue(3)
        await asyncio.sleep(0.2)
        await order(harness, worker.owner, Settings(quiet=True))
        await asyncio.sleep(1)
        later = await nap.enqueue(0)
        await asyncio.sleep(10)

        assert await running.state() is State.COMPLETED
        assert await later.state() is State.WAITING
        reported = await seen(harness, worker.owner)
        assert (reported.quiet, reported.stopping) == (True, False)
        # It is alive, and does not count as hung.
        assert reported.turned_ago < 7_000_000

        await order(harness, worker.owner, Settings(quiet=False))
        await asyncio.sleep(1)

        assert await later.state() is State.COMPLETED
        assert not (await seen(harness, worker.owner)).quiet

    run_scenario(scenario)


def test_an_order_reaches_a_worker_long_before_its_next_beat(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = napping(harness.app(timing=Timing()))
        worker = app.worker()
        await harness.start(worker)
        await asyncio.sleep(1)
        await order(harness, worker.owner, Settings(quiet=True))
        await asyncio.sleep(0.5)
        late = await app.find_task("nap").enqueue(0)
        await asyncio.sleep(3)

        assert await late.state() is State.WAITING

    run_scenario(scenario)


def test_a_worker_that_is_ordered_to_stop_drains_and_ends(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = napping(harness.app(timing=FAST))
        worker, other = app.worker(), app.worker()
        await harness.start(worker, "worker")
        await harness.start(other, "other")
        jobs = [await app.find_task("nap").enqueue(3) for _ in range(15)]
        await asyncio.sleep(0.2)
        await order(harness, worker.owner, Settings(stop=True))
        await worker.wait()

        assert (worker.ended, worker.dismissed) == (True, True)
        assert [listed.owner.id for listed in (await harness.storage.survey()).workers] == [other.owner.id]
        [why] = [item.reason for item in await harness.events_of(WorkerStopping) if item.owner == worker.owner.id]
        [released] = [
            event.released for event in await harness.events_of(WorkerStopped) if event.owner == worker.owner.id
        ]
        assert (why, released) == ("ordered", 0)

        for job in jobs:
            assert await job.result(timeout=20) == "rested"
        assert not other.stopping

    run_scenario(scenario)


def test_a_recycling_worker_obeys_stop_and_does_not_wait_for_its_runs(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = napping(harness.app(timing=FAST))
        worker = app.worker(max_jobs=1, drain=2)
        await harness.start(worker)
        job = await app.find_task("nap").enqueue(600)
        await worker.retired()
        began = harness.now
        await order(harness, worker.owner, Settings(stop=True))
        await worker.wait()

        assert harness.now - began < 10
        assert (worker.ended, worker.dismissed) == (True, True)
        assert ((await job.info()).job.releases, await job.state()) == (1, State.WAITING)

    run_scenario(scenario)


def test_a_paused_worker_finishes_its_runs_and_claims_after_resume(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = napping(harness.app(timing=FAST))
        worker = app.worker()
        await harness.start(worker)
        running = await app.find_task("nap").enqueue(3)
        await asyncio.sleep(0.2)
        await app.workers.pause(worker.owner.id, by="ops")
        await asyncio.sleep(1)
        later = await app.find_task("nap").enqueue(0)
        await asyncio.sleep(10)

        assert (await running.state(), await later.state()) == (State.COMPLETED, State.WAITING)
        await app.workers.resume(worker.owner.name)
        assert await later.result(timeout=5) == "rested"

    run_scenario(scenario)


def test_a_smaller_concurrency_cancels_no_run_and_a_larger_one_claims(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = napping(harness.app(timing=FAST))
        worker = app.worker(concurrency=4)
        await harness.start(worker)
        jobs = [await app.find_task("nap").enqueue(20) for _ in range(12)]
        await asyncio.sleep(1)
        await app.workers.set_concurrency(worker.owner.id, 2)
        await asyncio.sleep(4)
        assert (await seen(harness, worker.owner)).active == 4
        assert (await seen(harness, worker.owner)).concurrency == 2
        await asyncio.sleep(20)
        assert (await seen(harness, worker.owner)).active == 2

        await app.workers.set_concurrency(worker.owner.id, 7)
        await asyncio.sleep(2)
        assert (await seen(harness, worker.owner)).active == 7
        await app.workers.set_concurrency(worker.owner.id, None)
        await asyncio.sleep(3)
        assert (await seen(harness, worker.owner)).concurrency == 4
        for job in jobs:
            assert await job.result(timeout=60) == "rested"
            record = (await job.info()).job
            assert (record.starts, record.releases) == (1, 0)

    run_scenario(scenario)


def test_an_order_to_a_worker_that_is_not_there_is_refused(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = napping(harness.app(timing=FAST))
        with pytest.raises(UsageError, match="worker = 'gone' is the owner id or name of 0 live workers"):
            await app.workers.pause("gone")
        with pytest.raises(UsageError, match="concurrency = 0 must be 1 or more; to let none run, pause the worker"):
            await app.workers.set_concurrency("gone", 0)

    run_scenario(scenario)


class UnknownOrders(MemoryStorage):
    """A storage of several servers; the one that keeps the orders is unavailable at times."""

    away = False

    async def renew(self, beat: RenewRequest) -> RenewResult:
        pulse = await super().renew(beat)
        return RenewResult(pulse.lost, pulse.cancelling, None) if self.away else pulse


def test_a_quiet_worker_stays_quiet_while_its_orders_are_unknown(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        storage = UnknownOrders(clock=harness.clock)
        app = napping(harness.app(storage=storage, timing=FAST))
        worker = app.worker()
        await harness.start(worker)
        await storage.tune(Target("worker", worker.owner.id), Settings(quiet=True))
        await asyncio.sleep(2)
        storage.away = True
        await asyncio.sleep(5)
        job = await app.find_task("nap").enqueue(0)
        await asyncio.sleep(5)
        assert await job.state() is State.WAITING

        storage.away = False
        await storage.tune(Target("worker", worker.owner.id), Settings(quiet=False))
        assert await job.result(timeout=5) == "rested"

    run_scenario(scenario)
