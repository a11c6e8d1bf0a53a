"""Who hears of what: once per app, from the log, whichever process caused it; or in every process."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from holdfast import (
    Event,
    Holdfast,
    JobCompleted,
    JobEvent,
    JobFailed,
    JobRetried,
    JobStalled,
    LeadershipAcquired,
    Reaper,
    Retry,
    UsageError,
    WorkerStarted,
)
from tests.flow.conftest import FAST, Play, Stage


def listening(stage: Stage, heard: list[tuple[str, Any]], name: str, **options: Any) -> Holdfast:
    """Return an app, as one process has it, whose handler notes which process heard what."""
    app = stage.app(timing=FAST, **options)

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
def test_an_event_is_heard_once_per_app_in_one_of_its_workers(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        heard: list[tuple[str, Any]] = []
        apps = [listening(stage, heard, f"worker-{number}") for number in range(3)]
        for number, app in enumerate(apps):
            await stage.start(app.worker(), f"worker-{number}")
        await asyncio.sleep(1)
        jobs = [await apps[0].tasks["quick"].enqueue(number) for number in range(40)]
        for job in jobs:
            await job.result()
        await asyncio.sleep(10)

        completed = [event.id for _, event in heard if isinstance(event, JobCompleted)]
        assert Counter(completed) == Counter(job.id for job in jobs)

    play(scenario)


def test_with_scope_every_each_process_hears_it_once(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        heard: list[tuple[int, str]] = []
        apps: list[Holdfast] = []
        for number in range(2):
            app = stage.app()
            app.task(name="quick")(quick)
            app.on(JobCompleted, scope="every")(lambda event, number=number: heard.append((number, event.id)))  # type: ignore[misc]
            apps.append(app)
            await stage.start(app.worker(), f"worker-{number}")
        await asyncio.sleep(1)
        job = await apps[0].tasks["quick"].enqueue(1)
        await job.result()
        await asyncio.sleep(5)

        assert sorted(heard) == [(0, job.id), (1, job.id)]

    play(scenario)


async def quick(number: int) -> int:
    return number


@pytest.mark.statement(93, 115)
def test_what_a_lone_reaper_recovered_is_heard_in_a_worker(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        heard: list[tuple[str, Any]] = []
        app = listening(stage, heard, "worker")
        victim = await stage.start(app.worker(reaper=False), "victim")
        job = await app.tasks["sleep"].enqueue()
        await asyncio.sleep(0.5)
        stage.loop.kill(victim)
        await stage.start(Reaper(stage.app(timing=FAST)), "reaper")
        await asyncio.sleep(5)
        assert [event for _, event in heard if isinstance(event, JobStalled)] == []
        await stage.start(app.worker(queues=["elsewhere"], reaper=False), "worker")
        await asyncio.sleep(10)

        stalled = [event for _, event in heard if isinstance(event, JobStalled)]
        assert [(event.id, event.count, event.action) for event in stalled] == [(job.id, 1, "recovered")]

    play(scenario)


def test_a_process_that_dies_in_a_handler_leaves_the_event_to_another(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        heard: list[str] = []

        def process(name: str) -> Holdfast:
            app = stage.app()
            app.task(name="quick")(quick)

            @app.on(JobCompleted)
            async def note(event: JobCompleted) -> None:
                heard.append(name)
                await asyncio.sleep(3)
                heard.append(f"{name} done")

            return app

        first = process("first")
        node = await stage.start(first.worker(), "first")
        await asyncio.sleep(1)
        await (await first.tasks["quick"].enqueue(1)).result()
        await asyncio.sleep(1)
        assert heard == ["first"]
        stage.loop.kill(node)
        await stage.start(process("second").worker(queues=["elsewhere"]), "second")
        await asyncio.sleep(20)

        assert heard == ["first", "second", "second done"]

    play(scenario)


def test_a_handler_that_fails_harms_nobody(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app()
        app.task(name="quick")(quick)
        heard: list[str] = []

        @app.on(JobCompleted)
        def broken(event: JobCompleted) -> None:
            raise ValueError("broken handler")

        app.on(JobCompleted)(lambda event: heard.append(event.id))
        await stage.start(app.worker())
        jobs = [await app.tasks["quick"].enqueue(number) for number in range(3)]

        assert [await job.result() for job in jobs] == [0, 1, 2]
        await asyncio.sleep(5)
        assert heard == [job.id for job in jobs]

    play(scenario)
    assert "broken handler" in caplog.text


def test_a_tasks_handlers_hear_of_its_own_jobs_only(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app()
        heard: list[str] = []
        one = app.task(name="one")(quick)
        other = app.task(name="other")(quick)
        one.on(JobCompleted)(lambda event: heard.append(event.task))
        await stage.start(app.worker())
        await (await one.enqueue(1)).result()
        await (await other.enqueue(1)).result()
        await asyncio.sleep(5)

        assert heard == ["one"]

    play(scenario)


def test_the_order_of_a_jobs_events_is_the_order_of_its_life(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app()
        heard: list[Event] = []

        @app.task(retry=Retry(max_attempts=2, base="1s"))
        async def fail() -> None:
            raise ValueError

        app.on(Event)(heard.append)
        await stage.start(app.worker())
        job = await fail.enqueue()
        await asyncio.sleep(10)

        assert [type(event) for event in heard if isinstance(event, JobEvent)] == [JobRetried, JobFailed]
        assert {type(event) for event in heard} >= {WorkerStarted, LeadershipAcquired}
        cursors = [int(event.cursor) for event in heard]
        assert cursors == sorted(set(cursors))
        assert all(event.id == job.id for event in heard if isinstance(event, JobEvent))

    play(scenario)


def test_what_is_no_event_cannot_be_listened_for() -> None:
    app = Holdfast("memory://")
    with pytest.raises(UsageError, match="no event"):
        app.on(ValueError)(print)  # type: ignore[type-var]
    with pytest.raises(UsageError, match="scope"):
        app.on(JobCompleted, scope="all")(print)
