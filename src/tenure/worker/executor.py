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
import logging
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from msgspec import structs

from tenure.client.task import Task
from tenure.clock import SECOND, Clock
from tenure.core.events import Event, LeaseLost
from tenure.core.job import JobRecord, Owner, Ref
from tenure.core.lease import Lease
from tenure.core.outcome import (
    Cancelled,
    Interrupted,
    Outcome,
    Raised,
    Returned,
    Stalled,
    StopCode,
    TimedOut,
    Unknown,
)
from tenure.core.settlement import settlement
from tenure.failures import log_failure, recorded
from tenure.worker.abandoned import LINGER, Abandoned
from tenure.worker.active_runs import SILENT, ActiveRun, ActiveRuns, StopReason, outdoes
from tenure.worker.failure_log import log_mishap
from tenure.worker.isolation.isolated_runs import IsolatedRuns
from tenure.worker.known_tasks import why_unknown
from tenure.worker.loop_guard import LoopGuard
from tenure.worker.on_cancel import LIMIT
from tenure.worker.outcomes import Outcomes
from tenure.worker.prefetch_buffer import PrefetchBuffer
from tenure.worker.prefetch_policy import PrefetchPolicy, may_wait
from tenure.worker.recycling import RecyclePolicy
from tenure.worker.run import Runner, misuse, stopped
from tenure.worker.scoreboard import Way
from tenure.worker.silence import told_of_silence
from tenure.worker.stacks.traces import where
from tenure.worker.starting import Starter, starter
from tenure.worker.worker_metrics import WorkerMetrics

LOOP_CANCELLED = "every task of its event loop was cancelled, and it is not known by which code"

SHOWN = 20
"""Maximum number of unstoppable runs that the worker reports to the storage."""


