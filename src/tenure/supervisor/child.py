"""One worker process as its supervisor sees it, from its start until its process group is gone.

started ──► said hello ──► working ──► goodbye, status 0: it has handed back its jobs
                                  └──► any other end: it has crashed, and its jobs must be recovered
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import Self

import msgspec

from tenure.clock import SECOND, Clock
from tenure.core.postmortem import Workplace
from tenure.metrics import MOST, Key
from tenure.processes.process import Process, ProcessExit, slot_or_gone
from tenure.supervisor.kill_reason import KillReason
from tenure.worker.loop_lag import TICK
from tenure.worker.scoreboard import KnownRuns, Scoreboard
from tenure.worker.stacks.asked import StackFile
from tenure.worker.supervisor_messages import (
    NOW,
    VARIABLE,
    ChildConfig,
    ChildLeaving,
    ChildMessage,
    ChildReady,
    ChildRetiring,
    ChildStarted,
    MessageReader,
    MetricsUpdate,
)

LINES = 2_048
"""How many runs a child's scoreboard has room for: its concurrency, and outcomes that wait to be settled."""

PIDS = range(2, (1 << 22) + 1)
"""Valid process ids of a child: `killpg` of 0 is our own group, 1 is init, and no supported system counts further."""

LAST_WORDS = 0.1
"""Seconds to wait for messages that a child sent just before its death."""


class ChildProcess:
    """A started child process, with the scoreboard and the stack file that it writes."""

    def __init__(
        self, incarnation: str, process: Process, slate: Scoreboard, stacks: StackFile, *, born_at: float
    ) -> None:
        self.incarnation = incarnation
        self.process = process
        self.slate = slate
        self.stacks = stacks
        self.born_at = born_at
        """The uptime of its start."""
        self.hello: ChildStarted | None = None
        self.greeted = asyncio.Event()
        """Set once it has said hello."""
        self.killed_for: KillReason | None = None
        """Why its supervisor killed it. It may have died of another cause before the signal arrived."""
        self.working = False
        """True once it has begun to claim jobs."""
        self.figures: dict[Key, tuple[float, ...]] = {}
        """The metrics that it has sent."""
        self.parted = False
        """True once it has said goodbye, which means that it has handed back its jobs."""
        self.dismissed = False
        """True if it said goodbye because of an operator's order."""
        self.recycled: str | None = None
        """Why it asks to be replaced; None if it has not asked."""
        self.outdated = False
        """True if the supervisor stopped it because its code had changed."""

    @classmethod
    def started(cls, command: Sequence[str], incarnation: str, *, siblings: bool, clock: Clock) -> Self:
        """Start a child. `siblings`: whether the supervisor runs several children.

        Raises:
            OSError: the process cannot be started.
        """
        slate, stacks = Scoreboard.new(LINES), StackFile.new()
        told = ChildConfig(incarnation, slate.descriptor, stacks.descriptor, siblings)
        try:
            process = Process.started(
                command,
                variable=VARIABLE,
                told=msgspec.json.encode(told).decode(),
                give=[slate.descriptor, stacks.descriptor],
                env=os.environ,
            )
        except BaseException:
            slate.close()
            stacks.close()
            raise
        return cls(incarnation, process, slate, stacks, born_at=clock.uptime())

    def kill(self, sentence: KillReason) -> None:
        """Kill the process, unless it has exited, and store the reason. The first reason is kept."""
        if not self.process.gone:
            self.killed_for = self.killed_for or sentence
            self.process.send(signal.SIGKILL)

    async def ended(self, hear: Callable[[ChildMessage], None]) -> ProcessExit:
        """Wait until the process has exited, and pass on its messages; a fork that holds its socket open is ignored."""
        heard = asyncio.ensure_future(self._listen(hear))
        try:
            death = await self.process.ended()
            await asyncio.wait({heard}, timeout=LAST_WORDS)
        finally:
            heard.cancel()
            await asyncio.gather(heard, return_exceptions=True)
        return death

    def remains(self, now: float) -> tuple[Workplace, KnownRuns]:
        """Return its last report of itself, at this uptime, and what is known of its runs.

        Both are empty if the scoreboard is corrupt, as after a wild pointer; recovery works without them.
        """
        try:
            return self.workplace(now), self.slate.known_runs()
        except (ArithmeticError, LookupError, ValueError):
            return Workplace(), KnownRuns()

    def workplace(self, now: float) -> Workplace:
        """Return its last report of itself, at this uptime."""
        told_at, turned_at = self.slate.told_at, self.slate.turned_at
        lag = max(self.slate.lag, now - turned_at - TICK if turned_at else 0.0)
        told_ago = None if not told_at else max(0, round((now - told_at) * SECOND))
        return Workplace(round(lag * SECOND), self.slate.memory, told_ago)

    def hangs(self, now: float, beyond: float) -> bool:
        """Return True if its loop has been blocked for `max_block` plus `beyond`, and it is not stopped (SIGSTOP)."""
        turned_at = self.slate.turned_at
        if self.hello is None or not turned_at or self.process.death is not None:
            return False
        return now - turned_at > self.hello.max_block + beyond and not self.process.stopped

    def hurry(self) -> None:
        """Ask it to leave at once."""
        # Not by a second signal: a sender that signals all processes, as systemd does, has signalled the children too.
        self.process.say(NOW)

    def clear_away(self) -> None:
        """Kill the processes that it had started, so that they do not run in parallel with the retries; free resources.

        For a child that has exited.
        """
        self.process.sweep_up()
        # The kernel kills the isolated processes with their worker, but not the processes that handlers have started.
        for pid in self._slots():
            if slot_or_gone(pid):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
        self.slate.close()
        self.stacks.close()

    def _slots(self) -> list[int]:
        try:
            return [pid for pid in self.slate.slots if pid in PIDS]
        except (ArithmeticError, ValueError):
            return []

    async def _listen(self, hear: Callable[[ChildMessage], None]) -> None:
        loop, ear = asyncio.get_running_loop(), MessageReader()
        with contextlib.suppress(ConnectionError):
            while part := await loop.sock_recv(self.process.line, 65_536):
                for word in ear.hear(part):
                    match word:
                        case ChildStarted():
                            self.hello = self.hello or word
                            self.greeted.set()
                        case ChildReady():
                            self.working = True
                        case MetricsUpdate(series):
                            self._count(series)
                        case ChildLeaving(dismissed, recycled):
                            self.parted, self.dismissed, self.recycled = True, dismissed, recycled
                        case ChildRetiring():
                            # The caller starts a replacement; this child continues its runs.
                            pass
                    hear(word)

    def _count(self, series: Iterable[tuple[Key, tuple[float, ...]]]) -> None:
        for key, numbers in series:
            if len(self.figures) < 2 * MOST or key in self.figures:
                self.figures[key] = numbers
