"""Rolling deploys: workers of the old and of the new code share a queue, and a job of a new task meets the new ones."""

import asyncio
import itertools
from typing import Any

import pytest

from tenure import (
    JobReleased,
    JobStalled,
    Reaper,
    ScheduleMissed,
    ScheduleSkipped,
    State,
    Task,
    Tenure,
    current_job,
)
from tenure.core.backlog import Backlog, Thresholds
from tenure.health.assessment import Health, judged
from tenure.storage.protocol import Query, Survey
from tests.flow.conftest import FAST, Harness, RunScenario

pytestmark = pytest.mark.thorough

OLD_WORKERS = 19


def old_code(harness: Harness) -> Tenure:
    """Return the app of the old code: one task, which keeps its workers busy."""
    app = harness.app(timing=FAST)

    @app.task(name="busy")
    async def busy(seconds: float) -> None:
        await asyncio.sleep(seconds)

    return app


def new_code(harness: Harness, starts: list[float]) -> Tenure:
    """Return the app of the new code: it has one more task."""
    app = old_code(harness)

    @app.task(name="new")
    async def new() -> int:
        starts.append(harness.now)
        return current_job().run

    return app


def new_task(app: Tenure) -> Task[..., Any]:
    """Return the new task of an app."""
    return app.find_task("new")


def judged_now(survey: Survey, now: float) -> Health:
    """Return the health of a survey."""
    return judged(survey, timing=FAST, thresholds=Thresholds(), backlog=Backlog(), now=now)


async def fleet(harness: Harness, starts: list[float], *, old: int = OLD_WORKERS) -> Tenure:
    """Start workers of the old code, one of the new code and a reaper; return the app of the new code."""
    for number in range(old):
        await harness.start(old_code(harness).worker(concurrency=4), f"old-{number}")
    app = new_code(harness, starts)
    await harness.start(app.worker(concurrency=10), "new")
    await harness.start(Reaper(app), "reaper")
    return app


@pytest.mark.parametrize("seconds", [60.0, 0.3])
def test_a_new_tasks_job_starts_in_two_seconds_with_busy_old_workers(run_scenario: RunScenario, seconds: float) -> None:
    async def scenario(harness: Harness) -> None:
        starts: list[float] = []
        app = new_code(harness, starts)
        for number in range(OLD_WORKERS):
            await harness.start(old_code(harness).worker(concurrency=4), f"old-{number}")
        for _ in range(OLD_WORKERS * 4):
            await app.find_task("busy").enqueue(seconds)
        await asyncio.sleep(0.1)
        await harness.start(app.worker(), "new")
        for _ in range(10):
            asked = harness.now
            job = await new_task(app).enqueue()
            assert await job.result() in (1, 2)
            record = (await job.info()).job

            assert starts[-1] - asked <= 2
            assert (record.failures, record.stalls) == (0, 0)
            assert record.releases <= 1

    run_scenario(scenario)


def test_a_thousand_jobs_of_a_new_task_start_on_the_new_worker_only(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        starts: list[float] = []
        app = await fleet(harness, starts)
        for _ in range(10):
            await asyncio.gather(*(new_task(app).enqueue() for _ in range(100)))

        async def over() -> bool:
            return len(starts) >= 1000 and not (await app.storage.find(Query(states=(State.ACTIVE,)))).jobs

        await harness.until(over)
        jobs = (await app.storage.find(Query(limit=2000))).jobs

        assert {job.state for job in jobs} == {State.COMPLETED}
        assert len(starts) == len(jobs) == 1000
        assert {(job.failures, job.stalls) for job in jobs} == {(0, 0)}
        assert max(job.releases for job in jobs) <= 1
        assert {event.reason for event in await harness.events_of(JobReleased)} <= {"unknown_task", "prefetch"}
        assert await harness.events_of(JobStalled) == []

    run_scenario(scenario)


@pytest.mark.parametrize("old", [1, OLD_WORKERS])
def test_a_schedule_of_the_new_code_loses_no_tick(run_scenario: RunScenario, old: int) -> None:
    async def scenario(harness: Harness) -> None:
        starts: list[float] = []
        app = new_code(harness, starts)
        ticks: list[float] = []

        @app.every("2s", name="often")
        async def often() -> None:
            ticks.append(harness.now)

        for number in range(old):
            await harness.start(old_code(harness).worker(concurrency=4), f"old-{number}")
        await harness.start(app.worker(), "new")
        await harness.start(Reaper(app), "reaper")
        await asyncio.sleep(95)

        assert len(ticks) in (47, 48)
        assert max(after - before for before, after in itertools.pairwise(ticks)) <= 4
        assert await harness.events_of(ScheduleSkipped, ScheduleMissed) == []

    run_scenario(scenario)


def test_a_retry_and_a_key_of_a_new_task_waste_no_further_claim(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        running: list[int] = []

        @app.task(name="flaky", singleton=True)
        async def flaky() -> None:
            running.append(1)
            assert len(running) == 1
            await asyncio.sleep(0.1)
            running.pop()
            if current_job().attempt == 1:
                raise ValueError("once")

        for number in range(5):
            await harness.start(old_code(harness).worker(concurrency=4), f"old-{number}")
        jobs = [await flaky.enqueue() for _ in range(20)]
        await asyncio.sleep(1)
        await harness.start(app.worker(concurrency=10), "new")
        await harness.start(Reaper(app), "reaper")
        for job in jobs:
            await job.result(timeout="10m")
        records = [(await job.info()).job for job in jobs]

        assert {(job.failures, job.stalls) for job in records} == {(1, 0)}
        assert max(job.releases for job in records) <= 1

    run_scenario(scenario)


def test_a_worker_that_starts_gets_the_jobs_that_wait_for_it_at_once(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        starts: list[float] = []
        await harness.start(old_code(harness).worker(), "old")
        app = new_code(harness, starts)
        job = await new_task(app).enqueue()
        await asyncio.sleep(30)
        began = harness.now
        await harness.start(app.worker(), "new")
        await job.result()

        assert starts[0] - began <= 2

    run_scenario(scenario)


def test_a_busy_worker_releases_prefetched_jobs_of_unknown_tasks_at_once(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        old = old_code(harness)
        await harness.start(old.worker(concurrency=1, prefetch=8), "old")
        busy = old.find_task("busy")
        for _ in range(50):
            await busy.enqueue(0.001)
        await asyncio.sleep(2)
        app = new_code(harness, [])
        await app.enqueue_many([busy.call(30.0), new_task(app).call()])
        await asyncio.sleep(0.1)

        assert [event.reason for event in await harness.events_of(JobReleased)] == ["unknown_task"]

    run_scenario(scenario)


def test_health_reports_a_task_that_no_live_worker_knew_for_ten_minutes(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.start(old_code(harness).worker(), "old")
        app = new_code(harness, [])
        job = await new_task(app).enqueue()
        await asyncio.sleep(595)
        before = judged_now(await harness.storage.survey(), harness.now)
        await asyncio.sleep(10)
        after = judged_now(await harness.storage.survey(), harness.now)

        assert (before.status, before.queues["default"].no_handler) == ("ok", ())
        assert [(item.task, item.version) for item in after.queues["default"].no_handler] == [("new", 1)]
        assert after.status == "degraded"
        assert ["no_handler" in complaint for complaint in after.complaints] == [True]

        await harness.start(app.worker(), "new")
        await job.result()

        assert judged_now(await harness.storage.survey(), harness.now).status == "ok"

    run_scenario(scenario)
