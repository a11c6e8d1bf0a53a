"""Where runs are goes to the storage with their beats: when they are a beat old, when it changed, until it arrives."""

import asyncio

from tenure import State, StorageUnavailableError
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import RenewRequest, RenewResult
from tests.flow.conftest import FAST, Play, Stage


class Counting(MemoryStorage):
    """A storage that counts the traces it is sent, and at times is out of reach before or after it has taken them."""

    away = False

    def __init__(self, stage: Stage) -> None:
        super().__init__(clock=stage.clock)
        self.sent: list[tuple[str, str]] = []

    async def renew(self, beat: RenewRequest) -> RenewResult:
        if self.away:
            raise StorageUnavailableError("out of reach")
        self.sent += [(renewal.ref.id, renewal.trace) for renewal in beat.renewals if renewal.trace is not None]
        return await super().renew(beat)


def test_a_trace_is_sent_after_one_beat_and_again_when_it_changes(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        storage = Counting(stage)
        app = stage.app(storage=storage, timing=FAST)

        @app.task
        async def steps() -> None:
            await asyncio.sleep(10)
            await asyncio.sleep(20)

        @app.task
        async def quick() -> None:
            await asyncio.sleep(0.3)

        await stage.start(app.worker())
        job = await steps.enqueue()
        for _ in range(10):
            await quick.enqueue()
        await asyncio.sleep(25)

        # However often it beats: once for each place. A run that is over before it is a beat old costs nothing.
        assert [(call, trace.count("sleep(10)"), trace.count("sleep(20)")) for call, trace in storage.sent] == [
            (job.id, 1, 0),
            (job.id, 0, 1),
        ]
        [run] = (await job.info()).runs
        assert run.trace == storage.sent[-1][1]

        await job.result(timeout=10)
        [run] = (await job.info()).runs
        assert run.trace is None

    play(scenario)


def test_a_trace_that_did_not_get_through_comes_with_a_later_beat(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        storage = Counting(stage)
        app = stage.app(storage=storage, timing=FAST)

        @app.task
        async def rest() -> None:
            await asyncio.sleep(20)

        await stage.start(app.worker())
        job = await rest.enqueue()
        await asyncio.sleep(0.1)
        storage.away = True
        await asyncio.sleep(1.2)
        assert storage.sent == []
        storage.away = False
        await asyncio.sleep(5)

        assert await job.state() is State.ACTIVE
        assert [call for call, _ in storage.sent] == [job.id]

    play(scenario)
