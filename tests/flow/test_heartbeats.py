"""What keeps a lease alive, and how a handler learns that its lease is lost or its job cancelled."""

import asyncio
from collections.abc import Sequence

import pytest

from tenure import (
    JobCancelled,
    JobCompleted,
    JobStalled,
    LeaseLost,
    Stall,
    State,
    StorageUnavailableError,
    Timing,
    UsageError,
    WorkerStarted,
    current_job,
)
from tenure.core.job import Owner
from tenure.core.settlement import Settlement
from tenure.handlers.context import ProgressReports
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import ClaimRequest, ExchangeResult, RenewRequest, RenewResult
from tenure_testing.simulation.event_loop import SimClock, SimLoop, simulate
from tests.flow.conftest import FAST, Harness, RunScenario


class Listening(MemoryStorage):
    """Memory that notes when beats arrive and how many runs they renew."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self.clock = clock
        self.beats: list[tuple[int, int]] = []

    async def renew(self, beat: RenewRequest) -> RenewResult:
        self.beats.append((round(self.clock.uptime()), len(beat.renewals)))
        return await super().renew(beat)


class UnavailableMemory(MemoryStorage):
    """Memory whose beats fail for a while and have no effect."""

    away = True
    silent_for = 0.0
    """Seconds after which a beat fails."""

    async def renew(self, beat: RenewRequest) -> RenewResult:
        if self.away:
            await asyncio.sleep(self.silent_for)
            raise StorageUnavailableError("out of reach")
        return await super().renew(beat)


class Unsettled(MemoryStorage):
    """Memory that accepts beats, but no outcomes for a while."""

    away = False

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        if self.away:
            raise StorageUnavailableError("out of reach")
        return await super().exchange(owner, settlements, order)


class Unspeakable:
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.statement(28, 87)
def test_the_context_never_raises_and_keeps_valid_reports(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def talk() -> None:
            context = current_job()
            context.heartbeat()
            context.progress(0.5, "half way")
            context.progress("not a number")  # type: ignore[arg-type]
            context.progress(float("nan"))
            context.progress(float("inf"))
            context.log.info("hello", part=1)
            context.log.error(Unspeakable(), more=Unspeakable())

        job = await talk.enqueue()
        await harness.start(app.worker())
        await job.result()
        detail = await job.info()

        assert (detail.job.progress, detail.job.progress_note) == (0.5, "half way")
        assert [(line.level, line.message, line.fields, line.run) for line in detail.log] == [
            ("info", "hello", {"part": "1"}, 1)
        ]

    run_scenario(scenario)


@pytest.mark.statement(28)
def test_a_cancel_reaches_a_running_coroutine_with_the_next_beat(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        seen: list[bool] = []

        @app.task
        async def wait() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                seen.append(current_job().cancelled)

        job = await wait.enqueue()
        await harness.start(app.worker())
        await asyncio.sleep(1)

        assert await job.cancel("enough", by="me")

        async def over() -> bool:
            return await job.state() is not State.ACTIVE

        await harness.until(over)
        detail = await job.info()
        assert seen == [True]
        assert [(event.by, event.was) for event in await harness.events_of(JobCancelled)] == [("me", "active")]
        assert (detail.job.state, detail.job.reason, detail.runs[0].ended) == (State.CANCELLED, "enough", "cancelled")
        assert harness.now < app.timing.beat.total_seconds() + 2

    run_scenario(scenario)


@pytest.mark.fault("W-T7")
@pytest.mark.statement(84, 85)
def test_beats_come_a_quarter_of_the_lease_apart_one_call_for_all_runs() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = Listening(clock)
        harness = Harness(loop, clock, storage)
        app = harness.app()

        @app.task
        async def wait() -> None:
            await asyncio.sleep(3600)

        await app.enqueue_many(wait.call() for _ in range(8))
        await harness.start(app.worker(concurrency=8))
        await asyncio.sleep(31)

        assert storage.beats == [(0, 0), (5, 8), (10, 8), (15, 8), (20, 8), (25, 8), (30, 8)]

    simulate(main)


@pytest.mark.statement(84)
def test_a_run_whose_lease_is_shorter_than_the_keepers_pause_wakes_it() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = Listening(clock)
        harness = Harness(loop, clock, storage)
        app = harness.app()

        @app.task(stall=Stall(interval="4s"))
        async def wait() -> None:
            await asyncio.sleep(3600)

        await harness.start(app.worker())
        await asyncio.sleep(0.25)
        await wait.enqueue()
        await asyncio.sleep(4)

        assert [at for at, renewals in storage.beats if renewals] == [1, 2, 3, 4]

    simulate(main)


@pytest.mark.statement(84)
def test_a_job_shorter_than_a_beat_causes_none(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def quick() -> None: ...

        await harness.start(app.worker())
        for _ in range(20):
            await (await quick.enqueue()).result()

        assert harness.now < app.timing.beat.total_seconds()

    run_scenario(scenario)


@pytest.mark.statement(86)
def test_runs_that_ended_during_an_outage_are_renewed_until_settled() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = Unsettled(clock=clock)
        harness = Harness(loop, clock, storage)
        app = harness.app(timing=Timing(lease="4s"))
        ended: list[str] = []

        @app.task(stall=Stall(interval="4s"))
        async def task() -> int:
            await asyncio.sleep(10)
            ended.append(current_job().id)
            return current_job().run

        jobs = [await task.enqueue() for _ in range(20)]
        await harness.start(app.worker(concurrency=20), "one")
        await harness.start(app.worker(concurrency=20), "two")
        await asyncio.sleep(5)
        storage.away = True
        await asyncio.sleep(30)

        # All of them ended 25 s ago, and a lease is 4 s long.
        assert len(ended) == 20
        assert {await job.state() for job in jobs} == {State.ACTIVE}

        storage.away = False

        assert [await job.result() for job in jobs] == [1] * 20
        assert await harness.events_of(JobStalled) == []

    simulate(main)


def test_a_hung_handler_exceeds_its_progress_limit_and_the_event_says_so(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(heartbeat_timeout="10s")
        async def task() -> int:
            for _ in range(6):
                await asyncio.sleep(5)
                current_job().heartbeat()
            if current_job().run == 1:
                await asyncio.sleep(3600)
            return current_job().run

        job = await task.enqueue()
        await harness.start(app.worker(), "one")
        await harness.start(app.worker(), "two")

        assert await job.result() == 2
        (stalled,) = await harness.events_of(JobStalled)
        assert stalled.reason == "no_progress"
        first = (await job.info()).runs[0]
        assert first.took is not None
        assert 40 <= first.took.total_seconds() <= 45

    run_scenario(scenario)


@pytest.mark.fault("W-T7", "W-B3")
@pytest.mark.statement(32, 112)
def test_a_run_that_lost_its_lease_is_stopped_and_its_worker_notified(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, other = harness.app(timing=FAST), harness.app(timing=FAST)
        heard: list[LeaseLost] = []
        stopped: list[int] = []

        async def body() -> int:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                stopped.append(current_job().run)
                raise
            return current_job().run

        task = app.task(name="body")(body)
        other.task(name="body")(body)
        app.on(LeaseLost, scope="every")(heard.append)
        first = await harness.start(app.worker(), "first")
        job = await task.enqueue()
        await asyncio.sleep(1)
        harness.loop.pause(first)
        await harness.start(other.worker(), "second")
        await asyncio.sleep(10)
        harness.loop.wake(first)

        assert await job.result() == 2
        await asyncio.sleep(5)
        assert stopped == [1]
        assert [(event.id, event.run, event.reason) for event in heard] == [(job.id, 1, "lost")]
        assert [event.run for event in await harness.events_of(JobCompleted)] == [2]

    run_scenario(scenario)


def test_current_job_outside_of_a_job_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="outside of a running job"):
        current_job()


def test_reports_of_a_failed_beat_are_sent_with_a_later_one() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = UnavailableMemory(clock=clock)
        harness = Harness(loop, clock, storage)
        app = harness.app(timing=Timing(lease="60s", beat="1s"))

        @app.task
        async def talk() -> None:
            for number in range(3):
                current_job().log.info(f"line {number}")
                current_job().progress(number / 4)
            await asyncio.sleep(30)

        job = await talk.enqueue()
        await harness.start(app.worker())
        await asyncio.sleep(5)

        assert (await job.info()).log == ()
        assert await harness.events_of(WorkerStarted) == []

        storage.away = False
        await asyncio.sleep(5)
        info = await job.info()

        assert [line.message for line in info.log] == ["line 0", "line 1", "line 2"]
        assert info.job.progress == 0.5
        assert len(await harness.events_of(WorkerStarted)) == 1

    simulate(main)


def test_the_newest_unsent_log_lines_are_kept_and_the_others_counted() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = UnavailableMemory(clock=clock)
        storage.silent_for = 0.5
        harness = Harness(loop, clock, storage)
        app = harness.app(timing=Timing(lease="60s", beat="1s"))

        @app.task
        async def talk() -> None:
            for number in range(1, 1801):
                current_job().log.info(f"line {number}")
                if number % 100 == 0:
                    # Some of the lines are written while a beat carries others, fails, and gives them back.
                    await asyncio.sleep(0.3)
            await asyncio.sleep(30)

        job = await talk.enqueue()
        await harness.start(app.worker())
        await asyncio.sleep(16)
        storage.away = False
        await asyncio.sleep(10)
        info = await job.info()

        assert [line.message for line in info.log] == [f"line {number}" for number in range(801, 1801)]
        assert info.log_dropped == 800

    simulate(main)


def test_lines_given_back_in_any_order_are_kept_in_the_original_order() -> None:
    signs = ProgressReports()
    signs.log(1.0, "info", "first", {})
    first = signs.take()
    signs.log(2.0, "info", "second", {})
    second = signs.take()
    signs.log(3.0, "info", "third", {})
    signs.restore(first)
    signs.restore(second)

    _, _, log, _ = signs.take()
    assert [message for _, _, message, _, _ in log] == ["first", "second", "third"]
