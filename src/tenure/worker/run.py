"""One lease in, one outcome out. User code runs here and only here, and nothing it does comes out as an exception.

lease ──► middleware ──► what is injected ──► handler
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
from tenure.handlers.middleware import Middleware, Onion, RunCall, onion
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
"""How long a job is put back for that has no thread or process here, in microseconds: another worker may have one."""

CANCELLED_FROM_WITHIN = "the handler was cancelled from within"

RESULT_KEPT = 1_000
"""Characters that are kept of the `repr` of a result that cannot be recorded."""

Overdue = Callable[[ActiveRun, Outcome], None]
"""Takes a run that will not end, and what it has come to all the same."""


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
        self._onions: dict[str, Onion | None] = {}
        self._left: set[asyncio.Task[None]] = set()
        self._hooks = CancelHooks(codec, clock, call=self._provided, complain=self._complain, abandoned=abandoned)

    async def run(self, held: ActiveRun, overdue: Overdue = lambda held, outcome: None) -> Outcome:
        """Run one lease to its outcome. Never raises; being cancelled is an outcome too.

        A handler that goes on though it was cancelled at its timeout is waited for; `overdue` is called then.
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
            # Codecs and migrations are user code. They do not await, so not even a CancelledError is a request of ours.
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
                # Codecs are user code, too, and do not await either.
                return Unreadable(_unrecorded(error, value))
        # A thread that was left to itself still runs, and nobody may tidy up after it yet. Who was left to itself as a
        # whole has nothing to tidy up any more: the job may be another run's by now.
        tidies = isinstance(outcome, Cancelled) and not held.threading and not held.abandoned
        if tidies and task.cancel_hook is not None:
            await self._hooks.tidy_up(task, task.cancel_hook, held)
            if held.stops_for("lost", "unreachable"):
                return stopped(held)
        return outcome

    async def tidied(self) -> None:
        """Wait until all is closed that had to wait for threads which were left to themselves."""
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
            # The storage lets no lease outlast the timeout by more than a beat of its own.
            _patience(job),
            over=lambda: _tell(held, context),
            overdue=lambda: overdue(held, timed_out(held)),
        ):
            return await self._way(task, context, args, kwargs, held)

    def _way(
        self, task: Task[..., Any], context: JobContext, args: tuple[Any, ...], kwargs: dict[str, Any], held: ActiveRun
    ) -> Awaitable[Any]:
        """Return the way to the handler, to be awaited: through the middleware, if there is any."""
        if task.name not in self._onions:
            self._onions[task.name] = onion((*self._middleware, *task.middleware))
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
            return task.function(*args, **kwargs)  # type: ignore[no-any-return]  # that is what it is to be async
        return self._alone(functools.partial(task.function, *args, **kwargs), held)

    async def _provided(
        self, function: Callable[..., Any], usual: Needs, args: tuple[Any, ...], kwargs: dict[str, Any], held: ActiveRun
    ) -> Any:
        """Call a function, on the loop or in a thread, with its arguments and what is injected."""
        needed = needs(function, self._replaced) if self._replaced else usual
        held.lane = lane = self._threads.lane()
        complain = functools.partial(self._complain, held)
        try:
            leave = functools.partial(self._leave, held)
            async with InjectedValues(needed, lane, complain=complain, leave=leave) as given:
                called = functools.partial(function, *args, **{**given, **kwargs})
                return await (called() if is_async(function) else _in(lane, called, held))
        finally:
            # Also a provider may be left at work.
            held.threading = lane.busy
            if lane.busy:
                self._abandoned.lane(lane)

    async def _alone(self, called: Callable[[], Any], held: ActiveRun) -> Any:
        """Call a plain function that is given nothing."""
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
        """Log without what may quote the arguments; the job's own log has all."""
        job = held.lease.job
        how = what if error is None else f"{what}: {class_name(error)}"
        self._logger.error("%s of job %s (%s) %s; tenure jobs show tells all", who, job.id, job.task, how)
        told = {} if error is None else {"traceback": recorded(error).traceback or ""}
        if held.context is not None:
            held.context.log.error(f"{who} {how}", **told)


def _patience(job: JobRecord) -> float:
    """Return how many seconds a handler gets to end after its timeout: its lease lasts for a beat then.

    Where nothing may run beside it, it gets all of that; what it holds is given to others once it is settled.
    """
    beat = job.stall.lease / 4 / SECOND
    return beat if job.exclusive else min(LINGER, beat)


