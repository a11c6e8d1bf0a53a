"""The types of connections that a call may be stored with, as far as a type checker can know them."""

from typing import Any, Protocol


class ExecutesStatements(Protocol):
    """A connection or session with an `execute` method, such as that of psycopg, asyncpg, SQLAlchemy or sqlite3."""

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Run a statement."""
        ...


class OpensCursors(Protocol):
    """A connection with a `cursor` method, such as Django's."""

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        """Return a cursor."""
        ...


TransactionConnection = ExecutesStatements | OpensCursors
"""What `tx` accepts. The kinds that Tenure knows are listed at `CallOptions`; others are refused at run time."""
