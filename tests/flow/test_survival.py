"""Faults that once ended a worker, stranded a job or ran it twice: each found in review, each a case here."""

import asyncio
import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from tenure import (
    JobCompleted,
    JobFailed,
    JobFailedError,
    JobReleased,
    JobStalled,
    Reaper,
    ReaperFailed,
    Retry,
    RetryLater,
    Stall,
    State,
    StorageUnavailableError,
    TaskOptions,
    Tenure,
    UsageError,
    current_job,
)
from tenure.core.job import Owner
from tenure.core.settlement import Settlement
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import ClaimRequest, ExchangeResult, RenewRequest, RenewResult, SweepRequest, SweepResult
from tenure_testing.simulation.event_loop import SimClock, SimLoop, simulate
from tests.flow.conftest import FAST, Harness, RunScenario


class FaultyMemory(MemoryStorage):
    """Memory whose verbs can fail or be slow."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self.on_exchange: Callable[[Sequence[Settlement], ClaimRequest | None], None] = lambda settlements, order: None
        self.on_renew: Callable[[RenewRequest], None] = lambda beat: None
        self.on_sweep: Callable[[], None] = lambda: None
        self.reply_after = 0.0

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        self.on_exchange(settlements, order)
        answer = await super().exchange(owner, settlements, order)
        await asyncio.sleep(self.reply_after)
        return answer

    async def renew(self, beat: RenewRequest) -> RenewResult:
        self.on_renew(beat)
        return await super().renew(beat)

    async def sweep(self, bid: SweepRequest) -> SweepResult:
        self.on_sweep()
        return await super().sweep(bid)


def on_faulty_memory(scenario: Callable[[Harness, FaultyMemory], Any]) -> None:
    """Run a scenario on a memory storage with faults."""

    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = FaultyMemory(clock)
        await scenario(Harness(loop, clock, storage), storage)

    simulate(main)


class WithoutBase(RetryLater):
    """A control whose constructor does not call that of its base."""

    def __init__(self) -> None:
        pass


def test_a_control_exception_without_its_fields_is_an_ordinary_failure(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(name="odd", retry=Retry(max_attempts=1))
        async def odd() -> None:
            raise WithoutBase

        @app.task(name="sound")
        async def sound() -> int:
            await asyncio.sleep(60)
            return 1

        await harness.start(app.worker())
        long = await sound.enqueue()
        with pytest.raises(JobFailedError):
            await (await odd.enqueue()).result()

        assert await long.result() == 1

    run_scenario(scenario)


@pytest.mark.fault("F13")
def test_an_unexpected_failure_of_the_storage_ends_no_worker() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        app = harness.app()
        failures = iter(range(5))

        def fail(settlements: Sequence[Settlement], order: ClaimRequest | None) -> None:
            if next(failures, None) is not None:
                raise RuntimeError("never thought of")

        @app.task
        async def task(number: int) -> int:
            await asyncio.sleep(1)
            return number

        jobs = await app.enqueue_many(task.call(number) for number in range(20))
        storage.on_exchange = fail
        await harness.start(app.worker())

        assert [await job.result() for job in jobs] == list(range(20))
        assert len(await harness.events_of(JobCompleted)) == 20

    on_faulty_memory(scenario)


def test_an_outcome_that_cannot_be_recorded_fails_its_own_job_only() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        app = harness.app()

        def choke(settlements: Sequence[Settlement], order: ClaimRequest | None) -> None:
            for sent in settlements:
                if any(isinstance(event, JobCompleted) and event.result == b"13" for event in sent.events):
                    raise ValueError("thirteen")

        @app.task
        async def task(number: int) -> int:
            await asyncio.sleep(1)
            return number

        jobs = await app.enqueue_many(task.call(number) for number in range(20))
        storage.on_exchange = choke
        await harness.start(app.worker(concurrency=20))
        for number, job in enumerate(jobs):
            if number == 13:
                with pytest.raises(JobFailedError, match="thirteen"):
                    await job.result()
            else:
                assert await job.result() == number

        assert [event.reason for event in await harness.events_of(JobFailed)] == ["undecodable"]
        assert await harness.events_of(JobStalled) == []

    on_faulty_memory(scenario)


def test_a_run_that_cannot_be_recorded_stalls_and_is_not_released() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        app = harness.app(timing=FAST)
        runs: list[int] = []

        def choke(settlements: Sequence[Settlement], order: ClaimRequest | None) -> None:
            for sent in settlements:
                events = any(isinstance(event, JobReleased | JobStalled) for event in sent.events)
                if len(runs) == 1 and not events:
                    raise ValueError("not to be written")

        @app.task
        async def task() -> None:
            runs.append(current_job().run)

        storage.on_exchange = choke
        await harness.start(app.worker())
        await (await task.enqueue()).result()

        assert runs == [1, 2]
        assert await harness.events_of(JobReleased) == []
        assert len(await harness.events_of(JobStalled)) == 1

    on_faulty_memory(scenario)


def test_a_keeper_survives_any_error_of_a_renewal() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        app = harness.app()
        failures = iter(range(2))

        def fail(beat: RenewRequest) -> None:
            if beat.renewals and next(failures, None) is not None:
                raise RuntimeError("never thought of")

        @app.task
        async def long() -> int:
            await asyncio.sleep(120)
            return current_job().run

        storage.on_renew = fail
        await harness.start(app.worker(), "one")
        await harness.start(app.worker(), "two")

        assert await (await long.enqueue()).result() == 1

    on_faulty_memory(scenario)


def test_a_reaper_survives_any_error_of_a_sweep() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        reaper = Reaper(harness.app(timing=FAST))
        heard: list[ReaperFailed] = []
        reaper.on(ReaperFailed)(heard.append)
        failures = iter(range(3))

        def fail() -> None:
            if next(failures, None) is not None:
                raise RuntimeError("never thought of")

        storage.on_sweep = fail
        await harness.start(reaper, "reaper")
        await asyncio.sleep(5)

        assert len(heard) == 3
        assert reaper.leads

    on_faulty_memory(scenario)


def test_a_handlers_heartbeat_survives_a_renewal_that_failed() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        app = harness.app(timing=FAST)
        failures = iter(range(1))

        def fail(beat: RenewRequest) -> None:
            if any(renewal.sign for renewal in beat.renewals) and next(failures, None) is not None:
                raise StorageUnavailableError("a moment")

        @app.task(stall=Stall(heartbeat=False, interval="4s"))
        async def visible() -> int:
            await asyncio.sleep(2.5)
            current_job().heartbeat()
            await asyncio.sleep(3)
            return current_job().run

        storage.on_renew = fail
        await harness.start(app.worker(), "one")

        assert await (await visible.enqueue()).result() == 1

    on_faulty_memory(scenario)


def test_a_claim_that_returns_after_its_lease_is_not_begun() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        app, other = harness.app(timing=FAST), harness.app(timing=FAST)
        began: list[int] = []

        async def body() -> int:
            began.append(current_job().run)
            return current_job().run

        task = app.task(name="body", on_worker_lost="retry")(body)
        other.task(name="body")(body)
        job = await task.enqueue()
        storage.reply_after = 30
        await harness.start(app.worker(), "slow")
        await asyncio.sleep(1)
        storage.reply_after = 0
        await harness.start(other.worker(), "quick")

        assert await job.result() == 2
        await asyncio.sleep(60)
        assert began == [2]

    on_faulty_memory(scenario)


class LostFirstAnswer(MemoryStorage):
    """Memory that loses the answer of the first claim, and then is unavailable for a while."""

    def __init__(self, clock: SimClock, away: float) -> None:
        super().__init__(clock=clock)
        self.back_at = math.inf
        self.away = away
        self.claims = list[int]()

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        # A request whose caller has stopped waiting may still be carried out, as by a server that was frozen.
        answer = await super().exchange(owner, settlements, order)
        self.claims.append(len(answer.leases))
        now = asyncio.get_running_loop().time()
        if answer.leases and self.back_at == math.inf:
            self.back_at = now + self.away
        if now < self.back_at < math.inf:
            raise StorageUnavailableError("the answer is lost")
        return answer


def test_a_claim_with_a_lost_answer_is_released_without_a_charge() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = LostFirstAnswer(clock, away=3.0)
        harness = Harness(loop, clock, storage)
        app = harness.app(defaults=TaskOptions(stall=Stall(max_count=0)))

        @app.task
        async def quick(number: int) -> int:
            return number

        jobs = await app.enqueue_many(quick.call(number) for number in range(20))
        began = harness.now
        await harness.start(app.worker(concurrency=5))
        assert [await job.result() for job in jobs] == list(range(20))
        # The claim was found when the storage was available, not when a lease expired; nothing was claimed in between.
        assert harness.now - began < 3.0 + 2.5
        assert sum(storage.claims) == 25
        details = [await job.info() for job in jobs]
        assert sorted((detail.job.starts, detail.job.releases) for detail in details) == [(1, 0)] * 15 + [(2, 1)] * 5
        assert all(detail.job.stalls == 0 for detail in details)
        assert [run.reason for detail in details for run in detail.runs if run.ended == "released"] == ["prefetch"] * 5

    simulate(main)


class DoubledClaims(MemoryStorage):
    """Memory behind a network that sometimes carries out a claim twice, and loses one of the two answers."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self.dice = Random(15)
        self.seen = 0

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        answer = await super().exchange(owner, settlements, order)
        if self.dice.random() < 0.3:
            again = await super().exchange(owner, settlements, order)
            self.seen += again.seen
            # A caller that repeats its request gets the answer of the second execution only.
            return answer if self.dice.random() < 0.5 else again
        return answer


