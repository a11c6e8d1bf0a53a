"""A separate PostgreSQL server on a small disk, with a proxy for each member."""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from asyncio.subprocess import Process
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from tenure.errors import StorageUnavailableError, UsageError
from tenure.storage.postgres.address import read
from tenure.storage.script_files import statements
from tenure.storage.urls import locate
from tenure_testing.chaos.networks import Networks
from tenure_testing.chaos.storage import UNMOUNTED, mount, unmount
from tenure_testing.postgres_programs import give_to_server, postgres_programs, server_user, version_of
from tenure_testing.proxy import free_port

STARTING = 30.0
"""Seconds within which a server answers after its start, including its recovery."""

ANSWER = 15.0
"""Seconds for which the conductor waits for an answer: longer than any time for which it stops the server."""

CONNECTIONS = 100
"""The most connections of the server. The processes of a test use about sixty."""

ROLE = DATABASE = "tenure"

_LOOK = 0.02

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": CONNECTIONS,
    "shared_buffers": "32MB",
    # Little of the small disk is taken by the write-ahead log.
    "min_wal_size": "8MB",
    "max_wal_size": "32MB",
    "deadlock_timeout": "200ms",
    "dynamic_shared_memory_type": "mmap",
    "log_line_prefix": "%m [%p] %a ",
    "timezone": "Pacific/Auckland",
}

_FORGETFUL = {"synchronous_commit": "off", "wal_writer_delay": "10s"}
"""With these settings a commit is acknowledged before it is on disk."""

_INITDB = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N", "--wal-segsize=1")

_ACCESS = """
local all all              trust
host  all all 127.0.0.1/32 scram-sha-256
"""

_TRIGGERS = (("job", "fail_now"), ("event", "fail_now"), ("event", "fail_at_commit"))

_SQL = statements("tenure_testing.chaos", "sql", "postgres.sql")


