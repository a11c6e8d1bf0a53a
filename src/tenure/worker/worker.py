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
from tenure.worker.abandoned import Abandoned
from tenure.worker.active_runs import ActiveRun, ActiveRuns, StopReason
from tenure.worker.executor import Executor
from tenure.worker.isolation.isolated_runs import IsolatedRuns
from tenure.worker.keeper import Keeper
from tenure.worker.known_tasks import KnownTasks
from tenure.worker.lifespan import Lifespan
from tenure.worker.loop import ExchangeLoop
from tenure.worker.loop_guard import LoopGuard
from tenure.worker.loop_lag import LoopMonitor
from tenure.worker.memory import resident
from tenure.worker.outcomes import Outcomes
from tenure.worker.partitions import PartitionWatch
from tenure.worker.prefetch_policy import MOST, PrefetchPolicy
from tenure.worker.recycling import RecyclePolicy
from tenure.worker.run import Runner
from tenure.worker.scoreboard import Scoreboard
from tenure.worker.shortage import NO_THREAD, Descriptors
from tenure.worker.stop_signals import SIGNALS, StopSignals, draining
from tenure.worker.watchdog import Watchdog
from tenure.worker.worker_metrics import WorkerMetrics

DRAIN = timedelta(seconds=25)
LINGER = 2.0
"""Seconds that cancelled handlers get to end. A run that does not end is due again after this time at the earliest."""

FORCED_LINGER = 0.1

TELLING = 1.5
"""Seconds after `LINGER` for the last storage calls. The process is then gone 5 s after its drain at the latest."""

LEAVING = 0.5
"""The part of `TELLING` that the last steps get: the reaper resigns, the worker's record goes, the lifespan is left."""


