"""A connection that one thread uses. It opens at its first use and after each loss."""

import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import postgres
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Format, TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import StrBinaryDumper

from tenure.core.text import storable
from tenure.errors import UsageError
from tenure.storage.postgres import call_format
from tenure.storage.postgres.address import PostgresAddress
from tenure.storage.postgres.compatibility import SchemaState, read_state, require_usable
from tenure.storage.postgres.statements import NAMED

_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "client_encoding": "utf8",
    "application_name": "tenure",
}
"""How to find out that a server's host is gone, unless the URL says otherwise."""

IDLE = 1_000
"""After this number of milliseconds without a statement the server ends a transaction: its process may be frozen."""

PATIENCE = 10_000
"""How many milliseconds a transaction waits for a lock. A transaction that waited in vain is tried again."""

PREPARE_AFTER = 5
"""A statement that a connection has sent so often is prepared: planning takes longer than most statements run."""

Connection = psycopg.Connection[tuple[Any, ...]]


class _Number(Dumper):
    """Sends a bool as a number: the tables have the same columns as SQLite's."""

    format = Format.BINARY
    oid = postgres.types["int8"].oid

    def dump(self, obj: bool) -> Buffer:
        return struct.pack("!q", obj)


class _Text(StrBinaryDumper):
    """Sends a text. NUL, which PostgreSQL cannot hold, becomes a question mark; names with a NUL are refused before."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(storable(obj) if "\0" in obj else obj)


class _Progress(Loader):
    """Reads a column of type json as the engine stores it: a number, or the text of an object."""

    format = Format.BINARY

    def load(self, data: Buffer) -> float | str:
        text = bytes(data).decode()
        return text if text.startswith("{") else float(text)


class _ProgressText(_Progress):
    format = Format.TEXT


class Session:
    """A connection of one thread to the server of an address. `target`: for libpq."""

    def __init__(self, address: PostgresAddress, target: str, *, check: Callable[[Connection], None]) -> None:
        """Connect later. `check`: called with each new connection; what it raises closes it."""
        self._origin = address, target
        self._target = parameters(address, target)
        self._check = check
        self._connection: Connection | None = None

    def use(self) -> Connection:
        """Return the connection.

        Raises:
            psycopg.Error: it cannot be opened.
        """
        if self._connection is not None and self._connection.closed:
            self._connection = None
        if self._connection is None:
            connection: Connection = psycopg.connect(**self._target, autocommit=True, prepare_threshold=None)
            try:
                connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
                adapt(connection)
                self._check(connection)
                if is_direct(connection):
                    connection.prepared_max, connection.prepare_threshold = len(NAMED), PREPARE_AFTER
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def another(self) -> "Session":
        """Return a session of the same kind, with a connection of its own."""
        return Session(*self._origin, check=self._check)

    def roll_back(self) -> None:
        """End a failed transaction; close the connection if that is impossible."""
        connection = self._connection
        if connection is None:
            return
        try:
            if connection.pgconn.transaction_status is TransactionStatus.IDLE and not connection.closed:
                return
            connection.execute(NAMED["session.rollback"])
        except psycopg.Error:
            self.close()

    def close(self) -> None:
        """Close the connection. The next use opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def abort(self) -> None:
        """Interrupt a call that hangs. May be called from any thread."""
        connection = self._connection
        if connection is None:
            return
        # The thread that waits for this socket gets an error, and closes the connection.
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as opened:
            opened.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Give up the connection without a message to the server: after a fork it belongs to the parent."""
        if self._connection is not None:
            _ABANDONED.append(self._connection)
            self._connection = None


_ABANDONED: list[Connection] = []


def parameters(address: PostgresAddress, target: str) -> dict[str, Any]:
    """Return the parameters of a connection.

    Raises:
        UsageError: the address is malformed.
    """
    try:
        return _DEFAULTS | conninfo_to_dict(target)
    except psycopg.Error as error:
        why = " ".join(str(error).split()).partition(":")[0]
        raise UsageError(f"storage URL {address.shown!r} cannot be read ({why})") from None


def is_direct(connection: Connection) -> bool:
    """Return False if a pooler may give this connection another session of the server for each transaction.

    A pooler invents the number of the process that it names when a connection opens: it serves no single one.
    """
    return connection.execute(NAMED["session.backend"]).fetchone() == (connection.info.backend_pid,)


def adapt(connection: Connection) -> None:
    """Let values have the same types as on SQLite, and NULL the type that the statement implies."""
    adapters = connection.adapters
    adapters.register_dumper(int, Int8BinaryDumper)
    adapters.register_dumper(bool, _Number)
    adapters.register_dumper(str, _Text)
    adapters.register_loader("json", _ProgressText)
    adapters.register_loader("json", _Progress)


def run_parts(connection: Connection, statement: str, address: PostgresAddress) -> tuple[Any, ...]:
    """Run a statement of several parts in one round trip; return the row of the last part."""
    values = {
        "schema": f'"{address.schema}", pg_temp',
        "idle": str(IDLE),
        "patience": str(PATIENCE),
        "gate": address.gate,
        "format": call_format.FORMAT,
    }
    cursor = psycopg.ClientCursor(connection)
    cursor.execute(NAMED[statement], values)
    while cursor.nextset():
        continue
    row = cursor.fetchone()
    if row is None:
        raise AssertionError(f"{statement} returns a row")
    return row


def begin(connection: Connection, statement: str, address: PostgresAddress) -> tuple[tuple[Any, ...], SchemaState]:
    """Begin a transaction in one round trip; return the row of the statement's last part, and the schema's state.

    Raises:
        OutdatedError: the schema was raised since this process opened it, and is not for this version any more.
    """
    *row, found = run_parts(connection, statement, address)
    state = read_state(found)
    require_usable(state, address.shown)
    return tuple(row), state
