"""The connection of a handler's transaction, which another thread can take away from a handler that does not end."""

import sqlite3
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from tenure.errors import StorageUnavailableError


class Usage:
    """Who uses a connection. `lock`: held in each call; two threads inside SQLite could wait for each other."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.ended = False
        """True if the transaction is over."""
        self.completing = False
        """True if the job is being completed, which must not be interrupted."""

    def __enter__(self) -> None:
        self.lock.acquire()
        if self.ended:
            self.lock.release()
            raise StorageUnavailableError(
                "the transaction is over: its block has ended, or its run was stopped while the handler went on"
            )

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def _guarded(method: Callable[..., Any]) -> Any:
    """Return a method that has the connection for itself while it runs."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.usage:
            return method(self, *args, **kwargs)

    return call


class SharedCursor(sqlite3.Cursor):
    """A cursor of such a connection."""

    @property
    def usage(self) -> Usage:
        """Who uses the connection."""
        connection: SharedConnection = self.connection  # type: ignore[assignment]
        return connection.usage

    execute = _guarded(sqlite3.Cursor.execute)
    executemany = _guarded(sqlite3.Cursor.executemany)
    executescript = _guarded(sqlite3.Cursor.executescript)
    fetchone = _guarded(sqlite3.Cursor.fetchone)
    fetchmany = _guarded(sqlite3.Cursor.fetchmany)
    fetchall = _guarded(sqlite3.Cursor.fetchall)
    __next__ = _guarded(sqlite3.Cursor.__next__)


class SharedConnection(sqlite3.Connection):
    """A connection that `usage` protects."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.usage = Usage()

    def cursor(self, factory: Any = SharedCursor) -> Any:
        """Return a cursor."""
        return super().cursor(factory)

    def execute(self, *args: Any) -> Any:
        """See `sqlite3.Connection`."""
        return self.cursor().execute(*args)

    def executemany(self, *args: Any) -> Any:
        """See `sqlite3.Connection`."""
        return self.cursor().executemany(*args)

    def executescript(self, *args: Any) -> Any:
        """See `sqlite3.Connection`."""
        return self.cursor().executescript(*args)
