"""Handlers that go on although they were cancelled: left to themselves, counted, and refused whatever they still do."""

import asyncio
import logging
from typing import Any

import pytest

from tenure import JobStalled, Retry, State, TaskOptions, current_job
from tenure.client.handle import Job
from tenure.core.job import JobRecord
from tenure.worker.active_runs import MOST_ABANDONED
from tests.flow.conftest import FAST, Play, Stage
from tests.records import record_of

ONCE = TaskOptions(retry=Retry(max_attempts=1))


async def deafly(seconds: float) -> None:
    """Wait so long, whoever cancels."""
    until = asyncio.get_running_loop().time() + seconds
    while (left := until - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


async def over(stage: Stage, job: Job[Any]) -> JobRecord:
    async def ended() -> bool:
        return (await job.state()) not in (State.ACTIVE, State.WAITING)

    await stage.until(ended)
    return await record_of(job)


def ran(record: JobRecord) -> float:
    assert record.finished is not None
    assert record.started is not None
    return (record.finished - record.started) / 1_000_000


def test_a_handler_that_ignores_its_timeout_loses_its_slot_and_is_fenced(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app(defaults=ONCE)
        messages: list[bool] = []

        @app.task(timeout="5s")
        async def deaf() -> str:
            await deafly(20)
            current_job().progress(1.0)
            messages.append(current_job().cancelled)
            return "late"

        @app.task
        async def quick() -> float:
            return stage.now

        worker = app.worker(concurrency=1)
        await stage.start(worker)
        job, began = await deaf.enqueue(), stage.now
        behind = await quick.enqueue()
        record = await over(stage, job)

        assert (record.state, record.reason) == (State.FAILED, "timeout")
        assert 7.0 <= ran(record) < 7.1
        assert 7.0 <= (await behind.result()) - began < 7.2

        async def returned() -> bool:
            return bool(messages)

        await stage.until(returned)
        await asyncio.sleep(10)
        late = await record_of(job)

        assert messages == [True]
        assert (late.state, late.result, late.progress) == (State.FAILED, None, None)

    play(scenario)


def test_a_handler_that_ignores_a_lost_lease_frees_its_slot_after_2_s(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app(timing=FAST)
        runs: list[tuple[int, float]] = []

        @app.task(heartbeat_timeout="1s")
        async def silent() -> int:
            runs.append((current_job().run, stage.now))
            if current_job().run == 1:
                await deafly(60)
            return current_job().run

        await stage.start(app.worker(concurrency=1))
        job = await silent.enqueue()
        record = await over(stage, job)
        [stalled] = await stage.events_of(JobStalled)

        assert (record.state, record.starts, stalled.reason) == (State.COMPLETED, 2, "no_progress")
        # It is lost a second after it began, and a grace and two sweeps; and heard of with the next beat.
        assert runs[1][1] - runs[0][1] < 1 + 0.5 + 2 * 0.5 + 0.5 + 2 + 0.1

    play(scenario)


def test_a_handler_that_ignores_its_cancel_is_abandoned_after_30_s(
    play: Play,
) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app()
        called: list[str] = []

        @app.task
        async def deaf() -> None:
            await deafly(60)

        @deaf.on_cancel
        async def tidy() -> None:
            called.append(current_job().id)

        await stage.start(app.worker())
        job = await deaf.enqueue()
        await asyncio.sleep(1)
        await job.cancel("enough")
        record = await over(stage, job)
        await asyncio.sleep(60)

        assert (record.state, record.cancel_reason) == (State.CANCELLED, "enough")
        assert 30 <= ran(record) - 1 < 30.2
        assert called == []

    play(scenario)


@pytest.mark.parametrize("supervised", [True, False])
def test_a_supervised_worker_with_four_abandoned_runs_drains_and_ends(
    play: Play, caplog: pytest.LogCaptureFixture, supervised: bool
) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app(defaults=ONCE)

        @app.task(timeout="1s")
        async def deaf() -> None:
            await deafly(300)

        @app.task
        async def long() -> None:
            await asyncio.sleep(10)

        worker = app.worker(owner_id="incarnation" if supervised else None)
        await stage.start(worker)
        jobs = [await deaf.enqueue() for _ in range(MOST_ABANDONED)]
        running = await long.enqueue()
        for job in jobs:
            await over(stage, job)
        later = await long.enqueue()
        await over(stage, running)
        await asyncio.sleep(15)

        assert await running.state() is State.COMPLETED
        assert worker.ended == supervised
        assert (worker.recycle_reason is not None) == supervised
        assert await later.state() is (State.WAITING if supervised else State.COMPLETED)

    with caplog.at_level(logging.ERROR):
        play(scenario)

    assert [record.levelname for record in caplog.records if "4 of its handlers ignore" in record.getMessage()] == [
        "ERROR" if supervised else "CRITICAL"
    ]
