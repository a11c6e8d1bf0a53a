"""The database file: checks it before any change, opens it, and creates the schema in it.

The file may be the user's own, with tables of other programs. All our tables and indexes have names that begin with
`tenure_`, and the table `tenure_meta` tells that the file has a queue.
"""

import os
import re
import sqlite3
import sys
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Literal, overload

from tenure.clock import Clock, SystemClock
from tenure.errors import SchemaMismatchError, StorageError, StorageUnavailableError, TenureError
from tenure.storage.script_files import script
from tenure.storage.sqlite import errors, filesystem_check
from tenure.storage.sqlite.locks import Locks
from tenure.storage.sqlite.shared_connection import SharedConnection
from tenure.storage.sqlite.statements import STATEMENTS

Durability = Literal["full", "fast"]

SCHEMA = 14
"""The number of the schema in `schema.sql`. Until the first release it rises with each change, without migrations."""

_PACKAGE = "tenure.storage.sqlite"
_OLDEST = (3, 38, 0)
_CREATED = re.compile(r"^CREATE (?:TABLE|INDEX) (\w+)", re.MULTILINE)
# Prepared statements are kept for the life of the connection. There are fewer than this.
_STATEMENTS = 256
# Together 5 s.
_WAL_ATTEMPTS, _WAL_PAUSE = 500, 0.01


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
            SchemaMismatchError: the file cannot have our schema, or has another version of it; it was left unchanged.
            StorageUnavailableError: another connection keeps the file locked.
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
        """Refuse a file that cannot have our schema of this version, without a change to it or its directory."""
        if not os.path.exists(self.path) or os.path.getsize(self.path) == 0:
            self._check_version(0)
            return
        mode = self._reading_mode()
        if mode is None:
            # SQLite creates no file of its own if `immutable` tells it that the file does not change. (Reading the file
            # without SQLite would release the locks of our other connections to it.)
            before = os.stat(self.path).st_mtime_ns
            try:
                self._check_version(self._read_version("ro&immutable=1"))
            except (SchemaMismatchError, sqlite3.Error):
                # It takes no locks either. If another program wrote meanwhile, read again with locks.
                mode = self._reading_mode()
                if mode is None and os.stat(self.path).st_mtime_ns == before:
                    raise
            else:
                return
        self._check_version(self._read_version(mode or "ro"))

    def _reading_mode(self) -> str | None:
        """Return the mode in which to read a file if a part of its data may lie in a file next to it, else None."""
        log = f"{self.path}-wal"
        if os.path.exists(log) and os.path.getsize(log) > 0:
            return "ro"
        # Only a connection that may write can undo what a program has written before it crashed.
        return "rw" if os.path.exists(f"{self.path}-journal") else None

    def _read_version(self, mode: str) -> int:
        connection = self._connect(mode)
        try:
            return self._version(connection)
        finally:
            connection.close()

    def _version(self, connection: sqlite3.Connection) -> int:
        """Return the number of the schema in the file, 0 if the file lacks it.

        Raises:
            SchemaMismatchError: the file cannot have our schema.
        """
        if (encoding := _value(connection, "encoding")) != "UTF-8":
            raise SchemaMismatchError(
                f"{self.path} has the encoding {encoding}, Tenure needs UTF-8; it was left untouched. Name another file"
            )
        if _value(connection, "meta_columns") == "key,value":
            version = _value(connection, "version")
            if isinstance(version, int) and version > 0:
                return version
        names = {name for (name,) in connection.execute(STATEMENTS["session.names"])}
        taken = names.intersection(_CREATED.findall(schema()))
        if taken:
            name = "tenure_meta" if "tenure_meta" in taken else min(taken)
            raise SchemaMismatchError(
                f"{self.path} belongs to another program: it has a table or an index {name} that is not Tenure's; it "
                "was left untouched. Rename that, or name another file"
            )
        return 0

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
            if not _value(connection, "tables"):
                _run(connection, "vacuum")
            self._switch_to_wal(connection)
            if not self._version(connection):
                _create(connection, self._clock.now())
        except BaseException:
            connection.close()
            raise
        return connection

    def _switch_to_wal(self, connection: sqlite3.Connection) -> None:
        """Switch the file to a write-ahead log, for which no other connection may use it. It stays so.

        Raises:
            StorageUnavailableError: another connection keeps the file locked.
        """
        # SQLite itself waits in some of these cases only.
        _run(connection, "no_busy_timeout")
        for attempt in count(1):
            try:
                _run(connection, "wal")
            except sqlite3.OperationalError as error:
                if not errors.is_busy(error):
                    raise
                if attempt >= _WAL_ATTEMPTS:
                    raise StorageUnavailableError(
                        f"{self.path} cannot be switched to a write-ahead log (journal mode WAL), because another "
                        "program keeps it locked; end the transactions of other programs on this file and try again, "
                        "or run PRAGMA journal_mode = WAL on it while nothing uses it"
                    ) from error
                threading.Event().wait(_WAL_PAUSE)
            else:
                break
        _run(connection, "busy_timeout")

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


def _value(connection: sqlite3.Connection, name: str) -> object:
    row = connection.execute(STATEMENTS[f"session.{name}"]).fetchone()
    return None if row is None else row[0]


def _run(connection: sqlite3.Connection, *names: str) -> None:
    for name in names:
        connection.execute(STATEMENTS[f"session.{name}"]).fetchall()
