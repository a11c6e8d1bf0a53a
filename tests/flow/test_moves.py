"""Workers and producers of a storage whose jobs were moved: they learn where the jobs went."""

import asyncio
import logging
from pathlib import Path

import pytest

from tenure import State, StorageMovedError, Tenure, UsageError
from tenure.ops.move import Move
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.sqlite.storage import SQLiteStorage
from tenure_testing.conformance.waiting import linked
from tests.flow.conftest import FAST, Harness, RunScenario


def counting(app: Tenure, ran: list[int]) -> Tenure:
    """Return the app with a task that notes its runs."""

    @app.task(name="count")
    async def count(number: int) -> int:
        await asyncio.sleep(5)
        ran.append(number)
        return number

    return app


def elsewhere(harness: Harness) -> MemoryStorage:
    """Return another storage of the same clock."""
    other = MemoryStorage(clock=harness.clock)
    other.url = "memory://elsewhere"
    return other


def test_a_worker_ends_its_run_claims_no_more_and_names_the_new_storage(
    run_scenario: RunScenario, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(harness: Harness) -> None:
        ran: list[int] = []
        app, other = counting(harness.app(timing=FAST), ran), elsewhere(harness)
        await harness.start(app.worker(concurrency=1))
        count = app.find_task("count")
        jobs = [await count.enqueue(number) for number in range(3)]
        await asyncio.sleep(1)
        report = await Move(harness.storage, other, while_running=True).run()
        assert [(one.moved, one.active) for one in report.queues] == [(2, 1)]
        await asyncio.sleep(20)

        assert ran == [0]
        assert await jobs[0].state() is State.COMPLETED
        [line] = [record.getMessage() for record in caplog.records if "were moved" in record.getMessage()]
        assert line.endswith("were moved to memory://elsewhere; start workers there")
        assert [task.arguments is not None for task in await other.published(["count"])] == [True]

        new = counting(harness.app(timing=FAST, storage=other), ran)
        await harness.start(new.worker(), "new worker")
        await asyncio.sleep(20)
        assert ran == [0, 1, 2]

    with caplog.at_level(logging.ERROR, logger="tenure"):
        run_scenario(scenario)


def test_a_producer_and_a_new_worker_are_refused(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, other = counting(harness.app(timing=FAST), []), elsewhere(harness)
        await app.find_task("count").enqueue(1)
        await Move(harness.storage, other).run()

        with pytest.raises(StorageMovedError, match="moved to memory://elsewhere") as refused:
            await app.find_task("count").enqueue(2)
        assert (refused.value.queue, refused.value.moved_to) == ("default", "memory://elsewhere")
        with pytest.raises(StorageMovedError, match="moved to memory://elsewhere"):
            await app.worker().start()

    run_scenario(scenario)


async def test_a_storage_with_suspended_jobs_does_not_move(tmp_path: Path) -> None:
    source, target = MemoryStorage(), SQLiteStorage(tmp_path / "q.db")
    await target.open()
    await source.enqueue([linked("b", after=["a"])])
    with pytest.raises(UsageError, match="1 job of memory:// waits for others"):
        await Move(source, target).run()

    assert [queue.settings.moved for queue in (await source.survey()).queues] == [None]
    await target.close()


async def test_a_job_with_links_does_not_move_to_a_storage_without_flows(tmp_path: Path) -> None:
    source, target = MemoryStorage(), SQLiteStorage(tmp_path / "q.db")
    await target.open()
    await source.enqueue([linked("a", to=["b"])])
    with pytest.raises(UsageError, match="does not keep flows"):
        await Move(source, target).run()

    assert [queue.settings.moved for queue in (await source.survey()).queues] == [None]
    await target.close()
