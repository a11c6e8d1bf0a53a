"""What handlers report while they run: when it is sent, how much at a time, and where callers see it."""

import asyncio
import itertools

import pytest

from tenure import Retry, StorageUnavailableError, Tenure, current_job
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import LeaseRenewal, RenewRequest, RenewResult
from tenure_testing.simulation.event_loop import SameLoop, SimClock, SimLoop, simulate
from tests.flow.conftest import Harness, RunScenario


class WatchedStorage(MemoryStorage):
    """A memory storage that records the renewals of each call and its time."""

    def __init__(self, clock: SimClock, loop: SimLoop) -> None:
        super().__init__(clock=clock)
        self._loop = loop
        self.failures = 0
        """How many of the next calls with renewals fail."""
        self.calls: list[tuple[float, tuple[LeaseRenewal, ...], bool]] = []

    async def renew(self, beat: RenewRequest) -> RenewResult:
        """Record the call, or refuse it."""
        if beat.renewals and self.failures:
            self.failures -= 1
            raise StorageUnavailableError("no answer")
        if beat.renewals:
            self.calls.append((self._loop.time(), beat.renewals, beat.worker is not None))
        return await super().renew(beat)


def test_progress_is_stored_within_half_a_second(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def steady() -> None:
            for step in range(20):
                current_job().progress(step)
                current_job().log.info("step %d", step)
                await asyncio.sleep(0.7)

        await harness.start(app.worker())
        job = await steady.enqueue()
        for step in range(6):

            async def is_there(value: float = step) -> bool:
                return (await job.info()).job.progress == value

            # 0.7 s until the handler reports it, and the time until it is stored.
            assert await harness.until(is_there) < (0.7 if step else 0.2) + 0.55
        assert [line.message for line in (await job.info()).log][:3] == ["step 0", "step 1", "step 2"]

    run_scenario(scenario)


@pytest.mark.thorough
def test_reports_go_twice_a_second_500_at_a_time_the_oldest_first() -> None:
    jobs = 700
    order: list[str] = []

    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = WatchedStorage(clock, loop)
        app = Tenure(storage=storage, clock=clock, side=SameLoop)
        go = asyncio.Event()

        @app.task(retry=Retry(max_attempts=1))
        async def talkative() -> None:
            await go.wait()
            order.append(current_job().id)
            for _ in range(80):
                current_job().progress(1)
                await asyncio.sleep(0.1)

        async with app, app.worker(concurrency=jobs):
            await app.enqueue_many(talkative.call() for _ in range(jobs))
            await asyncio.sleep(1)
            storage.calls.clear()
            go.set()
            await asyncio.sleep(6.4)
            beats = [renewals for _, renewals, is_beat in storage.calls if is_beat]
            calls = [(at, renewals) for at, renewals, is_beat in storage.calls if not is_beat]
        gaps = [later - sooner for (sooner, _), (later, _) in itertools.pairwise(calls)]
        assert len(calls) >= 3
        assert min(gaps) >= 0.49
        # The beat renews all leases, and leaves the reports to these messages.
        assert sum(map(len, beats)) >= jobs
        assert {renewal.progress for renewals in beats for renewal in renewals} == {None}
        assert {len(renewals) for _, renewals in calls[1:3]} == {500}
        sent = [renewal.ref.id for _, renewals in calls for renewal in renewals]
        assert sent[:jobs] == order

    simulate(main)


def test_a_report_that_cannot_be_sent_is_sent_again() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = WatchedStorage(clock, loop)
        app = Tenure(storage=storage, clock=clock, side=SameLoop)

        @app.task
        async def steady() -> None:
            current_job().progress(0.25, "cut off")
            current_job().data["at"] = 1
            await asyncio.sleep(3)

        async with app, app.worker():
            storage.failures = 2
            job = await steady.enqueue()
            await asyncio.sleep(1.5)
            assert storage.failures == 0
            assert (await job.info()).job.progress_note == "cut off"
            assert await job.data() == {"at": 1}

    simulate(main)
