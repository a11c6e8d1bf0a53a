"""Faults of earlier systems that must not happen here: one case per fault, as its users saw it.

`python tests/faults.py` lists the faults, and which other tests show that we do not have them.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Unpack

import pytest

from tenure import (
    Event,
    JobCancelled,
    JobCancelledError,
    JobCompleted,
    JobFailed,
    JobFailedError,
    JobNotFoundError,
    JobRetried,
    JobStalled,
    Keep,
    Reaper,
    Retention,
    Retry,
    Stall,
    State,
    StorageUnavailableError,
    Tenure,
    Timing,
    WorkerFailed,
    current_job,
)
from tenure.background_loop import SameLoop
from tenure.core.job import Owner
from tenure.core.lease import Lease
from tenure.core.settlement import Settlement
from tenure.options import TaskSettings
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.notifications import Listener
from tenure.storage.protocol import (
    ClaimRequest,
    DeleteJob,
    ExchangeResult,
    RenewRequest,
    RenewResult,
    SweepRequest,
    SweepResult,
)
from tenure_testing.simulation.event_loop import SimClock, SimLoop, simulate
from tests.flow.conftest import FAST, Harness, RunScenario
from tests.records import record_of

pytestmark = pytest.mark.thorough

SECOND = 1_000_000
BOUND = FAST.recovery_bound.total_seconds()


def quick(app: Tenure, **options: Unpack[TaskSettings]) -> Any:
    """Define a task that returns at once."""

    @app.task(name="quick", **options)
    async def run(value: Any = None) -> Any:
        return value

    return run


def sleeper(app: Tenure, **options: Unpack[TaskSettings]) -> Any:
    """Define a task whose first run takes this many seconds, and each later one no time; it returns its run."""

    @app.task(name="sleeper", **options)
    async def sleep(seconds: float = 3600.0) -> int:
        await asyncio.sleep(seconds if current_job().run == 1 else 0)
        return current_job().run

    return sleep


async def claim_all(harness: Harness, owner: str = "gone", *, queue: str = "default") -> list[Lease]:
    """Claim all jobs for an owner that sends no other request before or after."""
    leases: list[Lease] = []
    while taken := (await harness.storage.exchange(Owner(owner), (), ClaimRequest((queue,), 128))).leases:
        leases += taken
    return leases


async def crash(harness: Harness, app: Tenure, *, after: float = 0.1, **options: Any) -> None:
    """Let a worker claim what there is, and kill it."""
    node = await harness.start(app.worker(reaper=False, **options), "victim")
    await asyncio.sleep(after)
    harness.loop.kill(node)


async def counts(harness: Harness, queue: str = "default") -> dict[State, int]:
    """Return how many jobs of a queue are in each state."""
    (survey,) = (await harness.storage.survey([queue])).queues
    return {state: count for state, count in survey.counts.items() if count}


def on_memory(
    storage: Callable[[SimClock], MemoryStorage], scenario: Callable[[Harness], Coroutine[Any, Any, None]]
) -> None:
    """Run a scenario on a memory storage of this kind."""

    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        await scenario(Harness(loop, clock, storage(clock)))

    simulate(main)


# ── completed jobs stay completed, and lost jobs are recovered ────────────────────────────────────────────────────────


@pytest.mark.fault("F1", "W-T1")
def test_a_completed_job_is_not_revived_by_later_sweeps(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        begun: Counter[str] = Counter()
        dice = Random(1)
        apps = [harness.app(timing=FAST) for _ in range(3)]
        for app in apps:

            @app.task(name="work")
            async def work(seconds: float) -> None:
                begun[current_job().id] += 1
                await asyncio.sleep(seconds)

        # Each of them is active at some sweep and has ended by a later one, most of them before their first renewal.
        jobs = await apps[0].enqueue_many(apps[0].tasks["work"].call(dice.uniform(0.1, 2.5)) for _ in range(300))
        for number, app in enumerate(apps):
            await harness.start(app.worker(concurrency=20, election=None), f"worker-{number}")
        for job in jobs:
            await job.result(timeout="2m")
        await asyncio.sleep(3 * BOUND)

        assert begun == {job.id: 1 for job in jobs}
        assert await counts(harness) == {State.COMPLETED: 300}
        assert await harness.events_of(JobStalled) == []

    run_scenario(scenario)


@pytest.mark.slow
@pytest.mark.fault("F2", "W-T2")
def test_nine_thousand_active_jobs_do_not_switch_recovery_off(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        task = sleeper(app)
        await app.enqueue_many(task.call() for _ in range(9_000))
        leases = await claim_all(harness)
        assert len(leases) == 9_000
        await harness.start(Reaper(app), "reaper")
        await asyncio.sleep(BOUND)

        assert await counts(harness) == {State.WAITING: 9_000}
        assert {lease.ref for lease in leases} == {lease.ref for lease in await claim_all(harness, "another")}

    run_scenario(scenario)


@pytest.mark.fault("F4", "W-T29", "W-B11")
@pytest.mark.parametrize("skew", [-86_400.0, -60.0, 60.0, 86_400.0])
def test_no_clock_of_a_client_a_worker_or_a_reaper_decides_anything(run_scenario: RunScenario, skew: float) -> None:
    async def scenario(harness: Harness) -> None:
        def skewed(seconds: float) -> Tenure:
            clock = SimClock(harness.loop)
            clock.step(seconds)
            return Tenure(storage=harness.storage, clock=clock, rng=Random(1), side=SameLoop, timing=FAST)

        client, server = skewed(skew), skewed(-skew)

        @server.task(name="note")
        async def note() -> float:
            return harness.now

        task = client.task(name="note")(note.function)
        long = sleeper(client)
        sleeper(server)
        await harness.start(server.worker(), "worker")
        await harness.start(Reaper(skewed(2 * skew), election=None), "reaper")
        delayed = await task.options(delay="20s").enqueue()
        mortal = await task.options(ttl="5s", queue="unserved").enqueue()
        living = await task.options(ttl="30s", delay="10s").enqueue()
        brief = await task.options(result_ttl="40s").enqueue()
        slow = await long.enqueue(15.0)

        assert await brief.result() < 1
        assert 10 <= await living.result() < 10.1
        assert await slow.result() == 1
        assert 20 <= await delayed.result() < 20.1
        assert await mortal.state() is State.EXPIRED
        expired = await record_of(mortal)
        assert expired.finished is not None
        assert 5 <= (expired.finished - expired.created) / SECOND <= 6.5
        await asyncio.sleep(15)
        assert await brief.state() is State.COMPLETED
        await asyncio.sleep(10)
        with pytest.raises(JobNotFoundError):
            await brief.state()
        assert await delayed.state() is State.COMPLETED
        assert await harness.events_of(JobStalled) == []

    run_scenario(scenario)


@pytest.mark.fault("F5", "W-P8")
def test_a_job_is_neither_lost_nor_doubled_by_a_reaper_that_dies_halfway(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        job = await sleeper(app).enqueue()
        await claim_all(harness)
        halfway = SweepRequest(Owner("halfway"), None, SECOND // 2, SECOND // 2)
        while not (await harness.storage.sweep(halfway)).stalled:  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.5)
        # It has taken the job from its holder, and never decides what happens to it.
        for number in range(2):
            await harness.start(Reaper(app, election=None), f"reaper-{number}")
        await asyncio.sleep(10)

        assert await counts(harness) == {State.WAITING: 1}
        assert [(event.id, event.count) for event in await harness.events_of(JobStalled)] == [(job.id, 1)]
        assert [lease.ref for lease in await claim_all(harness, "another")] == [job.ref]

    run_scenario(scenario)


@pytest.mark.fault("F7", "F8", "W-N1")
@pytest.mark.slow
def test_a_job_of_four_hours_is_neither_run_twice_nor_forgotten(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=Timing(lease="2m", sweep="30s", grace="30s"))
        task = sleeper(app, concurrency_key="one")
        long, after = await task.enqueue(4 * 3600.0), await task.enqueue(0.0)
        await harness.start(app.worker(), "one")
        await harness.start(app.worker(), "two")
        await asyncio.sleep(4 * 3600 - 1)

        assert (await long.state(), await after.state()) == (State.ACTIVE, State.WAITING)
        assert await long.result() == 1
        # Its slot was its own all the while, and is free now.
        assert await after.result(timeout="5s") == 1
        assert len((await long.info()).runs) == 1

    run_scenario(scenario)


@pytest.mark.fault("F9", "W-P10")
def test_jobs_of_a_dead_worker_run_again_on_any_other_worker(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        job = await sleeper(app).enqueue()
        await crash(harness, app)
        began = harness.now
        await harness.start(app.worker(), "another")

        assert await job.result() == 2
        assert harness.now - began <= app.timing.recovery_bound.total_seconds() + 1

    run_scenario(scenario)


class Outage(MemoryStorage):
    """Memory that can be unavailable, and counts the calls of each verb."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self.away = False
        self.asked: Counter[str] = Counter()

    def _ask(self, verb: str) -> None:
        self.asked[verb] += 1
        if self.away:
            raise StorageUnavailableError("out of reach")

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        self._ask("exchange")
        return await super().exchange(owner, settlements, order)

    async def renew(self, beat: RenewRequest) -> RenewResult:
        self._ask("renew")
        return await super().renew(beat)

    async def sweep(self, bid: SweepRequest) -> SweepResult:
        self._ask("sweep")
        return await super().sweep(bid)

    def notices(self, topics: Iterable[str]) -> Listener:
        self.asked["notices"] += 1
        return super().notices(topics)


