"""Schedules: what code declares, what an operator does with them, and the mistakes that are refused."""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure import (
    All,
    Collect,
    Reaper,
    Router,
    ScheduleMissed,
    State,
    Tenure,
    Throttle,
    ThrottledError,
    Timing,
    UnknownScheduleError,
    UsageError,
    current_job,
)
from tenure.client.schedules import ScheduleDecorator
from tenure.clock import SECOND
from tenure.core.duration import moment
from tenure_testing.simulation.event_loop import EPOCH
from tests.flow.conftest import FAST, Harness, RunScenario
from tests.flow.schedules import SLOW, START, after, jobs_of, scheduled, sweeping, ticks_of

pytestmark = pytest.mark.thorough


# ── what code declares, and what an operator does ─────────────────────────────────────────────────────────────────────


def test_a_declared_schedule_keeps_its_stored_progress(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        def declare(app: Tenure) -> ScheduleDecorator:
            return app.every("10s", name="often", overlap="allow")

        async with sweeping(app := scheduled(harness, declare)):
            await asyncio.sleep(25)
        before = await app.schedules.get("often")
        await app.schedules.pause("often")
        async with sweeping(app := scheduled(harness, declare)):
            await asyncio.sleep(25)
            paused = await app.schedules.get("often")
            resumed = await app.schedules.resume("often")
            await asyncio.sleep(12)

        assert before.last_tick == EPOCH + 20 * SECOND
        assert (paused.paused, paused.last_tick, paused.last_id) == (True, before.last_tick, before.last_id)
        assert (resumed.paused, resumed.next_tick) == (False, EPOCH + 60 * SECOND)
        # Ticks during the pause are neither caught up nor counted as missed.
        assert await ticks_of(harness, "often") == [after(10), after(20), after(60)]
        assert await harness.events_of(ScheduleMissed) == []

    run_scenario(scenario)


def test_a_changed_text_takes_effect_from_now_on(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        def every(minutes: int) -> Tenure:
            text = f"*/{minutes} * * * *"
            return scheduled(harness, lambda app: app.cron(text, name="often", overlap="allow"), timing=SLOW)

        async with sweeping(every(10)):
            await asyncio.sleep(601)
        await asyncio.sleep(3600)
        async with sweeping(every(7)):
            await asyncio.sleep(600)

        assert await ticks_of(harness, "often") == [after(600), after(4440)]
        assert await harness.events_of(ScheduleMissed) == []

    run_scenario(scenario)


def test_a_schedule_deleted_from_the_code_fires_until_it_is_removed(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        async with sweeping(scheduled(harness, lambda app: app.every("1s", name="often", overlap="allow"))):
            await asyncio.sleep(1.5)
        async with sweeping(app := harness.app(timing=FAST)):
            await asyncio.sleep(2)
            await app.schedules.remove("often")
            await asyncio.sleep(2)
            listed = await app.schedules.list()

        assert listed == ()
        assert await ticks_of(harness, "often") == [after(1), after(2), after(3)]

    run_scenario(scenario)


def test_schedules_are_created_changed_and_removed_at_run_time(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(name="greet")
        async def greet(name: str) -> None: ...

        put = await app.schedules.put("daily", greet.call("you"), cron="0 4 * * *", tz="Europe/Vienna")
        await app.schedules.put("often", greet.call("me"), every="90s", missed=All(5), overlap="allow", grace="1m")
        listed = await app.schedules.list()
        coming = await app.schedules.next("daily", 2)
        changed = await app.schedules.update("often", overlap="queue_one")
        later = await app.schedules.update("daily", greet.call("them"), tz="America/New_York", missed="skip")
        other = await app.schedules.update("daily", every="2h")
        back = await app.schedules.update("daily", cron="@hourly")
        await app.schedules.remove("daily")

        assert (put.name, put.cron, put.tz, put.job.task, put.job.payload) == (
            *("daily", "0 4 * * *", "Europe/Vienna", "greet", b'{"name":"you"}'),
        )
        assert (put.missed, put.overlap, put.paused, put.last_id) == ("latest", "skip", False, None)
        assert coming == (datetime(2027, 1, 16, 3, tzinfo=UTC), datetime(2027, 1, 17, 3, tzinfo=UTC))
        assert put.next_tick == EPOCH + 19 * 3600 * SECOND
        assert [schedule.name for schedule in listed] == ["daily", "often"]
        assert (changed.every, changed.missed, changed.most, changed.overlap, changed.grace) == (
            *(90 * SECOND, "all", 5, "queue_one", 60 * SECOND),
        )
        assert (later.cron, later.tz, later.missed, later.job.payload) == (
            *("0 4 * * *", "America/New_York", "skip", b'{"name":"them"}'),
        )
        assert (other.cron, other.tz, other.every, other.missed) == (None, "UTC", 7200 * SECOND, "skip")
        assert (back.cron, back.tz, back.every) == ("@hourly", "UTC", None)
        assert [schedule.name for schedule in await app.schedules.list()] == ["often"]

    run_scenario(scenario)


def test_a_trigger_creates_a_job_now_and_keeps_the_cadence(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.every("10s", name="often")
        @app.task(name="count")
        async def count() -> str:
            return str(current_job().scheduled_for)

        async with app.worker():
            await asyncio.sleep(4)
            by_hand = await app.schedules.trigger("often")
            result = await by_hand.result()
            await app.schedules.pause("often")
            paused = await (await app.schedules.trigger("often")).result()
            await app.schedules.resume("often")
            await asyncio.sleep(7)

        assert (result, paused) == ("None", "None")
        jobs = await jobs_of(harness.storage, "often")
        assert [job.tick for job in jobs] == [None, None, EPOCH + 10 * SECOND]
        assert by_hand.id in {job.id for job in jobs[:2]}

    run_scenario(scenario)


@pytest.mark.parametrize("options", [{"collect": Collect()}, {"version": 2}, {"since": 1}])
def test_options_of_a_task_are_refused_as_options_of_a_schedule(options: dict[str, Any]) -> None:
    (name,) = options
    for home in (Tenure("memory://"), Router()):
        with pytest.raises(UsageError, match=rf"{name} is an option of the task; put @app.task\({name}=...\) below"):
            home.cron("@daily", **options)
        with pytest.raises(UsageError, match=f"{name} is an option of the task"):
            home.every("1h", **options)


def test_a_manual_trigger_returns_the_receipt_of_its_call(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.every("1h", name="one")
        @app.task(name="unique", unique="one")
        async def unique() -> None: ...

        @app.every("1h", name="few")
        @app.task(name="throttled", throttle=Throttle(max=1, window="1m"))
        async def throttled() -> None: ...

        held, latest = await unique.enqueue(), await throttled.enqueue()
        async with app.worker(queues=["elsewhere"]):
            one, few = [await app.schedules.trigger(name) for name in ("one", "few")]

        assert (one.action, one.id, one.refusal) == ("duplicate", held.id, None)
        assert (few.action, few.id, few.created) == ("throttled", latest.id, False)
        with pytest.raises(ThrottledError, match="task 'throttled': the throttle is full"):
            await few.cancel()
        assert await latest.state() is State.WAITING

    run_scenario(scenario)


@pytest.mark.parametrize("verb", ["get", "pause", "resume", "trigger", "remove", "next", "update"])
def test_an_unknown_schedule_raises_an_error_that_names_the_known_ones(run_scenario: RunScenario, verb: str) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(name="work")
        async def work() -> None: ...

        with pytest.raises(UnknownScheduleError, match="schedule 'nightly' is unknown; known are: none"):
            await getattr(app.schedules, verb)("nightly")
        await app.schedules.put("hourly", work.call(), cron="@hourly")
        with pytest.raises(UnknownScheduleError, match="schedule 'nightly' is unknown; known are: hourly"):
            await getattr(app.schedules, verb)("nightly")

    run_scenario(scenario)


# ── mistakes ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("verb", "when", "options", "message"),
    [
        ("cron", "0 4 * *", {}, "cron = '0 4 * *' has 4 fields, not 5 or 6"),
        ("cron", "0 4 * * *", {"tz": "Mars/Olympus"}, "tz = 'Mars/Olympus' is not a time zone"),
        ("cron", None, {}, "give either cron="),
        ("every", "10ms", {}, "every = '10ms' is less than a second"),
        ("every", "often", {}, "every = 'often' is not a duration"),
        ("every", "1m", {"missed": "some"}, "missed = 'some' is unknown; use one of"),
        ("every", "1m", {"missed": []}, "missed = [] is unknown; use one of"),
        ("every", "1m", {"overlap": "all"}, "overlap = 'all' is unknown; use one of"),
        ("every", "1m", {"grace": -1}, "grace = -1 must be longer than zero"),
        ("every", "1m", {"grace": "0.5s"}, "grace = '0.5s' is less than a second"),
        ("every", "1m", {"name": ""}, "name = '' must be a text"),
        ("every", "1m", {"name": "x" * 201}, "has over 200 bytes; give the schedule a shorter name="),
        ("every", "1m", {"args": "abc"}, "args = 'abc' is a single text, not several"),
        ("every", "1m", {"args": [1]}, "task 'work': too many positional arguments"),
        ("every", "1m", {"kwargs": {"what": 1}}, "task 'work': got an unexpected keyword argument 'what'"),
        ("every", "1m", {"que": "default"}, "option 'que' is unknown; known are name, args"),
        ("every", "1m", {"queue": "default"}, "has its options already; give queue to @app.task"),
        ("every", "1m", {"name": "taken"}, "schedule 'taken' is defined twice; give one of them another name="),
    ],
)
def test_an_invalid_schedule_is_refused_when_it_is_declared(
    verb: str, when: Any, options: dict[str, Any], message: str
) -> None:
    app = Tenure("memory://")

    @app.every("1h", name="taken")
    @app.task(name="work")
    async def work() -> None: ...

    with pytest.raises(UsageError, match=re.escape(message)):
        getattr(app, verb)(when, **options)(work)


@pytest.mark.parametrize(
    ("timing", "grace"), [(Timing(), 10), (Timing.fast(), 10), (Timing.classic(), 20), (SLOW, 2400)]
)
async def test_the_grace_covers_the_replacement_of_a_dead_leader(timing: Timing, grace: int) -> None:
    app = Tenure("memory://", timing=timing)

    @app.task(name="work")
    async def work() -> None: ...

    app.every("1m", name="declared")(work)
    app.every("1m", name="own", grace="2s")(work)
    await app.schedules.put("put", work.call(), every="1m")
    reaper = Reaper(app)
    await reaper.start()
    await reaper.stop()
    declared, own, put = await app.schedules.list()

    assert (declared.grace, own.grace, put.grace) == (grace * SECOND, 2 * SECOND, grace * SECOND)


def test_only_a_task_of_the_app_can_be_scheduled_by_it() -> None:
    app, router = Tenure("memory://"), Router()

    @router.task(name="work")
    async def work() -> None: ...

    with pytest.raises(UsageError, match="is not a task of this app; include its router first"):
        app.every("1h")(work)
    app.include(router)

    assert app.every("1h")(work) is work


@pytest.mark.parametrize("most", [0, -1, 1.5, True, 1_001])
def test_an_invalid_number_of_missed_ticks_is_refused(most: Any) -> None:
    with pytest.raises(UsageError, match=r"^All\.max = "):
        All(most)


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ({}, "give either cron="),
        ({"cron": "@daily", "every": "1h"}, "give either cron="),
        ({"every": "1h", "tz": "Europe/Vienna"}, "tz = 'Europe/Vienna' has no effect on an interval"),
        ({"cron": "0 0 30 2 *"}, "is never due"),
    ],
)
async def test_an_invalid_schedule_is_refused_when_it_is_put(when: dict[str, Any], message: str) -> None:
    app = Tenure("memory://")

    @app.task(name="work")
    async def work() -> None: ...

    with pytest.raises(UsageError, match=re.escape(message)):
        await app.schedules.put("nightly", work.call(), **when)
    with pytest.raises(UsageError, match="run_at contradicts a schedule"):
        await app.schedules.put("nightly", work.options(run_at=START).call(), every="1h")
    with pytest.raises(UsageError, match="call = "):
        await app.schedules.put("nightly", work, every="1h")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await app.schedules.put("hourly", work.call(), every="1h")
    with pytest.raises(UsageError, match="tz = 'UTC' has no effect on an interval"):
        await app.schedules.update("hourly", tz="UTC")
    with pytest.raises(UsageError, match="call = "):
        await app.schedules.update("hourly", work)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="count = 0 must be 1 or more"):
        await app.schedules.next("hourly", 0)


def test_schedules_can_be_managed_without_a_loop() -> None:
    app = Tenure("memory://")

    @app.task(name="work")
    async def work() -> None: ...

    made = app.schedules.put_sync("hourly", work.call(), every="1h")

    assert app.schedules.get_sync("hourly") == made
    assert app.schedules.list_sync() == (made,)
    assert app.schedules.pause_sync("hourly").paused
    assert not app.schedules.resume_sync("hourly").paused
    assert app.schedules.update_sync("hourly", every="2h").every == 7200 * SECOND
    assert len(app.schedules.next_sync("hourly", 3)) == 3
    assert app.schedules.trigger_sync("hourly").state_sync() is State.WAITING
    app.schedules.remove_sync("hourly")
    assert app.schedules.list_sync() == ()


def test_limit_start_end_and_immediately_hold_over_a_change_of_leader(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        runs: dict[str, list[float]] = {"limited": [], "within": [], "at once": []}

        @app.task(name="note")
        async def note(name: str) -> None:
            runs[name].append(harness.now)

        now = moment(harness.clock.now())
        await app.schedules.put("limited", note.call("limited"), every="10s", limit=3)
        start, end = now + timedelta(seconds=30), now + timedelta(seconds=65)
        await app.schedules.put("within", note.call("within"), every="10s", start=start, end=end)
        await app.schedules.put("at once", note.call("at once"), every="1h", immediately=True)
        first = await harness.start(app.worker(), "first")
        await asyncio.sleep(25)
        harness.loop.kill(first)
        await harness.start(app.worker(), "second")
        await asyncio.sleep(100)

        assert len(runs["limited"]) == 3
        assert len(runs["within"]) in (3, 4)
        assert min(runs["within"]) >= 30
        assert max(runs["within"]) < 65 + 5
        assert len(runs["at once"]) == 1
        assert runs["at once"][0] < 5
        assert (await app.schedules.get("limited")).next_tick is None
        assert await app.schedules.next("within", 5) == ()

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"limit": 0}, "limit = 0 must be 1 or more"),
        ({"start": datetime(2026, 1, 1)}, "start = 2026-01-01T00:00:00 has no time zone"),
        ({"end": "tomorrow"}, "end = 'tomorrow' is not a datetime"),
        (
            {"start": datetime(2026, 1, 2, tzinfo=UTC), "end": datetime(2026, 1, 1, tzinfo=UTC)},
            "lies before start",
        ),
        ({"immediately": "yes"}, "immediately = 'yes' must be True or False"),
    ],
)
def test_an_invalid_bound_of_a_schedule_is_refused(options: dict[str, Any], named: str) -> None:
    async def nightly() -> None: ...

    with pytest.raises(UsageError, match=named):
        Tenure("memory://").every("1h", **options)(nightly)
