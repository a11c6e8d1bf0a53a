"""Follows the event log: yields recorded events in order, then new events as they come.

ask ──page──► the follower ──► ask from its end ─ nothing new ─► wait for a notification or POLL ─► ask
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from random import Random

from tenure.clock import entropy
from tenure.core.events import AnyEvent
from tenure.core.exponential_delay import ExponentialDelay
from tenure.core.job import Ref
from tenure.errors import StorageError, StorageUnavailableError
from tenure.storage.notification_retry import Hints
from tenure.storage.protocol import EVENTS_TOPIC, EventPage, Storage, job_topic
from tenure.waiting import first

POLL = 1.0
"""Seconds between two reads of the log while no notification arrives; this covers lost notifications."""

PATIENCE = ExponentialDelay(0.1, 5.0)
"""Delay between two attempts while the storage is unreachable."""


async def follow(
    storage: Storage,
    cursor: str | None = None,
    *,
    ref: Ref | None = None,
    spares: type[Exception] = StorageUnavailableError,
    rng: Random | None = None,
    logger: logging.Logger | None = None,
) -> AsyncGenerator[AnyEvent]:
    """Yield the events after the cursor, then new events, in order, without gaps and without end.

    `cursor`: the cursor of the last event seen. None starts at the oldest event, `EVENTS_END` at the next new one.
    `ref`: only events of this job. If events after the cursor have been trimmed from the log, an `EventsTrimmed` comes
    first. `spares`: the exceptions of a read that do not end the iteration. The first one in a row is logged, and the
    read is retried after 0.1 to 5 s. If a notification is lost, an event is seen within 1 s.

    Close the generator (`contextlib.aclosing`); otherwise its subscription stays until it is garbage-collected.

    Raises:
        StorageError: the storage is reachable, but its events cannot be read.
    """
    topic = EVENTS_TOPIC if ref is None else job_topic(ref)
    turning = pages(
        storage,
        lambda place: storage.events(place, ref=ref),
        cursor,
        topic=topic,
        rng=rng or entropy(),
        logger=logger or logging.getLogger("tenure"),
        spares=spares,
    )
    try:
        async for page in turning:
            for event in page.events:
                yield event
    finally:
        await turning.aclose()


async def pages(
    storage: Storage,
    ask: Callable[[str | None], Awaitable[EventPage]],
    cursor: str | None,
    *,
    topic: str = EVENTS_TOPIC,
    rng: Random,
    logger: logging.Logger,
    spares: type[Exception],
    until: asyncio.Event | None = None,
) -> AsyncGenerator[EventPage]:
    """Yield the pages that are not empty. Each page is read once the page before has been handled.

    `ask` reads a page from a cursor on. Its exceptions of type `spares` are logged and retried; others propagate. When
    `until` is set, the generator ends.
    """
    stopped = until or asyncio.Event()
    hints = Hints(storage, (topic,), rng=rng, logger=logger)
    failures = 0
    incomplete = False
    try:
        while not stopped.is_set():
            try:
                page = await ask(cursor)
            except spares as error:
                failures += 1
                if failures == 1:
                    unexpected = None if isinstance(error, StorageError) else error
                    logger.warning("cannot read events, trying again: %r", error, exc_info=unexpected)
                # Notifications do not shorten this delay: on a busy log they would cause immediate retries.
                await first(stopped.wait(), within=PATIENCE.rest(failures, rng))
                continue
            failures = 0
            cursor = page.next or cursor
            if page.incomplete and not incomplete:
                logger.warning("a part of the storage is unreachable; its events follow when it is back")
            incomplete = page.incomplete
            if page.events:
                yield page
            else:
                await first(hints.next(), stopped.wait(), within=POLL)
    finally:
        hints.close()
