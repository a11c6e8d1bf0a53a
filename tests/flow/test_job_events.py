"""The events of one job, read by a holder of its handle."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from tenure import (
    JobCancelled,
    JobCompleted,
    JobDeleted,
    JobEnqueued,
    JobFailed,
    JobNotFoundError,
    JobProgressed,
    JobRedriven,
    JobRetried,
    JobStalled,
    JobStarted,
    QueueDrained,
    Retry,
    Tenure,
    UsageError,
    current_job,
)
from tenure.storage.protocol import DeleteJob
from tests.flow.conftest import FAST, Harness, RunScenario


async def event_names(job: Any) -> list[str]:
    async with aclosing(job.events()) as events:
        return [type(event).__name__ async for event in events]


def test_the_events_of_a_job_arrive_live_and_end_with_it(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(name="flaky", retry=Retry(base="5s", jitter=False))
        async def flaky() -> None:
            if current_job().run == 1:
                raise ValueError

        other, job = await flaky.enqueue(), await flaky.enqueue()
        heard = asyncio.create_task(event_names(job))
        await harness.start(app.worker())
        await other.result()

        expected = ["JobStarted", "JobRetried", "JobStarted", "JobCompleted"]
        assert await heard == expected
        assert await event_names(job) == expected

    run_scenario(scenario)


def test_a_redriven_jobs_earlier_ends_are_among_its_events(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(name="fails", retry=Retry(max_attempts=1))
        async def fails() -> None:
            raise ValueError

        job = await fails.enqueue()
        node = await harness.start(app.worker())
        assert await event_names(job) == ["JobStarted", "JobFailed"]
        harness.loop.kill(node)
        await job.redrive(by="ops")
        heard = asyncio.create_task(event_names(job))
        await asyncio.sleep(2)
        assert not heard.done()
        await job.cancel("enough")

        assert await heard == [kind.__name__ for kind in (JobStarted, JobFailed, JobRedriven, JobCancelled)]

    run_scenario(scenario)


def test_a_stall_and_a_deletion_are_yielded(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(name="slow")
        async def slow() -> None:
            await asyncio.sleep(3600)

        job = await slow.enqueue()
        node = await harness.start(app.worker(reaper=False), "victim")
        await asyncio.sleep(0.5)
        harness.loop.kill(node)
        rescuer = app.worker(queues=["another"])
        await harness.start(rescuer)
        await asyncio.sleep(5)
        await harness.storage.revise([DeleteJob(job.ref, by="ops")])

        assert await event_names(job) == [JobStalled.__name__, JobDeleted.__name__]

    run_scenario(scenario)


def test_optional_events_are_recorded_in_the_queues_that_request_them(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(name="talks", queue="loud")
        async def talks() -> None:
            current_job().progress(0.5, "half")
            await asyncio.sleep(3)

        unrecorded = await talks.options(queue="quiet").enqueue()
        await app.queue("loud").record(JobEnqueued, JobStarted, JobProgressed, QueueDrained)
        recorded = await talks.enqueue()
        await harness.start(app.worker(queues=["loud", "quiet"]))
        await unrecorded.result()
        await recorded.result()
        started = [event for event in await harness.events_of(JobStarted) if event.id == recorded.id]
        await asyncio.sleep(1)

        assert await event_names(unrecorded) == ["JobStarted", "JobProgressed", "JobCompleted"]
        assert await event_names(recorded) == ["JobEnqueued", "JobStarted", "JobProgressed", "JobCompleted"]
        assert [(event.attempt, event.redelivered, event.run) for event in started] == [(1, False, 1)]
        assert [event.queue for event in await harness.events_of(QueueDrained)] == ["loud"]

    run_scenario(scenario)


def test_changes_that_are_not_recorded_are_read_from_the_record(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(name="climbs", retry=Retry(max_attempts=2, base="5s", jitter=False))
        async def climbs() -> None:
            for step in range(3):
                current_job().progress(step, f"run {current_job().run}")
                await asyncio.sleep(2)
            if current_job().run == 1:
                raise ValueError

        job = await climbs.enqueue()
        seen: list[tuple[float, Any]] = []

        async def follow() -> None:
            async with aclosing(job.events()) as events:
                seen.extend([(harness.now, event) async for event in events])

        following = asyncio.create_task(follow())
        worker = app.worker()
        await harness.start(worker)
        began = harness.now
        await following

        def brief(event: Any) -> Any:
            match event:
                case JobStarted():
                    return "started", event.run, event.attempt, event.owner == worker.owner.id, event.redelivered
                case JobProgressed():
                    return event.run, event.value, event.note
                case _:
                    return type(event).__name__

        steps = [[(run, float(step), f"run {run}") for step in range(3)] for run in (1, 2)]
        assert [brief(event) for _, event in seen] == [
            *(("started", 1, 1, True, False), *steps[0], "JobRetried"),
            *(("started", 2, 2, True, True), *steps[1], "JobCompleted"),
        ]
        made = [event for _, event in seen if isinstance(event, JobStarted | JobProgressed)]
        assert {event.cursor for event in made} == {None}
        assert all(event.at is not None for event in made)
        late = [at - began - 2 * event.value for at, event in seen[1:4]]
        assert max(late) <= 1.1

    run_scenario(scenario)


def test_the_events_of_an_unknown_job_raise_job_not_found(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        with pytest.raises(JobNotFoundError):
            await event_names(harness.app().job("unknown"))

    run_scenario(scenario)


@pytest.mark.parametrize("kind", [JobRetried, JobCompleted, "started", None])
def test_only_optional_events_can_be_requested(kind: Any) -> None:
    queue = Tenure("memory://").queue("q")

    with pytest.raises(UsageError, match="is not recorded on request"):
        asyncio.run(queue.record(kind))


def test_a_completed_event_has_the_result_of_the_handler(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(name="pair")
        async def pair() -> tuple[int, str]:
            return 7, "seven"

        job = await pair.enqueue()
        await harness.start(app.worker())
        await job.result()
        async with aclosing(job.events()) as events:
            results = [event.result async for event in events if isinstance(event, JobCompleted)]

        assert results == [(7, "seven")]

    run_scenario(scenario)


def test_a_handler_of_an_unrecorded_event_logs_a_warning(
    run_scenario: RunScenario, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)
        app.on(JobStarted)(print)
        app.on(JobCompleted)(print)
        await harness.start(app.worker(), "without_handlers")
        await asyncio.sleep(1)
        warned = caplog.text
        caplog.clear()
        await app.queue("default").record(JobStarted)
        await harness.start(app.worker(), "with_handlers")
        await asyncio.sleep(1)

        assert "handlers of started receive no events" in warned
        assert "completed" not in warned
        assert "receive no events" not in caplog.text

    run_scenario(scenario)
