"""The supervisor: runs worker processes, replaces those that end, and recovers the jobs of those that crash.

    supervisor ──spawn──► child (own session) ──hello, url … goodbye──► supervisor
        │                   │
        └──── waitpid ◄── death ──► kill what the child had started, reclaim(owner), decide, settle, start another

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
from tenure.processes.process import bury_strangers
from tenure.storage.protocol import RenewRequest, Storage
from tenure.storage.urls import locate
from tenure.supervisor.child import ChildProcess
from tenure.supervisor.claim_watchdog import ClaimWatchdog
from tenure.supervisor.external_renewer import ExternalRenewer
from tenure.supervisor.kill_reason import KillReason
from tenure.supervisor.overview import EVERY, Overview
from tenure.supervisor.recovery import CrashRecovery, DeadWorker
from tenure.supervisor.reload import Sources
from tenure.supervisor.systemd import Systemd
from tenure.waiting import first
from tenure.worker.stop_signals import SIGNALS, draining
from tenure.worker.supervisor_messages import ChildMessage, ChildReady, ChildRetiring, ChildStarted
from tenure.worker.worker_metrics import WorkerMetrics

STRAGGLERS = 4.25
"""Seconds after the drain until a child that still runs is killed; a healthy child exits after about 4."""

HASTY = 2.5
"""Seconds until a child is killed after the message to leave at once."""

LAST = 0.5
"""Seconds after these kills until recovery is abandoned. In all, the supervisor exits 5 s after the drain."""

BURIAL = 10.0
"""Seconds to recover the jobs of a dead child; after that the reapers recover them, one lease later."""

FAREWELL = 0.5
"""Seconds to recover the jobs of a child that dies while the supervisor is stopping."""

CLOSING = 0.3
"""Seconds that the health server gets to close, and then the supervisor's own storage."""

PATIENCE = ExponentialDelay(0.1, 30.0)
"""The delay before a dead child is replaced; it grows with each early death: soon after the start, no job charged.

A death for which jobs are charged does not count as early: such deaths end when the jobs run out of stalls, and the
other jobs must not wait for that. A death for which no job is charged could repeat without end.
"""

SETTLED_IN = 10.0
"""A child that lived longer than these seconds is replaced at once, and the growing delay starts again."""

USAGE = 2
REFUSED = (1, USAGE)
"""Exit statuses of a child that cannot work because of its storage, app or options; it prints the reason to stderr."""

LOOK = 0.5
"""Seconds between two checks of the code for changes (`--reload`)."""

HANGING = 10.0
"""Seconds beyond its `max_block` after which a child that hangs and was not killed stops the pings to systemd."""

TRIAL = 5.0
"""Seconds that the first child runs alone, unless it says hello earlier: a problem of all children is logged once."""


