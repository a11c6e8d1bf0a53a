"""Runs that were left to themselves and are still at work: what they hold of the process, they hold until they end.

A thread cannot be ended, nor can a coroutine that swallows its cancellation. Their jobs are settled and their slots are
free, but with enough of them the process is not what it was: then it had better be replaced.
"""

import asyncio
from collections.abc import Callable

from tenure.threads import WorkerThread

MOST = 4
"""With so many of them in one process it claims no more, and is recycled."""

LINGER = 2.0
"""Seconds that a handler or a hook gets to end once it has been cancelled; then it is left to itself."""


class Abandoned:
    """Counts them."""

    def __init__(self, too_many: Callable[[], None] = lambda: None) -> None:
        self.count = 0
        """How many are at work."""
        self._too_many = too_many
        self._none = asyncio.Event()
        self._none.set()

    def lane(self, lane: WorkerThread) -> None:
        """Count a thread until it is idle."""
        self._add()
        lane.once_idle(self._ended)

    def task(self, task: "asyncio.Task[None]") -> None:
        """Count a task until it is done."""
        self._add()
        task.add_done_callback(lambda _: self._ended())

    async def over(self) -> None:
        """Wait until none is at work."""
        await self._none.wait()

    def _add(self) -> None:
        self.count += 1
        self._none.clear()
        if self.count == MOST:
            self._too_many()

    def _ended(self) -> None:
        self.count -= 1
        if not self.count:
            self._none.set()
