"""The connections of handlers' transactions: our own, psycopg's, SQLAlchemy's sessions and Django's connection.

No library is imported for them: a session is recognised by the module of its class.
"""

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import Generator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from tenure.errors import StorageUnavailableError, UsageError
from tenure.storage.postgres.address import PostgresAddress
from tenure.storage.postgres.connection import Connection, adapt, parameters
from tenure.storage.postgres.statements import NAMED

CANCEL_TIMEOUT = 5.0
"""How many seconds the request to cancel a statement may take."""


class ConnectionCalls:
    """Makes the calls of a connection: those of an asynchronous one on its loop, while this thread waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        self._waiting: Future[Any] | None = None
        self._running: Any = None
        """The asynchronous connection whose session is used in a thread."""

    @property
    def asynchronous(self) -> bool:
        """True if the calls return coroutines."""
        return self._loop is not None

    def result(self, made: Any) -> Any:
        """Return what a call has returned, or what its coroutine returns.

        Raises:
            StorageUnavailableError: the coroutine was interrupted, or its loop has ended.
        """
        if self._loop is None:
            return made
        try:
            self._waiting = asyncio.run_coroutine_threadsafe(made, self._loop)
        except RuntimeError as error:
            made.close()
            raise StorageUnavailableError(f"the event loop of the connection has ended ({error})") from error
        try:
            return self._waiting.result()
        except CancelledError:
            raise StorageUnavailableError("the wait was interrupted, because the run was asked to stop") from None
        finally:
            self._waiting = None

    @contextmanager
    def in_this_thread(self, driver: Any) -> Generator[Connection]:
        """Use the session of a psycopg connection from this thread, with our own adapters, kinds of cursors and rows.

        An asynchronous connection is not used through its loop here: another handler may keep the loop busy, and the
        statements in this block have the gate.
        """
        self.result(driver.lock.acquire())
        session = driver.pgconn
        handlers = session.notice_handler, session.notify_handler
        connection: Connection = psycopg.Connection(session, row_factory=tuple_row)
        try:
            connection.prepare_threshold = None
            adapt(connection)
            self._running = driver
            yield connection
        finally:
            self._running = None
            session.notice_handler, session.notify_handler = handlers
            # The session stays open, and belongs to the handler's connection.
            del connection.pgconn
            if self._loop is None:
                driver.lock.release()
            else:
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(driver.lock.release)

    def interrupt(self) -> None:
        """Cancel the call that waits."""
        waiting, running = self._waiting, self._running
        if waiting is not None:
            waiting.cancel()
        if running is not None and self._loop is not None:
            asyncio.run_coroutine_threadsafe(running.cancel_safe(timeout=CANCEL_TIMEOUT), self._loop)


class HandlerConnection(ABC):
    """The connection of a handler's transaction. `given`: what the handler writes with. `driver`: psycopg's connection.

    All methods may raise the library's own errors, unchanged.
    """

    own = False
    """True if this is a connection of our own."""

    def __init__(self, given: Any, calls: ConnectionCalls) -> None:
        self.given, self._calls = given, calls
        self.driver: Any = given

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction."""

    def flush(self) -> None:
        """Write what the library has not written yet."""
        return

    @abstractmethod
    def commit(self) -> None:
        """Commit. If it returns, the commit took place."""

    @abstractmethod
    def roll_back(self) -> None:
        """Roll back."""

    def close(self) -> None:
        """Close a connection of our own."""
        return

    def use(self, driver: Any, remedy: str) -> None:
        """Use this driver's connection.

        Raises:
            UsageError: it is not psycopg's, or commits each statement at once.
        """
        shown = _class_of(driver)
        if not isinstance(driver, psycopg.AsyncConnection if self._calls.asynchronous else psycopg.Connection):
            raise UsageError(f"transaction(connection): the driver of this connection is {shown}; {remedy}")
        if driver.autocommit:
            raise UsageError(
                "transaction(connection): this connection commits each statement at once; give one with transactions"
            )
        self.driver = driver


class PsycopgConnection(HandlerConnection):
    """A connection of psycopg. In its transaction block psycopg refuses `commit()` and `rollback()`."""

    _block: Any = None
    _entered: Any = None

    def begin(self) -> None:
        """See `HandlerConnection.begin`."""
        if self.driver.pgconn.transaction_status != TransactionStatus.IDLE:
            raise UsageError(
                "transaction(connection): the connection is in a transaction; commit or roll it back first"
            )
        self._block = self.driver.transaction()
        enter = self._block.__aenter__ if self._calls.asynchronous else self._block.__enter__
        self._entered = self._calls.result(enter())

    def commit(self) -> None:
        """See `HandlerConnection.commit`."""
        self._leave(None)
        # Without a connection, psycopg leaves the block as if nothing was wrong.
        if self._entered.status is not psycopg.Transaction.Status.COMMITTED:
            raise psycopg.OperationalError("the connection was lost before the commit")

    def roll_back(self) -> None:
        """See `HandlerConnection.roll_back`."""
        self._leave(psycopg.Rollback())

    def _leave(self, error: BaseException | None) -> None:
        leave = self._block.__aexit__ if self._calls.asynchronous else self._block.__exit__
        self._calls.result(leave(None if error is None else type(error), error, None))


