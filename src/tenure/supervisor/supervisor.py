"""The supervisor: runs worker processes, replaces those that end, and recovers the jobs of those that crash.

    supervisor ──spawn──► child (own session) ──hello, url … goodbye──► supervisor
        │                   │
        └──── waitpid ◄── exit ───► kill what the child had started, reclaim(owner), decide, settle, start another

    first SIGTERM: SIGTERM to each child, which drains          second SIGTERM: a message to each child to leave at once
    SIGHUP, SIGQUIT: as the first SIGTERM, however often they come
    drain + 4.25 s: kill the children that still run            drain + 4.75 s: leave unrecovered jobs to the reapers

The supervisor runs no user code. A child that sends goodbye and exits with status 0 has handed back its jobs; every
other end is a crash. The jobs of a crashed child can be claimed again within milliseconds, not after a lease. A problem
with one child, even a process that cannot be started, is retried later and does not affect the other children.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random

from tenure.clock import Clock, SystemClock, entropy
from tenure.core.duration import Duration, duration
from tenure.core.exponential_delay import ExponentialDelay
from tenure.core.job import Owner
from tenure.errors import UsageError
from tenure.ids import owner_id
from tenure.metrics import MetricsRegistry
from tenure.processes.exit_status import OomKills
from tenure.processes.process import reap_orphans
from tenure.storage.protocol import RenewRequest, Storage
from tenure.storage.urls import locate
from tenure.supervisor.child import ChildProcess, KillReason
from tenure.supervisor.monitor import ClaimWatchdog, ExternalRenewer
from tenure.supervisor.overview import SNAPSHOT_INTERVAL, Overview
from tenure.supervisor.recovery import CrashRecovery, DeadWorker
from tenure.supervisor.reload import Sources
from tenure.supervisor.systemd import Systemd
from tenure.waiting import first
from tenure.worker.stop_signals import SIGNALS, draining
from tenure.worker.supervisor_messages import ChildMessage, ChildReady, ChildRetiring, ChildStarted
from tenure.worker.worker_metrics import WorkerMetrics

KILL_AFTER_DRAIN = 4.25
"""Seconds after the drain until a child that still runs is killed; a healthy child exits after about 4."""

KILL_AFTER_FORCED_STOP = 2.5
"""Seconds until a child is killed after the message to leave at once."""

RECOVERY_AFTER_KILLS = 0.5
"""Seconds after these kills until recovery is abandoned. In all, the supervisor exits 5 s after the drain."""

RECOVERY_TIMEOUT = 10.0
"""Seconds to recover the jobs of a dead child; after that the reapers recover them, one lease later."""

STOPPING_RECOVERY_TIMEOUT = 0.5
"""Seconds to recover the jobs of a child that dies while the supervisor is stopping."""

CLOSE_TIMEOUT = 0.3
"""Seconds that the health server gets to close, and then the supervisor's own storage."""

RESTART_DELAY = ExponentialDelay(0.1, 30.0)
"""The delay before a dead child is replaced; it grows with each early death: soon after the start, no job charged.

A death for which jobs are charged does not count as early: such deaths end when the jobs run out of stalls, and the
other jobs must not wait for that. A death for which no job is charged could repeat without end.
"""

STABLE_AFTER = 10.0
"""A child that lived longer than these seconds is replaced at once, and the growing delay starts again."""

USAGE = 2
REFUSED = (1, USAGE)
"""Exit statuses of a child that cannot work because of its storage, app or options; it prints the reason to stderr."""

RELOAD_INTERVAL = 0.5
"""Seconds between two checks of the code for changes (`--reload`)."""

HANG_TOLERANCE = 10.0
"""Seconds beyond its `max_block` after which a child that hangs and was not killed stops the pings to systemd."""

TRIAL_TIMEOUT = 5.0
"""Seconds that the first child runs alone, unless it says hello earlier: a problem of all children is logged once."""


