"""Two calls at a time: while the storage handles one call, the worker runs the jobs that the other returned."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any

import pytest

from tenure import JobCompleted, Retry, RetryLater, Stall, StorageUnavailableError, TaskOptions, current_job
from tenure.core.job import Owner
from tenure.core.settlement import Settlement
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import ClaimRequest, ExchangeResult
from tenure.worker.active_runs import RunKey
from tenure.worker.executor import starter
from tenure.worker.loop import UNSETTLED_LIMIT
from tenure.worker.prefetch import MOST_HELD
from tenure_testing.simulation.event_loop import SimClock, SimLoop, simulate
from tests.flow.conftest import Harness

CONCURRENCY = 20


class RemoteMemory(MemoryStorage):
    """Memory whose calls take a while, and which records the calls in flight."""

    remote = True

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self.takes: Callable[[], float] = lambda: 0.01
        self.fails: Callable[[int], bool] = lambda number: False
        """Return whether the answer of this call is lost, by its number; the call itself takes effect."""
        self.calls: list[tuple[int, int | None, int]] = []
        """For each call: how many it settled, the room it had, how many calls were in flight with it."""
        self.under_way: dict[int, tuple[set[RunKey], int]] = {}
        self.active = 0
        self.most = 0

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        number, keys = len(self.calls), {(sent.ref, sent.fence) for sent in settlements}
        assert not any(keys & others for others, _ in self.under_way.values())
        self.under_way[number] = keys, 0 if order is None else order.room
        self.calls.append((len(keys), None if order is None else order.room, len(self.under_way)))
        try:
            await asyncio.sleep(self.takes() / 2)
            answer = await super().exchange(owner, settlements, order)
            self.active += len(answer.leases) - sum(verdict.verdict == "done" for verdict in answer.verdicts)
            self.most = max(self.most, self.active)
            await asyncio.sleep(self.takes() / 2)
            if self.fails(number):
                raise StorageUnavailableError("the answer is lost")
            return answer
        finally:
            del self.under_way[number]


def on_remote_memory(scenario: Callable[[Harness, RemoteMemory], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario on a remote storage."""

    async def main(loop: SimLoop) -> None:
        storage = RemoteMemory(SimClock(loop))
        await scenario(Harness(loop, SimClock(loop), storage), storage)

    simulate(main)


def test_a_busy_worker_keeps_two_calls_in_flight_within_its_concurrency() -> None:
    async def scenario(harness: Harness, storage: RemoteMemory) -> None:
        app, dice = harness.app(), Random(7)
        storage.takes = lambda: dice.uniform(0.002, 0.03)
        going = most = 0

        @app.task
        async def task(number: int) -> int:
            nonlocal going, most
            going += 1
            most = max(most, going)
            await asyncio.sleep(dice.choice([0.0, 0.0, 0.001, 0.05]))
            going -= 1
            return number

        jobs = await app.enqueue_many(task.call(number) for number in range(1000))
        await harness.start(app.worker(concurrency=CONCURRENCY))

        assert [await job.result() for job in jobs] == list(range(1000))
        assert max(calls for _, _, calls in storage.calls) == 2
        assert most <= CONCURRENCY
        assert storage.most <= MOST_HELD
        assert len(await harness.events_of(JobCompleted)) == 1000

    on_remote_memory(scenario)


def test_a_storage_that_is_not_remote_gets_one_call_at_a_time() -> None:
    async def scenario(harness: Harness, storage: RemoteMemory) -> None:
        app = harness.app()

        @app.task
        async def task() -> None: ...

        storage.remote = False
        jobs = await app.enqueue_many(task.call() for _ in range(100))
        await harness.start(app.worker(concurrency=CONCURRENCY))
        for job in jobs:
            await job.result()

        assert {calls for _, _, calls in storage.calls} == {1}
        assert storage.calls[0] == (0, CONCURRENCY, 1)

    on_remote_memory(scenario)


def test_a_lone_job_is_claimed_and_settled_at_once_by_one_call_each() -> None:
    async def scenario(harness: Harness, storage: RemoteMemory) -> None:
        app = harness.app()
        began: list[float] = []

        @app.task
        async def task() -> None:
            began.append(harness.now)

        await harness.start(app.worker(concurrency=CONCURRENCY))
        await asyncio.sleep(1)
        before, at = len(storage.calls), harness.now
        await task.enqueue()
        await asyncio.sleep(1)

        assert began[0] - at < 0.011
        assert [(settled, calls) for settled, _, calls in storage.calls[before:]] == [(0, 1), (1, 1)]

    on_remote_memory(scenario)


