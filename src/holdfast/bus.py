"""Events to their handlers: recorded ones from the storage's log, whichever process caused them, local ones at once."""

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any, cast, get_args

from msgspec import structs

from holdfast.core.events import Event, JobCompleted, JobEvent, OnRequest, event_name
from holdfast.errors import StorageError, UsageError
from holdfast.functions import is_async
from holdfast.storage.follow import pages
from holdfast.storage.protocol import EVENTS_END, EventPage, Reader, Storage

RENEWED = 1.0
"""Seconds between two renewals of a batch's loan while its handlers are at work: a fifth of the loan."""

THREADS = 4
"""How many plain event handlers may be at work at once."""

BATCH = 100


@dataclass(frozen=True)
class Hearing:
    """One registered handler: what it hears, of which task (None: of all), and in which processes."""

    kind: type[Event]
    handler: Callable[[Any], object]
    scope: str
    task: str | None

    def hears(self, event: Event) -> bool:
        """Say whether this event is for the handler."""
        return isinstance(event, self.kind) and (
            self.task is None or (isinstance(event, JobEvent) and event.task == self.task)
        )


class Hearers:
    """The handlers of one app or reaper."""

    def __init__(self) -> None:
        self._all: list[Hearing] = []

    def add(self, kind: type[Any], handler: Callable[[Any], object], *, scope: str, task: str | None) -> None:
        """Register a handler.

        Raises:
            UsageError: `kind` is no event class, or the scope is neither "once" nor "every".
        """
        if not issubclass(kind, Event):
            raise UsageError(f"{kind!r} is no event; use a class such as JobStalled")
        if scope not in ("once", "every"):
            raise UsageError(f'scope = {scope!r} is unknown; use "once" or "every"')
        self._all.append(Hearing(kind, handler, scope, task))

    def scoped(self, scope: str) -> list[Hearing]:
        """Return the handlers of one scope."""
        return [hearing for hearing in self._all if hearing.scope == scope]

    def everyone(self) -> list[Hearing]:
        """Return all handlers."""
        return list(self._all)


