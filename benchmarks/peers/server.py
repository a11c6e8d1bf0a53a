"""The servers of a run, on the loopback: a Redis that keeps nothing on disk, and a PostgreSQL that keeps everything."""

import itertools
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from redis import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as NotUp
from redis.retry import Retry

from benchmarks.peers.process import cpu_of
from tests.postgres_servers import PostgresServer

SETTINGS = {"bind": "127.0.0.1", "save": "", "appendonly": "no"}

POSTGRES_SETTINGS = {"max_connections": "500", "timezone": "UTC"}
"""Settings in addition to those of `make bench`: some peers open dozens of connections a process."""

SHOWN_SETTINGS = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "shared_buffers",
    "max_wal_size",
    "max_connections",
    "autovacuum",
)
"""Settings that results name, as the server itself shows them."""


class Server(Protocol):
    """The server in which a cell keeps its jobs, and the few queries to it."""

    url: str

    def cpu(self) -> float:
        """Return the seconds of processor time that it has used."""
        ...

    def empty(self) -> None:
        """Delete all jobs and disconnect all clients."""
        ...

    def used(self) -> int:
        """Return the bytes of its data."""
        ...

    def commands(self) -> int:
        """Return how many commands, or transactions, it has run."""
        ...


class RedisServer:
    """A started Redis."""

    def __init__(self, port: int, pid: int) -> None:
        self.url = f"redis://127.0.0.1:{port}/0"
        self._pid = pid
        self._client = Redis(port=port, retry=Retry(ConstantBackoff(0.05), 200, supported_errors=(NotUp,)))
        self.version = self._info("redis_version")

    def cpu(self) -> float:
        """Return the seconds of processor time that its process has used."""
        return cpu_of(self._pid)

    def empty(self) -> None:
        """Delete all jobs and all scripts, and wait for the commands of killed clients."""
        for kind in ("normal", "pubsub"):
            self._client.client_kill_filter(_type=kind, skipme=True)  # pyright: ignore[reportUnknownMemberType]
        self._client.flushall()  # pyright: ignore[reportUnknownMemberType]
        self._client.script_flush()

    def used(self) -> int:
        """Return how many bytes of memory its data and buffers take."""
        return int(self._info("used_memory"))

    def commands(self) -> int:
        """Return how many commands it has run, those within scripts included."""
        return int(self._info("total_commands_processed"))

    def _info(self, name: str) -> str:
        info = self._client.info()  # pyright: ignore[reportUnknownMemberType]
        return str(info[name])


@contextmanager
def a_server() -> Generator[RedisServer]:
    """Start one, keep it for the duration of the block, and remove it.

    Raises:
        FileNotFoundError: the PATH has neither redis-server nor valkey-server.
    """
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise FileNotFoundError("redis-server is not on the PATH: `make servers` installs one")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="tenure-peers-") as folder:
        words = [word for name, value in SETTINGS.items() for word in (f"--{name}", value)]
        process = subprocess.Popen(
            [program, "--port", str(port), "--dir", folder, *words], stdout=subprocess.DEVNULL, start_new_session=True
        )
        try:
            yield RedisServer(port, process.pid)
        finally:
            process.kill()
            process.wait()


class Postgres:
    """The one PostgreSQL of a run. Each cell has a database of its own there."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._numbers = itertools.count(1)
        self.settings = {name: str(server.execute(f"SHOW {name}")[0][0]) for name in SHOWN_SETTINGS}

    @contextmanager
    def database(self) -> "Generator[Database]":
        """Lend a database that does not exist before and after."""
        database = Database(self._server, f"peers_{next(self._numbers)}")
        try:
            yield database
        finally:
            database.drop()


class Database:
    """One database of a PostgreSQL. Processor time is that of the whole server."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.url = server.url_of(name)
        self._server = server
        self._name = name

    def cpu(self) -> float:
        """Return the seconds of processor time of the server's processes, ended ones included."""
        pid = self._server.pid
        # Its processes have no children. All are read every few milliseconds, so this must cost little.
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ended = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
        return cpu_of(pid) + ended + sum(cpu_of(int(child)) for child in children)

    def empty(self) -> None:
        """Drop the database, create it again, and run a checkpoint: what other cells wrote is then on disk."""
        self.drop()
        self._server.create_database(self._name)
        self._server.execute("CHECKPOINT")

    def used(self) -> int:
        """Return the size of the database: tables, indexes and catalogues."""
        [(size,)] = self._server.execute("SELECT pg_database_size(%s)", [self._name])
        return int(size)

    def commands(self) -> int:
        """Return how many transactions have ended in the database, as far as they are reported: once a second."""
        [(ended,)] = self._server.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s", [self._name]
        )
        return int(ended)

    def drop(self) -> None:
        """Drop the database, and end all connections to it."""
        self._server.execute(f'DROP DATABASE IF EXISTS "{self._name}" WITH (FORCE)')
