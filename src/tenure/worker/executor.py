"""The runs of a worker: each lease becomes a task, and its end an outcome.

lease ──► held ──► attended, in a task of its own ──► outcome
           │        └─ told to stop, and goes on ──► left to itself: its outcome is what it was told
           ├─ at hand, until another is over ──► attended
           │  └─ for too long, or the worker claims no more ──► handed back, unbegun
           └─ its lease is out before its turn has come ──► handed back, unbegun

An exclusive run that was told to stop, and whose handler goes on, keeps its right:

kept, with the outcome that it has ──the handler ends──► settled
          └─ for more than 2 s: the worker is told ──► it is replaced ──► its end frees the right (settle.py)
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
"""How many runs that will not end are named to the storage."""


class Executor:
    """Those that go on. What they come to is added to the outcomes, and `over` is called."""

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
        """Take what runs need. `unstoppable`: called when one that keeps its right will not end."""
        self._owner = owner
        self._supervised = supervised
        self._unstoppable = unstoppable
        self._kept: dict[ActiveRun, Outcome] = {}
        """Exclusive runs that were stopped, whose handlers go on: what each has come to."""
        self._unstopped: dict[ActiveRun, None] = {}
        """Those of them that have had all their time to end."""
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
        """Called when one is over, and its outcome added."""
        self.released = 0
        """How many were handed back."""
        self.stopping = False
        """Whether the worker was asked to stop, or is being recycled."""

    def __len__(self) -> int:
        return len(self._running) + len(self._at_hand) + len(self._kept)

    @property
    def running(self) -> int:
        """How many go on."""
        return len(self._running) + len(self._kept)

    @property
    def unstopped(self) -> tuple[Ref, ...]:
        """The first few exclusive runs that were told to stop and go on; from any thread."""
        return tuple(held.lease.ref for held in list(self._unstopped)[:SHOWN])

    @property
    def capacity(self) -> int:
        """How many jobs may be here at a time, those included that are claimed ahead."""
        return self._concurrency + self._ahead.room

    @property
    def room(self) -> int:
        """How many more may come."""
        # A run that was told to stop has left its slot, though it keeps its right.
        free = max(0, self.capacity - len(self._running) - len(self._at_hand))
        # Who is at hand will wear, too.
        return max(0, self._wear.room(free + len(self._at_hand)) - len(self._at_hand))

    def begin(self) -> "asyncio.Future[None]":
        """Let runs begin from now on; return what fails if something does that carries them, and is no handler."""
        loop = asyncio.get_running_loop()
        self._start, self._failure = starter(loop), loop.create_future()
        self._context = contextvars.copy_context()
        return self._failure

    async def end(self) -> None:
        """Let none begin any more, cancel those that go on, and wait for their tasks, however long that takes."""
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
        """Hold all leases that a call has brought which was sent at that uptime; or none of them, if this raises.

        Those come first whose tasks are not known here.
        """
        # They run from the answer on: a claim that a frozen storage held back must not count as a part of the run.
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
        """Begin the runs that `hold` has returned, now or soon; or hand them back, unbegun."""
        now, free = self._clock.uptime(), self._free
        # All of them are held before the first of them begins, for it may let nothing else happen for long.
        rest = iter(taken)
        try:
            for held in rest:
                if held.unknown is not None:
                    # At once, even if all of this worker is busy: another one may know it.
                    self._done(held, Unknown(held.unknown))
                elif not begin or self._start is None:
                    # The claim came back after the worker was told to stop.
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
            # What has begun goes on until the worker ends, which fails by this.
            for held in rest:
                self._done(held, Interrupted("prefetch"))
            raise
        self._fill_up()

    @property
    def _free(self) -> int:
        """How many may begin at once."""
        return self._concurrency - len(self._running) - len(self._at_hand)

    def hand_back(self) -> None:
        """Hand back what was claimed ahead and has not begun."""
        for held in self._at_hand.take_all():
            self._done(held, Interrupted("prefetch"))

    def _fill_up(self) -> None:
        """Begin those at hand, as many as may run."""
        if self._beginning:
            # A run that was over at once has made room for another, and whoever began it goes on.
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
        # In the worker's context: who makes room for it is mostly another run, and what that has set is its own.
        task = self._context.copy().run(start, attending)
        if not task.done() or held in self._running:
            held.task = task
            self._attending[task] = held
            task.add_done_callback(self._ended)

    def stop(self, held: ActiveRun, reason: StopReason, detail: str | None) -> None:
        """Make a run end. A coroutine is cancelled; a thread can only be told, and is."""
        if not outdoes(reason, held.stop):
            return
        if held in self._kept:
            # What it came to stands, but its right is gone with its lease.
            if reason == "lost":
                held.stop = reason
                self._let_go(held)
            return
        held.stop, held.stop_detail = reason, detail
        if reason in SILENT:
            # A moment later nobody could see where it was.
            held.at_limit = where(held)
            held.silent_for = max(0, round((self._clock.uptime() - held.signed) * SECOND))
        if held not in self._running and held not in self._at_hand:
            # It is over, and its outcome on the way: beat and settlement have crossed.
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
            # It finds out by itself before its handler is called.
            self._at_hand.remove(held)
            self._begin(held)
        elif held.make_end is not None:
            held.make_end(reason, detail)
        elif held.end() or (held.exclusive and held.context is not None):
            self._expect(held, reason)

    def stop_all(self) -> None:
        """Make all of them end, because the worker stops, or because it failed although nothing asked it to stop."""
        self.hand_back()
        reason: StopReason = "shutdown" if self.stopping else "worker_failed"
        for held in list(self._running):
            self.stop(held, reason, "the worker stops")

    def release(self, delay: int) -> None:
        """Hand back those that would not end, due again after `delay` microseconds: by then we are gone.

        An exclusive one that goes on is left to the supervisor: the end of this process frees its right.
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
            # What a process takes to start is no part of the run.
            held.way, held.begun = "process", False
        else:
            held.way = _way(task)
        held.granted(asked_at)
        return held

    async def _attend(self, held: ActiveRun) -> None:
        began = self._clock.uptime()
        if held.task is None:
            # It may have begun before whoever started it was told which task it is.
            held.task = asyncio.current_task()
        if began >= held.trusted_until:
            # While this process stood still, the watcher may have had it renewed.
            self._holdings.trust_watcher()
        if began >= held.trusted_until:
            # Its claim was answered late, or nobody has renewed it since: it may have passed on already.
            self._wear.not_begun()
            self._done(held, Interrupted("unreachable"))
            self._fill_up()
            return
        try:
            apart = await self._slots.run(held) if held.way == "process" else None
            if apart is None:
                if held.way == "process":
                    # No process can be had for it; so it is one of those that may have ended this one.
                    self._holdings.stay(held, _way(self._tasks.get(held.lease.job.task)))
                if not held.begun:
                    self._holdings.begin(held, self._clock.uptime())
                outcome = await self._runner.run(held, self._overdue)
            else:
                outcome = apart
        except GeneratorExit:
            # Its loop is gone; what a handler raises does not get here.
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
            # Its task was cancelled before its first step: it never began.
            self._done(held, Interrupted("shutdown"))
            self._fill_up()
        error = None if task.cancelled() else task.exception()
        if error is not None and self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _expect(self, held: ActiveRun, reason: StopReason) -> None:
        """Leave a run to itself that will not end. When the worker stops it sees to all of them at once."""
        if reason in ("shutdown", "worker_failed") or (reason == "cancelled" and held.lease.job.timeout is not None):
            return
        # Who is merely asked to stop has its lease and its keys, and may tidy up under them; until its timeout at most.
        within = LIMIT if reason == "cancelled" else LINGER
        asyncio.get_running_loop().call_later(within, lambda: self._overdue(held, stopped(held)))

    def _overdue(self, held: ActiveRun, outcome: Outcome) -> None:
        """Leave a run to itself whose handler goes on although it was cancelled; what it still comes to is refused."""
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
        """Return what a run has come to, if its handler or another one cancelled every task of the loop or stopped it.

        A run that was cancelled with the others ended for no fault of its own if it is known whose fault it was. If
        not, it may have been its own, as in a crash.
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
        """Keep the right of a run that was stopped, until its handler has ended. Its first outcome stands."""
        self._running.pop(held, None)
        self._kept[held] = self._complete(held, outcome)
        self._holdings.note_stopped(held, _stop_code(outcome))
        self.over()

    def _will_not_end(self, held: ActiveRun) -> None:
        """Say that a run which keeps its right goes on although it has had all its time to end."""
        if held in self._kept and held not in self._unstopped:
            self._unstopped[held] = None
            self._unstoppable(held, _stop_code(self._kept[held]))

    def _let_go(self, held: ActiveRun) -> None:
        """Forget a run that keeps its right no more, as it is another's by now."""
        self._forget(held)
        held.over = True
        self._holdings.drop(held.key)
        self.over()

    def _forget(self, held: ActiveRun) -> None:
        self._kept.pop(held, None)
        self._unstopped.pop(held, None)

    def _done(self, held: ActiveRun, outcome: Outcome, took: float = 0.0) -> None:
        """Take in what one came to; `took`: 0 of one whose time tells nothing, as it never began or is cut off."""
        self._running.pop(held, None)
        if held.over:
            # It was handed back while it would not end; only the first word counts.
            return
        if held.exclusive and held.stop != "lost" and held.goes_on:
            # The wait for a thread or a hook of it is over, but that goes on.
            if held not in self._kept:
                self._keep(held, outcome)
                asyncio.get_running_loop().call_later(LINGER, self._will_not_end, held)
            held.once_less(lambda: self._done(held, outcome, took))
            return
        self._settle(held, self._kept.get(held, outcome), took)

    def _settle(self, held: ActiveRun, outcome: Outcome, took: float = 0.0) -> None:
        """Hand over what a run has come to."""
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
            # Stopped by its own fence, and it came to nothing: there is nothing to say.
            self._holdings.drop(held.key)
        else:
            if isinstance(outcome, Interrupted):
                # Not what its handler says: only the worker knows both.
                begun = held.context is not None or held.pid is not None
                outcome = structs.replace(outcome, begun=begun, stopping=self.stopping)
            asked = settlement(held.lease, self._complete(held, outcome), self._rng, took=took)
            self._outcomes.add(held.key, asked)
            if not isinstance(outcome, Returned):
                log_mishap(self._logger, held.lease.job, asked)
                self.released += isinstance(outcome, Interrupted)
        self.over()

    def _complete(self, held: ActiveRun, outcome: Outcome) -> Outcome:
        """Add what is known here of a run that was stopped for its handler's silence."""
        if isinstance(outcome, Stalled) and not outcome.owner:
            return told_of_silence(held, outcome.reason, worker=self._owner, clock=self._clock)
        return outcome


def _way(task: Task[..., Any] | None) -> Way:
    return "loop" if task is None or task.is_async else "thread"


def _stops(job: JobRecord, task: Task[..., Any] | None) -> bool:
    policy = task.settings.on_unreachable if task is not None else None
    return job.exclusive if policy is None or policy == "auto" else policy == "stop"


def _stop_code(outcome: Outcome) -> StopCode:
    """Return for what a run was stopped that has come to this."""
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
