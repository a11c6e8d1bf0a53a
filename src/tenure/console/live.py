"""Tells open pages what has changed: one reader of the event log for all streams of a console.

event log ──► ring of the newest events ──► frame of each stream (4 a second at most) ──► text/event-stream
                                       └──► `resync` for a stream that is further behind than the ring reaches

A frame has counts, not all events: a page reads again what it shows. So a slow client misses frames, but no change.
"""

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator
from itertools import islice
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from tenure.clock import entropy
from tenure.console.problems import ProblemError
from tenure.console.redaction import Redactor
from tenure.console.users import User
from tenure.core.events import AnyEvent, EventsTrimmed, JobEvent, name_of
from tenure.core.internal import OPS_QUEUE, is_internal_event
from tenure.events.follow import pages
from tenure.ops.events import shown_events
from tenure.storage.protocol import EVENTS_END, EventPage, Storage

logger = logging.getLogger("tenure.console")

RING = 5_000
"""How many events are kept for streams that are behind, and for clients that come back."""

PACE = 0.25
"""Seconds between two frames of a stream."""

COMMENT = 15.0
"""Seconds after which a stream without a change gets a comment, which keeps proxies from closing it."""

LINGER = 60.0
"""Seconds for which the log is still followed after the last stream has ended, for a client that comes back."""

LIFETIME = 30.0
"""Seconds until a stream ends; the client opens the next one, and goes on where this one ended.

So credentials are checked again, a proxy that collects an answer before it passes it on does so, and a server that
waits for its answers when it stops does not wait for longer.
"""

STREAMS = 200
"""The greatest number of streams of a console."""

NEWEST = 50
"""How many events, and at most how many queues, a frame names."""

JOBS = 100
"""At most how many jobs a frame names."""


class ChangedJob(Struct, frozen=True, kw_only=True):
    """A job that has an event in this frame."""

    queue: str
    id: str


class ChangesFrame(Struct, frozen=True, kw_only=True):
    """What happened since the frame before: `count` events, by kind and by queue, and the newest of them.

    `operations`: bulk operations with an event. `queues`, `jobs`, `newest` and `operations` are bounded; `complete`:
    `queues` and `jobs` name all queues and all jobs of these events.
    """

    count: int
    kinds: dict[str, int]
    queues: dict[str, int]
    jobs: list[ChangedJob]
    newest: list[AnyEvent]
    operations: list[str]
    complete: bool