class Executor:
    """Holds the runs that go on. Adds their outcomes to `outcomes` and then calls `over`."""

    def __init__(
        self,
        owner: Owner,
        runner: Runner,
        slots: IsolatedRuns,
        holdings: ActiveRuns,
        outcomes: Outcomes,
        *,
        concurrency: int,
        ahead: PrefetchPolicy,
        abandoned: Abandoned,
        guard: LoopGuard,
        tasks: Mapping[str, Task[..., Any]],
        wear: RecyclePolicy,
        clock: Clock,
        rng: Random,
        logger: logging.Logger,
        tell: Callable[[Event], None],
        tally: WorkerMetrics,
        supervised: bool,
        unstoppable: Callable[[ActiveRun, StopCode], None],
    ) -> None:
        """Create an executor. `unstoppable` is called when a run that keeps its right does not end."""
        self._owner = owner
        self._supervised = supervised
        self._unstoppable = unstoppable
        self._kept: dict[ActiveRun, Outcome] = {}
        """The exclusive runs that were stopped but whose handlers go on, each with its outcome."""
        self._unstopped: dict[ActiveRun, None] = {}
        """The runs in `_kept` whose time to end is over."""
        self._runner = runner
        self._slots = slots
        self._holdings = holdings
        self._outcomes = outcomes
        self._concurrency = concurrency
        self._ahead = ahead
        self._abandoned = abandoned
        self._guard = guard
        self._tasks = tasks
        self._wear = wear
        self._clock = clock
        self._rng = rng
        self._logger = logger
        self._tell = tell
        self._tally = tally
        self._running: dict[ActiveRun, None] = {}
        self._at_hand = PrefetchBuffer(ahead, clock, too_long=self.hand_back)
        self._beginning = False
        self._context = contextvars.Context()
        self._attending: dict[asyncio.Task[None], ActiveRun] = {}
        self._start: Starter | None = None
        self._failure: asyncio.Future[None] | None = None
        self.over: Callable[[], None] = lambda: None
        """Called when a run is over and its outcome is added."""
        self.released = 0
        """The number of runs that were handed back."""
        self.stopping = False
        """True if the worker was asked to stop, or is being recycled."""

    def __len__(self) -> int:
        return len(self._running) + len(self._at_hand) + len(self._kept)

    @property
    def running(self) -> int:
        """The number of runs that go on."""
        return len(self._running) + len(self._kept)

    @property
    def unstopped(self) -> tuple[Ref, ...]:
        """The first few exclusive runs that were stopped but go on. Safe from any thread."""
        return tuple(held.lease.ref for held in list(self._unstopped)[:SHOWN])

    @property
    def capacity(self) -> int:
        """The number of jobs that this worker may hold at a time, prefetched jobs included."""
        return self._concurrency + self._ahead.room

    @property
    def room(self) -> int:
        """The number of jobs that this worker may still claim."""
        # A run that was stopped does not count against the concurrency, even if it keeps its right.
        free = max(0, self.capacity - len(self._running) - len(self._at_hand))
        # Prefetched jobs count towards `max_jobs` as well.
        return max(0, self._wear.room(free + len(self._at_hand)) - len(self._at_hand))

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
        for task in self._attending:
            task.cancel()
        while self._attending:
            try:
                await asyncio.wait(list(self._attending))
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
        self._tally.claimed(leases)
        known, unknown = list[ActiveRun](), list[ActiveRun]()
        free = self._free
        for lease in leases:
            why = why_unknown(self._tasks, lease.job)
            held = self._held(lease, asked_at, now, begun=why is None and len(known) < free)
            held.unknown = why
            (known if why is None else unknown).append(held)
        taken = unknown + known
        try:
            self._holdings.add_all(taken)
        except BaseException:
            self._holdings.drop_all(held.key for held in taken)
            raise
        return taken

    def take(self, taken: Sequence[ActiveRun], *, begin: bool) -> None:
        """Begin the runs that `hold` returned, now or soon. Without `begin`, hand them back, not begun."""
        now, free = self._clock.uptime(), self._free
        # `hold` has added all of them before the first one begins, because that one may block the loop for long.
        rest = iter(taken)
        try:
            for held in rest:
                if held.unknown is not None:
                    # At once, even if this worker is busy: another worker may know the task.
                    self._done(held, Unknown(held.unknown))
                elif not begin or self._start is None:
                    # The answer of the claim came after the worker was asked to stop.
                    self._done(held, Interrupted("prefetch"))
                elif free > 0:
                    free -= 1
                    self._begin(held)
                elif may_wait(held.lease.job):
                    self._at_hand.add(held, now)
                else:
                    self._ahead.kept_waiting()
                    self._done(held, Interrupted("prefetch"))
        except BaseException:
            # The runs that have begun go on until the worker ends. This error makes the worker fail.
            for held in rest:
                self._done(held, Interrupted("prefetch"))
            raise
        self._fill_up()

    @property
    def _free(self) -> int:
        """The number of runs that may begin at once."""
        return self._concurrency - len(self._running) - len(self._at_hand)

    def hand_back(self) -> None:
        """Hand back the prefetched jobs."""
        for held in self._at_hand.take_all():
            self._done(held, Interrupted("prefetch"))

    def _fill_up(self) -> None:
        """Begin prefetched jobs, as many as may run."""
        if self._beginning:
            # A run was over at once and made room for another. The call further up the stack begins that one.
            return
        self._beginning = True
        try:
            while self._at_hand and len(self._running) < self._concurrency:
                self._begin(self._at_hand.take())
        finally:
            self._beginning = False
        self._at_hand.watch()

    def _begin(self, held: ActiveRun) -> None:
        start = self._start
        if start is None:
            self._done(held, Interrupted("prefetch"))
            return
        self._wear.began()
        self._running[held] = None
        held.root = attending = self._attend(held)
        # Use the worker's context. Often another run starts this one, and must not pass on its context variables.
        task = self._context.copy().run(start, attending)
        if not task.done() or held in self._running:
            held.task = task
            self._attending[task] = held
            task.add_done_callback(self._ended)

    def stop(self, held: ActiveRun, reason: StopReason, detail: str | None) -> None:
        """Stop a run. A coroutine is cancelled; a thread is only notified, because it cannot be cancelled."""
        if not outdoes(reason, held.stop):
            return
        if held in self._kept:
            # Its outcome stands, but its right is gone with its lease.
            if reason == "lost":
                held.stop = reason
                self._let_go(held)
            return
        held.stop, held.stop_detail = reason, detail
        if reason in SILENT:
            # Record the position now: the handler leaves it when it is stopped.
            held.at_limit = where(held)
            held.silent_for = max(0, round((self._clock.uptime() - held.signed) * SECOND))
        if held not in self._running and held not in self._at_hand:
            # The run is over and its outcome is being settled: the renewal and the settlement have crossed.
            return
        if reason in ("lost", "unreachable"):
            job = held.lease.job
            self._tell(
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
        if held in self._at_hand:
            # The run checks `stop` before it calls its handler.
            self._at_hand.remove(held)
            self._begin(held)
        elif held.make_end is not None:
            held.make_end(reason, detail)
        elif held.end() or (held.exclusive and held.context is not None):
            self._expect(held, reason)

    def stop_all(self) -> None:
        """Stop all runs, because the worker stops, or because it failed without a request to stop."""
        self.hand_back()
        reason: StopReason = "shutdown" if self.stopping else "worker_failed"
        for held in list(self._running):
            self.stop(held, reason, "the worker stops")

    def release(self, delay: int) -> None:
        """Hand back the runs that do not end, due again after `delay` microseconds, when this process is gone.

        An exclusive run that goes on is left to the supervisor: the end of this process frees its right.
        """
        self.hand_back()
        for held in [*self._running, *self._kept]:
            failed = held.stop == "worker_failed"
            outcome = self._kept.get(held, Interrupted("worker_failed" if failed else "shutdown", delay))
            if self._supervised and held.exclusive and held.stop != "lost":
                self._holdings.note_stopped(held, _stop_code(outcome))
                self._running.pop(held, None)
                self._forget(held)
                held.over = True
                self.over()
                continue
            if held.exclusive:
                self._logger.error(
                    "job %s (%s): its exclusive right is given up, though its handler may go on in this process",
                    held.lease.job.id,
                    held.lease.job.task,
                )
            self._settle(held, outcome)

    def _held(self, lease: Lease, asked_at: float, now: float, *, begun: bool) -> ActiveRun:
        job = lease.job
        task = self._tasks.get(job.task)
        held = ActiveRun(lease)
        held.claimed_at, held.stops_unreachable, held.begun = now, _stops(job, task), begun
        held.exclusive = held.stops_unreachable or job.exclusive
        if job.unreadable is None and self._slots.wanted(held):
            # The time that its process needs to start is not part of the run.
            held.way, held.begun = "process", False
        else:
            held.way = _way(task)
        held.granted(asked_at)
        return held

    async def _attend(self, held: ActiveRun) -> None:
        began = self._clock.uptime()
        if held.task is None:
            # An eager task runs before its creator can store it in `held.task`.
            held.task = asyncio.current_task()
        if began >= held.trusted_until:
            # While this process was suspended, the supervisor's renewer may have renewed the lease.
            self._holdings.trust_watcher()
        if began >= held.trusted_until:
            # The claim was answered late, or the lease was not renewed since. Another worker may have the job by now.
            self._wear.not_begun()
            self._done(held, Interrupted("unreachable"))
            self._fill_up()
            return
        try:
            apart = await self._slots.run(held) if held.way == "process" else None
            if apart is None:
                if held.way == "process":
                    # No process is available, so it runs in this one, and is then a suspect if this process dies.
                    self._holdings.stay(held, _way(self._tasks.get(held.lease.job.task)))
                if not held.begun:
                    self._holdings.begin(held, self._clock.uptime())
                outcome = await self._runner.run(held, self._overdue)
            else:
                outcome = apart
        except GeneratorExit:
            # The event loop is gone. An exception of a handler does not reach this place.
            raise
        except BaseException as error:
            # The runner itself failed, not the handler; the job still needs an outcome.
            log_failure(
                self._logger, logging.ERROR, "job %s: its run could not be carried out", held.lease.ref.id, error=error
            )
            outcome = Raised(recorded(error))
        self._done(held, outcome, self._clock.uptime() - (began if began > held.claimed_at else held.claimed_at))
        if self._at_hand:
            self._fill_up()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        held = self._attending.pop(task)
        if held in self._running:
            # Its task was cancelled before the first step, so the run did not begin.
            self._done(held, Interrupted("shutdown"))
            self._fill_up()
        error = None if task.cancelled() else task.exception()
        if error is not None and self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _expect(self, held: ActiveRun, reason: StopReason) -> None:
        """Abandon a run later if it does not end. When the worker stops, `release` handles all such runs at once."""
        if reason in ("shutdown", "worker_failed") or (reason == "cancelled" and held.lease.job.timeout is not None):
            return
        # A cancelled run still has its lease and its concurrency keys. It may clean up until its timeout at most.
        within = LIMIT if reason == "cancelled" else LINGER
        asyncio.get_running_loop().call_later(within, lambda: self._overdue(held, stopped(held)))

    def _overdue(self, held: ActiveRun, outcome: Outcome) -> None:
        """Abandon a run whose handler goes on although it was cancelled. Its later result is discarded."""
        if held not in self._running or held.hooking or held.task is None or held.task.done():
            return
        job = held.lease.job
        self._logger.error(
            "job %s (%s): the handler goes on although it was cancelled; it is left to itself", job.id, job.task
        )
        held.abandoned = True
        self._abandoned.task(held.task)
        if held.exclusive and held.stop != "lost":
            self._keep(held, outcome)
            self._will_not_end(held)
        else:
            self._done(held, outcome, self._clock.uptime() - held.claimed_at)
        self._fill_up()

    def _judged(self, held: ActiveRun, outcome: Outcome) -> Outcome:
        """Return a run's outcome; correct it if a handler cancelled every task of the loop or stopped the loop.

        If the handler that did this is known, the other runs that were cancelled with it are not charged. If it is not
        known, any of them may have done it, as in a crash.
        """
        own = misuse(held)
        if own is not None:
            return own
        task = held.task
        hit = self._guard.cancelled and task is not None and task.cancelling() > 0
        if (
            not hit
            or held.stops_for("cancelled", "lost", "unreachable")
            or not isinstance(outcome, Interrupted | Raised)
        ):
            return outcome
        if self._guard.known:
            return Interrupted("worker_failed")
        return Stalled("process_died", owner=self._owner.id, detail=LOOP_CANCELLED)

    def _keep(self, held: ActiveRun, outcome: Outcome) -> None:
        """Keep the right of a stopped run until its handler has ended. Its first outcome stands."""
        self._running.pop(held, None)
        self._kept[held] = self._complete(held, outcome)
        self._holdings.note_stopped(held, _stop_code(outcome))
        self.over()

    def _will_not_end(self, held: ActiveRun) -> None:
        """Report that a run which keeps its right still goes on when its time to end is over."""
        if held in self._kept and held not in self._unstopped:
            self._unstopped[held] = None
            self._unstoppable(held, _stop_code(self._kept[held]))

    def _let_go(self, held: ActiveRun) -> None:
        """Forget a run that has lost its right, because its job belongs to another run now."""
        self._forget(held)
        held.over = True
        self._holdings.drop(held.key)
        self.over()

    def _forget(self, held: ActiveRun) -> None:
        self._kept.pop(held, None)
        self._unstopped.pop(held, None)

    def _done(self, held: ActiveRun, outcome: Outcome, took: float = 0.0) -> None:
        """Take the outcome of a run. `took` is 0 if the duration says nothing: the run did not begin or was cut off."""
        self._running.pop(held, None)
        if held.over:
            # It was handed back while its handler went on. Only the first outcome counts.
            return
        if held.exclusive and held.stop != "lost" and held.goes_on:
            # The wait for its thread or hook is over, but the thread or hook goes on.
            if held not in self._kept:
                self._keep(held, outcome)
                asyncio.get_running_loop().call_later(LINGER, self._will_not_end, held)
            held.once_less(lambda: self._done(held, outcome, took))
            return
        self._settle(held, self._kept.get(held, outcome), took)

    def _settle(self, held: ActiveRun, outcome: Outcome, took: float = 0.0) -> None:
        """Pass the outcome of a run on for settlement."""
        self._running.pop(held, None)
        self._forget(held)
        held.over = True
        if held.context is not None:
            held.context.over = True
            if self._guard.cancelled or held.context.misuse is not None:
                outcome = self._judged(held, outcome)
        self._tally.ran(held.lease.job, took)
        if took:
            self._ahead.ran(took)
        if held.stop == "lost" and isinstance(outcome, Interrupted):
            # The lease was lost and the run has no result, so there is nothing to settle.
            self._holdings.drop(held.key)
        else:
            if isinstance(outcome, Interrupted):
                # The handler does not know these two facts; only the worker does.
                begun = held.context is not None or held.pid is not None
                outcome = structs.replace(outcome, begun=begun, stopping=self.stopping)
            asked = settlement(held.lease, self._complete(held, outcome), self._rng, took=took)
            self._outcomes.add(held.key, asked)
            if not isinstance(outcome, Returned):
                log_mishap(self._logger, held.lease.job, asked)
                self.released += isinstance(outcome, Interrupted)
        self.over()

    def _complete(self, held: ActiveRun, outcome: Outcome) -> Outcome:
        """Add what this worker knows of a run that was stopped because its handler was silent."""
        if isinstance(outcome, Stalled) and not outcome.owner:
            return told_of_silence(held, outcome.reason, worker=self._owner, clock=self._clock)
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