@dataclass(frozen=True)
class ChildHistory:
    """How one child ended, and after how many seconds.

    `parted`: it said goodbye and exited with status 0. `worked`: it had begun to claim jobs. `dismissed`: it left by
    an operator's order.
    """

    pid: int
    status: int | None
    lived: float
    parted: bool
    worked: bool = False
    dismissed: bool = False
    recycled: str | None = None
    """Why the child asks to be replaced; None if it does not ask."""
    outdated: bool = False
    """True if the supervisor stopped it because its code had changed."""
    jobs: int | None = 0
    """How many of its jobs may be charged for its death; None if that is not known."""

    @property
    def early(self) -> bool:
        """Return True if it died soon and no job is charged for its death, so that the next child may die likewise."""
        return self.lived <= SETTLED_IN and self.jobs == 0

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
        self._wards: set[ChildProcess] = set()
        self._oom_kills = OomKills()
        figures = MetricsRegistry()
        self._tally = WorkerMetrics(figures)
        self._burial = CrashRecovery(self._owner, clock=clock, rng=rng, logger=logger, figures=figures)
        self.overview = Overview(figures, clock)
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._storage: Storage | None = None
        self._greeted = asyncio.Event()
        self._works = False
        """True once any child has begun to claim jobs."""
        self._status = 0

    async def run(self) -> int:
        """Run the children until SIGTERM or SIGINT; return the exit status."""
        loop = asyncio.get_running_loop()
        also = draining()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._stop)
        for number in also:
            loop.add_signal_handler(number, self._let_drain)
        # An ignored SIGCHLD is inherited, and the kernel then discards the exit statuses of children.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            async with asyncio.TaskGroup() as crew:
                keepers = [crew.create_task(self._keep(number)) for number in range(self._processes)]
                others = [crew.create_task(self._bring_to_an_end(keepers)), crew.create_task(self._look())]
                if self._sources is not None:
                    others.append(crew.create_task(self._reload(self._sources)))
                if self._systemd is not None and self._systemd.watchdog is not None:
                    others.append(crew.create_task(self._live_on(self._systemd, self._systemd.watchdog / 2)))
                await asyncio.wait(keepers)
                for other in others:
                    other.cancel()
        finally:
            if self._storage is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CLOSING):
                        await self._storage.close()
            for number in (*SIGNALS, *also):
                loop.remove_signal_handler(number)
        return self._status

    async def _look(self) -> None:
        while True:
            self.overview.look(self._wards, stopping=self._stopping.is_set())
            if os.getpid() == 1:
                # As the first process of a container, we inherit orphans that handlers have started, and reap them.
                bury_strangers({ward.process.pid for ward in self._wards})
            await asyncio.sleep(EVERY)

    def _let_drain(self) -> None:
        """Let the children drain. Repeated signals of this kind change nothing."""
        if not self._stopping.is_set():
            self._stop()

    def _stop(self) -> None:
        """Stop the children: the first signal lets them drain, the second makes them leave at once."""
        if self._stopping.is_set():
            self._hurried.set()
        if self._systemd is not None and not self._stopping.is_set():
            self._systemd.stopping()
        self._stopping.set()
        self.overview.look(self._wards, stopping=True)
        for ward in self._wards:
            self._pass_on(ward)

    def _pass_on(self, ward: ChildProcess) -> None:
        if self._hurried.is_set():
            ward.hurry()
        else:
            ward.process.send(signal.SIGTERM)

    async def _bring_to_an_end(self, keepers: "list[asyncio.Task[None]]") -> None:
        """Enforce the time limits of a stop: first kill the children that still run, then abandon recovery."""
        await self._stopping.wait()
        told_at = self._clock.uptime()
        await first(self._hurried.wait(), within=self._drain + STRAGGLERS - HASTY)
        await asyncio.sleep(HASTY)
        for ward in self._wards:
            self._drive_out(ward, told_at)
        await asyncio.sleep(LAST)
        for keeper in keepers:
            keeper.cancel()

    def _drive_out(self, ward: ChildProcess, told_at: float) -> None:
        """Kill a child that was asked to leave and still runs."""
        if ward.process.death is None:
            self._logger.error("worker %d would not stop and is killed", ward.process.pid)
            ward.kill(KillReason("leaving", self._clock.uptime() - told_at, 0.0))

    async def _reload(self, sources: Sources) -> None:
        """Replace the children when the code has changed, each as soon as it has drained."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK)
            found = await asyncio.to_thread(sources.changed)
            if not found or self._stopping.is_set():
                continue
            names = ", ".join(path.name for path in found[:3]) + ", …" * (len(found) > 3)
            self._logger.info("%s changed: the workers are replaced", names)
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
            for ward in self._wards:
                ward.outdated = True
                ward.process.send(signal.SIGTERM)
                loop.call_later(self._drain + STRAGGLERS, self._drive_out, ward, self._clock.uptime())

    async def _live_on(self, systemd: Systemd, every: float) -> None:
        """Ping systemd's watchdog, unless a child hangs that should have been killed for it."""
        while True:
            if not any(ward.hangs(self._clock.uptime(), HANGING) for ward in self._wards):
                systemd.alive()
            await asyncio.sleep(every)

    async def _keep(self, number: int) -> None:
        """Keep one place filled: start a child, recover its jobs when it dies, start the next one."""
        if number:
            await first(self._greeted.wait(), self._stopping.wait(), within=self._trial)
        async with asyncio.TaskGroup() as lives:
            await self._succeed(lives)

    async def _succeed(self, lives: asyncio.TaskGroup) -> None:
        """Run one child after the other; a retired child finishes its runs while its successor already works."""
        deaths = 0
        retired: asyncio.Task[ChildHistory | None] | None = None
        while not self._stopping.is_set():
            changed, retiring = self._changed, asyncio.Event()
            living = lives.create_task(self._life(retiring))
            await first(asyncio.wait({living}), retiring.wait())
            if not living.done() and retired is not None:
                # Each place has at most one retired child, because each child occupies memory.
                await asyncio.wait({living, retired}, return_when=asyncio.FIRST_COMPLETED)
            if not living.done():
                deaths, retired = 0, living
                continue
            life = living.result()
            if self._stopping.is_set() or (life is not None and self._over(life)):
                return
            if life is not None and (life.recycled is not None or life.outdated):
                deaths = 0
                continue
            deaths = deaths + 1 if life is None or life.early else 0
            if deaths or (life is not None and life.lived <= SETTLED_IN):
                # With --reload, a usage error is not retried before the code changes.
                ever = life is not None and life.status == USAGE and self._sources is not None
                rest = None if ever else PATIENCE.rest(max(1, deaths), self._rng)
                await first(self._stopping.wait(), changed.wait(), within=rest)

    def _over(self, life: ChildHistory) -> bool:
        """Return True if a child needs no replacement although no stop was requested."""
        if life.outdated:
            return False
        if life.refused and self._sources is not None:
            self._logger.info("the next worker is started when its code changes, or in a while")
            return False
        if life.refused and not self._works:
            # The child has printed the reason. Our exit status is that of a worker without a supervisor.
            self._status = life.status or 0
            self._stop()
            return True
        if life.parted and life.dismissed:
            self._logger.info("worker %d has left: an operator has ordered it, so none follows", life.pid)
            return True
        if life.recycled is not None:
            return False
        if life.parted and not self._burst:
            self._logger.warning("worker %d left though nobody told us to stop; another follows", life.pid)
        return life.parted and self._burst

    async def _life(self, retiring: asyncio.Event) -> ChildHistory | None:
        """Run one child to its end; return None if it could not be started, or if its end is not known.

        `retiring` is set when the child stops claiming but continues its runs.
        """
        try:
            return await self._live(retiring)
        except Exception as error:
            # For example, no memory, process or descriptor is left. That passes, and does not affect other children.
            self._logger.error("cannot keep a worker alive, trying again: %r", error)
            return None

    async def _live(self, retiring: asyncio.Event) -> ChildHistory:
        """Run one child from its start until its jobs are recovered."""

        def heard(word: ChildMessage) -> None:
            if isinstance(word, ChildRetiring):
                pid = ward.process.pid
                self._logger.info("worker %d claims no more, and is replaced by another: %s", pid, word.why)
                retiring.set()
            self._heard(word)

        ward = ChildProcess.started(self._command, owner_id(self._rng), siblings=self._processes > 1, clock=self._clock)
        self._wards.add(ward)
        watch = asyncio.create_task(self._watch(ward))
        try:
            if self._stopping.is_set():
                # A child that is still starting obeys only this signal.
                ward.process.send(signal.SIGTERM)
                self._pass_on(ward)
            death = await ward.ended(heard)
            died_at, uptime = self._clock.now(), self._clock.uptime()
            for_memory, (workplace, runs) = self._oom_kills.took(death, uptime), ward.remains(uptime)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            self._wards.discard(ward)
            self.overview.gone(ward)
            ward.clear_away()
        lived = uptime - ward.born_at
        parted = death.status == 0 and ward.parted
        life = ChildHistory(
            pid=ward.process.pid,
            status=death.status,
            lived=lived,
            parted=parted,
            worked=ward.working,
            dismissed=ward.dismissed,
            recycled=ward.recycled if parted else None,
            outdated=ward.outdated,
        )
        if life.refused:
            if self._works and not life.outdated and not self._stopping.is_set():
                self._logger.error("worker %d ended (%s) before it was at work", life.pid, death)
        elif ward.hello is not None and not life.parted:
            dead = DeadWorker(
                ward.incarnation,
                life.pid,
                death,
                died_at,
                killed_for=ward.killed_for if death.signal == signal.SIGKILL else None,
                for_memory=for_memory,
                workplace=workplace,
                runs=runs,
            )
            return replace(life, jobs=await self._bury(dead, ward.hello))
        elif ward.hello is None and not life.outdated and not self._stopping.is_set():
            self._logger.error("worker %d ended (%s) before it was ready", life.pid, death)
        if self._storage is not None:
            # Other jobs may wait for the exclusive rights of runs that the child had stopped.
            within = BURIAL if runs.stopped and not self._stopping.is_set() else FAREWELL
            await self._burial.part(
                ward.incarnation, life.pid, self._storage, within=within, worked=not life.refused, runs=runs
            )
        return life

    async def _watch(self, ward: ChildProcess) -> None:
        """Watch a child from its hello on, until cancelled."""
        pid = ward.process.pid
        worker = Owner(ward.incarnation, f"{self._owner.host}:{pid}", self._owner.host, pid)
        async with asyncio.TaskGroup() as crew:
            # If an earlier child named the storage, this call runs before the new child can have claimed a job.
            crew.create_task(self._guard(ward, worker))
            await self._watch_as(ward, worker)

    async def _watch_as(self, ward: ChildProcess, worker: Owner) -> None:
        await ward.greeted.wait()
        hello = ward.hello
        if hello is None or self._storage is None:
            # The storage is not known; this is logged when the child dies.
            return
        watcher = ExternalRenewer(
            self._storage,
            worker,
            ward.slate,
            ward.process,
            beat=hello.beat,
            max_block=hello.max_block,
            clock=self._clock,
            rng=self._rng,
            logger=self._logger,
            ask=lambda: ward.stacks.ask(ward.process),
            condemn=ward.kill,
            tally=self._tally,
        )
        healer = ClaimWatchdog(
            self._storage,
            self._owner,
            worker,
            ward.slate,
            queues=hello.serves or hello.queues,
            max_block=hello.max_block,
            clock=self._clock,
            logger=self._logger,
            ask=lambda: ward.stacks.ask(ward.process),
            condemn=ward.kill,
        )

        async def watch() -> float:
            wait = await watcher.turn()
            self._oom_kills.look(self._clock.uptime())
            return wait

        async with asyncio.TaskGroup() as crew:
            crew.create_task(_again(watch))
            crew.create_task(_again(healer.turn))

    async def _guard(self, ward: ChildProcess, worker: Owner) -> None:
        """Reserve the recovery of a child for this supervisor: reapers know neither its exit status nor its runs."""
        if self._storage is None:
            await ward.greeted.wait()
        tries, storage = 0, self._storage
        if storage is None:
            return
        while True:
            try:
                async with asyncio.timeout(BURIAL):
                    await storage.renew(RenewRequest(worker, guarding=True))
            except Exception:
                # The child's own calls fail as well, and the child logs that.
                tries += 1
                await asyncio.sleep(PATIENCE.rest(tries, self._rng))
            else:
                return

    def _heard(self, word: ChildMessage) -> None:
        if isinstance(word, ChildReady) and not self._works:
            self._works = True
            if self._systemd is not None:
                self._systemd.ready()
        if isinstance(word, ChildStarted):
            self._greeted.set()
        if self._storage is None and isinstance(word, ChildStarted):
            # Import the driver now: the import takes longer than a recovery, which must be quick. An error here is
            # logged by the recovery.
            with contextlib.suppress(Exception):
                self._storage = locate(word.url)
        if isinstance(word, ChildStarted):
            self.overview.told(word)
            self.overview.storage = self._storage

    async def _bury(self, one: DeadWorker, hello: ChildStarted) -> int | None:
        try:
            storage = self._storage = self._storage or locate(hello.url)
        except UsageError as error:
            self._logger.error(
                "worker %d %s; nobody knows where its jobs are: %s", one.pid, one.witness.ending.how, error
            )
            return 0
        return await self._burial.bury(one, storage, within=FAREWELL if self._stopping.is_set() else BURIAL)


def supervise(
    command: Sequence[str],
    *,
    processes: int,
    drain: Duration,
    burst: bool = False,
    trial: float = TRIAL,
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
                    async with asyncio.timeout(CLOSING):
                        await serving.aclose()

    # The Runner is never closed: closing waits for threads, and a storage that hangs may hold one.
    return asyncio.Runner().run(run())


async def _again(turn: Callable[[], Awaitable[float]]) -> None:
    while True:
        wait = await turn()
        await asyncio.sleep(wait)
