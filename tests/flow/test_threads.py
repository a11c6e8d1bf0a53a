"""What only real threads show: handlers that hang in them, loops that end without a stop."""

import asyncio
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from tenure import (
    JobCancelledError,
    JobCompleted,
    JobFailedError,
    JobStalled,
    Retry,
    State,
    TaskOptions,
    Tenure,
    Timing,
    current_job,
)

pytestmark = pytest.mark.thorough

QUICK = Timing(lease="1s", sweep="200ms", grace="200ms")


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'queue.db'}"


@pytest.fixture
def refused_threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of name prefixes: threads with such a name cannot be started. Remove one to allow them again."""
    refused, start = list[str](), threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if any(thread.name.startswith(name) for name in refused):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return refused


async def reached(app: Tenure, job_id: str, state: State, *, within: float) -> None:
    """Wait until a job is in a state."""
    async with asyncio.timeout(within):
        while await app.job(job_id).state() is not state:  # noqa: ASYNC110 - the storage is what changes
            await asyncio.sleep(0.01)


async def test_a_plain_handler_runs_in_a_thread_and_has_its_current_job(url: str) -> None:
    app = Tenure(url)

    @app.task
    def where() -> tuple[str, int]:
        current_job().heartbeat()
        return threading.current_thread().name, current_job().run

    async with app, app.worker():
        name, run = await (await where.enqueue()).result(timeout=10)

    assert name.startswith("tenure-handler")
    assert run == 1


async def test_a_job_without_a_thread_to_run_in_is_released_uncharged(
    url: str, refused_threads: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    app = Tenure(url)

    @app.task(retry=Retry(max_attempts=1))
    def plain() -> None: ...

    refused_threads.append("tenure-handler")
    async with app, app.worker():
        jobs = [await plain.enqueue() for _ in range(3)]
        for job in jobs:
            await reached(app, job.id, State.DELAYED, within=10)
        details = [await job.info() for job in jobs]

    assert [(detail.job.failures, detail.job.stalls, detail.job.releases) for detail in details] == [(0, 0, 1)] * 3
    assert {item.runs[0].reason for item in details} == {"prefetch"}
    # The operator has to handle the rest; the log says so once.
    assert caplog.text.count("the machine has no thread for its plain handlers; restart it soon") == 1


async def test_a_worker_without_a_keeper_thread_claims_nothing(url: str, refused_threads: list[str]) -> None:
    app = Tenure(url)

    @app.task
    async def never() -> None: ...

    async with app:
        job = await never.enqueue()
        worker = app.worker()
        refused_threads.append("tenure-keeper")
        with pytest.raises(RuntimeError, match="new thread"):
            await worker.start()
        # Anything that it had begun would get its turn here.
        for _ in range(10):
            await asyncio.sleep(0.01)
        state = await job.state()

    assert worker.ended
    assert state is State.WAITING


async def test_a_plain_handler_past_its_timeout_gives_its_slot_back(url: str) -> None:
    app = Tenure(url)
    go = threading.Event()

    @app.task(timeout="200ms", retry=Retry(max_attempts=1))
    def hang() -> None:
        go.wait(30)

    @app.task
    def quick() -> int:
        return 1

    async with app, app.worker(concurrency=1):
        hung = await hang.enqueue()
        with pytest.raises(JobFailedError, match=r"timeout of 0\.2 s"):
            await hung.result(timeout=10)
        assert await (await quick.enqueue()).result(timeout=10) == 1
        go.set()


async def test_a_timeout_error_has_the_stack_of_the_handler(url: str) -> None:
    app = Tenure(url)
    go = threading.Event()

    @app.task(timeout="200ms", retry=Retry(max_attempts=1))
    def hang(secret: str) -> None:
        go.wait(30)

    @app.task(timeout="200ms", retry=Retry(max_attempts=1))
    async def oversleep(secret: str) -> None:
        await asyncio.sleep(30)

    async with app, app.worker():
        for task, line in ((hang, "    go.wait(30)\n"), (oversleep, "    await asyncio.sleep(30)\n")):
            job = await task.enqueue("hunter2")
            with pytest.raises(JobFailedError):
                await job.result(timeout=10)
            error = (await job.info()).job.error
            assert error is not None

            first, place, *_ = error.traceback.splitlines()
            assert first == "Traceback (most recent call last):"
            assert place.endswith((" in hang", " in oversleep"))
            assert line in error.traceback
            assert error.traceback.endswith("TimeoutError: the run passed its timeout of 0.2 s\n")
            assert "hunter2" not in error.traceback
        go.set()


@pytest.mark.fault("W-N17")
async def test_a_plain_handler_that_lost_its_lease_gives_its_slot_back(url: str) -> None:
    app = Tenure(url, timing=QUICK)
    go = threading.Event()

    @app.task(heartbeat_timeout="500ms")
    def hang() -> int:
        if current_job().run == 1:
            go.wait(30)
        return current_job().run

    async with app, app.worker(concurrency=1):
        job = await hang.enqueue()
        assert await job.result(timeout=20) == 2
        go.set()
        events = (await app.storage.events(limit=1000)).events

    assert [event.reason for event in events if isinstance(event, JobStalled)] == ["no_progress"]


async def test_a_plain_handler_sees_its_cancel_long_before_the_next_beat(url: str) -> None:
    app = Tenure(url)
    order: list[tuple[str, int, str]] = []

    @app.task
    def patient(number: int) -> None:
        while True:
            current_job().raise_if_cancelled()
            time.sleep(0.005)

    @patient.on_cancel
    def tidy(number: int) -> None:
        order.append((current_job().id, number, threading.current_thread().name))

    async with app, app.worker(concurrency=1):
        job = await patient.enqueue(7)
        await reached(app, job.id, State.ACTIVE, within=10)
        await job.cancel("enough")
        with pytest.raises(JobCancelledError, match="enough"):
            await job.result(timeout=10)
        record = (await job.info()).job

    assert record.finished is not None
    assert record.cancel_at is not None
    assert record.finished - record.cancel_at < timedelta(seconds=1)
    assert [(job_id, number) for job_id, number, _ in order] == [(job.id, 7)]
    assert order[0][2].startswith("tenure-handler")


async def test_a_plain_handler_that_returns_after_its_cancel_has_completed(url: str) -> None:
    app = Tenure(url)
    called: list[str] = []

    @app.task
    def finishing() -> int:
        while not current_job().cancelled:
            time.sleep(0.005)
        return 7

    finishing.on_cancel(lambda: called.append("hook"))
    async with app, app.worker():
        job = await finishing.enqueue()
        await reached(app, job.id, State.ACTIVE, within=10)
        await job.cancel()
        assert await job.result(timeout=10) == 7
        events = (await app.storage.events(limit=1000)).events

    assert [event.cancel_too_late for event in events if isinstance(event, JobCompleted)] == [True]
    assert called == []


async def test_no_hook_runs_while_its_plain_handler_still_runs(url: str) -> None:
    app = Tenure(url)
    go = threading.Event()
    called: list[str] = []

    @app.task(timeout="500ms")
    def ignoring() -> None:
        go.wait(30)

    ignoring.on_cancel(lambda: called.append("hook"))
    async with app, app.worker():
        job = await ignoring.enqueue()
        await reached(app, job.id, State.ACTIVE, within=10)
        await job.cancel()
        with pytest.raises(JobCancelledError):
            await job.result(timeout=10)
        go.set()

    assert called == []


async def test_a_plain_hook_that_hangs_is_abandoned(url: str) -> None:
    app = Tenure(url)
    go = threading.Event()

    @app.task(timeout="1s")
    async def task() -> None:
        await asyncio.sleep(30)

    @task.on_cancel
    def hang() -> None:
        go.wait(30)

    async with app, app.worker():
        job = await task.enqueue()
        await reached(app, job.id, State.ACTIVE, within=10)
        await job.cancel()
        with pytest.raises(JobCancelledError):
            await job.result(timeout=8)
        go.set()


async def test_handlers_that_fill_the_loops_own_threads_do_not_delay_a_stop(url: str) -> None:
    app = Tenure(url)
    go = threading.Event()

    @app.task
    async def fill() -> None:
        await asyncio.to_thread(go.wait, 30)

    worker = app.worker(concurrency=40)
    await worker.start()
    jobs = await app.enqueue_many(fill.call() for _ in range(40))
    await reached(app, jobs[0].id, State.ACTIVE, within=10)
    async with asyncio.timeout(8):
        await worker.stop(force=True)
    go.set()
    await app.close()


def test_a_worker_whose_loop_ended_without_a_stop_releases_its_jobs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'queue.db'}"

    def make_app() -> Tenure:
        app = Tenure(url, timing=QUICK, defaults=TaskOptions(timeout="1m"))

        @app.task(name="nap")
        async def nap() -> int:
            await asyncio.sleep(30 if current_job().run == 1 else 0)
            return current_job().run

        return app

    careless, careful = make_app(), make_app()

    async def forget() -> str:
        await careless.worker().start()
        job = await careless.tasks["nap"].enqueue()
        await reached(careless, job.id, State.ACTIVE, within=10)
        return job.id

    async def find(job_id: str) -> int:
        async with careful, careful.worker():
            run: int = await careful.job(job_id).result(timeout=20)
            return run

    job_id = asyncio.run(forget())

    assert asyncio.run(find(job_id)) >= 2
    asyncio.run(careless.close())


async def test_a_run_that_is_cancelled_stops_its_worker(url: str) -> None:
    app = Tenure(url)

    @app.task
    def quick() -> int:
        return 1

    worker = app.worker()
    running = asyncio.create_task(worker.run())
    assert await (await quick.enqueue()).result(timeout=10) == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert running.cancelled()
    assert worker.ended
    await app.close()


def test_sync_callers_need_no_loop(tmp_path: Path) -> None:
    app = Tenure(f"sqlite:///{tmp_path / 'queue.db'}")

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    async def work() -> None:
        worker = app.worker(burst=True)
        await worker.start()
        await worker.wait()

    job = add.enqueue_sync(1, 2)
    assert job.state_sync() is State.WAITING
    asyncio.run(work())

    result, starts, cancelled = job.result_sync(timeout=10), job.info_sync().job.starts, job.cancel_sync()
    asyncio.run(app.close())

    assert (result, starts, cancelled) == (3, 1, False)
