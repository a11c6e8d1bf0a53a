"""Ticks: one tick is one job, through jobs that are unfinished, outages and changed clocks."""

import asyncio
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from tenure import (
    All,
    Reaper,
    ScheduleFired,
    ScheduleMissed,
    ScheduleSkipped,
    State,
    Tenure,
    current_job,
)
from tenure.client.schedules import ScheduleDecorator
from tenure.clock import SECOND
from tenure.core.cron import Cron
from tenure.core.duration import instant
from tenure.core.job import JobDetail
from tenure.storage.memory.storage import MemoryStorage
from tenure_testing.simulation.event_loop import EPOCH, SimClock, SimLoop, simulate
from tests.flow.conftest import FAST, Harness, RunScenario
from tests.flow.schedules import SLOW, after, jobs_of, scheduled, set_to, sweeping, ticks_of

pytestmark = pytest.mark.thorough

DAY = 86_400 * SECOND


# ── ticks ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_tick_is_one_job_that_knows_its_tick(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, ran = harness.app(timing=FAST), list[tuple[str, str, datetime | None]]()

        @app.cron("*/5 * * * *", args=["all"])
        @app.every("2m", name="often", kwargs={"what": "some"})
        @app.task(name="report")
        async def report(what: str) -> None:
            ran.append((what, current_job().id, current_job().scheduled_for))

        async with app.worker():
            await asyncio.sleep(301)
            await report.enqueue("none")
            await asyncio.sleep(1)

        assert ran == [
            ("some", "cron:often:20270115T080200Z", after(120)),
            ("some", "cron:often:20270115T080400Z", after(240)),
            ("all", "cron:report:20270115T080500Z", after(300)),
            ("none", ran[-1][1], None),
        ]
        fired = await harness.events_of(ScheduleFired)
        assert [(event.name, event.tick, event.queue, event.id) for event in fired] == [
            ("often", after(120), "default", ran[0][1]),
            ("often", after(240), "default", ran[1][1]),
            ("report", after(300), "default", ran[2][1]),
        ]
        assert all(event.late_by < 0.5 for event in fired)

    run_scenario(scenario)


