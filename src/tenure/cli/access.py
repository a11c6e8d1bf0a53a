"""Opens the storage named by --url or --app, for commands that run no jobs."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tenure.app import DEFAULT_URL
from tenure.cli.load import load
from tenure.cli.logs import warn
from tenure.cli.session import CommandSession
from tenure.client.codec import JsonCodec
from tenure.errors import UsageError
from tenure.ops.access import StorageAccess, file_of, must_exist
from tenure.options import Timing
from tenure.storage.postgres.address import PostgresAddress
from tenure.storage.protocol import Storage
from tenure.storage.urls import locate, read


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
        return StorageAccess(
            shared(storage),
            app.codec.decode,
            app.timing,
            {**app.declared, **app.tasks},
            frozenset(app.tasks),
            app.outbox,
            app.webhooks,
        )
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
