"""A worker: starts its crew, drains, stops.

    new ──start──► starting ──► running ──stop, a burst that is dry, a failure of its own──► ending ──► ended

How it ends, each step bounded:

    claim no more ──► let runs end and outcomes be recorded (drain) ──► cancel what still runs (2 s)
        ──► hand back what would not end ──► let outcomes be recorded ──► hear events to their end
        ──► stop the keeper, last: it renews until nothing is held any more, and say goodbye
        └─► leave the lifespan meanwhile

All that the storage is told after the cancelling shares one budget (1.5 s, and what the 2 s left over), so a storage
that takes nothing costs no more than that: what it was not told is left to the reaper, and logged once. The lifespan
has as long, and whatever the drain has left over.
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
from tenure.client.schedules import put_all, put_later
from tenure.clock import SECOND
from tenure.core.check import named
from tenure.core.duration import Duration, duration
from tenure.core.events import Event, JobStopIgnored, WorkerStarted, WorkerStopped, WorkerStopping
from tenure.core.job import Owner, RecordedError
from tenure.core.outcome import StopCode
from tenure.core.schedule import Schedule
from tenure.errors import StorageError, TenureError, UsageError
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
"""Seconds that cancelled handlers get to end; a run that cannot be ended comes back no sooner than after as many."""

FORCED_LINGER = 0.1

TELLING = 1.5
"""Seconds after these in which the storage is told all that is left; a process is then gone 5 s after its drain."""

LEAVING = 0.5
"""So many of these are kept for the farewell: the reaper resigns, the worker's record goes, the lifespan is left."""


