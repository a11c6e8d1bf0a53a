"""The database file: checks it before any change, opens it, and creates the schema in a new file."""

import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, overload

from tenure.clock import Clock, SystemClock
from tenure.errors import SchemaMismatchError, StorageError, TenureError
from tenure.storage.script_files import script
from tenure.storage.sqlite import errors, filesystem_check
from tenure.storage.sqlite.locks import Locks
from tenure.storage.sqlite.shared_connection import SharedConnection
from tenure.storage.sqlite.statements import STATEMENTS

Durability = Literal["full", "fast"]

APPLICATION = 1215261796
"""The application id in the header of our files ("Hold")."""

SCHEMA = 10
"""The number of the schema in `schema.sql`. Until the first release it rises with each change, without migrations."""

_PACKAGE = "tenure.storage.sqlite"
_OLDEST = (3, 38, 0)
# Prepared statements are kept for the life of the connection. There are fewer than this.
_STATEMENTS = 256


class Database:
    """A database file, and the ways to connect to it."""

    def __init__(
        self, path: str, locks: Locks, *, durability: Durability, auto_migrate: bool, clock: Clock | None = None
    ) -> None:
        self.path = path
        self._locks = locks
        self._clock = clock or SystemClock()
        self.durability: Durability = durability
        self._auto_migrate = auto_migrate

    @property
    def lock_path(self) -> str:
        """The path of the lock file that all processes share."""
        return self._locks.path

    def writer(self) -> sqlite3.Connection:
        """Return a connection that may write, to a database of our schema version.

        Raises:
            UsageError: this path cannot hold a database.
            SchemaMismatchError: the file is not ours or not of our version; it was left unchanged.
        """
        require_version(sqlite3.sqlite_version_info)
        filesystem_check.check(self.path)
        try:
            self._check_file()
            with self._locks.writing():
                self._check_file()
                return self._open()
        except (sqlite3.Error, OSError) as error:
            raise errors.cannot_open(error, self.path) from error

    def reader(self) -> sqlite3.Connection:
        """Return a read-only connection."""
        connection = self._connect("rw")
        _run(connection, "busy_timeout", "temp_in_memory", "cache", "no_checkpoint", "read_only")
        return connection

    def handler(self) -> SharedConnection:
        """Return a connection for a handler's transaction. The caller has the writers' lock."""
        connection = self._connect("rw", SharedConnection)
        _run(connection, "busy_timeout", "no_checkpoint", "wal_limit", self.durability)
        if sys.platform == "darwin":
            _run(connection, "fullfsync")
        return connection

    def _check_file(self) -> None:
        """Refuse a file that is not ours, without a change to it or its directory."""
        if not os.path.exists(self.path) or os.path.getsize(self.path) == 0:
            self._check_version(0)
            return
        # Without a log the file holds all data, and `immutable` tells SQLite that the file does not change. So SQLite
        # creates no file of its own. (Reading the file without SQLite would release the locks of our other connections
        # to it.)
        log = f"{self.path}-wal"
        settled = not os.path.exists(log) or os.path.getsize(log) == 0
        connection = self._connect("ro&immutable=1" if settled else "ro")
        try:
            if _number(connection, "application") != APPLICATION:
                if _number(connection, "application") == 0 and _number(connection, "tables") == 0:
                    return
                raise SchemaMismatchError(
                    f"{self.path} belongs to another program; it was left untouched. Give Tenure a file of its own, "
                    "such as sqlite:///tenure.db"
                )
            self._check_version(_version(connection))
        finally:
            connection.close()

    def _check_version(self, version: int) -> None:
        if version > SCHEMA:
            raise SchemaMismatchError(
                f"{self.path} has schema {version}, this Tenure knows up to {SCHEMA}; it was left untouched. "
                "Upgrade Tenure, or name another file"
            )
        if 0 < version < SCHEMA:
            raise SchemaMismatchError(
                f"{self.path} has schema {version} of a development version, this Tenure needs {SCHEMA}; it was left "
                "untouched. Finish its jobs with the version that made it, then name another file"
            )
        if not version and not self._auto_migrate:
            raise SchemaMismatchError(
                f"{self.path} has no schema yet, this Tenure needs {SCHEMA}; run `tenure migrate up`"
            )

    def _open(self) -> sqlite3.Connection:
        connection = self._connect("rwc")
        try:
            _run(connection, "busy_timeout", "temp_in_memory", "cache", "no_checkpoint", "wal_limit", self.durability)
            if sys.platform == "darwin":
                _run(connection, "fullfsync")
            if _number(connection, "application") != APPLICATION:
                # Write the application id first, so that a crash in between leaves a file that we recognize.
                _run(connection, "vacuum", "set_application")
            _run(connection, "wal")
            _create(connection, self._clock.now())
        except BaseException:
            connection.close()
            raise
        return connection

    @overload
    def _connect(self, mode: str) -> sqlite3.Connection: ...

    @overload
    def _connect(self, mode: str, factory: type[SharedConnection]) -> SharedConnection: ...

    def _connect(self, mode: str, factory: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{Path(self.path).as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            cached_statements=_STATEMENTS,
            # One thread at a time uses a connection, but the thread that forks closes it before the fork.
            check_same_thread=False,
            factory=factory,
        )


def require_version(version: tuple[int, ...]) -> None:
    """Refuse a SQLite library that lacks features of our statements.

    Raises:
        StorageError: the library is too old.
    """
    if version < _OLDEST:
        raise StorageError(
            f"this Python is linked with SQLite {'.'.join(map(str, version))}, Tenure needs "
            f"{'.'.join(map(str, _OLDEST))} or newer; use a newer Python build or system library"
        )


def schema() -> str:
    """Return the statements that create the schema."""
    return script(_PACKAGE, "", "schema.sql")


def _create(connection: sqlite3.Connection, now: int) -> None:
    if _version(connection) == SCHEMA:
        return
    _run(connection, "write")
    try:
        for statement in _split(schema()):
            connection.execute(statement)
        connection.execute(STATEMENTS["session.created"], {"version": SCHEMA, "now": now})
        _run(connection, "commit")
    except BaseException:
        if connection.in_transaction:
            _run(connection, "rollback")
        raise


def _split(text: str) -> Iterator[str]:
    """Yield the statements of a script: run as one script, each would be committed separately."""
    pending = ""
    for line in text.splitlines(keepends=True):
        pending += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip() and not all(line.startswith("--") for line in pending.strip().splitlines()):
        raise TenureError(f"the schema ends in the middle of a statement: {pending.strip()[:60]}")


def _version(connection: sqlite3.Connection) -> int:
    return _number(connection, "version") if _number(connection, "has_meta") else 0


def _number(connection: sqlite3.Connection, name: str) -> int:
    row = connection.execute(STATEMENTS[f"session.{name}"]).fetchone()
    return 0 if row is None else int(row[0])


def _run(connection: sqlite3.Connection, *names: str) -> None:
    for name in names:
        connection.execute(STATEMENTS[f"session.{name}"]).fetchall()
