"""Enqueue, run, read: results, retries, timeouts, control flow, and the history of each job."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from tenure import (
    Cancel,
    JobCancelledError,
    JobCompleted,
    JobFailed,
    JobFailedError,
    JobNotFoundError,
    JobRetried,
    Reject,
    ResultTimeoutError,
    Retry,
    RetryLater,
    Snooze,
    State,
    StorageFullError,
    Tenure,
    UsageError,
    WorkerFailed,
    current_job,
)
from tenure.core.job import NewJob, Owner
from tenure.core.settlement import Settlement
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import ClaimRequest, EnqueueResult, ExchangeResult
from tenure_testing.simulation.event_loop import SimClock, SimLoop, simulate
from tests.flow.conftest import Harness, RunScenario


def test_a_result_comes_back_as_the_type_the_handler_returns(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def tomorrow(day: datetime, hours: list[int]) -> tuple[datetime, int]:
            return day + timedelta(days=1), sum(hours)

        await harness.start(app.worker())
        job = await tomorrow.enqueue(datetime(2026, 1, 1, tzinfo=UTC), hours=[1, 2])

        assert await job.result() == (datetime(2026, 1, 2, tzinfo=UTC), 3)

    run_scenario(scenario)


def test_calling_a_task_runs_the_plain_function() -> None:
    app = Tenure("memory://")

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task
    def double(a: int) -> int:
        return 2 * a

    assert asyncio.run(add(1, 2)) == 3
    assert double(4) == 8


def test_every_kind_of_parameter_arrives(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def kinds(a: int, /, b: int = 2, *rest: int, key: str = "k", **more: int) -> list[object]:
            return [a, b, list(rest), key, more]

        await harness.start(app.worker())
        calls = [
            await kinds.enqueue(1),
            await kinds.enqueue(1, key="x", z=9),
            await kinds.enqueue(1, 5, 6, 7, key="x"),
            await kinds.enqueue(1, b=4),
        ]

        assert [await job.result() for job in calls] == [
            [1, 2, [], "k", {}],
            [1, 2, [], "x", {"z": 9}],
            [1, 5, [6, 7], "x", {}],
            [1, 4, [], "k", {}],
        ]

    run_scenario(scenario)


def test_a_failing_job_is_retried_with_backoff_and_fails_at_the_last(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        starts: list[float] = []

        @app.task(retry=Retry(max_attempts=4, base="10s", jitter=False))
        async def fail() -> None:
            starts.append(harness.now)
            raise ValueError(f"attempt {current_job().attempt}")

        await harness.start(app.worker())
        job = await fail.enqueue()
        with pytest.raises(JobFailedError, match="attempt 4") as raised:
            await job.result()
        gaps = [round(later - earlier) for earlier, later in pairwise(starts)]

        assert gaps == [10, 20, 40]
        assert (raised.value.error_type, raised.value.reason) == ("ValueError", "exhausted")
        assert "raise ValueError" in (raised.value.traceback or "")
        assert [event.attempt for event in await harness.events_of(JobRetried)] == [1, 2, 3]
        assert [event.reason for event in await harness.events_of(JobFailed)] == ["exhausted"]
        assert [run.ended for run in (await job.info()).runs] == ["raised"] * 4

    run_scenario(scenario)


def test_never_wins_over_on_and_one_attempt_is_never_again(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(name="never", retry=Retry(on=(ValueError,), never=(UnicodeError,)))
        async def never() -> None:
            raise UnicodeError("never")

        @app.task(name="other", retry=Retry(on=(ValueError,)))
        async def other() -> None:
            raise KeyError("not on the list")

        @app.task(name="once", retry=Retry(max_attempts=1))
        async def once() -> None:
            raise ValueError("once")

        await harness.start(app.worker())
        jobs = [await task.enqueue() for task in (never, other, once)]
        for job in jobs:
            with pytest.raises(JobFailedError):
                await job.result()
        infos = [await job.info() for job in jobs]

        assert [(info.job.starts, info.job.reason) for info in infos] == [
            (1, "rejected"),
            (1, "rejected"),
            (1, "exhausted"),
        ]

    run_scenario(scenario)


def test_a_handler_decides_about_its_job_by_exceptions(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(name="later", retry=Retry(max_attempts=2))
        async def later() -> float:
            if current_job().attempt == 1:
                raise RetryLater("90s")
            return harness.now

        @app.task(name="snooze")
        async def snooze() -> tuple[int, int]:
            if current_job().run < 4:
                raise Snooze("1m")
            return current_job().run, current_job().attempt

        @app.task(name="reject")
        async def reject() -> None:
            raise Reject("bad address")

        @app.task(name="cancel")
        async def cancel() -> None:
            raise Cancel("superseded")

        await harness.start(app.worker())
        postponed, snoozed = await later.enqueue(), await snooze.enqueue()
        rejected, cancelled = await reject.enqueue(), await cancel.enqueue()
        with pytest.raises(JobFailedError, match="bad address"):
            await rejected.result()
        with pytest.raises(JobCancelledError, match="superseded"):
            await cancelled.result()

        assert 90 <= await postponed.result() < 91
        assert await snoozed.result() == (4, 1)
        assert (await rejected.info()).job.reason == "rejected"
        assert (await snoozed.info()).job.releases == 3

    run_scenario(scenario)


def test_a_timeout_ends_the_run_is_charged_as_a_failure_and_named(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(timeout="5s", retry=Retry(max_attempts=2, base="1s", jitter=False))
        async def hang() -> None:
            await asyncio.sleep(3600)

        @app.task(timeout="5s", retry=Retry(max_attempts=1))
        async def own() -> None:
            raise TimeoutError("the handler's own")

        await harness.start(app.worker())
        hung, raised = await hang.enqueue(), await own.enqueue()
        with pytest.raises(JobFailedError, match="timeout of 5 s"):
            await hung.result()
        with pytest.raises(JobFailedError, match="the handler's own"):
            await raised.result()

        assert [run.ended for run in (await hung.info()).runs] == ["timed_out", "timed_out"]
        assert ((await hung.info()).job.reason, (await raised.info()).job.reason) == ("timeout", "exhausted")
        assert 11 <= harness.now < 12

    run_scenario(scenario)


def test_a_job_due_later_starts_then_and_not_before(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        starts: dict[str, float] = {}

        @app.task
        async def note(name: str) -> None:
            starts[name] = harness.now

        await harness.start(app.worker())
        at = datetime.fromtimestamp(harness.clock.now() / 1e6 + 90, UTC)
        jobs = [
            await note.options(delay="1m").enqueue("delay"),
            await note.options(run_at=at).enqueue("run_at"),
            await note.options(run_at=at - timedelta(days=1)).enqueue("past"),
        ]
        for job in jobs:
            await job.result()

        assert starts["past"] < 1
        assert 60 <= starts["delay"] < 60.1
        assert 90 <= starts["run_at"] < 90.1

    run_scenario(scenario)


@pytest.mark.fault("W-T10", "W-B12")
def test_waiting_jobs_of_higher_priority_start_first(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        order: list[int] = []

        @app.task
        async def note(number: int) -> None:
            order.append(number)

        for priority in (0, 5, -5, 5, 0):
            await note.options(priority=priority).enqueue(priority)
        await harness.start(app.worker(concurrency=1))
        await asyncio.sleep(1)

        assert order == [5, 5, 0, 0, -5]

    run_scenario(scenario)


@pytest.mark.fault("W-P5")
@pytest.mark.statement(120)
@pytest.mark.parametrize("job_id", ["a:b", "../../etc/passwd", "a/b", "naïve ☃ 任务", "x" * 1024, "%s {0} '\";--"])
def test_ids_chosen_by_callers_may_contain_any_text(run_scenario: RunScenario, job_id: str) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def own() -> str:
            return current_job().idempotency_key

        await harness.start(app.worker())
        job = await own.options(id=job_id).enqueue()
        again = await own.options(id=job_id).enqueue()

        assert await job.result() == job_id
        assert (job.created, again.created) == (True, False)
        assert (await app.job(job_id, own).info()).job.starts == 1

    run_scenario(scenario)


@pytest.mark.statement(120)
@pytest.mark.parametrize("job_id", ["", "x" * 1025])
def test_an_empty_or_overlong_id_is_refused(job_id: str) -> None:
    app = Tenure("memory://")

    @app.task
    async def own() -> None: ...

    with pytest.raises(UsageError, match="id"):
        own.options(id=job_id).call()


def test_an_unknown_job_is_unknown_and_not_pending(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        job = harness.app().job("unknown")
        for ask in (job.state, job.info, job.result, job.cancel, job.redrive):
            with pytest.raises(JobNotFoundError, match="unknown"):
                await ask()

    run_scenario(scenario)


def test_a_wait_that_times_out_does_not_end_the_job(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def slow() -> str:
            await asyncio.sleep(30)
            return "done"

        await harness.start(app.worker())
        job = await slow.enqueue()
        with pytest.raises(ResultTimeoutError, match="continues"):
            await job.result(timeout="10s")

        assert await job.result() == "done"

    run_scenario(scenario)


async def test_a_result_with_timeout_zero_returns_only_for_an_ended_job(tmp_path: Path) -> None:
    app = Tenure(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task
    async def answer() -> int:
        return 42

    @app.task(queue="unserved")
    async def never() -> None: ...

    async with app:
        over, pending = await answer.enqueue(), await never.enqueue()
        async with app.worker(queues=["default"]):
            await over.result(timeout=10)

        assert await over.result(timeout=0) == 42
        with pytest.raises(ResultTimeoutError, match="did not end within 0 s"):
            await pending.result(timeout=0)
        with pytest.raises(JobNotFoundError):
            await app.job("unheard-of").result(timeout=0)


def test_cancelling_before_the_start_is_at_once_and_redriving_runs_it(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def task() -> int:
            return current_job().run

        job = await task.options(delay="1h").enqueue()
        assert await job.cancel("not needed")
        with pytest.raises(JobCancelledError, match="not needed"):
            await job.result()
        await harness.start(app.worker())
        await asyncio.sleep(10)
        assert (await job.info()).runs == ()
        await job.redrive()

        assert await job.result() == 1
        assert not await job.cancel("too late")
        with pytest.raises(UsageError, match="completed"):
            await job.redrive()

    run_scenario(scenario)


class Full(MemoryStorage):
    """Memory that can be full, as a disk can."""

    full = False

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        if self.full:
            raise StorageFullError("no room")
        return await super().enqueue(jobs)

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        if self.full:
            raise StorageFullError("no room")
        return await super().exchange(owner, settlements, order)


def test_a_full_disk_refuses_enqueueing_and_delays_outcomes() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = Full(clock=clock)
        harness = Harness(loop, clock, storage)
        app = harness.app()
        failures: list[WorkerFailed] = []
        app.on(WorkerFailed, scope="every")(failures.append)

        @app.task
        async def task(number: int) -> int:
            await asyncio.sleep(1)
            return number

        jobs = await app.enqueue_many(task.call(number) for number in range(10))
        await harness.start(app.worker(concurrency=10))
        await asyncio.sleep(0.5)
        storage.full = True
        with pytest.raises(StorageFullError):
            await task.enqueue(99)
        await asyncio.sleep(300)
        assert {await job.state() for job in jobs} == {State.ACTIVE}
        storage.full = False

        assert [await job.result() for job in jobs] == list(range(10))
        assert {(await job.info()).job.starts for job in jobs} == {1}
        assert len(await harness.events_of(JobCompleted)) == 10
        assert {failure.error for failure in failures} == {"no room"}
        assert max(failure.retry_in for failure in failures) <= 5
        assert harness.now < 310

    simulate(main)


def test_a_paused_queue_gives_out_nothing_until_it_is_resumed(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def task() -> float:
            return harness.now

        await app.queue("default").pause(by="me")
        await harness.start(app.worker())
        job = await task.enqueue()
        await asyncio.sleep(60)
        assert await job.state() is State.WAITING
        await app.queue("default").resume(by="me")

        assert 60 <= await job.result() < 61

    run_scenario(scenario)
