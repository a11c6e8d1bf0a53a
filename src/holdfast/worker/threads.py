"""Daemon threads for plain handlers, kept for the next one; a handler that hangs keeps its thread, not its worker."""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

Work = Callable[[], None]


class Threads:
    """Runs plain functions in threads of its own.

    Not a ThreadPoolExecutor: that waits for its threads when the interpreter ends, and one hung handler would keep the
    process from ever leaving.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Work | None]] = []
        self._made = 0

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call the function in a thread, in the caller's context. Cancelling the wait leaves the thread to itself."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def settle(value: Any, error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(value)
            else:
                done.set_exception(error)

        def work() -> None:
            value, failure = None, None
            try:
                value = context.run(function)
            except BaseException as error:
                # A future cannot carry StopIteration, and SystemExit must not end the loop.
                failure = (
                    error if isinstance(error, Exception) and not isinstance(error, StopIteration) else wrapped(error)
                )
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, value, failure)

        self._hand(work)
        return await done

    def close(self) -> None:
        """Let idle threads end."""
        with self._lock:
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _hand(self, work: Work) -> None:
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
            if inbox is None:
                inbox = queue.SimpleQueue[Work | None]()
                self._made += 1
                threading.Thread(
                    target=self._main, args=(inbox,), name=f"{self._name}-{self._made}", daemon=True
                ).start()
        inbox.put(work)

    def _main(self, inbox: "queue.SimpleQueue[Work | None]") -> None:
        while (work := inbox.get()) is not None:
            work()
            with self._lock:
                self._idle.append(inbox)


class HandlerExit(Exception):
    """A plain handler raised something that is no ordinary exception (SystemExit, StopIteration)."""


def wrapped(error: BaseException) -> HandlerExit:
    """Return as an ordinary exception what is none."""
    ordinary = HandlerExit(f"{type(error).__name__}: {error}")
    ordinary.__cause__ = error
    return ordinary
