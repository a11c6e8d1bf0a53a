"""The worker: it starts its tasks, claims and runs jobs, drains and stops.

    new ──start──► starting ──► running ──stop, a burst with no jobs left, an internal failure──► ending ──► ended

The steps of an end. Each step has a time limit:

    claim no more ──► let runs end and record their outcomes (drain) ──► cancel the runs that are left (2 s)
        ──► hand back the runs that do not end ──► record the outcomes ──► let event handlers finish
        ──► stop the keeper last, because it renews until nothing is held; delete the worker's record
        └─► leave the lifespan at the same time

All storage calls after the cancellation share one time budget: 1.5 s, plus the part of the 2 s that is left. So a
storage that does not answer delays the end by no more than that. The reaper recovers the jobs whose outcomes could not
be recorded, and one log line names them. The lifespan has the same time, plus the rest of the drain.
"""

import asyncio
import contextvars
import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self

from tenure.client.app_location import not_while_loading
from tenure.client.schedules import put_all, put_back, put_later
from tenure.clock import SECOND
from tenure.core.check import named
from tenure.core.duration import Duration, duration
from tenure.core.events import Event, JobStopIgnored, WorkerStarted, WorkerStopped, WorkerStopping
from tenure.core.job import Owner, RecordedError
from tenure.core.outcome import StopCode
from tenure.core.schedule import Schedule
from tenure.errors import TenureError, UsageError
from tenure.events.bus import EventBus
from tenure.health.process_health import ProcessHealth, blocked
from tenure.runtime import Runtime
from tenure.storage.protocol import WorkerInfo
from tenure.threads import ThreadPool
from tenure.waiting import first
from tenure.worker.active_runs import Abandoned, ActiveRun, ActiveRuns, StopReason
from tenure.worker.deps import WorkerDeps
from tenure.worker.event_loop import LoopGuard
from tenure.worker.executor import Executor
from tenure.worker.isolation.isolated_runs import IsolatedRuns
from tenure.worker.keeper import Keeper
from tenure.worker.known_tasks import KnownTasks
from tenure.worker.lifespan import Lifespan
from tenure.worker.loop import ExchangeLoop
from tenure.worker.loop_lag import LoopMonitor
from tenure.worker.outcomes import Outcomes
from tenure.worker.partitions import PartitionWatch
from tenure.worker.prefetch import MOST_HELD, PrefetchPolicy
from tenure.worker.recycling import NO_THREAD, Descriptors, RecyclePolicy, resident
from tenure.worker.run import Runner
from tenure.worker.scoreboard import Scoreboard
from tenure.worker.stop_signals import SIGNALS, StopSignals, draining
from tenure.worker.watchdog import Watchdog
from tenure.worker.worker_metrics import WorkerMetrics

DRAIN = timedelta(seconds=25)
CANCEL_GRACE = 2.0
"""Seconds that cancelled handlers get to end. A run that does not end is due again after this time at the earliest."""

FORCED_GRACE = 0.1

LAST_CALLS = 1.5
"""Seconds after `CANCEL_GRACE` for the last storage calls. The process ends at most 5 s after its drain."""

LAST_STEPS = 0.5
"""The part of `LAST_CALLS` that the last steps get: resign, delete the worker's record, leave the lifespan."""


