"""Schedules: one tick is one job, through pauses, outages, changed clocks and the deaths of those who lead."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, TypeVar

import pytest

from holdfast import (
    All,
    Collect,
    Holdfast,
    LeadershipAcquired,
    Reaper,
    ReaperFailed,
    Router,
    Schedule,
    ScheduleFired,
    ScheduleMissed,
    ScheduleSkipped,
    State,
    Throttle,
    ThrottledError,
    Timing,
    UnknownScheduleError,
    UsageError,
    current_job,
)
from holdfast.clock import SECOND
from holdfast.core.cron import Cron
from holdfast.core.duration import instant, moment
from holdfast.core.job import JobDetail, JobRecord, NewJob
from holdfast.schedules import ScheduleDecorator
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.protocol import DUE_LIMIT, Bid, Change, Delete, Planned, PutSchedule, Query, Storage, Swept, Tick
from holdfast.testing.simloop import EPOCH, Node, SameLoop, SimClock, SimLoop, simulate
from tests.flow.conftest import FAST, Play, Stage

pytestmark = pytest.mark.thorough

T = TypeVar("T")

START = moment(EPOCH)
"""08:00 UTC on 15 January 2027."""

SLOW = Timing(lease="1h", sweep="10m", grace="10m")
"""For scenarios of days: the ticks wake the reaper, and there is nothing else to do."""


DAY = 86_400 * SECOND


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def set_to(stage: Stage, at: datetime) -> None:
    stage.clock.step((at - moment(stage.clock.now())).total_seconds())


async def jobs_of(storage: Storage, name: str) -> list[JobRecord]:
    """Return all jobs of a schedule, the oldest tick first."""
    found, cursor = list[JobRecord](), None
    while True:
        page = await storage.find(Query(limit=1000, after=cursor))
        found += [job for job in page.jobs if job.schedule == name]
        cursor = page.next
        if cursor is None:
            return sorted(found, key=lambda job: (job.tick or 0, job.created))


async def ticks_of(stage: Stage, name: str) -> list[datetime]:
    return [moment(job.tick) for job in await jobs_of(stage.storage, name) if job.tick is not None]


def scheduled(stage: Stage, declare: Callable[[Holdfast], ScheduleDecorator], **options: Any) -> Holdfast:
    """Return an app with a task "work" that is scheduled so."""
    app = stage.app(**{"timing": FAST, **options})

    @declare(app)
    @app.task(name="work")
    async def work() -> None: ...

    return app


@asynccontextmanager
async def sweeping(app: Holdfast) -> AsyncGenerator[Reaper]:
    """Let a reaper of this app sweep."""
    reaper = Reaper(app)
    await reaper.start()
    try:
        yield reaper
    finally:
        await reaper.stop()


# ── ticks ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_tick_is_one_job_that_knows_what_it_is_for(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app, ran = stage.app(timing=FAST), list[tuple[str, str, datetime | None]]()

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
        fired = await stage.told(ScheduleFired)
        assert [(event.name, event.tick, event.queue, event.id) for event in fired] == [
            ("often", after(120), "default", ran[0][1]),
            ("often", after(240), "default", ran[1][1]),
            ("report", after(300), "default", ran[2][1]),
        ]
        assert all(event.late_by < 0.5 for event in fired)

    play(scenario)


def test_a_function_becomes_a_task_with_options_of_its_own(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app(timing=FAST)

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
        assert await ticks_of(stage, "often") == [after(1), after(2), after(3)]
        assert [job.id for job in await jobs_of(stage.storage, "odd")] == [
            "cron:odd:20270115T080001.500000Z",
            "cron:odd:20270115T080003Z",
        ]

    play(scenario)


@pytest.mark.fault("W-T20")
def test_an_interval_does_not_drift_and_no_new_start_shifts_it(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        for life in range(5):
            app = scheduled(stage, lambda app: app.every("30s", name="often", overlap="allow"))
            async with sweeping(app):
                await asyncio.sleep(47 + life)
        ticks = await ticks_of(stage, "often")

        assert ticks == [after(30 * number) for number in range(1, 9)]

    play(scenario)


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
    play: Play, text: str, tz: str, midnight: datetime, count: int
) -> None:
    async def scenario(stage: Stage) -> None:
        set_to(stage, midnight - timedelta(seconds=30))
        app = scheduled(stage, lambda app: app.cron(text, tz=tz, name="nightly", overlap="allow"), timing=SLOW)
        async with sweeping(app):
            (noon,) = Cron.parse("0 12 * * *", tz).between(stage.clock.now(), stage.clock.now() + DAY, 1)
            await asyncio.sleep((noon - stage.clock.now()) / SECOND - 30)

        assert len(await ticks_of(stage, "nightly")) == count
        assert all(event.late_by < 1 for event in await stage.told(ScheduleFired))

    play(scenario)


@pytest.mark.fault("W-B7")
def test_a_backlog_does_not_slow_the_ticks_and_a_deleted_job_does_not_end_them(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = scheduled(stage, lambda app: app.every("1s", name="often", overlap="allow"))
        async with sweeping(app):
            await asyncio.sleep(5.5)
            (latest,) = (await jobs_of(stage.storage, "often"))[-1:]
            await app.job(latest.id).cancel()
            await asyncio.sleep(5)

        assert await ticks_of(stage, "often") == [after(number) for number in range(1, 11)]

    play(scenario)


@pytest.mark.fault("W-N14")
def test_a_tick_that_is_far_ahead_sets_no_timer_of_its_own(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = scheduled(stage, lambda app: app.cron("@yearly", name="yearly"), timing=SLOW)
        reaper = Reaper(app)
        async with sweeping(app):
            await asyncio.sleep(0.1)
        waits = [await reaper.turn() for _ in range(3)]
        set_to(stage, datetime(2027, 12, 31, 23, 59, tzinfo=UTC))
        near = await reaper.turn()
        await reaper.start()
        await asyncio.sleep(61)
        await reaper.stop()

        assert all(500 < wait <= 600 for wait in waits)
        assert near == pytest.approx(60)
        assert await ticks_of(stage, "yearly") == [datetime(2028, 1, 1, tzinfo=UTC)]

    play(scenario)


# ── overlap ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.fault("W-T20")
@pytest.mark.parametrize(
    ("overlap", "ticks", "skipped"),
    [("skip", [1, 5], [2, 3, 4, 6]), ("queue_one", [1, 2, 5], [3, 4, 6]), ("allow", [1, 2, 3, 4, 5, 6], [])],
)
def test_a_tick_beside_an_unfinished_job_is_for_the_overlap(
    play: Play, overlap: Any, ticks: list[int], skipped: list[int]
) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app(timing=FAST)

        @app.every("1s", name="often", overlap=overlap)
        @app.task(name="slow")
        async def slow() -> None:
            await asyncio.sleep(3.5)

        async with app.worker(concurrency=1):
            await asyncio.sleep(6.4)
            seen = await stage.told(ScheduleSkipped)
            made = await ticks_of(stage, "often")

        assert made == [after(number) for number in ticks]
        assert [event.tick for event in seen] == [after(number) for number in skipped]
        assert all((event.name, event.reason) == ("often", "overlap") for event in seen)

    play(scenario)


@pytest.mark.parametrize("overlap", ["skip", "queue_one"])
def test_in_an_hour_with_deaths_in_the_handler_each_tick_is_as_the_policy_says(overlap: Any) -> None:
    async def main(loop: SimLoop) -> None:
        clock, dice = SimClock(loop), Random(overlap)
        stage = Stage(loop, clock, MemoryStorage(clock=clock))
        app = stage.app()

        @app.every("5s", name="often", overlap=overlap)
        @app.task(name="long", result_ttl="1d")
        async def long() -> None:
            await asyncio.sleep(dice.uniform(1, 20))

        await stage.start(Reaper(app), "reaper")
        while stage.now < 3600:
            node = await stage.start(app.worker(concurrency=1, reaper=False), "worker")
            await asyncio.sleep(dice.uniform(60, 300))
            stage.loop.kill(node)
        jobs = await jobs_of(stage.storage, "often")
        skipped = await stage.told(ScheduleSkipped)
        details = [detail for detail in await stage.storage.get([job.ref for job in jobs]) if detail is not None]

        def over(end: int | None, at: int) -> bool:
            return end is not None and end <= at

        def heeded(at: int, *, claimed_by: int) -> list[JobDetail]:
            beside = [one for one in details if one.job.created < at and not over(one.job.finished, at)]
            runs = [any(run.start <= claimed_by and not over(run.end, at) for run in one.runs) for one in beside]
            return [one for one, active in zip(beside, runs, strict=True) if overlap == "skip" or not active]

        assert {event.reason for event in skipped} == {"overlap"}
        assert len(jobs) + len(skipped) == (clock.now() - EPOCH) // (5 * SECOND)
        # By when a tick was dealt with: the sweep before may have recovered a job that was active when it fell due, and
        # a worker may have claimed that at the same instant.
        assert not any(heeded(job.created, claimed_by=job.created) for job in jobs)
        skips = [instant(event.at, field="at") for event in skipped]
        assert all(heeded(at, claimed_by=at - 1) for at in skips)
        assert len(jobs) > 100
        assert len(skipped) > 100
        assert any(job.stalls for job in jobs)

    simulate(main)


@pytest.mark.fault("W-T20")
def test_jobs_that_nobody_runs_do_not_pile_up(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = scheduled(stage, lambda app: app.every("1m", name="often"), timing=SLOW)
        async with sweeping(app):
            await asyncio.sleep(3600.5)
        jobs = await jobs_of(stage.storage, "often")

        assert [job.state for job in jobs] == [State.WAITING]
        assert len(await stage.told(ScheduleSkipped)) == 59

    play(scenario)


# ── missed ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("missed", "made", "given_up"),
    [("skip", 0, 36), ("latest", 1, 35), ("all", 36, 0), (All(max=10), 10, 26), (All(), 36, 0)],
)
def test_ticks_that_were_missed_are_for_the_policy(play: Play, missed: Any, made: int, given_up: int) -> None:
    async def scenario(stage: Stage) -> None:
        def declare(app: Holdfast) -> ScheduleDecorator:
            return app.every("5m", name="often", missed=missed, overlap="allow")

        node = await stage.start(Reaper(scheduled(stage, declare)), "first")
        await asyncio.sleep(1)
        stage.loop.kill(node)
        await asyncio.sleep(3 * 3600 + 60)
        async with sweeping(scheduled(stage, declare)):
            await asyncio.sleep(5)
            ticks, fired = await ticks_of(stage, "often"), await stage.told(ScheduleFired)
            lost = await stage.told(ScheduleMissed)
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
        assert await ticks_of(stage, "often") == every[36 - made :]

    play(scenario)


def test_many_missed_ticks_are_made_up_for_in_steps_that_leave_room_for_all_else(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        def declare(app: Holdfast) -> ScheduleDecorator:
            return app.every("1s", name="often", missed="all", overlap="allow")

        async with sweeping(scheduled(stage, declare)):
            await asyncio.sleep(0.5)
        await asyncio.sleep(350)
        async with sweeping(scheduled(stage, declare)):
            await asyncio.sleep(0.1)

        assert await ticks_of(stage, "often") == [after(number) for number in range(1, 351)]

    play(scenario)


# ── clocks that are set ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("pause", [False, True])
def test_a_clock_that_was_set_forward_and_back_stops_no_schedule(play: Play, pause: bool) -> None:
    async def scenario(stage: Stage) -> None:
        app = scheduled(stage, lambda app: app.every("1m", name="often", overlap="allow"))
        async with sweeping(app):
            await asyncio.sleep(61)
            stage.clock.step(30 * 86_400)
            await asyncio.sleep(2)
            stage.clock.step(-30 * 86_400)
            if pause:
                await app.schedules.pause("often")
                await app.schedules.resume("often")
            await asyncio.sleep(300)
        missed = await stage.told(ScheduleMissed)

        # The latest of those that were missed by the clock that was wrong is far ahead.
        assert await ticks_of(stage, "often") == [*map(after, range(60, 361, 60)), after(30 * 86_400 + 60)]
        assert [event.ticks for event in missed] == [30 * 24 * 60 - 1]
        assert await stage.told(ScheduleSkipped) == []

    play(scenario)


def test_ticks_that_a_clock_shows_again_make_no_second_job(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = scheduled(stage, lambda app: app.every("1m", name="often", overlap="allow"))
        async with sweeping(app):
            await asyncio.sleep(301)
            stage.clock.step(-120)
            await asyncio.sleep(180)
        skipped = await stage.told(ScheduleSkipped)

        assert await ticks_of(stage, "often") == [*map(after, range(60, 361, 60))]
        assert [(event.tick, event.reason) for event in skipped] == [
            (after(240), "duplicate"),
            (after(300), "duplicate"),
        ]

    play(scenario)


def test_a_clock_that_is_set_back_by_a_moment_shows_no_tick_again(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = scheduled(stage, lambda app: app.every("1m", name="often", overlap="allow"))
        async with sweeping(app):
            await asyncio.sleep(121)
            stage.clock.step(-5)
            await asyncio.sleep(65)

        assert await ticks_of(stage, "often") == [after(60), after(120), after(180)]
        assert await stage.told(ScheduleSkipped, ScheduleMissed) == []

    play(scenario)


# ── deaths ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Deadly(MemoryStorage):
    """A storage in whose plan the caller dies: before anything was done, or after."""

    def __init__(self, loop: SimLoop, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self._loop = loop
        self.deaths: list[str] = []
        self.victims = set[Node | None]()

    async def plan(self, changes: Sequence[Change]) -> list[Planned]:
        """Do as told, or die."""
        if not self.deaths or not any(isinstance(change, Tick) for change in changes):
            return await super().plan(changes)
        planned = await super().plan(changes) if self.deaths.pop() == "after" else []
        assert self._loop.node is not None
        self._loop.kill(self._loop.node)
        self.victims.add(self._loop.node)
        # Never to go on.
        await self._loop.create_future()
        return planned


@pytest.mark.fault("W-T19", "W-N13")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_leader_that_dies_in_its_tick_neither_loses_nor_doubles_it(when: str) -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = Deadly(loop, clock)
        stage = Stage(loop, clock, storage)
        app = scheduled(stage, lambda app: app.every("3s", name="often", overlap="allow"))
        for number in range(5):
            await stage.start(Reaper(app), f"reaper {number}")
        storage.deaths += [when] * 4
        await asyncio.sleep(59)

        assert len(storage.victims) == 4
        assert await ticks_of(stage, "often") == [after(3 * number) for number in range(1, 20)]
        assert len(await stage.told(ScheduleFired)) == 19
        assert await stage.told(ScheduleMissed) == []

    simulate(main)


@pytest.mark.fault("W-T19")
def test_a_leader_that_does_not_know_the_task_serves_its_schedule_all_the_same(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = scheduled(stage, lambda app: app.every("1s", name="often", overlap="allow"))
        async with sweeping(app):
            await asyncio.sleep(0.1)
        async with sweeping(stage.app(timing=FAST)):
            await asyncio.sleep(3)

        assert await ticks_of(stage, "often") == [after(1), after(2), after(3)]

    play(scenario)


@pytest.mark.fault("W-T20")
def test_a_leader_that_stops_leaves_no_gap(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = scheduled(stage, lambda app: app.every("1s", name="often", overlap="allow"))
        first, second = Reaper(app), Reaper(app)
        await first.start()
        await asyncio.sleep(0.1)
        await second.start()
        await asyncio.sleep(2.5)
        await first.stop()
        await asyncio.sleep(3)
        await second.stop()
        fired = await stage.told(ScheduleFired)

        assert [event.tick for event in fired] == [after(number) for number in range(1, 6)]
        assert all(event.late_by < FAST.leader_ttl.total_seconds() + 0.2 for event in fired)

    play(scenario)


def test_ten_reapers_without_election_make_one_job_of_each_tick(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = scheduled(stage, lambda app: app.every("1s", name="often", overlap="allow"))
        for number in range(10):
            await stage.start(Reaper(app, election=None), f"reaper {number}")
        await asyncio.sleep(60.5)

        assert await ticks_of(stage, "often") == [after(number) for number in range(1, 61)]
        assert len(await stage.told(ScheduleFired)) == 60
        assert await stage.told(ScheduleSkipped) == []

    play(scenario)


class Recording(MemoryStorage):
    """A storage that keeps what it was asked to plan."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self.planned: list[Sequence[Change]] = []

    async def plan(self, changes: Sequence[Change]) -> list[Planned]:
        """Plan, and keep it."""
        self.planned.append(changes)
        return await super().plan(changes)


