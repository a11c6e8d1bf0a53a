"""The lifespan of a worker: entered before the first claim, left after the last run, no matter what happens."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal

import pytest

from tenure import (
    Inject,
    JobContext,
    Proceed,
    RunCall,
    State,
    StorageUnavailableError,
    Tenure,
    UsageError,
    current_job,
)
from tenure_testing.simulation.event_loop import SimClock, SimLoop, simulate
from tests.flow.conftest import FAST, Harness, RunScenario
from tests.flow.test_stops import ClosableMemory


class Life:
    """A lifespan that takes a while, and a record of what it did."""

    def __init__(self, *, enters: float = 0.0, leaves: float = 0.0) -> None:
        self.notes: list[str] = []
        self.apps: list[Tenure] = []
        self.enters = enters
        self.leaves = leaves
        self.cut_off = 0

    @asynccontextmanager
    async def __call__(self, app: Tenure) -> AsyncGenerator[dict[str, int]]:
        self.apps.append(app)
        number = len(self.apps)
        await asyncio.sleep(self.enters)
        self.notes.append(f"entered {number}")
        try:
            yield {"number": number}
            await asyncio.sleep(self.leaves)
        except asyncio.CancelledError:
            self.cut_off += 1
            raise
        finally:
            self.notes.append(f"left {number}")


def test_a_lifespan_is_entered_before_the_first_claim_and_left_at_the_end(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        life = Life(enters=2)
        app = harness.app(lifespan=life)

        @app.task
        async def task() -> None:
            life.notes.append("run")
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0.5)
                life.notes.append("over")

        job = await task.enqueue()
        worker = app.worker()
        node = await harness.start(worker)
        assert life.notes == ["entered 1"]
        await asyncio.sleep(1)
        await harness.stop(node, worker, timeout="1s")

        assert life.notes == ["entered 1", "run", "over", "left 1"]
        assert life.apps == [app]
        assert life.cut_off == 0
        assert await job.state() is State.WAITING

    run_scenario(scenario)


def test_the_yielded_state_is_available_wherever_the_job_is(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(lifespan=Life())
        seen: list[Any] = []

        @app.middleware
        async def layer(call: RunCall, proceed: Proceed) -> Any:
            seen.append(call.job.state)
            return await proceed()

        async def number(job: JobContext = Inject(current_job)) -> int:
            return int(job.state["number"])

        @app.task
        async def task(number: int = Inject(number)) -> Any:
            seen.append(current_job().state)
            return number

        await harness.start(app.worker())

        assert await (await task.enqueue()).result() == 1
        assert seen == [{"number": 1}] * 2

    run_scenario(scenario)


def test_a_worker_without_a_yielded_state_has_the_state_none(run_scenario: RunScenario) -> None:
    @asynccontextmanager
    async def silent(app: Tenure) -> AsyncGenerator[None]:
        yield

    async def scenario(harness: Harness) -> None:
        for app in (harness.app(), harness.app(lifespan=silent)):

            @app.task(name="task")
            async def task() -> Any:
                return current_job().state is None

            worker = app.worker()
            node = await harness.start(worker)
            assert await (await task.enqueue()).result() is True
            await harness.stop(node, worker)

    run_scenario(scenario)


def test_each_worker_enters_a_lifespan_of_its_own(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        life = Life()
        app = harness.app(lifespan=life)

        @app.task
        async def task() -> Any:
            await asyncio.sleep(5)
            return current_job().state["number"]

        one, two = app.worker(concurrency=1), app.worker(concurrency=1)
        node, other = await harness.start(one, "one"), await harness.start(two, "two")
        jobs = [await task.enqueue() for _ in range(2)]

        assert sorted([await job.result() for job in jobs]) == [1, 2]
        await harness.stop(node, one)
        assert life.notes == ["entered 1", "entered 2", "left 1"]
        await harness.stop(other, two)
        assert life.notes[3:] == ["left 2"]

    run_scenario(scenario)


def test_a_burst_worker_leaves_its_lifespan(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        life = Life(leaves=2)
        app = harness.app(lifespan=life)

        @app.task
        async def task() -> None: ...

        await task.enqueue()
        worker = app.worker(burst=True)
        node = await harness.start(worker)
        await harness.loop.start(node, worker.wait())

        assert life.notes == ["entered 1", "left 1"]
        assert life.cut_off == 0

    run_scenario(scenario)


def test_a_lifespan_is_left_in_the_task_that_entered_it(run_scenario: RunScenario) -> None:
    tasks: list[Any] = []
    finished: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Tenure) -> AsyncGenerator[None]:
        async def watch() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                finished.append("watched")

        tasks.append(asyncio.current_task())
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch())
            yield
            watching.cancel()
        tasks.append(asyncio.current_task())

    async def scenario(harness: Harness) -> None:
        worker = harness.app(lifespan=lifespan).worker()
        node = await harness.start(worker)
        await asyncio.sleep(1)
        await harness.stop(node, worker)

        assert tasks[0] is tasks[1]
        assert finished == ["watched"]
        tasks.clear()
        finished.clear()

    run_scenario(scenario)


# ── failing ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_error_at_the_start_of_a_lifespan_stops_the_start(
    run_scenario: RunScenario, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(harness: Harness) -> None:
        attempts: list[int] = []

        @asynccontextmanager
        async def lifespan(app: Tenure) -> AsyncGenerator[str]:
            attempts.append(1)
            if len(attempts) == 1:
                raise ConnectionRefusedError("no database")
            yield "entered"

        app = harness.app(lifespan=lifespan)

        @app.task
        async def task() -> Any:
            return current_job().state

        job = await task.enqueue()
        worker = app.worker()
        with pytest.raises(ConnectionRefusedError, match="no database"):
            await harness.start(worker)
        await asyncio.sleep(30)
        record = (await job.info()).job

        assert (record.state, record.starts) == (State.WAITING, 0)
        assert "does not start: its lifespan cannot be entered" in caplog.text
        # The database is available again.
        await harness.start(worker)
        assert await job.result() == "entered"

    run_scenario(scenario)


def test_a_storage_that_cannot_be_opened_enters_nothing() -> None:
    class UnavailableMemory(ClosableMemory):
        async def open(self) -> None:
            raise StorageUnavailableError("away")

    async def main(loop: SimLoop) -> None:
        clock, life = SimClock(loop), Life()
        harness = Harness(loop, clock, UnavailableMemory(clock))
        with pytest.raises(StorageUnavailableError):
            await harness.start(harness.app(lifespan=life).worker())

        assert life.apps == []

    simulate(main)


def test_a_stop_during_the_start_leaves_the_lifespan(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        life = Life(enters=5, leaves=3)
        worker = harness.app(lifespan=life).worker()
        starting = asyncio.create_task(worker.start())
        await asyncio.sleep(1)
        await worker.stop()

        assert starting.done()
        assert worker.ended
        assert life.notes == ["entered 1", "left 1"]
        assert (life.cut_off, harness.now) == (0, 8)

    run_scenario(scenario)


@pytest.mark.parametrize(("how", "most"), [({"timeout": "3s"}, 3.2), ({"timeout": "1h", "force": True}, 0.2)])
def test_a_lifespan_that_hangs_at_its_start_is_cut_off_by_a_stop(
    run_scenario: RunScenario, how: Any, most: float, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(harness: Harness) -> None:
        life = Life(enters=3600)
        worker = harness.app(lifespan=life).worker()
        starting = asyncio.create_task(worker.start())
        await asyncio.sleep(1)
        began = harness.now
        await worker.stop(**how)

        assert harness.now - began <= most
        assert starting.done()
        assert worker.ended
        assert life.notes == []
        assert "took too long to be entered; cancelling it" in caplog.text
        assert len(asyncio.all_tasks()) == 1

    run_scenario(scenario)


def test_a_start_that_is_cancelled_cancels_the_lifespan(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        life = Life(enters=5)
        worker = harness.app(lifespan=life).worker()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await worker.start()
        took = harness.now
        await asyncio.sleep(10)

        assert (took, life.notes) == (1, [])
        assert len(asyncio.all_tasks()) == 1

    run_scenario(scenario)


def test_a_lifespan_that_ends_by_itself_stops_its_worker_and_releases_jobs(
    run_scenario: RunScenario, caplog: pytest.LogCaptureFixture
) -> None:
    @asynccontextmanager
    async def lifespan(app: Tenure) -> AsyncGenerator[None]:
        async def dies() -> None:
            await asyncio.sleep(5)
            raise ConnectionResetError("the pool is gone")

        async with asyncio.TaskGroup() as group:
            group.create_task(dies())
            yield

    async def scenario(harness: Harness) -> None:
        app = harness.app(lifespan=lifespan, timing=FAST)

        @app.task
        async def task() -> None:
            await asyncio.sleep(60)

        worker = app.worker()
        node = await harness.start(worker)
        job = await task.enqueue()
        with pytest.raises(BaseExceptionGroup) as raised:
            await harness.loop.start(node, worker.wait())
        record = (await job.info()).job

        assert raised.group_contains(RuntimeError, match="the lifespan ended before its worker did")
        assert worker.ended
        assert harness.now < 8
        assert (record.state, record.releases) == (State.WAITING, 1)
        assert "the pool is gone" in caplog.text

    run_scenario(scenario)


def test_an_error_at_the_end_of_a_lifespan_is_logged_and_ends_cleanly(
    run_scenario: RunScenario, caplog: pytest.LogCaptureFixture
) -> None:
    @asynccontextmanager
    async def lifespan(app: Tenure) -> AsyncGenerator[None]:
        yield
        raise ConnectionResetError("gone before")

    async def scenario(harness: Harness) -> None:
        worker = harness.app(lifespan=lifespan).worker()
        node = await harness.start(worker)
        await harness.stop(node, worker)
        await harness.loop.start(node, worker.wait())

        assert worker.ended
        assert "failed while it ended" in caplog.text

    run_scenario(scenario)


# ── time limits ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("drain", "force", "least", "most"),
    [
        (0, False, 3.4, 3.75),
        # The lifespan gets what the drain leaves over.
        (25, False, 24, 26),
        (25, True, 1.4, 1.75),
    ],
)
def test_a_lifespan_that_does_not_end_is_cut_off_within_a_stops_limits(
    run_scenario: RunScenario, drain: int, force: bool, least: float, most: float, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(harness: Harness) -> None:
        life = Life(leaves=3600)
        worker = harness.app(lifespan=life).worker()
        node = await harness.start(worker)
        await asyncio.sleep(1)
        began = harness.now
        await harness.stop(node, worker, timeout=drain, force=force)

        assert least <= harness.now - began <= most
        assert (life.cut_off, life.notes) == (1, ["entered 1", "left 1"])
        assert "took too long to end; cancelling it" in caplog.text

    run_scenario(scenario)


def test_a_second_stop_by_force_shortens_the_wait_for_a_lifespan(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        life = Life(leaves=3600)
        worker = harness.app(lifespan=life).worker()
        node = await harness.start(worker)
        await asyncio.sleep(1)
        patient = harness.loop.start(node, worker.stop(timeout="1h"))
        await asyncio.sleep(60)
        began = harness.now
        await harness.stop(node, worker, force=True)
        await patient

        assert harness.now - began < 1
        assert life.cut_off == 1

    run_scenario(scenario)


@pytest.mark.parametrize("closed", ["refuses", "hangs"])
@pytest.mark.parametrize("leaves", [0.3, 3600])
def test_a_lifespan_ends_after_all_runs_in_every_kind_of_stop(
    closed: Literal["refuses", "hangs"], leaves: float
) -> None:
    async def main(loop: SimLoop) -> None:
        clock, life = SimClock(loop), Life(leaves=leaves)
        storage = ClosableMemory(clock)
        harness = Harness(loop, clock, storage)
        app = harness.app(lifespan=life)

        @app.task
        async def stubborn() -> None:
            while True:
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    continue

        worker = app.worker()
        node = await harness.start(worker)
        await stubborn.enqueue()
        await asyncio.sleep(10)
        storage.closed = closed
        began = harness.now
        await harness.stop(node, worker)

        # No longer than without one: the process around it, and its supervisor, need the rest of the 5 s.
        assert harness.now - began <= 25 + 3.75
        assert life.cut_off == (leaves == 3600)
        assert life.notes == ["entered 1", "left 1"]

    simulate(main)


# ── bad input ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def undecorated(app: Tenure) -> AsyncGenerator[None]:
    yield


async def coroutine(app: Tenure) -> None: ...


@asynccontextmanager
async def of_nothing() -> AsyncGenerator[None]:
    yield


@pytest.mark.parametrize(
    ("lifespan", "says"),
    [
        ({"db": 1}, "lifespan = .* must be a function of the app, made with asynccontextmanager"),
        (undecorated, "is not an async context manager; decorate it with contextlib.asynccontextmanager"),
        (coroutine, "is not an async context manager; decorate it"),
        (of_nothing, "cannot be called with the app: too many positional arguments; give it one parameter"),
    ],
)
def test_an_invalid_lifespan_is_refused_when_the_app_is_created(lifespan: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Tenure("memory://", lifespan=lifespan)


@contextmanager
def plain(app: Tenure) -> Generator[None]:
    yield


def nothing(app: Tenure) -> None: ...


@pytest.mark.parametrize("lifespan", [plain, nothing])
def test_a_lifespan_without_an_async_context_manager_is_refused_at_start(
    run_scenario: RunScenario, lifespan: Callable[..., Any]
) -> None:
    async def scenario(harness: Harness) -> None:
        with pytest.raises(
            UsageError, match=r"not an async context manager; decorate .* with contextlib\.asynccontext"
        ):
            await harness.start(harness.app(lifespan=lifespan).worker())

    run_scenario(scenario)
