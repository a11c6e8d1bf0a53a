"""Cancel in every state, how soon a run is notified, and the cleanup hook after it."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from tenure import (
    Cancel,
    JobCancelled,
    JobCancelledError,
    JobCompleted,
    JobStalled,
    Reject,
    Retry,
    RetryLater,
    Snooze,
    Stall,
    State,
    StorageUnavailableError,
    Tenure,
    Timing,
    UsageError,
    current_job,
)
from tenure.client.handle import Job
from tenure.core.job import JobRecord, Owner
from tenure.core.settlement import Settlement
from tenure.options import TaskSettings
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.notifications import Listener
from tenure.storage.protocol import ClaimRequest, ExchangeResult, RenewRequest, RenewResult, owner_topic
from tenure_testing.simulation.event_loop import SimClock, SimLoop, simulate
from tests.flow.conftest import FAST, Harness, RunScenario
from tests.records import record_of

AT_ONCE = 100_000
"""Microseconds of the storage's clock; the usual beat is fifty times as long."""


async def ended(harness: Harness, job: Job[Any]) -> JobRecord:
    """Wait until a job is over and return its record."""

    async def over() -> bool:
        return (await job.state()) not in (State.ACTIVE, State.WAITING, State.DELAYED)

    await harness.until(over)
    return await record_of(job)


def took(record: JobRecord) -> int:
    """Return the microseconds between the cancel of a job and its end."""
    assert record.cancel_at is not None
    assert record.finished is not None
    return record.finished - record.cancel_at


# ── in every state ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("delay", "was"), [("0s", State.WAITING), ("5m", State.DELAYED)])
def test_a_job_that_has_not_begun_is_cancelled_at_once(run_scenario: RunScenario, delay: str, was: State) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        runs: list[int] = []

        @app.task
        async def task() -> None:
            runs.append(current_job().run)

        job = await task.options(delay=delay).enqueue()
        cancelled = await job.cancel("not needed", by="me")
        record = await record_of(job)
        await harness.start(app.worker())
        await asyncio.sleep(400)

        assert cancelled
        assert (record.state, record.reason, took(record)) == (State.CANCELLED, "not needed", 0)
        assert [(event.by, event.was, event.run) for event in await harness.events_of(JobCancelled)] == [("me", was, 0)]
        assert runs == []
        with pytest.raises(JobCancelledError, match="not needed"):
            await job.result()

    run_scenario(scenario)


