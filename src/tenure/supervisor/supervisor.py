"""Many worker processes under one parent that runs no user code: it sees them die, and takes back what they held.

    supervisor ──spawn──► child (own session) ──hello, url … goodbye──► supervisor
        │                   │
        └──── waitpid ◄── death ──► kill what the child had started, reclaim(owner), decide, settle, start another

    SIGTERM, the first: SIGTERM to each child, which drains     the second: a word on each line, to leave at once
    SIGHUP, SIGQUIT: as the first SIGTERM, however often
    drain + 4.25 s: whoever still lives is killed               drain + 4.75 s: what is not taken back by then, is left

A child that says goodbye and leaves with status 0 has handed back what it held; every other end is a death.
The jobs of a dead child can be claimed again within milliseconds of its death, not after a lease. Whatever goes wrong
with one child, be it that no process can be started at all, is tried again later and touches none of the others.
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
"""Seconds beyond the drain after which a child that still lives is killed; by itself it is gone after about 4."""

HASTY = 2.5
"""The same, counted from the word that it shall leave at once."""

LAST = 0.5
"""Seconds after these until nothing more is taken back from the dead: in all, we are gone 5 s after the drain."""

BURIAL = 10.0
"""Seconds to take back a dead child's jobs in; beyond them the reapers do it, one lease later."""

FAREWELL = 0.5
"""The same for a child that dies while the supervisor is stopping."""

CLOSING = 0.3
"""Seconds that the server of health gets to close, and then the supervisor's own storage."""

PATIENCE = ExponentialDelay(0.1, 30.0)
"""Before a dead child is replaced; it grows with each death that comes soon after its start, before any work.

A death for which jobs are charged is not one of these: there is an end to such deaths, and the jobs behind them must
not wait for that. A death for which none is charged could come again and again.
"""

SETTLED_IN = 10.0
"""A child that lived for so many seconds died of something new; its replacement does not wait for the last one's."""

USAGE = 2
REFUSED = (1, USAGE)
"""The exit statuses by which a child says, with a line on stderr, that it cannot be a worker: storage, app, options."""

LOOK = 0.5
"""Seconds between two looks at the code, where it is reloaded."""

HANGING = 10.0
"""Seconds beyond its `max_block` after which a child that was not ended for it keeps a sign of life from systemd."""

TRIAL = 5.0
"""Seconds for which the first child goes alone, unless it says hello before: what is wrong with all is said once."""


@dataclass(frozen=True)
class ChildHistory:
    """What became of one child: its end, after how many seconds, if it said goodbye, if by order, what it held."""

    pid: int
    status: int | None
    lived: float
    parted: bool
    worked: bool = False
    dismissed: bool = False
    recycled: str | None = None
    """For what it wants to be replaced, if it does."""
    outdated: bool = False
    """Whether it was told to go, for its code has changed."""
    jobs: int | None = 0
    """How many of its jobs may be charged for its death, None if that is not known."""

    @property
    def early(self) -> bool:
        """Return True if it died soon and no job is charged for it, so that the next one may do the same."""
        return self.lived <= SETTLED_IN and self.jobs == 0

    @property
    def refused(self) -> bool:
        """Whether it has said by itself that it cannot work."""
        return not self.worked and self.status in REFUSED


