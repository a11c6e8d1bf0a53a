"""Durable handlers of real workers in virtual time: workers die, freeze, stop and lose their storage."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from tenure import (
    HandlerSuspended,
    Job,
    LeaseLostError,
    Retry,
    RunFenced,
    State,
    Tenure,
    current_job,
    current_step,
)
from tenure.errors import StorageUnavailableError
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.requests import RenewRequest, RenewResult
from tenure_testing.simulation.event_loop import SimClock, SimLoop, simulate
from tests.flow.conftest import FAST, Harness, RunScenario


async def names_of(app: Tenure, job: Job[Any]) -> list[str]:
    """Return the names of the recorded steps of a job."""
    (detail,) = await app.storage.get([job.ref])
    assert detail is not None
    return [step.name for step in detail.steps]


@pytest.mark.parametrize("crashes_at", range(12))
def test_a_worker_may_die_at_any_point_and_the_job_completes(run_scenario: RunScenario, crashes_at: int) -> None:
    effects: list[str] = []

    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        async def effect(name: str) -> str:
            await asyncio.sleep(0.1)
            effects.append(name)
            await asyncio.sleep(0.1)
            return name

        @app.task(name="order")
        async def order() -> str:
            job = current_job()
            first = await job.step("first", effect, "first")
            await job.sleep("short", "0.3s")
            await job.sleep("pause", "10s")
            signal = await job.wait_signal("go", str)
            last = await job.step("last", effect, "last")
            return f"{first} {signal} {last}"

        job = await order.enqueue()
        await app.signal(job.id, "go", "gone")
        victim = await harness.start(app.worker(), "victim")
        # The first steps take a second, and the last one comes ten seconds later.
        await asyncio.sleep(0.05 + crashes_at * 0.1 if crashes_at < 8 else 10.45 + (crashes_at - 8) * 0.1)
        harness.loop.kill(victim)
        await harness.start(app.worker(), "other")

        assert await job.result() == "first gone last"
        assert await names_of(app, job) == ["first", "short", "pause", "go", "last"]

    run_scenario(scenario)
    assert [effects.count(name) for name in ("first", "last")] in ([1, 1], [2, 1], [1, 2])


def test_a_frozen_worker_records_nothing_when_it_goes_on(run_scenario: RunScenario) -> None:
    values: list[int] = []
    errors: list[type[BaseException]] = []

    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        async def charge() -> int:
            await asyncio.sleep(1)
            return current_job().run

        @app.task(name="order")
        async def order() -> int:
            try:
                values.append(await current_job().step("charge", charge))
            except BaseException as error:
                errors.append(type(error))
                raise
            return values[-1]

        job = await order.enqueue()
        frozen = await harness.start(app.worker(reaper=False), "frozen")
        await asyncio.sleep(0.5)
        harness.loop.pause(frozen)
        await harness.start(app.worker(), "other")
        assert await job.result() == 2
        harness.loop.wake(frozen)
        await asyncio.sleep(5)

        assert await names_of(app, job) == ["charge"]
        assert {event.fence for event in await harness.events_of(RunFenced)} != set()

    run_scenario(scenario)
    assert values == [2]
    assert set(errors) <= {LeaseLostError, asyncio.CancelledError}
    assert errors


class Away(MemoryStorage):
    """A storage that is out of reach for a time."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self.away = False

    async def renew(self, beat: RenewRequest) -> RenewResult:
        """Renew, unless the storage is away."""
        if self.away:
            raise StorageUnavailableError("away")
        return await super().renew(beat)


def test_a_step_is_recorded_after_an_outage_and_not_repeated() -> None:
    calls: list[str] = []

    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = Away(clock)
        harness = Harness(loop, clock, storage)
        app = harness.app()

        async def charge() -> str:
            calls.append("charge")
            storage.away = True
            return "paid"

        @app.task(name="order")
        async def order() -> str:
            return await current_job().step("charge", charge)

        job = await order.enqueue()
        await harness.start(app.worker())
        await asyncio.sleep(8)
        assert await job.state() is State.ACTIVE
        storage.away = False

        assert await job.result() == "paid"

    simulate(main)
    assert calls == ["charge"]


