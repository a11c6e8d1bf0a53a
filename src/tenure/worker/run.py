"""Turns one lease into one outcome: it calls the handler, and no exception of user code leaves it.

lease ──► middleware ──► injected values ──► handler
              │                                  │
outcome ◄─┬───┴──────────────── back ◄───────────┘
          └─ cancelled, and the handler has ended ──► on_cancel ──► outcome

A handler is cancelled at its time limit, and abandoned if it does not end. The hook of a cancelled run has its own task
and time limit; its exceptions are logged.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

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
    RateLimitHit,
    Rejected,
    Returned,
    Snoozed,
    Stalled,
    TimedOut,
    Unknown,
    Unreadable,
)
from tenure.core.text import storable
from tenure.errors import LeaseLostError
from tenure.failures import TRACEBACK_KEPT, class_name, is_a, recorded, redacted_repr
from tenure.handlers.context import JobContext, OpenTransaction, entered
from tenure.handlers.control import Cancel, RateLimited, Reject, RetryLater, Snooze
from tenure.handlers.functions import is_async
from tenure.handlers.injection import Needs, Provider, needs
from tenure.handlers.middleware import Middleware, RunCall, WrappedHandler, wrap
from tenure.threads import NoThreadError, ThreadPool, WorkerThread, unwrapped, wrapped
from tenure.worker.active_runs import CANCEL_GRACE, SILENT, Abandoned, ActiveRun, RunKey, StopReason
from tenure.worker.injected import InjectedValues
from tenure.worker.known_tasks import why_unknown
from tenure.worker.recycling import is_shortage
from tenure.worker.retry_delay import delay_by_function
from tenure.worker.stacks.traces import stack_of


class TimeLimitExceeded(Exception):
    """The run passed its own limit."""


class TimeLimit:
    """Like `asyncio.timeout`, with one callback before the cancellation and one if the body does not end.

    `over` is called at the limit. `overdue` is called `linger` seconds later, unless the body has ended by then.

    Raises:
        TimeLimitExceeded: on the way out, if the body ended by that cancellation.
    """

    def __init__(self, seconds: float, linger: float, *, over: Callable[[], None], overdue: Callable[[], None]) -> None:
        self._seconds = seconds
        self._linger = linger
        self._over = over
        self._overdue = overdue
        self._expired = False
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self._task = task = asyncio.current_task()
        self._cancelling = 0 if task is None else task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._expired or self._task is None:
            return
        # If other code cancelled the task as well, the CancelledError must propagate.
        cancelled = error is not None and is_a(error, asyncio.CancelledError)
        if self._task.uncancel() <= self._cancelling and cancelled:
            raise TimeLimitExceeded from error

    def _expire(self) -> None:
        self._expired = True
        self._over()
        if self._task is not None:
            self._task.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._linger, self._overdue)


HOOK_LIMIT = 30.0
"""The maximum time of a hook whose task has no timeout, in seconds."""

ReportHookFailure = Callable[[ActiveRun, str, str, BaseException | None], None]
"""Takes the run, the part that failed, a text, and the exception if there is one."""


class HookCaller(Protocol):
    """Calls a function of a run with its arguments and injected values, on the loop or in a thread."""

    def __call__(
        self,
        function: Callable[..., Any],
        usual: Needs,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: ActiveRun,
        /,
    ) -> Awaitable[Any]:
        """Call the function."""
        ...


class CancelHooks:
    """Calls the on_cancel hooks of tasks. Their exceptions are logged; the job is cancelled anyway."""

    def __init__(
        self, codec: Codec, clock: Clock, *, call: HookCaller, report: ReportHookFailure, abandoned: Abandoned
    ) -> None:
        self._codec = codec
        self._clock = clock
        self._call_function = call
        self._report = report
        self._abandoned = abandoned

    async def call(self, task: Task[..., Any], hook: Callable[..., Any], run: ActiveRun) -> None:
        """Call the hook of a run, with a time limit."""
        job = run.lease.job
        run.in_hook = True
        run.signs.sign(self._clock.uptime())
        limit = HOOK_LIMIT
        if job.timeout is not None:
            # The lease ends one beat after the timeout, so the hook must end by then.
            limit = max(job.timeout / SECOND - (self._clock.uptime() - run.claimed_at), run.beat / 2)
        # In its own task: the cancellation that ended the handler does not affect it, and it can be abandoned.
        hooked = asyncio.create_task(self._hook(task, hook, run))
        try:
            done, _ = await asyncio.wait({hooked}, timeout=limit)
            if not done:
                self._report(run, "the on_cancel hook", f"passed its limit of {limit:g} s", None)
                await self._cut_off(hooked, run)
            elif hooked.cancelled():
                self._report(run, "the on_cancel hook", "was cancelled from within", None)
            elif (error := hooked.exception()) is not None:
                self._report(run, "the on_cancel hook", "failed", error)
        except asyncio.CancelledError:
            # The run is lost, or its worker ends.
            await self._cut_off(hooked, run)

    async def _hook(self, task: Task[..., Any], hook: Callable[..., Any], run: ActiveRun) -> None:
        try:
            # Decode again, because the handler may have changed its arguments.
            args, kwargs = task.decode(self._codec, run.lease.job)
            await self._call_function(hook, task.hook_needs, args, kwargs, run)
        except (SystemExit, KeyboardInterrupt) as error:
            # In a task, these exceptions would end the loop.
            raise wrapped(error) from error

    async def _cut_off(self, hooked: "asyncio.Task[None]", run: ActiveRun) -> None:
        hooked.cancel()
        try:
            await asyncio.wait({hooked}, timeout=CANCEL_GRACE)
        finally:
            # If the exception is not retrieved, asyncio logs an error.
            hooked.add_done_callback(_seen)
            if not hooked.done():
                # It is abandoned. An exclusive right is kept until it has ended.
                run.abandon_task(hooked)
                self._abandoned.add_task(hooked)


def _seen(hooked: "asyncio.Task[None]") -> None:
    if not hooked.cancelled():
        hooked.exception()


NO_PROCESS_DELAY = 10_000_000
"""Microseconds until a job is due again that got no thread or process here: another worker may have one."""

CANCELLED_FROM_WITHIN = "the handler was cancelled from within"

JOB_LOGGER = "jobs"
"""The child of the app's logger that logs the start and the end of each run."""

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
        report: Callable[[RunKey], None] = lambda key: None,
        open_transaction: OpenTransaction | None = None,
    ) -> None:
        self._tasks = tasks
        self._open_transaction = open_transaction
        self._codec = codec
        self._threads = threads
        self._clock = clock
        self._logger, self._job_logger = logger, logger.getChild(JOB_LOGGER)
        self._middleware = middleware
        self._replaced = replaced
        self._state = state
        self._abandoned = abandoned
        self._no_thread, self._threadless = no_thread, False
        self._short = short
        self._report_run = report
        self._chains: dict[str, WrappedHandler | None] = {}
        self._closing_tasks: set[asyncio.Task[None]] = set()
        self._hooks = CancelHooks(codec, clock, call=self._call_with_values, report=self._report, abandoned=abandoned)

    async def run(self, run: ActiveRun, overdue: Overdue = lambda run, outcome: None) -> Outcome:
        """Run one lease to its outcome. Never raises; a cancellation is an outcome too.

        If a handler goes on although it was cancelled at its timeout, this still waits for it, and calls `overdue`.
        """
        job = run.lease.job
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
            return _failed(run, Unreadable(recorded(error)), error)
        if run.stop is not None:
            return stopped(run)
        run.context = JobContext(
            job, run.signs, self._clock.uptime, self._state(), self._report_run, self._open_transaction
        )
        entered(run.context)
        if self._job_logger.isEnabledFor(logging.INFO):
            self._job_logger.info("job %s (%s) started, run %d", job.id, job.task, job.starts)
        try:
            if job.timeout is None:
                value = await self._call(task, run.context, args, kwargs, run)
            else:
                value = await self._limited(task, run.context, args, kwargs, run, overdue)
        except TimeLimitExceeded as error:
            outcome = timed_out(run)
            if isinstance(outcome, TimedOut):
                failure = TimeoutError(outcome.error.message)
                failure.__cause__ = error.__cause__
                outcome = _failed(run, outcome, failure)
        except NoThreadError as error:
            self._logger.error("job %s (%s): no thread is available: %s", job.id, job.task, error)
            outcome = _not_begun(run)
            if not self._threadless:
                self._threadless = True
                self._no_thread()
        except BaseException as error:
            outcome = _failed(run, _outcome_of(error, task, run, self._logger), error)
            if isinstance(outcome, Raised) and outcome.shortage:
                self._short(outcome.error)
        else:
            if run.settled:
                if value is not None:
                    self._logger.warning(
                        "job %s (%s): its transaction has completed it, so the value that its handler returned is "
                        "ignored; give the result to tx.complete()",
                        job.id,
                        job.task,
                    )
                return Returned(b"")
            try:
                return Returned(task.signature.encode_result(self._codec, value))
            except BaseException as error:
                # Codecs are user code too, and do not await either.
                return _failed(run, Unreadable(_unrecorded(error, value)), error)
        finally:
            run.context.save_data()
        # An abandoned thread still runs, so its hook may not clean up yet. The hook of an abandoned run is not called
        # at all: the job may already belong to another run.
        tidies = isinstance(outcome, Cancelled) and not run.in_thread and not run.abandoned
        if tidies and task.cancel_hook is not None and not run.settled:
            await self._hooks.call(task, task.cancel_hook, run)
            if run.stops_for("lost", "unreachable"):
                return stopped(run)
        return outcome

    async def tidied(self) -> None:
        """Wait until all providers are closed that had to wait for abandoned threads."""
        while self._closing_tasks:
            await asyncio.wait(self._closing_tasks)

    async def _limited(
        self,
        task: Task[..., Any],
        context: JobContext,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: ActiveRun,
        overdue: Overdue,
    ) -> Any:
        job = run.lease.job
        async with TimeLimit(
            (job.timeout or 0) / SECOND,
            # The storage lets no lease outlast the timeout by more than one beat of that lease.
            _time_to_end(job),
            over=lambda: _note_timeout(run, context),
            overdue=lambda: overdue(run, timed_out(run)),
        ):
            return await self._call(task, context, args, kwargs, run)

    def _call(
        self, task: Task[..., Any], context: JobContext, args: tuple[Any, ...], kwargs: dict[str, Any], run: ActiveRun
    ) -> Awaitable[Any]:
        """Return an awaitable that calls the handler, through the middleware if there is any."""
        if task.name not in self._chains:
            self._chains[task.name] = wrap((*self._middleware, *task.middleware))
        around = self._chains[task.name]
        if around is None:
            return self._call_handler(task, args, kwargs, run)

        def heart(call: RunCall) -> Awaitable[Any]:
            return self._call_handler(task, call.args, call.kwargs, run)

        return around(RunCall(context, args, kwargs), heart)

    def _call_handler(
        self, task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], run: ActiveRun
    ) -> Awaitable[Any]:
        if task.needs.parameters:
            return self._call_with_values(task.function, task.needs, args, kwargs, run)
        if task.is_async:
            return task.function(*args, **kwargs)  # type: ignore[no-any-return]  # it is an awaitable
        return self._call_in_thread(functools.partial(task.function, *args, **kwargs), run)

    async def _call_with_values(
        self, function: Callable[..., Any], usual: Needs, args: tuple[Any, ...], kwargs: dict[str, Any], run: ActiveRun
    ) -> Any:
        """Call a function with its arguments and injected values, on the loop or in a thread."""
        needed = needs(function, self._replaced) if self._replaced else usual
        run.thread = thread = self._threads.worker_thread()
        complain = functools.partial(self._report, run)
        try:
            leave = functools.partial(self._close_later, run)
            async with InjectedValues(needed, thread, report=complain, close_later=leave) as injected:
                called = functools.partial(function, *args, **{**injected, **kwargs})
                return await (called() if is_async(function) else _in_thread(thread, called, run))
        finally:
            # A provider may also still be at work in the thread.
            run.in_thread = thread.busy
            if thread.busy:
                self._abandoned.add_thread(thread)
                run.end_transaction()

    async def _call_in_thread(self, called: Callable[[], Any], run: ActiveRun) -> Any:
        """Call a plain function that has no injected values."""
        run.thread = thread = self._threads.worker_thread()
        try:
            return await _in_thread(thread, called, run)
        finally:
            if thread.busy:
                self._abandoned.add_thread(thread)
                run.end_transaction()
            thread.close()

    def _close_later(self, run: ActiveRun, closing: Coroutine[Any, Any, None]) -> None:
        left = asyncio.create_task(closing)
        run.abandon_task(left)
        self._closing_tasks.add(left)
        left.add_done_callback(self._closing_tasks.discard)

    def _report(self, run: ActiveRun, part: str, what: str, error: BaseException | None) -> None:
        """Log without the error's text, which may quote the arguments. The job's own log has all of it."""
        job = run.lease.job
        how = what if error is None else f"{what}: {class_name(error)}"
        self._logger.error("%s of job %s (%s) %s; details: tenure jobs show %s", part, job.id, job.task, how, job.id)
        fields = {} if error is None else {"traceback": recorded(error).traceback or ""}
        if run.context is not None:
            run.context.log.error(f"{part} {how}", **fields)


