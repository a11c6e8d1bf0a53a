"""A worker that reaches a limit claims no more jobs, finishes what it has begun, and ends."""

import asyncio

import pytest

from tenure import Tenure, UsageError
from tenure.core.lifecycle import State
from tests.flow.conftest import Harness, RunScenario


@pytest.mark.parametrize("concurrency", [1, 4, 20])
def test_a_worker_begins_max_jobs_jobs_and_lets_each_of_them_end(run_scenario: RunScenario, concurrency: int) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        begun: list[int] = []
        ended: list[int] = []

        @app.task
        async def work(number: int) -> None:
            begun.append(number)
            # Longer than any drain: the worker is healthy, so nothing forces it to stop.
            await asyncio.sleep(60 if number == 6 else 0.1)
            ended.append(number)

        for number in range(12):
            await work.enqueue(number)
        worker = app.worker(concurrency=concurrency, max_jobs=7, drain=1)
        await worker.start()
        await worker.wait()
        [queue] = (await harness.storage.survey()).queues

        assert sorted(begun) == sorted(ended) == [*range(7)]
        assert (queue.counts[State.COMPLETED], queue.counts[State.WAITING]) == (7, 5)
        assert worker.ended
        assert worker.recycle_reason == "it has begun 7 jobs, and --max-jobs allows no more"

    run_scenario(scenario)


def test_a_worker_over_max_memory_ends_after_the_jobs_that_it_holds(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def work(number: int) -> None:
            await asyncio.sleep(1)

        for number in range(9):
            await work.enqueue(number)
        # It is over the limit from the start, but still runs what it has claimed.
        worker = app.worker(concurrency=3, max_memory="1KB")
        await worker.start()
        await worker.wait()
        [queue] = (await harness.storage.survey()).queues

        assert (queue.counts[State.COMPLETED], queue.counts[State.WAITING]) == (3, 6)
        assert "--max-memory allows 0 MB" in (worker.recycle_reason or "")

    run_scenario(scenario)


def test_a_recycled_worker_that_is_stopped_drains_for_its_limit_at_most(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def work() -> None:
            await asyncio.sleep(600)

        job = await work.enqueue()
        worker = app.worker(max_jobs=1)
        await worker.start()

        async def worn_out() -> bool:
            return worker.recycle_reason is not None

        await harness.until(worn_out)
        began = harness.now
        await worker.stop(timeout=2)

        assert harness.now - began < 5
        seen = (await job.info()).job
        assert (seen.state, seen.releases) == (State.WAITING, 1)

    run_scenario(scenario)


def test_an_invalid_limit_is_refused() -> None:
    app = Tenure("memory://")

    with pytest.raises(UsageError, match="max_jobs"):
        app.worker(max_jobs=0)
    with pytest.raises(UsageError, match="max_memory = 'much' is not a size"):
        app.worker(max_memory="much")
