"""A handler that cancels every task of its event loop: its run fails, and the other runs in its process run again."""

import asyncio

import pytest

from tenure import JobCompleted, JobFailedError, JobReleased, JobStalled, Retry, State
from tests.flow.conftest import FAST, Harness, RunScenario
from tests.records import record_of


@pytest.mark.parametrize("swallowing", [False, True])
def test_other_runs_are_not_charged_if_one_cancels_every_task(run_scenario: RunScenario, swallowing: bool) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        test = asyncio.all_tasks()

        @app.task(name="nap")
        async def nap() -> str:
            await asyncio.sleep(5)
            return "rested"

        @app.task(name="cancel_all", retry=Retry(max_attempts=1))
        async def cancel_all() -> None:
            await asyncio.sleep(1)
            for task in asyncio.all_tasks() - test:
                task.cancel()
            if swallowing:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    await asyncio.sleep(3)

        await harness.start(app.worker(), "one")
        naps = [await nap.enqueue() for _ in range(6)]
        failed_job = await cancel_all.enqueue()
        await asyncio.sleep(2)
        await harness.start(app.worker(), "two")

        with pytest.raises(JobFailedError, match="cancelled every task of its event loop"):
            await failed_job.result()
        assert [await job.result() for job in naps] == ["rested"] * 6
        assert {event.reason for event in await harness.events_of(JobReleased)} == {"worker_failed"}
        assert not await harness.events_of(JobStalled)

    run_scenario(scenario)


def test_a_run_that_cancels_every_task_is_tried_again_alone(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        test = asyncio.all_tasks()

        @app.task(name="cancel_all", retry=Retry(max_attempts=2, base="1m", jitter=0))
        async def cancel_all() -> None:
            for task in asyncio.all_tasks() - test:
                task.cancel()
            await asyncio.sleep(60)

        await harness.start(app.worker())
        failed_job = await cancel_all.enqueue()
        await asyncio.sleep(10)
        record = await record_of(failed_job)

        assert (record.state, record.failures, record.quarantined) == (State.DELAYED, 1, True)

    run_scenario(scenario)


def test_an_event_handler_that_cancels_every_task_charges_no_run(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        test = asyncio.all_tasks()
        heard: list[str] = []

        @app.task(name="nap")
        async def nap(seconds: float) -> str:
            await asyncio.sleep(seconds)
            return "rested"

        @app.on(JobCompleted)
        async def cancel_all(event: JobCompleted) -> None:
            heard.append(event.id)
            if len(heard) == 1:
                for task in asyncio.all_tasks() - test:
                    task.cancel()

        await harness.start(app.worker(), "one")
        naps = [await nap.enqueue(5.0) for _ in range(6)]
        await nap.enqueue(1.0)
        await harness.until(lambda: _true(heard))
        await harness.start(app.worker(), "two")

        assert [await job.result() for job in naps] == ["rested"] * 6
        assert {event.reason for event in await harness.events_of(JobReleased)} == {"worker_failed"}
        assert not await harness.events_of(JobStalled)

    run_scenario(scenario)


@pytest.mark.parametrize("drain", [60, 1])
def test_other_runs_are_not_charged_if_the_worker_was_stopping(run_scenario: RunScenario, drain: float) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        test = asyncio.all_tasks()

        @app.task(name="nap")
        async def nap() -> str:
            await asyncio.sleep(5)
            return "rested"

        @app.task(name="cancel_all", retry=Retry(max_attempts=1))
        async def cancel_all() -> None:
            try:
                await asyncio.sleep(2)
            finally:
                # In the drain, or in the seconds that handlers get to end after it.
                for task in asyncio.all_tasks() - test:
                    task.cancel()
            await asyncio.sleep(60)

        worker = app.worker(drain=drain)
        await harness.start(worker, "one")
        naps = [await nap.enqueue() for _ in range(6)]
        failed_job = await cancel_all.enqueue()
        await asyncio.sleep(0.5)
        stopping = asyncio.create_task(worker.stop())
        await asyncio.wait({stopping})
        assert worker.ended
        test |= asyncio.all_tasks()
        await harness.start(app.worker(), "two")

        assert [await job.result() for job in naps] == ["rested"] * 6
        assert not await harness.events_of(JobStalled)
        with pytest.raises(JobFailedError, match="cancelled every task of its event loop"):
            await failed_job.result()

    run_scenario(scenario)


async def _true(heard: list[str]) -> bool:
    return bool(heard)


def test_each_run_of_the_loop_stalls_once_if_the_cause_is_unknown(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        test = asyncio.all_tasks()

        @app.task(name="nap")
        async def nap() -> str:
            await asyncio.sleep(5)
            return "rested"

        await harness.start(app.worker(), "one")
        naps = [await nap.enqueue() for _ in range(6)]
        await asyncio.sleep(2)
        for task in asyncio.all_tasks() - test:
            task.cancel()
        await asyncio.sleep(2)
        await harness.start(app.worker(), "two")

        assert [await job.result() for job in naps] == ["rested"] * 6
        for job in naps:
            record = await record_of(job)
            assert (record.state, record.failures, record.stalls) == (State.COMPLETED, 0, 1)

    run_scenario(scenario)


def test_a_handler_that_stops_the_loop_fails_even_if_it_swallows_the_error(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(name="stop", retry=Retry(max_attempts=1))
        async def stop() -> str:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop().stop()
            return "done"

        await harness.start(app.worker())
        job = await stop.enqueue()
        with pytest.raises(JobFailedError, match="must not stop the event loop"):
            await job.result()

    run_scenario(scenario)
