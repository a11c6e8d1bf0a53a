"""What a supervisor knows of a burial where the storage does not answer."""

import logging
from random import Random

import pytest

from holdfast.clock import SECOND
from holdfast.core.job import Owner
from holdfast.errors import StorageUnavailableError
from holdfast.figures import Figures
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.protocol import Order, Reclaimed
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.material import new_job
from holdfast.worker.burial import Burial, Deceased
from holdfast.worker.offspring import Death
from holdfast.worker.supervisor import Life

WORKER = Owner("feedfacefeedface", "host:7", "host", 7)
SUPERVISOR = Owner("beefbeefbeefbeef", "supervisor host:2", "host", 2)


class Mute(MemoryStorage):
    """A storage whose first answers to a reclaim are lost, be it that it was done or that it was not."""

    lost = 0
    done = True

    async def reclaim(self, dead: str, owner: Owner) -> Reclaimed:
        """Reclaim, and say nothing of it at first."""
        if not self.lost:
            return await super().reclaim(dead, owner)
        self.lost -= 1
        if self.done:
            await super().reclaim(dead, owner)
        raise StorageUnavailableError("the connection was closed")


@pytest.mark.parametrize(
    ("held", "lost", "done", "known"), [(2, 0, True, 2), (0, 0, True, 0), (2, 1, True, None), (2, 2, False, 2)]
)
async def test_of_jobs_that_a_lost_answer_told_of_nobody_says_that_there_were_none(
    held: int, lost: int, done: bool, known: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    storage = Mute(clock=clock)
    await storage.enqueue([new_job(f"{number}") for number in range(held)])
    await storage.exchange(WORKER, (), Order((new_job("x").queue,), 5))
    storage.lost, storage.done = lost, done
    logger = logging.getLogger("burial")
    burial = Burial(SUPERVISOR, clock=clock, rng=Random(1), logger=logger, figures=Figures())
    dead = Deceased(WORKER.id, 7, Death(-9), clock.now())

    jobs = await burial.bury(dead, storage, within=60.0)

    assert jobs == known
    assert Life(7, -9, lived=1.0, parted=False, jobs=jobs).early == (known == 0)
    assert (f"{known} jobs taken back" in caplog.text) == (known is not None)
    assert ("left to the reapers: an answer was lost" in caplog.text) == (known is None)
    assert ("0 jobs" in caplog.text) == (known == 0)


async def test_of_a_reclaim_that_is_not_answered_in_time_nobody_says_what_it_took() -> None:
    clock = ManualClock()
    storage = Mute(clock=clock)
    storage.lost = 1_000
    burial = Burial(SUPERVISOR, clock=clock, rng=Random(1), logger=logging.getLogger("burial"), figures=Figures())

    assert await burial.bury(Deceased(WORKER.id, 7, Death(-9), SECOND), storage, within=0.3) is None
