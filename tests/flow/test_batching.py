"""Callers that enqueue at the same time share a call of the storage; a failure of one does not reach the others."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import pytest

from tenure import Job, StorageError, StorageFullError, StorageUnavailableError, Task, Tenure
from tenure.client.batching import JOBS, LONG, EnqueueBatcher
from tenure.core.job import JobRecord, NewJob, Ref
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import EnqueueResult
from tenure_testing.simulation.event_loop import SimClock, SimLoop, simulate
from tests.flow.conftest import Harness, RunScenario

TRIP = 0.01


class RemoteMemory(MemoryStorage):
    """A remote storage: each call takes a while and is recorded."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self.trips: list[list[NewJob]] = []
        self.trip = TRIP
        self.refuse: Callable[[Sequence[NewJob]], Exception | None] = lambda jobs: None
        self.lose_answer: Exception | None = None

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        self.trips.append(list(jobs))
        await asyncio.sleep(self.trip)
        if (error := self.refuse(jobs)) is not None:
            raise error
        receipts = await super().enqueue(jobs)
        if self.lose_answer is not None:
            raise self.lose_answer
        return receipts

    @property
    def sizes(self) -> list[int]:
        return [len(jobs) for jobs in self.trips]


Scenario = Callable[[RemoteMemory, Tenure, Task[[int], None]], Coroutine[Any, Any, None]]


def run(scenario: Scenario) -> None:
    """Run a scenario in virtual time."""

    async def main(loop: SimLoop) -> None:
        storage = RemoteMemory(SimClock(loop))
        app = Tenure(storage=storage)

        @app.task(name="noted")
        async def noted(number: int) -> None: ...

        await scenario(storage, app, noted)

    simulate(main)


def numbers(jobs: Iterable[NewJob | JobRecord]) -> list[int]:
    """Return the arguments of jobs."""
    return [int(job.payload.removeprefix(b'{"number":').removesuffix(b"}")) for job in jobs]


def test_a_single_caller_is_sent_at_once() -> None:
    async def scenario(storage: RemoteMemory, app: Tenure, noted: Task[[int], None]) -> None:
        began = asyncio.get_running_loop().time()
        for number in range(5):
            await noted.enqueue(number)

        assert asyncio.get_running_loop().time() - began == pytest.approx(5 * TRIP)
        assert storage.sizes == [1] * 5

    run(scenario)