def test_a_tick_that_comes_again_when_its_job_is_long_forgotten_makes_none() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = Recording(clock)
        stage = Stage(loop, clock, storage)
        app = scheduled(stage, lambda app: app.every("1s", name="often", overlap="allow"))
        async with sweeping(app):
            await asyncio.sleep(5.5)
        await storage.revise([Delete(job.ref) for job in await jobs_of(storage, "often")])
        again = [changes for changes in storage.planned if isinstance(changes[0], Tick)]
        verdicts = [planned.verdict for changes in again for planned in await storage.plan(changes)]

        assert verdicts == ["superseded"] * 5
        assert await jobs_of(storage, "often") == []

    simulate(main)


class Distant(MemoryStorage):
    """A storage at the end of a wire: what was sent arrives, be the sender alive, and it may take long."""

    def __init__(self, loop: SimLoop, clock: SimClock, rng: Random) -> None:
        super().__init__(clock=clock)
        self._loop = loop
        self._rng = rng
        self._wire = Node("wire")

    async def sweep(self, bid: Bid) -> Swept:
        """Sweep, at the other end."""
        sweep = super().sweep
        return await self._sent(lambda: sweep(bid))

    async def plan(self, changes: Sequence[Change]) -> list[Planned]:
        """Plan, at the other end."""
        plan = super().plan
        return await self._sent(lambda: plan(changes))

    async def _sent(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def there_and_back() -> T:
            await asyncio.sleep(self._rng.uniform(5, 20) if self._rng.random() < 0.01 else self._rng.uniform(0, 0.1))
            answer = await call()
            await asyncio.sleep(self._rng.uniform(0, 0.1))
            return answer

        return await asyncio.shield(self._loop.start(self._wire, there_and_back()))


@pytest.mark.slow
@pytest.mark.fault("W-T19", "W-T20")
def test_ten_schedulers_whose_leader_is_killed_or_paused_again_and_again_make_3600_jobs_of_an_hour() -> None:
    async def main(loop: SimLoop) -> None:
        clock, dice = SimClock(loop), Random("an hour")
        stage = Stage(loop, clock, Distant(loop, clock, dice))
        reapers = dict[Node, Reaper]()
        started = paused = killed = 0

        async def start() -> None:
            nonlocal started
            started += 1
            skewed = SimClock(loop)
            skewed.step(dice.uniform(-30, 30))
            app = Holdfast(storage=stage.storage, clock=skewed, rng=Random(started), side=SameLoop)

            @app.every("1s", name="often", overlap="allow")
            @app.task(name="work")
            async def work() -> None: ...

            reaper = Reaper(app)
            reapers[await stage.start(reaper, f"reaper {started}")] = reaper

        for _ in range(10):
            await start()
        while stage.now < 3600:
            await asyncio.sleep(dice.uniform(11, 25))
            leader = next((node for node, reaper in reapers.items() if reaper.leads and not node.paused), None)
            if leader is None:
                continue
            if dice.random() < 0.5:
                killed += 1
                stage.loop.kill(leader)
                del reapers[leader]
                await start()
            else:
                paused += 1
                stage.loop.pause(leader)
                loop.call_later(dice.uniform(1, 60), stage.loop.wake, leader)
        await asyncio.sleep(20)
        ticks = await ticks_of(stage, "often")
        fired = await stage.told(ScheduleFired)

        hour = [after(number) for number in range(1, 3601)]
        assert ticks[:3600] == hour
        assert len(set(ticks)) == len(ticks)
        assert [event.tick for event in fired][:3600] == hour
        # Below the grace: a term of 4 s to wait for an answer, another until somebody else leads, and half a second.
        assert max(event.late_by for event in fired) < 10
        assert await stage.told(ScheduleMissed) == []
        # Nor was any tick tried twice: the expected last tick keeps it out, not the job that is still there.
        assert await stage.told(ScheduleSkipped) == []
        assert killed > 50
        assert paused > 50
        assert len(await stage.told(LeadershipAcquired)) > 100

    simulate(main)


def test_a_schedule_that_cannot_be_read_holds_up_nothing_else(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = scheduled(stage, lambda app: app.every("1s", name="often", overlap="allow"))
        job = NewJob(queue="default", id="", task="work", payload=b"{}")
        lost = Schedule(name="lost", job=job, cron="0 4 * * *", tz="Mars/Olympus", next_tick=EPOCH + SECOND)
        await stage.storage.plan([PutSchedule(lost)])
        reaper, told = Reaper(app), list[ReaperFailed]()
        reaper.on(ReaperFailed)(told.append)
        await reaper.start()
        await asyncio.sleep(5.5)
        await reaper.stop()

        assert await ticks_of(stage, "often") == [after(number) for number in range(1, 6)]
        assert len(told) == 1
        assert "schedule 'lost'" in told[0].error
        assert "Mars/Olympus" in told[0].error

    play(scenario)


def test_as_many_unreadable_schedules_as_a_sweep_names_keep_out_no_other(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = scheduled(stage, lambda app: app.every("1s", name="often", overlap="allow"))
        job = NewJob(queue="default", id="", task="work", payload=b"{}")
        lost = [
            Schedule(name=f"lost {n}", job=job, cron="* * * * *", tz="Mars/Olympus", last_tick=EPOCH, next_tick=EPOCH)
            for n in range(2 * DUE_LIMIT)
        ]
        for start in range(0, len(lost), DUE_LIMIT):
            await stage.storage.plan([PutSchedule(one) for one in lost[start : start + DUE_LIMIT]])
        reaper, told = Reaper(app), list[ReaperFailed]()
        reaper.on(ReaperFailed)(told.append)
        await reaper.start()
        await asyncio.sleep(130.5)
        await reaper.stop()
        known = {schedule.name: schedule for schedule in await app.schedules.list()}

        assert await ticks_of(stage, "often") == [after(number) for number in range(1, 131)]
        assert all(event.late_by < 0.5 for event in await stage.told(ScheduleFired))
        # Each of them was looked at again and again, and told of once.
        assert len(told) == len({event.error for event in told}) == len(lost)
        assert {known[one.name].last_tick for one in lost} == {EPOCH}
        assert all((known[one.name].next_tick or 0) > EPOCH + 120 * SECOND for one in lost)

    play(scenario)


class Refusing(MemoryStorage):
    """A storage that fails at the ticks of one schedule, and at all that come with them."""

    async def plan(self, changes: Sequence[Change]) -> list[Planned]:
        """Plan, unless that one is among them."""
        if any(isinstance(change, Tick) and change.name == "bad" for change in changes):
            raise ValueError("not this one")
        return await super().plan(changes)


def test_a_schedule_that_the_storage_refuses_holds_up_nothing_else() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        stage = Stage(loop, clock, Refusing(clock=clock))
        app = scheduled(stage, lambda app: app.every("1s", name="often", overlap="allow"))
        app.every("1s", name="bad")(app.tasks["work"])
        reaper, told = Reaper(app), list[ReaperFailed]()
        reaper.on(ReaperFailed)(told.append)
        await reaper.start()
        await asyncio.sleep(3.5)
        await reaper.stop()

        assert await ticks_of(stage, "often") == [after(number) for number in range(1, 4)]
        assert [event.error for event in told] == ["schedule 'bad': ValueError('not this one')"]

    simulate(main)


def test_a_reaper_rests_though_the_storage_refuses_more_ticks_than_it_makes_up_for_in_a_step() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        stage = Stage(loop, clock, Refusing(clock=clock))
        app = scheduled(stage, lambda app: app.every("1s", name="bad", missed="all", overlap="allow"))
        reaper = Reaper(app)
        async with sweeping(app):
            await asyncio.sleep(0.1)
        await asyncio.sleep(1000)
        waits = [await reaper.turn() for _ in range(3)]

        assert all(wait > 0.4 for wait in waits)

    simulate(main)


def test_a_tick_that_the_rules_of_its_zone_no_longer_have_is_passed_over(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = scheduled(stage, lambda app: app.cron("0 * * * *", name="hourly"))
        async with sweeping(app):
            await asyncio.sleep(0.1)
        known = await app.schedules.get("hourly")
        await app.schedules.remove("hourly")
        # As a storage may have it from somebody whose table of time zones is another.
        odd = Schedule(name="hourly", job=known.job, cron="0 * * * *", last_tick=EPOCH, next_tick=EPOCH + 60 * SECOND)
        await stage.storage.plan([PutSchedule(odd)])
        await asyncio.sleep(60)
        reaper = Reaper(app)
        await reaper.turn()
        moved = await app.schedules.get("hourly")

        assert (moved.last_tick, moved.next_tick) == (EPOCH, EPOCH + 3600 * SECOND)
        assert await jobs_of(stage.storage, "hourly") == []

    play(scenario)


# ── what code declares, and what a person does ────────────────────────────────────────────────────────────────────


def test_what_code_declares_keeps_what_the_storage_knows(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        def declare(app: Holdfast) -> ScheduleDecorator:
            return app.every("10s", name="often", overlap="allow")

        async with sweeping(app := scheduled(stage, declare)):
            await asyncio.sleep(25)
        before = await app.schedules.get("often")
        await app.schedules.pause("often")
        async with sweeping(app := scheduled(stage, declare)):
            await asyncio.sleep(25)
            paused = await app.schedules.get("often")
            resumed = await app.schedules.resume("often")
            await asyncio.sleep(12)

        assert before.last_tick == EPOCH + 20 * SECOND
        assert (paused.paused, paused.last_tick, paused.last_id) == (True, before.last_tick, before.last_id)
        assert (resumed.paused, resumed.next_tick) == (False, EPOCH + 60 * SECOND)
        # What went by in the pause is neither made up for nor missed.
        assert await ticks_of(stage, "often") == [after(10), after(20), after(60)]
        assert await stage.told(ScheduleMissed) == []

    play(scenario)


def test_a_changed_text_takes_effect_from_now_on(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        def every(minutes: int) -> Holdfast:
            text = f"*/{minutes} * * * *"
            return scheduled(stage, lambda app: app.cron(text, name="often", overlap="allow"), timing=SLOW)

        async with sweeping(every(10)):
            await asyncio.sleep(601)
        await asyncio.sleep(3600)
        async with sweeping(every(7)):
            await asyncio.sleep(600)

        assert await ticks_of(stage, "often") == [after(600), after(4440)]
        assert await stage.told(ScheduleMissed) == []

    play(scenario)


def test_what_is_taken_out_of_the_code_goes_on_until_it_is_removed(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        async with sweeping(scheduled(stage, lambda app: app.every("1s", name="often", overlap="allow"))):
            await asyncio.sleep(1.5)
        async with sweeping(app := stage.app(timing=FAST)):
            await asyncio.sleep(2)
            await app.schedules.remove("often")
            await asyncio.sleep(2)
            listed = await app.schedules.list()

        assert listed == ()
        assert await ticks_of(stage, "often") == [after(1), after(2), after(3)]

    play(scenario)


def test_schedules_are_made_changed_and_removed_at_run_time(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app(timing=FAST)

        @app.task(name="greet")
        async def greet(whom: str) -> None: ...

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
            *("daily", "0 4 * * *", "Europe/Vienna", "greet", b'{"whom":"you"}'),
        )
        assert (put.missed, put.overlap, put.paused, put.last_id) == ("latest", "skip", False, None)
        assert coming == (datetime(2027, 1, 16, 3, tzinfo=UTC), datetime(2027, 1, 17, 3, tzinfo=UTC))
        assert put.next_tick == EPOCH + 19 * 3600 * SECOND
        assert [schedule.name for schedule in listed] == ["daily", "often"]
        assert (changed.every, changed.missed, changed.most, changed.overlap, changed.grace) == (
            *(90 * SECOND, "all", 5, "queue_one", 60 * SECOND),
        )
        assert (later.cron, later.tz, later.missed, later.job.payload) == (
            *("0 4 * * *", "America/New_York", "skip", b'{"whom":"them"}'),
        )
        assert (other.cron, other.tz, other.every, other.missed) == (None, "UTC", 7200 * SECOND, "skip")
        assert (back.cron, back.tz, back.every) == ("@hourly", "UTC", None)
        assert [schedule.name for schedule in await app.schedules.list()] == ["often"]

    play(scenario)


def test_a_trigger_makes_a_job_now_and_keeps_the_cadence(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app(timing=FAST)

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
        jobs = await jobs_of(stage.storage, "often")
        assert [job.tick for job in jobs] == [None, None, EPOCH + 10 * SECOND]
        assert by_hand.id in {job.id for job in jobs[:2]}

    play(scenario)


@pytest.mark.parametrize("options", [{"collect": Collect()}, {"version": 2}, {"since": 1}])
def test_what_is_said_where_a_task_is_made_is_no_option_of_a_schedule(options: dict[str, Any]) -> None:
    (name,) = options
    for home in (Holdfast("memory://"), Router()):
        with pytest.raises(
            UsageError, match=rf"{name} is said where a task is made; put @app.task\({name}=...\) below"
        ):
            home.cron("@daily", **options)
        with pytest.raises(UsageError, match=f"{name} is said where a task is made"):
            home.every("1h", **options)


def test_who_triggers_is_told_what_became_of_the_call(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app(timing=FAST)

        @app.every("1h", name="one")
        @app.task(name="unique", unique="one")
        async def unique() -> None: ...

        @app.every("1h", name="few")
        @app.task(name="throttled", throttle=Throttle(max=1, window="1m"))
        async def throttled() -> None: ...

        held, latest = await unique.enqueue(), await throttled.enqueue()
        async with app.worker(queues=["elsewhere"]):
            one, few = [await app.schedules.trigger(name) for name in ("one", "few")]

        assert (one.made, one.id, one.refusal) == ("duplicate", held.id, None)
        assert (few.made, few.id, few.created) == ("throttled", latest.id, False)
        with pytest.raises(ThrottledError, match="task 'throttled': the throttle is full"):
            await few.cancel()
        assert await latest.state() is State.WAITING

    play(scenario)


@pytest.mark.parametrize("verb", ["get", "pause", "resume", "trigger", "remove", "next", "update"])
def test_a_schedule_that_is_not_there_is_named_with_those_that_are(play: Play, verb: str) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app(timing=FAST)

        @app.task(name="work")
        async def work() -> None: ...

        with pytest.raises(UnknownScheduleError, match="there is no schedule 'nightly'; known are: none"):
            await getattr(app.schedules, verb)("nightly")
        await app.schedules.put("hourly", work.call(), cron="@hourly")
        with pytest.raises(UnknownScheduleError, match="there is no schedule 'nightly'; known are: hourly"):
            await getattr(app.schedules, verb)("nightly")

    play(scenario)


# ── mistakes ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("verb", "given", "options", "told"),
    [
        ("cron", "0 4 * *", {}, "cron = '0 4 * *' has 4 fields, not 5 or 6"),
        ("cron", "0 4 * * *", {"tz": "Mars/Olympus"}, "tz = 'Mars/Olympus' is no time zone"),
        ("cron", None, {}, "give either cron="),
        ("every", "10ms", {}, "every = '10ms' is less than a second"),
        ("every", "often", {}, "every = 'often' is no duration"),
        ("every", "1m", {"missed": "some"}, "missed = 'some' is unknown; use one of"),
        ("every", "1m", {"missed": []}, "missed = [] is unknown; use one of"),
        ("every", "1m", {"overlap": "all"}, "overlap = 'all' is unknown; use one of"),
        ("every", "1m", {"grace": -1}, "grace = -1 must be longer than nothing"),
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
def test_a_schedule_that_cannot_be_is_refused_where_it_is_declared(
    verb: str, given: Any, options: dict[str, Any], told: str
) -> None:
    app = Holdfast("memory://")

    @app.every("1h", name="taken")
    @app.task(name="work")
    async def work() -> None: ...

    with pytest.raises(UsageError, match=re.escape(told)):
        getattr(app, verb)(given, **options)(work)


@pytest.mark.parametrize(
    ("timing", "grace"), [(Timing(), 10), (Timing.fast(), 10), (Timing.classic(), 20), (SLOW, 2400)]
)
async def test_the_grace_outlasts_the_death_of_a_leader(timing: Timing, grace: int) -> None:
    app = Holdfast("memory://", timing=timing)

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
    app, router = Holdfast("memory://"), Router()

    @router.task(name="work")
    async def work() -> None: ...

    with pytest.raises(UsageError, match="is no task of this app; include its router first"):
        app.every("1h")(work)
    app.include(router)

    assert app.every("1h")(work) is work


@pytest.mark.parametrize("most", [0, -1, 1.5, True, 1_001])
def test_no_number_of_missed_ticks_is_made_up_for_that_is_none(most: Any) -> None:
    with pytest.raises(UsageError, match=r"^All\.max = "):
        All(most)


@pytest.mark.parametrize(
    ("when", "told"),
    [
        ({}, "give either cron="),
        ({"cron": "@daily", "every": "1h"}, "give either cron="),
        ({"every": "1h", "tz": "Europe/Vienna"}, "tz = 'Europe/Vienna' means nothing to an interval"),
        ({"cron": "0 0 30 2 *"}, "is never due"),
    ],
)
async def test_a_schedule_that_cannot_be_is_refused_where_it_is_put(when: dict[str, Any], told: str) -> None:
    app = Holdfast("memory://")

    @app.task(name="work")
    async def work() -> None: ...

    with pytest.raises(UsageError, match=re.escape(told)):
        await app.schedules.put("nightly", work.call(), **when)
    with pytest.raises(UsageError, match="run_at contradicts a schedule"):
        await app.schedules.put("nightly", work.options(run_at=START).call(), every="1h")
    with pytest.raises(UsageError, match="call = "):
        await app.schedules.put("nightly", work, every="1h")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await app.schedules.put("hourly", work.call(), every="1h")
    with pytest.raises(UsageError, match="tz = 'UTC' means nothing to an interval"):
        await app.schedules.update("hourly", tz="UTC")
    with pytest.raises(UsageError, match="call = "):
        await app.schedules.update("hourly", work)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="count = 0 must be 1 or more"):
        await app.schedules.next("hourly", 0)


def test_schedules_can_be_handled_without_a_loop() -> None:
    app = Holdfast("memory://")

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
