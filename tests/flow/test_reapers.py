"""One reaper and several: which one leads, what they find, and that nothing is recovered twice."""

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from tenure import (
    JobStalled,
    LeaderElection,
    LeadershipAcquired,
    LeadershipLost,
    Reaper,
    ReaperFailed,
    State,
    StorageUnavailableError,
    Tenure,
    UsageError,
)
from tenure.client.codec import JsonCodec
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import SweepRequest, SweepResult
from tenure_testing.simulation.event_loop import SimClock, SimLoop, simulate
from tests.flow.conftest import FAST, Harness, RunScenario


async def abandoned(harness: Harness, app: Tenure, jobs: int = 1) -> list[str]:
    """Leave jobs behind that a dead worker holds, and return their ids."""

    @app.task(name="sleep")
    async def sleep() -> None:
        await asyncio.sleep(3600)

    made = await app.enqueue_many(sleep.call() for _ in range(jobs))
    node = await harness.start(app.worker(reaper=False, concurrency=max(jobs, 1)), "victim")
    await asyncio.sleep(0.1)
    harness.loop.kill(node)
    return [job.id for job in made]


@pytest.mark.fault("W-P2")
@pytest.mark.statement(106)
def test_a_reaper_recovers_jobs_that_stalled_before_its_start(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        ids = await abandoned(harness, app, jobs=3)
        await asyncio.sleep(3600)
        began = harness.now
        await harness.start(Reaper(app), "reaper")
        await asyncio.sleep(3.5)
        events = await harness.events_of(JobStalled)

        assert sorted(event.id for event in events) == sorted(ids)
        assert harness.now - began < 4

    run_scenario(scenario)


@pytest.mark.fault("W-P8")
@pytest.mark.statement(105, 107)
def test_three_reapers_without_election_recover_nothing_twice(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        ids = await abandoned(harness, app, jobs=20)
        reapers = [Reaper(app, election=None) for _ in range(3)]
        for reaper in reapers:
            await harness.start(reaper, reaper.id)
        await asyncio.sleep(10)
        events = await harness.events_of(JobStalled)

        assert sorted(event.id for event in events) == sorted(ids)
        assert not any(reaper.leads for reaper in reapers)

    run_scenario(scenario)


@pytest.mark.statement(41, 107, 108)
def test_one_of_many_leads_and_the_others_ask_again(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        reapers = [Reaper(app) for _ in range(3)]
        for reaper in reapers:
            await harness.start(reaper, reaper.id)
        await asyncio.sleep(60)

        assert [reaper.leads for reaper in reapers].count(True) == 1
        assert len(await harness.events_of(LeadershipAcquired)) == 1

    run_scenario(scenario)


@pytest.mark.statement(110)
def test_a_leader_that_stops_resigns_and_a_dead_leader_is_replaced(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        first, second, third = Reaper(app), Reaper(app), Reaper(app)
        node = await harness.start(first, "first")
        await asyncio.sleep(1)
        other = await harness.start(second, "second")
        await asyncio.sleep(1)
        await harness.stop(node, first)
        longest = app.timing.leader_ttl.total_seconds() + 0.6

        async def second_leads() -> bool:
            return second.leads

        async def third_leads() -> bool:
            return third.leads

        assert await harness.until(second_leads) <= longest
        await harness.start(third, "third")
        await asyncio.sleep(1)
        harness.loop.kill(other)
        assert await harness.until(third_leads) <= longest
        epochs = [event.epoch for event in await harness.events_of(LeadershipAcquired)]
        assert epochs == [1, 2, 3]
        assert [event.reason for event in await harness.events_of(LeadershipLost)] == ["resigned", "expired"]

    run_scenario(scenario)


@pytest.mark.statement(110, 35)
def test_a_dead_leaders_own_jobs_are_recovered_within_the_bound(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def sleep() -> None:
            await asyncio.sleep(3600)

        leader = await harness.start(app.worker(), "leader")
        await sleep.enqueue()
        await asyncio.sleep(4)
        await harness.start(app.worker(queues=["elsewhere"]), "follower")
        await asyncio.sleep(4)
        harness.loop.kill(leader)

        async def recovered() -> bool:
            return bool(await harness.events_of(JobStalled))

        assert await harness.until(recovered) <= app.timing.recovery_bound.total_seconds()

    run_scenario(scenario)


class Unreliable(MemoryStorage):
    """Memory that can be unavailable for sweeps."""

    away = False

    async def sweep(self, bid: SweepRequest) -> SweepResult:
        if self.away:
            raise StorageUnavailableError("out of reach")
        return await super().sweep(bid)


@pytest.mark.fault("W-P12")
@pytest.mark.statement(109, 115)
def test_a_leader_without_its_storage_stops_leading_and_returns_later() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = Unreliable(clock=clock)
        harness = Harness(loop, clock, storage)
        reaper = Reaper(harness.app(timing=FAST))
        heard: list[object] = []
        reaper.on(LeadershipAcquired)(heard.append)
        reaper.on(LeadershipLost)(heard.append)
        reaper.on(ReaperFailed)(heard.append)
        await harness.start(reaper, "reaper")
        await asyncio.sleep(1)
        storage.away = True
        await asyncio.sleep(2)

        assert not reaper.leads
        kinds = [type(event).__name__ for event in heard]
        assert kinds[0] == "LeadershipAcquired"
        assert kinds.count("LeadershipLost") == 1
        assert kinds.count("ReaperFailed") >= 3
        storage.away = False
        await asyncio.sleep(2)
        assert reaper.leads

    simulate(main)


@pytest.mark.parametrize("coroutine", [False, True])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_an_exception_of_an_event_handler_does_not_end_a_reaper(
    run_scenario: RunScenario, error: type[BaseException], coroutine: bool
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        reaper, heard = Reaper(app), list[LeadershipAcquired]()

        def plain(event: LeadershipAcquired) -> None:
            heard.append(event)
            raise error

        async def awaited(event: LeadershipAcquired) -> None:
            plain(event)

        reaper.on(LeadershipAcquired)(awaited if coroutine else plain)
        await harness.start(reaper, "reaper")
        await asyncio.sleep(1)
        await abandoned(harness, app)

        async def recovered() -> bool:
            return bool(await harness.events_of(JobStalled))

        assert await harness.until(recovered) <= app.timing.recovery_bound.total_seconds()
        assert len(heard) == 1
        await reaper.stop()

    run_scenario(scenario)


class Hanging(MemoryStorage):
    """Memory whose sweeps can hang without an answer, as a connection does after a network failure."""

    hangs = False
    asked = 0

    async def sweep(self, bid: SweepRequest) -> SweepResult:
        self.asked += 1
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        return await super().sweep(bid)


@pytest.mark.fault("W-P12")
@pytest.mark.statement(22, 112)
def test_a_leader_whose_sweep_hangs_gives_up_its_term_and_sweeps_again() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = Hanging(clock=clock)
        harness = Harness(loop, clock, storage)
        app = harness.app(timing=FAST)
        reaper = Reaper(app)
        failures: list[ReaperFailed] = []
        lost: list[LeadershipLost] = []
        won: list[LeadershipAcquired] = []
        reaper.on(ReaperFailed)(failures.append)
        reaper.on(LeadershipAcquired)(won.append)
        reaper.on(LeadershipLost)(lost.append)
        await harness.start(reaper, "reaper")
        await asyncio.sleep(1)
        storage.hangs = True
        asked = storage.asked
        # A sweep until the hang, the term that it waits for, and the next sweep.
        await asyncio.sleep(2 * FAST.leader_ttl.total_seconds() + 2 * FAST.sweep.total_seconds())

        assert not reaper.leads
        assert (len(won), [event.reason for event in lost]) == (1, ["unreachable"])
        assert [event.error for event in failures] == ["no answer"] * len(failures)
        assert len(failures) >= 1
        assert storage.asked - asked >= 2

        storage.hangs = False
        await abandoned(harness, app)

        async def recovered() -> bool:
            return bool(await harness.events_of(JobStalled))

        assert await harness.until(recovered) <= app.timing.recovery_bound.total_seconds()
        assert len(won) == 2

    simulate(main)


@pytest.mark.statement(114)
def test_a_reaper_starts_and_stops_twice_without_leaving_anything(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        tasks, threads = len(asyncio.all_tasks()), threading.active_count()
        reaper = Reaper(harness.app())
        await reaper.stop()
        await reaper.start()
        await reaper.start()
        await asyncio.sleep(5)
        await reaper.stop()
        await reaper.stop()

        assert (len(asyncio.all_tasks()), threading.active_count()) == (tasks, threads)
        assert not reaper.leads

    run_scenario(scenario)


@pytest.mark.fault("W-P12")
@pytest.mark.statement(113)
def test_a_stopping_leader_goes_inactive_before_it_resigns(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        reaper = Reaper(harness.app(timing=FAST))
        led: list[bool] = []
        reaper.on(LeadershipLost)(lambda event: led.append(reaper.leads))
        node = await harness.start(reaper, "reaper")
        await asyncio.sleep(1)
        await harness.stop(node, reaper)

        assert led == [False]

    run_scenario(scenario)


@pytest.mark.fault("W-P19")
@pytest.mark.statement(116)
def test_every_kind_of_reaper_uses_the_lease_of_the_job(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        ids = await abandoned(harness, app)
        # Another timing: the lease is the job's own, so the reaper cannot disagree with the worker about it.
        other = harness.app(timing=FAST)
        await harness.start(Reaper(other, election=LeaderElection(ttl="1s")), "reaper")
        await asyncio.sleep(app.timing.recovery_bound.total_seconds())

        assert [event.id for event in await harness.events_of(JobStalled)] == ids

    run_scenario(scenario)


@pytest.mark.statement(118)
def test_memory_elects_a_leader_as_any_storage_does() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        harness = Harness(loop, clock, MemoryStorage(clock=clock))
        reaper = Reaper(harness.app())

        await reaper.turn()

        assert reaper.leads

    simulate(main)


@pytest.mark.statement(15, 16, 88)
def test_of_two_manual_turns_the_first_suspects_and_the_second_resolves(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        (job_id,) = await abandoned(harness, app)
        job = app.job(job_id)
        reaper = Reaper(app, election=None)
        await asyncio.sleep(2)

        await reaper.turn()
        assert await job.state() is State.ACTIVE
        await asyncio.sleep(0.6)
        await reaper.turn()
        assert await job.state() is State.WAITING

    run_scenario(scenario)


@pytest.mark.parametrize(
    "option",
    [{"timing": FAST}, {"logger": logging.getLogger("mine")}, {"codec": JsonCodec()}],
    ids=lambda value: min(value),
)
def test_a_reaper_of_an_app_refuses_options_of_the_app(run_scenario: RunScenario, option: dict[str, Any]) -> None:
    async def scenario(harness: Harness) -> None:
        with pytest.raises(UsageError, match=min(option)):
            Reaper(harness.app(), **option)

    run_scenario(scenario)


async def test_plain_handlers_of_reaper_events_run_in_order_in_a_daemon_thread() -> None:
    reaper = Reaper(Tenure("memory://", timing=FAST))
    loop, began = asyncio.get_running_loop(), asyncio.Event()
    heard: list[tuple[str, bool]] = []

    def plain(event: LeadershipAcquired | LeadershipLost) -> None:
        if isinstance(event, LeadershipAcquired):
            # The loop continues and adds the next event meanwhile.
            loop.call_soon_threadsafe(began.set)
            time.sleep(0.2)
        thread = threading.current_thread()
        heard.append((type(event).__name__, thread.daemon and thread is not threading.main_thread()))

    reaper.on(LeadershipAcquired)(plain)
    reaper.on(LeadershipLost)(plain)
    await reaper.start()
    await asyncio.wait_for(began.wait(), 5)
    blocked = list(heard)
    await reaper.stop()

    assert blocked == []
    assert heard == [("LeadershipAcquired", True), ("LeadershipLost", True)]
