"""PostgreSQL and PgBouncer for the tests: started as an unprivileged user, deleted when the tests end."""

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tenure_testing.postgres_programs import (
    DISTRIBUTIONS,
    give_to_server,
    postgres_programs,
    server_user,
    version_of,
)
from tenure_testing.proxy import free_port
from tests.servers import PATIENCE, guard, until

POSTGRES_URL = "TENURE_TEST_POSTGRES_URL"
OLDEST = 13
"""The oldest major version of PostgreSQL that Tenure supports."""

ROLE = DATABASE = "tenure"
PASSWORD = f"{secrets.token_hex(8)}@:/%"
"""The role's password; a URL has to quote its last characters."""

SETTINGS: Mapping[str, object] = {
    "listen_addresses": "127.0.0.1",
    "max_connections": 200,
    "max_wal_size": "256MB",
    "dynamic_shared_memory_type": "mmap",  # files in the data folder: they are deleted with it
    "log_line_prefix": "%m [%p] %a ",
    "timezone": "Pacific/Auckland",  # so that a test fails if a day is not the UTC day
}

UNSAFE: Mapping[str, object] = {"fsync": "off", "full_page_writes": "off"}
"""Settings that make a server fast. It keeps what it committed if its processes are killed, not if the power fails."""

ACCESS = """
local all         all              trust
local replication all              trust
host  all         all 127.0.0.1/32 scram-sha-256
"""
"""Allowed: over the socket every user that can enter its folder (its owner and root), over TCP with a password."""


# --- what this machine has -------------------------------------------------------------------------


def postgres_url_given() -> str | None:
    """Return the URL of a server that runs already, for tests that share one."""
    return os.environ.get(POSTGRES_URL) or None


@cache
def pgbouncer_program() -> Path | None:
    """Return the program of PgBouncer; Debian puts it where only root's PATH leads."""
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    return None if found is None else Path(found)


def missing_postgres(*, own: bool) -> str | None:
    """Return why PostgreSQL is missing here, or None; `own`: one that a test may kill."""
    if postgres_url_given() is not None and not own:
        return None
    remedy = "" if own else f" and {POSTGRES_URL} is not set"
    folder = postgres_programs()
    if folder is None:
        return f"no postgres on the PATH or in /{DISTRIBUTIONS[0]}{remedy}"
    version = version_of(folder / "postgres")
    if version < (OLDEST,):
        return f"{folder}/postgres is too old: {'.'.join(map(str, version))}, not {OLDEST}{remedy}"
    return None


def missing_pgbouncer() -> str | None:
    """Return why PgBouncer is missing here, or None."""
    return "no pgbouncer on the PATH or in /usr/sbin" if pgbouncer_program() is None else None


# --- processes of an unprivileged user -------------------------------------------------------------


@cache
def _base() -> Path:
    """Create the folder of all servers of this process. pytest's folders are closed to other users."""
    folder = Path(tempfile.mkdtemp(prefix="tenure-postgres-"))
    guard("hold", folder)
    give_to_server(folder)
    return folder


def _run(*words: str | Path, **environment: str) -> None:
    """Run a program of PostgreSQL to its end."""
    done = subprocess.run(
        words,
        cwd=_base(),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
        **server_user(),
    )
    assert done.returncode == 0, f"{words[0]} failed: {done.stdout}{done.stderr}"


