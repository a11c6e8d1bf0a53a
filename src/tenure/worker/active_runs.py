"""The runs that this process holds, shared by the loop that runs them and the keeper that renews them.

It also counts the abandoned runs, whose handlers still run although their jobs are settled. A thread cannot be ended,
and neither can a coroutine that swallows its cancellation. Such handlers keep the resources that they use, so a process
with too many of them is recycled.
"""

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from types import CodeType, CoroutineType
from typing import Any, Literal, TypeAlias

from tenure.clock import SECOND
from tenure.core.job import RecordedError, Ref
from tenure.core.lease import Lease, margin, trusted_until
from tenure.core.outcome import StopCode, UnknownReason
from tenure.handlers.context import JobContext, ProgressReports, Report
from tenure.storage.protocol import LeaseRenewal, NewLogLine
from tenure.threads import WorkerThread
from tenure.worker.loop_lag import LoopMonitor, extended_limits
from tenure.worker.scoreboard import Scoreboard, Way

MOST_ABANDONED = 4
"""A process with this many abandoned handlers claims no more and is recycled."""

CANCEL_GRACE = 2.0
"""Seconds that a handler or a hook gets to end after its cancellation. Then it is abandoned."""


class Abandoned:
    """Counts the abandoned handlers and hooks of a process."""

    def __init__(self, too_many: Callable[[], None] = lambda: None) -> None:
        self.count = 0
        """The number of abandoned handlers that still run."""
        self._too_many = too_many
        self._none = asyncio.Event()
        self._none.set()

    def add_thread(self, thread: WorkerThread) -> None:
        """Count a thread until it is idle."""
        self._count_up()
        thread.when_idle(self._ended)

    def add_task(self, task: "asyncio.Task[None]") -> None:
        """Count a task until it is done."""
        self._count_up()
        task.add_done_callback(lambda _: self._ended())

    async def wait(self) -> None:
        """Wait until no abandoned handler runs."""
        await self._none.wait()

    def _count_up(self) -> None:
        self.count += 1
        self._none.clear()
        if self.count == MOST_ABANDONED:
            self._too_many()

    def _ended(self) -> None:
        self.count -= 1
        if not self.count:
            self._none.set()


Silence = Literal["no_progress", "lease_expired"]
"""The limit that a silent handler has passed: its `heartbeat_timeout`, or a lease that only its signs renew."""

StopReason = Literal["cancelled", "lost", "unreachable", "shutdown", "worker_failed", "no_progress", "lease_expired"]
SILENT: tuple[StopReason, ...] = ("no_progress", "lease_expired")
SECOND_CHECK = 1.0
"""Maximum seconds between the two checks that find a handler silent."""

RunKey = tuple[Ref, int]
Waiting: TypeAlias = "CoroutineType[Any, Any, Any]"
Place = tuple[CodeType, int]
"""The position of one stack frame: its code object and the instruction."""

Mark = tuple[Place, ...]
"""Identifies a stack: its frames, the outermost first."""


def overrides(reason: StopReason, before: StopReason | None) -> bool:
    """Return True if a run that was stopped for the reason `before` must also be stopped for `reason`.

    A cancelled run may clean up for long, but only while it has its lease.
    """
    match before:
        case None:
            return True
        case "cancelled":
            return reason in ("lost", "unreachable")
        case _:
            return reason == "lost" and before != "lost"


