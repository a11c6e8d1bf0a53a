"""Translates SQLite's errors into Tenure's, for all modules of this storage."""

import errno
import os
import sqlite3

from tenure.errors import (
    SchemaMismatchError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
    TenureError,
)
from tenure.storage.sqlite.permissions import missing_permission

_ROOM = 1 << 20
"""If fewer than this many bytes are free, an I/O error is reported as a full disk."""

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def is_busy(error: BaseException) -> bool:
    """Return True if a retry may succeed in a moment."""
    return isinstance(error, sqlite3.Error) and _code(error) in _BUSY


def translate_error(error: BaseException, path: str) -> BaseException:
    """Return the error for the caller; errors that do not come from the storage are returned unchanged."""
    match error:
        case TenureError():
            return error
        case sqlite3.Error():
            return _translated(error, path)
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _disk_full(path)
        case OSError():
            return StorageUnavailableError(
                f"{path} cannot be reached: {missing_permission(path) or error.strerror or error}"
            )
        case _:
            return error


def no_thread(error: RuntimeError, path: str) -> BaseException:
    """Return the error of a call whose thread has stopped accepting work, or could not be started."""
    return StorageUnavailableError(
        f"{path} can no longer be used ({error}): it is being closed, or this process is ending. Use it before that, "
        "not from an atexit handler or from a thread that outlives the main program"
    )


def cannot_open(error: BaseException, path: str) -> BaseException:
    """Return the error of a failed attempt to open: here a file that is not a database does not belong to us."""
    if is_busy(error):
        return StorageUnavailableError(
            f"{path} cannot be opened, because another program keeps it locked; end the transactions of other programs "
            "on this file and try again"
        )
    if isinstance(error, sqlite3.Error) and _code(error) in _BROKEN:
        return SchemaMismatchError(
            f"{path} is not a SQLite database, or a damaged one; it was left untouched. Name another file, or restore "
            "it from a backup"
        )
    return translate_error(error, path)


def _translated(error: sqlite3.Error, path: str) -> BaseException:
    match _code(error):
        case code if code in _BUSY:
            return StorageUnavailableError(f"{path} was kept busy by others for too long; try again")
        case sqlite3.SQLITE_FULL:
            return _disk_full(path)
        case sqlite3.SQLITE_IOERR:
            return (
                _disk_full(path)
                if _is_disk_full(path)
                else StorageUnavailableError(f"{path} cannot be reached: {error}")
            )
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_NOMEM | sqlite3.SQLITE_INTERRUPT:
            return StorageUnavailableError(f"{path} cannot be reached: {missing_permission(path) or error}")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            remedy = missing_permission(path) or f"{error}; check its owner and permissions"
            return StorageError(f"{path} may not be written: {remedy}")
        case code if code in _BROKEN:
            return StorageError(
                f"{path} is damaged ({error}). Stop all workers, keep a copy, and restore a backup or save what can be "
                "read with `sqlite3 <file> .recover`"
            )
        case None:
            # Raised by the Python module itself, for example for a number that is too large.
            return error
        case _:
            return StorageError(f"{path}: {error}")


def _code(error: sqlite3.Error) -> int | None:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _disk_full(path: str) -> StorageFullError:
    return StorageFullError(f"the disk of {path} is full; nothing was written. Free some space and try again")


def _is_disk_full(path: str) -> bool:
    try:
        left = os.statvfs(os.path.dirname(path))
    except OSError:
        return False
    return left.f_bavail * left.f_frsize < _ROOM
