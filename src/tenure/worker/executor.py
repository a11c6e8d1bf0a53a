"""Executes the runs of a worker: each lease becomes a task, and the task's end becomes an outcome.

lease ──► held ──► attended, in its own task ──► outcome
           │        └─ stopped, but its handler goes on ──► abandoned: the stop reason decides the outcome
           ├─ prefetched, until another run is over ──► attended
           │  └─ for too long, or the worker claims no more ──► handed back, not begun
           └─ its lease ends before its turn comes ──► handed back, not begun

An exclusive run that was stopped, but whose handler goes on, keeps its right:

kept, with the outcome that it has ──the handler ends──► settled
          └─ after more than 2 s: the worker is notified ──► it is recycled ──► its end frees the right (settle.py)
"""

import asyncio
import contextvars
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from msgspec import structs

from tenure.client.task import Task
from tenure.clock import SECOND, Clock
from tenure.core.decision import Finish, PutBack, Suspend
from tenure.core.events import Event, LeaseLost
from tenure.core.job import JobRecord, Owner, RecordedError, Ref, RunRecord, StallReason
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.outcome import (
    Cancelled,
    Interrupted,
    Outcome,
    Raised,
    Rejected,
    Returned,
    Stalled,
    StopCode,
    TimedOut,
    Unknown,
    Unreadable,
)
from tenure.core.postmortem import first_line, post_mortem, stall_cause
from tenure.core.settlement import Settlement, settlement
from tenure.failures import RecordedException, log_failure, recorded, traceback_of, users_part
from tenure.handlers.log_fields import about
from tenure.worker.active_runs import CANCEL_GRACE, SILENT, Abandoned, ActiveRun, StopReason, overrides
from tenure.worker.deps import WorkerDeps
from tenure.worker.event_loop import LoopGuard
from tenure.worker.isolation.isolated_runs import IsolatedRuns
from tenure.worker.known_tasks import why_unknown
from tenure.worker.outcomes import Outcomes
from tenure.worker.prefetch import PrefetchBuffer, PrefetchPolicy, may_wait
from tenure.worker.recycling import RecyclePolicy
from tenure.worker.retry_delay import delay_by_function
from tenure.worker.run import HOOK_LIMIT, JOB_LOGGER, Runner, misuse, stopped
from tenure.worker.scoreboard import Way
from tenure.worker.stacks.traces import stack_of

Attending = Coroutine[Any, Any, None]
Starter = Callable[[Attending], "asyncio.Task[None]"]


def starter(loop: asyncio.AbstractEventLoop) -> Starter:
    """Return a function that makes a task of a coroutine.

    If the interpreter supports it, the task starts eagerly. A run that awaits nothing then never enters the loop's
    queue.
    """
    # A custom task factory decides when tasks start; do not force an eager start.
    if sys.version_info >= (3, 12) and loop.get_task_factory() is None:
        if _accepts_keywords(loop.create_task):
            return functools.partial(loop.create_task, eager_start=True)
        return functools.partial(asyncio.Task, loop=loop, eager_start=True)
    return loop.create_task


