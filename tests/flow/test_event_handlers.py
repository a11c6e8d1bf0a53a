"""Which process handles an event: one per app, from the log, no matter which process caused it; or every process."""

import asyncio
import functools
import logging
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tenure import (
    Event,
    JobCompleted,
    JobEvent,
    JobFailed,
    JobRetried,
    JobStalled,
    JobStarted,
    LeadershipAcquired,
    Reaper,
    Retry,
    Tenure,
    UsageError,
    WorkerStarted,
)
from tenure.client.codec import JsonCodec
from tenure.core.internal import OPS_QUEUE
from tenure.core.job import Ref
from tenure.core.lifecycle import State
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import EventPage, EventReader
from tenure_testing.simulation.event_loop import SimClock, SimLoop, simulate
from tests.flow.conftest import FAST, Harness, RunScenario


def listening(harness: Harness, heard: list[tuple[str, Any]], name: str, **options: Any) -> Tenure:
    """Return an app, as one process would create it, whose handler notes which process got what."""
    app = harness.app(timing=FAST, **options)

    @app.task(name="quick")
    async def quick(number: int) -> int:
        return number

    @app.task(name="sleep")
    async def sleep() -> None:
        await asyncio.sleep(3600)

    @app.on(JobEvent)
    async def note(event: JobEvent) -> None:
        heard.append((name, event))

    return app


