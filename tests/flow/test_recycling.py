"""A worker that claims no more jobs than it may, ends what it has begun, and ends."""

import asyncio

import pytest

from tenure import Tenure, UsageError
from tenure.core.lifecycle import State
from tests.flow.conftest import Play, Stage


@pytest.mark.parametrize("concurrency", [1, 4, 20])
def test_it_begins_so_many_jobs_and_no_more_and_lets_each_of_them_end(play: Play, concurrency: int) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app()
        begun: list[int] = []
        ended: list[int] = []

        @app.task
        async def work(number: int) -> None:
            begun.append(number)
            # Beyond any drain: it is healthy, so nothing hurries it.
            await asyncio.sleep(60 if number == 6 else 0.1)
            ended.append(number)

        for number in range(12):
            await work.enqueue(number)
        worker = app.worker(concurrency=concurrency, max_jobs=7, drain=1)
        await worker.start()
        await worker.wait()
        [queue] = (await stage.storage.survey()).queues

        assert sorted(begun) == sorted(ended) == [*range(7)]
        assert (queue.counts[State.COMPLETED], queue.counts[State.WAITING]) == (7, 5)
        assert worker.ended
        assert worker.recycle_reason == "it has begun 7 jobs, and --max-jobs allows no more"

    play(scenario)


def test_one_that_occupies_too_much_ends_after_the_jobs_that_it_has(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app()

        @app.task
        async def work(number: int) -> None:
            await asyncio.sleep(1)

        for number in range(9):
            await work.enqueue(number)
        # It is too large from the start, and does what it has claimed all the same.
        worker = app.worker(concurrency=3, max_memory="1KB")
        await worker.start()
        await worker.wait()
        [queue] = (await stage.storage.survey()).queues

        assert (queue.counts[State.COMPLETED], queue.counts[State.WAITING]) == (3, 6)
        assert "--max-memory allows 0 MB" in (worker.recycle_reason or "")

    play(scenario)


def test_a_recycled_worker_that_is_stopped_drains_for_its_limit_at_most(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app()

        @app.task
        async def work() -> None:
            await asyncio.sleep(600)

        job = await work.enqueue()
        worker = app.worker(max_jobs=1)
        await worker.start()

        async def worn_out() -> bool:
            return worker.recycle_reason is not None

        await stage.until(worn_out)
        began = stage.now
        await worker.stop(timeout=2)

        assert stage.now - began < 5
        seen = (await job.info()).job
        assert (seen.state, seen.releases) == (State.WAITING, 1)

    play(scenario)


def test_an_invalid_limit_is_refused() -> None:
    app = Tenure("memory://")

    with pytest.raises(UsageError, match="max_jobs"):
        app.worker(max_jobs=0)
    with pytest.raises(UsageError, match="max_memory = 'much' is not a size"):
        app.worker(max_memory="much")
