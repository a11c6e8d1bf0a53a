"""The log of events, followed: what was recorded, in order, as it comes.

ask ──page──► whoever follows ──► ask from its end ─ nothing new ─► wait for a hint, or for a while ─► ask
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
"""Seconds between two looks at the log when nobody hinted: the net under the notices."""

PATIENCE = ExponentialDelay(0.1, 5.0)
"""Between two tries at a storage that is out of reach."""


async def follow(
    storage: Storage,
    cursor: str | None = None,
    *,
    ref: Ref | None = None,
    spares: type[Exception] = StorageUnavailableError,
    rng: Random | None = None,
    logger: logging.Logger | None = None,
) -> AsyncGenerator[AnyEvent]:
    """Yield what happened after the cursor, then what happens, in order, without a gap and without an end.

    `cursor`: that of the last event seen, to go on behind it; None begins with the oldest there is, `EVENTS_END` with
    what comes from now on. `ref`: only what happened to that job. Where the log has been cut off behind the cursor, an
    `EventsTrimmed` comes first. `spares`: what reading may raise without an end to this; it is logged once, and tried
    again after a rest of 0.1 to 5 s. What comes unhinted is seen within a second.

    Close it (`contextlib.aclosing`), or its listener stays until it is collected.

    Raises:
        StorageError: the storage can be reached, but its events cannot be read.
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
    """Yield pages that hold something: each is asked for once the one before has been handled.

    `ask` reads a page from a cursor on. What it raises of the kind that `spares` names is borne, everything else is
    passed on. `until` is set: no more pages.
    """
    over = until or asyncio.Event()
    hints = Hints(storage, (topic,), rng=rng, logger=logger)
    failures = 0
    incomplete = False
    try:
        while not over.is_set():
            try:
                page = await ask(cursor)
            except spares as error:
                failures += 1
                if failures == 1:
                    unexpected = None if isinstance(error, StorageError) else error
                    logger.warning("cannot read events, trying again: %r", error, exc_info=unexpected)
                # No hint shortens this: a busy log would send whoever is in trouble from one try to the next.
                await first(over.wait(), within=PATIENCE.rest(failures, rng))
                continue
            failures = 0
            cursor = page.next or cursor
            if page.unanswered and not incomplete:
                logger.warning("a part of the storage is out of reach; its events come when it is back")
            incomplete = page.unanswered
            if page.events:
                yield page
            else:
                await first(hints.next(), over.wait(), within=POLL)
    finally:
        hints.close()
