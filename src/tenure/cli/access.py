"""From what a call was told to an open storage, for commands that look on or lend a hand and run no jobs."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenure.app import DEFAULT_URL
from tenure.cli.load import load
from tenure.cli.logs import warn
from tenure.cli.session import CommandSession
from tenure.client.codec import JsonCodec
from tenure.errors import UsageError
from tenure.options import Timing
from tenure.storage.protocol import Storage
from tenure.storage.urls import locate

_SQLITE = "sqlite:///"


@dataclass(frozen=True)
class StorageAccess:
    """A storage, and how to read what it keeps."""

    storage: Storage
    decode: Callable[[bytes], Any]
    timing: Timing


@asynccontextmanager
async def accessed(session: CommandSession) -> AsyncGenerator[StorageAccess]:
    """Open the storage that was asked for, and close it in the end. Never makes or migrates a database.

    Raises:
        UsageError: it does not exist, or other processes cannot see it.
        StorageError: it cannot be opened.
    """
    access = reach(session)
    must_exist(access.storage)
    await access.storage.open()
    try:
        yield access
    finally:
        await access.storage.close()


def must_exist(storage: Storage) -> None:
    """Refuse a storage whose file nobody has made yet.

    Raises:
        UsageError: there is none.
    """
    if (path := file_of(storage.url)) is not None and not path.exists():
        raise UsageError(
            f"there is no database at {path.absolute()}; name another with --url, "
            "or let a worker, an enqueue or tenure migrate make this one"
        )


def reach(session: CommandSession, *, auto_migrate: bool = False) -> StorageAccess:
    """Return the storage that was asked for, not yet opened: by --url, else by the app, else by the environment.

    Raises:
        UsageError: there is no such app or storage, or other processes cannot see it.
    """
    warn(quiet=session.quiet)
    if session.url is None and session.app is not None:
        app = load(session.app)
        # Whoever only looks on must not migrate under the feet of those who work.
        storage = app.storage if file_of(app.url) is None else locate(app.url, auto_migrate=auto_migrate)
        return StorageAccess(shared(storage), app.codec.decode, app.timing)
    url = session.url or session.fallback or DEFAULT_URL
    return StorageAccess(shared(locate(url, auto_migrate=auto_migrate)), JsonCodec().decode, Timing())


def shared(storage: Storage) -> Storage:
    """Return the storage, if other processes can see it.

    Raises:
        UsageError: they cannot.
    """
    if not storage.shared:
        raise UsageError(f"{storage.url} cannot be seen from here: memory lives in one process; use sqlite:///...")
    return storage


def file_of(url: str) -> Path | None:
    """Return the file that a URL names, or None if it names none."""
    plain = url.split("?", 1)[0]
    return Path(plain.removeprefix(_SQLITE)) if plain.startswith(_SQLITE) else None