def _tell(held: ActiveRun, context: JobContext) -> None:
    # It is not cancelled yet; a moment later nobody could see where it was.
    held.at_limit, held.expired = where(held), True
    context.stop("the run passed its timeout")


async def _in(lane: WorkerThread, called: Callable[[], Any], held: ActiveRun) -> Any:
    held.threading = True
    try:
        return await lane.run(called)
    finally:
        held.threading = lane.busy


def misuse(held: ActiveRun) -> Raised | None:
    """Return what a run has come to whose handler did something to its event loop that no handler may do."""
    error = None if held.context is None else held.context.misuse
    return None if error is None or held.stops_for("cancelled", "lost", "unreachable") else Raised(error, alone=True)


class Stopped(Protocol):
    """What may have been made to end."""

    @property
    def stop(self) -> StopReason | None:
        """Why, if it has."""
        ...

    @property
    def stop_detail(self) -> str | None:
        """What was said to that."""
        ...


def stopped(held: Stopped) -> Outcome:
    """Return what a run has come to that was made to end."""
    match held.stop:
        case "cancelled":
            return Cancelled(held.stop_detail)
        case "shutdown" | "worker_failed" as reason:
            return Interrupted(reason)
        case "unreachable" | "lost":
            return Interrupted("unreachable")
        case "no_progress" | "lease_expired":
            # All that is known of it is added where the outcome is taken in.
            return Stalled(held.stop)
        case None:
            return Raised(RecordedError("CancelledError", CANCELLED_FROM_WITHIN))


def _unbegun(held: ActiveRun) -> Outcome:
    """Return what a run has come to that could not begin, for no fault of its own."""
    return Interrupted("prefetch", UNFIT_DELAY) if held.stop is None else stopped(held)


def timed_out(held: ActiveRun) -> Outcome:
    """Return what a run has come to that passed its limit."""
    if held.stops_for("cancelled"):
        # Too slow to stop.
        return stopped(held)
    limit = (held.lease.job.timeout or 0) / SECOND
    said = f"the run passed its timeout of {limit:g} s"
    place = held.at_limit or held.elsewhere or ""
    return TimedOut(RecordedError("TimeoutError", said, place and f"{place}TimeoutError: {said}\n"[-TRACEBACK_KEPT:]))


def _ended_by(error: BaseException, task: Task[..., Any], held: ActiveRun) -> Outcome:
    """Return the outcome of a run that ended by this exception.

    Whether it ended because we asked for that is a fact of the run (`held.stop`). The exception does not tell: a
    handler may raise a CancelledError that nothing has caused, and turn ours into another exception.
    """
    try:
        return _meaning(error, task, held)
    except BaseException as failure:
        # A control may be half made, and a class of exceptions may raise from whatever is asked of it.
        return Raised(recorded(failure)) if held.stop is None else stopped(held)


def _meaning(error: BaseException, task: Task[..., Any], held: ActiveRun) -> Outcome:
    # Never the exception itself is asked what it is: its class may lie about that.
    said: Any = error
    if is_a(error, Snooze, RetryLater) and held.stops_for("cancelled", *SILENT):
        # It wants another run, which the record would refuse it, or which the stall decides on.
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
        # It was made to stop, or fell over while stopping.
        return stopped(held)
    if is_a(error, asyncio.CancelledError):
        return _cancelled_from_within(error)
    return Raised(recorded(error), final=task.retry.final(error), shortage=is_shortage(error))


def _delay(control: Any) -> int:
    """Return the delay that a control asks for; one of a subclass need not have been checked when it was made."""
    return micros(duration(control.delay, field=f"{class_name(control)}.delay", zero=True))


def _unrecorded(error: BaseException, value: object) -> RecordedError:
    """Return the error of a run that returned a result which cannot be recorded, with the result as text."""
    told = recorded(error)
    message = f"the handler returned, but its result cannot be recorded: {told.message}"
    return RecordedError(told.type, f"{message}; it was {redacted_repr(value, RESULT_KEPT)}", told.traceback)


def _cancelled_from_within(error: BaseException) -> Raised:
    told = recorded(error)
    return Raised(RecordedError(told.type, told.message or CANCELLED_FROM_WITHIN, told.traceback))
