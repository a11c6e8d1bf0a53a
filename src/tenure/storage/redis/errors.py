"""Translates redis-py's errors into Tenure's errors; no other module does."""

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from tenure.errors import StorageError, StorageFullError, StorageUnavailableError, TenureError
from tenure.storage.redis.connection import LATE, NO_HOST, REFUSED, unreached, why

_REFUSED: tuple[type[RedisError], ...] = (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    TryAgainError,
)
RULES = "~* &* +@read +@write +@scripting +@pubsub +@connection +time +info +config|get +cluster +role"
"""The permissions that a user needs, as rules for ACL SETUSER. @connection includes WAIT and COMMAND."""

_LONELY = "NOREPLICAS "
_REFUSALS = ("ASK ", "CLUSTERDOWN ", "LOADING ", "MASTERDOWN ", "MOVED ", _LONELY, "READONLY ", "TRYAGAIN ")


def undone(error: RedisError) -> bool:
    """Return True if a server refused a command before it did anything, and may accept it in a moment."""
    return isinstance(error, _REFUSED) or str(error).startswith(_REFUSALS)


def cause_of(error: BaseException) -> BaseException | None:
    """Return the cause to show with the error that a caller sees; None if its message says all that the cause does."""
    return None if unreached(error) or (isinstance(error, RedisError) and undone(error)) else error


def ours(error: BaseException, shown: str, script: str = "") -> BaseException:
    """Return the error that a caller sees; an error that does not come from the storage is returned unchanged."""
    match error:
        case TenureError():
            return error
        case AuthenticationError():
            return StorageError(
                f"{shown} refuses the login ({why(error).rstrip('.')}); put the right user and password into the URL: "
                "redis://user:password@host, or redis://:password@host if it knows no users"
            )
        case AuthorizationError() | NoPermissionError():
            return _forbidden(why(error), shown)
        case OutOfMemoryError():
            return _full(shown)
        case RedisError() if str(error).startswith(_LONELY):
            return StorageUnavailableError(
                f"{shown} has fewer replicas in reach than its min-replicas-to-write ({error}); bring one back"
            )
        case RedisError() if undone(error):
            return StorageUnavailableError(
                f"{shown} accepts no calls right now ({why(error)}): it starts, fails over or moves data; try again"
            )
        case ResponseError():
            return _answered(str(error), shown, script)
        case RedisError() | OSError():
            return StorageUnavailableError(f"{shown} cannot be reached: {_unreached(why(error), shown)}")
        case _:
            return error


def _unreached(reason: str, shown: str) -> str:
    if reason.endswith((REFUSED, NO_HOST)):
        return f"{reason}; check that it runs there, and that host and port are right"
    if reason.endswith(LATE) and shown.startswith(("rediss", "valkeys")):
        return f"{reason}; check that it runs and speaks TLS there (if it does not, the address begins with redis)"
    return reason


def _forbidden(text: str, shown: str) -> StorageError:
    return StorageError(
        f"{shown}: the user of the URL may not do everything that is needed ({text}); allow it: ACL SETUSER <user> "
        f"{RULES}. Instead of all keys and channels those of the namespace do: docs/howto/redis.md"
    )


def _answered(text: str, shown: str, script: str) -> StorageError:
    match text.partition(" ")[0]:
        case "OOM":
            return _full(shown)
        case "MISCONF":
            return StorageFullError(
                f"{shown} cannot write to its disk and so takes no writes ({text}). Free some space there, or "
                "fix the cause that its log names"
            )
        case "BUSY":
            return StorageUnavailableError(f"{shown} is busy with a script for too long ({text}); try again")
        case "UNKILLABLE":
            return StorageUnavailableError(f"{shown} is busy with a script that cannot be killed ({text})")
        case _ if "user executing the script" in text or "ACL failure in script" in text:
            return _forbidden(text, shown)
        case _ if "DB index is out of range" in text:
            return StorageError(
                f"{shown} names a database that the server does not have; use one from 0 to its setting databases less "
                "one (0 to 15 unless that was changed)"
            )
        case _ if "max number of clients" in text:
            return StorageUnavailableError(f"{shown} has no room for a further client ({text}); raise its maxclients")
        case _:
            by = f"the script {script} failed: " if script else ""
            return StorageError(f"{shown}: {by}{text}")


def _full(shown: str) -> StorageFullError:
    return StorageFullError(
        f"{shown} has reached its maxmemory; nothing was written. Raise maxmemory, or delete ended jobs sooner "
        "(app.queue(name).set_retention)"
    )
