"""The floor on Redis: the least that keeps the same records as we do, in batches, by a client of forty lines.

One by one and with many callers it calls a script that does nothing: the bare round trip. In bulk it stores each job's
record, payload and place in the line. At work it settles what it has claimed and claims as many again in one call,
which writes a job's record, its run, its lease, its event and its place among the completed; the handlers are awaited
one after another, with no task, no timer and no fence.
"""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import hiredis

from benchmarks.peers.adapter import AsyncPeer, Cannot, Row, main
from benchmarks.peers.order import About

NOTHING = "return 1"

STORE = """
for place = 1, #ARGV, 2 do
  redis.call('HSET', 'floor:job:' .. ARGV[place], 'task', 'noop', 'queue', 'default', 'state', 'waiting', 'starts', 0,
    'enqueued', 1795346240720, 'run_at', 1795346240720, 'score', ARGV[place])
  redis.call('SET', 'floor:payload:' .. ARGV[place], ARGV[place + 1])
  redis.call('ZADD', 'floor:ready', ARGV[place], ARGV[place])
end
return #ARGV / 2
"""

EXCHANGE = """
for place = 2, #ARGV do
  local id = ARGV[place]
  redis.call('HSET', 'floor:job:' .. id, 'state', 'completed', 'finished', 1795346240720)
  redis.call('ZREM', 'floor:active', id)
  redis.call('ZADD', 'floor:completed', 1795346240720, id)
  redis.call('XADD', 'floor:events', 'MAXLEN', '~', 10000, '*', 'event', 'completed', 'id', id)
end
local popped, leases = redis.call('ZPOPMIN', 'floor:ready', ARGV[1]), {}
for place = 1, #popped, 2 do
  local id = popped[place]
  redis.call('HSET', 'floor:job:' .. id, 'state', 'active', 'fence', 1, 'starts', 1, 'owner', 'bare', 'lease', 20000)
  redis.call('ZADD', 'floor:active', 20000, id)
  redis.call('RPUSH', 'floor:runs:' .. id, 'bare')
  leases[#leases + 1] = redis.call('GET', 'floor:payload:' .. id)
end
return leases
"""


class Wire(asyncio.Protocol):
    """One connection: calls within a tick of the loop are written at once, answers come in the same order."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._unsent: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None

    @classmethod
    async def to(cls, url: str) -> "Wire":
        """Connect."""
        _, wire = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", urlsplit(url).port or 6379)
        return wire

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport for later writes."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Pass the answers to their callers."""
        self._reader.feed(data)
        while (answer := self._reader.gets()) is not False:
            future = self._waiting.popleft()
            if isinstance(answer, hiredis.ReplyError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def call(self, *words: bytes) -> Awaitable[Any]:
        """Send a command; await its answer."""
        parts = [b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)]
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(b"".join(parts))
        self._waiting.append(future := self._loop.create_future())
        return future

    def _send(self) -> None:
        assert self._transport is not None
        self._transport.write(b"".join(self._unsent))
        self._unsent.clear()


class Bare(AsyncPeer):
    """The scripts, called."""

    about = About(
        title="floor: bare scripts",
        role="floor",
        settings={
            "enqueue": "one by one and 50 callers: EVALSHA of a script that does nothing; bulk: stores each job",
            "process": "one call settles and claims as many as run at once, two connections in turns, handlers awaited",
        },
        rate=100_000,
        bulk=True,
        results=False,
        packages=("hiredis", "uvloop"),
    )

    async def open(self) -> None:
        """Connect and load the scripts."""
        if self.order.results or self.order.task == "hold" or self.order.do == "pace":
            raise Cannot("a floor is there for the bare enqueueing and processing only")
        self._wire = await Wire.to(self.order.url)
        load = [self._wire.call(b"SCRIPT", b"LOAD", script.encode()) for script in (NOTHING, STORE, EXCHANGE)]
        self._nothing, self._store, self._exchange = [await loaded for loaded in load]

    async def enqueue(self, task: str, *row: Any) -> object:
        """Make a round trip."""
        return await self._wire.call(b"EVALSHA", self._nothing, b"0", b"%d" % row[0], json.dumps(row).encode())

    async def enqueue_many(self, task: str, rows: Sequence[Row]) -> Sequence[object]:
        """Store jobs."""
        words = [word for row in rows for word in (b"%d" % row[0], json.dumps(row).encode())]
        await self._wire.call(b"EVALSHA", self._store, b"0", *words)
        return rows

    async def work(self) -> None:
        """Exchange and run for ever, on two connections, so that one's jobs run while the other waits."""
        wires = (self._wire, await Wire.to(self.order.url))
        await asyncio.gather(*(self._lane(wire, self.order.concurrency // len(wires)) for wire in wires))

    async def _lane(self, wire: Wire, room: int) -> None:
        done: list[bytes] = []
        while True:
            claimed = await wire.call(b"EVALSHA", self._exchange, b"0", b"%d" % room, *done)
            jobs: list[list[int]] = [json.loads(payload) for payload in claimed]
            await self.run(noop, jobs)
            done = [b"%d" % job[0] for job in jobs]
            if not jobs:
                await asyncio.sleep(0.01)

    async def run(self, handler: Callable[["Bare", int], Awaitable[None]], jobs: list[list[int]]) -> None:
        """Run the handlers of what was claimed."""
        for (number,) in jobs:
            await handler(self, number)


async def noop(peer: Bare, number: int) -> None:
    """Run a handler."""
    peer.tally.started(number)


if __name__ == "__main__":
    main(Bare)
