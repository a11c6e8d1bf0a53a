"""Turns events into delivery jobs: one named reader of the event log for each webhook.

    event log ──page──► events that the webhook selects ──► jobs ──enqueue──► the next read says: this page is done

The storage lends each page to one process at a time and keeps the place of the reader. A process that dies after it has
enqueued leaves the page to the next one, which makes the same jobs again: their ids are made of the webhook and the
place of the event, so the storage knows them.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from random import Random

from tenure.core.events import Event, EventsTrimmed
from tenure.core.job import NewJob
from tenure.errors import UsageError
from tenure.events.follow import pages
from tenure.storage.protocol import EventPage, EventReader, Storage
from tenure.webhooks.declaration import Webhook
from tenure.webhooks.messages import WebhookMessage, message_of

PAGE = 100
"""How many events are read at a time."""

READER = "webhook:"
"""The prefix of the names of the readers."""


class WebhookReader:
    """Makes the delivery jobs of one webhook in one process.

    `job_of`: returns the job that delivers a message. `caller`: identifies this process to the storage.
    """

    def __init__(
        self,
        webhook: Webhook,
        job_of: Callable[[WebhookMessage], NewJob],
        storage: Storage,
        *,
        caller: str,
        rng: Random,
        logger: logging.Logger,
    ) -> None:
        self._webhook = webhook
        self._job_of = job_of
        self._storage = storage
        # Not the name of the app: of two apps with this webhook, one makes the jobs.
        self._reader = EventReader(READER + webhook.name, caller)
        self._rng = rng
        self._logger = logger

    async def run(self) -> None:
        """Follow the log until cancelled. No error ends this: what cannot be enqueued now is read again.

        The first process that reads for this webhook begins at the end of the log.
        """

        async def ask(cursor: str | None) -> EventPage:
            page = await self._storage.events(cursor, limit=PAGE, reader=self._reader)
            await self._enqueue(page.events)
            return page

        reading = pages(self._storage, ask, None, rng=self._rng, logger=self._logger, spares=Exception)
        async with contextlib.aclosing(reading):
            async for _ in reading:
                # The next call of `ask` states that this page is done.
                continue

    async def _enqueue(self, events: Sequence[Event]) -> None:
        jobs: list[NewJob] = []
        for event in events:
            if isinstance(event, EventsTrimmed):
                self._logger.warning(
                    "webhook %s: events were deleted from the log before they were read; no message is sent about them",
                    self._webhook.name,
                )
            if not self._webhook.selects(event):
                continue
            try:
                jobs.append(self._job_of(message_of(self._webhook, event)))
            except UsageError:
                # It comes again with each try, and the events after it must go on.
                self._logger.exception("webhook %s: no message can be made of an event", self._webhook.name)
        if jobs:
            await self._storage.enqueue(jobs)
