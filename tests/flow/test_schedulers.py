"""Those who make the ticks: they die, stand still, are many, and come upon schedules that they cannot read."""

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
from tests.flow.conftest import FAST, Play, Stage
from tests.flow.schedules import after, jobs_of, scheduled, sweeping, ticks_of

pytestmark = pytest.mark.thorough

T = TypeVar("T")


# ── deaths ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Deadly(MemoryStorage):
    """A storage in whose plan the caller dies: before anything was done, or after."""

    def __init__(self, loop: SimLoop, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self._loop = loop
        self.deaths: list[str] = []
        self.victims = set[Node | None]()

    async def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
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
        assert len(await stage.events_of(ScheduleFired)) == 19
        assert await stage.events_of(ScheduleMissed) == []

    simulate(main)


@pytest.mark.fault("W-T19")
def test_a_leader_that_does_not_know_the_task_serves_its_schedule_anyway(play: Play) -> None:
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
        fired = await stage.events_of(ScheduleFired)

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
        assert len(await stage.events_of(ScheduleFired)) == 60
        assert await stage.events_of(ScheduleSkipped) == []

    play(scenario)


class Recording(MemoryStorage):
    """A storage that keeps what it was asked to plan."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self.planned: list[Sequence[Change]] = []

    async def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
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
        await storage.revise([DeleteJob(job.ref) for job in await jobs_of(storage, "often")])
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

    async def sweep(self, bid: SweepRequest) -> SweepResult:
        """Sweep, at the other end."""
        sweep = super().sweep
        return await self._sent(lambda: sweep(bid))

    async def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
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
def test_ten_schedulers_with_dying_leaders_make_3600_jobs_in_an_hour() -> None:
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
            app = Tenure(storage=stage.storage, clock=skewed, rng=Random(started), side=SameLoop)

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
        fired = await stage.events_of(ScheduleFired)

        hour = [after(number) for number in range(1, 3601)]
        assert ticks[:3600] == hour
        assert len(set(ticks)) == len(ticks)
        assert [event.tick for event in fired][:3600] == hour
        # Below the grace: a term of 4 s to wait for an answer, another until somebody else leads, and half a second.
        assert max(event.late_by for event in fired) < 10
        assert await stage.events_of(ScheduleMissed) == []
        # Nor was any tick tried twice: the expected last tick keeps it out, not the job that is still there.
        assert await stage.events_of(ScheduleSkipped) == []
        assert killed > 50
        assert paused > 50
        assert len(await stage.events_of(LeadershipAcquired)) > 100

    simulate(main)


# ── what cannot be read, or is refused ────────────────────────────────────────────────────────────────────────────


def test_a_schedule_that_cannot_be_read_holds_up_nothing_else(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = scheduled(stage, lambda app: app.every("1s", name="often", overlap="allow"))
        job = NewJob(queue="default", id="", task="work", payload=b"{}")
        lost = Schedule(name="lost", job=job, cron="0 4 * * *", tz="Mars/Olympus", next_tick=EPOCH + SECOND)
        await stage.storage.plan([PutSchedule(lost)])
        reaper, events = Reaper(app), list[ReaperFailed]()
        reaper.on(ReaperFailed)(events.append)
        await reaper.start()
        await asyncio.sleep(5.5)
        await reaper.stop()

        assert await ticks_of(stage, "often") == [after(number) for number in range(1, 6)]
        assert len(events) == 1
        assert "schedule 'lost'" in events[0].error
        assert "Mars/Olympus" in events[0].error

    play(scenario)


def test_a_sweep_full_of_unreadable_schedules_still_fires_others(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = scheduled(stage, lambda app: app.every("1s", name="often", overlap="allow"))
        job = NewJob(queue="default", id="", task="work", payload=b"{}")
        lost = [
            Schedule(name=f"lost {n}", job=job, cron="* * * * *", tz="Mars/Olympus", last_tick=EPOCH, next_tick=EPOCH)
            for n in range(2 * DUE_LIMIT)
        ]
        for start in range(0, len(lost), DUE_LIMIT):
            await stage.storage.plan([PutSchedule(schedule) for schedule in lost[start : start + DUE_LIMIT]])
        reaper, events = Reaper(app), list[ReaperFailed]()
        reaper.on(ReaperFailed)(events.append)
        await reaper.start()
        await asyncio.sleep(130.5)
        await reaper.stop()
        known = {schedule.name: schedule for schedule in await app.schedules.list()}

        assert await ticks_of(stage, "often") == [after(number) for number in range(1, 131)]
        assert all(event.late_by < 0.5 for event in await stage.events_of(ScheduleFired))
        # Each of them was looked at again and again, and told of once.
        assert len(events) == len({event.error for event in events}) == len(lost)
        assert {known[item.name].last_tick for item in lost} == {EPOCH}
        assert all((known[schedule.name].next_tick or 0) > EPOCH + 120 * SECOND for schedule in lost)

    play(scenario)


class Refusing(MemoryStorage):
    """A storage that fails at the ticks of one schedule, and at all that come with them."""

    async def plan(self, changes: Sequence[Change]) -> list[ScheduleResult]:
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
        reaper, events = Reaper(app), list[ReaperFailed]()
        reaper.on(ReaperFailed)(events.append)
        await reaper.start()
        await asyncio.sleep(3.5)
        await reaper.stop()

        assert await ticks_of(stage, "often") == [after(number) for number in range(1, 4)]
        assert [event.error for event in events] == ["schedule 'bad': ValueError('not this one')"]

    simulate(main)


def test_a_reaper_pauses_although_the_storage_refuses_many_ticks() -> None:
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
