"""Positions of runs are sent with the beats: once the run is a beat old, after each change, until one arrives."""

import asyncio

from tenure import State, StorageUnavailableError
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import RenewRequest, RenewResult
from tests.flow.conftest import FAST, Harness, RunScenario


class Counting(MemoryStorage):
    """A storage that records the traces it is sent, and is unavailable at times."""

    away = False

    def __init__(self, harness: Harness) -> None:
        super().__init__(clock=harness.clock)
        self.sent: list[tuple[str, str]] = []

    async def renew(self, beat: RenewRequest) -> RenewResult:
        if self.away:
            raise StorageUnavailableError("out of reach")
        self.sent += [(renewal.ref.id, renewal.trace) for renewal in beat.renewals if renewal.trace is not None]
        return await super().renew(beat)


def test_a_trace_is_sent_after_one_beat_and_again_when_it_changes(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        storage = Counting(harness)
        app = harness.app(storage=storage, timing=FAST)

        @app.task
        async def steps() -> None:
            await asyncio.sleep(10)
            await asyncio.sleep(20)

        @app.task
        async def quick() -> None:
            await asyncio.sleep(0.3)

        await harness.start(app.worker())
        job = await steps.enqueue()
        for _ in range(10):
            await quick.enqueue()
        await asyncio.sleep(25)

        # One trace for each position, however often it beats. A run that ends before its first beat sends none.
        assert [(call, trace.count("sleep(10)"), trace.count("sleep(20)")) for call, trace in storage.sent] == [
            (job.id, 1, 0),
            (job.id, 0, 1),
        ]
        [run] = (await job.info()).runs
        assert run.trace == storage.sent[-1][1]

        await job.result(timeout=10)
        [run] = (await job.info()).runs
        assert run.trace is None

    run_scenario(scenario)


def test_a_trace_that_did_not_arrive_is_sent_with_a_later_beat(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        storage = Counting(harness)
        app = harness.app(storage=storage, timing=FAST)

        @app.task
        async def rest() -> None:
            await asyncio.sleep(20)

        await harness.start(app.worker())
        job = await rest.enqueue()
        await asyncio.sleep(0.1)
        storage.away = True
        await asyncio.sleep(1.2)
        assert storage.sent == []
        storage.away = False
        await asyncio.sleep(5)

        assert await job.state() is State.ACTIVE
        assert [call for call, _ in storage.sent] == [job.id]

    run_scenario(scenario)