def test_after_a_failure_single_calls_claim_nothing_until_an_answer() -> None:
    async def scenario(harness: Harness, storage: RemoteMemory) -> None:
        app = harness.app(defaults=TaskOptions(stall=Stall(max_count=0)))

        @app.task
        async def task(number: int) -> int:
            await asyncio.sleep(0.001)
            return number

        jobs = await app.enqueue_many(task.call(number) for number in range(400))
        storage.fails = lambda number: 7 <= number < 11
        await harness.start(app.worker(concurrency=CONCURRENCY))

        assert [await job.result() for job in jobs] == list(range(400))
        calls = storage.calls
        # The first two calls were in flight together; the next one runs alone, and has no room.
        assert calls[8][2] == 2
        assert [calls[number][1:] for number in (9, 10, 11)] == [(0, 1)] * 3
        details = [await job.info() for job in jobs]
        # What those two claimed was found when the storage was available again; no job was charged.
        assert {(detail.job.starts, detail.job.releases) for detail in details} == {(1, 0), (2, 1)}
        assert storage.most <= MOST_HELD

    on_remote_memory(scenario)


def test_claims_with_lost_answers_are_released_while_others_are_in_flight() -> None:
    async def scenario(harness: Harness, storage: RemoteMemory) -> None:
        app, dice = harness.app(defaults=TaskOptions(stall=Stall(max_count=0))), Random(11)
        storage.takes = lambda: dice.uniform(0.002, 0.2)
        storage.fails = lambda number: number % 5 == 4
        runs: list[tuple[int, int]] = []

        @app.task
        async def task(number: int) -> int:
            runs.append((number, current_job().run))
            return number

        jobs = await app.enqueue_many(task.call(number) for number in range(300))
        await harness.start(app.worker(concurrency=CONCURRENCY))

        assert [await job.result() for job in jobs] == list(range(300))
        assert sorted(number for number, _ in runs) == list(range(300))
        assert {(await job.info()).job.stalls for job in jobs} == {0}

    on_remote_memory(scenario)


def test_a_burst_ends_once_the_last_answer_has_no_jobs() -> None:
    async def scenario(harness: Harness, storage: RemoteMemory) -> None:
        app, dice = harness.app(), Random(3)
        storage.takes = lambda: dice.uniform(0.002, 0.03)

        @app.task(retry=Retry(max_attempts=3))
        async def task() -> int:
            if current_job().attempt < 3:
                raise RetryLater(0)
            return current_job().run

        jobs = await app.enqueue_many(task.call() for _ in range(200))
        worker = app.worker(concurrency=CONCURRENCY, burst=True)
        await harness.start(worker)
        async with asyncio.timeout(20):
            await worker.wait()

        assert [await job.result() for job in jobs] == [3] * 200

    on_remote_memory(scenario)


async def test_a_run_begins_at_once_where_the_interpreter_can() -> None:
    begun: list[asyncio.Task[Any] | None] = []

    async def run() -> None:
        begun.append(asyncio.current_task())

    task = starter(asyncio.get_running_loop())(run())
    at_once = task.done()
    await task

    assert at_once is (sys.version_info >= (3, 12))
    assert begun == [task]


async def test_a_custom_task_factory_creates_the_tasks() -> None:
    made: list[object] = []

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
        made.append(coroutine)
        return asyncio.Task(coroutine, loop=loop, **options)

    async def run() -> None: ...

    loop = asyncio.get_running_loop()
    loop.set_task_factory(factory)
    try:
        await starter(loop)(run())
    finally:
        loop.set_task_factory(None)

    assert len(made) == 1


class NoVerdicts(MemoryStorage):
    """Memory as several servers: the one that keeps active jobs accepts no settlement, the others give out jobs."""

    silent = True

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        if not self.silent:
            return await super().exchange(owner, settlements, order)
        return await super().exchange(owner, (), order)


@pytest.mark.thorough
def test_a_worker_with_a_thousand_unsettled_outcomes_claims_no_more() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = NoVerdicts(clock=clock)
        harness = Harness(loop, clock, storage)
        app = harness.app()
        ran = 0

        @app.task
        async def count() -> None:
            nonlocal ran
            ran += 1

        jobs = 2 * UNSETTLED_LIMIT
        await app.enqueue_many(count.call() for _ in range(jobs))
        await harness.start(app.worker(concurrency=CONCURRENCY))
        await asyncio.sleep(60)

        # The jobs of one more claim, and prefetched jobs, are in addition.
        assert UNSETTLED_LIMIT < ran <= UNSETTLED_LIMIT + 2 * CONCURRENCY + MOST_HELD

        storage.silent = False

        async def all_ran() -> bool:
            return len(await harness.events_of(JobCompleted)) == jobs

        await harness.until(all_ran)
        assert ran == jobs

    simulate(main)
