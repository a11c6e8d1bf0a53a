"""An event loop in a thread of its own, for what must go on while the main loop is blocked or absent."""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from tenure.errors import StorageUnavailableError, UsageError

T = TypeVar("T")

logger = logging.getLogger("tenure")

LONGEST_GOODBYE = 5.0
"""Seconds that the agents of a thread get to end."""


class LoopRunner(Protocol):
    """Where an agent runs beside the main loop: a thread in production, the same loop in a simulation.

    `apart`: whether it is a thread of its own, which goes on while the main loop is blocked.
    """

    apart: bool

    def run(self, agent: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start an agent.

        Raises:
            RuntimeError, OSError: there is no thread for it, or nothing to make its loop of.
        """
        ...

    async def stop(self) -> None:
        """Cancel the agents and wait until they are gone. Idempotent."""
        ...


class BackgroundLoop:
    """A daemon thread with an event loop; started by its first use."""

    apart = True

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._farewell: Callable[[], object] = lambda: None

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start a coroutine on the thread's loop; its future may be awaited from anywhere.

        Raises:
            RuntimeError, OSError: there is no thread for it, or nothing to make its loop of.
        """
        try:
            loop = self._started()
        except (RuntimeError, OSError):
            # Nobody will, and nobody shall be warned of that.
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, loop)

    def run(self, agent: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start an agent that runs until it is stopped."""
        self.submit(agent()).add_done_callback(self._ended)

    async def stop(self) -> None:
        """Cancel whatever runs there and end the thread; waits for that, but no longer than a few seconds."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        here = asyncio.get_running_loop()
        gone = here.create_future()
        # Told by the thread itself: joining it would need another thread, and all of those may hang in handlers.
        self._farewell = lambda: here.call_soon_threadsafe(_resolve, gone)
        cancelled = asyncio.run_coroutine_threadsafe(_cancel_all(), loop)
        cancelled.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
        try:
            async with asyncio.timeout(LONGEST_GOODBYE):
                await gone
        except TimeoutError:
            logger.warning("what runs in the thread %s does not end; it is left to itself", self._name)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=self._main, args=(loop,), name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    loop.close()
                    raise
                # Only now: what is sent to a loop that no thread runs waits for ever.
                self._loop, self._thread = loop, thread
            return self._loop

    def _main(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            # A storage has its connections closed by the end of a generator, as asyncio.run would end it.
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
            with contextlib.suppress(RuntimeError):
                self._farewell()

    def _ended(self, agent: "Future[None]") -> None:
        if not agent.cancelled() and (failure := agent.exception()) is not None:
            logger.critical("an agent in the thread %s has failed", self._name, exc_info=failure)


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _resolve(gone: "asyncio.Future[None]") -> None:
    if not gone.done():
        gone.set_result(None)


class Portal:
    """The way into async code for callers without a loop: one side loop a process, made anew after a fork."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._side = BackgroundLoop("tenure-portal")

    def call(self, coroutine: Coroutine[Any, Any, T], *, verb: str) -> T:
        """Run a coroutine to its end and return its result.

        Raises:
            UsageError: called from within a running loop, which it would block.
            StorageUnavailableError: there is no thread to run it; nothing was done.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            coroutine.close()
            raise UsageError(f"{verb}_sync() would block the running event loop; use `await {verb}()` here")
        if self._pid != os.getpid():
            self._pid, self._side = os.getpid(), BackgroundLoop("tenure-portal")
        try:
            future = self._side.submit(coroutine)
        except RuntimeError as error:
            raise StorageUnavailableError(
                f"{verb}_sync() needs a thread of its own, and there is none to be had ({error}): this machine has no "
                "more, or the interpreter is ending. Nothing was done; call again, or before the end"
            ) from error
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


PORTAL = Portal()
"""The process's own."""