def _time_to_end(job: JobRecord) -> float:
    """Return how many seconds a handler gets to end after its timeout, when its lease lasts for one more beat.

    An exclusive run gets the whole beat, because its right passes to others once it is settled.
    """
    beat = job.stall.lease / 4 / SECOND
    return beat if job.exclusive else min(CANCEL_GRACE, beat)


def _note_timeout(run: ActiveRun, context: JobContext) -> None:
    # Record the position before the cancellation: the handler leaves it afterwards.
    run.position_at_stop, run.expired = stack_of(run), True
    context.stop("the run passed its timeout")


async def _in_thread(thread: WorkerThread, called: Callable[[], Any], run: ActiveRun) -> Any:
    run.in_thread = True
    try:
        return await thread.run(called)
    finally:
        run.in_thread = thread.busy


def _failed(run: ActiveRun, outcome: Outcome, error: BaseException) -> Outcome:
    """Return the outcome of a run that ended by this exception. If the outcome is a failure, keep both for the log."""
    if isinstance(outcome, Raised | Rejected | Unreadable | TimedOut) and not run.over:
        run.failure = outcome.error, error
    return outcome


def misuse(run: ActiveRun) -> Raised | None:
    """Return the outcome of a run whose handler misused its event loop, or None if it did not."""
    error = None if run.context is None else run.context.misuse
    return None if error is None or run.stops_for("cancelled", "lost", "unreachable") else Raised(error, alone=True)


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


