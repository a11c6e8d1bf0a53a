"""Where the event bus continues to read after the storage lost its log, or the end of it."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from random import Random

from tenure.core.events import WorkerStopping
from tenure.core.job import Owner, Ref
from tenure.errors import StorageUnavailableError
from tenure.events.bus import EventBus, Handlers
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import EventPage, EventReader, RenewRequest, Storage

OWNER = Owner("a" * 16, "a", "h", 1)


class LosingStorage(MemoryStorage):
    """A storage whose event log can be exchanged for another, and whose next reads can fail."""

    def __init__(self) -> None:
        super().__init__()
        self.log: MemoryStorage | None = None
        self.failing = 0

    async def events(
        self, cursor: str | None = None, *, limit: int = 100, reader: EventReader | None = None, ref: Ref | None = None
    ) -> EventPage:
        """See `Storage.events`."""
        if self.failing:
            self.failing -= 1
            raise StorageUnavailableError("a read fails")
        if self.log is not None:
            return await self.log.events(cursor, limit=limit, reader=reader, ref=ref)
        return await super().events(cursor, limit=limit, reader=reader, ref=ref)


async def record(storage: Storage, first: int, last: int) -> None:
    """Record events whose reasons are these numbers."""
    events = tuple(WorkerStopping(owner="o", reason=str(number)) for number in range(first, last + 1))
    await storage.renew(RenewRequest(OWNER, events=events))


def bus_of(storage: Storage, handlers: Handlers) -> EventBus:
    """Return a bus of one app for these handlers."""
    return EventBus(
        storage,
        handlers,
        reader="r",
        caller="c",
        rng=Random(1),
        decode=lambda body: body,
        logger=logging.getLogger("tenure"),
    )


@contextlib.asynccontextmanager
async def following(storage: Storage) -> AsyncGenerator[tuple[EventBus, asyncio.Queue[str]]]:
    """Run a bus with a handler of scope "every"; yield it with the reasons of the events that the handler got."""
    heard: asyncio.Queue[str] = asyncio.Queue()
    handlers = Handlers()

    async def handler(event: WorkerStopping) -> None:
        heard.put_nowait(event.reason)

    handlers.add(WorkerStopping, handler, scope="every", task=None)
    bus = bus_of(storage, handlers)
    await bus.subscribe()
    running = asyncio.create_task(bus.run())
    try:
        async with asyncio.timeout(20):
            yield bus, heard
    finally:
        await bus.stop()
        await running


async def take(heard: asyncio.Queue[str], count: int) -> list[str]:
    """Return the next reasons, in order."""
    return [await heard.get() for _ in range(count)]


async def until(heard: asyncio.Queue[str], last: str) -> list[str]:
    """Return the next reasons, in order, up to this one."""
    found = await take(heard, 1)
    while found[-1] != last:
        found += await take(heard, 1)
    return found


async def test_after_a_rewind_the_events_after_the_end_of_the_log_are_read() -> None:
    storage = LosingStorage()
    async with following(storage) as (bus, heard):
        await record(storage, 1, 7)
        await take(heard, 7)
        bus.set_back(0, 4, 0.0)
        await record(storage, 8, 8)

        assert (await until(heard, "8"))[-4:] == ["5", "6", "7", "8"]


async def test_events_of_a_log_that_regrew_before_the_alarm_are_read() -> None:
    storage = LosingStorage()
    async with following(storage) as (bus, heard):
        await record(storage, 1, 7)
        await take(heard, 7)
        storage.log = MemoryStorage()
        await record(storage.log, 1, 4)
        await record(storage.log, 18, 29)  # under the numbers 5 to 16, of which the bus has read 5 to 7 before
        await record(storage, 8, 8)  # wakes the bus
        assert await take(heard, 9) == [str(number) for number in range(21, 30)]
        bus.set_back(0, 16, 0.0)
        await record(storage, 9, 9)

        assert (await until(heard, "29"))[-12:] == [str(number) for number in range(18, 30)]


async def test_a_bus_that_stops_delivers_the_local_events_that_it_got() -> None:
    storage = LosingStorage()
    heard: list[str] = []
    handlers = Handlers()

    async def handler(event: WorkerStopping) -> None:
        await asyncio.sleep(0)
        heard.append(event.reason)

    handlers.add(WorkerStopping, handler, scope="every", task=None)
    bus = bus_of(storage, handlers)
    await bus.subscribe()
    running = asyncio.create_task(bus.run())
    for number in range(3):
        bus.publish(WorkerStopping(owner="o", reason=str(number)))
    async with asyncio.timeout(20):
        await bus.stop()
        await running

    assert heard == ["0", "1", "2"]


async def test_a_new_log_that_is_read_already_is_not_read_twice() -> None:
    storage = LosingStorage()
    async with following(storage) as (bus, heard):
        await record(storage, 1, 7)
        await take(heard, 7)
        storage.log = MemoryStorage()
        await record(storage.log, 11, 13)
        await record(storage, 8, 8)  # wakes the bus
        assert await take(heard, 3) == ["11", "12", "13"]
        bus.begin_again(0)
        await record(storage.log, 14, 14)
        await record(storage, 9, 9)

        assert await take(heard, 1) == ["14"]


async def test_a_new_log_longer_than_the_cursor_is_read_from_its_start() -> None:
    storage = LosingStorage()
    async with following(storage) as (bus, heard):
        await record(storage, 1, 2)
        await take(heard, 2)
        storage.log = MemoryStorage()
        await record(storage.log, 11, 14)
        bus.begin_again(0)
        await record(storage, 8, 8)

        assert await take(heard, 4) == ["11", "12", "13", "14"]


async def test_a_failed_read_does_not_lose_the_order_to_begin_again() -> None:
    storage = LosingStorage()
    async with following(storage) as (bus, heard):
        await record(storage, 1, 3)
        await take(heard, 3)
        storage.failing = 1
        bus.begin_again(0)
        await record(storage, 4, 4)

        assert await take(heard, 4) == ["1", "2", "3", "4"]