class Bus:
    """Reads the log for one app in one process and calls the handlers.

    Handlers of scope "once" share a named reader of the log: its batches are lent to one process at a time, so each
    event is handled once per app, and again only if that process dies, or stands still for five seconds, while it
    handles it. Handlers of scope "every" follow the log from this process's start.
    """

    def __init__(
        self,
        storage: Storage,
        hearers: Hearers,
        *,
        app: str,
        caller: str,
        rng: Random,
        decode: Callable[[bytes], Any],
        logger: logging.Logger,
    ) -> None:
        self._storage = storage
        self._hearers = hearers
        self._reader = Reader(f"app:{app}", caller)
        self._rng = rng
        self._decode = decode
        self._logger = logger
        self._local: asyncio.Queue[Event] = asyncio.Queue()
        self._since: str | None = None
        self._handling: tuple[Reader | None, str | None] = None, None
        self._stopping = asyncio.Event()
        self._stopped = asyncio.Event()
        self._pool = ThreadPoolExecutor(THREADS, "holdfast-events")

    async def subscribe(self) -> None:
        """Take a place in the log, so that whatever is recorded from now on is heard.

        Raises:
            StorageError: it cannot be read.
        """
        await self._warn_the_deaf()
        if self._hearers.scoped("once"):
            await self._storage.events(limit=0, reader=self._reader)
        if self._hearers.scoped("every"):
            self._since = (await self._storage.events(EVENTS_END, limit=0)).next

    async def _warn_the_deaf(self) -> None:
        """Say which handlers hear nothing, because no queue records what they ask for."""
        asked = {event_name(hearing.kind.__name__) for hearing in self._hearers.everyone()} & set(get_args(OnRequest))
        if not asked:
            return
        recorded = {name for queue in (await self._storage.survey()).queues for name in queue.settings.record or ()}
        for name in sorted(asked - recorded):
            self._logger.warning(
                "handlers of %s hear nothing: no queue records it; await app.queue(name).record(...) once", name
            )

    def tell(self, event: Event) -> None:
        """Hand a local event, which no log has, to its handlers, soon."""
        if self._hearers.everyone():
            self._local.put_nowait(event)

    async def run(self) -> None:
        """Follow the log until told to stop, or cancelled."""
        async with asyncio.TaskGroup() as crew:
            aides = [crew.create_task(self._hand_local())]
            followers: list[asyncio.Task[None]] = []
            if self._hearers.scoped("once"):
                aides.append(crew.create_task(self._keep_loan()))
                followers.append(crew.create_task(self._follow("once", self._reader)))
            if self._hearers.scoped("every"):
                followers.append(crew.create_task(self._follow("every", None)))
            await self._stopping.wait()
            if followers:
                await asyncio.wait(followers)
            for aide in aides:
                aide.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._stopped.set()

    async def stop(self) -> None:
        """Let the handlers at work end, say how far the log was handled, and hear no more."""
        self._stopping.set()
        await self._stopped.wait()

    async def _hand_local(self) -> None:
        while True:
            await self._hand(await self._local.get(), self._hearers.everyone())

    async def _follow(self, scope: str, reader: Reader | None) -> None:
        """Hand what the log holds to the handlers of a scope; `place` is the cursor behind what was handled."""
        hearings = self._hearers.scoped(scope)
        place = self._since if reader is None else None

        async def ask(cursor: str | None) -> EventPage:
            nonlocal place
            place = cursor or place
            return await self._storage.events(place, limit=BATCH, reader=reader)

        # Whatever keeps the log from being read, the handlers wait for what comes after it.
        turning = pages(
            self._storage,
            ask,
            place,
            rng=self._rng,
            logger=self._logger,
            spares=Exception,
            until=self._stopping,
        )
        async with contextlib.aclosing(turning):
            async for page in turning:
                for event in page.events:
                    if reader is not None:
                        self._handling = reader, place
                    await self._hand(event, hearings)
                    place = event.cursor or place
                    if self._stopping.is_set():
                        break
                else:
                    place = page.next
                if reader is not None:
                    self._handling = None, None
        if reader is not None:
            with contextlib.suppress(StorageError):
                # Lends nothing, so what is left of the batch goes to the next process at once.
                await self._storage.events(place, limit=0, reader=reader)

    async def _keep_loan(self) -> None:
        """Renew the loan of a batch while its handlers take their time, and say how far they have come."""
        wait = RENEWED
        while True:
            await asyncio.sleep(wait)
            reader, place = self._handling
            if reader is not None:
                with contextlib.suppress(StorageError):
                    await self._storage.events(place, limit=1, reader=reader)

    async def _hand(self, event: Event, hearings: list[Hearing]) -> None:
        for hearing in hearings:
            if not hearing.hears(event):
                continue
            try:
                await self._call(hearing.handler, self._readable(event))
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                self._logger.warning("the handler %r of %s cancelled itself", hearing.handler, type(event).__name__)
            except Exception:
                # A listener's failure is its own; the job went its way before anybody heard of it.
                self._logger.exception("the handler %r of %s failed", hearing.handler, type(event).__name__)

    async def _call(self, handler: Callable[[Any], object], event: Event) -> None:
        if is_async(handler):
            await cast("Callable[[Any], Awaitable[object]]", handler)(event)
            return
        # Not the loop's own executor: what hangs there must not keep anybody from hearing, or hearing from stopping.
        context = contextvars.copy_context()

        def call() -> None:
            context.run(handler, event)

        await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def _readable(self, event: Event) -> Event:
        if not isinstance(event, JobCompleted) or event.result is None:
            return event
        try:
            return structs.replace(event, result=self._decode(event.result))
        except Exception:
            return structs.replace(event, result=None)
