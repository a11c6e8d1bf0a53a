"""Following the log: in order, from a cursor on, through outages, past unreadable events."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tenure import Event, EventsTrimmed, JobCompleted, JobEvent, Retry, StorageUnavailableError, Tenure
from tenure.core.events import AnyEvent, UnreadableEvent
from tenure.core.job import Owner, Ref
from tenure.errors import StorageError
from tenure.events.follow import follow
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.notifications import Listener
from tenure.storage.protocol import EVENTS_END, EventPage, EventReader, SweepRequest
from tenure.storage.sqlite.storage import SQLiteStorage
from tenure_testing.simulation.event_loop import SimClock, SimLoop, simulate
from tests.flow.conftest import Harness, RunScenario

AT_ONCE = 0.05


def working(harness: Harness) -> tuple[Tenure, Any]:
    """Return an app with a task."""
    app = harness.app()

    @app.task(name="quick")
    async def quick(number: int) -> int:
        return number

    return app, quick


async def some(events: AsyncGenerator[AnyEvent], count: int, *, within: float = 60) -> list[AnyEvent]:
    """Return the next events."""
    async with asyncio.timeout(within):
        return [await anext(events) for _ in range(count)]


async def many(harness: Harness, task: Any, count: int) -> list[str]:
    """Complete this many jobs, and return their ids."""
    jobs = [await task.enqueue(number) for number in range(count)]
    for job in jobs:
        await job.result()
    return [job.id for job in jobs]


def test_past_events_come_first_and_new_ones_as_they_happen(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, quick = working(harness)
        await harness.start(app.worker(reaper=False))
        done = await many(harness, quick, 250)
        late: list[float] = []
        async with contextlib.aclosing(follow(harness.storage, "0")) as events:
            seen_events: list[AnyEvent] = []
            while sum(isinstance(event, JobCompleted) for event in seen_events) < 250:
                seen_events += await some(events, 1)
            for number in range(5):
                await asyncio.sleep(3)
                coming = asyncio.create_task(some(events, 1))
                await asyncio.sleep(0.3)
                job = await quick.enqueue(number)
                await job.result()
                began = harness.now
                seen_events += await coming
                late.append(harness.now - began)
                done.append(job.id)

        assert [event.id for event in seen_events if isinstance(event, JobCompleted)] == done
        assert [event.cursor for event in seen_events] == [event.cursor for event in await harness.events_of()]
        assert max(late) < AT_ONCE

    run_scenario(scenario)


def test_a_follower_continues_after_the_event_that_was_seen_last(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, quick = working(harness)
        await harness.start(app.worker(reaper=False))
        done = await many(harness, quick, 20)
        seen: list[AnyEvent] = []
        while sum(isinstance(event, JobCompleted) for event in seen) < 20:
            cursor = seen[-1].cursor if seen else None
            async with contextlib.aclosing(follow(harness.storage, cursor)) as events:
                seen += await some(events, 3)

        assert [event.id for event in seen if isinstance(event, JobCompleted)] == done

    run_scenario(scenario)


def test_following_from_the_end_yields_only_new_events(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, quick = working(harness)
        await harness.start(app.worker(reaper=False))
        await many(harness, quick, 3)
        async with contextlib.aclosing(follow(harness.storage, EVENTS_END)) as events:
            coming = asyncio.create_task(some(events, 2))
            await asyncio.sleep(0.3)
            new = await many(harness, quick, 2)
            seen_events = await coming

        assert [event.id for event in seen_events if isinstance(event, JobEvent)] == new

    run_scenario(scenario)


def test_one_job_can_be_followed_through_its_life(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, quick = working(harness)

        @app.task(retry=Retry(max_attempts=2, base="2s"))
        async def fails() -> None:
            raise ValueError

        await harness.start(app.worker(reaper=False))
        job = await fails.enqueue()
        async with contextlib.aclosing(follow(harness.storage, "0", ref=job.ref)) as events:
            coming = asyncio.create_task(some(events, 2))
            await many(harness, quick, 20)
            seen_events = await coming

        assert [type(event).__name__ for event in seen_events] == ["JobRetried", "JobFailed"]
        assert all(isinstance(event, JobEvent) and event.id == job.id for event in seen_events)

    run_scenario(scenario)


def test_a_late_follower_gets_a_trimmed_event_first(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app, quick = working(harness)
        await harness.start(app.worker(reaper=False))
        await many(harness, quick, 10)
        harness.clock.step(8 * 24 * 3600)
        last = (await many(harness, quick, 1))[0]
        await harness.storage.sweep(SweepRequest(Owner("0123456789abcdef", "sweeper"), term=None))
        async with contextlib.aclosing(follow(harness.storage, "1")) as events:
            seen_events: list[AnyEvent] = []
            while not (seen_events and isinstance(seen_events[-1], JobCompleted)):
                seen_events += await some(events, 1)

        assert isinstance(seen_events[0], EventsTrimmed)
        assert seen_events[0].oldest >= "10"
        assert not any(isinstance(event, EventsTrimmed) for event in seen_events[1:])
        assert [event.id for event in seen_events if isinstance(event, JobCompleted)] == [last]

    run_scenario(scenario)


class FaultyMemory(MemoryStorage):
    """Memory whose log may be unavailable, and whose notifications may fail."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self.failure: Exception | None = None
        self.reads = 0
        self.silent = False
        self.listened = 0

    async def events(
        self, cursor: str | None = None, *, limit: int = 100, reader: EventReader | None = None, ref: Ref | None = None
    ) -> EventPage:
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        return await super().events(cursor, limit=limit, reader=reader, ref=ref)

    def notices(self, topics: Iterable[str]) -> Listener:
        named = list(topics)
        # This does not concern callers that wait for a result.
        if not named[0].startswith("job:"):
            self.listened += 1
            if self.silent:
                raise StorageUnavailableError("no line to listen on")
        return super().notices(named)

    @property
    def heard(self) -> bool:
        return self._hub.has_listeners