@pytest.mark.fault("W-P6")
def test_an_event_is_handled_once_per_app_in_one_of_its_workers(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        heard: list[tuple[str, Any]] = []
        apps = [listening(harness, heard, f"worker-{number}") for number in range(3)]
        for number, app in enumerate(apps):
            await harness.start(app.worker(), f"worker-{number}")
        await asyncio.sleep(1)
        jobs = [await apps[0].tasks["quick"].enqueue(number) for number in range(40)]
        for job in jobs:
            await job.result()
        await asyncio.sleep(10)

        completed = [event.id for _, event in heard if isinstance(event, JobCompleted)]
        assert Counter(completed) == Counter(job.id for job in jobs)

    run_scenario(scenario)


def test_handlers_get_no_events_of_internal_queues(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        heard: list[tuple[str, Any]] = []
        app = listening(harness, heard, "worker")
        await harness.start(app.worker(queues=["default", OPS_QUEUE]), "worker")
        await asyncio.sleep(1)
        call = app.tasks["quick"].call(1).job
        storage = await app.opened()
        await storage.enqueue([structs.replace(call, id="own"), structs.replace(call, queue=OPS_QUEUE, id="internal")])
        await asyncio.sleep(5)

        assert [(event.queue, event.id) for _, event in heard] == [("default", "own")]
        assert [
            detail is not None and detail.job.state for detail in await storage.get([Ref(OPS_QUEUE, "internal")])
        ] == [State.COMPLETED]

    run_scenario(scenario)


def test_with_scope_every_each_process_handles_an_event_once(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        heard: list[tuple[int, str]] = []
        apps: list[Tenure] = []
        for number in range(2):
            app = harness.app()
            app.task(name="quick")(quick)
            app.on(JobCompleted, scope="every")(lambda event, number=number: heard.append((number, event.id)))  # type: ignore[misc]
            apps.append(app)
            await harness.start(app.worker(), f"worker-{number}")
        await asyncio.sleep(1)
        job = await apps[0].tasks["quick"].enqueue(1)
        await job.result()
        await asyncio.sleep(5)

        assert sorted(heard) == [(0, job.id), (1, job.id)]

    run_scenario(scenario)


async def quick(number: int) -> int:
    return number


@pytest.mark.statement(93, 115)
def test_a_recovery_by_a_reaper_reaches_handlers_in_a_worker(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        heard: list[tuple[str, Any]] = []
        app = listening(harness, heard, "worker")
        victim = await harness.start(app.worker(reaper=False), "victim")
        job = await app.tasks["sleep"].enqueue()
        await asyncio.sleep(0.5)
        harness.loop.kill(victim)
        await harness.start(Reaper(harness.app(timing=FAST)), "reaper")
        await asyncio.sleep(5)
        assert [event for _, event in heard if isinstance(event, JobStalled)] == []
        await harness.start(app.worker(queues=["elsewhere"], reaper=False), "worker")
        await asyncio.sleep(10)

        stalled = [event for _, event in heard if isinstance(event, JobStalled)]
        assert [(event.id, event.count, event.action) for event in stalled] == [(job.id, 1, "recovered")]

    run_scenario(scenario)


async def left_by_a_dead_worker(harness: Harness, app: Tenure) -> tuple[str, str]:
    """Kill a worker while it runs a job; return the job's id and the worker's owner id."""
    worker = app.worker(reaper=False)
    victim = await harness.start(worker, "victim")
    job = await app.tasks["sleep"].enqueue()
    await asyncio.sleep(0.5)
    harness.loop.kill(victim)
    return job.id, worker.owner.id


@pytest.mark.parametrize("scope", ["once", "every"])
def test_a_handler_of_a_reaper_gets_stalls_if_only_reapers_run(run_scenario: RunScenario, scope: str) -> None:
    async def scenario(harness: Harness) -> None:
        heard: list[JobStalled] = []
        job, owner = await left_by_a_dead_worker(harness, listening(harness, [], "victim"))
        reapers = [Reaper(harness.app(timing=FAST)) for _ in range(2)]
        for number, reaper in enumerate(reapers):
            reaper.on(JobStalled, scope=scope)(heard.append)
            await harness.start(reaper, f"reaper-{number}")
        await asyncio.sleep(10)

        handled = [(event.id, event.owner, event.reason, event.action) for event in heard]
        assert handled == [(job, owner, "lease_expired", "recovered")] * (1 if scope == "once" else 2)

    run_scenario(scenario)


def test_event_handlers_run_in_a_process_that_runs_only_a_reaper(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        heard: list[tuple[str, Any]] = []
        job, owner = await left_by_a_dead_worker(harness, listening(harness, [], "victim"))
        app = listening(harness, heard, "reaper")
        app.on(JobStalled, scope="every")(lambda event: heard.append(("every", event)))
        app.tasks["sleep"].on(JobStalled)(lambda event: heard.append(("task", event)))
        reaper = Reaper(app)
        node = await harness.start(reaper, "reaper")
        await asyncio.sleep(10)
        await harness.stop(node, reaper)

        stalled = [(name, e.id, e.owner, e.reason) for name, e in heard if isinstance(e, JobStalled)]
        assert sorted(stalled) == [(name, job, owner, "lease_expired") for name in ("every", "reaper", "task")]

    run_scenario(scenario)


def test_a_coroutine_handler_gets_its_reapers_leadership_once(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        heard: list[str] = []
        reapers = [Reaper(harness.app(timing=FAST)) for _ in range(2)]
        for number, reaper in enumerate(reapers):

            @reaper.on(LeadershipAcquired)
            async def leads(event: LeadershipAcquired) -> None:
                heard.append(event.owner)

            await harness.start(reaper, f"reaper-{number}")
        await asyncio.sleep(10)

        assert heard == [reapers[0].id]

    run_scenario(scenario)


@pytest.mark.parametrize("scope", ["once", "every"])
@pytest.mark.parametrize("others", [False, True])
def test_a_handler_registered_while_a_worker_runs_gets_later_events(
    run_scenario: RunScenario, scope: str, *, others: bool
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        task = app.task(name="quick")(quick)
        before: list[str] = []
        if others:
            app.on(JobCompleted, scope=scope)(lambda event: before.append(event.id))
        await harness.start(app.worker())
        early = await task.enqueue(1)
        await early.result()
        await asyncio.sleep(5)
        heard: list[str] = []
        app.on(JobCompleted, scope=scope)(lambda event: heard.append(event.id))
        late = await task.enqueue(2)
        await late.result()
        await asyncio.sleep(5)

        assert heard == [late.id]
        assert before == ([early.id, late.id] if others else [])

    run_scenario(scenario)


class Slow(MemoryStorage):
    """Memory whose log answers late, as over a slow network."""

    lag = 0.0

    async def events(
        self, cursor: str | None = None, *, limit: int = 100, reader: EventReader | None = None, ref: Ref | None = None
    ) -> EventPage:
        await asyncio.sleep(self.lag)
        return await super().events(cursor, limit=limit, reader=reader, ref=ref)


@pytest.mark.parametrize("scope", ["once", "every"])
@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("lag", [0.5, 5.0])
def test_a_late_handler_gets_events_recorded_after_its_registration(scope: str, *, in_thread: bool, lag: float) -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = Slow(clock=clock)
        harness = Harness(loop, clock, storage)
        app = harness.app()
        task = app.task(name="quick")(quick)
        await harness.start(app.worker())
        await (await task.enqueue(1)).result()
        await asyncio.sleep(5)
        heard: list[str] = []
        storage.lag = lag
        register = functools.partial(app.on(JobCompleted, scope=scope), lambda event: heard.append(event.id))
        if in_thread:
            thread = threading.Thread(target=register)
            thread.start()
            thread.join()
        else:
            register()
        late = await task.enqueue(2)
        await late.result()
        await asyncio.sleep(60)

        assert heard == [late.id]

    simulate(main)


def test_a_late_handler_moves_no_cursor_that_another_process_keeps(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        heard: list[tuple[str, Any]] = []
        first = listening(harness, heard, "first")
        worker = first.worker(reaper=False)
        node = await harness.start(worker, "first")
        await harness.stop(node, worker)
        heard.clear()
        later = harness.app(timing=FAST)
        task = later.task(name="quick")(quick)
        await harness.start(later.worker(), "later")
        missed = await task.enqueue(1)
        await missed.result()
        await asyncio.sleep(5)
        later.on(JobCompleted)(lambda event: heard.append(("later", event)))
        await asyncio.sleep(5)

        assert [(name, event.id) for name, event in heard] == [("later", missed.id)]

    run_scenario(scenario)


def test_a_late_handler_of_an_unrecorded_event_logs_a_warning(
    run_scenario: RunScenario, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        app.task(name="quick")(quick)
        await harness.start(app.worker())
        app.on(JobStarted)(print)
        await asyncio.sleep(5)

    run_scenario(scenario)
    assert [record.getMessage() for record in caplog.records if "of started receive" in record.getMessage()]


class Reversing:
    """A custom codec: JSON in reverse order."""

    def encode(self, value: Any, /) -> bytes:
        return JsonCodec().encode(value)[::-1]

    def decode(self, data: bytes, /) -> Any:
        return JsonCodec().decode(data[::-1])


async def test_a_reaper_of_a_url_uses_its_own_codec_and_logger(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    app = Tenure(url, codec=Reversing())
    task = app.task(name="quick")(quick)
    reaper = Reaper(url, codec=Reversing(), logger=logging.getLogger("mine"))
    heard = asyncio.get_running_loop().create_future()

    @reaper.on(JobCompleted)
    async def completed(event: JobCompleted) -> None:
        heard.set_result(event.result)
        raise ValueError("broken handler")

    await reaper.start()
    async with app, app.worker():
        await task.enqueue(123)
        result = await asyncio.wait_for(heard, 10)
    await reaper.stop()

    assert result == 123
    assert [record.name for record in caplog.records if "failed" in record.getMessage()] == ["mine"]


def test_a_process_that_dies_in_a_handler_leaves_the_event_to_another(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        heard: list[str] = []

        def process(name: str) -> Tenure:
            app = harness.app()
            app.task(name="quick")(quick)

            @app.on(JobCompleted)
            async def note(event: JobCompleted) -> None:
                heard.append(name)
                await asyncio.sleep(3)
                heard.append(f"{name} done")

            return app

        first = process("first")
        node = await harness.start(first.worker(), "first")
        await asyncio.sleep(1)
        await (await first.tasks["quick"].enqueue(1)).result()
        await asyncio.sleep(1)
        assert heard == ["first"]
        harness.loop.kill(node)
        await harness.start(process("second").worker(queues=["elsewhere"]), "second")
        await asyncio.sleep(20)

        assert heard == ["first", "second", "second done"]

    run_scenario(scenario)


def test_a_failing_event_handler_does_not_affect_others(
    run_scenario: RunScenario, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        app.task(name="quick")(quick)
        heard: list[str] = []

        @app.on(JobCompleted)
        def broken(event: JobCompleted) -> None:
            raise ValueError("broken handler")

        app.on(JobCompleted)(lambda event: heard.append(event.id))
        await harness.start(app.worker())
        jobs = [await app.tasks["quick"].enqueue(number) for number in range(3)]

        assert [await job.result() for job in jobs] == [0, 1, 2]
        await asyncio.sleep(5)
        assert heard == [job.id for job in jobs]

    run_scenario(scenario)
    assert "broken handler" in caplog.text


def test_handlers_of_a_task_get_events_of_its_jobs_only(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        heard: list[str] = []
        one = app.task(name="one")(quick)
        other = app.task(name="other")(quick)
        one.on(JobCompleted)(lambda event: heard.append(event.task))
        await harness.start(app.worker())
        await (await one.enqueue(1)).result()
        await (await other.enqueue(1)).result()
        await asyncio.sleep(5)

        assert heard == ["one"]

    run_scenario(scenario)


def test_the_events_of_a_job_arrive_in_the_order_they_happened(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()
        heard: list[Event] = []

        @app.task(retry=Retry(max_attempts=2, base="1s"))
        async def fail() -> None:
            raise ValueError

        app.on(Event)(heard.append)
        await harness.start(app.worker())
        job = await fail.enqueue()
        await asyncio.sleep(10)

        assert [type(event) for event in heard if isinstance(event, JobEvent)] == [JobRetried, JobFailed]
        assert {type(event) for event in heard} >= {WorkerStarted, LeadershipAcquired}
        cursors = [int(event.cursor or 0) for event in heard]
        assert cursors == sorted(set(cursors))
        assert all(event.id == job.id for event in heard if isinstance(event, JobEvent))

    run_scenario(scenario)


def test_only_event_classes_can_be_subscribed_to() -> None:
    app = Tenure("memory://")
    with pytest.raises(UsageError, match="not an event class"):
        app.on(ValueError)(print)  # type: ignore[type-var]
    with pytest.raises(UsageError, match="scope"):
        app.on(JobCompleted, scope="all")(print)


def test_a_removed_handler_is_called_no_more(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        heard: list[str] = []
        app = harness.app()
        app.task(name="quick")(quick)

        @app.on(JobCompleted)
        async def once(event: JobCompleted) -> None:
            assert app.off(once)
            await asyncio.sleep(0)
            heard.append("once")
            # The next handler of the same event is removed before its turn.
            app.off(never)

        @app.on(JobCompleted)
        async def never(event: JobCompleted) -> None:
            heard.append("never")

        @app.on(JobCompleted, scope="once")
        def always(event: JobCompleted) -> None:
            heard.append("always")

        await harness.start(app.worker(), "worker")
        for number in range(2):
            await (await app.tasks["quick"].enqueue(number)).result()
            await asyncio.sleep(2)

        assert heard == ["once", "always", "always"]
        assert not app.off(once)

        app.on(JobCompleted)(once)
        assert app.off(always)
        await (await app.tasks["quick"].enqueue(2)).result()
        await asyncio.sleep(2)

        assert heard == ["once", "always", "always", "once"]

    run_scenario(scenario)


def test_a_handler_is_removed_for_one_kind_of_event(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        heard: list[str] = []
        app = harness.app()
        task = app.task(name="quick")(quick)

        async def note(event: Event) -> None:
            heard.append(type(event).__name__)

        task.on(JobCompleted)(note)
        app.on(WorkerStarted)(note)
        assert app.off(note, JobCompleted)
        assert not app.off(note, JobFailed)
        with pytest.raises(UsageError, match="not an event class"):
            app.off(note, int)  # type: ignore[arg-type, type-var]  # pyright: ignore[reportArgumentType]
        reaper = Reaper(app)
        reaper.on(LeadershipAcquired)(note)
        assert reaper.off(note)
        assert not reaper.off(note)

        await harness.start(app.worker(), "worker")
        await (await app.tasks["quick"].enqueue(1)).result()
        await asyncio.sleep(2)

        assert heard == ["WorkerStarted"]

    run_scenario(scenario)
