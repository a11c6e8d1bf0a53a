"""Recognises the database connections of users, and runs statements in the transactions that they have open.

    options(tx=session) ──► recognise ──► TxConnection: psycopg, asyncpg, SQLAlchemy, Django or sqlite3

No library is imported: a connection is recognised by the module of its class. A connection whose own methods do not
wait has coroutines that never suspend, so that code without an event loop runs them, too (`run_now`).
"""

import functools
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from tenure.core.check import shown
from tenure.core.job import NewJob
from tenure.errors import UsageError
from tenure.storage.protocol import EnqueueResult

T = TypeVar("T")

Dialect = Literal["postgresql", "sqlite"]

ACCEPTED = (
    "a psycopg or asyncpg connection, a SQLAlchemy Session, AsyncSession, Connection or AsyncConnection, Django's "
    "connection, or a sqlite3.Connection"
)

_PARAMETER = re.compile(r":([a-z_]+)")


class TxConnection(ABC):
    """A user's connection with an open transaction.

    `waits`: its methods wait for its event loop, so that only code on that loop can use it. Statements name their
    parameters `:name`, and write casts as CAST(... AS ...).
    """

    dialect: Dialect
    waits: ClassVar[bool] = False

    @abstractmethod
    async def rows(self, sql: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """Run a statement that returns rows, in the transaction.

        Raises:
            UsageError: the connection has no transaction, and begins none by itself.
            Exception: the library's own error, unchanged.
        """

    async def run(self, do: Callable[[Any], T]) -> T:
        """Call `do` with the DB-API connection, which belongs to this transaction; for SQLite.

        Raises:
            UsageError: the connection has no transaction, and begins none by itself.
        """
        raise NotImplementedError

    def after_commit(self, do: Callable[[], object]) -> None:  # noqa: B027  # most libraries have no such hook
        """Call `do` after the commit, if the library can tell."""


@runtime_checkable
class TransactionalStorage(Protocol):
    """A storage whose database may be that of a user's transaction."""

    async def prepare_tx(self) -> None:
        """Open the storage, and read what `enqueue_in` needs."""
        ...

    async def enqueue_in(self, tx: TxConnection, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store jobs in a user's transaction, after `prepare_tx`. It suspends only if the connection waits.

        `pending`: the commit stores the job, and only then is it decided whether the call was a duplicate.

        Raises:
            UsageError: the connection has no transaction, or is not connected to this storage's database.
            StorageError: this schema of the storage, or the state of the transaction, does not allow it.
            Exception: the library's own error, unchanged.
        """
        ...

    async def absorb(self) -> None:
        """Make jobs of the calls that transactions have committed, without waiting for a worker to do it."""
        ...


def recognise(tx: object) -> TxConnection:
    """Return the interface to a connection.

    Raises:
        UsageError: it is not one of those that are accepted, or its database is neither PostgreSQL nor SQLite.
    """
    for known in type(tx).__mro__:
        make = _KNOWN.get((known.__module__.partition(".")[0], known.__name__))
        if make is not None:
            return make(tx)
    raise UsageError(f"tx = {shown(tx)} is not a connection that Tenure knows; give {ACCEPTED}")


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, in the calling thread, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    coroutine.close()
    raise AssertionError("the coroutine of a connection that does not wait has suspended")


def sqlstate(error: BaseException | None) -> str | None:
    """Return the SQLSTATE of a library's error, or of the driver's error that it wraps; None if it has none."""
    while error is not None:
        for inner in (error, getattr(error, "orig", None)):
            state = getattr(inner, "sqlstate", None) or getattr(inner, "pgcode", None)
            if isinstance(state, str):
                return state
        error = error.__cause__
    return None


def _no_transaction(tx: object) -> UsageError:
    return UsageError(
        f"tx = {shown(tx)} commits each statement at once, so that no transaction would contain the job; begin a "
        "transaction on it first, or leave tx out"
    )


class _SQLite(TxConnection):
    """A connection of the standard library."""

    dialect: Dialect = "sqlite"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def rows(self, sql: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        return await self.run(lambda connection: _dbapi_rows(connection, sql, values))

    async def run(self, do: Callable[[Any], T]) -> T:
        _begin_sqlite(self._connection, self._connection)
        return do(self._connection)


class _Psycopg(TxConnection):
    dialect: Dialect = "postgresql"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def rows(self, sql: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        with self._cursor("Cursor") as cursor:
            cursor.execute(percent_style(sql), values, prepare=False)
            return list(cursor.fetchall())

    def _cursor(self, kind: str) -> Any:
        connection, psycopg = self._connection, sys.modules["psycopg"]
        if connection.autocommit and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            raise _no_transaction(connection)
        # Neither the user's kind of cursor nor the shape of its rows matters.
        return getattr(psycopg, kind)(connection, row_factory=sys.modules["psycopg.rows"].tuple_row)


class _AsyncPsycopg(_Psycopg):
    waits = True

    async def rows(self, sql: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        async with self._cursor("AsyncCursor") as cursor:
            await cursor.execute(percent_style(sql), values, prepare=False)
            return list(await cursor.fetchall())


class _Asyncpg(TxConnection):
    dialect: Dialect = "postgresql"
    waits = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def rows(self, sql: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        if not self._connection.is_in_transaction():
            raise _no_transaction(self._connection)
        names = list(dict.fromkeys(_PARAMETER.findall(sql)))
        numbered = _PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}", sql)
        return [tuple(row) for row in await self._connection.fetch(numbered, *(values[name] for name in names))]


class _SQLAlchemy(TxConnection):
    """A Session or a Connection, and the classes for asyncio, whose `run_sync` runs the same code."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx
        bind = tx.get_bind() if hasattr(tx, "get_bind") else tx
        self.dialect = _dialect(tx, bind.dialect.name)

    async def rows(self, sql: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        return self._rows(self._tx, sql, values)

    async def run(self, do: Callable[[Any], T]) -> T:
        return self._run(self._tx, do)

    def after_commit(self, do: Callable[[], object]) -> None:
        """Call `do` after the next commit of a Session. A Connection has no such hook."""
        session = getattr(self._tx, "sync_session", self._tx)
        if not hasattr(session, "get_bind"):
            return
        waiting: list[Callable[[], object]] | None = session.info.get("tenure")
        if waiting is None:
            waiting = session.info["tenure"] = []
            sys.modules["sqlalchemy.event"].listen(session, "after_commit", functools.partial(_call_all, waiting))
        # A rollback leaves it there. The number stays small, and it may be called in vain.
        waiting[:] = [do]

    def _rows(self, tx: Any, sql: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        connection = self._connection(tx)
        return [tuple(row) for row in connection.execute(sys.modules["sqlalchemy"].text(sql), dict(values))]

    def _run(self, tx: Any, do: Callable[[Any], T]) -> T:
        return do(self._connection(tx).connection.dbapi_connection)

    def _connection(self, tx: Any) -> Any:
        connection = tx.connection() if hasattr(tx, "get_bind") else tx
        driver = connection.connection.dbapi_connection
        if self.dialect == "sqlite":
            # SQLAlchemy itself must know of the transaction; it begins one of its own when it first executes.
            if connection.get_transaction() is None:
                connection.begin()
            _begin_sqlite(driver, self._tx)
        elif getattr(driver, "autocommit", False) is True:
            raise _no_transaction(self._tx)
        return connection


class _AsyncSQLAlchemy(_SQLAlchemy):
    waits = True

    async def rows(self, sql: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = await self._tx.run_sync(self._rows, sql, values)
        return found

    async def run(self, do: Callable[[Any], T]) -> T:
        def adapted(connection: Any) -> T:
            return do(_AdaptedConnection(connection))

        answer: T = await self._tx.run_sync(self._run, adapted)
        return answer


class _AdaptedConnection:
    """SQLAlchemy's adapter of an asyncio driver, with the methods of `sqlite3` as far as the engine uses them."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.driver_connection = connection.driver_connection

    def cursor(self) -> "_AdaptedCursor":
        return _AdaptedCursor(self._connection.cursor())

    def execute(self, sql: str) -> "_AdaptedCursor":
        return self.cursor().execute(sql)


class _AdaptedCursor:
    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def execute(self, sql: str, values: object = ()) -> "_AdaptedCursor":
        self._cursor.execute(sql, values)
        return self

    def executemany(self, sql: str, values: Iterable[object]) -> "_AdaptedCursor":
        self._cursor.executemany(sql, list(values))
        return self

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self._cursor.fetchall())

    def fetchone(self) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._cursor.fetchone()
        return row

    @property
    def rowcount(self) -> int:
        return int(self._cursor.rowcount)


class _Django(TxConnection):
    """`django.db.connection`, or one of `django.db.connections`."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.dialect = _dialect(connection, connection.vendor)

    async def rows(self, sql: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        self._require_transaction()
        with self._connection.cursor() as cursor:
            cursor.execute(percent_style(sql), dict(values))
            return list(cursor.fetchall())

    async def run(self, do: Callable[[Any], T]) -> T:
        self._require_transaction()
        driver = self._connection.connection
        _begin_sqlite(driver, self._connection)
        return do(driver)

    def after_commit(self, do: Callable[[], object]) -> None:
        # In manual transactions Django calls no hooks.
        if self._connection.in_atomic_block:
            self._connection.on_commit(do)

    def _require_transaction(self) -> None:
        self._connection.ensure_connection()
        if not self._connection.in_atomic_block and self._connection.get_autocommit():
            raise _no_transaction(self._connection)


def _scoped(kind: Callable[[Any], TxConnection]) -> Callable[[Any], TxConnection]:
    """Return the maker of a connection for a registry of sessions, of which the current one is meant."""
    return lambda registry: kind(registry())


_KNOWN: dict[tuple[str, str], Callable[[Any], TxConnection]] = {
    ("sqlite3", "Connection"): _SQLite,
    ("psycopg", "Connection"): _Psycopg,
    ("psycopg", "AsyncConnection"): _AsyncPsycopg,
    ("asyncpg", "Connection"): _Asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _Asyncpg,
    ("sqlalchemy", "Session"): _SQLAlchemy,
    ("sqlalchemy", "Connection"): _SQLAlchemy,
    ("sqlalchemy", "AsyncSession"): _AsyncSQLAlchemy,
    ("sqlalchemy", "AsyncConnection"): _AsyncSQLAlchemy,
    ("sqlalchemy", "scoped_session"): _scoped(_SQLAlchemy),
    ("sqlalchemy", "async_scoped_session"): _scoped(_AsyncSQLAlchemy),
    ("django", "ConnectionProxy"): _Django,
    ("django", "BaseDatabaseWrapper"): _Django,
}
"""The classes that are recognised, by the package and the name of each or of one of its bases."""


def _dialect(tx: object, name: str) -> Dialect:
    if name == "postgresql":
        return "postgresql"
    if name == "sqlite":
        return "sqlite"
    raise UsageError(f"tx = {shown(tx)} is connected to {name}; Tenure enqueues in PostgreSQL and SQLite transactions")


def percent_style(sql: str) -> str:
    """Return a statement with its parameters as psycopg writes them."""
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


def _dbapi_rows(connection: Any, sql: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
    cursor = connection.cursor()
    try:
        cursor.row_factory = None
        return list(cursor.execute(sql, values).fetchall())
    finally:
        cursor.close()


def _begin_sqlite(connection: Any, tx: object) -> None:
    """Make sure that a SQLite connection has a transaction. Python's module begins one late, at the first change."""
    driver = getattr(connection, "driver_connection", connection)
    if driver.in_transaction:
        return
    if driver.isolation_level is None or getattr(driver, "autocommit", None) is True:
        raise _no_transaction(tx)
    connection.execute("BEGIN IMMEDIATE")


def _call_all(waiting: list[Callable[[], object]], _: object) -> None:
    due, waiting[:] = list(waiting), []
    for do in due:
        do()
