"""Reapers that fire ticks: they die, hang, are many, and read schedules that are unreadable."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, TypeVar

import pytest

from tenure import (
    LeadershipAcquired,
    Reaper,
    ReaperFailed,
    Schedule,
    ScheduleFired,
    ScheduleMissed,
    ScheduleSkipped,
    Tenure,
)
from tenure.background_loop import SameLoop
from tenure.clock import SECOND
from tenure.core.job import NewJob
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import (
    DUE_LIMIT,
    Change,
    DeleteJob,
    PutSchedule,
    ScheduleResult,
    SweepRequest,
    SweepResult,
    Tick,
)
from tenure_testing.simulation.event_loop import EPOCH, Node, SimClock, SimLoop, simulate
from tests.flow.conftest import FAST, Harness, RunScenario
from tests.flow.schedules import after, jobs_of, scheduled, sweeping, ticks_of

pytestmark = pytest.mark.thorough

T = TypeVar("T")


# ── deaths ────────────────────────────────────────────────────────────────────────────────────────────────────────


class KillingStorage(MemoryStorage):
    """A storage that kills the caller of `plan`: before it has done anything, or after."""

    def __init__(self, loop: SimLoop, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self._loop = loop
        self.deaths: list[str] = []
        self.victims = set[Node | None]()

    async def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
        """Plan, or kill the caller."""
        if not self.deaths or not any(isinstance(change, Tick) for change in changes):
            return await super().plan(changes)
        planned = await super().plan(changes) if self.deaths.pop() == "after" else []
        assert self._loop.node is not None
        self._loop.kill(self._loop.node)
        self.victims.add(self._loop.node)
        # The caller is dead, so this never returns.
        await self._loop.create_future()
        return planned


@pytest.mark.fault("W-T19", "W-N13")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_leader_that_dies_in_its_tick_neither_loses_nor_doubles_it(when: str) -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = KillingStorage(loop, clock)
        harness = Harness(loop, clock, storage)
        app = scheduled(harness, lambda app: app.every("3s", name="often", overlap="allow"))
        for number in range(5):
            await harness.start(Reaper(app), f"reaper {number}")
        storage.deaths += [when] * 4
        await asyncio.sleep(59)

        assert len(storage.victims) == 4
        assert await ticks_of(harness, "often") == [after(3 * number) for number in range(1, 20)]
        assert len(await harness.events_of(ScheduleFired)) == 19
        assert await harness.events_of(ScheduleMissed) == []

    simulate(main)


@pytest.mark.fault("W-T19")
def test_a_leader_that_does_not_know_the_task_serves_its_schedule_anyway(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = scheduled(harness, lambda app: app.every("1s", name="often", overlap="allow"))
        async with sweeping(app):
            await asyncio.sleep(0.1)
        async with sweeping(harness.app(timing=FAST)):
            await asyncio.sleep(3)

        assert await ticks_of(harness, "often") == [after(1), after(2), after(3)]

    run_scenario(scenario)


@pytest.mark.fault("W-T20")
def test_a_leader_that_stops_leaves_no_gap(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = scheduled(harness, lambda app: app.every("1s", name="often", overlap="allow"))
        first, second = Reaper(app), Reaper(app)
        await first.start()
        await asyncio.sleep(0.1)
        await second.start()
        await asyncio.sleep(2.5)
        await first.stop()
        await asyncio.sleep(3)
        await second.stop()
        fired = await harness.events_of(ScheduleFired)

        assert [event.tick for event in fired] == [after(number) for number in range(1, 6)]
        assert all(event.late_by < FAST.leader_ttl.total_seconds() + 0.2 for event in fired)

    run_scenario(scenario)


def test_ten_reapers_without_election_make_one_job_of_each_tick(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = scheduled(harness, lambda app: app.every("1s", name="often", overlap="allow"))
        for number in range(10):
            await harness.start(Reaper(app, election=None), f"reaper {number}")
        await asyncio.sleep(60.5)

        assert await ticks_of(harness, "often") == [after(number) for number in range(1, 61)]
        assert len(await harness.events_of(ScheduleFired)) == 60
        assert await harness.events_of(ScheduleSkipped) == []

    run_scenario(scenario)


class Recording(MemoryStorage):
    """A storage that records what it was asked to plan."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self.planned: list[Sequence[Change]] = []

    async def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
        """Plan, and record it."""
        self.planned.append(changes)
        return await super().plan(changes)


