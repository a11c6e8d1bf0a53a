"""A transaction on a PostgreSQL connection."""

from collections.abc import Sequence
from typing import Any, Protocol

from tenure.storage.postgres import errors
from tenure.storage.postgres.statements import NAMED
from tenure.storage.sql.columns import Row
from tenure.storage.sql.transaction import NO_VALUES, Lanes, Transaction, Values


class PostgresCursor(Protocol):
    """What a transaction needs of psycopg's cursors."""

    @property
    def rowcount(self) -> int:
        """See psycopg."""
        ...

    def execute(self, query: bytes, params: Values, /) -> "PostgresCursor":
        """See psycopg."""
        ...

    def executemany(self, query: bytes, params_seq: Sequence[Values], /) -> None:
        """See psycopg."""
        ...

    def fetchall(self) -> list[tuple[Any, ...]]:
        """See psycopg."""
        ...


class PostgresTransaction(Transaction):
    """Runs the statements of `sql/` on one cursor, which is binary and adapted (`connection.adapt`)."""

    def __init__(
        self,
        cursor: PostgresCursor,
        lanes: Lanes | None = None,
        *,
        repairs: bool = False,
        calls_wait: bool = False,
    ) -> None:
        super().__init__(lanes, repairs=repairs)
        self.calls_wait = calls_wait
        """True if calls of users' transactions wait to become jobs."""
        self._cursor = cursor
        self.closes = ""
        """Why workers of this version must stop (`SchemaState.closes`); empty if they may go on."""

    def all(self, statement: str, values: Values = NO_VALUES) -> list[Row]:
        """See `Transaction.all`."""
        return self._cursor.execute(NAMED[statement], values).fetchall()

    def run(self, statement: str, values: Values = NO_VALUES) -> int:
        """See `Transaction.run`."""
        return self._cursor.execute(NAMED[statement], values).rowcount

    def many(self, statement: str, values: Sequence[Values]) -> int:
        """See `Transaction.many`. All sets of values go to the server in one round trip."""
        match values:
            case []:
                return 0
            case [one]:
                return self.run(statement, one)
            case _:
                self._cursor.executemany(NAMED[statement], values)
                return self._cursor.rowcount

    def is_fatal(self, error: Exception) -> bool:
        """See `Transaction.is_fatal`."""
        return errors.is_fatal(error)
