"""Translates psycopg's errors into Tenure's, for all modules of this storage."""

import psycopg
from psycopg import errors as pg

from tenure.errors import (
    SchemaMismatchError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
    TenureError,
)

_PASSING = {
    "0A000",  # feature_not_supported: a migration changed the columns that a prepared statement returns
    "25P03",  # idle_in_transaction_session_timeout: this process was stopped for a while
    "40001",  # serialization_failure
    "40P01",  # deadlock_detected
    "53300",  # too_many_connections
    "55P03",  # lock_not_available: another process holds the gate
    "57014",  # query_canceled
    "57P01",  # admin_shutdown
    "57P02",  # crash_shutdown
    "57P03",  # cannot_connect_now
    "57P05",  # idle_session_timeout
}
_SCHEMA = {"3F000", "42P01", "42703", "42883"}
_NO_SLOT = ("too many clients", "connection slots are reserved", "too many connections", "no more connections allowed")
_PERMISSION = {"42501", "28000", "28P01"}


class LostError(Exception):
    """The answer of a commit was lost, and it is not known whether it took place."""


def is_lost(error: BaseException) -> bool:
    """Return True if a connection was lost, could not be opened, or was ended by the server."""
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(("08", "57P")) or error.sqlstate == "25P03"


def is_passing(error: BaseException) -> bool:
    """Return True if a transaction failed for a cause outside of it, and a retry may succeed in a moment."""
    if not isinstance(error, psycopg.Error):
        return False
    return is_lost(error) or (error.sqlstate or "") in _PASSING


def is_fatal(error: BaseException) -> bool:
    """Return True if an error concerns the whole database, not one statement."""
    state = error.sqlstate or "" if isinstance(error, psycopg.Error) else ""
    return is_passing(error) or state.startswith(("53", "58", "XX", "25"))


def translate_error(error: BaseException, shown: str) -> BaseException:
    """Return the error for the caller; errors that do not come from the storage are returned unchanged.

    `shown`: the URL without passwords. No message of libpq or the server contains a password.
    """
    match error:
        case TenureError():
            return error
        case psycopg.Error():
            return _translated(error, shown)
        case OSError():
            return StorageUnavailableError(f"{shown} cannot be reached: {error.strerror or error}")
        case _:
            return error


def no_thread(error: RuntimeError, shown: str) -> BaseException:
    """Return the error of a call whose thread has stopped accepting work, or could not be started."""
    return StorageUnavailableError(
        f"{shown} can no longer be used ({error}): it is being closed, or this process is ending. Use it before that, "
        "not from an atexit handler or from a thread that outlives the main program"
    )


def _translated(error: psycopg.Error, shown: str) -> BaseException:
    state, text = error.sqlstate or "", _text(error)
    match error:
        case pg.DiskFull():
            return StorageFullError(f"the disk of {shown} is full; nothing was written. Free some space and try again")
        case pg.ReadOnlySqlTransaction():
            return StorageUnavailableError(
                f"{shown} takes no writes: it is a standby, or set to read only. Name the primary; with several hosts "
                "in the URL the one that takes writes is found"
            )
        case pg.LockNotAvailable():
            return StorageUnavailableError(f"{shown} was kept busy by others for too long; try again")
        case _ if state in _PERMISSION:
            return StorageError(
                f"{shown} refuses this ({text}); put the right user and password into the URL, or grant the user USAGE "
                "of the schema and SELECT, INSERT, UPDATE and DELETE on its tables"
            )
        case _ if state == "3D000":
            return StorageError(f"{shown} names a database that does not exist ({text}); create it, or name another")
        case _ if state in _SCHEMA:
            return SchemaMismatchError(
                f"{shown} has another schema than this Tenure needs ({text}); run `tenure migrate up`"
            )
        case _ if state in ("53000", "53200", "53400"):
            return StorageUnavailableError(f"{shown} has too little memory or too low limits ({text})")
        case _ if is_passing(error):
            return StorageUnavailableError(f"{shown} cannot be reached: {_hinted(text)}")
        case _:
            return StorageError(f"{shown}: {text}")


def _text(error: psycopg.Error) -> str:
    """Return a message in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _hinted(text: str) -> str:
    """Add the remedy. libpq tells only in words why a connection could not be opened."""
    if "Connection refused" in text or "could not translate host name" in text:
        return f"{text}; check that it runs there, and that host and port are right"
    if any(words in text for words in _NO_SLOT):
        return (
            f"{text}; raise its max_connections, or put PgBouncer before it: each process needs up to four connections"
        )
    return text
