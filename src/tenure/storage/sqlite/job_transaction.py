"""A handler's transaction on SQLite: it has the writers' lock from its begin to its end, and completes its job."""

import sqlite3
from contextlib import ExitStack, suppress
from typing import Any

from tenure.clock import Clock
from tenure.core.settlement import Settlement
from tenure.errors import StorageUnavailableError, UsageError
from tenure.storage.protocol import RenewRequest, SettleVerdict
from tenure.storage.sql import completion
from tenure.storage.sql.writer import CALL_TIMEOUT, Writer
from tenure.storage.sqlite import errors
from tenure.storage.sqlite.database import Database
from tenure.storage.sqlite.locks import Locks
from tenure.storage.sqlite.shared_connection import SharedConnection
from tenure.storage.sqlite.statements import STATEMENTS
from tenure.storage.sqlite.transaction import SQLiteTransaction

_INTERRUPTED = 0.2
"""How many seconds a statement of a handler gets to end after its interruption."""


def _no_end(action: int, *_: object) -> int:
    """Refuse statements that begin or end a transaction. Savepoints are allowed."""
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


class SQLiteJobTransaction:
    """See `StorageTransaction`. Its connection may be used in any thread, by one at a time."""

    def __init__(self, database: Database, clock: Clock, writer: Writer) -> None:
        self._database, self._clock, self._writer = database, clock, writer
        self._held = ExitStack()
        self._connection: SharedConnection | None = None
        self._abandoned = False

    @property
    def connection(self) -> Any:
        """See `StorageTransaction.connection`."""
        return self._connection

    @property
    def late_error(self) -> Exception | None:
        """See `StorageTransaction.late_error`. SQLite has no such hooks."""
        return None

    def begin(self) -> None:
        """See `StorageTransaction.begin`."""
        try:
            # The lock of this transaction alone: the locks of the storage belong to its writer's thread. It is held to
            # the end, because a checkpoint must not meet the commit of another connection.
            locks = Locks(self._database.lock_path)
            self._held.callback(locks.close)
            self._held.enter_context(locks.writing())
            self._connection = connection = self._database.handler()
            with connection.usage:
                self._write(connection)
                connection.set_authorizer(_no_end)
            if self._abandoned:
                raise StorageUnavailableError("the transaction did not begin, because its run was stopped meanwhile")
        except (sqlite3.Error, OSError) as error:
            raise errors.translate_error(error, self._database.path) from error

    def prepare(self) -> None:
        """See `StorageTransaction.prepare`. There is nothing to do: the writers' lock was taken at the begin."""
        with self._begun.usage:
            if not self._begun.in_transaction:
                raise UsageError(
                    "the transaction was ended inside its block, by a statement that failed and rolled all back; let "
                    "the exception leave the block"
                )

    def complete(self, beat: RenewRequest, settlement: Settlement) -> SettleVerdict:
        """See `StorageTransaction.complete`."""
        connection = self._begun
        with connection.usage:
            connection.usage.completing = True
            return self._complete(connection, beat, settlement)

    def _complete(self, connection: SharedConnection, beat: RenewRequest, settlement: Settlement) -> SettleVerdict:
        try:
            connection.set_authorizer(None)
            # The handler may have chosen its own.
            connection.row_factory, connection.text_factory = None, str
            tx = SQLiteTransaction(connection, repairs=True)
            tx.now = self._clock.now()
            verdict = completion.complete(tx, beat, settlement)
            if verdict != "done":
                return verdict
            connection.execute(STATEMENTS["session.commit"])
        except sqlite3.Error as error:
            raise errors.translate_error(error, self._database.path) from error
        self._writer.announce(tx.topics)
        return verdict

    def close(self) -> None:
        """See `StorageTransaction.close`."""
        connection = self._connection
        if connection is None:
            self._release()
            return
        with connection.usage.lock:
            # This rolls back.
            connection.usage.ended = True
            with suppress(sqlite3.Error):
                connection.close()
            self._release()

    def interrupt(self) -> None:
        """See `StorageTransaction.interrupt`. SQLite itself limits the waits."""

    def abandon(self) -> None:
        """See `StorageTransaction.abandon`."""
        self._abandoned = True
        connection = self._connection
        # While the job is completed, the lock is held until the end.
        if connection is None or connection.usage.completing:
            return
        with suppress(sqlite3.Error):
            connection.interrupt()
        if connection.usage.lock.acquire(timeout=_INTERRUPTED):
            try:
                self.close()
            finally:
                connection.usage.lock.release()

    def _release(self) -> None:
        with suppress(sqlite3.Error, OSError):
            self._held.close()

    @property
    def _begun(self) -> SharedConnection:
        if self._connection is None:
            raise AssertionError("the transaction has begun")
        return self._connection

    def _write(self, connection: sqlite3.Connection) -> None:
        """Begin; a program that does not know the writers' lock may have the file for a while."""
        begun = self._clock.uptime()
        while True:
            try:
                connection.execute(STATEMENTS["session.write"])
            except sqlite3.OperationalError as error:
                if not errors.is_busy(error) or self._clock.uptime() - begun > CALL_TIMEOUT:
                    raise
            else:
                return
