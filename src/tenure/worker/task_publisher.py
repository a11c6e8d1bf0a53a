"""Publishes what a worker knows of its tasks, so that a console without the app's code can show and enqueue them."""

import asyncio
import logging
from collections.abc import Mapping
from random import Random
from typing import Any

from tenure.client.publication import publication
from tenure.client.task import Task
from tenure.clock import Clock
from tenure.core.exponential_delay import ExponentialDelay
from tenure.core.internal import is_internal
from tenure.core.published import PUBLISH_LIMIT, PublishedTask
from tenure.errors import StorageError
from tenure.storage.protocol import Storage

RENEW_EVERY = 3_600.0
"""Seconds between two publications of a worker. A storage forgets a task after 30 days without one."""

PATIENCE = ExponentialDelay(5.0, 300.0)
"""The wait after a failed publication. Nothing that a worker does depends on it."""

TIME_LIMIT = 30.0
"""Seconds that one publication may take."""

AT_ONCE = 0.01
"""Seconds after which the making of schemas lets other work of the event loop go on."""


class TaskPublisher:
    """Publishes the tasks of one worker. `seed`: of the waits after failures, which differ from worker to worker."""

    def __init__(
        self,
        storage: Storage,
        tasks: Mapping[str, Task[..., Any]],
        clock: Clock,
        logger: logging.Logger,
        *,
        seed: str,
    ) -> None:
        self._storage = storage
        self._tasks = tasks
        self._clock = clock
        self._logger = logger
        self._rng = Random(seed)
        self._published: dict[str, PublishedTask] = {}
        self._failures = 0
        self._is_renewal = False
        self.tried = asyncio.Event()
        """Set after the first attempt."""

    async def turn(self) -> float:
        """Publish the tasks and return the seconds until the next turn. Failures are logged and tried again."""
        try:
            async with asyncio.timeout(TIME_LIMIT):
                await self._publish()
        except Exception as error:
            # A worker goes on without it, also if the code of a task's type fails.
            self._failures += 1
            if self._failures == 1:
                expected = isinstance(error, StorageError | TimeoutError)
                self._logger.warning(
                    "cannot publish the tasks, trying again: %r", error, exc_info=None if expected else error
                )
            return PATIENCE.rest(self._failures, self._rng)
        finally:
            self.tried.set()
        self._failures = 0
        self._is_renewal = True
        return RENEW_EVERY

    async def _publish(self) -> None:
        began = self._clock.uptime()
        for name, task in list(self._tasks.items()):
            if name in self._published or is_internal(name):
                continue
            try:
                self._published[name], missing = publication(task)
            except Exception as error:
                # The code of the app makes texts of its options and defaults.
                self._logger.warning("task %r cannot be published: %r", name, error)
                continue
            for why in missing:
                self._logger.warning("task %r is published without a schema: %s", name, why)
            if self._clock.uptime() - began > AT_ONCE:
                await asyncio.sleep(0)
                began = self._clock.uptime()
        tasks = list(self._published.values())
        for first in range(0, len(tasks), PUBLISH_LIMIT):
            await self._storage.publish(tasks[first : first + PUBLISH_LIMIT], renewal=self._is_renewal)
