"""The connection of a process to the database of an outbox. Transactions run in a thread, one at a time."""

import asyncio
import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from tenure.core.check import shown
from tenure.errors import UsageError
from tenure.storage import forking
from tenure.storage.connections import Dialect, percent_style
from tenure.storage.postgres import address as postgres
from tenure.storage.script_files import statements
from tenure.storage.secrets import shown_of
from tenure.threads import DaemonExecutor

if TYPE_CHECKING:
    import sqlite3

    from tenure.storage.postgres.connection import Session

T = TypeVar("T")

Rows = list[tuple[Any, ...]]
Run = Callable[[str, Mapping[str, object]], Rows]
"""Runs a named statement in a transaction."""

NONE: Mapping[str, object] = {}

SOUND_SQLITE = (3, 51, 3)
"""The first SQLite without the WAL-reset bug: a checkpoint may damage a file while another process commits."""

BUSY = 10.0
"""Seconds for which a transaction waits for the lock of a SQLite file."""

KNOWN = 'use "postgresql://host/database" (the table is in the schema public, or in ?schema=...) or "sqlite:///app.db"'

_ABANDONED: list[object] = []
"""Connections that belong to the parent of a forked process: closing them here would harm the parent."""

_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)


class OutboxDatabase(ABC):
    """The database of an outbox. `url`: without passwords. `address`: with them, for another process."""

    dialect: Dialect
    url: str
    address: str
    statements: Mapping[str, str]

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executor = DaemonExecutor("tenure-outbox")
        forking.register(self)

    async def transaction(self, do: Callable[[Run], T], *, writes: bool = True) -> T:
        """Call `do` in a thread, with a function that runs statements in one transaction.

        Raises:
            StorageError: the database cannot be reached, or refuses a statement.
        """

        def locked() -> T:
            with self._lock:
                return self._transaction(do, writes=writes)

        return await asyncio.get_running_loop().run_in_executor(self._executor, locked)

    async def close(self) -> None:
        """Close the connection; the next transaction opens another one."""

        def locked() -> None:
            with self._lock:
                self._close()

        await asyncio.get_running_loop().run_in_executor(self._executor, locked)

    @abstractmethod
    def table_name(self) -> str:
        """Return the name of the table, as the statement `exists` needs it."""

    @abstractmethod
    def create(self, run: Run) -> None:
        """Create what is missing of the table, in a transaction."""

    @abstractmethod
    def _transaction(self, do: Callable[[Run], T], *, writes: bool) -> T: ...

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def _forget(self) -> None: ...

    def before_fork(self) -> None:
        """Wait for the transaction that runs in the thread."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Leave the connection to the parent."""
        self._forget()
        self._lock = threading.Lock()
        self._executor = DaemonExecutor("tenure-outbox")


class PostgresOutbox(OutboxDatabase):
    """An outbox in a PostgreSQL database."""

    dialect: Dialect = "postgresql"

    def __init__(self, address: postgres.PostgresAddress) -> None:
        super().__init__()
        given = dict(parse_qsl(urlsplit(address.url).query))
        self.url, self.schema = address.shown, given.get("schema", "public")
        self._address, self.address = address, address.url
        self.statements = {
            name: text.replace("tenure.", f'"{self.schema}".').replace("tenure_outbox_schema", f'"{self.schema}"')
            for name, text in _statements("postgresql.sql").items()
        }
        self._session: Session | None = None

    def table_name(self) -> str:
        """See `OutboxDatabase`."""
        return f'"{self.schema}".tenure_outbox'

    def create(self, run: Run) -> None:
        """See `OutboxDatabase`."""
        run("lock_tables", NONE)
        [[exists]] = run("schema_exists", {"schema": f'"{self.schema}"'})
        if not exists:
            run("create_schema", NONE)
        run("tables", NONE)

    def _transaction(self, do: Callable[[Run], T], *, writes: bool) -> T:
        from tenure.storage.postgres.connection import Session
        from tenure.storage.postgres.errors import translate_error

        if self._session is None:
            self._session = Session(self._address, self._address.server, check=lambda connection: None)
        session = self._session
        try:
            connection = session.use()

            def run(name: str, values: Mapping[str, object]) -> Rows:
                text = self.statements[name]
                cursor = connection.execute((percent_style(text) if values else text).encode(), values or None)
                return list(cursor.fetchall()) if cursor.description is not None else []

            with connection.transaction():
                run("begin", NONE)
                return do(run)
        except BaseException as error:
            session.roll_back()
            if (translated := translate_error(error, self.url)) is error:
                raise
            raise translated from error

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _forget(self) -> None:
        if self._session is not None:
            self._session.forget()


class SQLiteOutbox(OutboxDatabase):
    """An outbox in a SQLite file."""

    dialect: Dialect = "sqlite"

    def __init__(self, url: str, path: str) -> None:
        super().__init__()
        self.url, self.path = url, os.path.realpath(path)
        self.address = f"sqlite:///{self.path}"
        found = _statements("sqlite.sql")
        self._tables = found["tables"].split(";\n")
        # `executescript` would end the transaction.
        self.statements = {**found, **{f"tables {number}": text for number, text in enumerate(self._tables)}}
        self._connection: sqlite3.Connection | None = None

    def table_name(self) -> str:
        """See `OutboxDatabase`."""
        return "tenure_outbox"

    def create(self, run: Run) -> None:
        """See `OutboxDatabase`."""
        for number in range(len(self._tables)):
            run(f"tables {number}", NONE)

    def _transaction(self, do: Callable[[Run], T], *, writes: bool) -> T:
        from tenure.storage.sqlite.errors import translate_error

        try:
            connection = self._opened()

            def run(name: str, values: Mapping[str, object]) -> Rows:
                return list(connection.execute(self.statements[name], values).fetchall())

            run("begin" if writes else "begin_read", NONE)
            try:
                result = do(run)
                run("commit", NONE)
            except BaseException:
                if connection.in_transaction:
                    run("rollback", NONE)
                raise
        except BaseException as error:
            if (translated := translate_error(error, self.path)) is error:
                raise
            raise translated from error
        return result

    def _opened(self) -> "sqlite3.Connection":
        import sqlite3

        if self._connection is None:
            self._connection = sqlite3.connect(self.path, timeout=BUSY, isolation_level=None, check_same_thread=False)
            if sqlite3.sqlite_version_info < SOUND_SQLITE:
                self._connection.execute(self.statements["no_checkpoint"])
        return self._connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _forget(self) -> None:
        _ABANDONED.append(self._connection)
        self._connection = None


def outbox_database(url: object) -> OutboxDatabase:
    """Return the database at a URL, not yet connected.

    Raises:
        UsageError: the URL is invalid, or names neither a PostgreSQL database nor a SQLite file.
    """
    if not isinstance(url, str):
        raise UsageError(f"outbox = {shown(url)} is not a URL; {KNOWN}")
    scheme = url.partition(":")[0]
    if scheme in postgres.SCHEMES:
        if find_spec("psycopg") is None:
            raise UsageError(f"{shown_of(url)} needs psycopg, which is not installed: pip install 'tenure[postgres]'")
        return PostgresOutbox(postgres.read(url))
    path = url.removeprefix("sqlite:///")
    if path == url or path in ("", ":memory:") or "?" in path:
        raise UsageError(f"outbox = {shown_of(url)!r} names no PostgreSQL database and no SQLite file; {KNOWN}")
    return SQLiteOutbox(url, path)


def _statements(file: str) -> Mapping[str, str]:
    return {
        name: _COMMENT.sub("", text).rstrip().rstrip(";")
        for name, text in statements("tenure.outbox", "sql", file).items()
    }