def test_concurrent_callers_share_a_call_and_keep_their_order() -> None:
    async def scenario(storage: RemoteMemory, app: Tenure, noted: Task[[int], None]) -> None:
        async def caller(first: int) -> None:
            for number in range(4):
                await noted.enqueue(first + number)

        async with asyncio.TaskGroup() as group:
            for place in range(50):
                group.create_task(caller(100 * place))

        assert storage.sizes == [1, 50, 50, 50, 49]
        sent = [number for jobs in storage.trips for number in numbers(jobs)]
        for place in range(50):
            own = [number for number in sent if number // 100 == place]
            assert own == sorted(own)
        # The storage keeps the order in which the jobs were enqueued.
        assert numbers(storage.trips[1]) == [*(100 * place for place in range(1, 50)), 1]
        line = sorted(storage.model.records.values(), key=lambda job: job.score)
        assert numbers(line) == sent

    run(scenario)


def test_one_call_holds_no_more_than_its_limit_of_jobs_and_bytes() -> None:
    async def scenario(storage: RemoteMemory, app: Tenure, noted: Task[[int], None]) -> None:
        @app.task(name="large")
        async def large(text: str) -> None: ...

        await asyncio.gather(*(noted.enqueue(number) for number in range(2 * JOBS + 2)))

        assert storage.sizes == [1, JOBS, JOBS, 1]

        storage.trips.clear()
        await asyncio.gather(*(large.enqueue("x" * 400_000) for _ in range(6)))

        assert storage.sizes == [1, 3, 2]

    run(scenario)


def test_each_queue_has_calls_of_its_own() -> None:
    async def scenario(storage: RemoteMemory, app: Tenure, noted: Task[[int], None]) -> None:
        elsewhere = noted.options(queue="elsewhere")
        storage.refuse = lambda jobs: StorageUnavailableError("away") if jobs[0].queue == "elsewhere" else None

        outcomes = await asyncio.gather(
            *((noted if number % 2 else elsewhere).enqueue(number) for number in range(20)), return_exceptions=True
        )

        assert [isinstance(outcome, Job) for outcome in outcomes] == [False, True] * 10
        assert all(len({job.queue for job in jobs}) == 1 for jobs in storage.trips)
        assert sorted(storage.sizes) == [1, 1, 9, 9]

    run(scenario)


def test_a_job_that_is_refused_fails_its_caller_alone() -> None:
    async def scenario(storage: RemoteMemory, app: Tenure, noted: Task[[int], None]) -> None:
        storage.refuse = lambda jobs: StorageError("thirteen!") if 13 in numbers(jobs) else None

        outcomes = await asyncio.gather(*(noted.enqueue(number) for number in range(20)), return_exceptions=True)

        for number, outcome in enumerate(outcomes):
            if number == 13:
                assert isinstance(outcome, StorageError)
                assert len(outcome.job_ids) == 1
            else:
                assert isinstance(outcome, Job)
                assert outcome.created
        assert len(storage.model.records) == 19

    run(scenario)


@pytest.mark.parametrize("kind", [StorageUnavailableError, StorageFullError])
def test_a_failure_of_a_whole_batch_reaches_each_caller_with_its_id(kind: type[StorageError]) -> None:
    async def scenario(storage: RemoteMemory, app: Tenure, noted: Task[[int], None]) -> None:
        storage.lose_answer = kind("unknown")
        made = [noted.options(id=f"job-{number}") for number in range(20)]

        outcomes = await asyncio.gather(
            *(item.enqueue(number) for number, item in enumerate(made)), return_exceptions=True
        )

        assert [outcome.job_ids for outcome in outcomes if isinstance(outcome, kind)] == [
            (f"job-{number}",) for number in range(20)
        ]
        assert storage.sizes == [1, 19]

        # A retry with the same id creates no second job.
        storage.lose_answer = None
        again = await asyncio.gather(*(task.enqueue(number) for number, task in enumerate(made)))
        assert not any(job.created for job in again)
        assert len(storage.model.records) == 20

    run(scenario)


def test_a_cancelled_caller_cancels_no_other() -> None:
    async def scenario(storage: RemoteMemory, app: Tenure, noted: Task[[int], None]) -> None:
        tasks = [asyncio.ensure_future(noted.enqueue(number)) for number in range(10)]
        await asyncio.sleep(TRIP / 2)
        # Nine wait for the first call, and the next call takes them together.
        tasks[4].cancel()
        await asyncio.sleep(TRIP)
        tasks[5].cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)

        assert [number for number, outcome in enumerate(outcomes) if isinstance(outcome, asyncio.CancelledError)] == [
            4,
            5,
        ]
        assert storage.sizes == [1, 8]
        # The one job had not been sent, the other had.
        assert sorted(numbers(storage.model.records.values())) == [0, 1, 2, 3, 5, 6, 7, 8, 9]

        lone = asyncio.ensure_future(noted.enqueue(10))
        others = [asyncio.ensure_future(noted.enqueue(number)) for number in (11, 12)]
        await asyncio.sleep(TRIP / 2)
        lone.cancel()

        assert all(job.created for job in await asyncio.gather(*others))

    run(scenario)


