"""The worker: its life from start to stop. `assembly.py` creates its parts, and `shutdown.py` ends them.

    new ──start──► starting ──► running ──stop, a burst with no jobs left, an internal failure──► ending ──► ended

A worker that has ended cannot start again.
"""

import asyncio
import contextvars
import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self

from tenure._version import __version__
from tenure.client.app_location import not_while_loading
from tenure.client.schedules import put_all, put_back, put_later
from tenure.clock import SECOND
from tenure.core.check import named
from tenure.core.duration import Duration, duration
from tenure.core.events import WorkerStarted
from tenure.core.job import Owner
from tenure.core.public import PublicObject
from tenure.core.schedule import Schedule
from tenure.errors import TenureError, UsageError
from tenure.handlers.log_fields import add_log_fields
from tenure.health.process_health import ProcessHealth, blocked
from tenure.options.timing import DRAIN
from tenure.runtime import Runtime
from tenure.storage.moving import require_here
from tenure.storage.protocol import CONCURRENCY, MOVED, OUTDATED, WorkerInfo
from tenure.waiting import first
from tenure.worker.active_runs import ActiveRun, StopReason
from tenure.worker.assembly import WorkerCallbacks, WorkerParts
from tenure.worker.recycling import RecyclePolicy, resident
from tenure.worker.scoreboard import Scoreboard
from tenure.worker.shutdown import CANCEL_GRACE, LAST_CALLS, Shutdown
from tenure.worker.stop_signals import SIGNALS, StopSignals, draining

TASKS_LOGGED = 50
"""The most tasks that a worker names in its log when it starts."""


