"""A separate Redis or Valkey server that persists all it acknowledges, with a proxy for each member."""

import asyncio
import contextlib
import shutil
import signal
import subprocess
from asyncio.subprocess import Process
from pathlib import Path

from redis.exceptions import RedisError

from tenure.errors import StorageUnavailableError, UsageError
from tenure.storage.redis.address import RedisAddress, ServerAddress, read
from tenure.storage.redis.connection import ServerConnection
from tenure.storage.redis.resp import Reply, Word
from tenure.storage.urls import locate
from tenure_testing.chaos.networks import Networks
from tenure_testing.proxy import free_port

STARTING = 20.0
"""Seconds within which a server answers after its start, including the time to read its files."""

ANSWER = 15.0
"""Seconds for which the conductor waits for an answer: longer than any time for which it blocks the server."""

_LOOK = 0.02

_SETTINGS = (
    ("bind", "127.0.0.1"),
    ("daemonize", "no"),
    ("save", '""'),
    # With `appendonly`, all acknowledged data is on disk. So a kill must not lose anything that was acknowledged.
    ("appendfsync", "always"),
    ("maxmemory-policy", "noeviction"),
    ("enable-debug-command", "yes"),
    ("shutdown-timeout", "0"),
)


class ChaosRedis(Networks):
    """One server that persists everything, or nothing. In the second case the audit must detect the loss."""

    def __init__(self, folder: Path, *, brand: str = "redis", keeps: bool = True) -> None:
        super().__init__()
        self.lock: str | None = None
        self._brand = brand
        self._program = f"{brand}-server"
        self._keeps = keeps
        self.without: dict[str, str] = {}
        self._folder = folder / "server"
        self._process: Process | None = None

    async def open(self) -> None:
        """Start the server.

        Raises:
            UsageError: the PATH has no such server.
        """
        if shutil.which(self._program) is None:
            raise UsageError(f"the PATH has no {self._program}; install one (make servers)")
        self._folder.mkdir()
        self.port = free_port()
        kept = ("appendonly", "yes" if self._keeps else "no")
        settings = (*_SETTINGS, kept, ("port", str(self.port)), ("dir", str(self._folder)))
        (self._folder / "server.conf").write_text("".join(f"{name} {value}\n" for name, value in settings))
        await self.start()

    async def start(self) -> None:
        """Start the server on the same port, with the data that it had written.

        Raises:
            StorageUnavailableError: the server does not start.
        """
        with (self._folder / "server.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                self._program,
                str(self._folder / "server.conf"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        for _ in range(round(STARTING / _LOOK)):
            with contextlib.suppress(StorageUnavailableError):
                if await self.command("PING") == b"PONG":
                    return
            await asyncio.sleep(_LOOK)
        raise StorageUnavailableError(f"the server did not come up; see {self._folder / 'server.log'}")

    async def end(self, number: signal.Signals) -> None:
        """End the server by a signal, and wait until it has ended."""
        process = self._process
        if process is not None and process.returncode is None:
            process.send_signal(number)
            await process.wait()

    async def command(self, *words: Word) -> Reply:
        """Send a command over a separate connection, and return the answer.

        Raises:
            StorageUnavailableError: the server did not answer, or answered with an error.
        """
        try:
            async with asyncio.timeout(ANSWER):
                link = await ServerConnection.open(self._place, self._address)
                try:
                    (said,) = await link.ask([words], 1)
                finally:
                    await link.drop()
        except (RedisError, OSError, TimeoutError) as error:
            raise StorageUnavailableError(f"{words[0]!r} was not answered: {error!r}") from error
        if isinstance(said, RedisError):
            raise StorageUnavailableError(f"{words[0]!r} was answered with {said}")
        return said

    def url(self, member: str) -> str:
        """Return the address. Each member has its own proxy; the conductor connects to the server directly."""
        return f"{self._brand}://127.0.0.1:{self.port_for(member)}/0"

    async def flaws(self) -> list[str]:
        """Return the flaws that the storage finds in itself and in the server."""
        storage = locate(self.url(""))
        await storage.open()
        try:
            found = await storage.examine()
        finally:
            await storage.close()
        return [f"{item.subject}: {item.message}" for item in found if item.level == "error"]

    async def close(self) -> None:
        """End the server and the proxies. Idempotent."""
        await self.close_networks()
        await self.end(signal.SIGKILL)

    @property
    def _place(self) -> ServerAddress:
        return ServerAddress("127.0.0.1", self.port)

    @property
    def _address(self) -> RedisAddress:
        return read(self.url(""))