def test_after_all_callers_are_cancelled_the_next_is_sent_at_once() -> None:
    async def scenario(storage: RemoteMemory, app: Tenure, noted: Task[[int], None]) -> None:
        tasks = [asyncio.ensure_future(noted.enqueue(number)) for number in range(5)]
        await asyncio.sleep(TRIP / 2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(TRIP)

        assert (await noted.enqueue(7)).created
        assert storage.sizes == [1, 1]

    run(scenario)


def test_a_slow_call_does_not_hold_up_later_callers() -> None:
    async def scenario(storage: RemoteMemory, app: Tenure, noted: Task[[int], None]) -> None:
        storage.trip = 3.0
        hanging = asyncio.ensure_future(noted.enqueue(0))
        await asyncio.sleep(LONG / 2)
        waiting = asyncio.ensure_future(noted.enqueue(1))
        await asyncio.sleep(LONG)
        storage.trip = TRIP
        began = asyncio.get_running_loop().time()

        assert (await noted.enqueue(2)).created
        assert (await waiting).created
        assert asyncio.get_running_loop().time() - began == pytest.approx(TRIP)
        assert not hanging.done()
        assert storage.sizes == [1, 2]
        assert (await hanging).created
        # Afterwards everything is as before.
        await noted.enqueue(3)
        assert storage.sizes == [1, 2, 1]

    run(scenario)


def test_callers_still_share_calls_while_another_call_hangs() -> None:
    async def scenario(storage: RemoteMemory, app: Tenure, noted: Task[[int], None]) -> None:
        async def caller(first: int) -> None:
            for number in range(5):
                await noted.enqueue(first + number)

        storage.trip = 3.0
        hanging = asyncio.ensure_future(noted.enqueue(0))
        await asyncio.sleep(2 * LONG)
        storage.trip = TRIP
        async with asyncio.TaskGroup() as group:
            for place in range(1, 11):
                group.create_task(caller(100 * place))
        await noted.enqueue(1)

        assert not hanging.done()
        assert storage.sizes == [1, *[10] * 5, 1]
        await hanging
        assert (await noted.enqueue(2)).created

    run(scenario)


def test_enqueue_many_is_sent_alone_and_is_all_or_nothing() -> None:
    async def scenario(storage: RemoteMemory, app: Tenure, noted: Task[[int], None]) -> None:
        storage.refuse = lambda jobs: StorageError("thirteen!") if 13 in numbers(jobs) else None

        outcomes = await asyncio.gather(
            *(noted.enqueue(number) for number in range(5)),
            app.enqueue_many(noted.call(number) for number in range(10, 15)),
            app.enqueue_many(noted.call(number) for number in range(20, 25)),
            return_exceptions=True,
        )

        assert isinstance(outcomes[5], StorageError)
        assert len(outcomes[5].job_ids) == 5
        assert sorted(numbers(storage.model.records.values())) == [*range(5), *range(20, 25)]
        assert sorted(storage.sizes) == [1, 4, 5, 5]

    run(scenario)


def test_many_callers_at_once_lose_nothing_on_any_storage(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(name="noted")
        async def noted(number: int) -> None: ...

        jobs = await asyncio.gather(*(noted.enqueue(number) for number in range(200)))

        assert len({job.id for job in jobs}) == 200
        assert all(job.created for job in jobs)
        details = await harness.storage.get([job.ref for job in jobs])
        assert [detail is not None for detail in details] == [True] * 200

    run_scenario(scenario)


class Overtaken(asyncio.SelectorEventLoop):
    """An event loop that runs a callback when it is asked whether it is closed."""

    meanwhile: Callable[[], None] | None = None

    def is_closed(self) -> bool:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return super().is_closed()


def test_event_loops_of_other_threads_may_come_and_go_as_one_begins() -> None:
    trips, storage = EnqueueBatcher(), MemoryStorage()

    def job(id_: str) -> NewJob:
        return NewJob(queue="q", id=id_, task="noted", payload=b"")

    def elsewhere() -> None:
        thread = threading.Thread(target=lambda: asyncio.run(trips.enqueue(storage, job("theirs"))))
        thread.start()
        thread.join()

    earlier = Overtaken()
    earlier.run_until_complete(trips.enqueue(storage, job("earlier")))
    earlier.close()
    earlier.meanwhile = elsewhere

    assert asyncio.run(trips.enqueue(storage, job("ours"))).action == "created"
    assert all(asyncio.run(storage.get([Ref("q", id_) for id_ in ("earlier", "theirs", "ours")])))