class LiveEvents:
    """The newest events of a storage, for any number of streams. All calls come from one event loop."""

    def __init__(self, redactor: Redactor, *, rng: Random | None = None) -> None:
        self._redactor = redactor
        self._rng = rng or entropy()
        self._ring: deque[AnyEvent] = deque(maxlen=RING)
        self._cursors: deque[str] = deque(maxlen=RING + 1)
        """The cursors before the first event of the ring, and after each."""
        self._end = 0
        """How many events have been read, those included that have left the ring."""
        self._start = 0
        """The place of the first event from which on none is missing."""
        self._grown = asyncio.Event()
        self._frames: dict[tuple[int, int, object], bytes | None] = {}
        """The frames from a place to a place, for users who see the same queues."""
        self._streams = 0
        self._beginning = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._unused = asyncio.Event()

    async def open(self, storage: Storage, user: User, last_id: str | None) -> AsyncGenerator[bytes]:
        """Return the frames for a user as parts of a `text/event-stream`, which ends when `LIFETIME` has passed.

        `last_id`: the id of the last frame that the client has received; the stream goes on after it. If these events
        are not kept any more, or none is given, the first frame is a `resync`: the client reads all that it shows.

        Raises:
            ProblemError: there are too many streams.
            StorageError: the log cannot be read.
        """
        if self._streams >= STREAMS:
            raise ProblemError(
                "too-many-streams", f"{STREAMS} streams are open", "close pages, or read /events now and then"
            )
        await self._begin(storage)
        return self._parts(user, last_id)

    async def _parts(self, user: User, last_id: str | None) -> AsyncGenerator[bytes]:
        self._streams += 1
        try:
            place = self._place_after(last_id)
            loop = asyncio.get_running_loop()
            until = loop.time() + LIFETIME
            while loop.time() < until:
                if place is None or place < self._start:
                    place = self._end
                    yield _part("resync", {}, self._cursors[-1])
                elif place < self._end:
                    start, place = place, self._end
                    frame = self._frame(start, place, user)
                    if frame is not None:
                        yield frame
                elif not await _set(self._grown, within=COMMENT):
                    yield b":\n\n"
                    continue
                await asyncio.sleep(PACE)
        finally:
            self._streams -= 1
            if not self._streams:
                asyncio.get_running_loop().call_later(LINGER, self._end_if_unused)

    async def _begin(self, storage: Storage) -> None:
        """Follow the log from now on, if it is not followed yet."""
        async with self._beginning:
            if self._following is not None:
                if not self._unused.is_set() and not self._following.done():
                    return
                # What it reads before it ends would go into the new ring. To await it would cancel it with the caller.
                await asyncio.wait([self._following])
            # The client reads all that it shows when it gets its first frame: no event may lie between that and this.
            cursor = (await storage.events(EVENTS_END, limit=1)).next
            self._ring.clear()
            self._cursors.clear()
            self._cursors.append(cursor)
            # A stream that was opened before must read all again.
            self._end += 1
            self._start = self._end
            self._unused = asyncio.Event()
            self._following = asyncio.create_task(self._follow(storage, cursor))
            # The stream may never be read.
            asyncio.get_running_loop().call_later(LINGER, self._end_if_unused)

    async def _follow(self, storage: Storage, cursor: str) -> None:
        reading = pages(
            storage,
            storage.events,
            cursor,
            rng=self._rng,
            logger=logger,
            spares=Exception,
            until=self._unused,
        )
        async with contextlib.aclosing(reading):
            async for page in reading:
                self._add(page)

    def _end_if_unused(self) -> None:
        if not self._streams:
            self._unused.set()

    def _add(self, page: EventPage) -> None:
        for event in page.events:
            self._ring.append(event)
            self._cursors.append(event.cursor or page.next)
            self._end += 1
            if isinstance(event, EventsTrimmed):
                self._start = self._end
        self._start = max(self._start, self._end - len(self._ring))
        self._frames.clear()
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()

    def _place_after(self, cursor: str | None) -> int | None:
        """Return the place after the event with this cursor, None if it is not kept."""
        if cursor is not None and cursor in self._cursors:
            return self._end - len(self._cursors) + 1 + self._cursors.index(cursor)
        return None

    def _frame(self, start: int, end: int, user: User) -> bytes | None:
        # Streams that are up to date get the same frame, so it is made once.
        key = (start, end, user.queues)
        if key not in self._frames:
            self._frames[key] = self._made(start, end, user)
        return self._frames[key]

    def _made(self, start: int, end: int, user: User) -> bytes | None:
        """Return a frame, None if the user sees none of these events."""
        first = self._end - len(self._ring)
        seen = [event for event in islice(self._ring, start - first, end - first) if user.sees_event(event)]
        events = [event for event in seen if not is_internal_event(event)]
        # An event does not say whose operation it is, and a user of some queues sees only his own.
        ops = [
            event.id
            for event in seen
            if user.queues is None and isinstance(event, JobEvent) and event.queue == OPS_QUEUE
        ]
        if not events and not ops:
            return None
        queues = Counter(str(queue) for event in events if (queue := getattr(event, "queue", None)) is not None)
        jobs = dict.fromkeys((event.queue, event.id) for event in reversed(events) if isinstance(event, JobEvent))
        frame = ChangesFrame(
            count=len(events),
            kinds=dict(Counter(map(name_of, events))),
            queues=dict(queues.most_common(NEWEST)),
            jobs=[ChangedJob(queue=queue, id=name) for queue, name in list(jobs)[:JOBS]],
            newest=shown_events(events[-NEWEST:], None),
            operations=list(dict.fromkeys(ops))[-NEWEST:],
            complete=len(queues) <= NEWEST and len(jobs) <= JOBS,
        )
        return _part("changes", self._redactor.plain(frame), self._cursors[end - first])


def _part(name: str, data: Any, cursor: str) -> bytes:
    return f"event: {name}\nid: {cursor}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


async def _set(event: asyncio.Event, *, within: float) -> bool:
    """Return True when the event is set, False after these seconds."""
    try:
        async with asyncio.timeout(within):
            await event.wait()
    except TimeoutError:
        return False
    return True
