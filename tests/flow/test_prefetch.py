"""A worker prefetches some jobs if jobs are short; what happens to those that have not begun."""

import asyncio
from contextvars import ContextVar

import pytest

from tenure import Job, JobCancelled, JobCompleted, JobReleased, JobStalled, Stall, State, TaskOptions, Tenure
from tenure.worker.prefetch import LONGEST_WAIT, MOST_HELD
from tests.flow.conftest import FAST, Harness, RunScenario

pytestmark = pytest.mark.thorough

CONCURRENCY = 4

TENANT = ContextVar[int]("tenant")


class Short:
    """An app whose jobs take a millisecond, or as long as requested, and a count of running jobs."""

    def __init__(self, app: Tenure) -> None:
        self.app = app
        self.going = self.most = 0
        self.began: dict[int, float] = {}
        self.inherited: list[int] = []
        self.opened = asyncio.Event()
        self.opened.set()

        @app.task(name="short")
        async def short(number: int, seconds: float = 0.001) -> int:
            if (before := TENANT.get(None)) is not None:
                self.inherited.append(before)
            TENANT.set(number)
            self.going += 1
            self.most = max(self.most, self.going)
            self.began[number] = asyncio.get_running_loop().time()
            try:
                await asyncio.sleep(seconds)
                await self.opened.wait()
            finally:
                self.going -= 1
            return number

        self.short = short

    async def fill(self, numbers: range, seconds: float = 0.001) -> list[Job[int]]:
        return await self.app.enqueue_many(self.short.call(number, seconds) for number in numbers)

    async def warm(self) -> None:
        """Let the worker see that jobs are short."""
        for job in await self.fill(range(-100, 0)):
            await job.result()


async def held(harness: Harness) -> int:
    survey = await harness.storage.survey()
    return sum(queue.counts.get(State.ACTIVE, 0) for queue in survey.queues)


async def ahead(harness: Harness, work: Short) -> list[Job[int]]:
    """Let a worker hold more jobs than it runs: those that it runs do not end until `opened` is set."""
    await work.warm()
    work.opened.clear()
    jobs = await work.fill(range(60))
    await asyncio.sleep(0.05)

    assert work.going == CONCURRENCY
    assert await held(harness) > 2 * CONCURRENCY
    return jobs