def test_claims_that_are_carried_out_twice_cost_no_job_a_stall() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = DoubledClaims(clock)
        harness = Harness(loop, clock, storage)
        app = harness.app(defaults=TaskOptions(stall=Stall(max_count=0)))
        ran: list[int] = []

        @app.task
        async def quick(number: int) -> int:
            ran.append(number)
            return number

        jobs = await app.enqueue_many(quick.call(number) for number in range(300))
        began = harness.now
        await harness.start(app.worker(concurrency=5))
        assert [await job.result() for job in jobs] == list(range(300))
        # No job waited until a lease expired.
        assert harness.now - began < 10
        assert sorted(ran) == list(range(300))
        assert storage.seen > 10
        details = [await job.info() for job in jobs]
        assert {(detail.job.starts - detail.job.releases, detail.job.stalls) for detail in details} == {(1, 0)}
        assert any(detail.job.releases for detail in details)

    simulate(main)


class LostClaim(MemoryStorage):
    """Memory that carries out one claim of an owner, loses its answer, and refuses that owner's later exchanges."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self.owner = ""
        self.lost: list[int] = []

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        if owner.id == self.owner and self.lost:
            raise StorageUnavailableError("the request is lost")
        answer = await super().exchange(owner, settlements, order)
        if owner.id == self.owner and answer.leases:
            self.lost.append(len(answer.leases))
            raise StorageUnavailableError("the answer is lost")
        return answer


def test_a_beat_releases_the_claim_of_a_worker_that_gets_no_more_answers() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = LostClaim(clock)
        harness = Harness(loop, clock, storage)
        app = harness.app(defaults=TaskOptions(stall=Stall(max_count=0)))
        ran: list[str] = []

        @app.task
        async def task() -> None:
            ran.append(current_job().id)

        cut_off = app.worker(concurrency=2)
        storage.owner = cut_off.owner.id
        jobs = [await task.enqueue() for _ in range(2)]
        began = harness.now
        await harness.start(cut_off)
        await asyncio.sleep(0.5)
        await harness.start(app.worker(concurrency=2))
        for job in jobs:
            await job.result()

        assert storage.lost == [2]
        # Its beats continue, so its jobs are free long before their leases would expire.
        assert harness.now - began < 8
        assert sorted(ran) == sorted(job.id for job in jobs)
        details = [await job.info() for job in jobs]
        assert {(detail.job.starts, detail.job.releases, detail.job.stalls) for detail in details} == {(2, 1, 0)}

    simulate(main)


def test_a_drain_lasts_until_all_outcomes_are_recorded() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        app = harness.app()
        away = False

        def fail(settlements: Sequence[Settlement], order: ClaimRequest | None) -> None:
            if away:
                raise StorageUnavailableError("out of reach")

        @app.task
        async def task() -> int:
            await asyncio.sleep(1)
            return current_job().run

        storage.on_exchange = fail
        worker = app.worker()
        node = await harness.start(worker)
        job = await task.enqueue()
        await asyncio.sleep(0.5)
        away = True
        stopping = harness.loop.start(node, worker.stop(timeout="25s"))
        await asyncio.sleep(15)
        away = False
        await stopping

        assert await job.state() is State.COMPLETED
        assert await harness.events_of(JobStalled) == []

    on_faulty_memory(scenario)


def test_a_worker_stopped_during_its_start_does_not_run(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def task() -> None: ...

        worker = app.worker()
        starting = asyncio.create_task(worker.start())
        await asyncio.sleep(0)
        await worker.stop()
        await starting
        job = await task.enqueue()
        await asyncio.sleep(10)
        state = await job.state()

        assert worker.ended
        assert state is State.WAITING
        with pytest.raises(UsageError, match="stopped"):
            await worker.start()

    run_scenario(scenario)


def test_waiting_for_a_worker_ends_with_the_worker(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def task() -> None: ...

        worker = app.worker()
        await worker.start()
        waiting = asyncio.create_task(worker.wait())
        await asyncio.sleep(1)
        await worker.stop()
        await waiting
        job = await task.enqueue()
        await asyncio.sleep(10)

        assert worker.ended
        assert await job.state() is State.WAITING

    run_scenario(scenario)


def test_a_run_without_lease_renewal_still_gets_its_cancel(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(stall=Stall(heartbeat=False, interval="10m"))
        async def visible() -> None:
            await asyncio.sleep(500)

        await harness.start(app.worker())
        job = await visible.enqueue()
        await asyncio.sleep(1)
        await job.cancel("enough")

        async def over() -> bool:
            return await job.state() is State.CANCELLED

        assert await harness.until(over) < 11

    run_scenario(scenario)


def test_an_exception_caused_by_a_stop_is_not_charged(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(retry=Retry(max_attempts=1))
        async def fragile() -> int:
            try:
                await asyncio.sleep(50 if current_job().run == 1 else 1)
            except asyncio.CancelledError:
                raise ConnectionError("half way") from None
            return current_job().run

        worker = app.worker()
        node = await harness.start(worker, "one")
        job = await fragile.enqueue()
        await asyncio.sleep(1)
        await harness.stop(node, worker, timeout="1s")
        record = (await job.info()).job

        assert (record.state, record.failures, record.releases) == (State.WAITING, 0, 1)
        await harness.start(app.worker(), "two")
        assert await job.result() == 2

    run_scenario(scenario)


def test_log_lines_count_as_heartbeats_and_accept_any_field_name(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(heartbeat_timeout="5s")
        async def talk() -> int:
            for number in range(20):
                await asyncio.sleep(2)
                current_job().log.info("still here", message="a field of that name", number=number)
            return current_job().run

        await harness.start(app.worker())
        job = await talk.enqueue()

        assert await job.result() == 1
        assert (await job.info()).log[0].fields == {"message": "a field of that name", "number": "0"}

    run_scenario(scenario)


def test_a_run_cut_off_is_trusted_no_longer_than_its_progress_limit() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        app, other = harness.app(), harness.app()
        times: list[tuple[int, str, float]] = []
        away = False

        async def body() -> int:
            run = current_job().run
            times.append((run, "start", harness.now))
            try:
                for _ in range(30 if run == 1 else 1):
                    await asyncio.sleep(1)
                    current_job().heartbeat()
            finally:
                times.append((run, "end", harness.now))
            return run

        def fail(beat: RenewRequest) -> None:
            if away and beat.owner.name == "first":
                raise StorageUnavailableError("out of reach")

        task = app.task(name="body", heartbeat_timeout="6s", on_unreachable="stop")(body)
        other.task(name="body", heartbeat_timeout="6s", on_unreachable="stop")(body)
        storage.on_renew = fail
        await harness.start(app.worker(name="first"), "first")
        job = await task.enqueue()
        await asyncio.sleep(2)
        away = True
        await harness.start(other.worker(name="second"), "second")

        assert await job.result() == 2
        first_end = next(at for run, what, at in times if (run, what) == (1, "end"))
        second_start = next(at for run, what, at in times if (run, what) == (2, "start"))
        assert first_end < second_start

    on_faulty_memory(scenario)


def test_a_cut_off_run_cleans_up_only_while_no_other_run_can_begin() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        app, other = harness.app(timing=FAST), harness.app(timing=FAST)
        times: list[tuple[int, str, float]] = []
        away = False

        async def body(number: int) -> None:
            times.append((number, "start", harness.now))
            try:
                if number == 1:
                    try:
                        await asyncio.sleep(500)
                    finally:
                        await asyncio.sleep(100)
            finally:
                times.append((number, "end", harness.now))

        def fail(beat: RenewRequest) -> None:
            if away and beat.owner.name == "first":
                raise StorageUnavailableError("out of reach")

        task = app.task(name="body", singleton=True, timeout="10m")(body)
        other.task(name="body", singleton=True, timeout="10m")(body)
        storage.on_renew = fail
        await harness.start(app.worker(name="first"), "first")
        job, behind = await task.enqueue(1), await task.enqueue(2)
        await asyncio.sleep(2)
        await job.cancel("enough")
        await asyncio.sleep(2)
        away = True
        await harness.start(other.worker(name="second"), "second")
        await behind.result()

        assert await job.state() is State.CANCELLED
        assert [(number, what) for number, what, _ in times] == [(1, "start"), (1, "end"), (2, "start"), (2, "end")]

    on_faulty_memory(scenario)


def test_a_claimed_job_with_an_expired_lease_is_not_begun(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        begun: list[tuple[int, int]] = []

        @app.task
        async def task(number: int) -> None:
            begun.append((number, current_job().run))
            if number == 1:
                harness.loop.block(3.0)

        jobs = await app.enqueue_many(task.call(number) for number in (1, 2))
        await harness.start(app.worker(concurrency=2))
        for job in jobs:
            await job.result()

        assert begun == [(1, 1), (2, 2)]
        assert [event.reason for event in await harness.events_of(JobReleased)] == ["unreachable"]

    run_scenario(scenario)


def test_a_slow_event_handler_gets_each_event_once_with_many_workers(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        heard: list[str] = []
        apps: list[Tenure] = []
        for number in range(2):
            app = harness.app()

            @app.task(name="quick")
            async def quick() -> None: ...

            @app.on(JobCompleted)
            async def slow(event: JobCompleted) -> None:
                heard.append(event.id)
                await asyncio.sleep(12)

            apps.append(app)
            await harness.start(app.worker(), f"worker-{number}")
        await asyncio.sleep(1)
        jobs = [await apps[0].tasks["quick"].enqueue() for _ in range(3)]
        await asyncio.sleep(120)

        assert sorted(heard) == sorted(job.id for job in jobs)
        assert heard == [event.id for event in await harness.events_of(JobCompleted)]

    run_scenario(scenario)


def test_an_event_handler_that_cancels_itself_does_not_affect_others(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        heard: list[str] = []
        app.on(JobCompleted)(lambda event: heard.append(event.id))

        @app.task
        async def quick() -> None: ...

        @app.on(JobCompleted)
        async def cancels(event: JobCompleted) -> None:
            raise asyncio.CancelledError

        await harness.start(app.worker())
        jobs = [await quick.enqueue() for _ in range(3)]
        await asyncio.sleep(10)

        assert heard == [job.id for job in jobs]

    run_scenario(scenario)


def test_a_polite_stop_repeats_no_event_and_cuts_no_handler_short(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        heard: list[tuple[str, str]] = []

        def process(name: str) -> Any:
            app = harness.app()

            @app.task(name="quick")
            async def quick() -> None: ...

            @app.on(JobCompleted)
            async def note(event: JobCompleted) -> None:
                heard.append((event.id, "begun"))
                await asyncio.sleep(0.4)
                heard.append((event.id, "done"))

            return app

        first = process("first")
        worker = first.worker()
        node = await harness.start(worker, "first")
        await asyncio.sleep(1)
        jobs = [await first.tasks["quick"].enqueue() for _ in range(50)]
        await asyncio.sleep(5)
        await harness.stop(node, worker)
        await harness.start(process("second").worker(), "second")
        await asyncio.sleep(60)

        for what in ("begun", "done"):
            assert [job_id for job_id, item in heard if item == what] == [job.id for job in jobs]

    run_scenario(scenario)


def test_a_clock_set_forward_takes_no_run_from_a_live_worker(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(timeout="5m", heartbeat_timeout="1m")
        async def long() -> int:
            for _ in range(8):
                await asyncio.sleep(15)
                current_job().heartbeat()
            return current_job().run

        await harness.start(app.worker(), "one")
        await harness.start(app.worker(), "two")
        job = await long.enqueue()
        await asyncio.sleep(10)
        harness.clock.step(3600)

        assert await job.result() == 1
        assert await harness.events_of(JobStalled) == []

    run_scenario(scenario)
