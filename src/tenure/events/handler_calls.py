"""Calls event handlers: coroutine functions in a task, plain functions in a daemon thread."""

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from msgspec import structs

from tenure.core.check import shown
from tenure.core.events import Event, JobCompleted, JobEvent
from tenure.failures import is_a, log_failure
from tenure.handlers.context import event_handler_entered
from tenure.handlers.functions import is_async
from tenure.threads import DaemonExecutor, NoThreadError


@dataclass(eq=False)
class Handler:
    """One registered handler: its kind of event, its task (None: all tasks), and its scope.

    `registered`: False once it is removed; then no further call of it begins.
    """

    kind: type[Event]
    handler: Callable[[Any], object]
    scope: str
    task: str | None
    registered: bool = True

    def accepts(self, event: Event) -> bool:
        """Return True if the handler gets this event."""
        return (
            self.registered
            and isinstance(event, self.kind)
            and (self.task is None or (isinstance(event, JobEvent) and event.task == self.task))
        )


class HandlerCalls:
    """Calls the handlers of one app or reaper. `decode`: decodes the results of jobs."""

    def __init__(self, decode: Callable[[bytes], Any], logger: logging.Logger) -> None:
        self._decode = decode
        self._logger = logger
        self._pool = DaemonExecutor("tenure-events")

    def close(self) -> None:
        """Let the threads end that call no handler, and others once their handler has returned."""
        self._pool.shutdown()

    async def call(self, event: Event, handlers: list[Handler]) -> None:
        """Call the handlers that get this event, one after another. Their exceptions are logged."""
        for handler in handlers:
            if not handler.accepts(event):
                continue
            failure = await self._handled(handler, self._readable(event))
            if failure is None:
                continue
            # A handler's failure does not affect the job.
            names = shown(handler.handler), type(event).__name__
            if is_a(failure, asyncio.CancelledError):
                self._logger.warning("the handler %s of %s cancelled itself", *names)
            else:
                log_failure(self._logger, logging.ERROR, "the handler %s of %s failed", *names, error=failure)

    async def _handled(self, handler: Handler, event: Event) -> BaseException | None:
        """Call a handler and return the exception that it raised, or None.

        A coroutine runs in a task of its own. If it cancels its own task, only that task is cancelled. So a
        CancelledError in this method is always a request to the caller.
        """
        if not is_async(handler.handler):
            return await self._handled_in_thread(handler, event)
        calling = asyncio.create_task(_failure(handler, event))
        try:
            await asyncio.wait({calling})
        except asyncio.CancelledError:
            calling.cancel()
            await asyncio.wait({calling})
            raise
        return asyncio.CancelledError() if calling.cancelled() else calling.result()

    async def _handled_in_thread(self, handler: Handler, event: Event) -> BaseException | None:
        context = contextvars.copy_context()

        def call() -> BaseException | None:
            # It may have been removed while this call waited for a thread.
            if not handler.registered:
                return None
            try:
                context.run(event_handler_entered)
                context.run(handler.handler, event)
            except BaseException as error:
                # Return it: a future cannot carry StopIteration, and SystemExit would end the loop.
                return error
            return None

        try:
            # Not the loop's default executor: a handler that hangs there would keep the process from exiting.
            return await asyncio.get_running_loop().run_in_executor(self._pool, call)
        except NoThreadError as error:
            return error

    def _readable(self, event: Event) -> Event:
        if not isinstance(event, JobCompleted) or event.result is None:
            return event
        try:
            return structs.replace(event, result=self._decode(event.result))
        except BaseException:
            # A codec is user code without an await, so this cannot be a cancellation of the caller.
            return structs.replace(event, result=None)


async def _failure(handler: Handler, event: Event) -> BaseException | None:
    """Call a handler and return the exception that it raised: a SystemExit that leaves a task would end the loop."""
    if not handler.registered:
        return None
    event_handler_entered()
    try:
        await cast("Callable[[Any], Awaitable[object]]", handler.handler)(event)
    except BaseException as error:
        return error
    return None
