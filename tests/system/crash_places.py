"""Where a process that is killed has its jobs, and what that proves of itself: a file of SQLite, a part of a Redis.

Whatever holds of both stands in crash_farm.py.
"""

import os
import re
import signal
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tenure.clock import Clock
from tenure.storage.protocol import Storage
from tenure.storage.redis.address import read
from tenure.storage.redis.storage import RedisStorage
from tenure.storage.sqlite.storage import SQLiteStorage
from tests.redis_books import troubles
from tests.servers import RedisServer, client_of, until

LANES = 4


class Place(Protocol):
    """What one process has to itself."""

    @property
    def url(self) -> str:
        """Its address."""
        ...

    def storage(self, clock: Clock) -> Storage:
        """Return a storage there, on a test's clock."""
        ...

    def prove_whole(self) -> None:
        """See that nothing there is half done."""

    def prove_empty(self) -> None:
        """See that nothing is held there by anybody, now that all is over."""

    def freeze(self) -> None:
        """Have the server answer nothing from now on."""

    def await_request(self) -> None:
        """Wait until a request lies before the server that it has not read."""

    def thaw(self) -> None:
        """Let the server go on."""


class Ground(Protocol):
    """Where places are to be had, and how a process there is killed within a call."""

    freezes: bool
    """Whether a server can be frozen under a process, which is killed while its request lies unread."""

    def place(self, name: str, lane: int) -> Place:
        """Return a place of this name, for a lane that no other shares its server with."""
        ...

    def close(self) -> None:
        """Leave nothing running."""


# ── SQLite ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class SQLiteGround:
    """A folder."""

    freezes = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def place(self, name: str, lane: int) -> Place:
        """See `Ground`."""
        return SQLitePlace(self._folder / f"{name}.db")

    def close(self) -> None:
        """See `Ground`."""


@dataclass(frozen=True)
class SQLitePlace:
    """A file."""

    path: Path

    @property
    def url(self) -> str:
        """See `Place`."""
        return f"sqlite:///{self.path}"

    def storage(self, clock: Clock) -> Storage:
        """See `Place`."""
        return SQLiteStorage(self.path, clock=clock)

    def prove_whole(self) -> None:
        """See `Place`."""
        assert self._one("PRAGMA integrity_check") == "ok"

    def prove_empty(self) -> None:
        """See `Place`."""
        for table in ("slot", "key"):
            assert self._one(f"SELECT count(*) FROM {table}") == 0, f"{table} is not empty"

    def freeze(self) -> None:
        """See `Place`."""
        raise NotImplementedError

    def await_request(self) -> None:
        """See `Place`."""
        raise NotImplementedError

    def thaw(self) -> None:
        """See `Place`."""

    def _one(self, statement: str) -> Any:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(statement).fetchone()[0]


# ── Redis ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class RedisGround:
    """A server for each lane, so that one can be frozen while the others go on."""

    freezes = True

    def __init__(self, folder: Path) -> None:
        self._servers: Sequence[RedisServer] = [
            RedisServer(folder / f"server-{lane}", appendonly=True, appendfsync="no") for lane in range(LANES)
        ]
        for server in self._servers:
            server.start()

    def place(self, name: str, lane: int) -> Place:
        """See `Ground`."""
        server = self._servers[lane]
        return RedisPlace(server.url, server.port, server.pid, name)

    def close(self) -> None:
        """See `Ground`."""
        for server in self._servers:
            server.kill()


@dataclass(frozen=True)
class RedisPlace:
    """A namespace."""

    server: str
    port: int
    pid: int
    name: str

    @property
    def url(self) -> str:
        """See `Place`."""
        return f"{self.server}?namespace={self.name}"

    def storage(self, clock: Clock) -> Storage:
        """See `Place`."""
        return RedisStorage(read(self.url), clock=clock)

    def prove_whole(self) -> None:
        """See `Place`."""
        (base,) = read(self.url).bases
        with client_of(self.server) as client:
            assert troubles(client, base) == []

    def prove_empty(self) -> None:
        """See `Place`: what is held follows from the records, and is held against them."""
        self.prove_whole()

    def freeze(self) -> None:
        """See `Place`."""
        os.kill(self.pid, signal.SIGSTOP)
        # The signal is sent, not yet heard.
        until(lambda: _state_of(self.pid) == "T", "the server to stand still")

    def await_request(self) -> None:
        """See `Place`."""
        until(lambda: _unread_at(self.port), "a request to the server that stands still")

    def thaw(self) -> None:
        """See `Place`."""
        os.kill(self.pid, signal.SIGCONT)


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _unread_at(port: int) -> bool:
    """Say whether bytes lie in a socket of this port of the loopback that its process has not read."""
    table = Path("/proc/net/tcp").read_text()
    return any(int(unread, 16) > 0 for unread in re.findall(rf": 0100007F:{port:04X} \S+ 01 \S+:(\S+)", table))
