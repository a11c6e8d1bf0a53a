"""A TCP proxy between clients and a server that injects network faults on command."""

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from random import Random, SystemRandom
from threading import Thread
from typing import Any, Self

from tenure_testing.duplicate_scripts import DuplicatedScripts


def free_port() -> int:
    """Return a free port below the range that systems use for outgoing connections.

    An outgoing connection could otherwise take the port while its server is being restarted.
    """
    while True:
        port = SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@dataclass
class ProxyFaults:
    """The faults of the network. By default there are none."""

    latency: float = 0.0  # seconds added in each direction
    jitter: float = 0.0  # the longest random delay in seconds that is added to the latency
    rate: float = 0.0  # bytes per second in each direction; 0 for no limit
    cut_after: int = 0  # bytes of a reply that pass before its connection is reset
    cuts: int = 0  # how many replies are cut
    cut_from: int = 0  # a connection is cut once it has passed this many bytes of replies
    swallow: bool = False  # accept all data and pass none on; such a connection stays silent forever
    hold: bool = False  # pass nothing until the faults end, then everything: a partition that TCP survives
    refuse: bool = False  # reset connections and refuse new ones


async def _arrived(sink: socket.socket) -> None:
    """Wait until the other side's system has all data that was sent: a reset drops what it has not yet."""
    with suppress(OSError):
        while struct.unpack("i", fcntl.ioctl(sink, termios.TIOCOUTQ, bytes(4)))[0]:  # noqa: ASYNC110 - nothing notifies
            await asyncio.sleep(0.001)


class ProxiedConnection:
    """A connection of a client, and the connection to the server that belongs to it."""

    def __init__(self, client: socket.socket) -> None:
        self.ends = [client, socket.socket()]
        self.silent = False
        self.replied = 0
        """The bytes of replies that it has passed on."""
        self.doubling: DuplicatedScripts | None = None
        for end in self.ends:
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def port(self) -> int:
        """The local port of the connection to the server; 0 before it is open and after it is closed."""
        try:
            return int(self.ends[1].getsockname()[1])
        except OSError:
            return 0

    def reset(self) -> None:
        """Close both connections with RST and drop pending data, as a crash does. No task may still use them."""
        for end in self.ends:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()


class Proxy:
    """Listens on a loopback port and forwards to a server, with the faults that are set.

    It runs in its own thread, so that it also works while the loop of a test is busy or blocked.
    """

    def __init__(
        self, target: int, *, seed: int = 0, doubled: float = 0.0, second: Collection[bytes] = frozenset[bytes]()
    ) -> None:
        """Create a proxy for the port of a server. `doubled`, `second`: the `share` and `second` of `Doubling`."""
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.accepted = 0
        self.lines: dict[ProxiedConnection, asyncio.Task[None]] = {}
        self._target = target
        self._dice = Random(seed)
        self._faults = ProxyFaults()
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
        self.set_faults(refuse=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def set_faults(self, **changed: Any) -> None:
        """Set the faults of the network. All faults that are not given end."""
        self._do(self._change(ProxyFaults(**changed)))

    def clean(self) -> None:
        """End all faults. Connections that are silent forever stay silent."""
        self.set_faults()

    def reset(self) -> None:
        """Reset all connections. New ones work."""
        self._do(self._reset())

    def abandon(self) -> None:
        """Leave all connections half open: silent forever and never closed. New ones work."""
        self._do(self._hush())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _change(self, faults: ProxyFaults) -> None:
        self._faults = faults
        (self._flows.clear if faults.hold else self._flows.set)()
        if faults.refuse and self._door is not None:
            self._loop.remove_reader(self._door)
            self._door.close()
            self._door = None
            await self._reset()
        elif not faults.refuse and self._door is None:
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
        # An asyncio server would leave a connection open that it accepts while it is being closed.
        try:
            client, _ = door.accept()
        except OSError:
            return  # the client has given up meanwhile
        self.accepted += 1
        line = ProxiedConnection(client)
        if self._doubled:
            line.doubling = DuplicatedScripts(self._dice, self._doubled, second=self._second, count=self._count)
        task = self.lines[line] = self._loop.create_task(self._carry(line))
        # The task's own cleanup does not run if it is cancelled before its first step.
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
            async with asyncio.TaskGroup() as task_group:
                for source, sink, replies in ((client, server, False), (server, client, True)):
                    way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
                    task_group.create_task(self._take(source, way))
                    task_group.create_task(self._deliver(line, way, sink, replies))
        except* OSError:
            pass  # one side is closed, and the other gets a reset

    async def _take(self, source: socket.socket, way: asyncio.Queue[tuple[float, bytes]]) -> None:
        due, data = 0.0, b"?"
        while data:
            data = await self._loop.sock_recv(source, 65_536)
            longer = self._faults.latency + self._dice.random() * self._faults.jitter
            due = max(due, self._loop.time() + longer)  # keep the order despite the jitter
            way.put_nowait((due, data))

    async def _deliver(
        self, line: ProxiedConnection, way: asyncio.Queue[tuple[float, bytes]], sink: socket.socket, replies: bool
    ) -> None:
        data = b"?"
        while data or line.silent:
            due, data = await way.get()
            await asyncio.sleep(due - self._loop.time())
            await self._flows.wait()
            if self._faults.rate:
                await asyncio.sleep(len(data) / self._faults.rate)
            line.silent |= self._faults.swallow
            if line.silent:
                continue
            if replies and data and self._faults.cuts and line.replied >= self._faults.cut_from:
                self._faults.cuts -= 1
                await self._loop.sock_sendall(sink, data[: self._faults.cut_after])
                await _arrived(sink)
                raise ConnectionResetError
            if data:
                if line.doubling is not None:
                    data = line.doubling.replies(data) if replies else line.doubling.requests(data)
                await self._loop.sock_sendall(sink, data)
                line.replied += len(data) if replies else 0
                data = b"?"
            else:
                sink.shutdown(socket.SHUT_WR)
