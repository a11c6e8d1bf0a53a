"""The runtime that an app gives to its workers and reapers: all that they need, without a reference to the app."""

import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tenure.background_loop import BackgroundLoop, LoopRunner
from tenure.client.app_location import AppLocation
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
from tenure.outbox.outbox import Outbox
from tenure.storage.protocol import Storage
from tenure.storage.urls import locate


@dataclass(frozen=True)
class Runtime:
    """The storage, the tasks, and the sources of time, randomness and threads."""

    app: str
    storage: Storage
    tasks: Mapping[str, Task[..., Any]]
    codec: Codec
    event_handlers: Handlers
    timing: Timing
    logger: logging.Logger
    clock: Clock = field(default_factory=SystemClock)
    metrics: MetricsRegistry = field(default_factory=MetricsRegistry)
    """The metrics of all workers and reapers of this app in this process."""
    rng: Random = field(default_factory=entropy)
    background_loop: Callable[[str], LoopRunner] = BackgroundLoop
    schedules: Mapping[str, Schedule] = field(default_factory=dict[str, Schedule])
    """Schedules declared in code; workers and reapers store them when they start."""
    middleware: tuple[Middleware, ...] = ()
    overrides: Mapping[Provider, Provider] = field(default_factory=dict[Provider, Provider])
    """The replaced providers and their replacements, at this moment (`app.override`)."""
    lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None
    outbox: Outbox | None = None
    """The outbox whose calls the workers of the app relay."""
    app_location: Callable[[], AppLocation | None] = lambda: None
    """Returns where another process can import the app, or None if it cannot."""

    def check_migrations(self) -> None:
        """Check that every task has migrations for all payload versions that it accepts.

        Raises:
            UsageError: a task lacks a migration.
        """
        for task in self.tasks.values():
            task.migrations.complete(task=task.name)

    def owner(self, name: str | None = None, *, id_: str | None = None) -> Owner:
        """Return a new owner for this process; `name` is its display name."""
        host, pid = socket.gethostname(), os.getpid()
        return Owner(id_ or owner_id(self.rng), name or f"{host}:{pid}", host, pid)


def runtime_from_url(
    url: str,
    *,
    timing: Timing | None = None,
    logger: logging.Logger | None = None,
    codec: Codec | None = None,
) -> Runtime:
    """Return a runtime without an app's code: enough for a reaper and for commands that only read.

    Raises:
        UsageError: the URL names no storage.
    """
    return Runtime(
        app="",
        storage=locate(url),
        tasks={},
        codec=codec or JsonCodec(),
        event_handlers=Handlers(),
        timing=timing or Timing(),
        logger=logger or logging.getLogger("tenure"),
    )