class Worker:
    """Claims jobs and runs them; start and stop it, use it as a context manager, or `run()` it.

    Leases are renewed from a thread of its own, so a handler may block the event loop. One that holds the interpreter
    itself (a C call that keeps the GIL) for a whole lease loses it, unless a supervisor renews it.
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
        """Why it ends to be replaced by another, None where it does not."""
        self._short: str | None = None
        """Why a burst ends although jobs may be left, None if it does not."""
        self._complaints: set[str] = set()
        """The reasons to be replaced that were given."""
        self._retired = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context: contextvars.Context | None = None
        self._state: Literal["new", "starting", "running", "ended"] = "new"
        self._main: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.dismissed = False
        """Whether an operator has ordered it to stop, so that nobody shall take its place."""
        self._unput: tuple[Schedule, ...] = ()
        """Schedules of the code that wait for a part of the storage that is out of reach."""
        self._forced = asyncio.Event()
        self._unwanted, self._gone = asyncio.Event(), asyncio.Event()
        """Set when it is stopped while it starts, and when it has then let go."""
        self._until = 0.0
        """When the loop's time comes to this, the storage is told no more."""
        self._drained = 0.0
        """When it comes to this, the drain is over at the latest."""

        self._side = equipment.side("tenure-keeper")
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
            replaced=equipment.replaced,
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
        tally = WorkerMetrics(equipment.figures)
        self._bus = EventBus(
            equipment.storage,
            equipment.hearers,
            reader=f"app:{equipment.app}",
            caller=self.owner.id,
            rng=equipment.rng,
            decode=equipment.codec.decode,
            logger=equipment.logger,
        )
        wear = wear or RecyclePolicy()
        # Without a supervisor nobody could tell after its death which of its jobs had not begun.
        most = max(0, MOST - concurrency) if supervised else 0
        self.ahead = PrefetchPolicy(concurrency, most if prefetch is None else prefetch)
        """What it may claim beyond what it runs."""
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
        """Begin to claim. Idempotent; a worker that has been stopped does not start again.

        Raises:
            StorageError: the storage cannot be opened, or not told of the schedules that code declares.
            UsageError: the worker has been stopped; a task lacks a migration from an older version, or has
                run="process" in an app that other processes do not find.
            RuntimeError, OSError: the machine has no thread to renew its leases in; it has been stopped.
            BaseException: whatever entering the lifespan raised.
        """
        if self._state == "ended":
            raise UsageError("this worker has been stopped; make another with app.worker()")
        if self._state != "new":
            return
        not_while_loading()
        # Also those defined since the worker was made.
        self._equipment.complete()
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
            # Somebody stopped it before it had begun.
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
        # The one task without a group around it: a worker outlives the call that starts it. `stop` awaits it.
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
            # Whoever is told that it has not started shall not have one that claims, and renews nothing.
            await self.stop(force=True)
            raise

    async def stop(self, *, timeout: Duration | None = None, force: bool = False) -> None:
        """Claim no more, let runs end, hand back what is left, let go. Idempotent; waits until it is done.

        `timeout` is how long runs may go on (25 s unless the worker was made with another `drain`); then they are
        cancelled, get 2 s to end, and what still runs is handed back, charged to no budget, due again 2 s later: a
        thread cannot be ended, and if the process lives on, so may the handler. `force` skips the waiting, also for a
        stop that is under way.

        Raises:
            UsageError: the timeout is no duration.
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
                # What starts gives up by itself, unless the storage keeps it; nobody waits for that.
                await first(self._gone.wait(), within=drain.total_seconds() + LINGER + TELLING)
            return
        # Whoever gives up waiting must not leave the worker half stopped.
        ending = self._begin_to_end(drain.total_seconds(), "forced" if force else "asked")
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            if self._guard.known and not ending.done():
                # By a handler, with all other tasks of the loop. The caller may end the loop, or close the storage.
                await asyncio.wait({ending})
            raise

    def recycle(self, why: str) -> None:
        """Claim no more, drain, and end, for a supervisor to start another in the place of this process. Idempotent."""
        if self._main is not None and self._ending is None:
            self._retire_for(why)
            self._begin_to_end(self._drain.total_seconds(), "recycled")

    async def retired(self) -> str:
        """Wait until it claims no more, for another to take its place; return why."""
        await self._retired.wait()
        return self.recycled or ""

    @property
    def stopping(self) -> bool:
        """Whether it has begun to stop, or has stopped, or is worn out: it claims no more."""
        return self._ending is not None or self.recycled is not None or self.ended

    def vitals(self) -> ProcessHealth:
        """Return how it is doing; from any thread."""
        now = self._equipment.clock.uptime()
        return ProcessHealth(
            owners=(self.owner.id,),
            dead=blocked(self._turns.blocked(now), self._equipment.timing.max_block.total_seconds()),
            stopping=self.stopping,
            lag=self._turns.recent(now),
            figures=self._equipment.figures.totals(),
        )

    @property
    def answered_at(self) -> float:
        """The uptime at which its claim loop last had an answer, or nothing to ask for."""
        return self._exchange.answered_at

    @property
    def ended(self) -> bool:
        """Whether it has stopped."""
        return self._state == "ended"

    async def wait(self) -> None:
        """Wait until the worker has ended: stopped, out of work in a burst, or failed.

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
        """Work until SIGTERM or SIGINT: the first drains, the second hands back and leaves at once.

        SIGHUP and SIGQUIT drain, too.

        Raises:
            UsageError: called outside of the main thread, where signals cannot be heard.
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
        """Begin again with a storage that lost everything, from the keeper's thread. `place`: of the partition."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._begin_again, place, context=self._context)

    def _begin_again(self, place: int) -> None:
        self._bus.begin_again(place)
        self._replaced.set()

    async def _put_back_schedules(self) -> None:
        """Put the schedules that code declares into the storage each time it has lost them, as at a start."""
        equipment = self._equipment
        while True:
            await self._replaced.wait()
            self._replaced.clear()
            try:
                left = await put_all(equipment.storage, equipment.schedules.values())
            except StorageError as error:
                equipment.logger.error("the storage refuses schedules that code declares: %s", error)
                continue
            await put_later(equipment.storage, left, rng=equipment.rng, logger=equipment.logger)

    async def _retire(self) -> None:
        """End once this process is worn out, and its runs are over: they are healthy, so they get all their time."""
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
            # What is not renewed here any more, is to be renewed by no watcher either.
            self._turns.ended()

    def _begin_to_end(self, drain: float, reason: str) -> "asyncio.Task[None]":
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(drain, reason), name=f"end of worker {self.owner.name}")
        return self._ending

    def _noticed(self, main: "asyncio.Task[None]") -> None:
        """Let a worker that failed by itself hand back what it holds, instead of renewing it for ever."""
        if main.cancelled() or (failure := main.exception()) is None:
            return
        self._equipment.logger.critical("the worker %s failed and stops", self.owner.name, exc_info=failure)
        self._forced.set()
        self._begin_to_end(0.0, "failed")

    def _loop_cancelled(self) -> None:
        """Stop, for every task of this worker on its loop was cancelled."""
        how = "a handler" if self._guard.known else "code of no known handler"
        self._equipment.logger.critical(
            "the worker %s fails and stops: every task of its event loop was cancelled, by %s", self.owner.name, how
        )
        self._forced.set()
        if self._main is not None:
            self._main.cancel()
        if self._guard.known:
            self._begin_to_end(0.0, "failed")
        # Else it may be the end of the loop itself. Its leases are renewed no more, as in a crash, and `run` stops it.

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
                # Also a forced stop hands back what it can; a moment would be less than a slow storage's round trip.
                self._tell_for(TELLING)
            self._exchange.release_rest(round(LINGER * SECOND))
            await self._step(first(self._settled(), within=self._left(LEAVING)))
            await self._bounded(self._bus.stop(), within=self._left(LEAVING))
        finally:
            await self._leave()

    async def _step(self, step: Coroutine[Any, Any, None]) -> None:
        """Take a step to the end. A handler that cancels every task of the loop cuts it short, and not what follows."""
        try:
            await step
        except asyncio.CancelledError:
            if not self._guard.known:
                raise

    def _tell_for(self, seconds: float) -> None:
        self._until = asyncio.get_running_loop().time() + seconds

    def _left(self, kept: float = 0.0) -> float:
        """Return the seconds in which the storage may still be told something, but for those kept; never none."""
        return max(FORCED_LINGER, self._until - kept - asyncio.get_running_loop().time())

    async def _settled(self) -> None:
        if self._guard.cancelled or (self._main is not None and self._main.done()):
            # The loop that would send them is gone.
            await self._exchange.flush()
        await self._exchange.settled()

    async def _leave(self) -> None:
        leaving = asyncio.create_task(self._leave_lifespan())
        closing = asyncio.create_task(self._close_slots())
        # What runs beside may hang in the storage, too; it is cancelled, and its thread keeps nobody.
        await first(self._side.stop(), within=self._left())
        self._watchdog.stop()
        self._keeper.announce(WorkerStopped(owner=self.owner.id, released=self._exchange.released))
        try:
            async with asyncio.timeout(self._left()):
                await self._keeper.last_beat()
        except Exception as error:
            # Whatever it is, the worker must end.
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
        """Wait until it is stopped while it starts, and has had as long as its runs would have."""
        await self._unwanted.wait()
        await first(self._forced.wait(), within=self._drained - asyncio.get_running_loop().time())

    async def _leave_lifespan(self) -> None:
        # What waits for a thread that was left to itself may use what the lifespan is about to close.
        await first(self._runner.tidied(), within=FORCED_LINGER)
        self._lifespan.end()
        if not self._forced.is_set():
            await first(self._lifespan.ended(), self._forced.wait(), within=self._patience())
        if self._forced.is_set():
            await first(self._lifespan.ended(), within=self._left())
        await self._lifespan.cut_off()

    async def _close_slots(self) -> None:
        # Their lifespans have as long as ours.
        await first(self._slots.leave(), self._forced.wait(), within=self._patience())
        await self._slots.close()

    def _patience(self) -> float:
        """Return the seconds that lifespans get to be left in."""
        left = self._left()
        return left if self._forced.is_set() else max(left, self._drained - asyncio.get_running_loop().time())

    def _crowded(self) -> None:
        """Too many runs go on here that nobody waits for."""
        self._worn_out(f"{self._abandoned.count} handlers go on in it although they were told to end", drain=True)

    def _will_not_end(self, held: ActiveRun, reason: StopCode) -> None:
        """An exclusive run was told to stop, and its handler goes on. Only the end of this process ends that."""
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
        """Plain handlers have nothing to run in here, and what is claimed for them only comes and goes."""
        self._worn_out("the machine has no thread for its plain handlers")

    def _run_short(self, error: RecordedError) -> None:
        """A run raised that descriptors, threads or memory have run out."""
        if NO_THREAD in error.message:
            self._worn_out("its handlers cannot start threads any more")
        else:
            self._descriptors.look()

    def _no_process(self, why: str) -> None:
        """The machine refuses a process; called from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._worn_out, why, context=self._context)

    def _worn_out(self, told: str, *, drain: bool = False) -> None:
        """Have this process replaced, for what it is told; where nobody does that, say so once for each reason.

        Its runs get all their time, or a drain if some of them would never end.
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
        """Log what the storage was not told; the reaper finds out by itself."""
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
        """Wait until this is done or the time is over; once the stop is forced, only for a moment more."""
        if not self._forced.is_set():
            await first(awaited, self._forced.wait(), within=within)
            return
        await first(awaited, within=min(within, FORCED_LINGER))

    def _lives(self) -> bool:
        """Say whether anybody is left who runs what is held, or hands it back; from the keeper's thread."""
        if self._loop is None or self._main is None or self._loop.is_closed():
            return False
        return not self._main.done() or self._ending is not None

    def _stop_run(self, held: ActiveRun, reason: StopReason, detail: str | None) -> None:
        """Stop a run from the keeper's thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._exchange.stop_run, held, reason, detail, context=self._context)
        if (make_end := held.make_end) is not None:
            # Its slot hears of it although the loop may be blocked; not before the loop, which hears of its end next.
            make_end(reason, detail)

    def _obey(self, orders: tuple[str, ...]) -> None:
        """Do as an operator has ordered, from the keeper's thread: these are all the orders that are in force."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ordered, orders, context=self._context)

    def _ordered(self, orders: tuple[str, ...]) -> None:
        if (quiet := "quiet" in orders) != self._exchange.quiet:
            done = "claims no more" if quiet else "claims again"
            self._equipment.logger.info("worker %s %s: an operator has ordered it", self.owner.name, done)
            self._exchange.be_quiet(quiet)
        # One that is worn out lets its runs take their time, and shall not any more.
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
