"""Handlers that ignore their cancellation: abandoned, counted, and every later answer of theirs refused."""

import asyncio
import logging
from typing import Any

import pytest

from tenure import JobStalled, Retry, State, TaskOptions, current_job
from tenure.client.handle import Job
from tenure.core.job import JobRecord
from tenure.worker.active_runs import MOST_ABANDONED
from tests.flow.conftest import FAST, Harness, RunScenario
from tests.records import record_of

ONCE = TaskOptions(retry=Retry(max_attempts=1))


async def ignore_cancels(seconds: float) -> None:
    """Wait this many seconds and ignore every cancellation."""
    until = asyncio.get_running_loop().time() + seconds
    while (left := until - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


async def over(harness: Harness, job: Job[Any]) -> JobRecord:
    async def ended() -> bool:
        return (await job.state()) not in (State.ACTIVE, State.WAITING)

    await harness.until(ended)
    return await record_of(job)


def ran(record: JobRecord) -> float:
    assert record.finished is not None
    assert record.started is not None
    return (record.finished - record.started) / 1_000_000


def test_a_handler_that_ignores_its_timeout_loses_its_slot_and_is_fenced(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(defaults=ONCE)
        messages: list[bool] = []

        @app.task(timeout="5s")
        async def ignoring() -> str:
            await ignore_cancels(20)
            current_job().progress(1.0)
            messages.append(current_job().cancelled)
            return "late"

        @app.task
        async def quick() -> float:
            return harness.now

        worker = app.worker(concurrency=1)
        await harness.start(worker)
        job, began = await ignoring.enqueue(), harness.now
        behind = await quick.enqueue()
        record = await over(harness, job)

        assert (record.state, record.reason) == (State.FAILED, "timeout")
        assert 7.0 <= ran(record) < 7.1
        assert 7.0 <= (await behind.result()) - began < 7.2

        async def returned() -> bool:
            return bool(messages)

        await harness.until(returned)
        await asyncio.sleep(10)
        late = await record_of(job)

        assert messages == [True]
        assert (late.state, late.result, late.progress) == (State.FAILED, None, None)

    run_scenario(scenario)


def test_a_handler_that_ignores_a_lost_lease_frees_its_slot_after_2_s(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        runs: list[tuple[int, float]] = []

        @app.task(heartbeat_timeout="1s")
        async def silent() -> int:
            runs.append((current_job().run, harness.now))
            if current_job().run == 1:
                await ignore_cancels(60)
            return current_job().run

        await harness.start(app.worker(concurrency=1))
        job = await silent.enqueue()
        record = await over(harness, job)
        [stalled] = await harness.events_of(JobStalled)

        assert (record.state, record.starts, stalled.reason) == (State.COMPLETED, 2, "no_progress")
        # The lease expires a second after the start; a grace and two sweeps follow; the next beat brings the news.
        assert runs[1][1] - runs[0][1] < 1 + 0.5 + 2 * 0.5 + 0.5 + 2 + 0.1

    run_scenario(scenario)


def test_a_handler_that_ignores_its_cancel_is_abandoned_after_30_s(
    run_scenario: RunScenario,
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        called: list[str] = []

        @app.task
        async def ignoring() -> None:
            await ignore_cancels(60)

        @ignoring.on_cancel
        async def tidy() -> None:
            called.append(current_job().id)

        await harness.start(app.worker())
        job = await ignoring.enqueue()
        await asyncio.sleep(1)
        await job.cancel("enough")
        record = await over(harness, job)
        await asyncio.sleep(60)

        assert (record.state, record.cancel_reason) == (State.CANCELLED, "enough")
        assert 30 <= ran(record) - 1 < 30.2
        assert called == []

    run_scenario(scenario)


@pytest.mark.parametrize("supervised", [True, False])
def test_a_supervised_worker_with_four_abandoned_runs_drains_and_ends(
    run_scenario: RunScenario, caplog: pytest.LogCaptureFixture, supervised: bool
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(defaults=ONCE)

        @app.task(timeout="1s")
        async def ignoring() -> None:
            await ignore_cancels(300)

        @app.task
        async def long() -> None:
            await asyncio.sleep(10)

        worker = app.worker(owner_id="incarnation" if supervised else None)
        await harness.start(worker)
        jobs = [await ignoring.enqueue() for _ in range(MOST_ABANDONED)]
        running = await long.enqueue()
        for job in jobs:
            await over(harness, job)
        later = await long.enqueue()
        await over(harness, running)
        await asyncio.sleep(15)

        assert await running.state() is State.COMPLETED
        assert worker.ended == supervised
        assert (worker.recycle_reason is not None) == supervised
        assert await later.state() is (State.WAITING if supervised else State.COMPLETED)

    with caplog.at_level(logging.ERROR):
        run_scenario(scenario)

    assert [record.levelname for record in caplog.records if "4 of its handlers ignore" in record.getMessage()] == [
        "ERROR" if supervised else "CRITICAL"
    ]
