"""The storages of the crash tests, each with the checks that it passes after a kill: SQLite files, Redis namespaces.

The code for both kinds is in crash_runner.py.
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
from tests.redis_consistency import inconsistencies
from tests.servers import RedisServer, client_of, until

LANES = 4


class CrashStorage(Protocol):
    """The storage of one killed process, used by no other."""

    @property
    def url(self) -> str:
        """Its address."""
        ...

    def storage(self, clock: Clock) -> Storage:
        """Return a storage there, on a test's clock."""
        ...

    def prove_whole(self) -> None:
        """Check that nothing there is half done."""

    def prove_empty(self) -> None:
        """Check that no job holds anything there, now that all have ended."""

    def freeze(self) -> None:
        """Make the server answer nothing from now on."""

    def await_request(self) -> None:
        """Wait until the server has a request that it has not read."""

    def thaw(self) -> None:
        """Let the server continue."""


class CrashEnvironment(Protocol):
    """The storages of one kind, and how a process that uses one can be killed within a call."""

    freezes: bool
    """Whether a server can be frozen under a process, which is killed while its request lies unread."""

    def crash_storage(self, name: str, lane: int) -> CrashStorage:
        """Return a place of this name, for a lane that shares its server with no other."""
        ...

    def close(self) -> None:
        """Leave nothing running."""


# ── SQLite ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class SQLiteEnvironment:
    """A folder."""

    freezes = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def crash_storage(self, name: str, lane: int) -> CrashStorage:
        """See `CrashEnvironment`."""
        return SQLiteCrashStorage(self._folder / f"{name}.db")

    def close(self) -> None:
        """See `CrashEnvironment`."""


@dataclass(frozen=True)
class SQLiteCrashStorage:
    """A file."""

    path: Path

    @property
    def url(self) -> str:
        """See `CrashStorage`."""
        return f"sqlite:///{self.path}"

    def storage(self, clock: Clock) -> Storage:
        """See `CrashStorage`."""
        return SQLiteStorage(self.path, clock=clock)

    def prove_whole(self) -> None:
        """See `CrashStorage`."""
        assert self._one("PRAGMA integrity_check") == "ok"

    def prove_empty(self) -> None:
        """See `CrashStorage`."""
        for table in ("slot", "key"):
            assert self._one(f"SELECT count(*) FROM tenure_{table}") == 0, f"{table} is not empty"

    def freeze(self) -> None:
        """See `CrashStorage`."""
        raise NotImplementedError

    def await_request(self) -> None:
        """See `CrashStorage`."""
        raise NotImplementedError

    def thaw(self) -> None:
        """See `CrashStorage`."""

    def _one(self, statement: str) -> Any:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(statement).fetchone()[0]


# ── Redis ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class RedisEnvironment:
    """A server for each lane, so that one can be frozen while the others continue."""

    freezes = True

    def __init__(self, folder: Path) -> None:
        self._servers: Sequence[RedisServer] = [
            RedisServer(folder / f"server-{lane}", appendonly=True, appendfsync="no") for lane in range(LANES)
        ]
        for server in self._servers:
            server.start()

    def crash_storage(self, name: str, lane: int) -> CrashStorage:
        """See `CrashEnvironment`."""
        server = self._servers[lane]
        return RedisCrashStorage(server.url, server.port, server.pid, name)

    def close(self) -> None:
        """See `CrashEnvironment`."""
        for server in self._servers:
            server.kill()


@dataclass(frozen=True)
class RedisCrashStorage:
    """A namespace."""

    server: str
    port: int
    pid: int
    name: str

    @property
    def url(self) -> str:
        """See `CrashStorage`."""
        return f"{self.server}?namespace={self.name}"

    def storage(self, clock: Clock) -> Storage:
        """See `CrashStorage`."""
        return RedisStorage(read(self.url), clock=clock)

    def prove_whole(self) -> None:
        """See `CrashStorage`."""
        (base,) = read(self.url).bases
        with client_of(self.server) as client:
            assert inconsistencies(client, base) == []

    def prove_empty(self) -> None:
        """See `CrashStorage`: the holders follow from the records, and are compared with them."""
        self.prove_whole()

    def freeze(self) -> None:
        """See `CrashStorage`."""
        os.kill(self.pid, signal.SIGSTOP)
        # The signal is sent, but may not have arrived yet.
        until(lambda: _state_of(self.pid) == "T", "the server to stand still")

    def await_request(self) -> None:
        """See `CrashStorage`."""
        until(lambda: _unread_at(self.port), "a request to the server that stands still")

    def thaw(self) -> None:
        """See `CrashStorage`."""
        os.kill(self.pid, signal.SIGCONT)


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _unread_at(port: int) -> bool:
    """Return whether a socket of this loopback port holds bytes that its process has not read."""
    table = Path("/proc/net/tcp").read_text()
    return any(int(unread, 16) > 0 for unread in re.findall(rf": 0100007F:{port:04X} \S+ 01 \S+:(\S+)", table))
