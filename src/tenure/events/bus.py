"""The event bus: calls handlers for events from the storage's log, from any process, and for local events at once."""

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Generator
from random import Random
from typing import Any, get_args

from msgspec import structs

from tenure.clock import SECOND
from tenure.core.events import Event, EventsTrimmed, OnRequest, event_name
from tenure.core.internal import is_internal_event
from tenure.errors import StorageError, StorageUnavailableError, UsageError
from tenure.events.follow import pages
from tenure.events.handler_calls import Handler, HandlerCalls
from tenure.storage.cursors import numbers_of, recorded_within, set_back
from tenure.storage.protocol import EVENTS_END, EventPage, EventReader, Storage
from tenure.waiting import first

RENEWED = 1.0
"""Seconds between two renewals of a batch's loan while its handlers run: a fifth of the loan's 5 s."""

LEEWAY = 1.0
"""A handler that is registered late gets the events from this many seconds before its registration.

A storage stamps an event some time before readers can see it."""

BATCH = 100


class Handlers:
    """The handlers of one app or reaper."""

    def __init__(self) -> None:
        self._all: list[Handler] = []
        self._lock = threading.Lock()
        self._watchers: list[Callable[[], None]] = []

    def add(self, kind: type[Any], handler: Callable[[Any], object], *, scope: str, task: str | None = None) -> None:
        """Register a handler.

        Raises:
            UsageError: `kind` is not an event class, or the scope is neither "once" nor "every".
        """
        if not issubclass(kind, Event):
            raise UsageError(f"{kind!r} is not an event; use a class such as JobStalled")
        if scope not in ("once", "every"):
            raise UsageError(f'scope = {scope!r} is unknown; use "once" or "every"')
        with self._lock:
            self._all = [*self._all, Handler(kind, handler, scope, task)]
        for watcher in tuple(self._watchers):
            watcher()

    def remove(self, handler: object, kind: type[Event] | None = None) -> bool:
        """Remove all registrations of a handler, or only those for one kind of event; return True if there was one.

        No call of it begins after this. Safe to call from any thread, also from within the handler.
        """
        with self._lock:
            removed = [
                registration
                for registration in self._all
                if registration.handler == handler and kind in (None, registration.kind)
            ]
            for registration in removed:
                registration.registered = False
            # A new list: another thread may be reading the old one.
            self._all = [registration for registration in self._all if registration.registered]
        return bool(removed)

    @contextlib.contextmanager
    def watched(self, watcher: Callable[[], None]) -> Generator[None]:
        """Call `watcher` after each registration in the block, in the thread that registers."""
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    def scoped(self, scope: str) -> list[Handler]:
        """Return the handlers of one scope."""
        return [handler for handler in self._all if handler.scope == scope]

    def all(self) -> list[Handler]:
        """Return all handlers."""
        return list(self._all)


