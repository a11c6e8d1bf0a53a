"""A connection that one thread uses, and that can be taken from it for a fork."""

import os
import sqlite3
import threading
from collections.abc import Callable
from typing import Literal

from tenure.errors import StorageError

FORK_PATIENCE = 5.0
"""How many seconds a fork waits for a running transaction."""


class ThreadConnection:
    """A connection that opens at its first use and after each close. Its user holds `gate`."""

    def __init__(self, path: str, connect: Callable[[], sqlite3.Connection]) -> None:
        self.gate = threading.Lock()
        self._path = path
        self._file: tuple[int, int] | None = None
        self._log: tuple[int, int] | None = None
        self.log_lost = False
        """True once the write-ahead log was deleted or replaced while this connection used it."""
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._unusable = False
        self._forking: int | None = None

    def use(self) -> sqlite3.Connection:
        """Return the connection. The caller holds the gate."""
        if self._unusable:
            raise StorageError(
                "this process was forked in the middle of a transaction, so SQLite cannot be used in it; "
                "start child processes by 'spawn' or 'forkserver'"
            )
        if self._connection is not None and self._file != self._identity():
            # The file was deleted or replaced. Later readers would not see writes to the old one.
            self.close()
        if self._connection is None:
            self._connection = self._connect()
            self._file, self._log = self._identity(), self._identity("-wal")
        return self._connection

    def log_state(self) -> Literal["kept", "deleted", "replaced"]:
        """Return what happened to the write-ahead log that the connection uses. The caller holds the gate.

        SQLite does not notice: it goes on writing into the deleted file, which nothing can read after a crash.
        """
        if self._connection is None or self._log is None:
            return "kept"
        match self._identity("-wal"):
            case None:
                return "deleted"
            case current:
                return "kept" if current == self._log else "replaced"

    def leave_log(self) -> None:
        """Close a connection whose log was deleted or replaced; the next use opens the new log."""
        self.log_lost = True
        self.close()

    def close(self) -> None:
        """Close the connection. The caller holds the gate, or no other code has a reference."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def before_fork(self) -> None:
        """Close the connection: SQLite keeps its locks in memory, and a child would take them for its own."""
        if self.gate.acquire(timeout=FORK_PATIENCE):
            self._forking = threading.get_ident()
            self.close()

    def after_fork_in_parent(self) -> None:
        """Resume after a fork."""
        # If this thread does not hold the gate, another thread does and goes on working, even if it is only connecting.
        if self._forking == threading.get_ident():
            self._forking = None
            self.gate.release()

    def after_fork_in_child(self) -> None:
        """Reset after a fork."""
        self._unusable = self._forking != threading.get_ident()
        self._forking = None
        if self._connection is not None:
            # Even closing it would be unsafe here, so it must never be garbage-collected.
            _ABANDONED.append(self._connection)
            self._connection = None
        self.gate = threading.Lock()

    def _identity(self, suffix: str = "") -> tuple[int, int] | None:
        try:
            found = os.stat(self._path + suffix)
        except OSError:
            return None
        return found.st_dev, found.st_ino


_ABANDONED: list[sqlite3.Connection] = []
