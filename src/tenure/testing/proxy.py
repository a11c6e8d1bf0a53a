"""A network between clients and a server that goes wrong on command."""

import asyncio
import socket
import struct
from collections.abc import Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from random import Random, SystemRandom
from threading import Thread
from typing import Any, Self

from tenure.testing.doubling import Doubling


def free_port() -> int:
    """Return a port that nothing listens on, below those that systems give to outgoing connections.

    Else one of these could sit on it while its server is being restarted.
    """
    while True:
        port = SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@dataclass
class ProxyFaults:
    """What the network does now; by itself, nothing bad."""

    latency: float = 0.0  # so many seconds longer, each way,
    jitter: float = 0.0  # and by chance up to so many more
    rate: float = 0.0  # so many bytes a second pass each way, if it is not 0
    cut_after: int = 0  # so many bytes of a reply pass before its connection is reset,
    cuts: int = 0  # this often
    swallow: bool = False  # all is accepted, nothing passed on; who was silenced so is silent for ever
    hold: bool = False  # nothing passes until the weather clears, and then all: a partition that TCP outlasts
    refuse: bool = False  # connections are reset, and new ones refused


class ProxiedConnection:
    """A connection of a client, and the one that is made to the server for it."""

    def __init__(self, client: socket.socket) -> None:
        self.ends = [client, socket.socket()]
        self.silent = False
        self.doubling: Doubling | None = None
        for end in self.ends:
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def port(self) -> int:
        """The port from which the server is spoken to; 0 before that, and afterwards."""
        try:
            return int(self.ends[1].getsockname()[1])
        except OSError:
            return 0

    def reset(self) -> None:
        """Close it as a crash does: with RST, and what is under way is gone. For when nobody reads or writes there."""
        for end in self.ends:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()


class Proxy:
    """Stands before a port of the loopback and passes on what comes, through whatever weather it is given.

    It works in a thread of its own: a test whose loop is busy, or blocked, has its network all the same.
    """

    def __init__(
        self, target: int, *, seed: int = 0, doubled: float = 0.0, second: Collection[bytes] = frozenset[bytes]()
    ) -> None:
        """Take the port of a server; `doubled` and `second`: as `Doubling` has them, before a Redis."""
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.accepted = 0
        self.lines: dict[ProxiedConnection, asyncio.Task[None]] = {}
        self._target = target
        self._dice = Random(seed)
        self._weather = ProxyFaults()
        self._door: socket.socket | None = None
        self._doubled = doubled
        self._second = second
        self.scripts_doubled = 0

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._thread = Thread(target=self._loop.run_forever, name="proxy")
        self._thread.start()
        self.clean()
        return self

    def __exit__(self, *_: object) -> None:
        self.weather(refuse=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def weather(self, **changed: Any) -> None:
        """Change the weather: to what is said here, and to nothing bad else."""
        self._do(self._change(ProxyFaults(**changed)))

    def clean(self) -> None:
        """Let all pass again; what is silent for ever stays so."""
        self.weather()

    def reset(self) -> None:
        """Reset all connections; new ones work."""
        self._do(self._reset())

    def abandon(self) -> None:
        """Leave all connections half open: silent for ever, and never closed; new ones work."""
        self._do(self._hush())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _change(self, weather: ProxyFaults) -> None:
        self._weather = weather
        (self._flows.clear if weather.hold else self._flows.set)()
        if weather.refuse and self._door is not None:
            self._loop.remove_reader(self._door)
            self._door.close()
            self._door = None
            await self._reset()
        elif not weather.refuse and self._door is None:
            self._door = socket.create_server(("127.0.0.1", self.port), backlog=100)
            self._door.setblocking(False)
            self._loop.add_reader(self._door, self._accept, self._door)

    async def _reset(self) -> None:
        ended = list(self.lines.values())
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)

    async def _hush(self) -> None:
        for line in self.lines:
            line.silent = True

    def _accept(self, door: socket.socket) -> None:
        # Not asyncio's server, which leaves open whoever it lets in while it is being closed.
        try:
            client, _ = door.accept()
        except OSError:
            return  # it has thought better of it
        self.accepted += 1
        line = ProxiedConnection(client)
        if self._doubled:
            line.doubling = Doubling(self._dice, self._doubled, second=self._second, count=self._count)
        task = self.lines[line] = self._loop.create_task(self._carry(line))
        # A task that is cancelled before its first step ends nothing by itself.
        task.add_done_callback(lambda _: self._over(line))

    def _count(self) -> None:
        self.scripts_doubled += 1

    def _over(self, line: ProxiedConnection) -> None:
        line.reset()
        del self.lines[line]

    async def _carry(self, line: ProxiedConnection) -> None:
        client, server = line.ends
        try:
            await self._loop.sock_connect(server, ("127.0.0.1", self._target))
            async with asyncio.TaskGroup() as crew:
                for source, sink, replies in ((client, server, False), (server, client, True)):
                    way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
                    crew.create_task(self._take(source, way))
                    crew.create_task(self._deliver(line, way, sink, replies))
        except* OSError:
            pass  # one side is gone, and the other learns it by a reset

    async def _take(self, source: socket.socket, way: asyncio.Queue[tuple[float, bytes]]) -> None:
        due, data = 0.0, b"?"
        while data:
            data = await self._loop.sock_recv(source, 65_536)
            longer = self._weather.latency + self._dice.random() * self._weather.jitter
            due = max(due, self._loop.time() + longer)  # in order, whatever the jitter
            way.put_nowait((due, data))

    async def _deliver(
        self, line: ProxiedConnection, way: asyncio.Queue[tuple[float, bytes]], sink: socket.socket, replies: bool
    ) -> None:
        data = b"?"
        while data or line.silent:
            due, data = await way.get()
            await asyncio.sleep(due - self._loop.time())
            await self._flows.wait()
            if self._weather.rate:
                await asyncio.sleep(len(data) / self._weather.rate)
            line.silent |= self._weather.swallow
            if line.silent:
                continue
            if replies and data and self._weather.cuts:
                self._weather.cuts -= 1
                await self._loop.sock_sendall(sink, data[: self._weather.cut_after])
                raise ConnectionResetError
            if data:
                if line.doubling is not None:
                    data = line.doubling.replies(data) if replies else line.doubling.requests(data)
                await self._loop.sock_sendall(sink, data)
                data = b"?"
            else:
                sink.shutdown(socket.SHUT_WR)
