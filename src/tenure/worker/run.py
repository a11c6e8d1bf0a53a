"""Turns one lease into one outcome: it calls the handler, and no exception of user code leaves it.

lease ──► middleware ──► injected values ──► handler
              │                                  │
outcome ◄─┬───┴──────────────── back ◄───────────┘
          └─ cancelled, and the handler has ended ──► on_cancel ──► outcome
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

from tenure.client.codec import Codec
from tenure.client.task import Task
from tenure.clock import SECOND, Clock
from tenure.core.duration import duration, micros
from tenure.core.job import JobRecord, RecordedError, unreadable_record
from tenure.core.outcome import (
    Cancelled,
    Interrupted,
    Outcome,
    Raised,
    Rejected,
    Returned,
    Snoozed,
    Stalled,
    TimedOut,
    Unknown,
    Unreadable,
)
from tenure.core.text import storable
from tenure.failures import TRACEBACK_KEPT, class_name, is_a, recorded, redacted_repr
from tenure.handlers.context import JobContext, entered
from tenure.handlers.control import Cancel, Reject, RetryLater, Snooze
from tenure.handlers.functions import is_async
from tenure.handlers.injection import Needs, Provider, needs
from tenure.handlers.middleware import Middleware, RunCall, WrappedHandler, wrap
from tenure.threads import NoThreadError, ThreadPool, WorkerThread
from tenure.worker.abandoned import LINGER, Abandoned
from tenure.worker.active_runs import SILENT, ActiveRun, StopReason
from tenure.worker.injected import InjectedValues
from tenure.worker.known_tasks import why_unknown
from tenure.worker.limit import TimeLimit, TimeLimitExceeded
from tenure.worker.on_cancel import CancelHooks
from tenure.worker.shortage import is_shortage
from tenure.worker.stacks.traces import where

UNFIT_DELAY = 10_000_000
"""Microseconds until a job is due again that got no thread or process here: another worker may have one."""

CANCELLED_FROM_WITHIN = "the handler was cancelled from within"

RESULT_KEPT = 1_000
"""The number of characters kept of the `repr` of a result that cannot be recorded."""

Overdue = Callable[[ActiveRun, Outcome], None]
"""Takes a run that does not end, and the outcome that it gets."""


class Runner:
    """Runs leases with the handlers of one app."""

    def __init__(
        self,
        tasks: Mapping[str, Task[..., Any]],
        codec: Codec,
        threads: ThreadPool,
        clock: Clock,
        logger: logging.Logger,
        *,
        middleware: tuple[Middleware, ...],
        replaced: Mapping[Provider, Provider],
        state: Callable[[], Any],
        abandoned: Abandoned,
        no_thread: Callable[[], None] = lambda: None,
        short: Callable[[RecordedError], None] = lambda error: None,
    ) -> None:
        self._tasks = tasks
        self._codec = codec
        self._threads = threads
        self._clock = clock
        self._logger = logger
        self._middleware = middleware
        self._replaced = replaced
        self._state = state
        self._abandoned = abandoned
        self._no_thread, self._threadless = no_thread, False
        self._short = short
        self._onions: dict[str, WrappedHandler | None] = {}
        self._left: set[asyncio.Task[None]] = set()
        self._hooks = CancelHooks(codec, clock, call=self._provided, complain=self._complain, abandoned=abandoned)

    async def run(self, held: ActiveRun, overdue: Overdue = lambda held, outcome: None) -> Outcome:
        """Run one lease to its outcome. Never raises; a cancellation is an outcome too.

        If a handler goes on although it was cancelled at its timeout, this still waits for it, and calls `overdue`.
        """
        job = held.lease.job
        if job.unreadable is not None:
            return Unreadable(unreadable_record(job.unreadable))
        if (unknown := why_unknown(self._tasks, job)) is not None:
            return Unknown(unknown)
        task = self._tasks[job.task]
        try:
            args, kwargs = task.decode(self._codec, job)
        except BaseException as error:
            # Codecs and migrations are user code. They do not await, so even a CancelledError comes from them, not
            # from our stop.
            return Unreadable(recorded(error))
        if held.stop is not None:
            return stopped(held)
        held.context = JobContext(job, held.signs, self._clock.uptime, self._state())
        entered(held.context)
        try:
            if job.timeout is None:
                value = await self._way(task, held.context, args, kwargs, held)
            else:
                value = await self._limited(task, held.context, args, kwargs, held, overdue)
        except TimeLimitExceeded:
            outcome = timed_out(held)
        except NoThreadError as error:
            self._logger.error("job %s (%s) has no thread to run in: %s", job.id, job.task, error)
            outcome = _unbegun(held)
            if not self._threadless:
                self._threadless = True
                self._no_thread()
        except BaseException as error:
            outcome = _ended_by(error, task, held)
            if isinstance(outcome, Raised) and outcome.shortage:
                self._short(outcome.error)
        else:
            try:
                return Returned(task.signature.encode_result(self._codec, value))
            except BaseException as error:
                # Codecs are user code too, and do not await either.
                return Unreadable(_unrecorded(error, value))
        # An abandoned thread still runs, so its hook may not clean up yet. The hook of an abandoned run is not called
        # at all: the job may already belong to another run.
        tidies = isinstance(outcome, Cancelled) and not held.threading and not held.abandoned
        if tidies and task.cancel_hook is not None:
            await self._hooks.tidy_up(task, task.cancel_hook, held)
            if held.stops_for("lost", "unreachable"):
                return stopped(held)
        return outcome

    async def tidied(self) -> None:
        """Wait until all providers are closed that had to wait for abandoned threads."""
        while self._left:
            await asyncio.wait(self._left)

    async def _limited(
        self,
        task: Task[..., Any],
        context: JobContext,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        held: ActiveRun,
        overdue: Overdue,
    ) -> Any:
        job = held.lease.job
        async with TimeLimit(
            (job.timeout or 0) / SECOND,
            # The storage lets no lease outlast the timeout by more than one beat of that lease.
            _patience(job),
            over=lambda: _tell(held, context),
            overdue=lambda: overdue(held, timed_out(held)),
        ):
            return await self._way(task, context, args, kwargs, held)

    def _way(
        self, task: Task[..., Any], context: JobContext, args: tuple[Any, ...], kwargs: dict[str, Any], held: ActiveRun
    ) -> Awaitable[Any]:
        """Return an awaitable that calls the handler, through the middleware if there is any."""
        if task.name not in self._onions:
            self._onions[task.name] = wrap((*self._middleware, *task.middleware))
        around = self._onions[task.name]
        if around is None:
            return self._handed_over(task, args, kwargs, held)

        def heart(call: RunCall) -> Awaitable[Any]:
            return self._handed_over(task, call.args, call.kwargs, held)

        return around(RunCall(context, args, kwargs), heart)

    def _handed_over(
        self, task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], held: ActiveRun
    ) -> Awaitable[Any]:
        if task.needs.takes:
            return self._provided(task.function, task.needs, args, kwargs, held)
        if task.is_async:
            return task.function(*args, **kwargs)  # type: ignore[no-any-return]  # it is an awaitable
        return self._alone(functools.partial(task.function, *args, **kwargs), held)

    async def _provided(
        self, function: Callable[..., Any], usual: Needs, args: tuple[Any, ...], kwargs: dict[str, Any], held: ActiveRun
    ) -> Any:
        """Call a function with its arguments and injected values, on the loop or in a thread."""
        needed = needs(function, self._replaced) if self._replaced else usual
        held.lane = lane = self._threads.lane()
        complain = functools.partial(self._complain, held)
        try:
            leave = functools.partial(self._leave, held)
            async with InjectedValues(needed, lane, complain=complain, leave=leave) as given:
                called = functools.partial(function, *args, **{**given, **kwargs})
                return await (called() if is_async(function) else _in(lane, called, held))
        finally:
            # A provider may also still be at work in the thread.
            held.threading = lane.busy
            if lane.busy:
                self._abandoned.lane(lane)

    async def _alone(self, called: Callable[[], Any], held: ActiveRun) -> Any:
        """Call a plain function that has no injected values."""
        held.lane = lane = self._threads.lane()
        try:
            return await _in(lane, called, held)
        finally:
            if lane.busy:
                self._abandoned.lane(lane)
            lane.close()

    def _leave(self, held: ActiveRun, closing: Coroutine[Any, Any, None]) -> None:
        left = asyncio.create_task(closing)
        held.leave(left)
        self._left.add(left)
        left.add_done_callback(self._left.discard)

    def _complain(self, held: ActiveRun, who: str, what: str, error: BaseException | None) -> None:
        """Log without the error's text, which may quote the arguments. The job's own log has all of it."""
        job = held.lease.job
        how = what if error is None else f"{what}: {class_name(error)}"
        self._logger.error("%s of job %s (%s) %s; tenure jobs show tells all", who, job.id, job.task, how)
        told = {} if error is None else {"traceback": recorded(error).traceback or ""}
        if held.context is not None:
            held.context.log.error(f"{who} {how}", **told)


def _patience(job: JobRecord) -> float:
    """Return how many seconds a handler gets to end after its timeout, when its lease lasts for one more beat.

    An exclusive run gets the whole beat, because its right passes to others once it is settled.
    """
    beat = job.stall.lease / 4 / SECOND
    return beat if job.exclusive else min(LINGER, beat)


def _tell(held: ActiveRun, context: JobContext) -> None:
    # Record the position before the cancellation: the handler leaves it afterwards.
    held.at_limit, held.expired = where(held), True
    context.stop("the run passed its timeout")


async def _in(lane: WorkerThread, called: Callable[[], Any], held: ActiveRun) -> Any:
    held.threading = True
    try:
        return await lane.run(called)
    finally:
        held.threading = lane.busy


def misuse(held: ActiveRun) -> Raised | None:
    """Return the outcome of a run whose handler misused its event loop, or None if it did not."""
    error = None if held.context is None else held.context.misuse
    return None if error is None or held.stops_for("cancelled", "lost", "unreachable") else Raised(error, alone=True)


class Stopped(Protocol):
    """A run that may have been stopped."""

    @property
    def stop(self) -> StopReason | None:
        """The reason, or None if the run was not stopped."""
        ...

    @property
    def stop_detail(self) -> str | None:
        """The text that was given with the reason."""
        ...


def stopped(held: Stopped) -> Outcome:
    """Return the outcome of a run that was stopped."""
    match held.stop:
        case "cancelled":
            return Cancelled(held.stop_detail)
        case "shutdown" | "worker_failed" as reason:
            return Interrupted(reason)
        case "unreachable" | "lost":
            return Interrupted("unreachable")
        case "no_progress" | "lease_expired":
            # The executor adds the other facts when it takes the outcome.
            return Stalled(held.stop)
        case None:
            return Raised(RecordedError("CancelledError", CANCELLED_FROM_WITHIN))


def _unbegun(held: ActiveRun) -> Outcome:
    """Return the outcome of a run that could not begin and is not to blame for that."""
    return Interrupted("prefetch", UNFIT_DELAY) if held.stop is None else stopped(held)


def timed_out(held: ActiveRun) -> Outcome:
    """Return the outcome of a run that passed its timeout."""
    if held.stops_for("cancelled"):
        # The run was cancelled before its timeout, and stopped too slowly.
        return stopped(held)
    limit = (held.lease.job.timeout or 0) / SECOND
    said = f"the run passed its timeout of {limit:g} s"
    place = held.at_limit or held.elsewhere or ""
    return TimedOut(RecordedError("TimeoutError", said, place and f"{place}TimeoutError: {said}\n"[-TRACEBACK_KEPT:]))


def _ended_by(error: BaseException, task: Task[..., Any], held: ActiveRun) -> Outcome:
    """Return the outcome of a run that ended by this exception.

    `held.stop` says whether the run ended because we stopped it. The exception does not say this: a handler may raise a
    CancelledError of its own, and may turn ours into another exception.
    """
    try:
        return _meaning(error, task, held)
    except BaseException as failure:
        # A control may be incomplete, and any attribute of an exception class may raise.
        return Raised(recorded(failure)) if held.stop is None else stopped(held)


def _meaning(error: BaseException, task: Task[..., Any], held: ActiveRun) -> Outcome:
    # Do not use `isinstance` on the exception: its class may give a false `__class__`.
    said: Any = error
    if is_a(error, Snooze, RetryLater) and held.stops_for("cancelled", *SILENT):
        # The handler wants another run. The storage refuses that after a cancellation; after a stall, the stall
        # decides.
        return stopped(held)
    if is_a(error, Snooze):
        return Snoozed(_delay(said))
    if is_a(error, Cancel):
        if held.stop not in (None, "cancelled"):
            return stopped(held)
        reason = None if said.reason is None else storable(str(said.reason))
        return Cancelled(reason, by="handler" if held.stop is None else None)
    if is_a(error, Reject):
        return Rejected(recorded(error))
    if is_a(error, RetryLater):
        return Raised(recorded(error), after=_delay(said))
    if held.stop is not None:
        # The run was stopped, or it failed while it stopped.
        return stopped(held)
    if is_a(error, asyncio.CancelledError):
        return _cancelled_from_within(error)
    return Raised(recorded(error), final=task.retry.final(error), shortage=is_shortage(error))


def _delay(control: Any) -> int:
    """Return the delay that a control asks for. A subclass may have skipped the check in its constructor."""
    return micros(duration(control.delay, field=f"{class_name(control)}.delay", zero=True))


def _unrecorded(error: BaseException, value: object) -> RecordedError:
    """Return the error of a run that returned a result which cannot be recorded, with the result as text."""
    told = recorded(error)
    message = f"the handler returned, but its result cannot be recorded: {told.message}"
    return RecordedError(told.type, f"{message}; it was {redacted_repr(value, RESULT_KEPT)}", told.traceback)


def _cancelled_from_within(error: BaseException) -> Raised:
    told = recorded(error)
    return Raised(RecordedError(told.type, told.message or CANCELLED_FROM_WITHIN, told.traceback))
