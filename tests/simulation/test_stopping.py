"""A worker is stopped at each single step of a claim: no job is delayed or charged."""

import asyncio
from random import Random

import pytest

from tenure import Tenure
from tenure.background_loop import SameLoop
from tenure.core.lifecycle import State
from tenure.storage.memory.storage import MemoryStorage
from tenure_testing.simulation.event_loop import SimClock, SimLoop, simulate


@pytest.mark.fault("W-T6")
@pytest.mark.parametrize("steps", range(40))
def test_a_job_claimed_during_a_stop_is_released_at_once(steps: int) -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        app = Tenure(storage=MemoryStorage(clock=clock), clock=clock, rng=Random(1), side=SameLoop)

        @app.task
        async def long() -> None:
            await asyncio.sleep(300)

        worker = app.worker()
        await worker.start()
        await asyncio.sleep(1)
        job = await long.enqueue()
        for _ in range(steps):
            await asyncio.sleep(0)
        began = loop.time()
        await worker.stop(timeout=0)
        record = (await job.info()).job

        assert loop.time() - began < 0.5
        assert record.state is State.WAITING
        assert (record.stalls, record.failures, record.releases) == (0, 0, record.starts)

    simulate(main)
