"""Opens the storage named by --url or --app, for commands that run no jobs."""

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tenure.app import DEFAULT_URL
from tenure.cli.load import load
from tenure.cli.logs import warn
from tenure.cli.session import CommandSession
from tenure.client.codec import JsonCodec
from tenure.errors import UsageError
from tenure.ops.names import KnownNames, known_names
from tenure.options import Timing
from tenure.outbox.outbox import Outbox
from tenure.storage.postgres.address import PostgresAddress
from tenure.storage.protocol import Storage
from tenure.storage.urls import locate, read

_SQLITE = "sqlite:///"


@dataclass(frozen=True)
class StorageAccess:
    """A storage, with the decoder, the timing and the outbox of its app. `tasks`: the queue of each task.

    Without an app there are no tasks and no outbox.
    """

    storage: Storage
    decode: Callable[[bytes], Any]
    timing: Timing
    tasks: Mapping[str, str] = field(default_factory=dict[str, str])
    outbox: Outbox | None = None

    async def names(self) -> KnownNames:
        """Return the names that the storage and the app know.

        Raises:
            StorageError: the storage cannot be reached.
        """
        return known_names(await self.storage.survey(), self.tasks)


@asynccontextmanager
async def accessed(session: CommandSession) -> AsyncGenerator[StorageAccess]:
    """Open the requested storage, and close it at the end. This never creates or migrates a database.

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
    """Refuse a storage whose database file does not exist yet.

    Raises:
        UsageError: the file does not exist.
    """
    path = file_of(storage.url)
    # Unlike `Path.exists`, this does not raise if a directory may not be entered; then `open` says so.
    if path is not None and not os.path.lexists(path) and os.access(path.parent, os.X_OK):
        raise UsageError(
            f"no database exists at {path.absolute()}; give another one with --url, or create it with tenure migrate "
            "up, a worker or an enqueue"
        )


def reach(session: CommandSession, *, auto_migrate: bool = False) -> StorageAccess:
    """Return the requested storage, not yet opened: named by --url, else by the app, else by the environment.

    Raises:
        UsageError: the app or the storage does not exist, or other processes cannot see it.
    """
    warn(quiet=session.quiet)
    if session.url is None and session.app is not None:
        app = load(session.app, folder=session.app_dir)
        # A command that only reads must not migrate the database while workers use it.
        storage = locate(app.url, auto_migrate=auto_migrate) if _has_schema(app.url) else app.storage
        tasks = {name: task.queue for name, task in {**app.declared, **app.tasks}.items()}
        return StorageAccess(shared(storage), app.codec.decode, app.timing, tasks, app.outbox)
    url = session.url or session.fallback or DEFAULT_URL
    return StorageAccess(shared(locate(url, auto_migrate=auto_migrate)), JsonCodec().decode, Timing())


def _has_schema(url: str) -> bool:
    """Return True if the storage at a URL has a schema that may have to be made or migrated."""
    return file_of(url) is not None or isinstance(read(url), PostgresAddress)


def shared(storage: Storage) -> Storage:
    """Return the storage, if other processes can see it.

    Raises:
        UsageError: they cannot.
    """
    if not storage.shared:
        raise UsageError(
            f"{storage.url} cannot be read from here: a memory storage belongs to one process; use sqlite:///..."
        )
    return storage


def file_of(url: str) -> Path | None:
    """Return the file that a URL names, or None if it names none."""
    plain = url.split("?", 1)[0]
    return Path(plain.removeprefix(_SQLITE)) if plain.startswith(_SQLITE) else None