@pytest.mark.fault("F13")
def test_after_an_outage_of_minutes_no_worker_needs_a_restart() -> None:
    async def scenario(harness: Harness) -> None:
        storage = harness.storage
        assert isinstance(storage, Outage)
        app = harness.app(timing=FAST)
        task = sleeper(app, on_worker_lost="retry")
        jobs = await app.enqueue_many(task.call(20.0) for _ in range(12))
        await harness.start(app.worker(concurrency=4))
        await asyncio.sleep(10)
        storage.away = True
        await asyncio.sleep(300)
        storage.away = False
        began = harness.now
        for job in jobs:
            await job.result()
        assert harness.now - began < 90
        assert await counts(harness) == {State.COMPLETED: 12}
        # The reaper works again too: it finds what others leave behind.
        left = await task.options(queue="elsewhere").enqueue()
        await claim_all(harness, queue="elsewhere")
        await asyncio.sleep(BOUND)

        assert await left.state() is State.WAITING

    on_memory(Outage, scenario)


@pytest.mark.fault("W-T25")
def test_a_storage_that_refuses_every_claim_is_not_flooded_with_calls() -> None:
    async def scenario(harness: Harness) -> None:
        storage = harness.storage
        assert isinstance(storage, Outage)
        app = harness.app()
        task = quick(app)
        heard: list[WorkerFailed] = []
        app.on(WorkerFailed, scope="every")(heard.append)
        await harness.start(app.worker())
        await asyncio.sleep(1)
        before = storage.asked["exchange"]
        storage.away = True
        for number in range(3_000):
            # The storage still accepts jobs, and each notifies the worker that there is something to claim.
            await task.enqueue(number)
            await asyncio.sleep(0.1)
        tried = storage.asked["exchange"] - before
        storage.away = False

        assert 10 <= tried <= 300  # by one worker in five minutes
        assert tried - 1 <= len(heard) <= tried
        assert await (await task.enqueue(7)).result(timeout="10s") == 7

    on_memory(Outage, scenario)