class Worker:
    """Claims jobs and runs them; start and stop it, use it as a context manager, or `run()` it.

    Leases are renewed from a separate thread, so a handler may block the event loop. A handler that holds the
    interpreter itself (a C call that keeps the GIL) for a whole lease loses the lease, unless a supervisor renews it.
    Only `run()` installs signal handlers.
    """

    def __init__(
        self,
        equipment: Runtime,
        *,
        queues: Sequence[str],
        concurrency: int = 10,
        owner: Owner | None = None,
        reaper: Callable[[], Coroutine[Any, Any, None]] | None = None,
        drain: Duration = DRAIN,
        burst: bool = False,
        supervised: bool = False,
        slate: Scoreboard | None = None,
        wear: RecyclePolicy | None = None,
        prefetch: int | None = None,
    ) -> None:
        if isinstance(concurrency, bool) or concurrency < 1:
            raise UsageError(f"concurrency = {concurrency!r} must be 1 or more")
        if not queues:
            raise UsageError("queues is empty; name at least one queue")
        self.owner = owner or equipment.owner()
        self._equipment = equipment
        self._queues = tuple(named(queue, field="queue") for queue in queues)
        self._concurrency = concurrency
        self._reaper = reaper
        self._drain = duration(drain, field="drain", zero=True)
        self._burst = burst
        self._supervised = supervised
        self.recycled: str | None = None
        """Why this worker is recycled. None if it is not."""
        self._short: str | None = None
        """Why a burst ends although jobs may be left. None if it does not."""
        self._complaints: set[str] = set()
        """The reasons to recycle that were reported already."""
        self._retired = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context: contextvars.Context | None = None
        self._state: Literal["new", "starting", "running", "ended"] = "new"
        self._main: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.dismissed = False
        """True if an operator ordered this worker to stop. The supervisor then starts no other in its place."""
        self._unput: tuple[Schedule, ...] = ()
        """Declared schedules that are not stored yet, because a part of the storage is unreachable."""
        self._forced = asyncio.Event()
        self._unwanted, self._gone = asyncio.Event(), asyncio.Event()
        """Set when the worker is stopped while it starts, and when that start has then released everything."""
        self._until = 0.0
        """Loop time after which no more storage calls are made."""
        self._drained = 0.0
        """Loop time at which the drain is over at the latest."""

        self._side = equipment.background_loop("tenure-keeper")
        self._threads = ThreadPool("tenure-handler")
        self._lifespan = Lifespan(equipment.lifespan, worker=self.owner.name, logger=equipment.logger)
        self._abandoned = Abandoned(self._crowded)
        self._runner = Runner(
            equipment.tasks,
            equipment.codec,
            self._threads,
            equipment.clock,
            equipment.logger,
            middleware=equipment.middleware,
            replaced=equipment.overrides,
            state=lambda: self._lifespan.state,
            abandoned=self._abandoned,
            no_thread=self._out_of_threads,
            short=self._run_short,
        )
        self._holdings = ActiveRuns(slate)
        self._slots = IsolatedRuns(
            equipment,
            worker=self.owner,
            isolates=supervised,
            keeping=self._holdings,
            slate=slate,
            refused=self._no_process,
        )
        self._descriptors = Descriptors(equipment.clock, self._worn_out)
        self._turns = LoopMonitor(slate)
        self._known = KnownTasks(equipment.tasks)
        tally = WorkerMetrics(equipment.metrics)
        self._bus = EventBus(
            equipment.storage,
            equipment.event_handlers,
            reader=f"app:{equipment.app}",
            caller=self.owner.id,
            rng=equipment.rng,
            decode=equipment.codec.decode,
            logger=equipment.logger,
        )
        wear = wear or RecyclePolicy()
        # Without a supervisor, it is unknown which jobs of a dead worker had not begun. So the default is no prefetch.
        most = max(0, MOST - concurrency) if supervised else 0
        self.ahead = PrefetchPolicy(concurrency, most if prefetch is None else prefetch)
        """How many jobs this worker may claim in addition to those that it runs."""
        outcomes = Outcomes(self._holdings, rng=equipment.rng, logger=equipment.logger, tally=tally)
        self._guard = LoopGuard()
        runs = Executor(
            self.owner,
            self._runner,
            self._slots,
            self._holdings,
            outcomes,
            concurrency=concurrency,
            ahead=self.ahead,
            abandoned=self._abandoned,
            guard=self._guard,
            tasks=equipment.tasks,
            wear=wear,
            clock=equipment.clock,
            rng=equipment.rng,
            logger=equipment.logger,
            tell=self._bus.tell,
            tally=tally,
            supervised=supervised,
            unstoppable=self._will_not_end,
        )
        self._exchange = ExchangeLoop(
            equipment.storage,
            self.owner,
            runs,
            outcomes,
            self._holdings,
            queues=self._queues,
            known=self._known,
            concurrency=concurrency,
            wear=wear,
            clock=equipment.clock,
            rng=equipment.rng,
            logger=equipment.logger,
            tell=self._bus.tell,
            tally=tally,
            short=lambda: self._descriptors.short() if wear.used else None,
        )
        self._partitions = PartitionWatch(
            worker=self.owner.name,
            clock=equipment.clock,
            logger=equipment.logger,
            read=lambda: self._bus.read_to,
            announce=self._announce,
            forget_read=self._bus.forget_read,
            replaced=self._storage_replaced,
            rewound=self._storage_rewound,
        )
        self._replaced = asyncio.Event()
        self._keeper = Keeper(
            equipment.storage,
            self.owner,
            self._holdings,
            self._turns,
            timing=equipment.timing,
            clock=equipment.clock,
            rng=equipment.rng,
            logger=equipment.logger,
            info=self._info,
            stop=self._stop_run,
            obey=self._obey,
            wanted=self._lives,
            given_up=lambda: self._watchdog.given_up(),
            lanes=lambda: self._exchange.lanes.all,
            tally=tally,
            partitions=self._partitions,
        )
        self._watchdog = Watchdog(
            self._turns,
            self._holdings,
            owner=self.owner.id,
            slate=slate,
            supervised=supervised,
            max_block=equipment.timing.max_block.total_seconds(),
            clock=equipment.clock,
            logger=equipment.logger,
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
        self._equipment.check_migrations()
        self._slots.find()
        self._state = "starting"
        try:
            await self._equipment.storage.open()
            self._unput = await put_all(self._equipment.storage, self._equipment.schedules.values())
            await self._bus.subscribe()
            await self._lifespan.enter(self._given_up)
        except BaseException:
            if self.ended:
                self._gone.set()
            else:
                self._state = "new"
            raise
        if self.ended:
            # `stop` was called before the start was complete.
            await self._leave_lifespan()
            self._gone.set()
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
        self._main = asyncio.create_task(self._crew(), name=f"worker {self.owner.name}")
        self._main.add_done_callback(self._noticed)
        self._guard.start(self._loop_cancelled)
        try:
            self._side.run(self._keep)
            if self._side.apart:
                self._watchdog.start()
                self._side.run(self._watchdog.watch)
            if self._reaper is not None:
                self._side.run(self._reaper)
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
                self._drained = asyncio.get_running_loop().time() + drain.total_seconds()
                self._unwanted.set()
            if self.ended:
                # The start gives up by itself, unless a storage call hangs. So this wait has a limit.
                await first(self._gone.wait(), within=drain.total_seconds() + LINGER + TELLING)
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
        return self.recycled or ""

    @property
    def stopping(self) -> bool:
        """True if the worker is stopping, has stopped or is being recycled: it claims no more."""
        return self._ending is not None or self.recycled is not None or self.ended

    def vitals(self) -> ProcessHealth:
        """Return the health of this process. Safe from any thread."""
        now = self._equipment.clock.uptime()
        return ProcessHealth(
            owners=(self.owner.id,),
            dead=blocked(self._turns.blocked(now), self._equipment.timing.max_block.total_seconds()),
            stopping=self.stopping,
            lag=self._turns.recent(now),
            figures=self._equipment.metrics.totals(),
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
        if self._short is not None:
            raise TenureError(
                f"the burst of worker {self.owner.name} ends, and jobs may be left: {self._short}, and no job runs; "
                "find what keeps descriptors open, or raise the limit (ulimit -n)"
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
            loop.add_signal_handler(number, orders.stop if number in also else orders.again)
        try:
            await orders.obeyed_by(self)
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

    async def _crew(self) -> None:
        async with asyncio.TaskGroup() as crew:
            crew.create_task(self._exchange.run())
            crew.create_task(self._bus.run())
            if self._unput:
                equipment = self._equipment
                later = put_later(equipment.storage, self._unput, rng=equipment.rng, logger=equipment.logger)
                crew.create_task(later)
            crew.create_task(self._keeper.listen())
            crew.create_task(self._retire())
            crew.create_task(self._put_back_schedules())
            if self._lifespan.lives:
                crew.create_task(self._lifespan.fail())
            if self._burst:
                self._short = await self._exchange.dry()
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
        self._replaced.set()

    async def _put_back_schedules(self) -> None:
        """Store the declared schedules again each time the storage has lost them, as at a start."""
        equipment = self._equipment
        await put_back(
            equipment.storage,
            equipment.schedules.values(),
            lost=self._replaced,
            rng=equipment.rng,
            logger=equipment.logger,
        )

    async def _retire(self) -> None:
        """End once this process must be recycled and its runs are over. The runs get all the time that they need."""
        why = await self._exchange.worn_out()
        self._equipment.logger.info("worker %s claims no more, and leaves after its runs: %s", self.owner.name, why)
        self._retire_for(why)
        await self._exchange.settled()
        self._begin_to_end(0.0, "recycled")

    def _retire_for(self, why: str) -> None:
        self.recycled = why
        self._retired.set()

    async def _keep(self) -> None:
        try:
            await self._keeper.run()
        finally:
            # The supervisor must not renew leases that this process does not renew any more.
            self._turns.ended()

    def _begin_to_end(self, drain: float, reason: str) -> "asyncio.Task[None]":
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(drain, reason), name=f"end of worker {self.owner.name}")
        return self._ending

    def _noticed(self, main: "asyncio.Task[None]") -> None:
        """Make a worker that failed by itself hand back its runs, instead of renewing them for ever."""
        if main.cancelled() or (failure := main.exception()) is None:
            return
        self._equipment.logger.critical("the worker %s failed and stops", self.owner.name, exc_info=failure)
        self._forced.set()
        self._begin_to_end(0.0, "failed")

    def _loop_cancelled(self) -> None:
        """Stop, because every task of this worker on its loop was cancelled."""
        how = "a handler" if self._guard.known else "code of no known handler"
        self._equipment.logger.critical(
            "the worker %s fails and stops: every task of its event loop was cancelled, by %s", self.owner.name, how
        )
        self._forced.set()
        if self._main is not None:
            self._main.cancel()
        if self._guard.known:
            self._begin_to_end(0.0, "failed")
        # Otherwise the loop itself may be ending. Then no lease is renewed any more, as in a crash, and `run` stops it.

    async def _end(self, drain: float, reason: str) -> None:
        self._drained = asyncio.get_running_loop().time() + drain
        self._exchange.stop_claiming()
        self._keeper.announce(WorkerStopping(owner=self.owner.id, reason=reason))
        try:
            if drain and not self._forced.is_set():
                await self._step(first(self._exchange.settled(), self._forced.wait(), within=drain))
            self._tell_for(LINGER + TELLING)
            self._exchange.stop_all()
            await self._step(self._bounded(self._exchange.runs_over(), within=LINGER))
            if self._forced.is_set():
                # A forced stop also hands back runs. A shorter time would be less than a slow storage's round trip.
                self._tell_for(TELLING)
            self._exchange.release_rest(round(LINGER * SECOND))
            await self._step(first(self._settled(), within=self._left(LEAVING)))
            await self._bounded(self._bus.stop(), within=self._left(LEAVING))
        finally:
            await self._leave()

    async def _step(self, step: Coroutine[Any, Any, None]) -> None:
        """Complete a step. A handler that cancels every task of the loop ends this step, but not the steps after it."""
        try:
            await step
        except asyncio.CancelledError:
            if not self._guard.known:
                raise

    def _tell_for(self, seconds: float) -> None:
        self._until = asyncio.get_running_loop().time() + seconds

    def _left(self, kept: float = 0.0) -> float:
        """Return the seconds that are left for storage calls, minus `kept`. At least `FORCED_LINGER`."""
        return max(FORCED_LINGER, self._until - kept - asyncio.get_running_loop().time())

    async def _settled(self) -> None:
        if self._guard.cancelled or (self._main is not None and self._main.done()):
            # The exchange loop, which would send them, is gone.
            await self._exchange.flush()
        await self._exchange.settled()

    async def _leave(self) -> None:
        leaving = asyncio.create_task(self._leave_lifespan())
        closing = asyncio.create_task(self._close_slots())
        # The background tasks may also hang in a storage call. They are cancelled; their thread blocks no exit.
        await first(self._side.stop(), within=self._left())
        self._watchdog.stop()
        self._keeper.announce(WorkerStopped(owner=self.owner.id, released=self._exchange.released))
        try:
            async with asyncio.timeout(self._left()):
                await self._keeper.last_beat()
        except Exception as error:
            # The worker must end, no matter which error this is.
            self._left_untold(error)
        else:
            self._left_untold(None)
        self._guard.release()
        if self._main is not None:
            self._main.cancel()
            # A handler that swallows its cancellation must not hold up the end of its worker.
            await asyncio.wait({self._main}, timeout=FORCED_LINGER)
        await leaving
        await closing
        self._threads.close()
        self._state = "ended"

    async def _given_up(self) -> None:
        """Wait until the worker is stopped while it starts, and its drain time is over."""
        await self._unwanted.wait()
        await first(self._forced.wait(), within=self._drained - asyncio.get_running_loop().time())

    async def _leave_lifespan(self) -> None:
        # Cleanup that waits for an abandoned thread may use resources that the lifespan is about to close.
        await first(self._runner.tidied(), within=FORCED_LINGER)
        self._lifespan.end()
        if not self._forced.is_set():
            await first(self._lifespan.ended(), self._forced.wait(), within=self._patience())
        if self._forced.is_set():
            await first(self._lifespan.ended(), within=self._left())
        await self._lifespan.cut_off()

    async def _close_slots(self) -> None:
        # The lifespans of these processes have the same time as the one of this worker.
        await first(self._slots.leave(), self._forced.wait(), within=self._patience())
        await self._slots.close()

    def _patience(self) -> float:
        """Return the seconds that lifespans get to end."""
        left = self._left()
        return left if self._forced.is_set() else max(left, self._drained - asyncio.get_running_loop().time())

    def _crowded(self) -> None:
        """Recycle this process: too many abandoned runs go on in it."""
        self._worn_out(f"{self._abandoned.count} handlers go on in it although they were told to end", drain=True)

    def _will_not_end(self, held: ActiveRun, reason: StopCode) -> None:
        """Recycle this process: only its end can end the handler of this exclusive run, which ignored its stop."""
        job = held.lease.job
        self._keeper.announce(
            JobStopIgnored(
                queue=job.queue, id=job.id, task=job.task, run=job.starts, owner=self.owner.id, reason=reason
            )
        )
        self._worn_out(
            f"job {job.id} ({job.task}) was told to stop, its handler goes on, and it keeps its exclusive right",
            drain=True,
        )

    def _out_of_threads(self) -> None:
        """Recycle this process: it has no threads for plain handlers, so it can only hand their jobs back."""
        self._worn_out("the machine has no thread for its plain handlers")

    def _run_short(self, error: RecordedError) -> None:
        """Handle a run's exception which says that descriptors, threads or memory have run out."""
        if NO_THREAD in error.message:
            self._worn_out("its handlers cannot start threads any more")
        else:
            self._descriptors.look()

    def _no_process(self, why: str) -> None:
        """Recycle this process: the system refuses another process. Safe from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._worn_out, why, context=self._context)

    def _worn_out(self, told: str, *, drain: bool = False) -> None:
        """Recycle this process for the given reason. Without a supervisor, log each reason once.

        Its runs get all the time that they need, or only a drain if some of them would never end.
        """
        if self._ending is not None or told in self._complaints:
            return
        self._complaints.add(told)
        if not self._supervised:
            self._equipment.logger.critical(
                "worker %s: %s; restart it soon, or run it by `tenure worker`, which does that by itself",
                self.owner.name,
                told,
            )
            return
        self._equipment.logger.error("worker %s is replaced by another: %s", self.owner.name, told)
        if drain:
            self.recycle(told)
        else:
            self._exchange.wear_out(told)

    def _left_untold(self, error: Exception | None) -> None:
        """Log which outcomes and events the storage did not record. The reaper recovers these jobs."""
        unsettled = self._exchange.unsettled
        if not unsettled and error is None:
            return
        self._equipment.logger.error(
            "worker %s ends, and the storage did not take what %d jobs came to, %d events%s; the jobs are left to the "
            "reapers, and run again when their leases are out%s",
            self.owner.name,
            len(unsettled),
            self._keeper.unrecorded,
            "" if error is None else f", and its leave ({error!r})",
            "".join([": ", ", ".join(unsettled[:20])] if unsettled else []),
        )

    async def _bounded(self, awaited: Coroutine[Any, Any, object], *, within: float) -> None:
        """Wait until this is done or the time is over. Once the stop is forced, wait only a moment longer."""
        if not self._forced.is_set():
            await first(awaited, self._forced.wait(), within=within)
            return
        await first(awaited, within=min(within, FORCED_LINGER))

    def _lives(self) -> bool:
        """Return True if a task is left that runs the held jobs or hands them back. Called from the keeper's thread."""
        if self._loop is None or self._main is None or self._loop.is_closed():
            return False
        return not self._main.done() or self._ending is not None

    def _stop_run(self, held: ActiveRun, reason: StopReason, detail: str | None) -> None:
        """Stop a run from the keeper's thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._exchange.stop_run, held, reason, detail, context=self._context)
        if (make_end := held.make_end) is not None:
            # This reaches the isolated process even if the loop is blocked. The loop must know first, because it next
            # learns that the process ended.
            make_end(reason, detail)

    def _obey(self, orders: tuple[str, ...]) -> None:
        """Apply an operator's orders: `orders` holds all that are in force. Called from the keeper's thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ordered, orders, context=self._context)

    def _ordered(self, orders: tuple[str, ...]) -> None:
        if (quiet := "quiet" in orders) != self._exchange.quiet:
            done = "claims no more" if quiet else "claims again"
            self._equipment.logger.info("worker %s %s: an operator has ordered it", self.owner.name, done)
            self._exchange.be_quiet(quiet)
        # A worker that is being recycled gives its runs all the time that they need. `stop` ends that.
        if "stop" in orders and self._ending is None and not self.ended:
            self._equipment.logger.info("worker %s stops: an operator has ordered it", self.owner.name)
            self.dismissed = True
            self._begin_to_end(self._drain.total_seconds(), "ordered")

    def _info(self) -> WorkerInfo:
        now = self._equipment.clock.uptime()
        self._turns.memory = resident()
        return WorkerInfo(
            queues=self._queues,
            concurrency=self._concurrency,
            active=self._exchange.running,
            turned_ago=max(0, round((now - self._exchange.turned_at) * SECOND)),
            stopping=self.stopping,
            lag=round(self._turns.lag(now) * SECOND),
            memory=self._turns.memory,
            quiet=self._exchange.quiet,
            tasks=self._known.versions,
            unstopped=self._exchange.unstopped,
            why=self.recycled or self._descriptors.why or "",
            alarm=self._partitions.alarm,
        )
