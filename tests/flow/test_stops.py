"""How a worker ends: what it finishes, what it releases, and that no job runs twice."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal

import pytest

from tenure import (
    JobCompleted,
    JobReleased,
    JobStalled,
    State,
    StorageUnavailableError,
    Timing,
    UsageError,
    WorkerStopped,
    current_job,
)
from tenure.core.job import Owner, Ref
from tenure.core.leadership import Term
from tenure.core.settlement import Settlement
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import (
    PROMOTE_LIMIT,
    ClaimRequest,
    EventPage,
    EventReader,
    ExchangeResult,
    RenewRequest,
    RenewResult,
    SweepRequest,
    SweepResult,
)
from tenure_testing.simulation.event_loop import SimClock, SimLoop, simulate
from tests.flow.conftest import FAST, Harness, RunScenario


@pytest.mark.fault("W-T5", "W-N9")
@pytest.mark.statement(94, 95)
def test_a_drain_longer_than_the_lease_renews_until_the_job_finishes(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=Timing.classic())
        runs: list[int] = []

        @app.task
        async def long() -> str:
            runs.append(current_job().run)
            await asyncio.sleep(45)
            return "finished"

        worker, other = app.worker(), app.worker()
        node = await harness.start(worker, "one")
        job = await long.enqueue()
        await asyncio.sleep(1)
        await harness.start(other, "two")
        late = await long.enqueue()
        await harness.stop(node, worker, timeout="60s")

        assert await job.result() == "finished"
        assert await late.result() == "finished"
        assert runs == [1, 1]
        assert await harness.events_of(JobStalled) == []

    run_scenario(scenario)


@pytest.mark.fault("W-B13", "W-P3")
@pytest.mark.statement(94)
def test_past_its_deadline_a_drain_cancels_and_releases_uncharged(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def long() -> int:
            await asyncio.sleep(45 if current_job().run == 1 else 1)
            return current_job().run

        worker = app.worker()
        node = await harness.start(worker, "one")
        job = await long.enqueue()
        await asyncio.sleep(1)
        began = harness.now
        await harness.stop(node, worker, timeout="10s")
        took = harness.now - began
        record = (await job.info()).job

        assert 10 <= took < 11
        assert (record.state, record.releases, record.failures, record.stalls) == (State.WAITING, 1, 0, 0)
        assert [event.reason for event in await harness.events_of(JobReleased)] == ["shutdown"]
        assert [event.released for event in await harness.events_of(WorkerStopped)] == [1]
        await harness.start(app.worker(), "two")
        assert await job.result() == 2

    run_scenario(scenario)


@pytest.mark.statement(94)
def test_a_stopping_worker_claims_no_more(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def short() -> None:
            await asyncio.sleep(5)

        worker = app.worker(concurrency=10)
        node = await harness.start(worker, "one")
        first = await short.enqueue()
        await asyncio.sleep(1)
        stopping = harness.loop.start(node, worker.stop())
        await asyncio.sleep(0.1)
        second = await short.enqueue()
        await stopping

        assert (await first.state(), await second.state()) == (State.COMPLETED, State.WAITING)

    run_scenario(scenario)


class Slow(MemoryStorage):
    """Memory whose claims take a second to return."""

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        answer = await super().exchange(owner, settlements, order)
        await asyncio.sleep(1)
        return answer


@pytest.mark.fault("W-T6")
@pytest.mark.statement(96)
def test_a_claim_that_returns_after_the_stop_is_released_unbegun() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        harness = Harness(loop, clock, Slow(clock=clock))
        app = harness.app()
        begun: list[str] = []

        @app.task
        async def task() -> None:
            begun.append(current_job().id)

        job = await task.enqueue()
        worker = app.worker()
        node = await harness.start(worker)
        await asyncio.sleep(0.5)
        await harness.stop(node, worker)
        record = (await job.info()).job

        assert begun == []
        assert (record.state, record.starts, record.releases, record.stalls) == (State.WAITING, 1, 1, 0)
        assert [event.reason for event in await harness.events_of(JobReleased)] == ["prefetch"]

    simulate(main)


@pytest.mark.statement(97)
def test_a_forced_stop_returns_at_once_and_the_job_runs_again_once(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task
        async def long() -> int:
            await asyncio.sleep(20 if current_job().run == 1 else 1)
            return current_job().run

        worker = app.worker()
        node = await harness.start(worker, "one")
        job = await long.enqueue()
        await asyncio.sleep(1)
        began = harness.now
        await harness.stop(node, worker, force=True)

        assert harness.now - began < 0.5
        await harness.start(app.worker(), "two")
        assert await job.result() == 2
        assert [run.ended for run in (await job.info()).runs] == ["released", "completed"]

    run_scenario(scenario)


@pytest.mark.fault("W-P3")
@pytest.mark.statement(97)
def test_a_forced_stop_releases_a_stubborn_handlers_job_with_a_delay(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task
        async def stubborn() -> int:
            for _ in range(100):
                try:
                    await asyncio.sleep(1)
                except asyncio.CancelledError:
                    continue
            return current_job().run

        worker = app.worker()
        node = await harness.start(worker, "one")
        job = await stubborn.enqueue()
        await asyncio.sleep(1)
        began = harness.now
        await harness.stop(node, worker, force=True)
        record = (await job.info()).job

        assert harness.now - began < 0.5
        assert (record.state, record.releases) == (State.DELAYED, 1)

    run_scenario(scenario)


@pytest.mark.statement(98)
def test_a_second_stop_by_force_shortens_the_first(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def long() -> None:
            await asyncio.sleep(1000)

        worker = app.worker()
        node = await harness.start(worker, "one")
        await long.enqueue()
        await asyncio.sleep(1)
        patient = harness.loop.start(node, worker.stop(timeout="500s"))
        await asyncio.sleep(3)
        began = harness.now
        await harness.stop(node, worker, force=True)
        await patient

        assert harness.now - began < 0.5

    run_scenario(scenario)


@pytest.mark.statement(114)
def test_a_second_start_and_a_second_stop_do_nothing(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        before = len(asyncio.all_tasks())
        worker = app.worker()
        await worker.stop()
        await worker.start()
        await worker.start()
        await asyncio.sleep(1)
        await worker.stop()
        await worker.stop(force=True)
        await asyncio.sleep(0)

        assert len(asyncio.all_tasks()) == before

    run_scenario(scenario)


def test_a_burst_ends_when_nothing_is_left_to_do_now(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def quick(number: int) -> int:
            await asyncio.sleep(1)
            return number

        jobs = await app.enqueue_many(quick.call(number) for number in range(25))
        later = await quick.options(delay="1h").enqueue(99)
        worker = app.worker(burst=True)
        node = await harness.start(worker)
        await harness.loop.start(node, worker.wait())

        assert [await job.result() for job in jobs] == list(range(25))
        assert await later.state() is State.DELAYED
        assert harness.now < 10

    run_scenario(scenario)


def test_a_burst_does_not_wait_for_a_rate(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(rate="1/m")
        async def paced() -> None:
            pass

        @app.task(queue="slow")
        async def free() -> None:
            pass

        await app.queue("slow").set_rate("1/h")
        jobs = [await task.enqueue() for task in (paced, free) for _ in range(5)]
        node = await harness.start(worker := app.worker(burst=True))
        await harness.loop.start(node, worker.wait())

        assert harness.now < 10
        assert Counter([await job.state() for job in jobs]) == {State.COMPLETED: 2, State.WAITING: 8}

    run_scenario(scenario)


def test_a_burst_continues_if_a_claim_could_not_look_at_all_due_jobs(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def late() -> None:
            pass

        await app.enqueue_many(late.options(delay="1s", ttl="2s").call() for _ in range(PROMOTE_LIMIT + 1))
        last = await late.options(delay="2s").enqueue()
        await asyncio.sleep(5)
        node = await harness.start(worker := app.worker(burst=True, reaper=False))
        await harness.loop.start(node, worker.wait())

        assert await last.state() is State.COMPLETED

    run_scenario(scenario)


class ClosableMemory(MemoryStorage):
    """Memory that, while it is closed, refuses every call, or never answers."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self.closed: Literal["", "refuses", "hangs"] = ""

    async def _check_open(self) -> None:
        if self.closed == "refuses":
            raise StorageUnavailableError("closed")
        if self.closed == "hangs":
            await asyncio.Event().wait()

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        await self._check_open()
        return await super().exchange(owner, settlements, order)

    async def renew(self, beat: RenewRequest) -> RenewResult:
        await self._check_open()
        return await super().renew(beat)

    async def sweep(self, bid: SweepRequest) -> SweepResult:
        await self._check_open()
        return await super().sweep(bid)

    async def resign(self, term: Term) -> None:
        await self._check_open()
        await super().resign(term)

    async def events(
        self,
        cursor: str | None = None,
        *,
        limit: int = 100,
        reader: EventReader | None = None,
        ref: Ref | None = None,
    ) -> EventPage:
        await self._check_open()
        return await super().events(cursor, limit=limit, reader=reader, ref=ref)