class _Server:
    """A server program with its folder and its log. It ends with the `with` block and with this process."""

    def __init__(self, log: Path, end_with: signal.Signals) -> None:
        self.folder = give_to_server(Path(tempfile.mkdtemp(dir=_base(), prefix="")))
        self.log = log
        self.port = 0
        log.parent.mkdir(parents=True, exist_ok=True)
        self._end_with = end_with
        self._process: subprocess.Popen[Any] | None = None

    def __enter__(self) -> Self:
        if not self.running:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    @property
    def pid(self) -> int:
        """The server's first process."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """All its processes, the first one first."""
        lists = Path(f"/proc/{self.pid}/task").glob("*/children")
        return [self.pid, *(int(pid) for children in lists for pid in children.read_text().split())]

    @property
    def running(self) -> bool:
        """True from `start` until the test ends it."""
        return self._process is not None

    def start(self) -> None:
        """Start it, at the port it had before if any, and return when it answers."""
        assert self._process is None, "the server runs already"
        for _ in range(10):
            if self._start_at(self.port or free_port()):
                return
        raise RuntimeError(f"the server did not start:\n{self.log.read_text()}")

    def answers(self) -> bool:
        """Return True if it takes connections now."""
        return self._answers(self.port)

    def kill(self) -> None:
        """Kill all its processes at once with SIGKILL, as happens to a container. Files keep what was written."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGSTOP)  # it starts no process while the others are looked up
        pids = self.pids
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._wait()
        until(lambda: not any(_lives(pid) for pid in pids[1:]), "the end of the server's processes")

    def freeze(self) -> None:
        """Stop all its processes: connections stay open, and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)
        for pid in self.pids[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server continue."""
        for pid in reversed(self.pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def discard(self) -> None:
        """End it without waiting for its clients, and delete its files."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start_at(self, port: int) -> bool:
        """Start it and return True when it answers, False if it ends: the port was taken, or a setting is wrong."""
        words = self._configure(port)
        with self.log.open("ab") as log:
            # In a session of its own, Ctrl-C does not reach it.
            self._process = subprocess.Popen(
                words, cwd=self.folder, stdout=log, stderr=log, start_new_session=True, **server_user()
            )
        guard("hold", self.pid, self._end_with)
        until(lambda: self._exited or self._answers(port), f"the server to answer; its log: {self.log}")
        if self._exited:
            self._ended()
            return False
        self.port = port
        return True

    def _configure(self, port: int) -> Sequence[str | Path]:
        """Write the settings and return the command that starts the server."""
        raise NotImplementedError

    def _answers(self, port: int) -> bool:
        raise NotImplementedError

    def _signal(self, number: signal.Signals) -> None:
        """End it with a signal, even if it is frozen, and wait for the end."""
        if self._process is not None:
            self._process.send_signal(number)
            self.thaw()
            self._wait()

    def _wait(self) -> None:
        assert self._process is not None
        self._process.wait(PATIENCE)
        self._ended()

    @property
    def _exited(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _ended(self) -> None:
        guard("free", self.pid)
        self._process = None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with suppress(OSError):
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


# --- PostgreSQL ------------------------------------------------------------------------------------

StopMode = Literal["smart", "fast", "immediate"]
_STOP = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class PostgresServer(_Server):
    """A PostgreSQL of the test's own.

    Its role `tenure` owns the database `tenure` and is not a superuser. Texts are compared as English, as on most
    servers, and not by code point.

    log: the folder for its log.
    durable: whether it writes through to the disk. The default, False, is faster.
    settings: of postgresql.conf.
    """

    def __init__(self, log: Path, *, durable: bool = False, **settings: object) -> None:
        programs = postgres_programs()
        if programs is None:
            raise FileNotFoundError(missing_postgres(own=True))
        # SIGQUIT is its immediate shutdown: unlike SIGKILL, it frees shared memory.
        super().__init__(log / "postgres.log", signal.SIGQUIT)
        self.data = self.folder / "data"
        self._programs = programs
        self._settings = {**SETTINGS, **({} if durable else UNSAFE), **settings}
        self._primary: PostgresServer | None = None
        self._standbys: list[PostgresServer] = []

    @property
    def url(self) -> str:
        """The address of the database for the role, over TCP, without a schema."""
        return self.url_of(DATABASE)

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    def url_of(self, database: str) -> str:
        """Return the address of another database."""
        return f"postgresql://{ROLE}:{quote(PASSWORD, safe='')}@{self.address}/{database}"

    def start(self) -> None:
        """Start it, at the port it had before if any, and return when it answers."""
        if not self.data.exists():
            if self._primary is None:
                subprocess.run(["cp", "-a", _empty_cluster(self._programs), self.data], check=True)
            else:
                self._copy(self._primary)
        super().start()

    def stop(self, mode: StopMode = "fast") -> None:
        """Shut it down and wait for the end. `smart` waits until all clients have left, `immediate` is like a crash."""
        self._signal(_STOP[mode])

    def restart(self, mode: StopMode = "fast") -> None:
        """Shut it down and start it at the same port with the same data."""
        self.stop(mode)
        self.start()

    def discard(self) -> None:
        """End it and its standbys without waiting for clients, and delete their files."""
        for standby in self._standbys:
            standby.discard()
        if self.running:
            self.stop("immediate")
        elif (crashed := self.data / "postmaster.pid").exists() and len(crashed.read_text().split("\n")) > 6:
            # A killed server leaves a segment of System V shared memory. The machine has only some thousands of them.
            segment = crashed.read_text().split("\n")[6].split()
            subprocess.run(["ipcrm", "-m", segment[-1]], capture_output=True, check=False)
        super().discard()

    # --- what a test does as the superuser

    def execute(self, statement: str, parameters: Sequence[object] = (), *, database: str = DATABASE) -> list[Any]:
        """Run one statement as the superuser, in a connection of its own, and return its rows."""
        with self.connect(database) as connection:
            cursor = connection.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def connect(self, database: str = DATABASE) -> psycopg.Connection[Any]:
        """Return a connection of the superuser, over the socket, in autocommit."""
        return self._connect(self.port, database)

    def configure(self, **settings: object) -> None:
        """Change settings that need no restart, and return when they hold."""
        with self.connect() as connection:
            for name, value in settings.items():
                connection.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
            before = connection.execute(b"SELECT pg_conf_load_time()").fetchone()
            connection.execute(b"SELECT pg_reload_conf()")
        until(lambda: self.execute("SELECT pg_conf_load_time()") != [before], "the new settings")

    def create_database(self, name: str) -> str:
        """Create an empty database that belongs to the role, and return its address."""
        self.execute(f'CREATE DATABASE "{name}" OWNER {ROLE}')
        return self.url_of(name)

    def backends(self) -> list[int]:
        """Return the processes that serve clients, without the one that answers this question."""
        query = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        return [pid for (pid,) in self.execute(query)]

    def terminate_backends(self) -> int:
        """End all connections of clients, as an administrator does, and return how many there were."""
        before = self.backends()
        self.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [before])
        until(lambda: not {*before} & {*self.backends()}, "the end of the connections")
        return len(before)

    # --- standbys

    def standby(self, *, synchronous: bool = False, **settings: object) -> "PostgresServer":
        """Start a server that follows this one, and return it when it does. It ends with this one.

        synchronous: a commit here waits until the standby has written it.
        """
        log = self.log.parent / f"standby-{len(self._standbys) + 1}"
        standby = PostgresServer(log, durable=True, **{**self._settings, **settings})  # as durable as this one
        standby._primary = self
        self._standbys.append(standby)
        standby.start()
        name = standby.folder.name
        if synchronous:
            # Only now, so that the standby does not copy the setting: promoted, it would wait for itself.
            self.configure(synchronous_standby_names=f'"{name}"')
        wanted = "sync" if synchronous else "async"
        query = "SELECT 1 FROM pg_stat_replication WHERE application_name = %s AND (state, sync_state) = (%s, %s)"
        until(lambda: self.execute(query, [name, "streaming", wanted]), "the standby to stream")
        return standby

    def wait_for(self, primary: "PostgresServer") -> None:
        """Return when this standby shows all that the primary has committed by now."""
        [(position,)] = primary.execute("SELECT pg_current_wal_lsn()::text")
        query = "SELECT 1 WHERE pg_last_wal_replay_lsn() >= %s::pg_lsn"
        until(lambda: self.execute(query, [position]), "the standby to catch up")

    def promote(self) -> None:
        """Promote this standby, and return when it accepts writes. The old primary continues if it runs."""
        [(done,)] = self.execute("SELECT pg_promote(true, %s)", [int(PATIENCE)])
        assert done, "the standby was not promoted"

    def _copy(self, primary: "PostgresServer") -> None:
        name = self.folder.name
        source = f"host={primary.folder} port={primary.port} user=postgres application_name={name}"
        # The slot keeps what the standby has not read yet, however long it is frozen.
        options = ["-R", "-X", "stream", "-C", "-S", f"slot_{name}", "-c", "fast", "-N"]
        _run(self._programs / "pg_basebackup", "-D", self.data, "-d", source, *options)

    def _configure(self, port: int) -> Sequence[str | Path]:
        settings = {**self._settings, "port": port, "unix_socket_directories": self.folder}
        lines = (f"{name} = '{value}'\n" for name, value in settings.items())
        (self.data / "postgresql.conf").write_text("".join(lines))
        return [self._programs / "postgres", "-D", self.data]

    def _connect(self, port: int, database: str) -> psycopg.Connection[Any]:
        return psycopg.connect(
            host=str(self.folder), port=port, user="postgres", dbname=database, autocommit=True, connect_timeout=10
        )

    def _answers(self, port: int) -> bool:
        try:
            self._connect(port, DATABASE).close()
        except psycopg.OperationalError:
            return False
        return True


@cache
def _empty_cluster(programs: Path) -> Path:
    """Make a data folder to copy for each server: a copy takes a tenth of the time of another initdb."""
    data = _base() / "empty"
    order = ["--locale-provider=icu", "--icu-locale=en-US"] if version_of(programs / "postgres") >= (15,) else []
    _run(programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", *order, "-N")
    (data / "pg_hba.conf").write_text(ACCESS)
    statements = f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'\nCREATE DATABASE {DATABASE} OWNER {ROLE}\n"
    done = subprocess.run(
        [programs / "postgres", "--single", "-j", "-F", "-D", data, "postgres"],
        input=statements.replace("\n", ";\n\n"),
        cwd=_base(),
        capture_output=True,
        text=True,
        check=False,
        **server_user(),
    )
    assert done.returncode == 0, done.stderr
    assert "ERROR" not in done.stderr, done.stderr
    return data


class Schemas:
    """A database that many tests share: each has schemas of its own there and leaves none behind."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._claimed: list[str] = []

    def claim(self, url: str | None = None) -> str:
        """Return the address of a schema that does not exist yet; `url`: another way to this database."""
        url = url or self.url
        schema = f"test_{secrets.token_hex(6)}"
        self._claimed.append(schema)
        return f"{url}{'&' if urlsplit(url).query else '?'}schema={schema}"

    def clear(self) -> None:
        """Drop the schemas that were claimed. Other schemas of the database stay, because it may be in use."""
        claimed, self._claimed = self._claimed, []
        if not claimed:
            return
        with psycopg.connect(self.url, autocommit=True) as connection:
            # A connection that a test left open in a transaction is an error of that test.
            connection.execute("SET lock_timeout = '10s'")
            connection.execute("SET client_min_messages = warning")
            # The server finishes the statement of a worker that a test has killed, and would deadlock with the drop.
            until = time.monotonic() + 10
            while connection.execute(_USED, [claimed]).fetchone() is not None and time.monotonic() < until:
                time.sleep(0.01)
            for schema in claimed:
                connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'.encode())


_USED = """
SELECT 1 FROM pg_locks
JOIN pg_class ON pg_class.oid = pg_locks.relation
JOIN pg_namespace ON pg_namespace.oid = relnamespace
JOIN pg_database ON pg_database.oid = pg_locks.database
WHERE nspname = ANY(%s) AND datname = current_database() AND pid <> pg_backend_pid()
LIMIT 1
"""


class SharedSchema:
    """One schema for many tests, one after another: emptying it takes a tenth of the time of making another."""

    def __init__(self, url: str) -> None:
        """Connect to a database in which a storage has made the schema of this address."""
        self.url = url
        self._connection = psycopg.connect(url.partition("?schema=")[0], autocommit=True)
        self._connection.execute(f"SET search_path = {url.partition('?schema=')[2]}".encode())
        tables = self._connection.execute(
            "SELECT relname, relispartition FROM pg_class"
            " WHERE relnamespace = current_schema::regnamespace AND relkind IN ('r', 'p')"
        ).fetchall()
        kept = ("meta", "leader")
        first = [(name, self._connection.execute(f'SELECT * FROM "{name}"').fetchall()) for name in kept]
        sequences = self._connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = current_schema::regnamespace AND relkind = 'S'"
        ).fetchall()
        self._script = "; ".join(
            [
                *(f'DELETE FROM "{name}"' for name, is_part in tables if not is_part),
                *(f"SELECT setval('{name}', 1, FALSE)" for (name,) in sequences),
                *(_insert(name, row) for name, rows in first for row in rows),
            ]
        )

    def empty(self) -> None:
        """Delete all rows but those of a new schema."""
        self._connection.execute(self._script.encode())

    def close(self) -> None:
        """Close its connection."""
        self._connection.close()


