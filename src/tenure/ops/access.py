"""A storage with what an app adds to it: decoder, timing and tasks. The command line and the console read it."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tenure.client.dead_letters import DeadLetters
from tenure.client.task import Task
from tenure.errors import UsageError
from tenure.ops.names import KnownNames, known_names
from tenure.options import Timing
from tenure.outbox.outbox import Outbox
from tenure.storage.protocol import Storage, Survey
from tenure.webhooks.declaration import Webhook

_SQLITE = "sqlite:///"


@dataclass(frozen=True)
class StorageAccess:
    """A storage, with the decoder, the timing and the outbox of its app.

    `tasks`: the tasks of the app, those that are only declared included; None without an app. `implemented`: the names
    of those with a handler. `webhooks`: those of the app, by name.
    """

    storage: Storage
    decode: Callable[[bytes], Any]
    timing: Timing
    tasks: Mapping[str, Task[..., Any]] | None = None
    implemented: frozenset[str] = field(default_factory=frozenset[str])
    outbox: Outbox | None = None
    webhooks: Mapping[str, Webhook] = field(default_factory=dict[str, Webhook])

    def known(self, survey: Survey) -> KnownNames:
        """Return the names that the storage and the app know."""
        return known_names(survey, {name: task.queue for name, task in (self.tasks or {}).items()})

    async def names(self) -> KnownNames:
        """Return the names that the storage and the app know, from a new survey.

        Raises:
            StorageError: the storage cannot be reached.
        """
        return self.known(await self.storage.survey())

    @property
    def dead(self) -> DeadLetters:
        """The dead letters of the storage."""
        return DeadLetters(self._storage)

    async def _storage(self) -> Storage:
        return self.storage


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


def file_of(url: str) -> Path | None:
    """Return the file that a URL names, or None if it names none."""
    plain = url.split("?", 1)[0]
    return Path(plain.removeprefix(_SQLITE)) if plain.startswith(_SQLITE) else None
