"""A pool of daemon threads for plain functions; a handler that hangs blocks its thread, not the exit of its worker."""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from tenure.failures import class_name, is_a, text_of

T = TypeVar("T")

Work = Callable[[], None]
Inbox = queue.SimpleQueue[Work | None]

_UNSET = object()


class NoThreadError(Exception):
    """No thread can be started; the function was not called."""


class ThreadPool:
    """Runs plain functions in daemon threads.

    It does not use ThreadPoolExecutor, which waits for its threads when the interpreter exits. One handler that hangs
    would then keep the process running for ever.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[Inbox] = []
        self._made = 0
        self._closed = False

    def worker_thread(self) -> "WorkerThread":
        """Return a thread for the functions of one run; it is taken from the pool at the first call."""
        return WorkerThread(self)

    def take(self) -> Inbox:
        """Return the inbox of an idle thread, or of a new one.

        Raises:
            NoThreadError: no thread is idle, and none can be started.
        """
        with self._lock:
            if self._idle:
                return self._idle.pop()
            inbox = Inbox()
            self._made += 1
            thread = threading.Thread(target=_work, args=(inbox,), name=f"{self._name}-{self._made}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise NoThreadError(str(error)) from error
        return inbox

    def give_back(self, inbox: Inbox) -> None:
        """Return an idle thread to the pool."""
        with self._lock:
            if not self._closed:
                self._idle.append(inbox)
                return
        inbox.put(None)

    def close(self) -> None:
        """Let idle threads end, and others once they are idle."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)


class DaemonExecutor(Executor):
    """An executor for an event loop, with daemon threads, which do not keep the process from exiting."""

    def __init__(self, name: str) -> None:
        self._threads = ThreadPool(name)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        """Call the function in an idle thread, or in a new one.

        Raises:
            NoThreadError: no thread is idle, and none can be started.
        """
        future: Future[T] = Future()
        inbox = self._threads.take()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)
            self._threads.give_back(inbox)

        inbox.put(work)
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Let idle threads end, and others once they are idle. This never waits, as a function may never return."""
        self._threads.close()


class WorkerThread:
    """One thread for one run: all plain functions of the run are called there, one by one, in one context.

    So a connection that must stay in its thread can be opened, used and closed there. If a handler was abandoned, its
    resources are closed only after it has returned.
    """

    def __init__(self, threads: ThreadPool) -> None:
        self._threads = threads
        self._inbox: Inbox | None = None
        self._context = self._seen = contextvars.Context()
        """The context in which all functions are called, and a copy of the last caller's context."""
        self._queued = 0
        self.ident: int | None = None
        """The thread's ident while a function runs in it, else None."""
        self._idle: asyncio.Event | None = None
        self._when_idle: list[Callable[[], None]] = []

    @property
    def busy(self) -> bool:
        """Return True if a function runs or is queued, even if the caller no longer waits for it."""
        return self._queued > 0

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call the function in the thread. Cancelling the wait does not stop the function.

        Its context is that of the first caller, plus later changes made by the functions called here or by callers.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        now, changes = contextvars.copy_context(), list[tuple[contextvars.ContextVar[Any], Any]]()
        if self._inbox is None:
            self._inbox, self._context = self._threads.take(), now.copy()
        else:
            changes = [
                (changed, new_value)
                for changed, new_value in now.items()
                if self._seen.get(changed, _UNSET) is not new_value
            ]
        self._seen, context = now, self._context

        def settle(value: Any, error: BaseException | None) -> None:
            self._queued -= 1
            if not self._queued:
                self._notify_idle()
            if done.done():
                return
            if error is None:
                done.set_result(value)
            else:
                done.set_exception(error)

        def work() -> None:
            value, failure = None, None
            self.ident = threading.get_ident()
            try:
                for variable, new_value in changes:
                    context.run(variable.set, new_value)
                value = context.run(function)
            except BaseException as error:
                # A future cannot carry StopIteration, and SystemExit must not end the loop.
                failure = error if is_a(error, Exception) and not is_a(error, StopIteration) else wrapped(error)
            finally:
                self.ident = None
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, value, failure)

        self._queued += 1
        self._inbox.put(work)
        return await done

    async def idle(self) -> None:
        """Wait until no function runs or is queued."""
        if self.busy:
            self._idle = asyncio.Event()
            await self._idle.wait()

    def when_idle(self, call: Callable[[], None]) -> None:
        """Call `call` once, as soon as no function runs or is queued."""
        self._when_idle.append(call)
        if not self.busy:
            self._notify_idle()

    def _notify_idle(self) -> None:
        if self._idle is not None:
            self._idle.set()
        calls, self._when_idle = self._when_idle, []
        for call in calls:
            call()

    def close(self) -> None:
        """Return the thread to the pool, at once or as soon as it is idle."""
        inbox, self._inbox = self._inbox, None
        if inbox is None:
            return
        if self.busy:
            inbox.put(lambda: self._threads.give_back(inbox))
        else:
            self._threads.give_back(inbox)


def _work(inbox: Inbox) -> None:
    while (work := inbox.get()) is not None:
        work()


class HandlerExit(Exception):
    """A plain handler raised SystemExit, StopIteration, or another exception that a future cannot carry."""


def wrapped(error: BaseException) -> HandlerExit:
    """Wrap a BaseException in an Exception."""
    ordinary = HandlerExit(f"{class_name(error)}: {text_of(error)}")
    ordinary.__cause__ = error
    return ordinary


def unwrapped(error: BaseException) -> BaseException:
    """Return the exception that a plain function raised, also if it was wrapped for a future."""
    return error.__cause__ if type(error) is HandlerExit and error.__cause__ is not None else error