class Worker:
    """Claims jobs and runs them; start and stop it, use it as a context manager, or `run()` it.

    Leases are renewed from a separate thread, so a handler may block the event loop. A handler that holds the
    interpreter itself (a C call that keeps the GIL) for a whole lease loses the lease, unless a supervisor renews it.
    Only `run()` installs signal handlers.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        queues: Sequence[str],
        concurrency: int = 10,
        owner: Owner | None = None,
        reaper: Callable[[], Coroutine[Any, Any, None]] | None = None,
        drain: Duration = DRAIN,
        burst: bool = False,
        supervised: bool = False,
        scoreboard: Scoreboard | None = None,
        recycle_policy: RecyclePolicy | None = None,
        prefetch: int | None = None,
    ) -> None:
        if isinstance(concurrency, bool) or concurrency < 1:
            raise UsageError(f"concurrency = {concurrency!r} must be 1 or more")
        if not queues:
            raise UsageError("queues is empty; name at least one queue")
        self.owner = owner or runtime.owner()
        self._runtime = runtime
        self._queues = tuple(named(queue, field="queue") for queue in queues)
        self._concurrency = concurrency
        self._reaper = reaper
        self._drain = duration(drain, field="drain", zero=True)
        self._burst = burst
        self._supervised = supervised
        self.recycle_reason: str | None = None
        """Why this worker is recycled. None if it is not."""
        self._burst_shortage: str | None = None
        """Why a burst ends although jobs may be left. None if it does not."""
        self._reported_reasons: set[str] = set()
        """The reasons to recycle that were reported already."""
        self._retired = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context: contextvars.Context | None = None
        self._state: Literal["new", "starting", "running", "ended"] = "new"
        self._main: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.dismissed = False
        """True if an operator ordered this worker to stop. The supervisor then starts no other in its place."""
        self._unstored_schedules: tuple[Schedule, ...] = ()
        """Declared schedules that are not stored yet, because a part of the storage is unreachable."""
        self._forced = asyncio.Event()
        self._start_cancelled, self._start_ended = asyncio.Event(), asyncio.Event()
        """Set when the worker is stopped while it starts, and when that start has then released everything."""
        self._last_call_at = 0.0
        """Loop time after which no more storage calls are made."""
        self._drain_ends_at = 0.0
        """Loop time at which the drain is over at the latest."""

        self._keeper_loop = runtime.background_loop("tenure-keeper")
        self._threads = ThreadPool("tenure-handler")
        self._lifespan = Lifespan(runtime.lifespan, worker=self.owner.name, logger=runtime.logger)
        self._abandoned = Abandoned(self._too_many_abandoned)
        self._runner = Runner(
            runtime.tasks,
            runtime.codec,
            self._threads,
            runtime.clock,
            runtime.logger,
            middleware=runtime.middleware,
            replaced=runtime.overrides,
            state=lambda: self._lifespan.state,
            abandoned=self._abandoned,
            no_thread=self._out_of_threads,
            short=self._handle_shortage,
        )
        self._active_runs = ActiveRuns(scoreboard)
        self._isolated_runs = IsolatedRuns(
            runtime,
            worker=self.owner,
            isolates=supervised,
            lease_holder=self._active_runs,
            scoreboard=scoreboard,
            refused=self._process_refused,
        )
        self._descriptors = Descriptors(runtime.clock, self._recycle_for)
        self._monitor = LoopMonitor(scoreboard)
        self._known_tasks = KnownTasks(runtime.tasks)
        deps = WorkerDeps(
            runtime.storage,
            self.owner,
            self._active_runs,
            runtime.clock,
            runtime.rng,
            runtime.logger,
            WorkerMetrics(runtime.metrics),
        )
        self._bus = EventBus(
            runtime.storage,
            runtime.event_handlers,
            reader=f"app:{runtime.app}",
            caller=self.owner.id,
            rng=runtime.rng,
            decode=runtime.codec.decode,
            logger=runtime.logger,
        )
        recycle_policy = recycle_policy or RecyclePolicy()
        # Without a supervisor, it is unknown which jobs of a dead worker had not begun. So the default is 0.
        most = max(0, MOST_HELD - concurrency) if supervised else 0
        self.prefetch_policy = PrefetchPolicy(concurrency, most if prefetch is None else prefetch)
        """How many jobs this worker may claim in addition to those that it runs."""
        outcomes = Outcomes(deps)
        self._guard = LoopGuard()
        runs = Executor(
            deps,
            self._runner,
            self._isolated_runs,
            outcomes,
            concurrency=concurrency,
            prefetch=self.prefetch_policy,
            abandoned=self._abandoned,
            guard=self._guard,
            tasks=runtime.tasks,
            recycle_policy=recycle_policy,
            publish=self._bus.tell,
            supervised=supervised,
            report_unstoppable=self._report_unstoppable,
        )
        self._exchange = ExchangeLoop(
            deps,
            runs,
            outcomes,
            queues=self._queues,
            known=self._known_tasks,
            concurrency=concurrency,
            recycle_policy=recycle_policy,
            publish=self._bus.tell,
            short=lambda: self._descriptors.short() if recycle_policy.used else None,
        )
        self._partitions = PartitionWatch(
            worker=self.owner.name,
            clock=runtime.clock,
            logger=runtime.logger,
            read=lambda: self._bus.read_to,
            announce=self._announce,
            forget_read=self._bus.forget_read,
            replaced=self._storage_replaced,
            rewound=self._storage_rewound,
        )
        self._storage_lost_data = asyncio.Event()
        self._keeper = Keeper(
            deps,
            self._monitor,
            timing=runtime.timing,
            info=self._info,
            stop=self._stop_run,
            on_orders=self._on_orders,
            is_needed=self._is_needed,
            given_up=lambda: self._watchdog.given_up(),
            lanes=lambda: self._exchange.lanes.all,
            partitions=self._partitions,
        )
        self._watchdog = Watchdog(
            self._monitor,
            self._active_runs,
            owner=self.owner.id,
            scoreboard=scoreboard,
            supervised=supervised,
            max_block=runtime.timing.max_block.total_seconds(),
            clock=runtime.clock,
            logger=runtime.logger,
            announce=self._keeper.announce,
            claimed_at=lambda: self.answered_at,
        )

    async def start(self) -> None:
        """Begin to claim. Idempotent. A worker that was stopped cannot start again.

        Raises:
            StorageError: the storage cannot be opened, or cannot store the schedules that code declares.
            UsageError: the worker has been stopped; a task lacks a migration from an older version, or has
                run="process" in an app that other processes cannot import.
            RuntimeError, OSError: the system refuses the thread that renews leases. The worker is then stopped.
            BaseException: the exception that entering the lifespan raised.
        """
        if self._state == "ended":
            raise UsageError("this worker has been stopped; make another with app.worker()")
        if self._state != "new":
            return
        not_while_loading()
        # Includes tasks that were defined after the worker was created.
        self._runtime.check_migrations()
        self._isolated_runs.find_app()
        self._state = "starting"
        try:
            await self._runtime.storage.open()
            self._unstored_schedules = await put_all(self._runtime.storage, self._runtime.schedules.values())
            await self._bus.subscribe()
            await self._lifespan.enter(self._wait_for_cancelled_start)
        except BaseException:
            if self.ended:
                self._start_ended.set()
            else:
                self._state = "new"
            raise
        if self.ended:
            # `stop` was called before the start was complete.
            await self._leave_lifespan()
            self._start_ended.set()
            return
        self._state = "running"
        self._loop, self._context = asyncio.get_running_loop(), contextvars.copy_context()
        self._keeper.announce(
            WorkerStarted(
                owner=self.owner.id,
                host=self.owner.host,
                pid=self.owner.pid,
                queues=self._queues,
                concurrency=self._concurrency,
            )
        )
        # The only task outside a task group, because a worker outlives the call that starts it. `stop` awaits it.
        self._main = asyncio.create_task(self._run_tasks(), name=f"worker {self.owner.name}")
        self._main.add_done_callback(self._main_ended)
        self._guard.start(self._loop_cancelled)
        try:
            self._keeper_loop.run(self._keep)
            if self._keeper_loop.apart:
                self._watchdog.start()
                self._keeper_loop.run(self._watchdog.watch)
            if self._reaper is not None:
                self._keeper_loop.run(self._reaper)
        except BaseException:
            # The caller learns that the start failed, so no worker that claims without renewing may be left.
            await self.stop(force=True)
            raise

    async def stop(self, *, timeout: Duration | None = None, force: bool = False) -> None:
        """Claim no more, let runs end, hand back the rest, release everything. Idempotent; waits until it is done.

        `timeout` is how long runs may go on (25 s unless the worker was created with another `drain`). Then they are
        cancelled and get 2 s to end. Runs that go on after that are handed back. This is charged to no budget, and
        their jobs are due again 2 s later. A thread cannot be ended, so if the process lives on, the handler may go on
        in it. `force` skips the waiting, and also shortens a stop that is in progress.

        Raises:
            UsageError: `timeout` is not a duration.
        """
        drain = self._drain if timeout is None else duration(timeout, field="timeout", zero=True)
        if force:
            self._forced.set()
        if self._main is None:
            if self._state == "starting":
                self._state = "ended"
                self._drain_ends_at = asyncio.get_running_loop().time() + drain.total_seconds()
                self._start_cancelled.set()
            if self.ended:
                # The start gives up by itself, unless a storage call hangs. So this wait has a limit.
                await first(self._start_ended.wait(), within=drain.total_seconds() + CANCEL_GRACE + LAST_CALLS)
            return
        # A caller that is cancelled must not leave the worker half stopped.
        ending = self._begin_to_end(drain.total_seconds(), "forced" if force else "asked")
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            if self._guard.known and not ending.done():
                # A handler cancelled all tasks of the loop, this one too. The caller may now close the loop or the
                # storage.
                await asyncio.wait({ending})
            raise

    def recycle(self, why: str) -> None:
        """Claim no more, drain and end, so that a supervisor starts another process instead. Idempotent."""
        if self._main is not None and self._ending is None:
            self._retire_for(why)
            self._begin_to_end(self._drain.total_seconds(), "recycled")

    async def retired(self) -> str:
        """Wait until this worker claims no more because it is recycled. Return the reason."""
        await self._retired.wait()
        return self.recycle_reason or ""

    @property
    def stopping(self) -> bool:
        """True if the worker is stopping, has stopped or is being recycled: it claims no more."""
        return self._ending is not None or self.recycle_reason is not None or self.ended

    def vitals(self) -> ProcessHealth:
        """Return the health of this process. Safe from any thread."""
        now = self._runtime.clock.uptime()
        return ProcessHealth(
            owners=(self.owner.id,),
            dead=blocked(self._monitor.blocked(now), self._runtime.timing.max_block.total_seconds()),
            stopping=self.stopping,
            lag=self._monitor.recent(now),
            metrics=self._runtime.metrics.totals(),
        )

    @property
    def answered_at(self) -> float:
        """The uptime at which the claim loop last had an answer, or nothing to ask for."""
        return self._exchange.answered_at

    @property
    def ended(self) -> bool:
        """True if the worker has stopped."""
        return self._state == "ended"

    async def wait(self) -> None:
        """Wait until the worker has ended: it was stopped, its burst found no more jobs, or it failed.

        Raises:
            TenureError: a burst ended although jobs may be left, because it could not claim them.
            BaseExceptionGroup: something in the worker itself failed.
        """
        if self._main is None:
            return
        await asyncio.wait({self._main})
        if self._ending is not None:
            await asyncio.shield(self._ending)
        if not self._main.cancelled() and (failure := self._main.exception()) is not None:
            raise failure
        if self._burst_shortage is not None:
            raise TenureError(
                f"the burst of worker {self.owner.name} ends, and jobs may be left: {self._burst_shortage}, and no job "
                "runs; find what keeps descriptors open, or raise the limit (ulimit -n)"
            )

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT. The first signal drains, the second hands back all runs and ends at once.

        SIGHUP and SIGQUIT also drain.

        Raises:
            UsageError: called outside the main thread, where no signal handler can be installed.
            TenureError: a burst ended although jobs may be left, because it could not claim them.
            StorageError: the storage cannot be opened.
        """
        if threading.current_thread() is not threading.main_thread():
            raise UsageError("run() hears signals and needs the main thread; use start() and stop() elsewhere")
        loop, orders = asyncio.get_running_loop(), StopSignals()
        also = draining()
        before = {number: signal.getsignal(number) for number in (*SIGNALS, *also)}
        for number in before:
            loop.add_signal_handler(number, orders.drain if number in also else orders.drain_then_stop)
        try:
            await orders.run(self)
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _run_tasks(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._exchange.run())
            group.create_task(self._bus.run())
            if self._unstored_schedules:
                runtime = self._runtime
                later = put_later(runtime.storage, self._unstored_schedules, rng=runtime.rng, logger=runtime.logger)
                group.create_task(later)
            group.create_task(self._keeper.listen())
            group.create_task(self._retire())
            group.create_task(self._put_back_schedules())
            if self._lifespan.lives:
                group.create_task(self._lifespan.fail())
            if self._burst:
                self._burst_shortage = await self._exchange.wait_until_empty()
                self._begin_to_end(0.0, "burst")

    def _announce(self, event: Event) -> None:
        self._keeper.announce(event)

    def _storage_replaced(self, place: int) -> None:
        """Begin again with a storage partition that lost its data. Called from the keeper's thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._begin_again, place, context=self._context)

    def _storage_rewound(self, place: int, last: int) -> None:
        """Read events again after a storage partition lost its last ones. Called from the keeper's thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._bus.set_back, place, last, context=self._context)

    def _begin_again(self, place: int) -> None:
        self._bus.begin_again(place)
        self._storage_lost_data.set()

    async def _put_back_schedules(self) -> None:
        """Store the declared schedules again each time the storage has lost them, as at a start."""
        runtime = self._runtime
        await put_back(
            runtime.storage,
            runtime.schedules.values(),
            lost=self._storage_lost_data,
            rng=runtime.rng,
            logger=runtime.logger,
        )

    async def _retire(self) -> None:
        """End once this process must be recycled and its runs are over. The runs get all the time that they need."""
        why = await self._exchange.wait_for_recycling()
        self._runtime.logger.info("worker %s claims no more jobs and stops after its runs: %s", self.owner.name, why)
        self._retire_for(why)
        await self._exchange.settled()
        self._begin_to_end(0.0, "recycled")

    def _retire_for(self, why: str) -> None:
        self.recycle_reason = why
        self._retired.set()

    async def _keep(self) -> None:
        try:
            await self._keeper.run()
        finally:
            # The supervisor must not renew leases that this process does not renew any more.
            self._monitor.ended()

    def _begin_to_end(self, drain: float, reason: str) -> "asyncio.Task[None]":
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(drain, reason), name=f"end of worker {self.owner.name}")
        return self._ending

    def _main_ended(self, main: "asyncio.Task[None]") -> None:
        """Make a worker that failed by itself hand back its runs, instead of renewing them for ever."""
        if main.cancelled() or (failure := main.exception()) is None:
            return
        self._runtime.logger.critical("worker %s failed; stopping it", self.owner.name, exc_info=failure)
        self._forced.set()
        self._begin_to_end(0.0, "failed")

    def _loop_cancelled(self) -> None:
        """Stop, because every task of this worker on its loop was cancelled."""
        how = "a handler" if self._guard.known else "code of no known handler"
        self._runtime.logger.critical(
            "worker %s failed: %s cancelled every task of its event loop; stopping it", self.owner.name, how
        )
        self._forced.set()
        if self._main is not None:
            self._main.cancel()
        if self._guard.known:
            self._begin_to_end(0.0, "failed")
        # Otherwise the loop itself may be ending. Then no lease is renewed any more, as in a crash, and `run` stops it.

    async def _end(self, drain: float, reason: str) -> None:
        self._drain_ends_at = asyncio.get_running_loop().time() + drain
        self._exchange.stop_claiming()
        self._keeper.announce(WorkerStopping(owner=self.owner.id, reason=reason))
        try:
            if drain and not self._forced.is_set():
                await self._step(first(self._exchange.settled(), self._forced.wait(), within=drain))
            self._allow_calls_for(CANCEL_GRACE + LAST_CALLS)
            self._exchange.stop_all()
            await self._step(self._bounded(self._exchange.runs_over(), within=CANCEL_GRACE))
            if self._forced.is_set():
                # A forced stop also hands back runs. A shorter time would be less than a slow storage's round trip.
                self._allow_calls_for(LAST_CALLS)
            self._exchange.release_rest(round(CANCEL_GRACE * SECOND))
            await self._step(first(self._settled(), within=self._time_left(LAST_STEPS)))
            await self._bounded(self._bus.stop(), within=self._time_left(LAST_STEPS))
        finally:
            await self._leave()

    async def _step(self, step: Coroutine[Any, Any, None]) -> None:
        """Complete a step. A handler that cancels every task of the loop ends this step, but not the steps after it."""
        try:
            await step
        except asyncio.CancelledError:
            if not self._guard.known:
                raise

    def _allow_calls_for(self, seconds: float) -> None:
        self._last_call_at = asyncio.get_running_loop().time() + seconds

    def _time_left(self, kept: float = 0.0) -> float:
        """Return the seconds that are left for storage calls, minus `kept`. At least `FORCED_GRACE`."""
        return max(FORCED_GRACE, self._last_call_at - kept - asyncio.get_running_loop().time())

    async def _settled(self) -> None:
        if self._guard.cancelled or (self._main is not None and self._main.done()):
            # The exchange loop, which would send them, is gone.
            await self._exchange.flush()
        await self._exchange.settled()

    async def _leave(self) -> None:
        leaving = asyncio.create_task(self._leave_lifespan())
        closing = asyncio.create_task(self._close_isolated_runs())
        # The background tasks may also hang in a storage call. They are cancelled; their thread blocks no exit.
        await first(self._keeper_loop.stop(), within=self._time_left())
        self._watchdog.stop()
        self._keeper.announce(WorkerStopped(owner=self.owner.id, released=self._exchange.released))
        try:
            async with asyncio.timeout(self._time_left()):
                await self._keeper.last_beat()
        except Exception as error:
            # The worker must end, no matter which error this is.
            self._log_unrecorded(error)
        else:
            self._log_unrecorded(None)
        self._guard.release()
        if self._main is not None:
            self._main.cancel()
            # A handler that swallows its cancellation must not hold up the end of its worker.
            await asyncio.wait({self._main}, timeout=FORCED_GRACE)
        await leaving
        await closing
        self._threads.close()
        self._state = "ended"

    async def _wait_for_cancelled_start(self) -> None:
        """Wait until the worker is stopped while it starts, and its drain time is over."""
        await self._start_cancelled.wait()
        await first(self._forced.wait(), within=self._drain_ends_at - asyncio.get_running_loop().time())

    async def _leave_lifespan(self) -> None:
        # Cleanup that waits for an abandoned thread may use resources that the lifespan is about to close.
        await first(self._runner.tidied(), within=FORCED_GRACE)
        self._lifespan.end()
        if not self._forced.is_set():
            await first(self._lifespan.ended(), self._forced.wait(), within=self._lifespan_time())
        if self._forced.is_set():
            await first(self._lifespan.ended(), within=self._time_left())
        await self._lifespan.cut_off()

    async def _close_isolated_runs(self) -> None:
        # The lifespans of these processes have the same time as the one of this worker.
        await first(self._isolated_runs.end_idle(), self._forced.wait(), within=self._lifespan_time())
        await self._isolated_runs.close()

    def _lifespan_time(self) -> float:
        """Return the seconds that lifespans get to end."""
        left = self._time_left()
        return left if self._forced.is_set() else max(left, self._drain_ends_at - asyncio.get_running_loop().time())

    def _too_many_abandoned(self) -> None:
        """Recycle this process: too many abandoned runs go on in it."""
        self._recycle_for(f"{self._abandoned.count} of its handlers ignore their cancellation", drain=True)

    def _report_unstoppable(self, run: ActiveRun, reason: StopCode) -> None:
        """Recycle this process: only its end can end the handler of this exclusive run, which ignored its stop."""
        job = run.lease.job
        self._keeper.announce(
            JobStopIgnored(
                queue=job.queue, id=job.id, task=job.task, run=job.starts, owner=self.owner.id, reason=reason
            )
        )
        self._recycle_for(
            f"job {job.id} ({job.task}) keeps its exclusive right, because its handler ignores the request to stop",
            drain=True,
        )

    def _out_of_threads(self) -> None:
        """Recycle this process: it has no threads for plain handlers, so it can only hand their jobs back."""
        self._recycle_for("the machine has no thread for its plain handlers")

    def _handle_shortage(self, error: RecordedError) -> None:
        """Handle a run's exception which says that descriptors, threads or memory have run out."""
        if NO_THREAD in error.message:
            self._recycle_for("its handlers cannot start threads any more")
        else:
            self._descriptors.check()

    def _process_refused(self, why: str) -> None:
        """Recycle this process: the system refuses another process. Safe from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._recycle_for, why, context=self._context)

    def _recycle_for(self, why: str, *, drain: bool = False) -> None:
        """Recycle this process for the given reason. Without a supervisor, log each reason once.

        Its runs get all the time that they need, or only a drain if some of them would never end.
        """
        if self._ending is not None or why in self._reported_reasons:
            return
        self._reported_reasons.add(why)
        if not self._supervised:
            self._runtime.logger.critical(
                "worker %s: %s; restart it soon, or use `tenure worker`, which restarts it",
                self.owner.name,
                why,
            )
            return
        self._runtime.logger.error("worker %s must be recycled: %s", self.owner.name, why)
        if drain:
            self.recycle(why)
        else:
            self._exchange.recycle(why)

    def _log_unrecorded(self, error: Exception | None) -> None:
        """Log which outcomes and events the storage did not record. The reaper recovers these jobs."""
        unsettled = self._exchange.unsettled
        if not unsettled and error is None:
            return
        self._runtime.logger.error(
            "worker %s stopped with %d unrecorded outcomes, %d unrecorded events%s; reapers will recover "
            "the jobs when their leases have expired%s",
            self.owner.name,
            len(unsettled),
            self._keeper.unrecorded,
            "" if error is None else f", and its record not deleted ({error!r})",
            "".join([": ", ", ".join(unsettled[:20])] if unsettled else []),
        )

    async def _bounded(self, awaited: Coroutine[Any, Any, object], *, within: float) -> None:
        """Wait until this is done or the time is over. Once the stop is forced, wait only a moment longer."""
        if not self._forced.is_set():
            await first(awaited, self._forced.wait(), within=within)
            return
        await first(awaited, within=min(within, FORCED_GRACE))

    def _is_needed(self) -> bool:
        """Return True if a task is left that runs the held jobs or hands them back. Called from the keeper's thread."""
        if self._loop is None or self._main is None or self._loop.is_closed():
            return False
        return not self._main.done() or self._ending is not None

    def _stop_run(self, run: ActiveRun, reason: StopReason, detail: str | None) -> None:
        """Stop a run from the keeper's thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._exchange.stop_run, run, reason, detail, context=self._context)
        if (make_end := run.stop_isolated) is not None:
            # This reaches the isolated process even if the loop is blocked. The loop must know first, because it next
            # learns that the process ended.
            make_end(reason, detail)

    def _on_orders(self, orders: tuple[str, ...]) -> None:
        """Apply an operator's orders: `orders` holds all that are in force. Called from the keeper's thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._apply_orders, orders, context=self._context)

    def _apply_orders(self, orders: tuple[str, ...]) -> None:
        if (quiet := "quiet" in orders) != self._exchange.quiet:
            done = "claims no more" if quiet else "claims again"
            self._runtime.logger.info("worker %s %s by operator request", self.owner.name, done)
            self._exchange.set_quiet(quiet)
        # A worker that is being recycled gives its runs all the time that they need. `stop` ends that.
        if "stop" in orders and self._ending is None and not self.ended:
            self._runtime.logger.info("worker %s stops by operator request", self.owner.name)
            self.dismissed = True
            self._begin_to_end(self._drain.total_seconds(), "ordered")

    def _info(self) -> WorkerInfo:
        now = self._runtime.clock.uptime()
        self._monitor.memory = resident()
        return WorkerInfo(
            queues=self._queues,
            concurrency=self._concurrency,
            active=self._exchange.running,
            turned_ago=max(0, round((now - self._exchange.turned_at) * SECOND)),
            stopping=self.stopping,
            lag=round(self._monitor.lag(now) * SECOND),
            memory=self._monitor.memory,
            quiet=self._exchange.quiet,
            tasks=self._known_tasks.versions,
            unstopped=self._exchange.unstopped,
            why=self.recycle_reason or self._descriptors.why or "",
            alarm=self._partitions.alarm,
        )
