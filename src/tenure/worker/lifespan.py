"""The app's lifespan: a context manager entered before the worker's first claim and left after its last run."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

from tenure.core.check import shown
from tenure.errors import UsageError

Lived = Callable[[], AbstractAsyncContextManager[Any]]

MOMENT = 0.1
"""Seconds that the lifespan gets to end after its cancellation. Then it is abandoned."""


class Lifespan:
    """Runs a context manager in its own task, so that its task groups are entered and left in the same task.

    `state` is the value that it yields. Without a context manager, all methods return at once.
    """

    def __init__(self, enter_lifespan: Lived | None, *, worker: str, logger: logging.Logger) -> None:
        self.state: Any = None
        self._lived = enter_lifespan
        self._worker = worker
        self._logger = logger
        self._entered = asyncio.Event()
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def lives(self) -> bool:
        """True if the lifespan has been entered and has not ended."""
        return self._task is not None and not self._task.done()

    async def enter(self, given_up: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Enter the lifespan. Stop if `given_up` returns first.

        Raises:
            BaseException: the exception of the context manager. Then the lifespan is not entered.
        """
        if self._lived is None:
            return
        self._task = task = asyncio.create_task(self._live(self._lived), name=f"lifespan of worker {self._worker}")
        waits: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._entered.wait()),
            asyncio.create_task(given_up()),
        ]
        try:
            await asyncio.wait({task, *waits}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task = None
            await _cancelled(task)
            raise
        finally:
            for wait in waits:
                wait.cancel()
        if task.done():
            self._task = None
            self._logger.critical("worker %s does not start: its lifespan cannot be entered", self._worker)
            task.result()
        elif not self._entered.is_set():
            await self.cut_off()

    def end(self) -> None:
        """Let the context manager be left."""
        self._over.set()

    async def ended(self) -> None:
        """Wait until the lifespan has been left, or has ended by itself."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def fail(self) -> None:
        """Wait until the lifespan ends by itself, which is an error.

        Raises:
            RuntimeError: the lifespan ended by itself.
        """
        await self.ended()
        if self._task is not None and not self._over.is_set():
            failure = None if self._task.cancelled() else self._task.exception()
            raise RuntimeError("the lifespan ended before its worker did") from failure

    async def cut_off(self) -> None:
        """Cancel the lifespan if it goes on, and log its failure. No further wait is needed."""
        task, self._task = self._task, None
        if task is None:
            return
        if not task.done():
            await _cancelled(task)
            what = "end" if self._entered.is_set() else "be entered"
            self._logger.error("the lifespan of worker %s took too long to %s; cancelling it", self._worker, what)
        elif not task.cancelled() and (failure := task.exception()) is not None:
            self._logger.error("the lifespan of worker %s failed while it ended", self._worker, exc_info=failure)

    async def _live(self, enter_lifespan: Lived) -> None:
        made = enter_lifespan()
        if not hasattr(made, "__aenter__"):
            raise UsageError(
                f"lifespan gave {shown(made)}, which is not an async context manager; decorate the function with "
                "contextlib.asynccontextmanager"
            )
        async with made as state:
            self.state = state
            self._entered.set()
            await self._over.wait()


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    task.add_done_callback(_seen)
    await asyncio.wait({task}, timeout=MOMENT)


def _seen(task: "asyncio.Task[None]") -> None:
    # If the exception is not retrieved, asyncio logs an error.
    if not task.cancelled():
        task.exception()
