"""Many worker processes under one parent that runs no user code: it sees them die, and takes back what they held.

    supervisor ──spawn──► child (own session) ──hello, url … goodbye──► supervisor
        │                   │
        └──── waitpid ◄── death ──► kill what the child had started, reclaim(owner), decide, settle, start another

    SIGTERM, the first: SIGTERM to each child, which drains     the second: a word on each line, to leave at once
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
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from random import Random

import msgspec

from holdfast.clock import Clock, SystemClock, entropy
from holdfast.core.duration import Duration, duration
from holdfast.core.events import WorkerDied
from holdfast.core.job import Owner
from holdfast.core.patience import Patience
from holdfast.errors import UsageError
from holdfast.ids import owner_id
from holdfast.settle import settle_stalled
from holdfast.storage.locate import locate
from holdfast.storage.protocol import Beat, Storage
from holdfast.waiting import first
from holdfast.worker.child import GOODBYE, NOW, VARIABLE, Hello
from holdfast.worker.orders import SIGNALS

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

CLOSING = 0.1
"""Seconds that the supervisor's own storage gets to close."""

PATIENCE = Patience(0.1, 30.0)
"""Before a dead child is replaced; it grows with each death that comes soon after its start."""

SETTLED_IN = 10.0
"""A child that lived for so many seconds died of something new; its replacement does not wait for the last one's."""

USAGE = 2
"""The exit status of a command that was called wrongly; starting it again would not help."""

LAST_WORDS = 0.1
"""Seconds that what a child said just before its death may take to come through."""

LONGEST = 65_536
"""So many bytes of what a child says are kept."""


@dataclass(frozen=True)
class Life:
    """What became of one child: how it ended, after how many seconds, and whether it had said goodbye."""

    pid: int
    status: int
    lived: float
    parted: bool