def test_a_function_becomes_a_task_with_options_of_its_own(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.every("1s", queue="reports", overlap="allow", name="often")
        def report() -> str:
            return "done"

        @app.every(1.5, name="odd", overlap="allow")
        async def other() -> None: ...

        async with sweeping(app):
            await asyncio.sleep(3.5)

        assert report() == "done"
        assert report.queue == "reports"
        assert report.name == app.tasks[report.name].name == f"{__name__}.{report.function.__qualname__}"
        assert await ticks_of(harness, "often") == [after(1), after(2), after(3)]
        assert [job.id for job in await jobs_of(harness.storage, "odd")] == [
            "cron:odd:20270115T080001.500000Z",
            "cron:odd:20270115T080003Z",
        ]

    run_scenario(scenario)


@pytest.mark.fault("W-T20")
def test_an_interval_does_not_drift_and_no_new_start_shifts_it(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        for life in range(5):
            app = scheduled(harness, lambda app: app.every("30s", name="often", overlap="allow"))
            async with sweeping(app):
                await asyncio.sleep(47 + life)
        ticks = await ticks_of(harness, "often")

        assert ticks == [after(30 * number) for number in range(1, 9)]

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("text", "tz", "midnight", "count"),
    [
        ("0 * * * *", "Europe/Vienna", datetime(2027, 3, 27, 23, tzinfo=UTC), 11),
        ("0 * * * *", "Europe/Vienna", datetime(2027, 10, 30, 22, tzinfo=UTC), 13),
        ("30 2 * * *", "Europe/Vienna", datetime(2027, 3, 27, 23, tzinfo=UTC), 1),
        ("30 2 * * *", "Europe/Vienna", datetime(2027, 10, 30, 22, tzinfo=UTC), 1),
        ("0 * * * *", "UTC", datetime(2027, 10, 31, tzinfo=UTC), 12),
    ],
)
def test_a_morning_on_which_clocks_are_changed_has_the_ticks_of_the_table(
    run_scenario: RunScenario, text: str, tz: str, midnight: datetime, count: int
) -> None:
    async def scenario(harness: Harness) -> None:
        set_to(harness, midnight - timedelta(seconds=30))
        app = scheduled(harness, lambda app: app.cron(text, tz=tz, name="nightly", overlap="allow"), timing=SLOW)
        async with sweeping(app):
            (noon,) = Cron.parse("0 12 * * *", tz).between(harness.clock.now(), harness.clock.now() + DAY, 1)
            await asyncio.sleep((noon - harness.clock.now()) / SECOND - 30)

        assert len(await ticks_of(harness, "nightly")) == count
        assert all(event.late_by < 1 for event in await harness.events_of(ScheduleFired))

    run_scenario(scenario)


@pytest.mark.fault("W-B7")
def test_neither_a_backlog_nor_a_cancelled_job_delays_the_ticks(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = scheduled(harness, lambda app: app.every("1s", name="often", overlap="allow"))
        async with sweeping(app):
            await asyncio.sleep(5.5)
            (latest,) = (await jobs_of(harness.storage, "often"))[-1:]
            await app.job(latest.id).cancel()
            await asyncio.sleep(5)

        assert await ticks_of(harness, "often") == [after(number) for number in range(1, 11)]

    run_scenario(scenario)


@pytest.mark.fault("W-N14")
def test_a_tick_that_is_far_ahead_sets_no_timer_of_its_own(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = scheduled(harness, lambda app: app.cron("@yearly", name="yearly"), timing=SLOW)
        reaper = Reaper(app)
        async with sweeping(app):
            await asyncio.sleep(0.1)
        waits = [await reaper.turn() for _ in range(3)]
        set_to(harness, datetime(2027, 12, 31, 23, 59, tzinfo=UTC))
        near = await reaper.turn()
        await reaper.start()
        await asyncio.sleep(61)
        await reaper.stop()

        assert all(500 < wait <= 600 for wait in waits)
        assert near == pytest.approx(60)
        assert await ticks_of(harness, "yearly") == [datetime(2028, 1, 1, tzinfo=UTC)]

    run_scenario(scenario)


# ── overlap ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.fault("W-T20")
@pytest.mark.parametrize(
    ("overlap", "ticks", "skipped"),
    [("skip", [1, 5], [2, 3, 4, 6]), ("queue_one", [1, 2, 5], [3, 4, 6]), ("allow", [1, 2, 3, 4, 5, 6], [])],
)
def test_a_tick_with_an_unfinished_job_follows_the_overlap_policy(
    run_scenario: RunScenario, overlap: Any, ticks: list[int], skipped: list[int]
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.every("1s", name="often", overlap=overlap)
        @app.task(name="slow")
        async def slow() -> None:
            await asyncio.sleep(3.5)

        async with app.worker(concurrency=1):
            await asyncio.sleep(6.4)
            seen = await harness.events_of(ScheduleSkipped)
            made = await ticks_of(harness, "often")

        assert made == [after(number) for number in ticks]
        assert [event.tick for event in seen] == [after(number) for number in skipped]
        assert all((event.name, event.reason) == ("often", "overlap") for event in seen)

    run_scenario(scenario)


@pytest.mark.parametrize("overlap", ["skip", "queue_one"])
def test_each_tick_follows_its_policies_through_an_hour_with_deaths(overlap: Any) -> None:
    async def main(loop: SimLoop) -> None:
        clock, dice = SimClock(loop), Random(overlap)
        harness = Harness(loop, clock, MemoryStorage(clock=clock))
        app = harness.app()

        @app.every("5s", name="often", overlap=overlap)
        @app.task(name="long", result_ttl="1d")
        async def long() -> None:
            await asyncio.sleep(dice.uniform(1, 20))

        await harness.start(Reaper(app), "reaper")
        while harness.now < 3600:
            node = await harness.start(app.worker(concurrency=1, reaper=False), "worker")
            await asyncio.sleep(dice.uniform(60, 300))
            harness.loop.kill(node)
        jobs = await jobs_of(harness.storage, "often")
        skipped = await harness.events_of(ScheduleSkipped)
        details = [detail for detail in await harness.storage.get([job.ref for job in jobs]) if detail is not None]

        def over(end: int | None, at: int) -> bool:
            return end is not None and end <= at

        def blocking(at: int, *, claimed_by: int) -> list[JobDetail]:
            unfinished = [detail for detail in details if detail.job.created < at and not over(detail.job.finished, at)]
            runs = [any(run.start <= claimed_by and not over(run.end, at) for run in item.runs) for item in unfinished]
            return [detail for detail, active in zip(unfinished, runs, strict=True) if overlap == "skip" or not active]

        assert {event.reason for event in skipped} == {"overlap"}
        assert len(jobs) + len(skipped) == (clock.now() - EPOCH) // (5 * SECOND)
        # When a tick was handled: the sweep before may have recovered a job that was active when the tick fell due, and
        # a worker may have claimed that job at the same instant.
        assert not any(blocking(job.created, claimed_by=job.created) for job in jobs)
        skips = [instant(event.at, field="at") for event in skipped]
        assert all(blocking(at, claimed_by=at - 1) for at in skips)
        assert len(jobs) > 100
        assert len(skipped) > 100
        assert any(job.stalls for job in jobs)

    simulate(main)


@pytest.mark.fault("W-T20")
def test_a_schedule_without_workers_keeps_one_waiting_job(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = scheduled(harness, lambda app: app.every("1m", name="often"), timing=SLOW)
        async with sweeping(app):
            await asyncio.sleep(3600.5)
        jobs = await jobs_of(harness.storage, "often")

        assert [job.state for job in jobs] == [State.WAITING]
        assert len(await harness.events_of(ScheduleSkipped)) == 59

    run_scenario(scenario)


# ── missed ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("missed", "made", "given_up"),
    [("skip", 0, 36), ("latest", 1, 35), ("all", 36, 0), (All(max=10), 10, 26), (All(), 36, 0)],
)
def test_missed_ticks_follow_the_policy(run_scenario: RunScenario, missed: Any, made: int, given_up: int) -> None:
    async def scenario(harness: Harness) -> None:
        def declare(app: Tenure) -> ScheduleDecorator:
            return app.every("5m", name="often", missed=missed, overlap="allow")

        node = await harness.start(Reaper(scheduled(harness, declare)), "first")
        await asyncio.sleep(1)
        harness.loop.kill(node)
        await asyncio.sleep(3 * 3600 + 60)
        async with sweeping(scheduled(harness, declare)):
            await asyncio.sleep(5)
            ticks, fired = await ticks_of(harness, "often"), await harness.events_of(ScheduleFired)
            lost = await harness.events_of(ScheduleMissed)
            await asyncio.sleep(300)

        every = [after(300 * number) for number in range(1, 38)]
        assert ticks == every[36 - made : 36]
        assert all(
            event.late_by == pytest.approx((after(3 * 3600 + 61) - event.tick).seconds, abs=2) for event in fired
        )
        policy = missed if isinstance(missed, str) else "all"
        assert [(event.ticks, event.policy, event.tick) for event in lost] == (
            [(given_up, policy, every[given_up - 1])] if given_up else []
        )
        assert await ticks_of(harness, "often") == every[36 - made :]

    run_scenario(scenario)


def test_many_missed_ticks_are_fired_in_bounded_steps(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        def declare(app: Tenure) -> ScheduleDecorator:
            return app.every("1s", name="often", missed="all", overlap="allow")

        async with sweeping(scheduled(harness, declare)):
            await asyncio.sleep(0.5)
        await asyncio.sleep(350)
        async with sweeping(scheduled(harness, declare)):
            await asyncio.sleep(0.1)

        assert await ticks_of(harness, "often") == [after(number) for number in range(1, 351)]

    run_scenario(scenario)


# ── clocks that are set ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("pause", [False, True])
def test_a_clock_that_was_set_forward_and_back_stops_no_schedule(run_scenario: RunScenario, pause: bool) -> None:
    async def scenario(harness: Harness) -> None:
        app = scheduled(harness, lambda app: app.every("1m", name="often", overlap="allow"))
        async with sweeping(app):
            await asyncio.sleep(61)
            harness.clock.step(30 * 86_400)
            await asyncio.sleep(2)
            harness.clock.step(-30 * 86_400)
            if pause:
                await app.schedules.pause("often")
                await app.schedules.resume("often")
            await asyncio.sleep(300)
        missed = await harness.events_of(ScheduleMissed)

        # The latest tick missed by the wrong clock is far ahead.
        assert await ticks_of(harness, "often") == [*map(after, range(60, 361, 60)), after(30 * 86_400 + 60)]
        assert [event.ticks for event in missed] == [30 * 24 * 60 - 1]
        assert await harness.events_of(ScheduleSkipped) == []

    run_scenario(scenario)


def test_ticks_repeated_by_a_clock_set_back_create_no_second_job(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = scheduled(harness, lambda app: app.every("1m", name="often", overlap="allow"))
        async with sweeping(app):
            await asyncio.sleep(301)
            harness.clock.step(-120)
            await asyncio.sleep(180)
        skipped = await harness.events_of(ScheduleSkipped)

        assert await ticks_of(harness, "often") == [*map(after, range(60, 361, 60))]
        assert [(event.tick, event.reason) for event in skipped] == [
            (after(240), "duplicate"),
            (after(300), "duplicate"),
        ]

    run_scenario(scenario)


def test_a_clock_set_back_by_a_moment_repeats_no_tick(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = scheduled(harness, lambda app: app.every("1m", name="often", overlap="allow"))
        async with sweeping(app):
            await asyncio.sleep(121)
            harness.clock.step(-5)
            await asyncio.sleep(65)

        assert await ticks_of(harness, "often") == [after(60), after(120), after(180)]
        assert await harness.events_of(ScheduleSkipped, ScheduleMissed) == []

    run_scenario(scenario)