def test_a_tick_repeated_after_its_job_was_deleted_creates_none() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = Recording(clock)
        harness = Harness(loop, clock, storage)
        app = scheduled(harness, lambda app: app.every("1s", name="often", overlap="allow"))
        async with sweeping(app):
            await asyncio.sleep(5.5)
        await storage.revise([DeleteJob(job.ref) for job in await jobs_of(storage, "often")])
        again = [changes for changes in storage.planned if isinstance(changes[0], Tick)]
        verdicts = [planned.verdict for changes in again for planned in await storage.plan(changes)]

        assert verdicts == ["superseded"] * 5
        assert await jobs_of(storage, "often") == []

    simulate(main)


class Distant(MemoryStorage):
    """A storage behind a network: a request arrives even if its sender is dead, and it may take long."""

    def __init__(self, loop: SimLoop, clock: SimClock, rng: Random) -> None:
        super().__init__(clock=clock)
        self._loop = loop
        self._rng = rng
        self._wire = Node("wire")

    async def sweep(self, bid: SweepRequest) -> SweepResult:
        """Sweep, as the server."""
        sweep = super().sweep
        return await self._sent(lambda: sweep(bid))

    async def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
        """Plan, as the server."""
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
def test_ten_schedulers_with_dying_leaders_make_3600_jobs_in_an_hour() -> None:
    async def main(loop: SimLoop) -> None:
        clock, dice = SimClock(loop), Random("an hour")
        harness = Harness(loop, clock, Distant(loop, clock, dice))
        reapers = dict[Node, Reaper]()
        started = paused = killed = 0

        async def start() -> None:
            nonlocal started
            started += 1
            skewed = SimClock(loop)
            skewed.step(dice.uniform(-30, 30))
            app = Tenure(storage=harness.storage, clock=skewed, rng=Random(started), side=SameLoop)

            @app.every("1s", name="often", overlap="allow")
            @app.task(name="work")
            async def work() -> None: ...

            reaper = Reaper(app)
            reapers[await harness.start(reaper, f"reaper {started}")] = reaper

        for _ in range(10):
            await start()
        while harness.now < 3600:
            await asyncio.sleep(dice.uniform(11, 25))
            leader = next((node for node, reaper in reapers.items() if reaper.leads and not node.paused), None)
            if leader is None:
                continue
            if dice.random() < 0.5:
                killed += 1
                harness.loop.kill(leader)
                del reapers[leader]
                await start()
            else:
                paused += 1
                harness.loop.pause(leader)
                loop.call_later(dice.uniform(1, 60), harness.loop.wake, leader)
        await asyncio.sleep(20)
        ticks = await ticks_of(harness, "often")
        fired = await harness.events_of(ScheduleFired)

        hour = [after(number) for number in range(1, 3601)]
        assert ticks[:3600] == hour
        assert len(set(ticks)) == len(ticks)
        assert [event.tick for event in fired][:3600] == hour
        # Below the grace: a term of 4 s to wait for an answer, another until another reaper leads, and half a second.
        assert max(event.late_by for event in fired) < 10
        assert await harness.events_of(ScheduleMissed) == []
        # Nor was any tick tried twice: the expected last tick prevents it, not the job that still exists.
        assert await harness.events_of(ScheduleSkipped) == []
        assert killed > 50
        assert paused > 50
        assert len(await harness.events_of(LeadershipAcquired)) > 100

    simulate(main)


# ── unreadable and refused schedules ──────────────────────────────────────────────────────────────────────────────────


