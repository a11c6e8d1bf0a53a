"""Log lines of a run that ends while the beat that carries them is in flight."""

import asyncio

from tenure import Tenure, Timing, current_job
from tenure.background_loop import SameLoop
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import RenewRequest, RenewResult


class LateBeats(MemoryStorage):
    """Memory that receives the first beat with a log line late, when `deliver` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.in_flight, self.deliver = asyncio.Event(), asyncio.Event()
        self.received = asyncio.Event()

    async def renew(self, beat: RenewRequest) -> RenewResult:
        if self.in_flight.is_set() or not any(renewal.log for renewal in beat.renewals):
            return await super().renew(beat)
        self.in_flight.set()
        await self.deliver.wait()
        try:
            return await super().renew(beat)
        finally:
            self.received.set()


async def test_a_line_in_flight_at_the_settlement_is_stored_once() -> None:
    storage, over = LateBeats(), asyncio.Event()
    app = Tenure(storage=storage, timing=Timing.fast(), side=SameLoop)

    @app.task
    async def talks() -> None:
        current_job().log.info("begun")
        await over.wait()

    async with app, app.worker(drain=0):
        job = await talks.enqueue()
        await asyncio.wait_for(storage.in_flight.wait(), 10)
        over.set()
        await job.result(timeout=10)
        storage.deliver.set()
        await asyncio.wait_for(storage.received.wait(), 10)
        log = (await job.info()).log

    assert [line.message for line in log] == ["begun"]
