"""What is done for a worker process that has died: its jobs are taken back, decided on, and it goes on record."""

import asyncio
import logging
from random import Random

from msgspec import Struct

from holdfast.clock import SECOND, Clock
from holdfast.core.events import WorkerDied
from holdfast.core.job import Owner
from holdfast.settle import settle_stalled
from holdfast.storage.protocol import Beat, Storage
from holdfast.worker.offspring import Death
from holdfast.worker.sentence import Sentence


class Deceased(Struct, frozen=True):
    """Who died, and of what."""

    owner: str
    pid: int
    death: Death
    died_at: int
    killed_for: Sentence | None = None
    """Why its supervisor killed it, None if somebody or something else did."""


class Burial:
    """Buries the children of one supervisor, in its name."""

    def __init__(self, owner: Owner, *, clock: Clock, rng: Random, logger: logging.Logger) -> None:
        self._owner = owner
        self._clock = clock
        self._rng = rng
        self._logger = logger

    async def bury(self, one: Deceased, storage: Storage, *, within: float) -> None:
        """Take back what a dead child held, and put it on record. What cannot be done in time is left to the reapers.

        Raises nothing that the storage raises: the next child must be started all the same.
        """
        jobs = 0
        try:
            async with asyncio.timeout(within):
                await storage.open()
                more = True
                while more:
                    taken = await storage.reclaim(one.owner, self._owner)
                    await settle_stalled(storage, self._owner, taken.stalled, self._rng, detail=str(one.death))
                    jobs += len(taken.stalled)
                    more = taken.more
                died = WorkerDied(
                    owner=one.owner,
                    host=self._owner.host,
                    pid=one.pid,
                    signal=one.death.signal,
                    status=one.death.status if one.death.signal is None else None,
                    peak_memory=one.death.peak_memory,
                    jobs=jobs,
                )
                await storage.renew(Beat(self._owner, events=(died,)))
        except asyncio.CancelledError:
            self._log_left(one, "no time is left")
            raise
        except Exception as error:
            self._log_left(one, repr(error))
        else:
            took = (self._clock.now() - one.died_at) / SECOND
            self._logger.warning(
                "worker %d died (%s); %d jobs taken back within %.3f s", one.pid, one.death, jobs, took
            )

    def _log_left(self, one: Deceased, why: str) -> None:
        self._logger.error("worker %d died (%s); its jobs are left to the reapers: %s", one.pid, one.death, why)