class OwnConnection(PsycopgConnection):
    """A connection that is opened for one transaction."""

    own = True

    def __init__(self, address: PostgresAddress, calls: ConnectionCalls) -> None:
        super().__init__(None, calls)
        self._address = address

    def begin(self) -> None:
        """See `HandlerConnection.begin`."""
        kind: Any = psycopg.AsyncConnection if self._calls.asynchronous else psycopg.Connection
        target = parameters(self._address, self._address.server)
        self.given = self.driver = self._calls.result(kind.connect(**target, autocommit=True, prepare_threshold=None))
        super().begin()
        self._calls.result(self.driver.execute(NAMED["session.read_committed"]))

    def close(self) -> None:
        """See `HandlerConnection.close`."""
        if self.driver is not None:
            self._calls.result(self.driver.close())


class SQLAlchemySession(HandlerConnection):
    """A Session or an AsyncSession of SQLAlchemy. A transaction that it has begun goes on."""

    def begin(self) -> None:
        """See `HandlerConnection.begin`."""
        session = self.given.sync_session if self._calls.asynchronous else self.given
        if isinstance(session.get_bind(), sys.modules["sqlalchemy"].Connection):
            # The commit of such a session may leave the transaction of its connection open, and the gate taken.
            raise UsageError(
                "transaction(session): the session is bound to a connection, and may be a part of its transaction; "
                "bind the session to an engine"
            )
        if session.twophase:
            # If this process died between the two phases, the prepared transaction would keep the gate.
            raise UsageError("transaction(session): the session commits in two phases; make it without twophase=True")
        connection = self._calls.result(self.given.connection())
        pooled = (
            self._calls.result(connection.get_raw_connection()) if self._calls.asynchronous else (connection.connection)
        )
        self.use(pooled.driver_connection, "use the dialect postgresql+psycopg")

    def flush(self) -> None:
        """See `HandlerConnection.flush`."""
        self._calls.result(self.given.flush())

    def commit(self) -> None:
        """See `HandlerConnection.commit`."""
        self._calls.result(self.given.commit())

    def roll_back(self) -> None:
        """See `HandlerConnection.roll_back`."""
        self._calls.result(self.given.rollback())


class DjangoConnection(HandlerConnection):
    """`django.db.connection`, or one of `django.db.connections`, in an atomic block."""

    _atomic: Any = None

    def begin(self) -> None:
        """See `HandlerConnection.begin`."""
        if self.given.in_atomic_block:
            raise UsageError("transaction(connection): the connection is in an atomic block; leave it first")
        if not self.given.get_autocommit():
            # There atomic() only makes a savepoint, and its end commits nothing.
            raise UsageError(
                "transaction(connection): Django's autocommit is off for this connection, so the block could not "
                "commit; set AUTOCOMMIT to True"
            )
        atomic = sys.modules["django.db.transaction"].atomic(using=self.given.alias)
        atomic.__enter__()
        self._atomic = atomic
        self.driver = self.given.connection
        if not isinstance(self.driver, psycopg.Connection):
            raise UsageError("transaction(connection): Django uses another driver than psycopg 3; install psycopg")

    def flush(self) -> None:
        """Refuse a transaction that Django would roll back instead of commit."""
        if self.given.needs_rollback:
            raise UsageError(
                "a statement of the transaction has failed, so it cannot be committed; let the exception leave the "
                "block, or run the statement in an atomic() block of its own"
            )

    def commit(self) -> None:
        """See `HandlerConnection.commit`."""
        self._atomic.__exit__(None, None, None)

    def roll_back(self) -> None:
        """See `HandlerConnection.roll_back`."""
        if self._atomic is not None:
            error = psycopg.Rollback()
            self._atomic.__exit__(type(error), error, None)


def _class_of(value: object) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def handler_connection(given: object, calls: ConnectionCalls, address: PostgresAddress) -> HandlerConnection:
    """Return the connection that a handler gave, or for None one of our own, which opens when it begins.

    Raises:
        UsageError: it is not of a kind that can be used here.
    """
    if given is None:
        return OwnConnection(address, calls)
    names = {(known.__module__.partition(".")[0], known.__name__) for known in type(given).__mro__}
    plain: dict[tuple[str, str], type[HandlerConnection]] = {
        ("psycopg", "Connection"): PsycopgConnection,
        ("sqlalchemy", "Session"): SQLAlchemySession,
        ("django", "BaseDatabaseWrapper"): DjangoConnection,
        ("django", "ConnectionProxy"): DjangoConnection,
    }
    waiting: dict[tuple[str, str], type[HandlerConnection]] = {
        ("psycopg", "AsyncConnection"): PsycopgConnection,
        ("sqlalchemy", "AsyncSession"): SQLAlchemySession,
    }
    shown = _class_of(given)
    here, elsewhere = (waiting, plain) if calls.asynchronous else (plain, waiting)
    for name, make in here.items():
        if name in names:
            return make(given, calls)
    if names.isdisjoint(elsewhere):
        raise UsageError(
            f"transaction(connection): cannot use a {shown}; give a psycopg connection, a SQLAlchemy Session or "
            "AsyncSession, or Django's connection; or none, then the block opens one"
        )
    if calls.asynchronous:
        raise UsageError(
            f"transaction(connection): a {shown} would block the event loop; use an asynchronous connection, or a "
            "plain function as the handler, and `with`"
        )
    raise UsageError(f"transaction(connection): a {shown} needs `async with`, in a coroutine")
