"""What an app hands to its workers and reapers: everything they need, and nothing that leads back to the app."""

import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tenure.background_loop import BackgroundLoop, LoopRunner
from tenure.client.app_location import Whereabouts
from tenure.client.codec import Codec, JsonCodec
from tenure.client.task import Task
from tenure.clock import Clock, SystemClock, entropy
from tenure.core.job import Owner
from tenure.core.schedule import Schedule
from tenure.events.bus import Handlers
from tenure.handlers.injection import Provider
from tenure.handlers.middleware import Middleware
from tenure.ids import owner_id
from tenure.metrics import MetricsRegistry
from tenure.options import Timing
from tenure.storage.protocol import Storage
from tenure.storage.urls import locate


@dataclass(frozen=True)
class Runtime:
    """A storage, the tasks, and the handed-in sources of time, chance and threads."""

    app: str
    storage: Storage
    tasks: Mapping[str, Task[..., Any]]
    codec: Codec
    hearers: Handlers
    timing: Timing
    logger: logging.Logger
    clock: Clock = field(default_factory=SystemClock)
    figures: MetricsRegistry = field(default_factory=MetricsRegistry)
    """What is counted of the work that it is handed out for, for all who work in this process."""
    rng: Random = field(default_factory=entropy)
    side: Callable[[str], LoopRunner] = BackgroundLoop
    schedules: Mapping[str, Schedule] = field(default_factory=dict[str, Schedule])
    """What code declares, for whoever starts to put into the storage."""
    middleware: tuple[Middleware, ...] = ()
    replaced: Mapping[Provider, Provider] = field(default_factory=dict[Provider, Provider])
    """Which providers others stand in for, at this moment."""
    lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None
    whereabouts: Callable[[], Whereabouts | None] = lambda: None
    """Tells where another process finds the app, at this moment; None where it does not."""

    def complete(self) -> None:
        """Make sure that every task understands all the versions of its payload that it says it does.

        Raises:
            UsageError: one lacks a migration.
        """
        for task in self.tasks.values():
            task.migrations.complete(task=task.name)

    def owner(self, name: str | None = None, *, incarnation: str | None = None) -> Owner:
        """Return a new owner of this process, with a name to show."""
        host, pid = socket.gethostname(), os.getpid()
        return Owner(incarnation or owner_id(self.rng), name or f"{host}:{pid}", host, pid)


def bare(
    url: str,
    *,
    timing: Timing | None = None,
    logger: logging.Logger | None = None,
    codec: Codec | None = None,
) -> Runtime:
    """Return equipment without an app's code: enough for a reaper and for whoever looks on.

    Raises:
        UsageError: the URL names no storage.
    """
    return Runtime(
        app="",
        storage=locate(url),
        tasks={},
        codec=codec or JsonCodec(),
        hearers=Handlers(),
        timing=timing or Timing(),
        logger=logger or logging.getLogger("tenure"),
    )
