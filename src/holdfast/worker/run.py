"""One lease in, one outcome out. User code runs here and only here, and nothing it does comes out as an exception."""

import asyncio
import functools
import traceback
from collections.abc import Mapping
from typing import Any

from holdfast.clock import Clock
from holdfast.codec import Codec
from holdfast.context import JobContext, entered
from holdfast.control import Cancel, Reject, RetryLater, Snooze
from holdfast.core.duration import micros
from holdfast.core.job import RecordedError
from holdfast.core.outcome import (
    Cancelled,
    Interrupted,
    Outcome,
    Raised,
    Rejected,
    Returned,
    Snoozed,
    TimedOut,
    Unknown,
    Unreadable,
)
from holdfast.core.text import storable
from holdfast.signature import encode_result
from holdfast.task import Task
from holdfast.worker.held import Held
from holdfast.worker.threads import Threads

UNKNOWN_DELAY = 10_000_000
"""How long a job of an unknown task is put back for, in microseconds: another worker may know it."""

TRACEBACK_KEPT = 16_384
MESSAGE_KEPT = 4_096


class Runner:
    """Runs leases with the handlers of one app."""

    def __init__(self, tasks: Mapping[str, Task[..., Any]], codec: Codec, threads: Threads, clock: Clock) -> None:
        self._tasks = tasks
        self._codec = codec
        self._threads = threads
        self._clock = clock

    async def run(self, held: Held) -> Outcome:
        """Run one lease to its outcome. Never raises; being cancelled is an outcome too."""
        job = held.lease.job
        task = self._tasks.get(job.task)
        if task is None:
            return Unknown(UNKNOWN_DELAY)
        try:
            args, kwargs = task.signature.decode(self._codec, job.payload)
        except Exception as error:
            return Unreadable(recorded(error))
        if held.stop is not None:
            return _stopped(held)
        held.context = JobContext(job, held.signs, self._clock.uptime)
        entered(held.context)
        try:
            value = await self._call(task, args, kwargs, held)
        except _TimeIsOver:
            return TimedOut(RecordedError("TimeoutError", f"the run passed its timeout of {_seconds(job.timeout)}"))
        except asyncio.CancelledError:
            return _stopped(held)
        except BaseException as error:
            return _said(error, task, held)
        try:
            return Returned(encode_result(self._codec, value))
        except Exception as error:
            return Unreadable(recorded(error))

    async def _call(self, task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], held: Held) -> Any:
        timeout = held.lease.job.timeout
        if timeout is None:
            return await self._hand_over(task, args, kwargs)
        limit = asyncio.timeout(timeout / 1_000_000)
        try:
            async with limit:
                return await self._hand_over(task, args, kwargs)
        except TimeoutError:
            # The handler may raise a TimeoutError of its own; only ours is the run's.
            if not limit.expired():
                raise
        if held.context is not None:
            held.context.stop("the run passed its timeout")
        raise _TimeIsOver

    async def _hand_over(self, task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if task.is_async:
            return await task.function(*args, **kwargs)
        return await self._threads.run(functools.partial(task.function, *args, **kwargs))


class _TimeIsOver(Exception):
    """The run passed its own limit."""


def _stopped(held: Held) -> Outcome:
    match held.stop:
        case "cancelled":
            return Cancelled(held.stop_detail)
        case "shutdown":
            return Interrupted("shutdown")
        case "unreachable" | "lost":
            return Interrupted("unreachable")
        case None:
            return Raised(RecordedError("CancelledError", "the handler was cancelled from within"))


def _said(error: BaseException, task: Task[..., Any], held: Held) -> Outcome:
    match error:
        case Snooze():
            return Snoozed(micros(error.delay))
        case Cancel():
            if held.stop in ("shutdown", "unreachable", "lost"):
                return _stopped(held)
            said = None if error.reason is None else storable(str(error.reason))
            return Cancelled(said, by="handler" if held.stop is None else None)
        case Reject():
            return Rejected(recorded(error))
        case RetryLater():
            return Raised(recorded(error), after=micros(error.delay))
        case _ if held.stop is not None:
            # It was made to stop and fell over while stopping.
            return _stopped(held)
        case _:
            return Raised(recorded(error), final=task.retry.final(error))


def recorded(error: BaseException) -> RecordedError:
    """Return an exception as text, whatever its `str` does."""
    return RecordedError(
        storable(type(error).__qualname__),
        storable(_text(error)[:MESSAGE_KEPT]),
        storable(_trace(error)[-TRACEBACK_KEPT:]),
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:
        return f"<the text of this {type(error).__name__} cannot be made: {type(failure).__name__}>"


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:
        return "".join(traceback.format_tb(error.__traceback__))


def _seconds(length: int | None) -> str:
    return f"{(length or 0) / 1_000_000:g} s"
