"""How long a job waits and how long it is kept, as a user sees it: TTL, results, retention."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any, Unpack

import pytest

from tenure import (
    TTL,
    Job,
    JobExpired,
    JobExpiredError,
    JobNotFoundError,
    JobRescheduled,
    JobStalled,
    Keep,
    ResultTimeoutError,
    Retention,
    Retry,
    State,
    StorageUnavailableError,
    TaskOptions,
    Tenure,
    UsageError,
)
from tenure.core.job import JobDetail, NewJob, Ref
from tenure.options import TaskSettings
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.notifications import Listener
from tenure.storage.protocol import EnqueueResult
from tenure_testing.simulation.event_loop import SimClock, SimLoop, simulate
from tests.flow.conftest import FAST, Harness, RunScenario
from tests.records import record_of


def quick(app: Tenure, **options: Unpack[TaskSettings]) -> Any:
    @app.task(name="quick", **options)
    async def run(value: int = 0) -> int:
        return value

    return run


# ── time to live ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.statement(54)
def test_the_calls_ttl_wins_over_the_tasks_and_works_without_one(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        with_one, without = quick(app, ttl=TTL("1h", on_expire="discard")), quick(harness.app())

        own = await record_of(await with_one.enqueue())
        with_ttl = await record_of(await with_one.options(ttl="30m").enqueue())
        lone = await record_of(await without.options(ttl=1.5).enqueue())
        none = await record_of(await without.enqueue())

        assert own.expires_at == own.created + 3_600_000_000
        assert (with_ttl.ttl, with_ttl.policy.on_expire) == (1_800_000_000, "discard")
        assert (lone.ttl, lone.policy.on_expire) == (1_500_000, "fail")
        assert none.expires_at is None

    run_scenario(scenario)


@pytest.mark.fault("W-T15", "W-T16")
@pytest.mark.statement(52)
@pytest.mark.statement(57)
def test_a_job_that_waits_too_long_fails_its_waiter_and_is_kept_as_expired(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        job = await quick(app, ttl="10s").enqueue()
        waiter = asyncio.create_task(job.result())
        await harness.start(app.worker(queues=["another"]))

        with pytest.raises(JobExpiredError, match="time to live of 10s"):
            await waiter
        took = harness.now
        record = (await job.info()).job

        # No worker polls its queue, so the sweep finds it, within two turns.
        assert 10 <= took <= 11.5
        assert record.state is State.EXPIRED
        assert record.error is not None
        assert record.error.type == "JobExpiredError"
        assert [(event.ttl, event.on_expire) for event in await harness.events_of(JobExpired)] == [(10.0, "fail")]

    run_scenario(scenario)


@pytest.mark.fault("W-T16")
@pytest.mark.statement(58)
def test_a_discarded_job_leaves_an_event_and_its_waiters_know_why(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        job = await quick(app, ttl=TTL("10s", on_expire="discard")).enqueue()
        waiter = asyncio.create_task(job.result())
        await harness.start(app.worker(queues=["another"]))

        with pytest.raises(JobExpiredError, match="discarded"):
            await waiter
        (discarded,) = await harness.events_of(JobExpired)
        waited_after = harness.clock.now() / 1_000_000 - discarded.at.timestamp()
        asked_at = harness.now
        with pytest.raises(JobExpiredError, match="discarded"):
            await job.result()

        assert waited_after < 0.1
        assert harness.now - asked_at < 0.1

        with pytest.raises(JobNotFoundError):
            await job.state()
        survey = await harness.storage.survey(["default"])

        assert survey.queues[0].discarded == 1
        assert [event.on_expire for event in await harness.events_of(JobExpired)] == ["discard"]

    run_scenario(scenario)


@pytest.mark.statement(61)
def test_a_job_past_its_ttl_is_not_tried_again(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(name="fails", ttl="10s", retry=Retry(base="20s", jitter=False, max_attempts=9))
        async def fails() -> None:
            raise ValueError

        job = await fails.enqueue()
        await harness.start(app.worker())
        with pytest.raises(JobExpiredError):
            await job.result()
        record = (await job.info()).job

        assert (record.state, record.starts, record.failures) == (State.EXPIRED, 1, 1)

    run_scenario(scenario)


def test_a_recovered_job_past_its_ttl_does_not_run_again(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(name="slow", ttl="1s")
        async def slow() -> None:
            await asyncio.sleep(3600)

        job = await slow.enqueue()
        node = await harness.start(app.worker(reaper=False), "victim")
        await asyncio.sleep(0.5)
        harness.loop.kill(node)
        await harness.start(app.worker())
        with pytest.raises(JobExpiredError):
            await job.result()
        record = (await job.info()).job

        assert (record.starts, record.stalls) == (1, 1)
        assert [event.action for event in await harness.events_of(JobStalled)] == ["recovered"]

    run_scenario(scenario)


@pytest.mark.statement(62)
def test_a_ttl_does_not_bound_a_run(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(name="slow", ttl="1s")
        async def slow() -> str:
            await asyncio.sleep(30)
            return "done"

        job = await slow.enqueue()
        await harness.start(app.worker())

        assert await job.result() == "done"

    run_scenario(scenario)


@pytest.mark.fault("W-T31")
@pytest.mark.statement(66)
def test_a_redriven_job_gets_its_whole_ttl_again_each_time(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        job = await quick(app, ttl="10s").enqueue()
        await harness.start(app.worker(queues=["another"]))
        spans: list[int | None] = []
        for _ in range(3):
            with pytest.raises(JobExpiredError):
                await job.result()
            await job.redrive()
            record = (await job.info()).job
            spans.append(None if record.expires_at is None else record.expires_at - record.run_at)

        assert spans == [timedelta(seconds=10)] * 3

    run_scenario(scenario)


@pytest.mark.statement(60)
def test_a_delay_longer_than_the_ttl_is_refused() -> None:
    task = quick(Tenure("memory://"), ttl="1h")

    with pytest.raises(UsageError, match="delay = 2h is not under the ttl of 1h"):
        task.options(delay="2h")
    task.options(delay="2h", ttl="3h")


@pytest.mark.statement(53)
@pytest.mark.parametrize("length", ["0s", "-1s", "10", "5w", "", float("nan"), float("inf"), 0, -3, True, None, [1]])
def test_an_invalid_ttl_is_refused_by_name(length: Any) -> None:
    task = quick(Tenure("memory://"))

    with pytest.raises(UsageError, match="ttl"):
        task.options(ttl=length)
    if length is not None:
        with pytest.raises(UsageError, match=r"TTL\.max"):
            TTL(length)


@pytest.mark.statement(53)
@pytest.mark.parametrize(("length", "seconds"), [("1.5h", 5400), ("30s", 30), ("2d", 172_800), (0.5, 0.5)])
def test_a_ttl_is_written_as_any_duration(length: Any, seconds: float) -> None:
    assert TTL(length).max == timedelta(seconds=seconds)


def test_an_unknown_on_expire_is_refused() -> None:
    with pytest.raises(UsageError, match=r"TTL\.on_expire = 'drop' is unknown; use one of 'fail', 'discard'"):
        TTL("1h", on_expire="drop")  # type: ignore[arg-type]


# ── results ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_enqueue_and_wait_is_one_call(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        task = quick(app)
        await harness.start(app.worker())

        assert await task.enqueue_and_wait(7) == 7
        assert await task.options(priority=3).enqueue_and_wait(value=8) == 8

    run_scenario(scenario)


def test_a_wait_that_times_out_leaves_the_job_running_and_names_it(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        task = quick(app)
        with pytest.raises(ResultTimeoutError) as caught:
            await task.options(wait="5s").enqueue_and_wait(7)
        assert harness.now == pytest.approx(5)
        await harness.start(app.worker())

        assert await task.job(caught.value.job_id).result() == 7

    run_scenario(scenario)


def test_the_same_id_within_its_result_ttl_gets_the_stored_answer(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        task = quick(app, result_ttl="60s")
        await harness.start(app.worker())
        first = await task.options(id="invoice 7").enqueue(1)
        assert await first.result() == 1
        await asyncio.sleep(50)
        again = await task.options(id="invoice 7").enqueue(2)
        assert (again.created, await again.result()) == (False, 1)
        await asyncio.sleep(20)
        with pytest.raises(JobNotFoundError):
            await first.result()
        fresh = await task.options(id="invoice 7").enqueue(3)

        assert (fresh.created, await fresh.result()) == (True, 3)

    run_scenario(scenario)


def test_a_result_ttl_outlives_the_retention_and_can_be_changed_later(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        task = quick(app)
        await app.queue("default").set_retention(Retention(completed=Keep("10s")))
        await harness.start(app.worker())
        kept, plain = await task.options(result_ttl="60s").enqueue(1), await task.enqueue(2)
        longer = await task.options(result_ttl="5s").enqueue(3)
        assert [await job.result() for job in (kept, plain, longer)] == [1, 2, 3]
        await longer.retain("100s")
        await asyncio.sleep(40)
        with pytest.raises(JobNotFoundError):
            await plain.result()
        assert (await kept.result(), await longer.result()) == (1, 3)
        await asyncio.sleep(40)

        with pytest.raises(JobNotFoundError):
            await kept.result()
        assert await longer.result() == 3

    run_scenario(scenario)


def test_only_completed_jobs_can_be_retained(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        job = await quick(harness.app()).enqueue()

        with pytest.raises(UsageError, match="is waiting; only the result of a completed job is retained"):
            await job.retain("1h")
        with pytest.raises(UsageError, match="ttl"):
            await job.retain("soon")

    run_scenario(scenario)


# ── retention ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_queue_keeps_its_jobs_for_its_retention(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        task = quick(app)
        await app.queue("default").set_retention(Retention(completed=Keep("60s", 3)))
        await app.queue("default").set_retention(Retention(cancelled=Keep("10s")))
        gone = await task.options(delay="1h").enqueue()
        await gone.cancel()
        await harness.start(app.worker())
        jobs = [await task.enqueue(value) for value in range(5)]
        for job in jobs:
            await job.result(timeout="1s")
        await asyncio.sleep(30)
        there = [detail is not None for detail in await harness.storage.get([job.ref for job in (gone, *jobs)])]
        await asyncio.sleep(60)

        assert there == [False, False, False, True, True, True]
        assert not any(await harness.storage.get([job.ref for job in jobs]))

    run_scenario(scenario)


@pytest.mark.parametrize("rule", [None, "7d", Keep("1d")])
def test_an_invalid_retention_is_refused(rule: Any) -> None:
    queue = Tenure("memory://").queue("q")

    with pytest.raises(UsageError, match="retention"):
        asyncio.run(queue.set_retention(rule))


def test_a_keep_has_an_age_and_a_count() -> None:
    with pytest.raises(UsageError, match=r"Keep\.age"):
        Keep("never")
    with pytest.raises(UsageError, match=r"Keep\.count"):
        Keep("1d", -1)
    with pytest.raises(UsageError, match=r"Retention\.failed"):
        Retention(failed="30d")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"ttl": "0s"},
        {"ttl": {}},
        {"result_ttl": "x"},
        {"auto_redrive": "1h"},
        {"singleton": 1},
        {"concurrency_limit": 0},
    ],
)
def test_task_options_are_checked_when_they_are_created(options: Any) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        TaskOptions(**options)


# ── reschedule ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_has_not_started_can_be_postponed_and_brought_forward(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        await app.queue("default").record(JobRescheduled)
        task = quick(app)
        off, back = await task.enqueue(1), await task.options(delay="1h").enqueue(2)
        await off.reschedule("30s", by="ops")
        await back.reschedule(0)
        await harness.start(app.worker())
        assert await back.result(timeout="1s") == 2
        assert await off.result() == 1
        took = harness.now
        with pytest.raises(UsageError, match="is completed; only a job that is waiting or delayed is rescheduled"):
            await off.reschedule("1s")

        assert 30 <= took < 31
        assert [(event.id, event.by) for event in await harness.events_of(JobRescheduled)] == [
            (off.id, "ops"),
            (back.id, None),
        ]

    run_scenario(scenario)


# ── what goes wrong during a wait ─────────────────────────────────────────────────────────────────────────────────────


class FaultyMemory(MemoryStorage):
    """A storage that hangs when jobs are enqueued, cannot be read, or cannot be listened to."""

    fault = ""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        if self.fault == "hangs":
            await asyncio.sleep(3600)
        return await super().enqueue(jobs)

    async def get(self, refs: Sequence[Ref]) -> list[JobDetail | None]:
        if self.fault == "unreadable":
            raise StorageUnavailableError("gone fishing")
        return await super().get(refs)

    def notices(self, topics: Iterable[str]) -> Listener:
        if self.fault == "no notifications":
            raise OSError("no line")
        return super().notices(topics)


def on_faulty_memory(scenario: Callable[[Harness, FaultyMemory], Coroutine[Any, Any, None]]) -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = FaultyMemory(clock=clock)
        await scenario(Harness(loop, clock, storage), storage)

    simulate(main)


def test_enqueue_and_wait_is_bounded_as_a_whole_and_names_the_job() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        task = quick(harness.app())
        storage.fault = "hangs"
        with pytest.raises(ResultTimeoutError) as caught:
            await task.options(wait="2s", id="order 7").enqueue_and_wait(7)

        assert harness.now == pytest.approx(2)
        assert caught.value.job_id == "order 7"

    on_faulty_memory(scenario)


def test_a_failed_wait_has_the_job_id_to_prevent_a_second_enqueue() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        task = quick(harness.app())
        storage.fault = "unreadable"
        with pytest.raises(ResultTimeoutError) as caught:
            await task.enqueue_and_wait(7)
        storage.fault = ""
        again = await task.options(id=caught.value.job_id).enqueue(7)

        assert not again.created

    on_faulty_memory(scenario)


def test_results_and_events_arrive_without_notifications() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        app = harness.app(timing=FAST)
        task = quick(app)
        storage.fault = "no notifications"
        job = await task.options(delay="5s").enqueue(7)
        await harness.start(app.worker())
        events = asyncio.create_task(_story(job))

        assert await job.result(timeout="10s") == 7
        assert await events == ["JobStarted", "JobCompleted"]

    on_faulty_memory(scenario)


async def _story(job: Job[Any]) -> list[str]:
    async with aclosing(job.events()) as events:
        return [type(event).__name__ async for event in events]


@pytest.mark.parametrize("tags", [[""], ["x" * 1025], ["ok", 7], "word", ["t"] * 101])
def test_tags_are_words_and_not_too_many(tags: Any) -> None:
    with pytest.raises(UsageError, match="tag"):
        quick(Tenure("memory://")).options(tags=tags)
