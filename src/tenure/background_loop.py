"""An event loop in its own thread, for work that must continue while the main loop is blocked or absent."""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from tenure.errors import StorageUnavailableError, TenureError, UsageError

T = TypeVar("T")

logger = logging.getLogger("tenure")

STOP_TIMEOUT = 5.0
"""Seconds that the coroutines of a thread get to end when it is stopped."""


class LoopRunner(Protocol):
    """Runs a coroutine (an agent) next to the main loop: in a thread in production, on the same loop in a simulation.

    `own_thread`: whether it is a separate thread, which continues while the main loop is blocked.
    """

    own_thread: bool

    def run(self, agent: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start an agent.

        Raises:
            RuntimeError, OSError: the thread or its event loop cannot be created.
        """
        ...

    async def stop(self) -> None:
        """Cancel the agents and wait until they have ended. Idempotent."""
        ...


class BackgroundLoop:
    """A daemon thread with an event loop; started by its first use."""

    own_thread = True

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._on_end: Callable[[], object] = lambda: None

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start a coroutine on the thread's loop; any thread may wait for its future.

        Raises:
            RuntimeError, OSError: the thread or its event loop cannot be created.
        """
        try:
            loop = self._started()
        except (RuntimeError, OSError):
            # The coroutine never runs; closing it avoids the warning that it was never awaited.
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, loop)

    def run(self, agent: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start an agent that runs until it is stopped."""
        self.submit(agent()).add_done_callback(self._ended)

    async def stop(self) -> None:
        """Cancel all coroutines of the thread, end it, and wait for that, for at most a few seconds."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        here = asyncio.get_running_loop()
        stopped = here.create_future()
        # The thread itself reports its end: a join would need another thread, and all of those may hang in handlers.
        self._on_end = lambda: here.call_soon_threadsafe(_resolve, stopped)
        cancelled = asyncio.run_coroutine_threadsafe(_cancel_all(), loop)
        cancelled.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                await stopped
        except TimeoutError:
            logger.warning("the coroutines of the thread %s do not end; they are abandoned", self._name)

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
                # Publish the loop only now: a coroutine sent to a loop that no thread runs would wait for ever.
                self._loop, self._thread = loop, thread
            return self._loop

    def _main(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            # As asyncio.run does: a storage closes its connections when its async generators end.
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
            with contextlib.suppress(RuntimeError):
                self._on_end()

    def _ended(self, agent: "Future[None]") -> None:
        if not agent.cancelled() and (failure := agent.exception()) is not None:
            logger.critical("an agent in the thread %s has failed", self._name, exc_info=failure)


class SameLoop:
    """Runs agents on the running loop instead of a separate thread."""

    own_thread = False

    def __init__(self, name: str) -> None:
        self._name = name
        self._agents: list[asyncio.Task[None]] = []

    def run(self, agent: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start an agent."""
        self._agents.append(asyncio.get_running_loop().create_task(agent(), name=self._name))

    async def stop(self) -> None:
        """Cancel the agents and wait until they have ended."""
        agents, self._agents = self._agents, []
        for agent in agents:
            agent.cancel()
        await asyncio.gather(*agents, return_exceptions=True)


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class CallerThread:
    """Lets a coroutine on the portal's loop have functions run in the thread that waits for the coroutine."""

    def __init__(self) -> None:
        self._requests = SimpleQueue[Callable[[], None] | None]()

    async def run(self, do: Callable[[], T]) -> T:
        """Run a function in the waiting thread and return its result."""
        answer = Future[T]()

        def perform() -> None:
            try:
                answer.set_result(do())
            except BaseException as error:
                answer.set_exception(error)

        self._requests.put(perform)
        return await asyncio.wrap_future(answer)

    def serve(self, future: "Future[Any]") -> None:
        """Run the functions that the coroutine of this future sends, until it has ended."""
        future.add_done_callback(lambda _: self._requests.put(None))
        while (perform := self._requests.get()) is not None:
            perform()


class Portal:
    """Runs async code for callers without an event loop, on one background loop per process, also after a fork."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._background_loop = BackgroundLoop("tenure-portal")

    def call(self, coroutine: Coroutine[Any, Any, T], *, verb: str, caller: "CallerThread | None" = None) -> T:
        """Run a coroutine to its end and return its result. `caller`: what the coroutine has the calling thread do.

        Raises:
            UsageError: it is called from within a running loop, which it would block.
            StorageUnavailableError: the thread cannot be started; nothing was done.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            coroutine.close()
            raise UsageError(f"{verb}_sync() would block the running event loop; use `await {verb}()` here")
        try:
            future = self._current().submit(coroutine)
        except RuntimeError as error:
            raise StorageUnavailableError(
                f"{verb}_sync() needs a thread of its own, and none can be started ({error}): the machine is at its "
                "limit, or the interpreter is ending. Nothing was done; call again, or earlier"
            ) from error
        try:
            if caller is not None:
                caller.serve(future)
            return future.result()
        except TenureError as error:
            # The frames of the other thread tell the caller nothing.
            raise error.with_traceback(None) from error.__cause__
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Start a coroutine whose result and failure do not matter."""
        try:
            future = self._current().submit(coroutine)
        except (RuntimeError, OSError):
            return
        # Without this, a failure would be logged.
        future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    def _current(self) -> BackgroundLoop:
        if self._pid != os.getpid():
            self._pid, self._background_loop = os.getpid(), BackgroundLoop("tenure-portal")
        return self._background_loop


PORTAL = Portal()
"""The portal of this process."""