@dataclass(frozen=True)
class ChildHistory:
    """How one child ended, and after how many seconds.

    `clean_exit`: it said goodbye and exited with status 0. `worked`: it had begun to claim jobs. `dismissed`: an
    operator ordered it to stop.
    """

    pid: int
    status: int | None
    lifetime: float
    clean_exit: bool
    worked: bool = False
    dismissed: bool = False
    recycle_reason: str | None = None
    """Why the child asks to be replaced; None if it does not ask."""
    outdated: bool = False
    """True if the supervisor stopped it because its code had changed."""
    charged_jobs: int | None = 0
    """How many of its jobs may be charged for its death; None if that is not known."""

    @property
    def early(self) -> bool:
        """Return True if it died soon and no job is charged for its death, so that the next child may die likewise."""
        return self.lifetime <= STABLE_AFTER and self.charged_jobs == 0

    @property
    def refused(self) -> bool:
        """Return True if the child itself reported that it cannot work."""
        return not self.worked and self.status in REFUSED


class Supervisor:
    """Keeps a number of worker processes running until it is asked to stop."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        processes: int,
        drain: timedelta,
        burst: bool,
        trial: float,
        sources: Sources | None,
        systemd: Systemd | None,
        clock: Clock,
        rng: Random,
        logger: logging.Logger,
    ) -> None:
        if processes < 1:
            raise UsageError(f"--processes {processes} must be 1 or more")
        self._command = list(command)
        self._processes = processes
        self._drain = drain.total_seconds()
        self._burst = burst
        self._trial = trial
        self._sources = sources
        self._systemd = systemd
        self._changed = asyncio.Event()
        """Set when the code changes; a new event then takes its place."""
        self._clock = clock
        self._rng = rng
        self._logger = logger
        host = socket.gethostname()
        self._owner = Owner(owner_id(rng), f"supervisor {host}:{os.getpid()}", host, os.getpid())
        self._children: set[ChildProcess] = set()
        self._oom_kills = OomKills()
        registry = MetricsRegistry()
        self._metrics = WorkerMetrics(registry)
        self._recovery = CrashRecovery(self._owner, clock=clock, rng=rng, logger=logger, metrics=registry)
        self.overview = Overview(registry, clock)
        self._stopping = asyncio.Event()
        self._forced = asyncio.Event()
        self._storage: Storage | None = None
        self._first_hello = asyncio.Event()
        self._any_worked = False
        """True once any child has begun to claim jobs."""
        self._status = 0

    async def run(self) -> int:
        """Run the children until SIGTERM or SIGINT; return the exit status."""
        loop = asyncio.get_running_loop()
        also = draining()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._stop)
        for number in also:
            loop.add_signal_handler(number, self._drain_children)
        # An ignored SIGCHLD is inherited, and the kernel then discards the exit statuses of children.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            async with asyncio.TaskGroup() as group:
                places = [group.create_task(self._run_place(number)) for number in range(self._processes)]
                others = [
                    group.create_task(self._enforce_stop_limits(places)),
                    group.create_task(self._take_snapshots()),
                ]
                if self._sources is not None:
                    others.append(group.create_task(self._reload(self._sources)))
                if self._systemd is not None and self._systemd.watchdog is not None:
                    others.append(group.create_task(self._ping_systemd(self._systemd, self._systemd.watchdog / 2)))
                await asyncio.wait(places)
                for other in others:
                    other.cancel()
        finally:
            if self._storage is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CLOSE_TIMEOUT):
                        await self._storage.close()
            for number in (*SIGNALS, *also):
                loop.remove_signal_handler(number)
        return self._status

    async def _take_snapshots(self) -> None:
        while True:
            self.overview.take_snapshot(self._children, stopping=self._stopping.is_set())
            if os.getpid() == 1:
                # As the first process of a container, we inherit orphans that handlers have started, and reap them.
                reap_orphans({child.process.pid for child in self._children})
            await asyncio.sleep(SNAPSHOT_INTERVAL)

    def _drain_children(self) -> None:
        """Let the children drain. Repeated signals of this kind change nothing."""
        if not self._stopping.is_set():
            self._stop()

    def _stop(self) -> None:
        """Stop the children: the first signal lets them drain, the second makes them leave at once."""
        if self._stopping.is_set():
            self._forced.set()
        if self._systemd is not None and not self._stopping.is_set():
            self._systemd.stopping()
        self._stopping.set()
        self.overview.take_snapshot(self._children, stopping=True)
        for child in self._children:
            self._stop_child(child)

    def _stop_child(self, child: ChildProcess) -> None:
        if self._forced.is_set():
            child.stop_now()
        else:
            child.process.send_signal(signal.SIGTERM)

    async def _enforce_stop_limits(self, places: "list[asyncio.Task[None]]") -> None:
        """Enforce the time limits of a stop: first kill the children that still run, then abandon recovery."""
        await self._stopping.wait()
        asked_at = self._clock.uptime()
        await first(self._forced.wait(), within=self._drain + KILL_AFTER_DRAIN - KILL_AFTER_FORCED_STOP)
        await asyncio.sleep(KILL_AFTER_FORCED_STOP)
        for child in self._children:
            self._kill_if_running(child, asked_at)
        await asyncio.sleep(RECOVERY_AFTER_KILLS)
        for place in places:
            place.cancel()

    def _kill_if_running(self, child: ChildProcess, asked_at: float) -> None:
        """Kill a child that was asked to leave and still runs."""
        if child.process.exit is None:
            self._logger.error("worker %d did not stop in time; killing it", child.process.pid)
            child.kill(KillReason("leaving", self._clock.uptime() - asked_at, 0.0))

    async def _reload(self, sources: Sources) -> None:
        """Replace the children when the code has changed, each as soon as it has drained."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(RELOAD_INTERVAL)
            found = await asyncio.to_thread(sources.changed)
            if not found or self._stopping.is_set():
                continue
            names = ", ".join(path.name for path in found[:3]) + ", …" * (len(found) > 3)
            self._logger.info("%s changed; replacing the workers", names)
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
            for child in self._children:
                child.outdated = True
                child.process.send_signal(signal.SIGTERM)
                loop.call_later(self._drain + KILL_AFTER_DRAIN, self._kill_if_running, child, self._clock.uptime())

    async def _ping_systemd(self, systemd: Systemd, every: float) -> None:
        """Ping systemd's watchdog, unless a child hangs that should have been killed for it."""
        while True:
            if not any(child.hangs(self._clock.uptime(), HANG_TOLERANCE) for child in self._children):
                systemd.alive()
            await asyncio.sleep(every)

    async def _run_place(self, number: int) -> None:
        """Keep one place filled: start a child, recover its jobs when it dies, start the next one."""
        if number:
            await first(self._first_hello.wait(), self._stopping.wait(), within=self._trial)
        async with asyncio.TaskGroup() as place_tasks:
            await self._run_children(place_tasks)

    async def _run_children(self, place_tasks: asyncio.TaskGroup) -> None:
        """Run one child after the other; a retired child finishes its runs while its successor already works."""
        early_deaths = 0
        retired: asyncio.Task[ChildHistory | None] | None = None
        while not self._stopping.is_set():
            changed, retiring = self._changed, asyncio.Event()
            current = place_tasks.create_task(self._try_child(retiring))
            await first(asyncio.wait({current}), retiring.wait())
            if not current.done() and retired is not None:
                # Each place has at most one retired child, because each child occupies memory.
                await asyncio.wait({current, retired}, return_when=asyncio.FIRST_COMPLETED)
            if not current.done():
                early_deaths, retired = 0, current
                continue
            history = current.result()
            if self._stopping.is_set() or (history is not None and self._needs_no_replacement(history)):
                return
            if history is not None and (history.recycle_reason is not None or history.outdated):
                early_deaths = 0
                continue
            early_deaths = early_deaths + 1 if history is None or history.early else 0
            if early_deaths or (history is not None and history.lifetime <= STABLE_AFTER):
                # With --reload, a usage error is not retried before the code changes.
                ever = history is not None and history.status == USAGE and self._sources is not None
                rest = None if ever else RESTART_DELAY.rest(max(1, early_deaths), self._rng)
                await first(self._stopping.wait(), changed.wait(), within=rest)

    def _needs_no_replacement(self, history: ChildHistory) -> bool:
        """Return True if a child needs no replacement although no stop was requested."""
        if history.outdated:
            return False
        if history.refused and self._sources is not None:
            self._logger.info("retrying when the code changes, or after a delay")
            return False
        if history.refused and not self._any_worked:
            # The child has printed the reason. Our exit status is that of a worker without a supervisor.
            self._status = history.status or 0
            self._stop()
            return True
        if history.clean_exit and history.dismissed:
            self._logger.info("worker %d stopped because it was ordered to; not restarting", history.pid)
            return True
        if history.recycle_reason is not None:
            return False
        if history.clean_exit and not self._burst:
            self._logger.warning("worker %d stopped without a request; starting another", history.pid)
        return history.clean_exit and self._burst

    async def _try_child(self, retiring: asyncio.Event) -> ChildHistory | None:
        """Run one child to its end; return None if it could not be started, or if its end is not known.

        `retiring` is set when the child stops claiming but continues its runs.
        """
        try:
            return await self._run_child(retiring)
        except Exception as error:
            # For example, no memory, process or descriptor is left. That passes, and does not affect other children.
            self._logger.error("cannot run a worker process, retrying: %r", error)
            return None

    async def _run_child(self, retiring: asyncio.Event) -> ChildHistory:
        """Run one child from its start until its jobs are recovered."""

        def on_message(message: ChildMessage) -> None:
            if isinstance(message, ChildRetiring):
                pid = child.process.pid
                self._logger.info("worker %d is recycled; starting its replacement: %s", pid, message.why)
                retiring.set()
            self._handle_message(message)

        child = ChildProcess.start(self._command, owner_id(self._rng), siblings=self._processes > 1, clock=self._clock)
        self._children.add(child)
        watch = asyncio.create_task(self._watch(child))
        try:
            if self._stopping.is_set():
                # A child that is still starting obeys only this signal.
                child.process.send_signal(signal.SIGTERM)
                self._stop_child(child)
            exit_info = await child.wait(on_message)
            died_at, uptime = self._clock.now(), self._clock.uptime()
            for_memory, (workplace, runs) = self._oom_kills.explains(exit_info, uptime), child.last_state(uptime)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            self._children.discard(child)
            self.overview.keep_metrics(child)
            child.clean_up()
        lived = uptime - child.started_at
        parted = exit_info.status == 0 and child.said_goodbye
        history = ChildHistory(
            pid=child.process.pid,
            status=exit_info.status,
            lifetime=lived,
            clean_exit=parted,
            worked=child.working,
            dismissed=child.dismissed,
            recycle_reason=child.recycle_reason if parted else None,
            outdated=child.outdated,
        )
        if history.refused:
            if self._any_worked and not history.outdated and not self._stopping.is_set():
                self._logger.error("worker %d ended (%s) before it claimed jobs", history.pid, exit_info)
        elif child.hello is not None and not history.clean_exit:
            dead = DeadWorker(
                child.owner_id,
                history.pid,
                exit_info,
                died_at,
                kill_reason=child.kill_reason if exit_info.signal == signal.SIGKILL else None,
                oom_killed=for_memory,
                workplace=workplace,
                runs=runs,
            )
            return replace(history, charged_jobs=await self._recover(dead, child.hello))
        elif child.hello is None and not history.outdated and not self._stopping.is_set():
            self._logger.error("worker %d ended (%s) before it was ready", history.pid, exit_info)
        if self._storage is not None:
            # Other jobs may wait for the exclusive rights of runs that the child had stopped.
            within = RECOVERY_TIMEOUT if runs.stopped and not self._stopping.is_set() else STOPPING_RECOVERY_TIMEOUT
            await self._recovery.clean_up(
                child.owner_id, history.pid, self._storage, within=within, worked=history.worked, runs=runs
            )
        return history

    async def _watch(self, child: ChildProcess) -> None:
        """Watch a child from its hello on, until cancelled."""
        pid = child.process.pid
        worker = Owner(child.owner_id, f"{self._owner.host}:{pid}", self._owner.host, pid)
        async with asyncio.TaskGroup() as group:
            # If an earlier child named the storage, this call runs before the new child can have claimed a job.
            group.create_task(self._reserve_recovery(child, worker))
            await self._watch_after_hello(child, worker)

    async def _watch_after_hello(self, child: ChildProcess, worker: Owner) -> None:
        await child.hello_received.wait()
        hello = child.hello
        if hello is None or self._storage is None:
            # The storage is not known; this is logged when the child dies.
            return
        renewer = ExternalRenewer(
            self._storage,
            worker,
            child.scoreboard,
            child.process,
            beat=hello.beat,
            max_block=hello.max_block,
            clock=self._clock,
            rng=self._rng,
            logger=self._logger,
            read_stacks=lambda: child.stacks.read_from(child.process),
            kill=child.kill,
            metrics=self._metrics,
        )
        claim_watchdog = ClaimWatchdog(
            self._storage,
            self._owner,
            worker,
            child.scoreboard,
            queues=hello.serves or hello.queues,
            max_block=hello.max_block,
            clock=self._clock,
            logger=self._logger,
            read_stacks=lambda: child.stacks.read_from(child.process),
            kill=child.kill,
        )

        async def watch() -> float:
            wait = await renewer.turn()
            self._oom_kills.look(self._clock.uptime())
            return wait

        async with asyncio.TaskGroup() as group:
            group.create_task(_repeat(watch))
            group.create_task(_repeat(claim_watchdog.turn))

    async def _reserve_recovery(self, child: ChildProcess, worker: Owner) -> None:
        """Reserve the recovery of a child for this supervisor: reapers know neither its exit status nor its runs."""
        if self._storage is None:
            await child.hello_received.wait()
        tries, storage = 0, self._storage
        if storage is None:
            return
        while True:
            try:
                async with asyncio.timeout(RECOVERY_TIMEOUT):
                    await storage.renew(RenewRequest(worker, guarding=True))
            except Exception:
                # The child's own calls fail as well, and the child logs that.
                tries += 1
                await asyncio.sleep(RESTART_DELAY.rest(tries, self._rng))
            else:
                return

    def _handle_message(self, message: ChildMessage) -> None:
        if isinstance(message, ChildReady) and not self._any_worked:
            self._any_worked = True
            if self._systemd is not None:
                self._systemd.ready()
        if isinstance(message, ChildStarted):
            self._first_hello.set()
        if self._storage is None and isinstance(message, ChildStarted):
            # Import the driver now: the import takes longer than a recovery, which must be quick. An error here is
            # logged by the recovery.
            with contextlib.suppress(Exception):
                self._storage = locate(message.url)
        if isinstance(message, ChildStarted):
            self.overview.set_app_info(message)
            self.overview.storage = self._storage

    async def _recover(self, worker: DeadWorker, hello: ChildStarted) -> int | None:
        try:
            storage = self._storage = self._storage or locate(hello.url)
        except UsageError as error:
            self._logger.error(
                "worker %d %s; its jobs cannot be recovered: %s", worker.pid, worker.evidence.ending.how, error
            )
            return 0
        return await self._recovery.recover(
            worker, storage, within=STOPPING_RECOVERY_TIMEOUT if self._stopping.is_set() else RECOVERY_TIMEOUT
        )