def test_more_jobs_are_claimed_than_run_at_a_time(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        work = Short(harness.app())
        await harness.start(work.app.worker(concurrency=CONCURRENCY, prefetch=MOST_HELD))
        await work.warm()
        jobs, most = await work.fill(range(500)), 0
        while not all([await job.state() is State.COMPLETED for job in jobs[-20:]]):
            most = max(most, await held(harness))
            await asyncio.sleep(0.002)

        assert [await job.result() for job in jobs] == list(range(500))
        assert work.most == CONCURRENCY
        assert CONCURRENCY < most <= MOST_HELD
        assert sorted(work.began) == list(range(-100, 500))
        assert await harness.events_of(JobReleased, JobStalled) == []
        # Each begins in the worker's context, not in that of the run that made room for it.
        assert work.inherited == []

    run_scenario(scenario)


def test_a_prefetched_job_that_waits_too_long_is_released_to_another(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        work, other = Short(harness.app()), Short(harness.app())
        await harness.start(work.app.worker(concurrency=CONCURRENCY, prefetch=MOST_HELD))
        jobs = await ahead(harness, work)
        await harness.start(other.app.worker(concurrency=100), "other")
        since = harness.now
        for job in jobs[CONCURRENCY:]:
            await job.result()

        assert max(other.began.values()) - since < LONGEST_WAIT + 0.05
        assert sorted(other.began) == list(range(CONCURRENCY, 60))
        assert await held(harness) == CONCURRENCY
        released = await harness.events_of(JobReleased)
        assert {event.reason for event in released} == {"prefetch"}
        charged = [(await job.info()).job for job in jobs]
        assert {(item.failures, item.stalls) for item in charged} == {(0, 0)}
        work.opened.set()
        assert [await job.result() for job in jobs] == list(range(60))
        assert len(await harness.events_of(JobCompleted)) == 160

    run_scenario(scenario)


def test_a_stopping_worker_releases_prefetched_jobs_at_once(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        work = Short(harness.app())
        worker = work.app.worker(concurrency=CONCURRENCY, prefetch=MOST_HELD)
        node = await harness.start(worker)
        await ahead(harness, work)
        stopping = asyncio.ensure_future(harness.stop(node, worker, timeout=5))
        await asyncio.sleep(0.02)

        assert await held(harness) == CONCURRENCY
        assert {event.reason for event in await harness.events_of(JobReleased)} == {"prefetch"}
        work.opened.set()
        await stopping
        assert await held(harness) == 0
        assert sorted(number for number in work.began if number >= 0) == list(range(CONCURRENCY))

    run_scenario(scenario)


def test_a_prefetched_job_that_is_cancelled_never_begins(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        work = Short(harness.app())
        await harness.start(work.app.worker(concurrency=CONCURRENCY, prefetch=MOST_HELD))
        jobs = await ahead(harness, work)
        doomed = jobs[CONCURRENCY]
        await doomed.cancel()
        await asyncio.sleep(1.0)

        assert await doomed.state() is State.CANCELLED
        work.opened.set()
        for job in jobs:
            if job is not doomed:
                await job.result()
        assert CONCURRENCY not in work.began
        assert len(await harness.events_of(JobCancelled)) == 1

    run_scenario(scenario)


def test_no_more_jobs_are_begun_than_a_workers_max_jobs(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        work = Short(harness.app())
        await harness.start(work.app.worker(concurrency=CONCURRENCY, prefetch=MOST_HELD, max_jobs=120))
        await work.warm()
        await work.fill(range(60))
        await asyncio.sleep(2.0)

        assert sorted(number for number in work.began if number >= 0) == list(range(20))
        assert await held(harness) == 0

    run_scenario(scenario)


def test_prefetched_jobs_that_are_released_do_not_count_for_max_jobs(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        work = Short(harness.app())
        await harness.start(work.app.worker(concurrency=CONCURRENCY, prefetch=MOST_HELD, max_jobs=160))
        await ahead(harness, work)
        await asyncio.sleep(2 * LONGEST_WAIT)
        work.opened.set()
        await asyncio.sleep(2.0)

        assert len(await harness.events_of(JobReleased)) > CONCURRENCY
        assert sorted(number for number in work.began if number >= 0) == list(range(60))

    run_scenario(scenario)


@pytest.mark.parametrize("defaults", [TaskOptions(on_worker_lost="fail"), TaskOptions(stall=Stall(max_count=0))])
def test_a_job_that_its_next_stall_would_end_is_not_prefetched(
    run_scenario: RunScenario, defaults: TaskOptions
) -> None:
    async def scenario(harness: Harness) -> None:
        work = Short(harness.app(defaults=defaults))
        await harness.start(work.app.worker(concurrency=CONCURRENCY, prefetch=MOST_HELD))
        await work.warm()
        work.opened.clear()
        jobs = await work.fill(range(60))
        await asyncio.sleep(0.05)

        assert await held(harness) == CONCURRENCY
        work.opened.set()
        assert [await job.result() for job in jobs] == list(range(60))

    run_scenario(scenario)


def test_an_unsupervised_worker_prefetches_only_on_request(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        work = Short(harness.app())
        await harness.start(work.app.worker(concurrency=CONCURRENCY))
        await work.warm()
        work.opened.clear()
        await work.fill(range(60))
        await asyncio.sleep(0.05)

        assert await held(harness) == CONCURRENCY

    run_scenario(scenario)


def test_a_prefetched_job_whose_lease_expired_in_a_pause_does_not_begin(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        work, other = Short(harness.app(timing=FAST)), Short(harness.app(timing=FAST))
        worker = work.app.worker(concurrency=CONCURRENCY, prefetch=MOST_HELD)
        worker.prefetch_policy.longest_wait = 60.0
        node = await harness.start(worker)
        jobs = await ahead(harness, work)
        harness.loop.pause(node)
        await harness.start(other.app.worker(concurrency=100), "other")
        for job in jobs:
            await job.result()
        work.opened.set()
        harness.loop.wake(node)
        await asyncio.sleep(5.0)

        assert sorted(other.began) == list(range(60))
        assert sorted(number for number in work.began if number >= 0) == list(range(CONCURRENCY))

    run_scenario(scenario)
