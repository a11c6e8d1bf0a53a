"""Stall detection as a user sees it: options, counts, events, budgets."""

import asyncio
import re
from collections.abc import Callable

import pytest

from tenure import (
    JobCompleted,
    JobFailed,
    JobRetried,
    JobStalled,
    JobStalledError,
    LeaderElection,
    Retry,
    RunFenced,
    Stall,
    State,
    TaskOptions,
    Tenure,
    Timing,
    UsageError,
    current_job,
)
from tenure.client.task import Task
from tenure.core.job import FOREVER
from tests.flow.conftest import FAST, Harness, RunScenario
from tests.records import record_of


async def crash(harness: Harness, app: Tenure, *, after: float = 0.1) -> None:
    """Let a worker claim what there is, kill it, and wait until a sweep has noticed."""
    node = await harness.start(app.worker(reaper=False), "victim")
    await asyncio.sleep(after)
    harness.loop.kill(node)
    await asyncio.sleep(app.timing.recovery_bound.total_seconds())


def sleeper(app: Tenure, **options: object) -> Task[[], None]:
    @app.task(name="sleeper", **options)  # type: ignore[call-overload,untyped-decorator]
    async def sleep() -> None:
        await asyncio.sleep(3600)

    return sleep  # type: ignore[no-any-return]