class ChaosPostgres(Networks):
    """One server that has on disk what it acknowledges, or not. In the second case the audit must detect the loss."""

    def __init__(self, folder: Path, *, keeps: bool = True) -> None:
        super().__init__()
        self.lock: str | None = None
        self.without: dict[str, str] = {}
        self.log = folder / "server.log"
        self._keeps = keeps
        self._process: Process | None = None
        self._password = secrets.token_hex(8)
        self._mounted = False

    async def open(self) -> None:
        """Mount the disk, create a database on it, and start the server.

        Raises:
            UsageError: this machine has no PostgreSQL.
        """
        programs = postgres_programs()
        if programs is None:
            raise UsageError("this machine has no postgres; install one (make servers)")
        self._programs = programs
        # Other users may not enter the folder of the test, and the server runs as one of them.
        self._base = give_to_server(Path(tempfile.mkdtemp(prefix="tenure-chaos-postgres-")))
        self.disk = self._base / "disk"
        self.disk.mkdir()
        self._mounted = await mount(self.disk)
        if not self._mounted:
            self.without["full disk"] = UNMOUNTED
        give_to_server(self.disk)
        self._data = self.disk / "data"
        self.port = free_port()
        order = ["--locale-provider=icu", "--icu-locale=en-US"] if version_of(programs / "postgres") >= (15,) else []
        await self._run("initdb", "-D", str(self._data), *_INITDB, *order)
        settings = {
            **_SETTINGS,
            **({} if self._keeps else _FORGETFUL),
            "port": self.port,
            "unix_socket_directories": self._base,
        }
        (self._data / "postgresql.conf").write_text("".join(f"{key} = '{item}'\n" for key, item in settings.items()))
        (self._data / "pg_hba.conf").write_text(_ACCESS)
        await self.start()
        await self.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{self._password}'", database="postgres")
        await self.execute(f"CREATE DATABASE {DATABASE} OWNER {ROLE}", database="postgres")

    async def start(self) -> None:
        """Start the server on the same port, with the data that it had written.

        Raises:
            StorageUnavailableError: the server does not start.
        """
        for _ in range(round(STARTING / _LOOK)):
            # After an end for lack of space it may end once more.
            if self._process is None or self._process.returncode is not None:
                await self._spawn()
            with contextlib.suppress(StorageUnavailableError):
                await self.execute("SELECT 1", database="postgres")
                return
            await asyncio.sleep(_LOOK)
        raise StorageUnavailableError(f"the server did not come up; its log ends with: {self._last_line()}")

    async def end(self, number: signal.Signals) -> None:
        """End the server by a signal, and wait until it has ended. SIGKILL ends all its processes at once."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        pids: list[int] = []
        if number == signal.SIGKILL:
            # A stopped server starts no process while the others are looked up.
            _send(process.pid, signal.SIGSTOP)
            pids = self._pids()[1:]
        for pid in (process.pid, *pids):
            _send(pid, number)
        await process.wait()
        while any(os.path.exists(f"/proc/{pid}") for pid in pids):  # noqa: ASYNC110, ASYNC240 - nothing notifies
            await asyncio.sleep(_LOOK)

    def freeze(self) -> None:
        """Stop all processes of the server. Its connections stay open, and nothing is answered."""
        for pid in self._pids():
            _send(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server continue."""
        for pid in reversed(self._pids()):
            _send(pid, signal.SIGCONT)

    async def connect(self, role: str = "postgres", database: str = DATABASE) -> psycopg.AsyncConnection[Any]:
        """Return a new connection in autocommit, over the socket, which no fault of the network hits.

        Raises:
            StorageUnavailableError: the server did not accept it.
        """
        try:
            return await psycopg.AsyncConnection.connect(
                host=str(self._base),
                port=self.port,
                user=role,
                dbname=database,
                application_name="chaos",
                autocommit=True,
                connect_timeout=round(ANSWER),
            )
        except psycopg.Error as error:
            raise StorageUnavailableError(f"no connection: {error}") from error

    async def execute(
        self, statement: str, parameters: Sequence[object] = (), *, database: str = DATABASE
    ) -> list[tuple[Any, ...]]:
        """Run a statement as the superuser, over a separate connection, and return its rows.

        Raises:
            StorageUnavailableError: the server did not answer, or answered with an error.
        """
        connection = await self.connect(database=database)
        try:
            async with asyncio.timeout(ANSWER):
                cursor = await connection.execute(statement.encode(), parameters or None)
                return await cursor.fetchall() if cursor.description else []
        except (psycopg.Error, TimeoutError) as error:
            raise StorageUnavailableError(f"{statement!r} was not answered: {error!r}") from error
        finally:
            await connection.close()

    async def terminate(self) -> None:
        """End all connections of the processes of the test."""
        await self.execute(_SQL["terminate"])

    async def sabotage(self, *, on: bool) -> None:
        """Let transactions fail at random, or no longer."""
        if on and not await self.execute(_SQL["has_sabotage"]):
            await self.execute(_SQL["sabotage"].format(schema=self.schema))
        word = "ENABLE" if on else "DISABLE"
        for table, trigger in _TRIGGERS:
            await self.execute(f"ALTER TABLE {self.schema}.{table} {word} TRIGGER {trigger}")

    @property
    def schema(self) -> str:
        """The schema of the jobs."""
        return read(self.url("")).schema

    @property
    def gate(self) -> int:
        """The key of the lock that each writing transaction takes."""
        return read(self.url("")).gate

    def url(self, member: str) -> str:
        """Return the address. Each member has its own proxy; the conductor connects to the server directly."""
        return f"postgresql://{ROLE}:{self._password}@127.0.0.1:{self.port_for(member)}/{DATABASE}"

    async def flaws(self) -> list[str]:
        """Return the flaws that the storage finds in itself, and the server in its indexes."""
        storage = locate(self.url(""))
        await storage.open()
        try:
            found = await storage.examine()
        finally:
            await storage.close()
        wrong = [f"{item.subject}: {item.message}" for item in found if item.level == "error"]
        if await self.execute(_SQL["has_amcheck"]):
            await self.execute("CREATE EXTENSION IF NOT EXISTS amcheck SCHEMA public")
            try:
                await self.execute(_SQL["check_indexes"], [self.schema])
            except StorageUnavailableError as error:
                wrong.append(f"an index is damaged: {error}")
        return wrong

    async def close(self) -> None:
        """End the server and the proxies. Idempotent."""
        await self.close_networks()
        if self._process is not None and self._process.returncode is None:
            self.thaw()
            # Unlike SIGKILL, this removes its shared memory.
            await self.end(signal.SIGQUIT)
        if self._mounted:
            await unmount(self.disk)
            self._mounted = False
        if self.port:
            shutil.rmtree(self._base, ignore_errors=True)

    async def _spawn(self) -> None:
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                self._programs / "postgres",
                "-D",
                self._data,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._base,
                start_new_session=True,
                **server_user(),
            )

    async def _run(self, program: str, *words: str) -> None:
        with self.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                self._programs / program, *words, stdout=log, stderr=log, cwd=self._base, **server_user()
            )
        if await process.wait() != 0:
            raise StorageUnavailableError(f"{program} failed; its output ends with: {self._last_line()}")

    def _last_line(self) -> str:
        return self.log.read_text(errors="replace").strip().rpartition("\n")[2]

    def _pids(self) -> list[int]:
        process = self._process
        if process is None or process.returncode is not None:
            return []
        lists = Path(f"/proc/{process.pid}/task").glob("*/children")
        return [process.pid, *(int(pid) for children in lists for pid in children.read_text().split())]


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