def _accepts_keywords(function: Callable[..., object]) -> bool:
    """Return True if a function accepts arbitrary keyword arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)


def log_end(logger: logging.Logger, run: ActiveRun, entry: Settlement, outcome: Outcome, took: float) -> None:
    """Log how a run ended. `took`: its seconds; 0 if it did not begin or was cut off."""
    job, decision = run.lease.job, entry.decision
    with about(job):
        match decision:
            case Finish(state=State.COMPLETED):
                logger.info("job %s (%s) completed in %.1f ms", job.id, job.task, took * 1000)
            case Finish(state=State.FAILED, reason=reason, error=error):
                _log_failure(
                    logger,
                    logging.ERROR,
                    f"failed in run %d{_after(took)}, reason %s: %s; details: tenure jobs show %s",
                    (job.starts, reason, _cause(error), job.id),
                    error,
                    run,
                    outcome,
                )
            case PutBack(charge="failures", after=after, error=error):
                _log_failure(
                    logger,
                    logging.WARNING,
                    f"failed in run %d{_after(took)}: %s; retrying in %.1f s",
                    (job.starts, _cause(error), after / SECOND),
                    error,
                    run,
                    outcome,
                )
            case PutBack(charge="stalls"):
                why = first_line(entry.ended.detail or "")
                logger.error("job %s (%s) stalled in run %d: %s", job.id, job.task, job.starts, why)
            case PutBack(charge="releases", reason="unknown_task"):
                logger.warning("job %s: this worker does not know its task %r", job.id, job.task)
            case PutBack(after=after, reason=reason):
                text = f"job %s (%s) released{_after(took)} (%s); due again in %.1f s"
                logger.info(text, job.id, job.task, reason, after / SECOND)
            case Suspend():
                logger.info(f"job %s (%s) suspended{_after(took)}", job.id, job.task)
            case Finish(state=state):
                logger.info(f"job %s (%s) %s{_after(took)}", job.id, job.task, state)


def _after(took: float) -> str:
    return f" after {took * 1000:.1f} ms" if took else ""


def _cause(error: RecordedError | None) -> str:
    return "no error" if error is None else f"{error.type}: {first_line(error.message)}"


def _log_failure(
    logger: logging.Logger,
    level: int,
    text: str,
    args: tuple[object, ...],
    error: RecordedError | None,
    run: ActiveRun,
    outcome: Outcome,
) -> None:
    """Log a failed run with its exception. If only the record of the exception is known, log that."""
    job = run.lease.job
    exception: BaseException | None = None if error is None else RecordedException(error)
    if run.failure is not None and run.failure[0] is getattr(outcome, "error", None):
        exception = run.failure[1]
    if exception is None:
        logger.log(level, f"job %s (%s) {text}", job.id, job.task, *args)
        return
    trace = users_part(traceback_of(exception))
    log_failure(logger, level, f"job %s (%s) {text}", job.id, job.task, *args, error=exception, trace=trace)


def silence_outcome(run: ActiveRun, reason: StallReason, *, worker: Owner, clock: Clock) -> Stalled:
    """Return the outcome of a run that its worker stopped because its handler was silent, with a post-mortem."""
    now, wall, job, silent = clock.uptime(), clock.now(), run.lease.job, run.silent_for
    record = RunRecord(
        number=job.starts,
        fence=job.fence,
        owner=worker.id,
        worker=worker.name,
        host=worker.host,
        pid=run.pid or worker.pid,
        start=wall - round((now - run.claimed_at) * SECOND),
        trace=run.position_at_stop,
    )
    text = post_mortem(
        structs.replace(job, heard_at=wall),
        stall_cause(job, reason, silent_for=silent, run=record),
        silent_for=silent,
        died=False,
        run=record,
    )
    return Stalled(reason, silent, worker.id, text)


LOOP_CANCELLED = "every task of its event loop was cancelled, and it is not known by which code"

SHOWN = 20
"""Maximum number of unstoppable runs that the worker reports to the storage."""


class Executor:
    """Holds the runs that go on. Adds their outcomes to `outcomes` and then calls `over`."""

    def __init__(
        self,
        deps: WorkerDeps,
        runner: Runner,
        isolated_runs: IsolatedRuns,
        outcomes: Outcomes,
        *,
        concurrency: int,
        prefetch: PrefetchPolicy,
        abandoned: Abandoned,
        guard: LoopGuard,
        tasks: Mapping[str, Task[..., Any]],
        recycle_policy: RecyclePolicy,
        publish: Callable[[Event], None],
        supervised: bool,
        report_unstoppable: Callable[[ActiveRun, StopCode], None],
    ) -> None:
        """Create an executor. `report_unstoppable` is called when a run that keeps its right does not end."""
        self._owner, self._active_runs, self._clock, self._rng = deps.owner, deps.active_runs, deps.clock, deps.rng
        self._logger, self._metrics = deps.logger, deps.metrics
        self._job_logger = deps.logger.getChild(JOB_LOGGER)
        self._supervised = supervised
        self._report_unstoppable = report_unstoppable
        self._keeping_right: dict[ActiveRun, Outcome] = {}
        """The exclusive runs that were stopped but whose handlers go on, each with its outcome."""
        self._unstopped: dict[ActiveRun, None] = {}
        """The runs in `_keeping_right` whose time to end is over."""
        self._runner = runner
        self._isolated_runs = isolated_runs
        self._outcomes = outcomes
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._abandoned = abandoned
        self._guard = guard
        self._tasks = tasks
        self._recycle_policy = recycle_policy
        self._publish = publish
        self._running: dict[ActiveRun, None] = {}
        self._prefetched = PrefetchBuffer(prefetch, deps.clock, too_long=self.hand_back)
        self._beginning = False
        self._context = contextvars.Context()
        self._run_tasks: dict[asyncio.Task[None], ActiveRun] = {}
        self._start: Starter | None = None
        self._failure: asyncio.Future[None] | None = None
        self.over: Callable[[], None] = lambda: None
        """Called when a run is over and its outcome is added."""
        self.released = 0
        """The number of runs that were handed back."""
        self.stopping = False
        """True if the worker was asked to stop, or is being recycled."""

    def __len__(self) -> int:
        return len(self._running) + len(self._prefetched) + len(self._keeping_right)

    @property
    def running(self) -> int:
        """The number of runs that go on."""
        return len(self._running) + len(self._keeping_right)

    @property
    def unstopped(self) -> tuple[Ref, ...]:
        """The first few exclusive runs that were stopped but go on. Safe from any thread."""
        return tuple(run.lease.ref for run in list(self._unstopped)[:SHOWN])

    @property
    def capacity(self) -> int:
        """The number of jobs that this worker may hold at a time, prefetched jobs included."""
        return self._concurrency + self._prefetch.room

    @property
    def room(self) -> int:
        """The number of jobs that this worker may still claim."""
        # A run that was stopped does not count against the concurrency, even if it keeps its right.
        prefetched = len(self._prefetched)
        free = max(0, self.capacity - len(self._running) - prefetched)
        # Prefetched jobs count towards `max_jobs` as well.
        return max(0, self._recycle_policy.room(free + prefetched) - prefetched)

    def begin(self) -> "asyncio.Future[None]":
        """Let runs begin from now on. Return a future that fails if the executor's own code fails, not a handler."""
        loop = asyncio.get_running_loop()
        self._start, self._failure = starter(loop), loop.create_future()
        self._context = contextvars.copy_context()
        return self._failure

    async def end(self) -> None:
        """Let no more runs begin, cancel the tasks of all runs, and wait for these tasks without a limit."""
        self._start, cancelled = None, False
        self.hand_back()
        for task in self._run_tasks:
            task.cancel()
        while self._run_tasks:
            try:
                await asyncio.wait(list(self._run_tasks))
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError

    def hold(self, leases: Sequence[Lease], asked_at: float) -> list[ActiveRun]:
        """Hold all leases that a call returned, or none of them if this raises. `asked_at`: when the call was sent.

        The runs whose tasks are unknown here come first.
        """
        # Their time counts from the answer: a delay of the claim in a frozen storage is not part of the run.
        now = self._clock.uptime()
        self._metrics.claimed(leases)
        known, unknown = list[ActiveRun](), list[ActiveRun]()
        free = self._free
        for lease in leases:
            why = why_unknown(self._tasks, lease.job)
            run = self._active_run(lease, asked_at, now, begun=why is None and len(known) < free)
            run.unknown = why
            (known if why is None else unknown).append(run)
        taken = unknown + known
        try:
            self._active_runs.add_all(taken)
        except BaseException:
            self._active_runs.drop_all(run.key for run in taken)
            raise
        return taken

    def take(self, taken: Sequence[ActiveRun], *, begin: bool) -> None:
        """Begin the runs that `hold` returned, now or soon. Without `begin`, hand them back, not begun."""
        now, free = self._clock.uptime(), self._free
        # `hold` has added all of them before the first one begins, because that one may block the loop for long.
        rest = iter(taken)
        try:
            for run in rest:
                if run.unknown is not None:
                    # At once, even if this worker is busy: another worker may know the task.
                    self._take_outcome(run, Unknown(run.unknown))
                elif not begin or self._start is None:
                    # The answer of the claim came after the worker was asked to stop.
                    self._take_outcome(run, Interrupted("prefetch"))
                elif free > 0:
                    free -= 1
                    self._begin(run)
                elif may_wait(run.lease.job):
                    self._prefetched.add(run, now)
                else:
                    self._prefetch.kept_waiting()
                    self._take_outcome(run, Interrupted("prefetch"))
        except BaseException:
            # The runs that have begun go on until the worker ends. This error makes the worker fail.
            for run in rest:
                self._take_outcome(run, Interrupted("prefetch"))
            raise
        self._fill_up()

    def set_concurrency(self, concurrency: int) -> None:
        """Run this many jobs at once from now on. Runs beyond a smaller number go on."""
        self._concurrency = concurrency
        self._prefetch.set_concurrency(concurrency)
        self._fill_up()

    @property
    def _free(self) -> int:
        """The number of runs that may begin at once."""
        return self._concurrency - len(self._running) - len(self._prefetched)

    def hand_back(self) -> None:
        """Hand back the prefetched jobs."""
        for run in self._prefetched.take_all():
            self._take_outcome(run, Interrupted("prefetch"))

    def _fill_up(self) -> None:
        """Begin prefetched jobs, as many as may run."""
        if self._beginning or not self._prefetched:
            # A run was over at once and made room for another. The call further up the stack begins that one.
            return
        self._beginning = True
        try:
            while self._prefetched and len(self._running) < self._concurrency:
                self._begin(self._prefetched.take())
        finally:
            self._beginning = False
        self._prefetched.watch()

    def _begin(self, run: ActiveRun) -> None:
        start = self._start
        if start is None:
            self._take_outcome(run, Interrupted("prefetch"))
            return
        self._recycle_policy.began()
        self._running[run] = None
        run.root = attending = self._run(run)
        # Use the worker's context. Often another run starts this one, and must not pass on its context variables.
        task = self._context.copy().run(start, attending)
        if not task.done() or run in self._running:
            run.task = task
            self._run_tasks[task] = run
            task.add_done_callback(self._ended)

    def stop(self, run: ActiveRun, reason: StopReason, detail: str | None) -> None:
        """Stop a run. A coroutine is cancelled; a thread is only notified, because it cannot be cancelled."""
        if not overrides(reason, run.stop) or (run.settling and reason in ("lost", "unreachable")):
            # The commit of its transaction decides whether a run that settles itself is the current one.
            return
        if run in self._keeping_right:
            # Its outcome stands, but its right is gone with its lease.
            if reason == "lost":
                run.stop = reason
                self._drop_lost(run)
            return
        run.stop, run.stop_detail = reason, detail
        if reason in SILENT:
            # Record the position now: the handler leaves it when it is stopped.
            run.position_at_stop = stack_of(run)
            run.silent_for = max(0, round((self._clock.uptime() - run.signed) * SECOND))
        if run not in self._running and run not in self._prefetched:
            # The run is over and its outcome is being settled: the renewal and the settlement have crossed.
            return
        if reason in ("lost", "unreachable"):
            job = run.lease.job
            self._publish(
                LeaseLost(
                    queue=job.queue,
                    id=job.id,
                    task=job.task,
                    run=job.starts,
                    fence=job.fence,
                    owner=self._owner.id,
                    reason="lost" if reason == "lost" else "unreachable",
                )
            )
        if run in self._prefetched:
            # The run checks `stop` before it calls its handler.
            self._prefetched.remove(run)
            self._begin(run)
        elif run.stop_isolated is not None:
            run.stop_isolated(reason, detail)
        elif run.cancel() or (run.exclusive and run.context is not None):
            self._abandon_later(run, reason)

    def stop_all(self) -> None:
        """Stop all runs, because the worker stops, or because it failed without a request to stop."""
        self.hand_back()
        reason: StopReason = "shutdown" if self.stopping else "worker_failed"
        for run in list(self._running):
            self.stop(run, reason, "the worker stops")

    def release(self, delay: int) -> None:
        """Hand back the runs that do not end, due again after `delay` microseconds, when this process is gone.

        An exclusive run that goes on is left to the supervisor: the end of this process frees its right.
        """
        self.hand_back()
        for run in [*self._running, *self._keeping_right]:
            failed = run.stop == "worker_failed"
            outcome = self._keeping_right.get(run, Interrupted("worker_failed" if failed else "shutdown", delay))
            if self._supervised and run.exclusive and run.stop != "lost" and not run.settled:
                self._active_runs.note_stopped(run, _stop_code(outcome))
                self._running.pop(run, None)
                self._forget(run)
                run.over = True
                self.over()
                continue
            if run.exclusive and not run.settled:
                self._logger.error(
                    "job %s (%s): its exclusive right is released, although its handler may still run in this process",
                    run.lease.job.id,
                    run.lease.job.task,
                )
            self._settle(run, outcome)

    def _active_run(self, lease: Lease, asked_at: float, now: float, *, begun: bool) -> ActiveRun:
        job = lease.job
        task = self._tasks.get(job.task)
        run = ActiveRun(lease)
        run.claimed_at, run.stops_unreachable, run.begun = now, _stops(job, task), begun
        run.exclusive = run.stops_unreachable or job.exclusive
        if job.unreadable is None and self._isolated_runs.needs_process(run):
            # The time that its process needs to start is not part of the run.
            run.way, run.begun = "process", False
        else:
            run.way = _way(task)
        run.granted(asked_at)
        return run

    async def _run(self, run: ActiveRun) -> None:
        began = self._clock.uptime()
        if run.task is None:
            # An eager task runs before its creator can store it in `held.task`.
            run.task = asyncio.current_task()
        if began >= run.trusted_until:
            # While this process was suspended, the supervisor's renewer may have renewed the lease.
            self._active_runs.read_external_renewals()
        if began >= run.trusted_until:
            # The claim was answered late, or the lease was not renewed since. Another worker may have the job by now.
            self._recycle_policy.not_begun()
            self._take_outcome(run, Interrupted("unreachable"))
            self._fill_up()
            return
        try:
            outcome_of_process = await self._isolated_runs.run(run) if run.way == "process" else None
            if outcome_of_process is None:
                if run.way == "process":
                    # No process is available, so it runs in this one, and is then a suspect if this process dies.
                    self._active_runs.run_here(run, _way(self._tasks.get(run.lease.job.task)))
                if not run.begun:
                    self._active_runs.begin(run, self._clock.uptime())
                outcome = await self._runner.run(run, self._overdue)
            else:
                outcome = outcome_of_process
        except GeneratorExit:
            # The event loop is gone. An exception of a handler does not reach this place.
            raise
        except BaseException as error:
            # The runner itself failed, not the handler; the job still needs an outcome.
            log_failure(
                self._logger, logging.ERROR, "job %s: its run failed outside the handler", run.lease.ref.id, error=error
            )
            outcome = Raised(recorded(error))
        self._take_outcome(run, outcome, self._clock.uptime() - (began if began > run.claimed_at else run.claimed_at))
        if self._prefetched:
            self._fill_up()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        run = self._run_tasks.pop(task)
        if run in self._running:
            # Its task was cancelled before the first step, so the run did not begin.
            self._take_outcome(run, Interrupted("shutdown"))
            self._fill_up()
        error = None if task.cancelled() else task.exception()
        if error is not None and self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _abandon_later(self, run: ActiveRun, reason: StopReason) -> None:
        """Abandon a run later if it does not end. When the worker stops, `release` handles all such runs at once."""
        if reason in ("shutdown", "worker_failed") or (reason == "cancelled" and run.lease.job.timeout is not None):
            return
        # A cancelled run still has its lease and its concurrency keys. It may clean up until its timeout at most.
        within = HOOK_LIMIT if reason == "cancelled" else CANCEL_GRACE
        asyncio.get_running_loop().call_later(within, lambda: self._overdue(run, stopped(run)))

    def _overdue(self, run: ActiveRun, outcome: Outcome) -> None:
        """Abandon a run whose handler goes on although it was cancelled. Its later result is discarded."""
        if run not in self._running or run.in_hook or run.task is None or run.task.done():
            return
        job = run.lease.job
        self._logger.error("job %s (%s): the handler ignores its cancellation; abandoning it", job.id, job.task)
        run.abandoned = True
        self._abandoned.add_task(run.task)
        run.end_transaction()
        if run.exclusive and run.stop != "lost" and not run.settled:
            self._keep_right(run, outcome)
            self._will_not_end(run)
        else:
            self._take_outcome(run, outcome, self._clock.uptime() - run.claimed_at)
        self._fill_up()

    def _corrected(self, run: ActiveRun, outcome: Outcome) -> Outcome:
        """Return a run's outcome; correct it if a handler cancelled every task of the loop or stopped the loop.

        If the handler that did this is known, the other runs that were cancelled with it are not charged. If it is not
        known, any of them may have done it, as in a crash.
        """
        own = misuse(run)
        if own is not None:
            return own
        task = run.task
        hit = self._guard.cancelled and task is not None and task.cancelling() > 0
        if (
            not hit
            or run.stops_for("cancelled", "lost", "unreachable")
            or not isinstance(outcome, Interrupted | Raised)
        ):
            return outcome
        if self._guard.known:
            return Interrupted("worker_failed")
        return Stalled("process_died", owner=self._owner.id, detail=LOOP_CANCELLED)

    def _keep_right(self, run: ActiveRun, outcome: Outcome) -> None:
        """Keep the right of a stopped run until its handler has ended. Its first outcome stands."""
        self._running.pop(run, None)
        self._keeping_right[run] = self._complete(run, outcome)
        self._active_runs.note_stopped(run, _stop_code(outcome))
        self.over()

    def _will_not_end(self, run: ActiveRun) -> None:
        """Report that a run which keeps its right still goes on when its time to end is over."""
        if run in self._keeping_right and run not in self._unstopped:
            self._unstopped[run] = None
            self._report_unstoppable(run, _stop_code(self._keeping_right[run]))

    def _drop_lost(self, run: ActiveRun) -> None:
        """Forget a run that has lost its right, because its job belongs to another run now."""
        self._forget(run)
        run.over = True
        self._active_runs.drop(run.key)
        self.over()

    def _forget(self, run: ActiveRun) -> None:
        self._keeping_right.pop(run, None)
        self._unstopped.pop(run, None)

    def _take_outcome(self, run: ActiveRun, outcome: Outcome, took: float = 0.0) -> None:
        """Take the outcome of a run. `took` is 0 if the duration says nothing: the run did not begin or was cut off."""
        self._running.pop(run, None)
        if run.over:
            # It was handed back while its handler went on. Only the first outcome counts.
            return
        if run.exclusive and run.stop != "lost" and run.goes_on and not run.settled:
            # The wait for its thread or hook is over, but the thread or hook goes on.
            if run not in self._keeping_right:
                self._keep_right(run, outcome)
                asyncio.get_running_loop().call_later(CANCEL_GRACE, self._will_not_end, run)
            run.when_one_ends(lambda: self._take_outcome(run, outcome, took))
            return
        self._settle(run, self._keeping_right.get(run, outcome), took)

    def _settle(self, run: ActiveRun, outcome: Outcome, took: float = 0.0) -> None:
        """Pass the outcome of a run on for settlement."""
        self._running.pop(run, None)
        self._forget(run)
        run.over = True
        if run.context is not None:
            run.context.over = True
            if self._guard.cancelled or run.context.misuse is not None:
                outcome = self._corrected(run, outcome)
        run.took = took
        self._metrics.ran(run.lease.job, took)
        if took:
            self._prefetch.ran(took)
        if run.settled:
            self._end_settled(run, outcome, took)
        elif run.stop == "lost" and isinstance(outcome, Interrupted):
            # The lease was lost and the run has no result, so there is nothing to settle.
            self._active_runs.drop(run.key)
        else:
            if isinstance(outcome, Interrupted):
                # The handler does not know these two facts; only the worker does.
                begun = run.context is not None or run.pid is not None
                outcome = structs.replace(outcome, begun=begun, stopping=self.stopping)
            entry = settlement(run.lease, self._complete(run, outcome), self._rng, took=took)
            self._outcomes.add(run.key, entry)
            if not isinstance(outcome, Returned) or self._job_logger.isEnabledFor(logging.INFO):
                log_end(self._job_logger, run, entry, outcome, took)
                self.released += isinstance(outcome, Interrupted)
        # Its traceback refers to the run.
        run.failure = None
        self.over()

    def _end_settled(self, run: ActiveRun, outcome: Outcome, took: float) -> None:
        """Log and count a run that its own transaction has settled. `outcome`: of the code after the transaction."""
        job = run.lease.job
        completed = Returned(b"")
        entry = settlement(run.lease, completed, self._rng, took=took)
        self._metrics.answered([(job, entry, "done", took)])
        if self._job_logger.isEnabledFor(logging.INFO):
            log_end(self._job_logger, run, entry, completed, took)
        match outcome:
            case Returned():
                return
            case Raised(error=error) | TimedOut(error=error) | Rejected(error=error) | Unreadable(error=error):
                exception: BaseException = RecordedException(error)
                if run.failure is not None and run.failure[0] is error:
                    exception = run.failure[1]
                with about(job):
                    log_failure(
                        self._logger,
                        logging.ERROR,
                        "job %s (%s) is completed, but the code after its transaction failed: %s",
                        job.id,
                        job.task,
                        _cause(error),
                        error=exception,
                        trace=users_part(traceback_of(exception)),
                    )
            case _:
                self._logger.warning(
                    "job %s (%s) is completed, but the code after its transaction was stopped", job.id, job.task
                )

    def _complete(self, run: ActiveRun, outcome: Outcome) -> Outcome:
        """Add the facts that only this worker knows: how a silent handler was stopped, the delay after a timeout."""
        match outcome:
            case Stalled(owner=""):
                return silence_outcome(run, outcome.reason, worker=self._owner, clock=self._clock)
            case TimedOut(error, final=False) if (task := self._tasks.get(run.lease.job.task)) is not None:
                after = delay_by_function(task.retry, run.lease.job, TimeoutError(error.message), self._logger)
                return structs.replace(outcome, after=after)
            case _:
                return outcome


def _way(task: Task[..., Any] | None) -> Way:
    return "loop" if task is None or task.is_async else "thread"


def _stops(job: JobRecord, task: Task[..., Any] | None) -> bool:
    policy = task.settings.on_unreachable if task is not None else None
    return job.exclusive if policy is None or policy == "auto" else policy == "stop"


def _stop_code(outcome: Outcome) -> StopCode:
    """Return the stop reason that an outcome stands for."""
    match outcome:
        case Stalled(reason="no_progress" | "lease_expired" as reason):
            return reason
        case TimedOut():
            return "timeout"
        case Cancelled():
            return "cancelled"
        case Interrupted(reason="unreachable" | "shutdown" | "worker_failed" as reason):
            return reason
        case _:
            return "ended"
