"""Reads of the event log: events after a cursor that are wanted, page by page."""

from collections.abc import Callable, Iterable
from typing import get_args

from msgspec import Struct, structs

from tenure.core.events import AnyEvent, EventsTrimmed, JobCompleted, event_name, name_of
from tenure.core.internal import is_internal
from tenure.core.job import Ref
from tenure.ops.views import Decode, readable
from tenure.storage.protocol import Storage

PAGE = 500
"""How many events one call reads."""

KINDS = sorted(event_name(kind.__name__) for kind in get_args(AnyEvent))
"""The names of all events in the log."""

Wanted = Callable[[AnyEvent], bool]


class EventsRead(Struct, frozen=True, kw_only=True):
    """Events, the oldest first, and the cursor that follows them. `end`: the log has no later event now.

    `incomplete`: one of several servers was unreachable; the cursor returns its events when it is reachable again.
    """

    events: list[AnyEvent]
    next: str
    end: bool
    incomplete: bool


def wanted_events(kinds: Iterable[str] = (), queues: Iterable[str] = ()) -> Wanted:
    """Return a function that selects events by kind and by queue; without a queue, those of all but internal ones."""
    some_kinds, some_queues = frozenset(kinds), frozenset(queues)

    def wanted(event: AnyEvent) -> bool:
        if isinstance(event, EventsTrimmed):
            # The reader must learn that events are missing.
            return True
        by_kind = not some_kinds or name_of(event) in some_kinds
        queue = getattr(event, "queue", None)
        return by_kind and (queue in some_queues if some_queues else not is_internal(queue))

    return wanted


async def events_after(
    storage: Storage,
    cursor: str | None,
    *,
    wanted: Wanted,
    limit: int,
    ref: Ref | None = None,
    looks: int | None = None,
) -> EventsRead:
    """Return the first `limit` wanted events after a cursor; None: from the oldest event.

    `looks`: about how many events are read at most, None for no bound; the answer may hold fewer events than `limit`
    before the end of the log.

    Raises:
        ValueError: the storage did not return this cursor.
    """
    found: list[AnyEvent] = []
    count, incomplete = 0, False
    while True:
        page = await storage.events(cursor, limit=PAGE, ref=ref)
        incomplete = incomplete or page.incomplete
        for event in page.events:
            if wanted(event):
                found.append(event)
                if len(found) >= limit:
                    return EventsRead(events=found, next=event.cursor or page.next, end=False, incomplete=incomplete)
        cursor, count = page.next, count + len(page.events)
        if not page.events or (looks is not None and count >= looks):
            return EventsRead(events=found, next=page.next, end=not page.events, incomplete=incomplete)


def shown_events(found: Iterable[AnyEvent], decode: Decode | None) -> list[AnyEvent]:
    """Return events in the form to show: with the decoded results of jobs, or without results if `decode` is None."""
    return [
        structs.replace(event, result=None if decode is None else readable(event.result, decode))
        if isinstance(event, JobCompleted)
        else event
        for event in found
    ]