@pytest.mark.statement(1)
def test_without_options_the_lease_is_20_seconds_and_one_stall_is_forgiven(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        job = await sleeper(app).enqueue()
        terms = (await record_of(job)).stall

        assert (terms.lease, terms.max_stalls) == (20_000_000, 1)

    run_scenario(scenario)


@pytest.mark.statement(2)
def test_a_tasks_stall_options_are_merged_with_the_apps_field_by_field(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(defaults=TaskOptions(stall=Stall(interval="15s", max_count=2)))

        @app.task
        async def plain() -> None: ...

        @app.task(stall=Stall(max_count=5))
        async def own() -> None: ...

        terms = [(await record_of(await task.enqueue())).stall for task in (plain, own)]

        assert [(term.lease, term.max_stalls) for term in terms] == [(15_000_000, 2), (15_000_000, 5)]

    run_scenario(scenario)


@pytest.mark.fault("W-T8")
@pytest.mark.statement(3, 89)
def test_the_call_wins_over_the_queue_over_the_task_over_the_app(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(defaults=TaskOptions(stall=Stall(interval="11s", max_count=11, start_grace="11s")))

        @app.task(stall=Stall(interval="12s", max_count=12))
        async def task() -> None:
            await asyncio.sleep(1)

        await app.queue("default").set_stall(Stall(interval="13s"))
        ours = await task.enqueue()
        pinned = await task.options(stall=Stall(interval="14s")).enqueue()
        await harness.start(app.worker())
        await asyncio.sleep(0.5)
        by_queue, by_call = (await record_of(ours)).stall, (await record_of(pinned)).stall

        assert (by_queue.lease, by_queue.max_stalls, by_queue.start_grace) == (13_000_000, 12, 11_000_000)
        assert (by_call.lease, by_call.max_stalls) == (14_000_000, 12)

    run_scenario(scenario)


@pytest.mark.statement(9)
def test_bunqueues_max_stalls_is_our_max_count_plus_one() -> None:
    assert Stall.from_bunqueue(max_stalls=3).max_count == 2


@pytest.mark.statement(4, 33)
def test_the_first_stall_recovers_the_job_and_records_it(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        job = await sleeper(app).enqueue()
        reaper = app.worker(queues=["elsewhere"])
        await harness.start(reaper, "reaper")
        await crash(harness, app)
        event = (await harness.events_of(JobStalled))[0]
        record = await record_of(job)

        assert (event.id, event.task, event.count, event.action) == (job.id, "sleeper", 1, "recovered")
        assert event.reason == "lease_expired"
        assert (record.state, record.stalls, record.failures) == (State.WAITING, 1, 0)

    run_scenario(scenario)


@pytest.mark.fault("W-P9")
@pytest.mark.statement(5, 6, 7, 8, 39)
@pytest.mark.parametrize("max_count", [0, 1, 2, 3])
def test_a_job_fails_when_it_stalls_more_often_than_max_count(run_scenario: RunScenario, max_count: int) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        job = await sleeper(app, stall=Stall(max_count=max_count)).enqueue()
        await harness.start(app.worker(queues=["elsewhere"]), "reaper")
        for _ in range(max_count + 1):
            assert await job.state() is State.WAITING
            await crash(harness, app)
        events = await harness.events_of(JobStalled, JobFailed)

        assert [type(event) for event in events] == [JobStalled] * (max_count + 1) + [JobFailed]
        assert [event.action for event in events[:-1]] == ["recovered"] * max_count + ["failed"]
        assert [event.count for event in events[:-1]] == list(range(1, max_count + 2))
        assert (await job.state(), events[-1].reason) == (State.FAILED, "stalled")

    run_scenario(scenario)


@pytest.mark.statement(10, 11)
def test_awaiting_a_job_that_failed_by_stalling_raises_a_typed_error(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        job = await sleeper(app, stall=Stall(max_count=0)).enqueue()
        await harness.start(app.worker(queues=["elsewhere"]), "reaper")
        await crash(harness, app)
        with pytest.raises(JobStalledError, match="stalled 1 times") as raised:
            await job.result()

        assert (raised.value.job_id, raised.value.count) == (job.id, 1)
        assert (await record_of(job)).finished is not None

    run_scenario(scenario)


@pytest.mark.fault("F10")
@pytest.mark.statement(12, 13)
def test_a_stall_does_not_count_as_an_attempt_nor_a_retry_as_a_stall(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        attempts: list[tuple[int, int]] = []

        @app.task(retry=Retry(max_attempts=2, base="1s"))
        async def task() -> None:
            attempts.append((current_job().run, current_job().attempt))
            if len(attempts) == 1:
                await asyncio.sleep(3600)
            if len(attempts) == 2:
                raise ValueError("once")

        job = await task.enqueue()
        await harness.start(app.worker(queues=["elsewhere"]), "reaper")
        await crash(harness, app)
        await harness.start(app.worker(), "survivor")
        await job.result()
        record = await record_of(job)

        assert attempts == [(1, 1), (2, 1), (3, 2)]
        assert (record.stalls, record.failures, record.starts) == (1, 1, 3)

    run_scenario(scenario)


@pytest.mark.statement(12)
def test_a_redrive_resets_the_attempts_and_stalls(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        job = await sleeper(app, stall=Stall(max_count=0)).enqueue()
        await harness.start(app.worker(queues=["elsewhere"]), "reaper")
        await crash(harness, app)
        await job.redrive(by="me")
        record = await record_of(job)

        assert (record.state, record.stalls, record.starts, record.error) == (State.WAITING, 0, 1, None)

    run_scenario(scenario)


@pytest.mark.fault("F6", "W-P1")
@pytest.mark.statement(14, 29, 99)
def test_a_long_handler_without_heartbeats_keeps_its_lease(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def long() -> str:
            await asyncio.sleep(300)
            return "done"

        job = await long.enqueue()
        await harness.start(app.worker(), "one")
        await harness.start(app.worker(), "two")

        assert await job.result() == "done"
        assert len((await job.info()).runs) == 1
        assert await harness.events_of(JobStalled) == []

    run_scenario(scenario)


@pytest.mark.statement(23)
def test_a_recovered_job_is_the_next_one_to_run(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        order: list[int] = []

        @app.task
        async def numbered(number: int) -> None:
            order.append(number)
            if number == 1 and current_job().run == 1:
                await asyncio.sleep(3600)

        await harness.start(app.worker(queues=["elsewhere"]), "reaper")
        await numbered.enqueue(1)
        await crash(harness, app)
        for number in (2, 3):
            await numbered.enqueue(number)
        await harness.start(app.worker(concurrency=1), "survivor")
        await asyncio.sleep(1)

        assert order == [1, 1, 2, 3]

    run_scenario(scenario)


@pytest.mark.fault("F7", "W-N8", "W-P1")
@pytest.mark.statement(31, 90)
def test_a_late_settlement_of_a_frozen_worker_is_refused(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task
        async def slow() -> int:
            await asyncio.sleep(1)
            return current_job().run

        first = await harness.start(app.worker(), "first")
        job = await slow.enqueue()
        await asyncio.sleep(0.5)
        harness.loop.pause(first)
        await harness.start(app.worker(), "second")

        assert await job.result() == 2
        harness.loop.wake(first)
        again = await slow.enqueue()
        await again.result()
        await asyncio.sleep(5)
        assert await job.result() == 2
        assert {event.id for event in await harness.events_of(RunFenced)} == {job.id}
        assert [event.id for event in await harness.events_of(JobCompleted)] == [job.id, again.id]

    run_scenario(scenario)


@pytest.mark.fault("W-P8")
@pytest.mark.statement(34)
def test_a_stall_is_counted_once_with_any_number_of_reapers(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        job = await sleeper(app).enqueue()
        for number in range(3):
            await harness.start(app.worker(queues=["elsewhere"], election=None), f"reaper-{number}")
        await crash(harness, app)

        assert (await record_of(job)).stalls == 1
        assert len(await harness.events_of(JobStalled)) == 1

    run_scenario(scenario)


@pytest.mark.fault("F7", "W-T8")
@pytest.mark.statement(35, 100)
@pytest.mark.parametrize("timing", [Timing(), Timing.fast(), Timing.classic()], ids=["default", "fast", "classic"])
def test_a_lost_worker_is_noticed_within_the_stated_bound(run_scenario: RunScenario, timing: Timing) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=timing)
        job = await sleeper(app).enqueue()
        victim = await harness.start(app.worker(reaper=False), "victim")
        await harness.start(app.worker(queues=["elsewhere"]), "reaper")
        await asyncio.sleep(0.1)
        harness.loop.kill(victim)

        async def recovered() -> bool:
            return await job.state() is State.WAITING

        took = await harness.until(recovered)
        assert timing.lease.total_seconds() - 1 < took < timing.recovery_bound.total_seconds() + 0.1

    run_scenario(scenario)


@pytest.mark.statement(38)
@pytest.mark.parametrize(
    ("made", "named"),
    [
        (lambda: Stall(max_count=-1), "max_count"),
        (lambda: Stall(interval=0), "interval"),
        (lambda: Timing(sweep=0), "sweep"),
        (lambda: Timing(sweep=-1), "sweep"),
        (lambda: Timing(lease="10s", beat="5s"), "beat"),
        (lambda: Timing(lease=float("nan")), "lease"),
        (lambda: Timing(lease=float("inf")), "lease"),
        (lambda: Timing(lease="20"), "lease"),
        (lambda: Retry(max_attempts=0), "max_attempts"),
        (lambda: Retry(jitter=1.5), "jitter"),
        (lambda: Retry(backoff="random"), "backoff"),  # type: ignore[arg-type]
        (lambda: TaskOptions(timeout=-1), "timeout"),
        (lambda: TaskOptions(on_worker_lost="ask"), "on_worker_lost"),  # type: ignore[arg-type]
        (lambda: TaskOptions(queue=""), "queue"),
    ],
)
def test_an_option_without_a_valid_value_is_refused_when_it_is_created(made: object, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        made()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Stall, {"max_count": "1"}, "Stall.max_count = '1' must be a whole number, 0 or more; 0 fails a job"),
        (Stall, {"max_count": 1.5}, "Stall.max_count = 1.5 must be a whole number"),
        (Stall, {"max_count": True}, "Stall.max_count = True must be a whole number"),
        (Stall, {"max_count": 2**63}, "Stall.max_count = 9223372036854775808 must be 2,147,483,647 or less"),
        (Stall, {"heartbeat": "no"}, "Stall.heartbeat = 'no' must be True or False"),
        (Stall, {"enabled": 0}, "Stall.enabled = 0 must be True or False"),
        (Stall.from_bunqueue, {"max_stalls": "1"}, "max_stalls = '1' must be a whole number, 1 or more"),
        (Stall.from_bunqueue, {"max_stalls": 0}, "max_stalls = 0 must be 1 or more"),
        (Retry, {"max_attempts": "3"}, "Retry.max_attempts = '3' must be a whole number, 1 or more; 1 means never"),
        (Retry, {"max_attempts": 2.5}, "Retry.max_attempts = 2.5 must be a whole number"),
        (Retry, {"jitter": "x"}, "Retry.jitter = 'x' must be a number from 0 to 1"),
        (Retry, {"jitter": float("nan")}, "Retry.jitter = nan must be a number from 0 to 1"),
        (Retry, {"on": ("ValueError",)}, "Retry.on has 'ValueError', which is not an exception class; give classes"),
        (Retry, {"on": "ValueError"}, "Retry.on has 'ValueError', which is not an exception class"),
        (Retry, {"on": (int,)}, "Retry.on has <class 'int'>, which is not an exception class"),
        (Retry, {"on": 5}, "Retry.on = 5 must be several"),
        (Retry, {"never": (ValueError("x"),)}, "Retry.never has ValueError('x'), which is not an exception class"),
        (Timing, {"sweep": "5s", "leader_ttl": "4s"}, "Timing.leader_ttl = 4s must not be under Timing.sweep = 5s"),
        (LeaderElection, {"ttl": -1}, "LeaderElection.ttl = -1 must be longer than zero"),
        (LeaderElection, {"ttl": "soon"}, "LeaderElection.ttl = 'soon' is not a duration"),
        (TaskOptions, {"retry": 3}, "retry = 3 must be a Retry; write retry=Retry(max_attempts="),
        (TaskOptions, {"stall": "30s"}, "stall = '30s' must be a Stall; write stall=Stall(interval="),
        (TaskOptions, {"priority": 501}, "priority = 501 must be 500 or less"),
        (TaskOptions, {"priority": "high"}, "priority = 'high' must be a whole number"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_naming_field_and_remedy(
    kind: Callable[..., object], options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        kind(**options)


def test_one_exception_class_covers_several() -> None:
    assert Retry(on=ValueError, never=[UnicodeError]) == Retry(on=(ValueError,), never=(UnicodeError,))


@pytest.mark.statement(43)
def test_without_heartbeats_the_lease_lapses_and_another_worker_takes_over(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(stall=Stall(heartbeat=False))
        async def visible() -> int:
            if current_job().run == 1:
                await asyncio.sleep(3600)
            return current_job().run

        job = await visible.enqueue()
        await harness.start(app.worker(), "one")

        assert await job.result() == 2
        assert [event.reason for event in await harness.events_of(JobStalled)] == ["lease_expired"]

    run_scenario(scenario)


@pytest.mark.statement(43)
def test_without_automatic_heartbeats_the_handlers_own_still_renew(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(stall=Stall(heartbeat=False))
        async def visible() -> int:
            for _ in range(20):
                await asyncio.sleep(0.5)
                current_job().heartbeat()
            return current_job().run

        job = await visible.enqueue()
        await harness.start(app.worker(), "one")

        assert await job.result() == 1

    run_scenario(scenario)


@pytest.mark.statement(87)
def test_progress_renews_the_lease_as_a_heartbeat_does(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(stall=Stall(heartbeat=False))
        async def visible() -> int:
            for part in range(20):
                await asyncio.sleep(0.5)
                current_job().progress(part / 20)
            return current_job().run

        job = await visible.enqueue()
        await harness.start(app.worker(), "one")

        assert await job.result() == 1
        assert await harness.events_of(JobStalled) == []

    run_scenario(scenario)


@pytest.mark.thorough
@pytest.mark.statement(89)
def test_stall_detection_can_be_switched_off(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        off = sleeper(app, stall=Stall(enabled=False))
        job = await off.enqueue()
        await harness.start(app.worker(queues=["elsewhere"]), "reaper")
        await crash(harness, app)
        await asyncio.sleep(600)

        assert (await job.state(), (await record_of(job)).stall.lease) == (State.ACTIVE, FOREVER)

    run_scenario(scenario)


@pytest.mark.statement(89)
def test_a_young_run_is_given_its_start_grace(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        job = await sleeper(app, stall=Stall(start_grace="30s")).enqueue()
        await harness.start(app.worker(queues=["elsewhere"]), "reaper")
        await crash(harness, app)
        await asyncio.sleep(24)
        young = await job.state()
        await asyncio.sleep(5)

        assert (young, await job.state()) == (State.ACTIVE, State.WAITING)

    run_scenario(scenario)


@pytest.mark.statement(25)
def test_a_job_that_failed_by_stalling_records_one_event_and_is_redriven(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(stall=Stall(max_count=0), retry=Retry(base="1s"))
        async def task() -> str:
            if current_job().run == 1:
                await asyncio.sleep(3600)
            return "redriven"

        job = await task.enqueue()
        await harness.start(app.worker(queues=["elsewhere"]), "reaper")
        await crash(harness, app)
        assert len(await harness.events_of(JobFailed)) == 1
        assert await harness.events_of(JobRetried) == []
        await job.redrive()
        await harness.start(app.worker(), "worker")

        assert await job.result() == "redriven"

    run_scenario(scenario)


@pytest.mark.statement(37)
def test_each_setting_of_earlier_systems_has_its_option_and_default_here() -> None:
    timing, classic = Timing(), Timing.classic()

    def seconds(one: Timing) -> list[float]:
        return [length.total_seconds() for length in (one.lease, one.beat, one.sweep, one.grace, one.leader_ttl)]

    # lockDuration, lockRenewTime, stalledInterval, and what our two phases and our election add to them.
    assert seconds(timing) == [20, 5, 2, 3, 4]
    assert seconds(classic) == [30, 7.5, 5, 5, 10]
    assert (timing.recovery_bound.total_seconds(), Timing.fast().recovery_bound.total_seconds()) == (27, 11)
    # maxStalledCount, skipLockRenewal, enabled, gracePeriod: unset here, so that they can be merged.
    assert Stall() == Stall(None, None, None, None, None)