def _insert(table: str, row: Sequence[Any]) -> str:
    return f"INSERT INTO {table} VALUES ({', '.join('NULL' if value is None else repr(value) for value in row)})"


# --- PgBouncer -------------------------------------------------------------------------------------


class PgBouncer(_Server):
    """A PgBouncer before a PostgreSQL, in transaction mode.

    log: the folder for its log.
    target: the address of the database, with host, port, user and password.
    settings: of the section [pgbouncer], for example default_pool_size.
    """

    def __init__(self, log: Path, target: str, **settings: object) -> None:
        program = pgbouncer_program()
        if program is None:
            raise FileNotFoundError(missing_pgbouncer())
        super().__init__(log / "pgbouncer.log", signal.SIGKILL)
        self._program = program
        self._target = conninfo_to_dict(target)
        self._settings = {"pool_mode": "transaction", "max_client_conn": 1000, **settings}

    @property
    def url(self) -> str:
        """The address of the database through PgBouncer, without a schema."""
        return self._url(self.port, str(self._target["dbname"]))

    def stop(self) -> None:
        """Shut it down: it lets transactions end, and then ends all connections."""
        self._signal(signal.SIGINT)

    def restart(self) -> None:
        """Shut it down and start it at the same port."""
        self.stop()
        self.start()

    def command(self, words: str) -> list[Any]:
        """Send a command to its console, such as `PAUSE` or `SHOW POOLS`, and return the rows."""
        return self._command(self.port, words)

    def _command(self, port: int, words: str) -> list[Any]:
        # Its console knows only simple queries, which is what libpq's lowest call sends.
        with psycopg.connect(self._url(port, "pgbouncer"), autocommit=True, connect_timeout=10) as connection:
            result = connection.pgconn.exec_(words.encode())
            error = result.error_message
            if error:
                raise psycopg.OperationalError(error.decode())
            columns = range(result.nfields)
            texts = [[result.get_value(row, column) for column in columns] for row in range(result.ntuples)]
            return [tuple(None if text is None else text.decode() for text in row) for row in texts]

    def _url(self, port: int, database: str) -> str:
        user, password = (quote(str(self._target.get(name, "")), safe="") for name in ("user", "password"))
        return f"postgresql://{user}:{password}@127.0.0.1:{port}/{database}"

    def _configure(self, port: int) -> Sequence[str | Path]:
        user, password = (str(self._target.get(name, "")) for name in ("user", "password"))
        settings = {
            **self._settings,
            "listen_addr": "127.0.0.1",
            "listen_port": port,
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": self.folder / "users.txt",
            "admin_users": user,
        }
        users = f'"{_doubled(user)}" "{_doubled(password)}"\n'
        lines = [
            "[databases]",
            f"* = host={self._target.get('host', '127.0.0.1')} port={self._target.get('port', 5432)}",
            "[pgbouncer]",
            *(f"{name} = {value}" for name, value in settings.items()),
        ]
        (self.folder / "users.txt").write_text(users)
        (self.folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
        return [self._program, self.folder / "pgbouncer.ini"]

    def _answers(self, port: int) -> bool:
        try:
            self._command(port, "SHOW VERSION")
        except psycopg.OperationalError:
            return False
        return True


def _doubled(text: str) -> str:
    return text.replace('"', '""')
