"""Notifies the dependents of the jobs that a worker has ended, where the storage leaves that to its callers.

Entries of the outbox come with the answer to an exchange. They are carried out in the background, so that they delay
neither claims nor settlements. What this worker drops or does not finish is carried out by the sweeps.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from tenure.maintenance.outbox import OutboxCarrier
from tenure.storage.protocol import Storage
from tenure.storage.waiting import OUTBOX_LIMIT, OutboxEntry

WITHIN = 5.0
"""Seconds for the calls of one turn. A storage that does not answer must not stop the next turn for longer."""


class EntryCarrier:
    """Carries the entries of one worker, those of several exchanges together while a turn goes on.

    `carried` is called after each turn: jobs that waited may be ready now.
    """

    def __init__(self, storage: Storage, logger: logging.Logger, carried: Callable[[], None]) -> None:
        self._carrier = OutboxCarrier(storage)
        self._logger = logger
        self._carried = carried
        self._waiting: list[OutboxEntry] = []
        self._added = asyncio.Event()
        self.busy = False
        """True while entries wait or are being carried."""

    def add(self, entries: Sequence[OutboxEntry]) -> None:
        """Carry these entries soon. If too many wait already, leave them to the sweeps."""
        self._waiting += entries[: max(0, OUTBOX_LIMIT - len(self._waiting))]
        self.busy = True
        self._added.set()

    async def run(self) -> None:
        """Carry entries until cancelled."""
        while True:
            await self._added.wait()
            self._added.clear()
            entries, self._waiting = self._waiting, []
            try:
                carried = await self._carrier.carry(entries, within=WITHIN)
                for trouble in carried.troubles:
                    self._logger.info("%s", trouble)
            except Exception:
                # The worker must go on, and the sweeps try again.
                self._logger.exception("the entries of the outbox are left to the sweeps")
            finally:
                self.busy = bool(self._waiting)
            self._carried()
