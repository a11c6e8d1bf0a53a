"""A handler that cancels every task of its event loop: its run fails, and what ran beside it runs again."""

import asyncio

import pytest

from tenure import JobCompleted, JobFailedError, JobReleased, JobStalled, Retry, State
from tests.flow.conftest import FAST, Play, Stage
from tests.records import record_of


@pytest.mark.parametrize("swallowing", [False, True])
def test_neighbours_of_a_run_that_cancels_every_task_are_charged_nothing(play: Play, swallowing: bool) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app(timing=FAST)
        test = asyncio.all_tasks()

        @app.task(name="nap")
        async def nap() -> str:
            await asyncio.sleep(5)
            return "rested"

        @app.task(name="wreck", retry=Retry(max_attempts=1))
        async def wreck() -> None:
            await asyncio.sleep(1)
            for task in asyncio.all_tasks() - test:
                task.cancel()
            if swallowing:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    await asyncio.sleep(3)

        await stage.start(app.worker(), "one")
        naps = [await nap.enqueue() for _ in range(6)]
        wrecking_job = await wreck.enqueue()
        await asyncio.sleep(2)
        await stage.start(app.worker(), "two")

        with pytest.raises(JobFailedError, match="cancelled every task of its event loop"):
            await wrecking_job.result()
        assert [await job.result() for job in naps] == ["rested"] * 6
        assert {event.reason for event in await stage.events_of(JobReleased)} == {"worker_failed"}
        assert not await stage.events_of(JobStalled)

    play(scenario)


def test_a_run_that_cancels_every_task_is_tried_again_alone(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app(timing=FAST)
        test = asyncio.all_tasks()

        @app.task(name="wreck", retry=Retry(max_attempts=2, base="1m", jitter=0))
        async def wreck() -> None:
            for task in asyncio.all_tasks() - test:
                task.cancel()
            await asyncio.sleep(60)

        await stage.start(app.worker())
        wrecking_job = await wreck.enqueue()
        await asyncio.sleep(10)
        record = await record_of(wrecking_job)

        assert (record.state, record.failures, record.quarantined) == (State.DELAYED, 1, True)

    play(scenario)


def test_an_event_handler_that_cancels_every_task_charges_no_run(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app(timing=FAST)
        test = asyncio.all_tasks()
        heard: list[str] = []

        @app.task(name="nap")
        async def nap(seconds: float) -> str:
            await asyncio.sleep(seconds)
            return "rested"

        @app.on(JobCompleted)
        async def wreck(event: JobCompleted) -> None:
            heard.append(event.id)
            if len(heard) == 1:
                for task in asyncio.all_tasks() - test:
                    task.cancel()

        await stage.start(app.worker(), "one")
        naps = [await nap.enqueue(5.0) for _ in range(6)]
        await nap.enqueue(1.0)
        await stage.until(lambda: _true(heard))
        await stage.start(app.worker(), "two")

        assert [await job.result() for job in naps] == ["rested"] * 6
        assert {event.reason for event in await stage.events_of(JobReleased)} == {"worker_failed"}
        assert not await stage.events_of(JobStalled)

    play(scenario)


@pytest.mark.parametrize("drain", [60, 1])
def test_neighbours_are_charged_nothing_if_the_worker_was_stopping(play: Play, drain: float) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app(timing=FAST)
        test = asyncio.all_tasks()

        @app.task(name="nap")
        async def nap() -> str:
            await asyncio.sleep(5)
            return "rested"

        @app.task(name="wreck", retry=Retry(max_attempts=1))
        async def wreck() -> None:
            try:
                await asyncio.sleep(2)
            finally:
                # In the drain, or in the seconds that handlers get to end after it.
                for task in asyncio.all_tasks() - test:
                    task.cancel()
            await asyncio.sleep(60)

        worker = app.worker(drain=drain)
        await stage.start(worker, "one")
        naps = [await nap.enqueue() for _ in range(6)]
        wrecking_job = await wreck.enqueue()
        await asyncio.sleep(0.5)
        stopping = asyncio.create_task(worker.stop())
        await asyncio.wait({stopping})
        assert worker.ended
        test |= asyncio.all_tasks()
        await stage.start(app.worker(), "two")

        assert [await job.result() for job in naps] == ["rested"] * 6
        assert not await stage.events_of(JobStalled)
        with pytest.raises(JobFailedError, match="cancelled every task of its event loop"):
            await wrecking_job.result()

    play(scenario)


async def _true(heard: list[str]) -> bool:
    return bool(heard)


def test_each_run_of_the_loop_stalls_once_if_the_cause_is_unknown(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app(timing=FAST)
        test = asyncio.all_tasks()

        @app.task(name="nap")
        async def nap() -> str:
            await asyncio.sleep(5)
            return "rested"

        await stage.start(app.worker(), "one")
        naps = [await nap.enqueue() for _ in range(6)]
        await asyncio.sleep(2)
        for task in asyncio.all_tasks() - test:
            task.cancel()
        await asyncio.sleep(2)
        await stage.start(app.worker(), "two")

        assert [await job.result() for job in naps] == ["rested"] * 6
        for job in naps:
            record = await record_of(job)
            assert (record.state, record.failures, record.stalls) == (State.COMPLETED, 0, 1)

    play(scenario)


def test_a_handler_that_stops_the_loop_fails_even_if_it_swallows_the_error(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app(timing=FAST)

        @app.task(name="stop", retry=Retry(max_attempts=1))
        async def stop() -> str:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop().stop()
            return "done"

        await stage.start(app.worker())
        job = await stop.enqueue()
        with pytest.raises(JobFailedError, match="must not stop the event loop"):
            await job.result()

    play(scenario)