def test_an_unreadable_schedule_delays_no_other(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = scheduled(harness, lambda app: app.every("1s", name="often", overlap="allow"))
        job = NewJob(queue="default", id="", task="work", payload=b"{}")
        lost = Schedule(name="lost", job=job, cron="0 4 * * *", tz="Mars/Olympus", next_tick=EPOCH + SECOND)
        await harness.storage.plan([PutSchedule(lost)])
        reaper, events = Reaper(app), list[ReaperFailed]()
        reaper.on(ReaperFailed)(events.append)
        await reaper.start()
        await asyncio.sleep(5.5)
        await reaper.stop()

        assert await ticks_of(harness, "often") == [after(number) for number in range(1, 6)]
        assert len(events) == 1
        assert "schedule 'lost'" in events[0].error
        assert "Mars/Olympus" in events[0].error

    run_scenario(scenario)


def test_a_sweep_full_of_unreadable_schedules_still_fires_others(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = scheduled(harness, lambda app: app.every("1s", name="often", overlap="allow"))
        job = NewJob(queue="default", id="", task="work", payload=b"{}")
        lost = [
            Schedule(name=f"lost {n}", job=job, cron="* * * * *", tz="Mars/Olympus", last_tick=EPOCH, next_tick=EPOCH)
            for n in range(2 * DUE_LIMIT)
        ]
        for start in range(0, len(lost), DUE_LIMIT):
            await harness.storage.plan([PutSchedule(schedule) for schedule in lost[start : start + DUE_LIMIT]])
        reaper, events = Reaper(app), list[ReaperFailed]()
        reaper.on(ReaperFailed)(events.append)
        await reaper.start()
        await asyncio.sleep(130.5)
        await reaper.stop()
        known = {schedule.name: schedule for schedule in await app.schedules.list()}

        assert await ticks_of(harness, "often") == [after(number) for number in range(1, 131)]
        assert all(event.late_by < 0.5 for event in await harness.events_of(ScheduleFired))
        # Each of them was read again and again, and reported once.
        assert len(events) == len({event.error for event in events}) == len(lost)
        assert {known[item.name].last_tick for item in lost} == {EPOCH}
        assert all((known[schedule.name].next_tick or 0) > EPOCH + 120 * SECOND for schedule in lost)

    run_scenario(scenario)


class Refusing(MemoryStorage):
    """A storage that fails at the ticks of one schedule, and at all that are planned with them."""

    async def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
        """Plan, unless that schedule is among them."""
        if any(isinstance(change, Tick) and change.name == "bad" for change in changes):
            raise ValueError("not this one")
        return await super().plan(changes)


def test_a_schedule_that_the_storage_refuses_delays_no_other() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        harness = Harness(loop, clock, Refusing(clock=clock))
        app = scheduled(harness, lambda app: app.every("1s", name="often", overlap="allow"))
        app.every("1s", name="bad")(app.tasks["work"])
        reaper, events = Reaper(app), list[ReaperFailed]()
        reaper.on(ReaperFailed)(events.append)
        await reaper.start()
        await asyncio.sleep(3.5)
        await reaper.stop()

        assert await ticks_of(harness, "often") == [after(number) for number in range(1, 4)]
        assert [event.error for event in events] == ["schedule 'bad': ValueError('not this one')"]

    simulate(main)


def test_a_reaper_pauses_although_the_storage_refuses_many_ticks() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        harness = Harness(loop, clock, Refusing(clock=clock))
        app = scheduled(harness, lambda app: app.every("1s", name="bad", missed="all", overlap="allow"))
        reaper = Reaper(app)
        async with sweeping(app):
            await asyncio.sleep(0.1)
        await asyncio.sleep(1000)
        waits = [await reaper.turn() for _ in range(3)]

        assert all(wait > 0.4 for wait in waits)

    simulate(main)


def test_a_tick_that_the_rules_of_its_zone_no_longer_have_is_skipped(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = scheduled(harness, lambda app: app.cron("0 * * * *", name="hourly"))
        async with sweeping(app):
            await asyncio.sleep(0.1)
        known = await app.schedules.get("hourly")
        await app.schedules.remove("hourly")
        # As a process whose table of time zones differs may have stored it.
        odd = Schedule(name="hourly", job=known.job, cron="0 * * * *", last_tick=EPOCH, next_tick=EPOCH + 60 * SECOND)
        await harness.storage.plan([PutSchedule(odd)])
        await asyncio.sleep(60)
        reaper = Reaper(app)
        await reaper.turn()
        moved = await app.schedules.get("hourly")

        assert (moved.last_tick, moved.next_tick) == (EPOCH, EPOCH + 3600 * SECOND)
        assert await jobs_of(harness.storage, "hourly") == []

    run_scenario(scenario)