def test_a_job_that_waits_for_its_next_attempt_is_cancelled_at_once(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(retry=Retry(max_attempts=3, base="5m", cap="5m"))
        async def fails() -> None:
            raise ConnectionError

        await harness.start(app.worker())
        job = await fails.enqueue()

        async def rests() -> bool:
            return await job.state() is State.DELAYED

        await harness.until(rests)
        await job.cancel()
        record = await record_of(job)
        await asyncio.sleep(400)

        assert (record.state, record.failures, record.starts, took(record)) == (State.CANCELLED, 1, 1, 0)
        assert [event.was for event in await harness.events_of(JobCancelled)] == [State.DELAYED]
        assert (await record_of(job)) == record

    run_scenario(scenario)


def test_a_parked_job_is_cancelled_at_once_and_those_behind_it_move_up(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(concurrency_key="all", concurrency_limit=1)
        async def task(number: int) -> int:
            await asyncio.sleep(5)
            return number

        await harness.start(app.worker())
        jobs = [await task.enqueue(number) for number in range(3)]
        await asyncio.sleep(1)
        parked = (await record_of(jobs[1])).parked_under
        await jobs[1].cancel()
        record = await record_of(jobs[1])

        assert parked is not None
        assert (record.state, record.parked_under, took(record)) == (State.CANCELLED, None, 0)
        assert (await jobs[0].result(), await jobs[2].result()) == (0, 2)
        assert harness.now < 11

    run_scenario(scenario)


@pytest.mark.statement(28)
def test_a_running_coroutine_is_cancelled_long_before_the_next_beat(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        seen: list[bool] = []

        @app.task
        async def task() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                seen.append(current_job().cancelled)

        await harness.start(app.worker())
        job = await task.enqueue()
        await asyncio.sleep(6)
        await job.cancel("enough", by="me")
        record = await ended(harness, job)
        (run,) = (await job.info()).runs

        assert seen == [True]
        assert (record.state, record.reason, run.ended, run.reason) == (
            State.CANCELLED,
            "enough",
            "cancelled",
            "enough",
        )
        assert took(record) < AT_ONCE
        assert [(event.by, event.was, event.run) for event in await harness.events_of(JobCancelled)] == [
            ("me", State.ACTIVE, 1)
        ]

    run_scenario(scenario)


def test_each_of_many_runs_gets_its_own_cancel_and_the_others_continue(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def task(number: int) -> int:
            await asyncio.sleep(60)
            return number

        await harness.start(app.worker(concurrency=20))
        jobs = [await task.enqueue(number) for number in range(20)]
        await asyncio.sleep(1)
        for job in jobs[::2]:
            await job.cancel()
            await asyncio.sleep(0.003)
        records = [await ended(harness, job) for job in jobs]

        assert [record.state for record in records] == [State.CANCELLED, State.COMPLETED] * 10
        assert max(took(record) for record in records[::2]) < AT_ONCE

    run_scenario(scenario)


def test_a_suspect_is_cancelled_when_its_worker_renews_again(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        timing = Timing(lease="2s", sweep="500ms", grace="10s")
        app, other = harness.app(timing=timing), harness.app(timing=timing)
        runs: list[int] = []

        @app.task(name="task")
        async def task() -> None:
            runs.append(current_job().run)
            await asyncio.sleep(3600)

        node = await harness.start(app.worker(), "first")
        job = await task.enqueue()
        await asyncio.sleep(1)
        await harness.start(other.worker(queues=["elsewhere"]), "second")
        harness.loop.pause(node)
        await asyncio.sleep(5)
        suspect = (await record_of(job)).suspect_until
        await job.cancel()
        state = await job.state()
        await asyncio.sleep(1)
        harness.loop.wake(node)
        began = harness.now
        record = await ended(harness, job)

        assert suspect is not None
        assert state is State.ACTIVE
        assert (record.state, record.stalls, runs) == (State.CANCELLED, 0, [1])
        assert harness.now - began < 0.2
        assert await harness.events_of(JobStalled) == []

    run_scenario(scenario)


@pytest.mark.statement(26, 27)
@pytest.mark.parametrize("max_count", [0, 1])
def test_a_cancelled_run_that_stalls_ends_cancelled_and_counts_no_stall(
    run_scenario: RunScenario, max_count: int
) -> None:
    async def scenario(harness: Harness) -> None:
        app, other = harness.app(timing=FAST), harness.app(timing=FAST)
        called: list[int] = []

        @app.task(name="task", stall=Stall(max_count=max_count))
        async def task(number: int) -> None:
            await asyncio.sleep(3600)

        @task.on_cancel
        async def tidy(number: int) -> None:
            called.append(number)

        node = await harness.start(app.worker(reaper=False), "victim")
        job = await task.enqueue(1)
        await asyncio.sleep(1)
        harness.loop.kill(node)
        await job.cancel("enough", by="me")
        await harness.start(other.worker(queues=["elsewhere"]), "reaping")
        record = await ended(harness, job)
        (run,) = (await job.info()).runs

        assert (record.state, record.reason, record.stalls) == (State.CANCELLED, "enough", 0)
        assert run.ended == "stalled"
        assert await harness.events_of(JobStalled) == []
        assert [(event.by, event.reason) for event in await harness.events_of(JobCancelled)] == [("me", "enough")]
        # The worker that would have called it is dead.
        assert called == []

    run_scenario(scenario)


def test_the_slot_of_a_cancelled_run_that_stalled_is_free_at_once(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, other = harness.app(timing=FAST), harness.app(timing=FAST)

        async def body(number: int) -> int:
            await asyncio.sleep(3600 if number == 0 else 0)
            return number

        task = app.task(name="task", concurrency_key="all", concurrency_limit=1)(body)
        other.task(name="task", concurrency_key="all", concurrency_limit=1)(body)
        node = await harness.start(app.worker(reaper=False), "victim")
        first = await task.enqueue(0)
        await asyncio.sleep(1)
        second = await task.enqueue(1)
        harness.loop.kill(node)
        await first.cancel()
        await harness.start(other.worker(), "reaping")

        assert await second.result() == 1
        before, after = (await record_of(first)), (await record_of(second))
        assert before.state is State.CANCELLED
        assert before.finished is not None
        assert after.started is not None
        assert after.started - before.finished < AT_ONCE

    run_scenario(scenario)


def test_cancelling_twice_is_as_good_as_once(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        stopped: list[int] = []

        @app.task
        async def task() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                stopped.append(current_job().run)
                await asyncio.sleep(1)

        @task.on_cancel
        async def tidy() -> None:
            stopped.append(0)

        await harness.start(app.worker())
        job = await task.enqueue()
        await asyncio.sleep(1)
        requests = [await job.cancel("first", by="one"), await job.cancel("second", by="two")]
        await asyncio.sleep(0.5)
        requests.append(await job.cancel("third"))
        record = await ended(harness, job)

        assert requests == [True, True, True]
        assert stopped == [1, 0]
        assert (record.state, record.reason) == (State.CANCELLED, "first")
        assert [(event.by, event.reason) for event in await harness.events_of(JobCancelled)] == [("one", "first")]

    run_scenario(scenario)


def test_an_ended_job_cannot_be_cancelled(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def works() -> int:
            return 1

        @app.task
        async def fails() -> None:
            raise Reject("never")

        await harness.start(app.worker())
        jobs: list[Job[Any]] = [await works.enqueue(), await fails.enqueue(), await works.options(delay="1h").enqueue()]
        await jobs[2].cancel()
        before = [await ended(harness, job) for job in jobs]

        assert [await job.cancel() for job in jobs] == [False, False, False]
        assert [(await record_of(job)) for job in jobs] == before

    run_scenario(scenario)


# ── hints and beats ───────────────────────────────────────────────────────────────────────────────────────────────


class FaultyMemory(MemoryStorage):
    """Memory that counts beats; its answers may be late and its subscriptions may fail."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self.beats = 0
        self.reply_after = 0.0
        self.failures = 0
        self.subscriptions = 0
        self.silent = False

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        answer = await super().exchange(owner, settlements, order)
        await asyncio.sleep(self.reply_after)
        return answer

    async def renew(self, beat: RenewRequest) -> RenewResult:
        self.beats += 1
        return await super().renew(beat)

    def notices(self, topics: Iterable[str]) -> Listener:
        named = list(topics)
        if any(topic.startswith("owner:") for topic in named):
            self.subscriptions += 1
            if self.silent:
                named = ["nothing"]
            elif self.subscriptions <= self.failures:
                raise StorageUnavailableError("no line to listen on")
        return super().notices(named)

    def hint(self, topic: str) -> None:
        self._hub.notify([topic])


def on_faulty_memory(scenario: Callable[[Harness, FaultyMemory], Any]) -> None:
    """Run a scenario on a memory storage with faults."""

    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = FaultyMemory(clock)
        await scenario(Harness(loop, clock, storage), storage)

    simulate(main)


def sleeping(app: Tenure) -> Any:
    @app.task(name="sleeping")
    async def sleep() -> None:
        await asyncio.sleep(3600)

    return sleep


def test_without_notifications_the_next_beat_brings_the_cancel() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        app = harness.app()
        storage.silent = True
        await harness.start(app.worker())
        job = await sleeping(app).enqueue()
        await asyncio.sleep(6)
        await job.cancel()
        record = await ended(harness, job)

        assert record.state is State.CANCELLED
        assert 3_900_000 < took(record) < 4_100_000

    on_faulty_memory(scenario)


def test_a_failed_listener_is_opened_again_after_a_pause() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        app = harness.app()
        storage.failures = 5
        await harness.start(app.worker())
        job = await sleeping(app).enqueue()
        await asyncio.sleep(60)
        subscriptions = storage.subscriptions
        await job.cancel()
        record = await ended(harness, job)

        assert subscriptions == 6
        assert took(record) < AT_ONCE

    on_faulty_memory(scenario)


def test_a_cancel_before_the_answer_to_a_claim_takes_effect_at_the_start() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        app = harness.app()
        job = await sleeping(app).enqueue()
        storage.reply_after = 2
        await harness.start(app.worker())
        await asyncio.sleep(1)
        state = await job.state()
        await job.cancel()
        record = await ended(harness, job)

        assert (state, record.state) == (State.ACTIVE, State.CANCELLED)
        assert 1_000_000 <= took(record) < 1_000_000 + AT_ONCE

    on_faulty_memory(scenario)


def test_hints_without_news_are_followed_by_the_usual_beats_only() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        app = harness.app()
        worker = app.worker()
        await harness.start(worker)
        job = await sleeping(app).enqueue()
        await asyncio.sleep(1)
        storage.beats = 0
        for _ in range(6000):
            storage.hint(owner_topic(worker.owner.id))
            await asyncio.sleep(0.01)
        beats = storage.beats
        await asyncio.sleep(10)
        storage.beats = 0
        await asyncio.sleep(50)
        quiet = storage.beats
        await job.cancel()
        record = await ended(harness, job)

        # The usual beats of that minute would be 12.
        assert 12 <= beats < 36
        assert quiet == 10
        assert took(record) < AT_ONCE

    on_faulty_memory(scenario)


def test_a_hint_costs_one_beat_and_an_idle_worker_sends_only_usual_beats() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        app = harness.app()
        worker = app.worker()
        await harness.start(worker)
        await asyncio.sleep(51)
        idle = storage.beats
        storage.hint(owner_topic(worker.owner.id))
        await asyncio.sleep(1)

        assert idle == 11
        assert storage.beats == 12

    on_faulty_memory(scenario)


# ── what the handler does about it ────────────────────────────────────────────────────────────────────────────────


def test_a_handler_cancels_its_own_job(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def task() -> None:
            raise Cancel("nothing to do")

        await harness.start(app.worker())
        job = await task.enqueue()
        record = await ended(harness, job)

        assert (record.state, record.reason, record.failures) == (State.CANCELLED, "nothing to do", 0)
        assert [(event.by, event.was) for event in await harness.events_of(JobCancelled)] == [("handler", State.ACTIVE)]

    run_scenario(scenario)


def test_a_handler_that_finishes_despite_its_cancel_completes_without_hook(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        called: list[str] = []

        @app.task
        async def stubborn() -> int:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
            return 7

        stubborn.on_cancel(lambda: called.append("hook"))
        await harness.start(app.worker())
        job = await stubborn.enqueue()
        await asyncio.sleep(1)
        await job.cancel()

        assert await job.result() == 7
        assert [event.cancel_too_late for event in await harness.events_of(JobCompleted)] == [True]
        assert await harness.events_of(JobCancelled) == []
        assert called == []

    run_scenario(scenario)


@pytest.mark.parametrize(
    "answer",
    [lambda: Snooze(5), lambda: RetryLater(5), lambda: ValueError("half way"), lambda: Cancel("as you like")],
    ids=["snooze", "retry later", "failure", "cancel"],
)
def test_a_cancelled_job_is_cancelled_with_any_exception_of_its_handler(
    run_scenario: RunScenario, answer: Callable[[], Exception]
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        called: list[str] = []

        @app.task
        async def task() -> None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                raise answer() from None

        @task.on_cancel
        async def tidy() -> None:
            called.append(current_job().id)

        await harness.start(app.worker())
        job = await task.enqueue()
        await asyncio.sleep(1)
        await job.cancel()
        record = await ended(harness, job)

        assert (record.state, record.failures, record.releases) == (State.CANCELLED, 0, 0)
        assert called == [job.id]

    run_scenario(scenario)


def test_a_cancelled_handler_that_reaches_its_timeout_is_cancelled(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        called: list[str] = []

        @app.task(timeout="10s", retry=Retry(max_attempts=1))
        async def stubborn() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
            await asyncio.sleep(3600)

        @stubborn.on_cancel
        async def tidy() -> None:
            called.append(current_job().id)

        await harness.start(app.worker())
        job = await stubborn.enqueue()
        await asyncio.sleep(1)
        await job.cancel()
        record = await ended(harness, job)

        assert (record.state, record.failures) == (State.CANCELLED, 0)
        assert 9_000_000 <= took(record) < 9_100_000
        assert called == [job.id]

    run_scenario(scenario)


# ── the hook ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_hook_is_called_between_handler_and_end_with_job_and_arguments(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        order: list[Any] = []

        @app.task
        async def task(names: list[str], *, number: int = 3) -> None:
            names.append("changed")
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0.5)
                order.append("handler")

        @task.on_cancel
        async def tidy(names: list[str], *, number: int = 3) -> None:
            context = current_job()
            order.append((names, number, context.id, context.run, context.cancelled))
            order.append((await record_of(app.job(context.id))).state)
            context.log.info("tidied up")

        await harness.start(app.worker())
        job = await task.enqueue(["a"])
        await asyncio.sleep(1)
        await job.cancel()
        record = await ended(harness, job)
        detail = await job.info()

        assert order == ["handler", (["a"], 3, job.id, 1, True), State.ACTIVE]
        assert [line.message for line in detail.log] == ["tidied up"]
        assert record.state is State.CANCELLED

    run_scenario(scenario)


def test_the_lease_is_renewed_while_the_hook_runs(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, other = harness.app(timing=FAST), harness.app(timing=FAST)

        @app.task(name="task")
        async def task() -> None:
            await asyncio.sleep(3600)

        @task.on_cancel
        async def tidy() -> None:
            await asyncio.sleep(25)

        await harness.start(app.worker(), "one")
        await harness.start(other.worker(queues=["elsewhere"]), "two")
        job = await task.enqueue()
        await asyncio.sleep(1)
        await job.cancel()
        record = await ended(harness, job)
        (run,) = (await job.info()).runs

        assert run.ended == "cancelled"
        assert 25_000_000 <= took(record) < 25_000_000 + AT_ONCE

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("options", "after", "limit"), [({}, 1, 30.0), ({"timeout": "60s"}, 10, 50.0), ({"timeout": "10s"}, 9.9, 2.5)]
)
def test_a_hook_that_does_not_end_is_stopped(
    run_scenario: RunScenario, caplog: pytest.LogCaptureFixture, options: TaskSettings, after: float, limit: float
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(**options)
        async def task() -> None:
            await asyncio.sleep(3600)

        @task.on_cancel
        async def endless() -> None:
            await asyncio.sleep(3600)

        await harness.start(app.worker())
        job = await task.enqueue()
        await asyncio.sleep(after)
        await job.cancel()
        record = await ended(harness, job)

        assert record.state is State.CANCELLED
        assert limit * 1e6 - AT_ONCE <= took(record) < limit * 1e6 + AT_ONCE
        assert await harness.events_of(JobStalled) == []

    run_scenario(scenario)
    assert "passed its limit" in caplog.text


def test_a_hook_that_ignores_its_stop_is_abandoned(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def task() -> None:
            await asyncio.sleep(3600)

        @task.on_cancel
        async def stubborn() -> None:
            for _ in range(100):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(3600)

        await harness.start(app.worker())
        job = await task.enqueue()
        await asyncio.sleep(1)
        await job.cancel()
        record = await ended(harness, job)

        assert record.state is State.CANCELLED
        assert took(record) < 33_000_000

    run_scenario(scenario)


@pytest.mark.parametrize("failure", [ValueError, SystemExit, asyncio.CancelledError, Cancel])
def test_a_failing_hook_is_logged_without_arguments_and_cancels_the_job(
    run_scenario: RunScenario, caplog: pytest.LogCaptureFixture, failure: type[BaseException]
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task(name="mail")
        async def task(secret: str) -> None:
            await asyncio.sleep(3600)

        @task.on_cancel
        async def broken(secret: str) -> None:
            raise failure(f"cannot tidy up {secret}")

        await harness.start(app.worker())
        jobs = [await task.enqueue("xyzzy") for _ in range(2)]
        await asyncio.sleep(1)
        for job in jobs:
            await job.cancel()
        records = [await ended(harness, job) for job in jobs]
        log = (await jobs[0].info()).log

        assert [record.state for record in records] == [State.CANCELLED] * 2
        assert [line.level for line in log] == ["error"]
        if failure is ValueError:
            assert "cannot tidy up xyzzy" in log[0].fields["traceback"]
        record_ = [entry for entry in caplog.records if entry.levelno >= logging.ERROR]
        assert {jobs[0].id in entry.getMessage() for entry in record_} == {True, False}
        assert all("(mail)" in entry.getMessage() for entry in record_)
        assert "xyzzy" not in caplog.text
        caplog.clear()

    run_scenario(scenario)


def test_the_hook_runs_to_its_end_if_the_handler_cancels_its_own_job(
    run_scenario: RunScenario,
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        done: list[str] = []

        @app.task
        async def task() -> None:
            raise Cancel("by myself")

        @task.on_cancel
        async def tidy() -> None:
            await asyncio.sleep(2)
            done.append(current_job().id)

        await harness.start(app.worker())
        job = await task.enqueue()
        await asyncio.sleep(1)
        await job.cancel("from outside")
        record = await ended(harness, job)

        assert done == [job.id]
        assert (record.state, record.reason) == (State.CANCELLED, "by myself")

    run_scenario(scenario)


def test_no_hook_is_called_for_a_job_cancelled_before_it_began(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        called: list[str] = []

        @app.task
        async def task() -> None: ...

        task.on_cancel(lambda: called.append("hook"))
        job = await task.enqueue()
        await job.cancel()
        await harness.start(app.worker())
        await asyncio.sleep(10)

        assert await job.state() is State.CANCELLED
        assert called == []

    run_scenario(scenario)


def test_a_lost_run_calls_no_hook_and_stops_a_running_hook(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, other = harness.app(timing=FAST), harness.app(timing=FAST)
        messages: list[str] = []

        @app.task(name="task")
        async def task(name: str) -> None:
            await asyncio.sleep(3600)

        @task.on_cancel
        async def tidy(name: str) -> None:
            messages.append(f"{name} began")
            await asyncio.sleep(20)
            messages.append(f"{name} done")

        node = await harness.start(app.worker(), "first")
        at_work, lost = await task.enqueue("at work"), await task.enqueue("lost")
        await asyncio.sleep(1)
        await at_work.cancel()
        await asyncio.sleep(1)
        harness.loop.pause(node)
        await lost.cancel()
        await harness.start(other.worker(queues=["elsewhere"]), "second")
        await asyncio.sleep(10)
        states = [await at_work.state(), await lost.state()]
        harness.loop.wake(node)
        await asyncio.sleep(60)

        # The reaper has ended both and called no hook.
        assert states == [State.CANCELLED, State.CANCELLED]
        assert messages == ["at work began"]
        assert len(await harness.events_of(JobCancelled)) == 2

    run_scenario(scenario)


def test_a_stop_lets_a_hook_end_within_its_drain(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        done: list[str] = []

        @app.task
        async def task() -> None:
            await asyncio.sleep(3600)

        @task.on_cancel
        async def tidy() -> None:
            await asyncio.sleep(10)
            done.append("hook")

        worker = app.worker()
        node = await harness.start(worker)
        job = await task.enqueue()
        await asyncio.sleep(1)
        await job.cancel()
        await asyncio.sleep(1)
        await harness.stop(node, worker, timeout="25s")

        assert done == ["hook"]
        assert await job.state() is State.CANCELLED

    run_scenario(scenario)


def test_a_hook_that_outlasts_a_stop_leaves_its_job_cancelled(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def task(by_handler: bool) -> None:
            if by_handler:
                raise Cancel
            await asyncio.sleep(3600)

        @task.on_cancel
        async def tidy(by_handler: bool) -> None:
            await asyncio.sleep(25)

        worker = app.worker()
        node = await harness.start(worker)
        jobs = [await task.enqueue(False), await task.enqueue(True)]
        await asyncio.sleep(1)
        await jobs[0].cancel()
        await asyncio.sleep(1)
        await harness.stop(node, worker, timeout="1s")

        assert [await job.state() for job in jobs] == [State.CANCELLED, State.CANCELLED]

    run_scenario(scenario)


def test_a_hook_that_cannot_be_called_as_its_handler_is_refused() -> None:
    app = Tenure("memory://")

    @app.task(name="task")
    async def task(a: int, b: str = "", *, c: int = 0) -> None: ...

    def yields(a: int, b: str = "", *, c: int = 0) -> Any:
        yield

    async def without_c(a: int, b: str = "") -> None: ...

    async def needs_b(a: int, b: str, *, c: int = 0) -> None: ...

    async def more(a: int, b: str = "", *, c: int = 0, d: int) -> None: ...

    def takes_all(*args: object, **kwargs: object) -> None: ...

    hooks: list[tuple[Any, str]] = [
        (5, "must be a function"),
        (dict, "must be a function"),
        (yields, "yields"),
        (without_c, "'c'"),
        (needs_b, "'b'"),
        (more, "'d'"),
    ]
    for hook, item in hooks:
        with pytest.raises(UsageError, match=item):
            task.on_cancel(hook)

    assert task.on_cancel(takes_all) is takes_all
    with pytest.raises(UsageError, match="already"):
        task.on_cancel(takes_all)
