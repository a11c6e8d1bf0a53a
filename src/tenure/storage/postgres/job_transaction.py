"""A handler's transaction on PostgreSQL: it ends with the completion of its job, behind the gate.

    BEGIN ► the handler's own statements ► gate ► settle ► COMMIT

The gate comes last. So the handler holds locks of its own rows when it waits for the gate, but a transaction that has
the gate locks only rows of the schema, which change only behind the gate: it waits for no handler.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from tenure.clock import Clock
from tenure.core.settlement import Settlement
from tenure.errors import StorageUnavailableError, UsageError
from tenure.storage.postgres import errors
from tenure.storage.postgres.address import PostgresAddress
from tenure.storage.postgres.connection import Session, begin, run_parts
from tenure.storage.postgres.fate import was_committed
from tenure.storage.postgres.handler_connection import ConnectionCalls, handler_connection
from tenure.storage.postgres.transaction import PostgresTransaction
from tenure.storage.protocol import RenewRequest, SettleVerdict
from tenure.storage.sql import completion

_READ_COMMITTED = "read committed"

Announce = Callable[[Sequence[str]], None]


class PostgresJobTransaction:
    """See `StorageTransaction`. `session`: for the questions to the server that need a connection of our own."""

    def __init__(
        self,
        address: PostgresAddress,
        session: Session,
        clock: Clock,
        connection: object,
        loop: asyncio.AbstractEventLoop | None,
        *,
        own_time: bool,
        announce: Announce,
    ) -> None:
        """`connection`: the handler's, or None. `own_time`: the completion happens at the instant of `clock`.

        Raises:
            UsageError: the connection is not of a kind that can be used here.
        """
        self._address, self._session, self._clock = address, session, clock
        self._calls = ConnectionCalls(loop)
        self._handler = handler_connection(connection, self._calls, address)
        self._own_time, self._announce = own_time, announce
        self._open = False
        self._now, self._number = 0, ""
        self.late_error: Exception | None = None

    @property
    def connection(self) -> Any:
        """See `StorageTransaction.connection`."""
        return self._handler.given

    def begin(self) -> None:
        """See `StorageTransaction.begin`."""
        try:
            self._open = True
            self._handler.begin()
            if not self._handler.own:
                self._check_place()
        except psycopg.Error as error:
            raise errors.translate_error(error, self._address.shown) from error

    def prepare(self) -> None:
        """See `StorageTransaction.prepare`."""
        self._handler.flush()
        driver = self._handler.driver
        if driver.closed:
            raise StorageUnavailableError("the connection of the transaction is closed or lost; nothing was committed")
        match driver.pgconn.transaction_status:
            case TransactionStatus.INTRANS:
                pass
            case TransactionStatus.INERROR:
                raise UsageError(
                    "a statement of the transaction has failed, so it cannot be committed; let the exception leave the "
                    "block, or run the statement in a savepoint, which undoes it alone"
                )
            case _:
                raise UsageError(
                    "the transaction was ended inside its block; let the end of the block commit it, or raise to roll "
                    "it back"
                )
        try:
            with self._calls.in_this_thread(driver) as connection:
                (self._now, self._number), _ = begin(connection, "session.complete", self._address)
        except psycopg.Error as error:
            if error.sqlstate is not None and not errors.is_passing(error):
                # A deferred constraint of the handler's own tables, for example.
                raise
            raise errors.translate_error(error, self._address.shown) from error

    def complete(self, beat: RenewRequest, settlement: Settlement) -> SettleVerdict:
        """See `StorageTransaction.complete`."""
        try:
            with self._calls.in_this_thread(self._handler.driver) as connection:
                tx = PostgresTransaction(connection.cursor(binary=True), repairs=True)
                tx.now = self._clock.now() if self._own_time else self._now
                verdict = completion.complete(tx, beat, settlement)
                if verdict == "done" and not self._handler.own:
                    tx.run("session.give_back")
            if verdict != "done":
                return verdict
            self.commit()
        except psycopg.Error as error:
            raise errors.translate_error(error, self._address.shown) from error
        self._announce(tx.topics)
        return verdict

    def close(self) -> None:
        """See `StorageTransaction.close`."""
        # The library's own errors: the server ends the transaction with the connection.
        if self._open:
            self._open = False
            with suppress(Exception):
                self._handler.roll_back()
        with suppress(Exception):
            self._handler.close()
        self._session.close()

    def interrupt(self) -> None:
        """See `StorageTransaction.interrupt`."""
        self._calls.interrupt()

    def abandon(self) -> None:
        """See `StorageTransaction.abandon`. No other job waits for a handler, so there is nothing to do."""

    def commit(self) -> None:
        """Commit; if the answer is lost, ask the server whether it took place."""
        driver, self._open = self._handler.driver, False
        try:
            self._handler.commit()
        except Exception as error:
            if isinstance(error, psycopg.Error) and not errors.is_lost(error) and not driver.closed:
                raise
            if not was_committed(self._session, self._number, self._clock, self._address.shown):
                raise
            if not driver.closed:
                # A hook that the library called after the commit.
                self.late_error = error

    def _check_place(self) -> None:
        """Refuse a connection that leads to another database, or whose transaction does not see the latest commits."""
        try:
            with self._calls.in_this_thread(self._handler.driver) as connection:
                _, found, isolation = run_parts(connection, "session.identity", self._address)
        except psycopg.errors.UndefinedTable:
            found, isolation = None, _READ_COMMITTED
        own = self._session.use()
        with own.transaction():
            _, expected, _ = run_parts(own, "session.identity", self._address)
        if found != expected:
            raise UsageError(
                "transaction(connection): the connection does not lead to the database of the queue, "
                f"{self._address.shown}, schema {self._address.schema!r}; connect it to that one, or call "
                "transaction() without a connection"
            )
        if isolation != _READ_COMMITTED:
            raise UsageError(
                f"transaction(connection): the connection's transactions are {isolation.upper()}; the completion of a "
                "job needs READ COMMITTED. Set the isolation level of the connection"
            )