def supervise(
    command: Sequence[str],
    *,
    processes: int,
    drain: Duration,
    burst: bool = False,
    trial: float = TRIAL_TIMEOUT,
    sources: Sources | None = None,
    systemd: Systemd | None = None,
    serve: Callable[[Overview], AbstractAsyncContextManager[object]] | None = None,
    logger: logging.Logger | None = None,
) -> int:
    """Run a number of worker processes until SIGTERM or SIGINT, and return the exit status.

    `command` starts one child, which connects by `SupervisorLink.from_environment`. `drain` is the children's drain
    time. A child that has not exited 4.25 s after its drain is killed, and the supervisor exits 5 s after the drain.
    A child that ends is replaced; with `burst`, a child that said goodbye is not. The first child runs alone until it
    says hello, for at most `trial` seconds. If a child exits with status 1 or 2 before any child has worked, the
    supervisor stops with that status. `serve` returns the health server, which runs as long as the supervisor does.
    When `sources` change, the children are replaced. `systemd` is notified of readiness, stop and health.

    Raises:
        UsageError: processes is below 1, or drain is not a duration.
    """
    supervisor = Supervisor(
        command,
        processes=processes,
        drain=duration(drain, field="drain", zero=True),
        burst=burst,
        trial=trial,
        sources=sources,
        systemd=systemd,
        clock=SystemClock(),
        rng=entropy(),
        logger=logger or logging.getLogger("tenure.supervisor"),
    )

    async def run() -> int:
        async with contextlib.AsyncExitStack() as serving:
            if serve is not None:
                await serving.enter_async_context(serve(supervisor.overview))
            try:
                return await supervisor.run()
            finally:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CLOSE_TIMEOUT):
                        await serving.aclose()

    # The Runner is never closed: closing waits for threads, and a storage that hangs may hold one.
    return asyncio.Runner().run(run())


async def _repeat(turn: Callable[[], Awaitable[float]]) -> None:
    while True:
        wait = await turn()
        await asyncio.sleep(wait)
