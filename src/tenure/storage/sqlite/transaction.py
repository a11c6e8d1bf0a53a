"""A transaction on a SQLite connection."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from tenure.storage.sql.columns import Row, UndecodableRow, UndecodableText
from tenure.storage.sql.transaction import NO_VALUES, Lanes, Transaction, Values
from tenure.storage.sqlite.statements import POSITIONAL

_NOT_TEXT = "Could not decode to UTF-8"
"""The start of sqlite3's error message for text that is not UTF-8. No data was changed before it, except by
`exchange.complete`, which would make the same changes again."""


class SQLiteTransaction(Transaction):
    """Runs the statements of `sql/` on one cursor."""

    def __init__(self, connection: sqlite3.Connection, lanes: Lanes | None = None, *, repairs: bool = False) -> None:
        super().__init__(lanes, repairs=repairs)
        self._cursor = connection.cursor()
        self._execute = self._cursor.execute

    def all(self, statement: str, values: Values = NO_VALUES) -> list[Row]:
        """See `Transaction.all`. A row with text that is not UTF-8 becomes a `UndecodableRow`."""
        sql, order = POSITIONAL[statement]
        try:
            return self._execute(sql, order(values)).fetchall()
        except sqlite3.OperationalError as error:
            if not str(error).startswith(_NOT_TEXT):
                raise
            return self._all_undecodable(sql, order(values))

    def run(self, statement: str, values: Values = NO_VALUES) -> int:
        """See `Transaction.run`."""
        sql, order = POSITIONAL[statement]
        return self._execute(sql, order(values)).rowcount

    def many(self, statement: str, values: Sequence[Values]) -> int:
        """See `Transaction.many`."""
        sql, order = POSITIONAL[statement]
        return self._cursor.executemany(sql, map(order, values)).rowcount if values else 0

    def is_fatal(self, error: Exception) -> bool:
        """See `Transaction.is_fatal`."""
        return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError

    def _all_undecodable(self, sql: str, values: Sequence[Any]) -> list[Row]:
        connection = self._cursor.connection
        before = connection.text_factory
        connection.text_factory = _decoded
        try:
            found = self._cursor.execute(sql, values).fetchall()
        finally:
            connection.text_factory = before
        return [UndecodableRow(row) if UndecodableText in map(type, row) else row for row in found]


def _decoded(text: bytes) -> str:
    """Return a decoded text, as `UndecodableText` if it is not UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return UndecodableText(text.decode(errors="replace"))