CASES = pytest.mark.parametrize("closed", ["refuses", "hangs"])
STUBBORN = pytest.mark.parametrize("stubborn", [False, True])


def on_closable_memory(scenario: Callable[[Harness, ClosableMemory], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario on a storage that can be closed."""

    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = ClosableMemory(clock)
        await scenario(Harness(loop, clock, storage), storage)

    simulate(main)


@CASES
@STUBBORN
@pytest.mark.fault("W-B13")
@pytest.mark.statement(94)
def test_a_worker_without_a_storage_ends_within_5_s_of_its_drain(
    closed: Literal["refuses", "hangs"], stubborn: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(harness: Harness, storage: ClosableMemory) -> None:
        app = harness.app()

        @app.task
        async def long() -> int:
            try:
                await asyncio.sleep(120 if current_job().run == 1 else 1)
            except asyncio.CancelledError:
                if not stubborn:
                    raise
                await asyncio.sleep(1000)
            return current_job().run

        app.on(JobCompleted)(lambda event: None)
        worker = app.worker()
        node = await harness.start(worker, "one")
        jobs = [await long.enqueue() for _ in range(3)]
        await asyncio.sleep(10)
        storage.closed = closed
        began = harness.now
        await harness.stop(node, worker)
        took = harness.now - began
        storage.closed = ""

        # The process around it gets 0.3 s to close its storage, and its supervisor the rest of the 5 s.
        assert 25 <= took <= 25 + 3.75
        (records,) = [record.getMessage() for record in caplog.records if "unrecorded outcomes" in record.getMessage()]
        assert re.search(r"with 3 unrecorded outcomes, \d unrecorded events, and its record", records)
        await harness.start(app.worker(), "two")
        assert [await job.result() for job in jobs] == [2, 2, 2]

    on_closable_memory(scenario)


@CASES
def test_a_forced_stop_does_not_wait_for_an_unavailable_storage(closed: Literal["refuses", "hangs"]) -> None:
    async def scenario(harness: Harness, storage: ClosableMemory) -> None:
        app = harness.app()

        @app.task
        async def long() -> None:
            await asyncio.sleep(120)

        worker = app.worker()
        node = await harness.start(worker, "one")
        await long.enqueue()
        await asyncio.sleep(10)
        storage.closed = closed
        began = harness.now
        await harness.stop(node, worker, force=True)

        assert harness.now - began < 2.0

    on_closable_memory(scenario)


def test_a_storage_that_returns_while_a_worker_stops_gets_all_outcomes(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: Harness, storage: ClosableMemory) -> None:
        app = harness.app()

        @app.task
        async def short() -> str:
            await asyncio.sleep(15)
            return "done"

        @app.task
        async def long() -> None:
            await asyncio.sleep(120)

        worker = app.worker()
        node = await harness.start(worker, "one")
        done, cut = await short.enqueue(), await long.enqueue()
        await asyncio.sleep(10)
        storage.closed = "refuses"
        stopping = harness.loop.start(node, worker.stop())
        await asyncio.sleep(26)
        storage.closed = ""
        await stopping

        assert await done.result() == "done"
        record = (await cut.info()).job
        assert (record.releases, record.stalls) == (1, 0)
        assert "unrecorded outcomes" not in caplog.text

    on_closable_memory(scenario)


def test_a_worker_reports_that_it_stops_at_once(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def short() -> None:
            await asyncio.sleep(5)

        worker = app.worker()
        seen = [worker.stopping]
        node = await harness.start(worker)
        await short.enqueue()
        await asyncio.sleep(1)
        seen.append(worker.stopping)
        stopping = harness.loop.start(node, worker.stop())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        seen.append(worker.stopping)
        ended = worker.ended
        await stopping
        seen.append(worker.stopping)

        assert seen == [False, False, True, True]
        assert not ended

    run_scenario(scenario)


def test_a_worker_without_slots_or_queues_is_refused() -> None:
    from tenure import Tenure

    app = Tenure("memory://")
    with pytest.raises(UsageError, match="concurrency"):
        app.worker(concurrency=0)
    with pytest.raises(UsageError, match="queues"):
        app.worker(queues=[])
