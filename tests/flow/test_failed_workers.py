"""A worker that fails by itself: the jobs it held are released uncharged, finished ones are recorded."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tenure import (
    JobCompleted,
    JobReleased,
    JobStalled,
    Stall,
    State,
    StorageUnavailableError,
    TaskOptions,
    WorkerStopping,
    current_job,
)
from tenure.core.job import Owner
from tenure.core.settlement import Settlement
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import ClaimRequest, ExchangeResult
from tenure_testing.simulation.event_loop import SimClock, SimLoop, simulate
from tests.flow.conftest import Harness
from tests.flow.test_abandoned import ignore_cancels


class InvalidAnswers(MemoryStorage):
    """Memory that may return an invalid answer to an exchange and not carry it out."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self.answers_invalid: Callable[[Sequence[Settlement]], bool] = lambda settlements: False
        self.away = False

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        if self.away:
            raise StorageUnavailableError("out of reach")
        if self.answers_invalid(settlements):
            self.answers_invalid = lambda settlements: False
            return None  # type: ignore[return-value]
        return await super().exchange(owner, settlements, order)


def on_invalid_answers(scenario: Callable[[Harness, InvalidAnswers], Any]) -> None:
    """Run a scenario on a memory storage with invalid answers."""

    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = InvalidAnswers(clock)
        await scenario(Harness(loop, clock, storage), storage)

    simulate(main)


def test_a_worker_with_a_failed_loop_releases_its_runs(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: Harness, storage: InvalidAnswers) -> None:
        app = harness.app()
        stopped: list[int] = []

        @app.task
        async def task(number: int) -> int:
            try:
                await asyncio.sleep(60 if current_job().run == 1 else 1)
            except asyncio.CancelledError:
                stopped.append(number)
                raise
            return current_job().run

        worker = app.worker()
        node = await harness.start(worker, "one")
        jobs = [await task.enqueue(number) for number in range(5)]
        await asyncio.sleep(1)
        storage.answers_invalid = lambda settlements: True
        jobs.append(await task.enqueue(5))
        with pytest.raises(BaseExceptionGroup):
            await harness.loop.start(node, worker.wait())
        records = [(await job.info()).job for job in jobs]
        took = harness.now

        assert worker.ended
        assert took < 3
        assert sorted(stopped) == [0, 1, 2, 3, 4]
        assert {(record.state, record.failures, record.stalls) for record in records} == {(State.WAITING, 0, 0)}
        assert [item.releases for item in records] == [1, 1, 1, 1, 1, 0]
        assert [event.reason for event in await harness.events_of(JobReleased)] == ["worker_failed"] * 5
        assert [event.reason for event in await harness.events_of(WorkerStopping)] == ["failed"]
        await harness.start(app.worker(), "two")
        # The last of them started only here.
        assert [await job.result() for job in jobs] == [2, 2, 2, 2, 2, 1]

    on_invalid_answers(scenario)
    assert "failed; stopping it" in caplog.text


def test_every_second_put_back_by_failing_workers_is_charged_as_a_stall() -> None:
    async def scenario(harness: Harness, storage: InvalidAnswers) -> None:
        app = harness.app()

        @app.task(stall=Stall(max_count=1))
        async def task() -> None:
            await asyncio.sleep(60)

        job = await task.enqueue()
        for _ in range(4):
            worker = app.worker(reaper=False)
            node = await harness.start(worker, "one")
            await asyncio.sleep(1)
            storage.answers_invalid = lambda settlements: True
            await task.enqueue()
            with pytest.raises(BaseExceptionGroup):
                await harness.loop.start(node, worker.wait())
        detail = await job.info()
        stalls = [event for event in await harness.events_of(JobStalled) if event.id == job.id]

        assert [(run.ended, run.reason) for run in detail.runs] == [
            ("released", "worker_failed"),
            ("stalled", "process_died"),
        ] * 2
        assert [(event.run, event.count, event.action, event.reason) for event in stalls] == [
            (2, 1, "recovered", "process_died"),
            (4, 2, "failed", "process_died"),
        ]
        assert (detail.job.state, detail.job.reason, detail.job.stalls) == (State.FAILED, "crashed", 2)

    on_invalid_answers(scenario)


