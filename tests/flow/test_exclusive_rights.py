"""Runs with an exclusive right: a silent run and an unreachable storage differ, and a right outlives its handler."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tenure import (
    Event,
    JobCancelled,
    JobFailed,
    JobReleased,
    JobRetried,
    JobStalled,
    JobStopIgnored,
    LeaseLost,
    Retry,
    Stall,
    State,
    Tenure,
    current_job,
)
from tenure.client.handle import Job
from tenure.client.task import Task
from tenure.core.job import JobRecord
from tests.flow.conftest import FAST, Harness, RunScenario
from tests.flow.test_abandoned import ignore_cancels
from tests.records import record_of

RIGHTS = [{"singleton": True}, {"concurrency_key": "k"}, {"on_unreachable": "stop"}]
SILENCES = [{"heartbeat_timeout": "2s"}, {"stall": Stall("2s", heartbeat=False)}]


async def ended(job: Job[Any]) -> JobRecord:
    while (await job.state()) in (State.ACTIVE, State.WAITING, State.DELAYED):  # noqa: ASYNC110 - in virtual time
        await asyncio.sleep(0.05)
    return await record_of(job)


def define(app: Tenure, function: Callable[[], Awaitable[None]], **options: object) -> Task[[], None]:
    """Return a task with options that the type checker does not know."""
    return app.task(**options)(function)  # type: ignore[call-overload,no-any-return]


class AtOnce:
    """Counts the handlers that run at the same time."""

    def __init__(self) -> None:
        self.now = self.most = self.runs = 0

    def __enter__(self) -> None:
        self.now += 1
        self.runs += 1
        self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        self.now -= 1


def test_a_silent_singleton_stalls_and_max_count_holds(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, handlers = harness.app(), AtOnce()

        @app.task(singleton=True, heartbeat_timeout="2s", stall=Stall(max_count=1))
        async def sleeper() -> None:
            with handlers:
                await asyncio.sleep(3600)

        job = await sleeper.enqueue()
        await harness.start(app.worker())
        await asyncio.sleep(15)
        record = await record_of(job)

        # Before: 9 runs, 0 stalls, 8 releases.
        assert (record.starts, record.stalls, record.releases) == (2, 2, 0)
        assert (record.state, record.reason) == (State.FAILED, "stalled")
        assert (handlers.runs, handlers.most) == (2, 1)
        stalls = await harness.events_of(JobStalled)
        assert [(stall.reason, stall.action, stall.count) for stall in stalls] == [
            ("no_progress", "recovered", 1),
            ("no_progress", "failed", 2),
        ]
        assert stalls[0].silent_for == pytest.approx(2.5, abs=0.1)
        assert "gave no sign of progress" in stalls[0].post_mortem
        assert "await asyncio.sleep(3600)" in stalls[0].post_mortem
        assert len(await harness.events_of(JobFailed)) == 1
        assert await harness.events_of(JobReleased, LeaseLost) == []

    run_scenario(scenario)


@pytest.mark.parametrize("silence", SILENCES)
@pytest.mark.parametrize("right", [*RIGHTS, {"on_worker_lost": "fail"}])
def test_a_silent_worker_is_charged_with_every_kind_of_right(
    run_scenario: RunScenario, right: dict[str, Any], silence: dict[str, Any]
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        async def sleeper() -> None:
            await asyncio.sleep(3600)

        job = await define(app, sleeper, **{"stall": Stall(max_count=1), **right, **silence}).enqueue()
        await harness.start(app.worker())
        record = await ended(job)

        once = "on_worker_lost" in right
        assert (record.state, record.reason) == (State.FAILED, "stalled")
        assert (record.starts, record.stalls, record.releases) == ((1, 1, 0) if once else (2, 2, 0))
        reason = "no_progress" if "heartbeat_timeout" in silence else "lease_expired"
        assert {item.reason for item in await harness.events_of(JobStalled)} == {reason}

    run_scenario(scenario)


def test_a_keyed_job_within_its_start_grace_completes(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(concurrency_key="k", stall=Stall("500ms", heartbeat=False, start_grace="4s"))
        async def work() -> str:
            await asyncio.sleep(2)
            return "done"

        job = await work.enqueue()
        await harness.start(app.worker())

        # Before: it never completed.
        assert await job.result(timeout=10) == "done"
        record = await record_of(job)
        assert (record.starts, record.stalls, record.releases) == (1, 0, 0)

    run_scenario(scenario)


def test_an_exclusive_run_that_reports_progress_continues(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(singleton=True, heartbeat_timeout="2s")
        async def chatty() -> str:
            for _ in range(10):
                # In the last tenth of the time before it counts as silent.
                await asyncio.sleep(1.95)
                current_job().heartbeat()
            return "done"

        job = await chatty.enqueue()
        await harness.start(app.worker())

        assert await job.result(timeout=60) == "done"
        assert (await record_of(job)).starts == 1

    run_scenario(scenario)


@pytest.mark.parametrize("limit", [{"heartbeat_timeout": "2s"}, {"timeout": "2s"}, {}])
def test_a_right_is_kept_until_a_coroutine_that_ignores_its_stop_ends(
    run_scenario: RunScenario, limit: dict[str, Any]
) -> None:
    async def scenario(harness: Harness) -> None:
        app, handlers = harness.app(timing=FAST), AtOnce()

        async def ignoring() -> None:
            with handlers:
                await ignore_cancels(60 if current_job().run == 1 else 0)

        task = define(app, ignoring, singleton=True, retry=Retry(max_attempts=2, base="1s", jitter=0.0), **limit)
        first, second = await task.enqueue(), await task.enqueue()
        await harness.start(app.worker(concurrency=5))
        await asyncio.sleep(1)
        if not limit:
            await first.cancel("enough")
        await asyncio.sleep(50)

        # Long after the limit and the lease: no worker has taken the job, and it has no outcome yet.
        record = await record_of(first)
        assert (record.state, record.starts, record.owner is not None) == (State.ACTIVE, 1, True)
        assert await second.state() is State.WAITING
        ignored = await harness.events_of(JobStopIgnored)
        reason = "cancelled" if not limit else "timeout" if "timeout" in limit else "no_progress"
        assert [(event.id, event.reason) for event in ignored] == [(first.id, reason)]
        workers = (await harness.storage.survey()).workers
        assert [worker.unstopped for worker in workers] == [(first.ref,)]
        # Its slot is free for others, but its key is not.
        assert handlers.now == 1

        await asyncio.gather(ended(first), ended(second))
        charged: list[type[Event]] = [
            type(item) for item in await harness.events_of(JobStalled, JobRetried, JobCancelled) if item.id == first.id
        ]
        assert charged == [JobCancelled if not limit else JobRetried if "timeout" in limit else JobStalled]
        assert (await record_of(first)).releases == 0
        assert handlers.most == 1
        await asyncio.sleep(5)
        assert [worker.unstopped for worker in (await harness.storage.survey()).workers] == [()]

    run_scenario(scenario)


@pytest.mark.parametrize("limit", [{"timeout": "5s"}, {}])
def test_a_right_is_kept_until_a_cancel_hook_that_ignores_its_stop_ends(
    run_scenario: RunScenario, limit: dict[str, Any]
) -> None:
    async def scenario(harness: Harness) -> None:
        app, at_work = harness.app(timing=FAST), AtOnce()

        async def work() -> None:
            with at_work:
                await asyncio.sleep(60 if at_work.runs == 1 else 0)

        task = define(app, work, singleton=True, **limit)

        @task.on_cancel
        async def tidy() -> None:
            with at_work:
                await ignore_cancels(60)

        first, second = await task.enqueue(), await task.enqueue()
        await harness.start(app.worker(concurrency=5))
        await asyncio.sleep(1)
        await first.cancel("enough")
        await asyncio.sleep(50)

        # The hook had 30 s, or the rest of the timeout, then was cancelled. Before: another run had the right by now.
        record = await record_of(first)
        assert (record.state, record.starts, record.owner is not None) == (State.ACTIVE, 1, True)
        assert await second.state() is State.WAITING
        assert [(item.id, item.reason) for item in await harness.events_of(JobStopIgnored)] == [(first.id, "cancelled")]

        await asyncio.gather(ended(first), ended(second))
        assert await first.state() is State.CANCELLED
        assert await second.state() is State.COMPLETED
        assert (at_work.most, at_work.runs) == (1, 3)

    run_scenario(scenario)


def test_an_unsupervised_worker_runs_other_jobs_while_a_run_keeps_a_right(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(singleton=True, timeout="2s", retry=Retry(max_attempts=1))
        async def ignoring() -> None:
            await ignore_cancels(60)

        @app.task
        async def plain() -> str:
            return "done"

        job = await ignoring.enqueue()
        await harness.start(app.worker(concurrency=1))
        await asyncio.sleep(10)
        assert [item.id for item in await harness.events_of(JobStopIgnored)] == [job.id]

        # No supervisor can replace the worker; if it claimed nothing, one handler would stop all its queues.
        assert await (await plain.enqueue()).result(timeout=1) == "done"
        assert await job.state() is State.ACTIVE

    run_scenario(scenario)