def stopped(run: Stopped) -> Outcome:
    """Return the outcome of a run that was stopped."""
    match run.stop:
        case "cancelled":
            return Cancelled(run.stop_detail)
        case "shutdown" | "worker_failed" as reason:
            return Interrupted(reason)
        case "unreachable" | "lost":
            return Interrupted("unreachable")
        case "no_progress" | "lease_expired":
            # The executor adds the other facts when it takes the outcome.
            return Stalled(run.stop)
        case None:
            return Raised(RecordedError("CancelledError", CANCELLED_FROM_WITHIN))


def _not_begun(run: ActiveRun) -> Outcome:
    """Return the outcome of a run that could not begin and is not to blame for that."""
    return Interrupted("prefetch", NO_PROCESS_DELAY) if run.stop is None else stopped(run)


def timed_out(run: ActiveRun) -> Outcome:
    """Return the outcome of a run that passed its timeout."""
    if run.stops_for("cancelled"):
        # The run was cancelled before its timeout, and stopped too slowly.
        return stopped(run)
    limit = (run.lease.job.timeout or 0) / SECOND
    message = f"the run passed its timeout of {limit:g} s"
    place = run.position_at_stop or run.isolated_position or ""
    return TimedOut(
        RecordedError("TimeoutError", message, place and f"{place}TimeoutError: {message}\n"[-TRACEBACK_KEPT:])
    )