@pytest.mark.fault("W-T9")
def test_a_suspect_keeps_its_grace_with_any_number_of_reapers(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=Timing(lease="4s", sweep="500ms", grace="4s"))
        job = await sleeper(app).enqueue(30.0)
        node = await harness.start(app.worker(reaper=False), "holder")
        for number in range(5):
            await harness.start(Reaper(app, election=None), f"reaper-{number}")
        await asyncio.sleep(10)
        harness.loop.pause(node)
        await asyncio.sleep(6)
        suspected = (await record_of(job)).suspect_until is not None
        harness.loop.wake(node)

        assert suspected
        assert await job.result() == 1
        assert await harness.events_of(JobStalled) == []

    run_scenario(scenario)


@pytest.mark.fault("W-P2", "W-P4")
def test_a_claim_with_a_lost_answer_of_an_unknown_worker_is_recovered(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        job = await sleeper(app).enqueue()
        await claim_all(harness)
        assert (await harness.storage.survey()).workers == ()
        await asyncio.sleep(3600)
        await harness.start(app.worker())

        assert await job.result(timeout=BOUND) == 2

    run_scenario(scenario)


@pytest.mark.fault("W-P5", "W-P18")
@pytest.mark.parametrize("name", ["host:1:2", "x:exp", "../../tmp", "a/b", "*"])
def test_no_character_of_a_name_hides_a_job_from_the_reaper(run_scenario: RunScenario, name: str) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        job = await sleeper(app).options(id=name).enqueue()
        await crash(harness, app, name=name)
        await harness.start(app.worker(name=f"{name}:2"))

        assert await job.result(timeout=2 * BOUND) == 2
        (event,) = await harness.events_of(JobStalled)
        assert (event.id, event.action) == (name, "recovered")

    run_scenario(scenario)


@pytest.mark.fault("W-B1")
@pytest.mark.parametrize("paused", ["queue", "task"])
def test_a_job_that_stalled_too_often_fails_at_once_while_paused(run_scenario: RunScenario, paused: str) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        task = sleeper(app, stall=Stall(max_count=0))
        job = await task.enqueue()
        await crash(harness, app)
        await (app.queue("default") if paused == "queue" else task).pause()
        await harness.start(Reaper(app), "reaper")
        await asyncio.sleep(BOUND)

        assert await job.state() is State.FAILED
        assert [(event.id, event.reason) for event in await harness.events_of(JobFailed)] == [(job.id, "stalled")]

    run_scenario(scenario)


@pytest.mark.fault("W-N7")
def test_a_recovered_job_is_not_left_until_a_worker_happens_to_look(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        job = await sleeper(app).enqueue()
        await crash(harness, app)
        await harness.start(app.worker(reaper=False), "idle")
        await harness.start(Reaper(app), "reaper")

        assert await job.result() == 2
        first, second = (await job.info()).runs
        assert first.end is not None
        assert (second.start - first.end).total_seconds() < 0.1

    run_scenario(scenario)


# ── a worker that lost a job cannot change it ─────────────────────────────────────────────────────────────────────────


@pytest.mark.fault("W-T18", "W-P1")
def test_reports_of_a_fenced_run_change_no_later_run(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, other = harness.app(timing=FAST), harness.app(timing=FAST)
        reports: list[float] = []

        async def body() -> int:
            run = current_job().run
            current_job().progress(0.1 * run, f"run {run}")
            while run == 1:
                try:
                    await asyncio.sleep(0.2)
                except asyncio.CancelledError:
                    # A handler that ignores its cancellation.
                    continue
                if harness.now > 5:
                    reports.append(harness.now)
                    current_job().progress(0.9, "zombie")
                    current_job().log.info("zombie")
            return run

        task = app.task(name="body")(body)
        other.task(name="body")(body)
        node = await harness.start(app.worker(reaper=False), "zombie")
        job = await task.enqueue()
        await asyncio.sleep(1)
        harness.loop.pause(node)
        await harness.start(other.worker(), "another")
        assert await job.result() == 2
        harness.loop.wake(node)
        await asyncio.sleep(10)
        after = await job.info()
        await harness.storage.revise([DeleteJob(job.ref)])
        reported = len(reports)
        await asyncio.sleep(10)

        assert (after.job.progress, after.job.progress_note, after.log) == (0.2, "run 2", ())
        # It has continued all the while.
        assert 0 < reported < len(reports)
        assert await harness.storage.get([job.ref]) == [None]
        assert await counts(harness) == {}

    run_scenario(scenario)


@pytest.mark.fault("W-T30")
def test_no_attempt_begins_while_an_earlier_one_outlives_its_timeout(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        running: list[int] = []
        most: list[int] = []

        @app.task(timeout="2s", retry=Retry(max_attempts=3, base="100ms", jitter=False), singleton=True)
        async def slow() -> None:
            running.append(current_job().run)
            most.append(len(running))
            try:
                await asyncio.sleep(60)
            finally:
                # It takes a while to end.
                await asyncio.sleep(3)
                running.pop()

        jobs = [await slow.enqueue() for _ in range(2)]
        await harness.start(app.worker(), "one")
        await harness.start(app.worker(), "two")
        for job in jobs:
            with pytest.raises(JobFailedError, match="timeout of 2 s"):
                await job.result()

        assert most == [1] * 6

    run_scenario(scenario)


@pytest.mark.fault("W-B9")
def test_a_cancel_reaches_a_run_in_another_process(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        client, server = harness.app(timing=FAST), harness.app(timing=FAST)
        ended: list[bool] = []

        @server.task(name="long")
        async def long() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append(current_job().cancelled)

        job = await client.task(name="long")(long.function).enqueue()
        await harness.start(server.worker(), "server")
        await asyncio.sleep(1)
        assert await client.job(job.id).cancel("enough")
        with pytest.raises(JobCancelledError, match="enough"):
            await job.result(timeout="2s")

        assert ended == [True]

    run_scenario(scenario)


# ── order, and which jobs wait for which ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.fault("W-T10", "W-B12")
def test_neither_urgent_nor_plain_jobs_starve_under_constant_load(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        began: dict[str, float] = {}

        @app.task
        async def work(name: str) -> None:
            began[name] = harness.now
            await asyncio.sleep(1)

        await app.enqueue_many(work.call(f"plain {number}") for number in range(50))
        await harness.start(app.worker(concurrency=1))
        await asyncio.sleep(5)
        await work.options(priority=1).enqueue("urgent")
        await asyncio.sleep(2)
        assert began["urgent"] < 7
        await work.enqueue("last")
        # As many urgent jobs as can be run, for the whole time.
        while "last" not in began:
            await work.options(priority=1).enqueue(f"urgent at {harness.now}")
            await asyncio.sleep(1)

        # A priority is worth a minute, so the plain ones run after one minute, and this one is behind fifty of them.
        assert "plain 49" in began
        assert began["last"] < 7 + 60 + 50 + 10

    run_scenario(scenario)


@pytest.mark.fault("W-T11")
@pytest.mark.parametrize("priority", [-500, 0, 500])
def test_no_priority_is_so_high_that_the_order_of_arrival_is_lost(run_scenario: RunScenario, priority: int) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        task = quick(app)
        # The names sort against the order, so only the instants, a microsecond apart, can decide it.
        ids = [f"job {number:03}" for number in range(200, 0, -1)]
        for job_id in ids:
            await task.options(id=job_id, priority=priority).enqueue()
            await asyncio.sleep(0.000_001)

        assert [lease.ref.id for lease in await claim_all(harness)] == ids

    run_scenario(scenario)


@pytest.mark.fault("W-N3")
def test_no_key_of_thousands_is_forgotten_while_a_job_holds_it(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        task = quick(app, concurrency_key="{value}")
        for _ in range(2):
            await app.enqueue_many(task.call(number) for number in range(1_500))
        held = await claim_all(harness)
        keys = Counter(lease.job.keys[0].name for lease in held)

        assert len(keys) == 1_500
        assert set(keys.values()) == {1}
        assert await counts(harness) == {State.ACTIVE: 1_500, State.WAITING: 1_500}

    run_scenario(scenario)


@pytest.mark.fault("W-B4", "W-N4")
def test_a_dead_workers_slots_are_not_held_beyond_the_bound(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        task = sleeper(app, concurrency_key="pair", concurrency_limit=2, stall=Stall(max_count=0))
        dead = [await task.enqueue() for _ in range(2)]
        await crash(harness, app)
        began = harness.now
        others = [await task.enqueue(1.0) for _ in range(2)]
        await harness.start(app.worker())
        for job in others:
            assert await job.result() == 1

        assert [await job.state() for job in dead] == [State.FAILED, State.FAILED]
        assert harness.now - began <= app.timing.recovery_bound.total_seconds() + 1.1

    run_scenario(scenario)


@pytest.mark.fault("W-T32", "W-P13")
def test_an_idle_queue_costs_nothing_and_delays_no_busy_one() -> None:
    async def scenario(harness: Harness) -> None:
        storage = harness.storage
        assert isinstance(storage, Outage)
        app = harness.app()

        async def note() -> float:
            return harness.now

        tasks = [app.task(name=f"task {number}", queue=f"queue {number}")(note) for number in range(40)]
        await harness.start(app.worker())
        await asyncio.sleep(1)
        before = Counter(storage.asked)
        await asyncio.sleep(300)
        asked = storage.asked - before
        delays: list[float] = []
        for task in tasks:
            began = harness.now
            delays.append(await (await task.enqueue()).result() - began)

        # One exchange for all of them every five seconds, and one listener for all their notifications.
        assert asked["exchange"] <= 61
        assert before["notices"] <= 3
        assert max(delays) < 0.1

    on_memory(Outage, scenario)


@pytest.mark.fault("W-N14")
def test_a_job_due_in_a_year_is_delayed_and_costs_its_worker_no_calls() -> None:
    async def scenario(harness: Harness) -> None:
        storage = harness.storage
        assert isinstance(storage, Outage)
        app = harness.app()
        job = await quick(app).options(delay="400d").enqueue()
        await harness.start(app.worker())
        await asyncio.sleep(300)

        assert await job.state() is State.DELAYED
        assert storage.asked["exchange"] <= 62
        harness.clock.step(400 * 86_400)
        await job.result(timeout="10s")

    on_memory(Outage, scenario)


# ── callers that wait are notified ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.fault("W-T16")
def test_waiting_for_a_deleted_or_trimmed_job_ends_with_an_error(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        task = quick(app)
        await app.queue("default").set_retention(Retention(completed=Keep("10s")))
        deleted, trimmed = await task.options(delay="1h").enqueue(1), await task.enqueue(2)
        waiter = asyncio.create_task(deleted.result())
        await harness.start(app.worker())
        await asyncio.sleep(5)
        await harness.storage.revise([DeleteJob(deleted.ref)])
        began = harness.now
        with pytest.raises(JobNotFoundError):
            await waiter
        assert harness.now - began <= 1
        assert await trimmed.result() == 2
        await asyncio.sleep(10)
        began = harness.now
        with pytest.raises(JobNotFoundError):
            await trimmed.result()
        assert harness.now - began <= 1

    run_scenario(scenario)


class WithoutNotifications(MemoryStorage):
    """Memory whose notifications do not arrive."""

    def notices(self, topics: Iterable[str]) -> Listener:
        return super().notices(["what never happens"])


@pytest.mark.fault("W-B14", "W-P17")
def test_without_notifications_jobs_results_and_events_still_arrive() -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        heard: list[str] = []
        app.on(JobCompleted)(lambda event: heard.append(event.id))
        task = quick(app)
        await harness.start(app.worker())
        await asyncio.sleep(1)
        began = harness.now
        job = await task.enqueue(7)

        assert await job.result() == 7
        assert harness.now - began <= 7
        await asyncio.sleep(2)
        assert heard == [job.id]

    on_memory(lambda clock: WithoutNotifications(clock=clock), scenario)


@pytest.mark.fault("W-P16")
def test_waiting_for_a_job_that_has_ended_returns_at_once(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        task = quick(app, retry=Retry(max_attempts=1))

        @app.task(name="fails", retry=Retry(max_attempts=1))
        async def fails() -> None:
            raise ValueError("no good")

        await harness.start(app.worker())
        assert await task.options(id="done").enqueue_and_wait(1) == 1
        with pytest.raises(JobFailedError):
            await fails.options(id="failed").enqueue_and_wait()
        await (await task.options(id="cancelled", delay="1h").enqueue()).cancel("enough")
        began = harness.now

        assert await task.options(id="done").enqueue_and_wait(2) == 1
        with pytest.raises(JobFailedError, match="no good"):
            await fails.options(id="failed").enqueue_and_wait()
        with pytest.raises(JobCancelledError, match="enough"):
            await task.options(id="cancelled").enqueue_and_wait(3)
        assert harness.now == began

    run_scenario(scenario)


@pytest.mark.fault("W-P6")
def test_retries_and_cancels_reach_event_handlers_once_each(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        apps = [harness.app(timing=FAST) for _ in range(2)]
        heard: list[tuple[str, str]] = []
        for app in apps:

            @app.task(name="second", retry=Retry(max_attempts=2, base="1s"))
            async def second() -> int:
                if current_job().attempt == 1:
                    raise ValueError
                return current_job().attempt

            app.on(Event)(lambda event: heard.append((type(event).__name__, getattr(event, "id", ""))))
        for number, app in enumerate(apps):
            await harness.start(app.worker(), f"worker-{number}")
        await asyncio.sleep(1)
        task = apps[0].tasks["second"]
        job, cancelled = await task.enqueue(), await task.options(delay="1h").enqueue()
        await cancelled.cancel()
        assert await job.result() == 2
        await asyncio.sleep(5)

        kinds = (JobRetried, JobCancelled, JobCompleted, JobFailed)
        received = sorted((kind, job_id) for kind, job_id in heard if kind in {kind.__name__ for kind in kinds})
        assert received == [
            ("JobCancelled", cancelled.id),
            ("JobCompleted", job.id),
            ("JobRetried", job.id),
        ]

    run_scenario(scenario)


# ── what is kept, and what is not ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.fault("W-T17")
def test_a_queue_does_not_grow_though_thousands_complete_in_no_time(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        task = quick(app)
        await app.queue("default").set_retention(Retention(completed=Keep("1h", 100)))
        await app.enqueue_many(task.call(number) for number in range(3_000))
        worker = app.worker(concurrency=100, burst=True)
        node = await harness.start(worker)
        await harness.loop.start(node, worker.wait())
        done = harness.now
        await harness.start(Reaper(app), "reaper")
        await asyncio.sleep(2 * FAST.sweep.total_seconds())

        assert done < 30
        assert await counts(harness) == {State.COMPLETED: 100}

    run_scenario(scenario)


@pytest.mark.fault("W-P7")
def test_a_result_with_a_short_ttl_deletes_no_other_result(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        task = quick(app)

        @app.task(name="fails", retry=Retry(max_attempts=1))
        async def fails() -> None:
            raise ValueError("no good")

        await harness.start(app.worker())
        failed = await fails.enqueue()
        others = [await task.enqueue(number) for number in range(20)]
        brief = [await task.options(result_ttl="5s").enqueue(number) for number in range(20)]
        later = [await task.enqueue(number) for number in range(20)]
        await asyncio.sleep(30)

        assert await harness.storage.get([job.ref for job in brief]) == [None] * 20
        assert [await job.result() for job in (*others, *later)] == [*range(20), *range(20)]
        with pytest.raises(JobFailedError, match="no good"):
            await failed.result()

    run_scenario(scenario)


@pytest.mark.fault("W-P14")
def test_a_job_cancelled_and_enqueued_again_is_in_line_once(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        task = quick(app).options(id="one")
        first = await task.enqueue(1)
        await first.cancel("enough")
        again = await task.enqueue(2)

        # The id is known, and the call reports that; it is not in line twice.
        assert not again.created
        assert await claim_all(harness) == []
        await first.redrive()
        await task.enqueue(3)
        assert [lease.ref for lease in await claim_all(harness)] == [first.ref]
        # Too late to remove it: it runs, and only gets a request to stop.
        await first.cancel()
        assert await first.state() is State.ACTIVE

    run_scenario(scenario)


@pytest.mark.fault("W-P14")
def test_a_deleted_id_enqueued_again_runs_once_and_with_its_new_arguments(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        task = quick(app).options(id="one")
        first = await task.enqueue(1)
        await harness.storage.revise([DeleteJob(first.ref)])
        again = await task.enqueue(2)
        await harness.start(app.worker())

        assert again.created
        assert await again.result() == 2
        assert [event.id for event in await harness.events_of(JobCompleted)] == ["one"]

    run_scenario(scenario)


@pytest.mark.fault("W-P15")
def test_jobs_with_similar_ids_keep_separate_data(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        task = quick(app, result_ttl="5s")
        ids = ["x", "x:exp", "x:lock", "x:logs", "x:result", "exp", "job", "queue", ""]
        jobs = [await task.options(id=f"{job_id}!").enqueue(job_id) for job_id in ids]
        jobs += [await task.options(id=job_id).enqueue(job_id) for job_id in ids if job_id]
        await harness.start(app.worker())

        assert [await job.result() for job in jobs] == [*ids, *ids[:-1]]
        await asyncio.sleep(10)
        # No call reads them again, and still they are deleted.
        assert await counts(harness) == {}
        assert await harness.storage.get([job.ref for job in jobs]) == [None] * len(jobs)

    run_scenario(scenario)


@pytest.mark.fault("W-P17")
def test_concurrent_enqueues_of_one_id_create_one_job_without_errors(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'queue.db'}"

    async def enqueue() -> list[bool]:
        app = Tenure(url)
        task = quick(app)
        jobs = [await task.options(id=f"job {number}").enqueue(number) for number in range(30)]
        await app.close()
        return [job.created for job in jobs]

    async def main() -> list[list[bool]]:
        # Each in a thread and with its own connection.
        return await asyncio.gather(*(asyncio.to_thread(asyncio.run, enqueue()) for _ in range(4)))

    made = asyncio.run(main())

    assert [sum(created) for created in zip(*made, strict=True)] == [1] * 30


@pytest.mark.fault("W-P17")
def test_jobs_of_equal_arguments_are_settled_one_by_one(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        task = sleeper(app)
        jobs = [await task.enqueue(60.0) for _ in range(5)]
        node = await harness.start(app.worker(reaper=False), "one")
        await asyncio.sleep(1)
        await jobs[2].cancel()
        await asyncio.sleep(2)

        assert await counts(harness) == {State.ACTIVE: 4, State.CANCELLED: 1}
        harness.loop.kill(node)
        await harness.start(app.worker(), "two")
        assert [await job.result() for number, job in enumerate(jobs) if number != 2] == [2] * 4

    run_scenario(scenario)


@pytest.mark.fault("W-P18")
def test_an_id_that_looks_like_a_path_touches_no_file_but_the_queues_own(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    outside = tmp_path / "outside"
    outside.write_text("untouched")

    async def main() -> list[str]:
        async with Tenure(f"sqlite:///{home / 'queue.db'}") as app:
            task = quick(app)
            async with app.worker():
                ids = ["../outside", str(outside), "../../etc/passwd", "queue.db", ".", ".."]
                return [await (await task.options(id=job_id).enqueue(job_id)).result(timeout=10) for job_id in ids]

    asyncio.run(main())

    assert outside.read_text() == "untouched"
    assert {path.name for path in tmp_path.iterdir()} == {"home", "outside"}
    assert all(path.name.startswith("queue.db") for path in home.iterdir())