def test_a_worker_that_stops_lets_a_handler_suspend(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        async def slow() -> str:
            await asyncio.sleep(3)
            return "slow"

        @app.task(name="order")
        async def order() -> str:
            value = await current_job().step("slow", slow)
            await current_job().sleep("pause", "1h")
            return value

        job = await order.enqueue()
        worker = app.worker()
        node = await harness.start(worker)
        await asyncio.sleep(1)
        await harness.stop(node, worker)

        assert await job.state() is State.SUSPENDED
        assert await names_of(app, job) == ["slow"]

    run_scenario(scenario)


def test_a_cancel_stops_a_step_and_wins_over_a_wait(run_scenario: RunScenario) -> None:
    log: list[str] = []

    async def scenario(harness: Harness) -> None:
        app = harness.app()

        async def slow() -> str:
            await asyncio.sleep(60)
            return "slow"

        @app.task(name="in-step")
        async def in_step() -> None:
            await current_job().step("slow", slow)

        @app.task(name="unwinding")
        async def unwinding() -> None:
            try:
                await current_job().sleep("pause", "1h")
            finally:
                await asyncio.sleep(60)

        @unwinding.on_cancel
        async def tidy() -> None:
            log.append("tidy")

        jobs = [await in_step.enqueue(), await unwinding.enqueue()]
        await harness.start(app.worker())
        await asyncio.sleep(1)
        for job in jobs:
            await job.cancel()
        await asyncio.sleep(1)

        assert [await job.state() for job in jobs] == [State.CANCELLED] * 2
        assert await names_of(app, jobs[0]) == []

    run_scenario(scenario)
    assert log == ["tidy"]


def test_a_time_limit_is_for_one_run(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        async def work() -> str:
            await asyncio.sleep(3)
            return "done"

        @app.task(name="order", timeout="4s")
        async def order() -> str:
            for _ in range(3):
                await current_job().step("work", work)
                await current_job().sleep("pause", "10s")
            return "3 pauses"

        job = await order.enqueue()
        await harness.start(app.worker())

        assert await job.result() == "3 pauses"
        assert len((await job.info()).runs) == 4

    run_scenario(scenario)


def test_a_short_pause_takes_place_in_the_run(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        runs: list[int] = []
        attempts: list[int] = []

        async def charge() -> None:
            attempts.append(current_step().attempt)
            if len(attempts) < 3:
                raise ConnectionError

        @app.task(name="order")
        async def order() -> None:
            runs.append(current_job().run)
            await current_job().sleep("short", "4s")
            await current_job().options(retry=Retry(3, base="1s", jitter=0)).step("charge", charge)
            await current_job().sleep("long", "5s")

        job = await order.enqueue()
        await harness.start(app.worker())
        await job.result()

        assert (runs, attempts) == ([1, 2], [1, 2, 3])
        assert await names_of(app, job) == ["short", "charge", "long"]

    run_scenario(scenario)


def test_a_suspended_job_leaves_its_slot_to_others(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(name="order", singleton=True)
        async def order(number: int) -> int:
            await current_job().sleep("pause", "1h")
            return number

        jobs = [await order.enqueue(number) for number in range(20)]
        await harness.start(app.worker(concurrency=1))
        await asyncio.sleep(10)
        assert [await job.state() for job in jobs] == [State.SUSPENDED] * 20

        began = harness.now
        assert [await job.result() for job in jobs] == list(range(20))
        assert harness.now - began < 3_700

    run_scenario(scenario)


def test_a_wait_in_a_block_that_catches_exceptions_is_not_disturbed(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        seen: list[str] = []

        @app.task(name="order")
        async def order() -> str:
            with suppress(Exception):
                try:
                    await current_job().sleep("pause", "1h")
                except HandlerSuspended:
                    seen.append("unwound")
                    raise
            return "done"

        job = await order.enqueue()
        await harness.start(app.worker())

        assert await job.result() == "done"
        assert seen == ["unwound"]

    run_scenario(scenario)