def _outcome_of(error: BaseException, task: Task[..., Any], run: ActiveRun, logger: logging.Logger) -> Outcome:
    """Return the outcome of a run that ended by this exception.

    `held.stop` says whether the run ended because we stopped it. The exception does not say this: a handler may raise a
    CancelledError of its own, and may turn ours into another exception.
    """
    try:
        return _interpret(unwrapped(error), task, run, logger)
    except BaseException as failure:
        # A control may be incomplete, and any attribute of an exception class may raise.
        return Raised(recorded(failure)) if run.stop is None else stopped(run)


def _interpret(error: BaseException, task: Task[..., Any], run: ActiveRun, logger: logging.Logger) -> Outcome:
    # Do not use `isinstance` on the exception: its class may give a false `__class__`.
    control: Any = error
    if is_a(error, Snooze, RetryLater, RateLimited) and run.stops_for("cancelled", *SILENT):
        # The handler wants another run. The storage refuses that after a cancellation; after a stall, the stall
        # decides.
        return stopped(run)
    if is_a(error, Snooze):
        return Snoozed(_delay(control))
    if is_a(error, RateLimited):
        return RateLimitHit(_delay(control))
    if is_a(error, Cancel):
        if run.stop not in (None, "cancelled"):
            return stopped(run)
        reason = None if control.reason is None else storable(str(control.reason))
        return Cancelled(reason, by="handler" if run.stop is None else None)
    if is_a(error, LeaseLostError) and run.refused:
        # The storage refuses this outcome too, and records that.
        return Interrupted("unreachable")
    if is_a(error, Reject):
        return Rejected(recorded(error))
    if is_a(error, RetryLater):
        return Raised(recorded(error), after=_delay(control))
    if run.stop is not None:
        # The run was stopped, or it failed while it stopped.
        return stopped(run)
    if is_a(error, asyncio.CancelledError):
        return _cancelled_from_within(error)
    if task.retry.final(error):
        return Raised(recorded(error), final=True, shortage=is_shortage(error))
    after = delay_by_function(task.retry, run.lease.job, error, logger)
    return Raised(recorded(error), after=after, shortage=is_shortage(error))


def _delay(control: Any) -> int:
    """Return the delay that a control asks for. A subclass may have skipped the check in its constructor."""
    return micros(duration(control.delay, field=f"{class_name(control)}.delay", zero=True))


def _unrecorded(error: BaseException, value: object) -> RecordedError:
    """Return the error of a run that returned a result which cannot be recorded, with the result as text."""
    record = recorded(error)
    message = f"the handler returned, but its result cannot be recorded: {record.message}"
    return RecordedError(record.type, f"{message}; it was {redacted_repr(value, RESULT_KEPT)}", record.traceback)


def _cancelled_from_within(error: BaseException) -> Raised:
    record = recorded(error)
    return Raised(RecordedError(record.type, record.message or CANCELLED_FROM_WITHIN, record.traceback))