class Worker(PublicObject):
    """Claims jobs and runs them; start and stop it, use it as a context manager, or `run()` it.

    Leases are renewed from a separate thread, so a handler may block the event loop. A handler that holds the
    interpreter itself (a C call that keeps the GIL) for a whole lease loses the lease, unless a supervisor renews it.
    Only `run()` installs signal handlers.
    """

    _internal = frozenset(
        {
            "answered_at",
            "dismissed",
            "prefetch_policy",
            "recycle",
            "recycle_reason",
            "retired",
            "stopping",
            "vitals",
        }
    )

    def __init__(
        self,
        runtime: Runtime,
        *,
        queues: Sequence[str],
        concurrency: int = 10,
        owner: Owner | None = None,
        reaper: Callable[[], Coroutine[Any, Any, None]] | None = None,
        relay: Callable[[], Coroutine[Any, Any, None]] | None = None,
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
        self._concurrency = self._own_concurrency = concurrency
        self._moved_to: str | None = None
        self._agents = [agent for agent in (reaper, relay) if agent is not None]
        self._drain = duration(drain, field="drain", zero=True)
        self._burst = burst
        self.recycle_reason: str | None = None
        """Why this worker is recycled. None if it is not."""
        self._burst_shortage: str | None = None
        """Why a burst ends although jobs may be left. None if it does not."""
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
        self._storage_lost_data = asyncio.Event()
        self._start_cancelled, self._start_ended = asyncio.Event(), asyncio.Event()
        """Set when the worker is stopped while it starts, and when that start has then released everything."""
        callbacks = WorkerCallbacks(
            call_soon=self._call_soon,
            info=self._info,
            stop_run=self._stop_run,
            on_orders=lambda orders: self._call_soon(self._apply_orders, orders),
            is_needed=self._is_needed,
            is_ending=lambda: self._ending is not None,
            begin_again=self._begin_again,
            recycle=self.recycle,
        )
        self._parts = parts = WorkerParts(
            runtime,
            callbacks,
            owner=self.owner,
            queues=self._queues,
            concurrency=concurrency,
            supervised=supervised,
            scoreboard=scoreboard,
            recycle_policy=recycle_policy or RecyclePolicy(),
            prefetch=prefetch,
        )
        self._exchange, self._keeper, self._guard = parts.exchange, parts.keeper, parts.guard
        self._monitor, self._lifespan, self._bus = parts.monitor, parts.lifespan, parts.bus
        self._shutdown = Shutdown(parts, owner=self.owner, logger=runtime.logger)
        self.prefetch_policy = parts.prefetch_policy
        """How many jobs this worker may claim in addition to those that it runs."""

    async def start(self) -> None:
        """Begin to claim. Idempotent. A worker that was stopped cannot start again.

        Raises:
            StorageError: the storage cannot be opened, or cannot store the schedules that code declares.
            StorageMovedError: the jobs of its queues were moved to another storage.
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
        self._parts.isolated_runs.find_app()
        self._state = "starting"
        add_log_fields()
        self._log_start()
        try:
            await self._runtime.storage.open()
            await require_here(self._runtime.storage, self._queues)
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
            await self._shutdown.leave_lifespan()
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
            background, watchdog = self._parts.keeper_loop, self._parts.watchdog
            background.run(self._keep)
            if background.own_thread:
                watchdog.start()
                background.run(watchdog.watch)
            for agent in self._agents:
                background.run(agent)
        except BaseException:
            # The caller learns that the start failed, so no worker that claims without renewing may be left.
            await self.stop(force=True)
            raise

    def _log_start(self) -> None:
        names = sorted(self._runtime.tasks)
        more = f" and {len(names) - TASKS_LOGGED} more" if len(names) > TASKS_LOGGED else ""
        self._runtime.logger.info(
            "worker %s (%s) starts: tenure %s; storage %s; queues %s; concurrency %d; tasks %s%s",
            self.owner.name,
            self.owner.id,
            __version__,
            self._runtime.storage.url,
            ", ".join(self._queues),
            self._concurrency,
            ", ".join(names[:TASKS_LOGGED]) or "none",
            more,
        )

    async def idle(self) -> bool:
        """Wait until no job can start now, no run goes on, and all events have been handled; for tests.

        Return False at once if the worker stops.
        """
        while await self._exchange.idle():
            if not await self._bus.catch_up():
                return True
            # An event handler may have enqueued a job.
        return False

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
            self._shutdown.force()
        if self._main is None:
            if self._state == "starting":
                self._state = "ended"
                self._shutdown.begin_drain(drain.total_seconds())
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
            raise UsageError("run() handles signals and needs the main thread; use start() and stop() elsewhere")
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
            group.create_task(self._keep_declarations())
            if self._lifespan.lives:
                group.create_task(self._lifespan.fail())
            if self._burst:
                self._burst_shortage = await self._exchange.wait_until_empty()
                await self._parts.publisher.tried.wait()
                self._begin_to_end(0.0, "burst")

    def _call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Call a function on the event loop of this worker, in its context. Safe from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args, context=self._context)

    def _begin_again(self, place: int) -> None:
        """Begin again with a storage partition that lost its data."""
        self._bus.begin_again(place)
        self._storage_lost_data.set()

    async def _keep_declarations(self) -> None:
        """Publish the tasks, and store the declared schedules again each time the storage has lost them."""
        runtime, lost = self._runtime, self._storage_lost_data
        while True:
            wait = await self._parts.publisher.turn()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await lost.wait()
            await put_back(
                runtime.storage, runtime.schedules.values(), lost=lost, rng=runtime.rng, logger=runtime.logger
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
        self._shutdown.force()
        self._begin_to_end(0.0, "failed")

    def _loop_cancelled(self) -> None:
        """Stop, because every task of this worker on its loop was cancelled."""
        how = "a handler" if self._guard.known else "code of no known handler"
        self._runtime.logger.critical(
            "worker %s failed: %s cancelled every task of its event loop; stopping it", self.owner.name, how
        )
        self._shutdown.force()
        if self._main is not None:
            self._main.cancel()
        if self._guard.known:
            self._begin_to_end(0.0, "failed")
        # Otherwise the loop itself may be ending. Then no lease is renewed any more, as in a crash, and `run` stops it.

    async def _end(self, drain: float, reason: str) -> None:
        try:
            await self._shutdown.run(self._main, drain, reason)
        finally:
            self._state = "ended"

    async def _wait_for_cancelled_start(self) -> None:
        """Wait until the worker is stopped while it starts, and its drain time is over."""
        await self._start_cancelled.wait()
        await self._shutdown.drained()

    def _is_needed(self) -> bool:
        """Return True if a task is left that runs the held jobs or hands them back. Called from the keeper's thread."""
        if self._loop is None or self._main is None or self._loop.is_closed():
            return False
        return not self._main.done() or self._ending is not None

    def _stop_run(self, run: ActiveRun, reason: StopReason, detail: str | None) -> None:
        """Stop a run from the keeper's thread."""
        self._call_soon(self._exchange.stop_run, run, reason, detail)
        if (make_end := run.stop_isolated) is not None:
            # This reaches the isolated process even if the loop is blocked. The loop must know first, because it next
            # learns that the process ended.
            make_end(reason, detail)

    def _apply_orders(self, orders: tuple[str, ...]) -> None:
        """Apply an operator's orders: `orders` holds all that are in force."""
        if (quiet := "quiet" in orders) != self._exchange.quiet:
            done = "claims no more" if quiet else "claims again"
            self._runtime.logger.info("worker %s %s by operator request", self.owner.name, done)
            self._exchange.set_quiet(quiet)
        ordered = [int(order.removeprefix(CONCURRENCY)) for order in orders if order.startswith(CONCURRENCY)]
        if (concurrency := ordered[0] if ordered else self._own_concurrency) != self._concurrency:
            what = "worker %s runs %d jobs at once by operator request"
            self._runtime.logger.info(what, self.owner.name, concurrency)
            self._concurrency = concurrency
            self._exchange.set_concurrency(concurrency)
        outdated = next((order.removeprefix(OUTDATED) for order in orders if order.startswith(OUTDATED)), None)
        moved_to = next((order.removeprefix(MOVED) for order in orders if order.startswith(MOVED)), None)
        if moved_to is not None and moved_to != self._moved_to:
            what = "worker %s claims no more: the jobs of %s were moved to %s; start workers there"
            self._runtime.logger.error(what, self.owner.name, self._runtime.storage.url, moved_to)
        self._moved_to = moved_to
        # A worker that is being recycled gives its runs all the time that they need. `stop` ends that.
        if ("stop" in orders or outdated is not None) and self._ending is None and not self.ended:
            if outdated is None:
                self._runtime.logger.info("worker %s stops by operator request", self.owner.name)
            else:
                self._runtime.logger.error("worker %s stops: SchemaMismatchError: %s", self.owner.name, outdated)
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
            tasks=self._parts.known_tasks.versions,
            unstopped=self._exchange.unstopped,
            why=self.recycle_reason or self._parts.recycler.descriptors.why or "",
            alarm=self._parts.partitions.alarm,
        )