class Supervisor:
    """Keeps so many children alive until it is told to stop."""

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
        """Set when the code changes, and another one then."""
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
        """Whether a child has ever worked."""
        self._status = 0

    async def run(self) -> int:
        """Keep the children until SIGTERM or SIGINT; return the exit status."""
        loop = asyncio.get_running_loop()
        also = draining()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._stop)
        for number in also:
            loop.add_signal_handler(number, self._let_drain)
        # Who ignores it passes that on to whom he starts, and then the kernel lets nobody see how a child ended.
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
                # Of a container, where there is nobody else to bury what handlers have started.
                bury_strangers({ward.process.pid for ward in self._wards})
            await asyncio.sleep(EVERY)

    def _let_drain(self) -> None:
        """Pass on that it is time, once: this word is in no hurry, however often it comes."""
        if not self._stopping.is_set():
            self._stop()

    def _stop(self) -> None:
        """Pass on that it is time: the first signal lets the children drain, the second makes them leave at once."""
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
        """See to it that nothing outlives its time: first the children, then what is done for the dead."""
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
        """Kill a child that was told to leave and has not."""
        if ward.process.death is None:
            self._logger.error("worker %d would not stop and is killed", ward.process.pid)
            ward.kill(KillReason("leaving", self._clock.uptime() - told_at, 0.0))

    async def _reload(self, sources: Sources) -> None:
        """Replace the children whenever the code has changed, each as soon as it has drained."""
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
        """Give signs of life, but for children that hang although that should have been the end of them."""
        while True:
            if not any(ward.hangs(self._clock.uptime(), HANGING) for ward in self._wards):
                systemd.alive()
            await asyncio.sleep(every)

    async def _keep(self, number: int) -> None:
        """Keep one child: start it, bury it, start the next; and beside that one that has retired."""
        if number:
            await first(self._greeted.wait(), self._stopping.wait(), within=self._trial)
        async with asyncio.TaskGroup() as lives:
            await self._succeed(lives)

    async def _succeed(self, lives: asyncio.TaskGroup) -> None:
        """Lead one child after the other, and let one that has retired come to its end beside its successor."""
        deaths = 0
        retired: asyncio.Task[ChildHistory | None] | None = None
        while not self._stopping.is_set():
            changed, retiring = self._changed, asyncio.Event()
            living = lives.create_task(self._life(retiring))
            await first(asyncio.wait({living}), retiring.wait())
            if not living.done() and retired is not None:
                # In each place there is one at most of those whose runs take their time: each has its memory.
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
                # Code that cannot be called is not tried again as it is, where somebody is at work on it.
                ever = life is not None and life.status == USAGE and self._sources is not None
                rest = None if ever else PATIENCE.rest(max(1, deaths), self._rng)
                await first(self._stopping.wait(), changed.wait(), within=rest)

    def _over(self, life: ChildHistory) -> bool:
        """Say whether a child needs no replacement, though nobody asked us to stop."""
        if life.outdated:
            return False
        if life.refused and self._sources is not None:
            self._logger.info("the next worker is started when its code changes, or in a while")
            return False
        if life.refused and not self._works:
            # It has said why. Whoever has called us learns it in the way that a worker without supervisor tells it.
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
        """Let one child live; None if it could not be started, or what became of it cannot be told.

        `retiring` is set when it claims no more, though it goes on.
        """
        try:
            return await self._live(retiring)
        except Exception as error:
            # No memory, no process, no descriptor left: that passes, and the other children know nothing of it.
            self._logger.error("cannot keep a worker alive, trying again: %r", error)
            return None

    async def _live(self, retiring: asyncio.Event) -> ChildHistory:
        """Lead one child from its start to its burial."""

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
                # It listens to nothing yet but this.
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
            # Others wait for the rights of those that it had stopped.
            within = BURIAL if runs.stopped and not self._stopping.is_set() else FAREWELL
            await self._burial.part(
                ward.incarnation, life.pid, self._storage, within=within, worked=not life.refused, runs=runs
            )
        return life

    async def _watch(self, ward: ChildProcess) -> None:
        """Watch over a child from its hello on, until cancelled."""
        pid = ward.process.pid
        worker = Owner(ward.incarnation, f"{self._owner.host}:{pid}", self._owner.host, pid)
        async with asyncio.TaskGroup() as crew:
            # If it has had a sibling, it is known where: then before it can have claimed anything.
            crew.create_task(self._guard(ward, worker))
            await self._watch_as(ward, worker)

    async def _watch_as(self, ward: ChildProcess, worker: Owner) -> None:
        await ward.greeted.wait()
        hello = ward.hello
        if hello is None or self._storage is None:
            # Nobody knows where its jobs are; that is said when it dies.
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
        """Keep others from burying a child: they would not know what it died of, nor what it has left behind."""
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
                # Its own calls fail as well, which is told there.
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
            # To import a driver takes longer than to bury a child, and a burial is in a hurry. If there is trouble,
            # the burial tells of it.
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
    """Run so many worker processes until SIGTERM or SIGINT, and return the exit status.

    `command` starts one child, which gets its part by `Child.from_environment`. `drain` is theirs; a child that has
    not stopped 4.25 s after it is killed, and we are gone 5 s after it. A child that ends is replaced, except in a
    `burst` one that took its leave. Before any has worked, the first that says it cannot (exit status 1 or 2) ends it
    all, with its status; it goes alone until it says hello, for `trial` seconds at most. `serve` returns what serves
    health as long as anything is left to supervise.
    When `sources` change the children are replaced. `systemd` is told how we are.

    Raises:
        UsageError: processes is below 1, or drain is no duration.
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

    # Never closed: closing waits for threads, and a storage that hangs may hold one.
    return asyncio.Runner().run(run())


async def _again(turn: Callable[[], Awaitable[float]]) -> None:
    while True:
        wait = await turn()
        await asyncio.sleep(wait)