@pytest.mark.parametrize("bad", [1, 2])
def test_a_partly_started_claim_releases_only_jobs_that_did_not_begin(
    monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    async def scenario(harness: Harness, storage: InvalidAnswers) -> None:
        app = harness.app(defaults=TaskOptions(stall=Stall(max_count=0)))
        at_work, overlaps = set[int](), list[int]()

        @app.task
        async def task(number: int) -> None:
            overlaps.extend({number} & at_work)
            at_work.add(number)
            await ignore_cancels(8 if current_job().run == 1 else 0)
            at_work.discard(number)

        jobs = [await task.enqueue(number) for number in range(4)]
        begun = 0

        make = harness.loop.create_task

        def create_task(coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
            nonlocal begun
            if coroutine.__name__ == "_run":
                begun += 1
                if begun == bad + 1:
                    coroutine.close()
                    raise MemoryError
            return make(coroutine, **options)

        monkeypatch.setattr(harness.loop, "create_task", create_task)
        worker = app.worker(concurrency=4)
        node = await harness.start(worker, "one")
        await asyncio.sleep(0.5)
        assert begun == bad + 1
        await harness.start(app.worker(concurrency=4), "two")
        with pytest.raises(BaseExceptionGroup):
            await harness.loop.start(node, worker.wait())
        for job in jobs:
            await job.result(timeout=30)
        records = [(await job.info()).job for job in jobs]

        # Before: the first ones were handed back while they ran, and ran twice at a time.
        assert overlaps == []
        counts = [(record.starts, record.releases, record.stalls, record.failures) for record in records]
        assert counts == [(1, 0, 0, 0)] * bad + [(2, 1, 0, 0)] * (4 - bad)
        released = {item.id: item.reason for item in await harness.events_of(JobReleased)}
        assert released == {job.id: "prefetch" for job in jobs[bad + 1 :]} | {jobs[bad].id: "worker_failed"}

    on_invalid_answers(scenario)


def test_outcomes_from_before_a_loop_failure_are_recorded() -> None:
    async def scenario(harness: Harness, storage: InvalidAnswers) -> None:
        app = harness.app()

        @app.task
        async def task() -> int:
            await asyncio.sleep(1)
            return current_job().run

        worker = app.worker()
        node = await harness.start(worker, "one")
        storage.answers_invalid = lambda settlements: bool(settlements)
        job = await task.enqueue()
        with pytest.raises(BaseExceptionGroup):
            await harness.loop.start(node, worker.wait())
        record = (await job.info()).job

        assert (record.state, record.starts) == (State.COMPLETED, 1)
        assert [event.run for event in await harness.events_of(JobCompleted)] == [1]
        assert await harness.events_of(JobStalled, JobReleased) == []

    on_invalid_answers(scenario)


def test_a_failed_worker_does_not_wait_for_ever_to_record_its_failure(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: Harness, storage: InvalidAnswers) -> None:
        app = harness.app()

        @app.task
        async def task() -> int:
            await asyncio.sleep(1)
            return current_job().run

        def fails(settlements: Sequence[Settlement]) -> bool:
            storage.away = bool(settlements)
            return storage.away

        worker = app.worker(reaper=False)
        node = await harness.start(worker, "one")
        storage.answers_invalid = fails
        job = await task.enqueue()
        with pytest.raises(BaseExceptionGroup):
            await harness.loop.start(node, worker.wait())
        took = harness.now
        storage.away = False
        await harness.start(app.worker(), "two")

        assert took < 8
        assert await job.result() == 2
        assert [event.run for event in await harness.events_of(JobStalled)] == [1]

    on_invalid_answers(scenario)
    assert "stopped with 1 unrecorded outcomes" in caplog.text