class ActiveRun:
    """One run and its state in this process. `stop` is the reason to end it, or None.

    A worker creates thousands of these per second, and few differ from the usual values. So the defaults are class
    attributes.
    """

    begun: bool = True
    """True if the run has begun. Until then its time does not count. Set last, because the keeper reads it in another
    thread."""
    claimed_at: float = 0.0
    """The uptime at which the run began: when the claim was answered, or later if it had to wait for a process."""
    stops_unreachable: bool = False
    """True if the run must stop before the storage may give its job to another worker."""
    exclusive: bool = False
    """True if the run holds a right that must not pass to another run while its handler goes on. Then the worker itself
    enforces its limits. The lease only shows that the worker lives, and is renewed until the handler has ended."""
    granted_at: float = 0.0
    """The uptime at which its claim was sent."""
    excused_until: float = 0.0
    """Until this uptime the handler could give no sign, because another run blocked the loop."""
    missed_at: float | None = None
    """The uptime of the first check, since the handler's last sign, that found a sign missing."""
    silenced: bool = False
    """True if the keeper found that the handler was silent for too long."""
    silent_for: int = 0
    """Microseconds of silence when the run was stopped for that."""
    expired: bool = False
    """True if the run has passed its timeout."""
    took: float = 0.0
    """Its seconds, once it is over; 0 if they say nothing, because it did not begin or was cut off."""
    over: bool = False
    """True if the run has an outcome, even if it was handed back while its handler goes on."""
    trusted_until: float = 0.0
    signed_at: float = 0.0
    context: JobContext | None = None
    root: Coroutine[Any, Any, Any] | None = None
    """The coroutine that calls the handler. A finished task need not have its coroutine, so it is kept here."""
    task: asyncio.Task[None] | None = None
    stop: StopReason | None = None
    stop_detail: str | None = None
    renewed_at: float = 0.0
    in_thread: bool = False
    """True if the handler or its hook runs in a thread. A thread can only be asked to stop."""
    in_hook: bool = False
    """True if the handler has ended and its on_cancel hook runs."""
    thread: WorkerThread | None = None
    """The thread of its plain functions, if there is one."""
    abandoned_tasks: "tuple[asyncio.Task[None], ...]" = ()
    """Tasks of this run that were abandoned: a hook, or the closing of its providers."""
    isolated_position: str | None = None
    """The position of the handler, as reported by its isolated process."""
    mark: Mark = ()
    """The handler's stack at the last check."""
    tip: tuple[Waiting, object] | None = None
    """The innermost coroutine, which all others await, and the object that it awaited."""
    trace: str | None = None
    """The handler's stack as text. `traced` is the text that the storage has."""
    traced: str | None = None
    position_at_stop: str | None = None
    """The handler's position when its time was over."""
    abandoned: bool = False
    """True if the run was abandoned: settled while its handler goes on."""
    stop_isolated: Callable[[StopReason, str | None], None] | None = None
    """Stops the run in its isolated process, if it has one. Safe from any thread."""
    suspended: bool = False
    """True if its isolated process was suspended by a signal. Then the lease is not renewed."""
    in_transaction: bool = False
    """True while the handler is in a transaction that would complete its job."""
    roll_back: Callable[[], None] | None = None
    """Rolls back that transaction, although the handler goes on. Safe from any thread."""
    settling: bool = False
    """True from the moment when such a transaction settles the run. Then a lease that seems lost does not stop it."""
    settled: bool = False
    """True if such a transaction has settled the run. What its handler does from then on changes nothing."""
    refused: bool = False
    """True if such a transaction found that this run is not the current one."""
    finished: bool = False
    """True if only the outcome is left and waits for the loop. From then on its time does not count."""
    fenced: bool = False
    """True if the run was stopped because its lease could not be renewed in time."""
    way: Way = "loop"
    """Where its handler runs."""
    pid: int | None = None
    """The isolated process that the handler runs in, while there is one."""
    failure: tuple[RecordedError, BaseException] | None = None
    """The recorded error of its outcome and the exception itself, until both are logged."""
    row: int | None = None
    """Its row in the scoreboard, while there is one."""
    unknown: UnknownReason | None = None
    """Why this worker cannot run it, if it cannot."""

    def __init__(self, lease: Lease, signs: ProgressReports | None = None) -> None:
        self.lease = lease
        self.signs = ProgressReports() if signs is None else signs
        job = lease.job
        self.key: RunKey = Ref(job.queue, job.id), job.fence
        """Identifies the run: the job and its fence."""

    def stops_for(self, *reasons: StopReason) -> bool:
        """Return True if the run was stopped for one of these reasons."""
        return self.stop in reasons

    def cancel(self) -> bool:
        """Stop the handler. Return True if it was cancelled: a coroutine is, a thread can only be asked."""
        if self.context is None:
            # It has not begun, and checks `stop` itself. A task cancelled before its first step would have no outcome.
            return False
        self.context.stop(self.stop_detail)
        if self.in_hook and self.stop == "cancelled":
            # The handler cancelled the job itself, and its hook must go on.
            return False
        # If the lease is gone or the time is over, the thread is abandoned, and another run may begin.
        if self.task is None or (self.in_thread and not self.stops_for("lost", "unreachable", *SILENT)):
            return False
        return self.task.cancel()

    def end_transaction(self) -> None:
        """End the transaction of a handler that is abandoned: it may hang for ever, and keep others from writing."""
        if self.roll_back is not None:
            self.roll_back()

    @property
    def goes_on(self) -> bool:
        """True if a thread or task of the handler still runs, although the wait for the handler has ended."""
        return (self.thread is not None and self.thread.busy) or not all(task.done() for task in self.abandoned_tasks)

    def abandon_task(self, task: "asyncio.Task[None]") -> None:
        """Note a task of the handler that is abandoned."""
        self.abandoned_tasks = (*self.abandoned_tasks, task)

    def when_one_ends(self, call: Callable[[], None]) -> None:
        """Call `call` once, when one of the threads or tasks that `goes_on` counts has ended."""
        if self.thread is not None and self.thread.busy:
            self.thread.when_idle(call)
        else:
            next(task for task in self.abandoned_tasks if not task.done()).add_done_callback(lambda _: call())

    @property
    def beat(self) -> float:
        """The seconds between two renewals: a quarter of the lease, or of the heartbeat timeout if that is shorter."""
        job = self.lease.job
        shortest = job.stall.lease if job.heartbeat_timeout is None else min(job.stall.lease, job.heartbeat_timeout)
        if self.exclusive and job.timeout is not None and self.renewed_at == self.granted_at:
            # The first renewal removes the limit that the claim has set.
            shortest = min(shortest, job.timeout + job.stall.lease // 4)
        return shortest / 4 / SECOND

    @property
    def waits(self) -> bool:
        """True if the run has not begun, or only its outcome is left. Then no limit counts."""
        return self.finished or not self.begun

    def granted(self, asked_at: float) -> None:
        """Note that the lease was claimed by a request sent at that uptime."""
        self.granted_at = asked_at
        self.trust(asked_at, signed_at=asked_at)
        # A claim does not treat exclusive runs differently: the limits bound the lease until it is renewed.
        if self.exclusive and (job := self.lease.job).heartbeat_timeout is not None:
            self.trusted_until = min(self.trusted_until, trusted_until(asked_at, job.heartbeat_timeout))
        if self.exclusive and (job := self.lease.job).timeout is not None:
            limit = job.timeout + job.stall.lease // 4
            self.trusted_until = min(self.trusted_until, trusted_until(asked_at, limit))

    def trust(self, asked_at: float, *, signed_at: float | None, silent: float = math.inf) -> None:
        """Note that a request sent at `asked_at` gave or extended the lease, and the sign that it carried.

        `silent`: the seconds without a sign that the request reported. It may have reported fewer (`extended_limits`).
        """
        job = self.lease.job
        if self.waits:
            # It cannot give signs, so none is missing.
            signed_at = asked_at
        if signed_at is not None and signed_at > self.signed_at:
            self.signed_at = signed_at
        self.renewed_at = asked_at
        lease = job.stall.lease
        self.trusted_until = max(
            trusted_until(asked_at, lease), self.granted_at + (job.stall.start_grace - margin(lease)) / SECOND
        )
        if job.heartbeat_timeout is not None and not self.exclusive:
            # The storage lets no lease outlast the heartbeat timeout, so we must not trust it for longer either.
            signed = max(self.signed_at, asked_at - silent)
            self.trusted_until = min(self.trusted_until, trusted_until(signed, job.heartbeat_timeout))

    @property
    def silent_at(self) -> float:
        """The uptime at which the handler is silent for too long, unless it gives a sign before."""
        if self.waits or self.silenced or self.expired or self.stop is not None:
            return math.inf
        return min(self._progress_until, self._signs_until)

    @property
    def next_check(self) -> float:
        """The uptime at which `silence` must be called next."""
        at = self.silent_at
        return at if self.missed_at is None or at == math.inf else self.missed_at + self._second_check

    def silence(self, now: float, monitor: LoopMonitor | None) -> Silence | None:
        """Return the limit that the silent handler has passed, or None. Only one thread may call this.

        It takes two checks: if this process was suspended, the handler gets a moment to give its sign.
        """
        job = self.lease.job
        if now >= self.silent_at and job.heartbeat_timeout is not None:
            _, silent = self.extended_limits(now, self.signed, monitor)
            self.excused_until = max(self.excused_until, now - silent)
        if now < self.silent_at:
            self.missed_at = None
        elif self.missed_at is None:
            self.missed_at = now
        elif now >= self.missed_at + self._second_check:
            return "no_progress" if now >= self._progress_until else "lease_expired"
        return None

    @property
    def _second_check(self) -> float:
        return min(SECOND_CHECK, self.beat)

    @property
    def _progress_until(self) -> float:
        limit = self.lease.job.heartbeat_timeout
        return math.inf if limit is None else self.signed + limit / SECOND

    @property
    def _signs_until(self) -> float:
        """The end of a lease that the handler's signs alone renew."""
        stall = self.lease.job.stall
        if stall.renewed:
            return math.inf
        return max(self.signed + stall.lease / SECOND, self.granted_at + stall.start_grace / SECOND)

    @property
    def signed(self) -> float:
        """The uptime since which the handler counts as silent."""
        return max(self.claimed_at, self.signed_at, self.signs.last, self.excused_until)

    def renewal(
        self, now: float, trace: str | None = None, monitor: LoopMonitor | None = None, *, only_sign: bool = False
    ) -> "PendingRenewal":
        """Return the next renewal of this run, with the handler's signs and log lines, and its stack if that is new.

        `monitor` is the monitor of the run's loop. The renewal does not count the time in which another run blocked the
        loop.
        """
        # A lease that only the handler renews takes reports only together with a sign.
        only_sign = only_sign and self.lease.job.stall.renewed
        return PendingRenewal(self, self.signs.take(only_sign=only_sign), now, trace, monitor)

    def extended_limits(self, now: float, signed_at: float, monitor: LoopMonitor | None) -> tuple[float, float]:
        """Return for how many seconds the run counts as running, and as silent since that sign."""
        job = self.lease.job
        return extended_limits(
            now,
            turned_at=0.0 if monitor is None else monitor.turned_at,
            blocks_loop=monitor is not None and monitor.blocker == self.key,
            no_thread_runs=False,
            claimed_at=self.claimed_at,
            signed_at=signed_at,
            lease=job.stall.lease / SECOND,
            timeout=math.inf if job.timeout is None else job.timeout / SECOND,
            heartbeat_timeout=math.inf if job.heartbeat_timeout is None else job.heartbeat_timeout / SECOND,
            way=self.way,
        )


class PendingRenewal:
    """One renewal that is being sent. If it fails, `take_back` takes back its content."""

    def __init__(
        self, run: ActiveRun, report: Report, now: float, trace: str | None, monitor: LoopMonitor | None
    ) -> None:
        signed_at, progress, log, data = report
        # Count from the latest sign: whether it arrives is unknown until the answer.
        ran, self._silent = run.extended_limits(now, max(run.signed_at, run.signs.last), monitor)
        self.run = run
        self.signed_at = signed_at
        self._content = report
        waits = run.waits
        if waits:
            self.signed_at = now
        self.renewal = LeaseRenewal(
            run.lease.ref,
            run.lease.fence,
            sign=signed_at is not None,
            # Once the handler runs, only its own signs renew such a lease.
            extend=not run.suspended
            and (signed_at is not None or run.lease.job.stall.renewed or waits or run.exclusive),
            exclusive=run.exclusive,
            ran=0 if waits else max(0, round(ran * SECOND)),
            silent=0 if waits else max(0, round(self._silent * SECOND)),
            progress=progress[0] if progress else None,
            note=progress[1] if progress else None,
            data=data[1] if data else None,
            data_number=run.lease.job.data_number + data[0] if data else 0,
            log=tuple(
                NewLogLine(level, message, fields, max(0, round((now - at) * SECOND)), number)
                for at, level, message, fields, number in log
            ),
            trace=trace,
        )

    def take_back(self) -> None:
        """Take back the content, so that the next renewal sends it."""
        self.run.signs.restore(self._content)

    def answered(self, asked_at: float, *, lost: bool) -> None:
        """Note the answer. `lost`: the lease does not belong to this run any more."""
        self.run.signs.answered()
        self.run.traced = self.renewal.trace or self.run.traced
        if self.renewal.extend and not lost:
            self.run.trust(asked_at, signed_at=self.signed_at, silent=self._silent)
        else:
            self.run.renewed_at = asked_at


class ActiveRuns:
    """The runs that this process holds, by job and fence. Safe from both threads."""

    def __init__(self, scoreboard: Scoreboard | None = None) -> None:
        self._lock = threading.Lock()
        self._scoreboard = scoreboard
        self._held: dict[RunKey, ActiveRun] = {}
        self._changed: dict[RunKey, None] = {}
        """The runs whose handlers have reported something since the last message, the oldest report first."""
        self._wake_keeper: Callable[[], None] | None = None
        self.next_beat = math.inf
        """The uptime of the keeper's next regular check. Infinite while the keeper is awake."""
        self.hinted_at = -math.inf
        """The uptime of the last hint that a run may have to stop. Runs renewed before it must be checked."""

    def __len__(self) -> int:
        return len(self._held)

    def add(self, run: ActiveRun) -> None:
        """Hold a run until its settlement is answered."""
        self.add_all((run,))

    def add_all(self, some: Iterable[ActiveRun]) -> None:
        """Hold runs until their settlements are answered."""
        urgent = False
        with self._lock:
            for run in some:
                self._held[run.key] = run
                if self._scoreboard is not None:
                    run.row = self._scoreboard.write(
                        run.lease,
                        way=run.way,
                        claimed_at=run.claimed_at if run.begun else math.inf,
                        renewed_at=run.renewed_at,
                        exclusive=run.exclusive,
                    )
                    # The supervisor needs the signs only if the job has a heartbeat timeout.
                    if run.row is not None and run.lease.job.heartbeat_timeout is not None:
                        run.signs.echo = partial(self._signed, run)
                # Most jobs are over long before the keeper's next check. A wake for each would cost more than the job.
                urgent = urgent or run.renewed_at < self.hinted_at or run.renewed_at + run.beat < self.next_beat
        if urgent and self._wake_keeper is not None:
            self._wake_keeper()

    def run_here(self, run: ActiveRun, way: Way) -> None:
        """Note that a run which waited for an isolated process runs in this one instead."""
        with self._lock:
            run.way = way
            if run.row is not None and self._scoreboard is not None:
                self._scoreboard.set_way(run.row, way)

    def set_process(self, run: ActiveRun, pid: int) -> None:
        """Note that a run is about to be sent to an isolated process."""
        with self._lock:
            if run.row is not None and self._scoreboard is not None:
                self._scoreboard.set_pid(run.row, pid)

    def begin(self, run: ActiveRun, at: float) -> None:
        """Start to count the time of a run that had to wait for a process. Idempotent."""
        if run.begun:
            return
        job = run.lease.job
        with self._lock:
            run.claimed_at = at
            if run.row is not None and self._scoreboard is not None:
                self._scoreboard.began(run.row, at, renewed=job.stall.renewed or run.exclusive)
            run.begun = True
        if job.heartbeat_timeout is not None or not job.stall.renewed:
            # The begin counts as the first sign.
            run.signs.sign(at)

    def set_suspended(self, run: ActiveRun, still: bool) -> None:
        """Stop renewing an isolated run whose process was suspended, or renew it again when the process continues."""
        with self._lock:
            run.suspended = still
            if run.row is not None and self._scoreboard is not None:
                self._scoreboard.renewable(run.row, None if still else run.lease.job.stall, exclusive=run.exclusive)

    def note_stopped(self, run: ActiveRun, why: StopCode) -> None:
        """Note for the supervisor, if there is one, why a run was stopped whose handler goes on."""
        with self._lock:
            if run.row is not None and self._scoreboard is not None:
                self._scoreboard.stopped(run.row, why)

    def finish(self, run: ActiveRun) -> None:
        """Hold an isolated run until its outcome is settled. Only the outcome is left, so no limit counts."""
        with self._lock:
            run.finished, run.suspended = True, False
            if run.row is not None and self._scoreboard is not None:
                self._scoreboard.finished(run.row, run.lease.job.stall)

    def drop(self, key: RunKey) -> ActiveRun | None:
        """Remove a run. Return it if it was held."""
        return self.drop_all((key,))[0]

    def drop_all(self, keys: Iterable[RunKey]) -> list[ActiveRun | None]:
        """Remove runs. Return each run that was held, or None, in the order of the keys."""
        with self._lock:
            dropped = [self._held.pop(key, None) for key in keys]
            if self._changed:
                for run in dropped:
                    if run is not None:
                        self._changed.pop(run.key, None)
            for run in dropped:
                if run is not None and run.row is not None and self._scoreboard is not None:
                    self._scoreboard.clear(run.row)
                    run.row = None
                    # Break the reference cycle with the run and its task: the garbage collector may run in any thread.
                    run.signs.echo = None
        return dropped

    def report(self, key: RunKey) -> None:
        """Note that a handler has reported something that should be sent soon: progress, data or a log line."""
        with self._lock:
            is_first = not self._changed
            self._changed.setdefault(key)
        if is_first and self._wake_keeper is not None:
            self._wake_keeper()

    @property
    def reports_waiting(self) -> int:
        """The number of runs whose handlers have reported something since the last message."""
        return len(self._changed)

    def put_back_reports(self, runs: Iterable[ActiveRun]) -> None:
        """Let the reports of runs wait again, before newer ones, because their message failed."""
        with self._lock:
            self._changed = dict.fromkeys(run.key for run in runs) | self._changed

    def take_reports(self, most: int) -> list[ActiveRun]:
        """Return the runs with reports that wait, the oldest report first, at most `most`; the others keep waiting."""
        taken: list[ActiveRun] = []
        with self._lock:
            while self._changed and len(taken) < most:
                key = next(iter(self._changed))
                del self._changed[key]
                run = self._held.get(key)
                # A beat or the last message before a settlement may have sent the report already.
                if run is not None and run.signs.pending:
                    taken.append(run)
        return taken

    def get(self, key: RunKey) -> ActiveRun | None:
        """Return a run if it is held."""
        return self._held.get(key)

    def all(self) -> list[ActiveRun]:
        """Return the runs held at this moment."""
        with self._lock:
            return list(self._held.values())

    def note_renewed(self, renewed: Iterable[ActiveRun]) -> None:
        """Notify the supervisor's renewer, if there is one, that it need not renew these runs."""
        if self._scoreboard is None:
            return
        with self._lock:
            for run in renewed:
                # A dropped run has no row: its old row may belong to another run.
                if run.row is not None:
                    self._scoreboard.renewed(run.row, run.renewed_at)

    def read_external_renewals(self) -> None:
        """Note the leases that the supervisor's renewer has renewed while this process could not."""
        if self._scoreboard is None:
            return
        with self._lock:
            for run in self._held.values():
                kept = 0.0 if run.row is None else self._scoreboard.external_renewal(run.row, run.lease.fence)
                if kept > run.renewed_at:
                    run.trust(kept, signed_at=None)

    def when_urgent(self, wake: Callable[[], None]) -> None:
        """Set the function that wakes the keeper for an added run that cannot wait for the next check."""
        self._wake_keeper = wake

    def _signed(self, run: ActiveRun, at: float) -> None:
        with self._lock:
            if run.row is not None and self._scoreboard is not None:
                self._scoreboard.signed(run.row, at)
