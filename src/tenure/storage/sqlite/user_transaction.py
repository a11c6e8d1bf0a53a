"""Runs the verb `enqueue` in a user's transaction on the file of the queue, where its write lock is the gate."""

import os
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from tenure.core.job import NewJob
from tenure.errors import StorageUnavailableError, UsageError
from tenure.storage.protocol import EnqueueResult
from tenure.storage.sql import exchange
from tenure.storage.sql.transitions import recount
from tenure.storage.sqlite import errors
from tenure.storage.sqlite.health import SOUND
from tenure.storage.sqlite.statements import STATEMENTS
from tenure.storage.sqlite.transaction import SQLiteTransaction

_FILES = STATEMENTS["session.files"]
_LOCK = STATEMENTS["session.lock"]
_NO_CHECKPOINT = STATEMENTS["session.no_checkpoint"]


def enqueue(connection: Any, path: str, jobs: Sequence[NewJob], now: int) -> list[EnqueueResult]:
    """Store jobs through a connection with an open transaction; undo it if it fails. `path`: the file of the queue.

    Raises:
        UsageError: the connection is to another file, or has this one only attached.
        StorageUnavailableError: another connection keeps the file locked.
    """
    with on_file(connection, path, of="queue"):
        if sqlite3.sqlite_version_info < SOUND:
            # A checkpoint of this connection could damage the file while a worker commits.
            connection.execute(_NO_CHECKPOINT)
        return _enqueue(connection, jobs, now)


@contextmanager
def on_file(connection: Any, path: str, *, of: str) -> Generator[None]:
    """Use a user's connection, whose file must be this one, with plain rows. `of`: what the file belongs to.

    Raises:
        UsageError: the connection is to another file, or has this one only attached.
        StorageUnavailableError: another connection keeps the file locked.
    """
    native = getattr(connection, "driver_connection", connection)
    shapes = native.row_factory, native.text_factory
    native.row_factory, native.text_factory = None, str
    try:
        _check_file(connection, path, of)
        yield
    except sqlite3.Error as error:
        if errors.is_busy(error):
            raise StorageUnavailableError(
                f"{path} is locked by another connection, or has changed since this transaction first read it; roll it "
                "back, and begin it with BEGIN IMMEDIATE"
            ) from error
        raise errors.translate_error(error, path) from error
    finally:
        native.row_factory, native.text_factory = shapes


def _enqueue(connection: Any, jobs: Sequence[NewJob], now: int) -> list[EnqueueResult]:
    tx = SQLiteTransaction(connection, repairs=True)
    tx.run("session.savepoint")
    try:
        # The file's write lock first: what the verb reads must not change until the commit.
        connection.execute(_LOCK)
        tx.now = now
        [results] = exchange.enqueue_all(tx, [jobs])
        tx.flush()
        recount(tx)
    except BaseException:
        if getattr(connection, "driver_connection", connection).in_transaction:
            tx.run("session.rollback_to_savepoint")
            tx.run("session.release_savepoint")
        raise
    tx.run("session.release_savepoint")
    return results


def _check_file(connection: Any, path: str, of: str) -> None:
    files = {name: file for _, name, file in connection.execute(_FILES).fetchall()}
    if _is_file(files.get("main"), path):
        return
    attached = next((name for name, file in files.items() if _is_file(file, path)), None)
    if attached is not None:
        raise UsageError(
            f"tx has the file of the {of}, {path}, only attached as {attached!r}, and the other files of such a "
            f"transaction may lose their part of it in a crash; open the file of the {of} itself"
        )
    raise UsageError(
        f"tx is a connection to {files.get('main') or 'a database in memory'}, but the {of} is in {path}; give a "
        "connection to that file, or enqueue without tx after the commit"
    )


def _is_file(file: str | None, path: str) -> bool:
    return bool(file) and os.path.realpath(file or "") == path
