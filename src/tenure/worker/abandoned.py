"""Counts abandoned runs: runs whose handlers are still at work although their jobs are settled.

A thread cannot be ended, and neither can a coroutine that swallows its cancellation. Such handlers keep the resources
that they use until they end. Their jobs are settled and other jobs may begin, but a process with too many of them
should be recycled.
"""

import asyncio
from collections.abc import Callable

from tenure.threads import WorkerThread

MOST_ABANDONED = 4
"""A process with this many abandoned handlers claims no more and is recycled."""

CANCEL_GRACE = 2.0
"""Seconds that a handler or a hook gets to end after its cancellation. Then it is abandoned."""


class Abandoned:
    """Counts the abandoned handlers and hooks of a process."""

    def __init__(self, too_many: Callable[[], None] = lambda: None) -> None:
        self.count = 0
        """The number that is at work."""
        self._too_many = too_many
        self._none = asyncio.Event()
        self._none.set()

    def add_thread(self, thread: WorkerThread) -> None:
        """Count a thread until it is idle."""
        self._count_up()
        thread.when_idle(self._ended)

    def add_task(self, task: "asyncio.Task[None]") -> None:
        """Count a task until it is done."""
        self._count_up()
        task.add_done_callback(lambda _: self._ended())

    async def wait(self) -> None:
        """Wait until none is at work."""
        await self._none.wait()

    def _count_up(self) -> None:
        self.count += 1
        self._none.clear()
        if self.count == MOST_ABANDONED:
            self._too_many()

    def _ended(self) -> None:
        self.count -= 1
        if not self.count:
            self._none.set()