class EventBus:
    """Reads the event log for one app or reaper in one process and calls the handlers.

    Handlers of scope "once" share a named reader of the log. The storage lends each of its batches to one process at a
    time, so each event is handled once per app. It is handled again only if the process dies, or hangs for 5 s, while
    it handles the event. Handlers of scope "every" follow the log from the start of this process. A handler that is
    registered later gets every event that is recorded after its registration, and possibly those of the second before.
    `local`: kinds of events that only `publish` delivers, although the log has them too.
    """

    def __init__(
        self,
        storage: Storage,
        handlers: Handlers,
        *,
        reader: str,
        caller: str,
        rng: Random,
        decode: Callable[[bytes], Any],
        logger: logging.Logger,
        local: tuple[type[Event], ...] = (),
    ) -> None:
        self._storage = storage
        self._handlers = handlers
        self._reader = EventReader(reader, caller)
        self._skipped = local
        self._rng = rng
        self._calls = HandlerCalls(decode, logger)
        self._logger = logger
        self._local: asyncio.Queue[Event] = asyncio.Queue()
        self._since: str | None = None
        self._began = 0.0
        """The loop's time when this bus first took a position in the log, or tried to."""
        self._placed: set[str] = set()
        """The scopes that have a position in the log."""
        self._unrecorded: set[str] = set()
        """The events for which a warning has said that no queue records them."""
        self._handling: tuple[EventReader | None, str | None] = None, None
        self._set_back: dict[int, tuple[int, float | None]] = {}
        """Where handlers of scope "every" must read again, by the index of the partition: after an event, and from a
        time of the loop on, if it is known."""
        self._moved: set[int] = set()
        """The indexes of partitions where handlers of scope "every" read on in a new log that no one announced yet."""
        self.read_to = ""
        """The cursor up to which this bus has read the log."""
        self._ends: dict[str, str] = {}
        """For each scope: the end of the log at which a read found nothing, if it was the latest read."""
        self._looked = asyncio.Event()
        self._stopping = asyncio.Event()
        self._stopped = asyncio.Event()

    async def subscribe(self) -> None:
        """Take a position in the log, so that the handlers get all events that are recorded from now on.

        Raises:
            StorageError: the log cannot be read.
        """
        self._began = asyncio.get_running_loop().time()
        with contextlib.suppress(StorageUnavailableError):
            # A part of the storage may be unreachable; the handlers get the events of the other parts.
            await self._warn_unrecorded()
        if self._handlers.scoped("once"):
            await self._storage.events(limit=0, reader=self._reader)
            self._placed.add("once")
        if self._handlers.scoped("every"):
            self._since = (await self._storage.events(EVENTS_END, limit=0)).next
            self._placed.add("every")

    async def _warn_unrecorded(self) -> None:
        """Log a warning for handlers that get no events because no queue records their kind of event."""
        wanted = {event_name(handler.kind.__name__) for handler in self._handlers.all()} & set(get_args(OnRequest))
        if not wanted:
            return
        recorded = {name for queue in (await self._storage.survey()).queues for name in queue.settings.record or ()}
        for name in sorted(wanted - recorded - self._unrecorded):
            self._unrecorded.add(name)
            self._logger.warning(
                "handlers of %s receive no events, because no queue records them; call await "
                "app.queue(name).record(...) once",
                name,
            )

    def publish(self, event: Event) -> None:
        """Deliver a local event to its handlers soon, without the log."""
        if self._handlers.all() and not self._stopped.is_set():
            self._local.put_nowait(event)

    def forget_read(self) -> None:
        """Clear `read_to`: the log was replaced by another or an earlier one. Safe to call from any thread."""
        self.read_to = ""

    def begin_again(self, partition: int) -> None:
        """Read the log of one partition from its start, because it is a new log. `partition`: the partition's index."""
        # A named reader loses its position with the log, and the storage puts it at the start of the new log.
        self._read_again(partition, 0, None)

    def set_back(self, partition: int, last: int, seen_ago: float) -> None:
        """Read the log of one partition again, because its last events were lost and others took their numbers.

        `last`: the number of its last event. `seen_ago`: the seconds since the log was last seen without a loss. All
        events since then are read, so some may be read twice.
        """
        self._read_again(partition, last, asyncio.get_running_loop().time() - seen_ago)

    def _read_again(self, partition: int, last: int, since: float | None) -> None:
        # A storage knows what it has lent to a named reader, so it ignores cursors beyond that.
        if partition in self._moved:
            # Handlers of scope "every" found the loss before the worker's beat did.
            self._moved.discard(partition)
        elif "every" in self._placed:
            known, earliest = self._set_back.get(partition, (last, since))
            since = None if since is None or earliest is None else min(since, earliest)
            self._set_back[partition] = min(last, known), since

    async def run(self) -> None:
        """Follow the log until `stop` is called or this task is cancelled."""
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        added = asyncio.Event()
        followers: dict[str, asyncio.Task[None]] = {}
        background: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as group:

            def begin(registered: float) -> None:
                """Follow the log for each scope with handlers; from that time on if the scope has no position yet."""
                if self._stopping.is_set():
                    return
                for scope, reader in (("once", self._reader), ("every", None)):
                    if scope in followers or not self._handlers.scoped(scope):
                        continue
                    if reader is not None:
                        background.append(group.create_task(self._keep_loan(), context=context))
                    followers[scope] = group.create_task(self._follow(scope, reader, registered), context=context)
                added.set()

            def registered() -> None:
                with contextlib.suppress(RuntimeError):  # the bus's loop is closed
                    loop.call_soon_threadsafe(begin, loop.time())

            with self._handlers.watched(registered):
                background.append(group.create_task(self._hand_local()))
                # A handler may have been registered since `subscribe`.
                begin(self._began)
                while True:
                    await first(added.wait(), self._stopping.wait())
                    if self._stopping.is_set():
                        break
                    added.clear()
                    with contextlib.suppress(StorageError):
                        await self._warn_unrecorded()
            if followers:
                await asyncio.wait(followers.values())
            await self._local.join()
            for task in background:
                task.cancel()
        while not self._local.empty():
            self._local.get_nowait()
            self._local.task_done()
        self._calls.close()
        self._stopped.set()

    async def catch_up(self) -> bool:
        """Wait until the handlers have handled every event up to now; return False if they had done so before.

        Return at once if the bus stops, or if the log cannot be read.
        """
        scopes = [scope for scope in ("once", "every") if self._handlers.scoped(scope)]
        waited = not self._local.empty()
        await self._local.join()
        while scopes and not self._stopping.is_set():
            self._looked.clear()
            try:
                end = (await self._storage.events(EVENTS_END, limit=0)).next
            except StorageError:
                return False
            if all(self._ends.get(scope) == end for scope in scopes):
                break
            waited = True
            await self._looked.wait()
        return waited

    async def stop(self) -> None:
        """Let the running handlers end, store how far the log was handled, and stop reading.

        Local events that `publish` got before are delivered; later ones are dropped.
        """
        self._stopping.set()
        self._looked.set()
        await self._stopped.wait()

    async def _hand_local(self) -> None:
        while True:
            event = await self._local.get()
            try:
                await self._calls.call(event, self._handlers.all())
            finally:
                self._local.task_done()

    async def _follow(self, scope: str, reader: EventReader | None, registered: float) -> None:
        """Deliver the log's events to the handlers of a scope. `start` is the cursor after the last handled event."""
        start = self._since if reader is None and scope in self._placed else None

        async def ask(cursor: str | None) -> EventPage:
            nonlocal start, reader
            start = cursor or start
            if scope not in self._placed:
                begin = await self._end_at(registered)
                if reader is None:
                    start = begin
                else:
                    reader = structs.replace(reader, begin=begin)
                self._placed.add(scope)
            if reader is not None or start is None:
                page = await self._storage.events(start, limit=BATCH, reader=reader)
            else:
                orders = dict(self._set_back)
                for index, (last, since) in orders.items():
                    if since is not None:
                        # The log may have grown past `last` and past our place since it lost events.
                        last = min(last, *numbers_of(await self._end_at(since))[index : index + 1])
                    start = set_back(start, index, last)
                page = await self._storage.events(start, limit=BATCH)
                # Orders that a failed read did not carry out are still there; so are those that came meanwhile.
                for index, order in orders.items():
                    if self._set_back.get(index) == order:
                        del self._set_back[index]
                for moved in begun_before(start, page):
                    if self._set_back.pop(moved, None) is None:
                        self._moved.add(moved)
            self.read_to = page.next
            self._ends[scope] = "" if page.events else page.next
            self._looked.set()
            return page

        # No error ends the reading: the handlers wait until the log can be read again.
        turning = pages(
            self._storage,
            ask,
            start,
            rng=self._rng,
            logger=self._logger,
            spares=Exception,
            until=self._stopping,
        )
        async with contextlib.aclosing(turning):
            async for page in turning:
                for event in page.events:
                    if reader is not None:
                        self._handling = reader, start
                    if not isinstance(event, self._skipped) and not is_internal_event(event):
                        await self._calls.call(event, self._handlers.scoped(scope))
                    start = event.cursor or start
                    if self._stopping.is_set():
                        break
                else:
                    start = page.next
                if reader is not None:
                    self._handling = None, None
        if reader is not None:
            with contextlib.suppress(StorageError):
                # limit=0 lends nothing and returns the rest of the batch, so the next process gets it at once.
                await self._storage.events(start, limit=0, reader=reader)

    async def _end_at(self, instant: float) -> str:
        """Return a cursor that is not after the log's end at the given loop time."""
        loop, leeway = asyncio.get_running_loop(), LEEWAY
        while True:
            age = loop.time() - instant + leeway
            page = await self._storage.events(recorded_within(round(age * SECOND)), limit=0)
            late = loop.time() - instant - age
            if late <= 0:
                return page.next
            # The storage counts back from the time of its answer, and this answer took longer than the leeway.
            leeway += 2 * late

    async def _keep_loan(self) -> None:
        """Renew the loan of a batch while its handlers run, and store how far they are."""
        wait = RENEWED
        while True:
            await asyncio.sleep(wait)
            reader, cursor = self._handling
            if reader is not None:
                with contextlib.suppress(StorageError):
                    await self._storage.events(cursor, limit=1, reader=reader)


def begun_before(cursor: str, page: EventPage) -> list[int]:
    """Return the indexes of the partitions where a page begins before the place from which it was read.

    A storage answers so if the place is beyond the end of the log: the log is not the one that the place belongs to.
    """
    if not page.events:
        return []
    first = page.events[0]
    begin = first.oldest if isinstance(first, EventsTrimmed) else first.cursor or cursor
    pairs = zip(cursor.split("."), begin.split("."), strict=False)
    return [
        index
        for index, (read_from, begun) in enumerate(pairs)
        if read_from.isdecimal() and begun.isdecimal() and int(begun) < int(read_from)
    ]