class Supervisor:
    """Keeps so many children alive until it is told to stop."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        processes: int,
        drain: timedelta,
        burst: bool,
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
        self._clock = clock
        self._rng = rng
        self._logger = logger
        host = socket.gethostname()
        self._owner = Owner(owner_id(rng), f"supervisor {host}:{os.getpid()}", host, os.getpid())
        self._children: dict[str, tuple[asyncio.subprocess.Process, socket.socket]] = {}
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._storage: Storage | None = None
        self._proven = False
        self._status = 0

    async def run(self) -> int:
        """Keep the children until SIGTERM or SIGINT; return the exit status."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._stop)
        try:
            async with asyncio.TaskGroup() as crew:
                keepers = [crew.create_task(self._keep()) for _ in range(self._processes)]
                end = crew.create_task(self._bring_to_an_end(keepers))
                await asyncio.wait(keepers)
                end.cancel()
        finally:
            if self._storage is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CLOSING):
                        await self._storage.close()
            for number in SIGNALS:
                loop.remove_signal_handler(number)
        return self._status

    def _stop(self) -> None:
        """Pass on that it is time: the first signal lets the children drain, the second makes them leave at once."""
        if self._stopping.is_set():
            self._hurried.set()
        self._stopping.set()
        for process, line in self._children.values():
            self._pass_on(process, line)

    def _pass_on(self, process: asyncio.subprocess.Process, line: socket.socket) -> None:
        # Not by a second signal: whoever tells the whole group has sent the children one of their own.
        if self._hurried.is_set():
            with contextlib.suppress(OSError):
                line.send(NOW)
        else:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    async def _bring_to_an_end(self, keepers: "list[asyncio.Task[None]]") -> None:
        """See to it that nothing outlives its time: first the children, then what is done for the dead."""
        await self._stopping.wait()
        await first(self._hurried.wait(), within=self._drain + STRAGGLERS - HASTY)
        await asyncio.sleep(HASTY)
        for process, _ in self._children.values():
            self._logger.error("worker %d would not stop and is killed", process.pid)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await asyncio.sleep(LAST)
        for keeper in keepers:
            keeper.cancel()

    async def _keep(self) -> None:
        """Keep one child: start it, bury it, start the next."""
        deaths = 0
        while not self._stopping.is_set():
            life = await self._life()
            if self._stopping.is_set() or (life is not None and self._over(life)):
                return
            deaths = deaths + 1 if life is None or life.lived <= SETTLED_IN else 0
            if deaths:
                await first(self._stopping.wait(), within=PATIENCE.rest(deaths, self._rng))

    def _over(self, life: Life) -> bool:
        """Say whether a child needs no replacement, though nobody asked us to stop."""
        if life.status == USAGE and not self._proven:
            self._status = USAGE
            self._stop()
            return True
        if life.parted and not self._burst:
            self._logger.warning("worker %d left though nobody told us to stop; another follows", life.pid)
        return life.parted and self._burst

    async def _life(self) -> Life | None:
        """Let one child live; None if it could not be started, or what became of it cannot be told."""
        try:
            return await self._live()
        except Exception as error:
            # No memory, no process, no descriptor left: that passes, and the other children know nothing of it.
            self._logger.error("cannot keep a worker alive, trying again: %r", error)
            return None

    async def _live(self) -> Life:
        """Lead one child from its start to its burial."""
        incarnation = owner_id(self._rng)
        began = self._clock.uptime()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env={**os.environ, VARIABLE: f"{theirs.fileno()}:{incarnation}"},
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                # Of its own session, so a signal to our group (Ctrl-C) comes through us, and once.
                start_new_session=True,
            )
            theirs.close()
            self._children[incarnation] = process, ours
            try:
                if self._stopping.is_set():
                    # It listens to nothing yet but this.
                    process.terminate()
                    self._pass_on(process, ours)
                said = await self._said(ours, process)
                status = await process.wait()
            finally:
                del self._children[incarnation]
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    # What the child had started must not work on beside the runs that replace its own.
                    os.killpg(process.pid, signal.SIGKILL)
        died_at, lived = self._clock.now(), self._clock.uptime() - began
        hello, _, rest = said.partition(b"\n")
        life = Life(process.pid, status, lived, parted=status == 0 and rest == GOODBYE)
        if hello and not life.parted:
            await self._bury(life, incarnation, msgspec.json.decode(hello, type=Hello).url, died_at)
        elif not hello and not self._stopping.is_set():
            self._logger.error("worker %d ended (%s) before it was ready", life.pid, _how(status))
        return life

    async def _said(self, line: socket.socket, process: asyncio.subprocess.Process) -> bytes:
        """Return all that a child says until it dies, which its line may not tell: a fork of it may hold that open."""
        said = bytearray()
        heard = asyncio.ensure_future(self._listen(line, said))
        try:
            await process.wait()
            await asyncio.wait({heard}, timeout=LAST_WORDS)
        finally:
            heard.cancel()
            await asyncio.gather(heard, return_exceptions=True)
        return bytes(said)

    async def _listen(self, line: socket.socket, said: bytearray) -> None:
        loop = asyncio.get_running_loop()
        while part := await loop.sock_recv(line, 4096):
            self._proven = True
            said += part[: LONGEST - len(said)]
            if self._storage is None and b"\n" in said:
                # To import a driver takes longer than to bury a child, and a burial is in a hurry. If there is trouble,
                # the burial tells of it.
                with contextlib.suppress(Exception):
                    self._storage = locate(msgspec.json.decode(said.partition(b"\n")[0], type=Hello).url)

    async def _bury(self, life: Life, incarnation: str, url: str, died_at: int) -> None:
        """Take back what a dead child held, and put it on record."""
        pid, status, how = life.pid, life.status, _how(life.status)
        jobs = 0
        try:
            async with asyncio.timeout(FAREWELL if self._stopping.is_set() else BURIAL):
                storage = await self._opened(url)
                more = True
                while more:
                    taken = await storage.reclaim(incarnation, self._owner)
                    await settle_stalled(storage, self._owner, taken.stalled, self._rng, detail=how)
                    jobs += len(taken.stalled)
                    more = taken.more
                died = WorkerDied(
                    owner=incarnation,
                    host=self._owner.host,
                    pid=pid,
                    signal=-status if status < 0 else None,
                    status=status if status >= 0 else None,
                    jobs=jobs,
                )
                await storage.renew(Beat(self._owner, events=(died,)))
        except asyncio.CancelledError:
            self._logger.error("worker %d died (%s); its jobs are left to the reapers: no time is left", pid, how)
            raise
        except Exception as error:
            # Whatever it is: the next child must be started all the same.
            self._logger.error("worker %d died (%s); its jobs are left to the reapers: %r", pid, how, error)
        else:
            took = (self._clock.now() - died_at) / 1_000_000
            self._logger.warning("worker %d died (%s); %d jobs taken back within %.3f s", pid, how, jobs, took)

    async def _opened(self, url: str) -> Storage:
        if self._storage is None:
            self._storage = locate(url)
        await self._storage.open()
        return self._storage


def supervise(
    command: Sequence[str],
    *,
    processes: int,
    drain: Duration,
    burst: bool = False,
    logger: logging.Logger | None = None,
) -> int:
    """Run so many worker processes until SIGTERM or SIGINT, and return the exit status.

    `command` starts one child, which gets its part by `Child.from_environment`. `drain` is theirs; a child that has
    not stopped 4.25 s after it is killed, and we are gone 5 s after it. A child that ends is replaced, except in a
    `burst` one that took its leave.

    Raises:
        UsageError: processes is below 1, or drain is no duration.
    """
    supervisor = Supervisor(
        command,
        processes=processes,
        drain=duration(drain, field="drain", zero=True),
        burst=burst,
        clock=SystemClock(),
        rng=entropy(),
        logger=logger or logging.getLogger("holdfast.supervisor"),
    )
    # Never closed: closing waits for threads, and a storage that hangs may hold one.
    return asyncio.Runner().run(supervisor.run())


def _how(status: int) -> str:
    return f"signal {-status} ({_signal_name(-status)})" if status < 0 else f"exit status {status}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unnamed"
