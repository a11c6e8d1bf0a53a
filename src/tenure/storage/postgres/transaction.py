"""A transaction on a PostgreSQL connection."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tenure.storage.postgres import errors
from tenure.storage.postgres.statements import NAMED, STATEMENTS
from tenure.storage.sql.columns import Row
from tenure.storage.sql.lists import json_rows
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


_READS_FRONT = {name: "'waiting')" in text for name, text in STATEMENTS.items() if "front_of(" in text}
"""The statements that begin at a front, and whether it is that of the ready jobs."""

Advanced = dict[tuple[str, str], int]
"""When this process last advanced the front of a queue and state."""

ADVANCED_KEPT = 1_000
"""The maximum number of these instants: there may be many queues."""

ADVANCE_EVERY = 100_000
"""How often a process advances a front, in microseconds: each time costs a statement, and leaves a row version."""


class PostgresTransaction(Transaction):
    """Runs the statements of `sql/` on one cursor, which is binary and adapted (`connection.adapt`)."""

    def __init__(
        self,
        cursor: PostgresCursor,
        lanes: Lanes | None = None,
        *,
        repairs: bool = False,
        calls_wait: bool = False,
        advanced: Advanced | None = None,
    ) -> None:
        super().__init__(lanes, repairs=repairs)
        self._advanced = advanced
        self.calls_wait = calls_wait
        """True if calls of users' transactions wait to become jobs."""
        self._cursor = cursor
        self.closes = ""
        """Why workers of this version must stop (`SchemaState.closes`); empty if they may go on."""

    def all(self, statement: str, values: Values = NO_VALUES) -> list[Row]:
        """See `Transaction.all`."""
        self._lower_before(statement)
        return self._cursor.execute(NAMED[statement], values).fetchall()

    def run(self, statement: str, values: Values = NO_VALUES) -> int:
        """See `Transaction.run`."""
        self._lower_before(statement)
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

    def advance(self, queue: str, state: str, reached: int) -> None:
        """See `Transaction.advance`. Without `advanced` it does nothing."""
        if self._advanced is None:
            return
        last = self._advanced.get((queue, state))
        if last is not None and 0 <= self.now - last < ADVANCE_EVERY:
            return
        if len(self._advanced) > ADVANCED_KEPT:
            self._advanced.clear()
        self._advanced[queue, state] = self.now
        self.run("front.advance", {"queue": queue, "state": state, "reached": reached, "now": self.now})

    def _lower_before(self, statement: str) -> None:
        """Lower the fronts that a statement reads from, as far as this transaction has to."""
        reads_ready = _READS_FRONT.get(statement) if self._since else None
        if reads_ready is None:
            return
        lowered = [place for place in self._since if (place[1] == "waiting") is reads_ready]
        if lowered:
            self.lower_fronts({place: self._since.pop(place) for place in lowered})

    def lower_fronts(self, since: Mapping[tuple[str, str], int]) -> None:
        """See `Transaction.lower_fronts`."""
        self.run("front.lower", {"fronts": json_rows([(*place, value) for place, value in since.items()])})

    def reset_fronts(self) -> None:
        """See `Transaction.reset_fronts`."""
        if self.run("front.reset") and self._advanced is not None:
            # The next claim advances it at once, and not only after some claims that each read all row versions.
            self._advanced.clear()

    def compute_fronts(self, began: int, margin: int, limit: int) -> None:
        """See `Transaction.compute_fronts`."""
        self.run("front.compute", {"began": began, "margin": margin, "limit": limit, "now": self.now})

    def is_fatal(self, error: Exception) -> bool:
        """See `Transaction.is_fatal`."""
        return errors.is_fatal(error)