def on_faulty_memory(scenario: Callable[[Harness, FaultyMemory], Any]) -> None:
    """Run a scenario on a memory storage with faults."""

    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = FaultyMemory(clock)
        await scenario(Harness(loop, clock, storage), storage)

    simulate(main)


def test_a_follower_waits_through_an_outage_with_growing_pauses(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        app, quick = working(harness)
        await harness.start(app.worker(reaper=False))
        done = await many(harness, quick, 1)
        async with contextlib.aclosing(follow(storage, "0", rng=Random(0))) as events:
            seen_events = await some(events, 2)
            coming = asyncio.create_task(some(events, 1, within=200))
            await asyncio.sleep(1)
            storage.failure, storage.reads = StorageUnavailableError("out of reach"), 0
            # Notifications do not shorten the pause.
            done += await many(harness, quick, 1)
            await asyncio.sleep(60)
            tries = storage.reads
            storage.failure = None
            seen_events += await coming

        assert [event.id for event in seen_events if isinstance(event, JobCompleted)] == done
        assert 10 < tries < 30

    on_faulty_memory(scenario)
    assert caplog.text.count("cannot read events") == 1


def test_an_error_that_is_not_temporary_is_raised() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        storage.failure = StorageError("damaged")
        with pytest.raises(StorageError, match="damaged"):
            await anext(follow(storage))

        assert not storage.heard

    on_faulty_memory(scenario)


def test_without_notifications_a_follower_polls_once_a_second() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        app, quick = working(harness)
        await harness.start(app.worker(reaper=False))
        await many(harness, quick, 1)
        storage.silent = True
        storage.listened = 0
        late: list[float] = []
        async with contextlib.aclosing(follow(storage, EVENTS_END)) as events:
            for number in range(20):
                coming = asyncio.create_task(some(events, 1))
                await asyncio.sleep(2.3)
                await (await quick.enqueue(number)).result()
                began = harness.now
                await coming
                late.append(harness.now - began)
            tries = storage.listened
            storage.silent = False
            await asyncio.sleep(40)
            coming = asyncio.create_task(some(events, 1))
            await asyncio.sleep(40)
            await (await quick.enqueue(99)).result()
            began = harness.now
            await coming

        assert max(late) <= 1.01
        assert max(late) > 0.3
        assert tries < 12
        assert harness.now - began < AT_ONCE

    on_faulty_memory(scenario)


def test_closing_a_follower_ends_its_subscription() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        events = follow(storage, "0")
        coming = asyncio.create_task(some(events, 1, within=2))
        await asyncio.sleep(1)
        heard = storage.heard
        with pytest.raises(TimeoutError):
            await coming
        await events.aclose()

        assert heard
        assert not storage.heard

    on_faulty_memory(scenario)


def test_event_handlers_survive_any_error_of_reading_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        app, quick = working(harness)
        heard: list[str] = []
        every: list[str] = []
        app.on(JobCompleted)(lambda event: heard.append(event.id))
        app.on(JobCompleted, scope="every")(lambda event: every.append(event.id))
        await harness.start(app.worker())
        done = await many(harness, quick, 3)
        await asyncio.sleep(1)
        storage.failure = RuntimeError("never thought of")
        done += await many(harness, quick, 3)
        await asyncio.sleep(20)
        storage.failure = None
        await asyncio.sleep(10)

        assert heard == done
        assert every == done

    on_faulty_memory(scenario)
    assert "never thought of" in caplog.text


def test_a_worker_outlives_hints_that_fail() -> None:
    async def scenario(harness: Harness, storage: FaultyMemory) -> None:
        app, quick = working(harness)
        heard: list[str] = []
        app.on(JobCompleted)(lambda event: heard.append(event.id))
        storage.silent = True
        worker = app.worker()
        await harness.start(worker)
        done = await many(harness, quick, 3)
        await asyncio.sleep(60)

        assert heard == done
        assert not worker.ended
        # Three listeners, a few attempts each.
        assert storage.listened < 40

    on_faulty_memory(scenario)


async def test_an_unreadable_event_does_not_stop_later_events(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    app = Tenure(f"sqlite:///{path}")
    heard: list[Event] = []
    app.on(Event)(heard.append)

    @app.task
    async def quick(number: int) -> int:
        return number

    async def done(count: int) -> None:
        async with asyncio.timeout(20):
            while sum(isinstance(event, JobCompleted) for event in heard) < count:  # noqa: ASYNC110 - heard in a thread
                await asyncio.sleep(0.01)

    async with app:
        async with app.worker():
            await (await quick.enqueue(1)).result(timeout=10)
            await done(1)
        heard.clear()
        jobs = await app.enqueue_many(quick.call(number) for number in range(3))
        storage = app.storage
        assert isinstance(storage, SQLiteStorage)
        begun = (await storage.events(EVENTS_END)).next
        await jobs[0].cancel()
        garble(path, begun)
        async with app.worker():
            for job in jobs[1:]:
                await job.result(timeout=10)
            await done(2)
        seen_events: list[AnyEvent] = []
        async with contextlib.aclosing(follow(storage, begun)) as events:
            while sum(isinstance(event, JobCompleted) for event in seen_events) < 2:
                seen_events += await some(events, 1)

    unreadable = [event for event in seen_events if isinstance(event, UnreadableEvent)]
    assert [event.body for event in unreadable] == ['{"event":"from_the_future"}']
    assert seen_events[0] is unreadable[0]
    assert [event.id for event in seen_events if isinstance(event, JobCompleted)] == [job.id for job in jobs[1:]]
    assert [event.body for event in heard if isinstance(event, UnreadableEvent)] == ['{"event":"from_the_future"}']


def garble(path: Path, cursor: str) -> None:
    """Make the events after a cursor unreadable for every version."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        changed = connection.execute(
            "UPDATE tenure_event SET body = ? WHERE id > ?", ('{"event":"from_the_future"}', int(cursor))
        ).rowcount
        assert changed == 1
    finally:
        connection.close()
