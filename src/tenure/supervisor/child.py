"""One worker process in the care of its supervisor, from its start until all of it is gone.

started ──► said hello ──► working ──► goodbye, status 0: it has parted, and left nothing behind
                                  └──► any other end: it has died, and holds what it held
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
"""How many runs a child's slate has room for: its concurrency, and outcomes that wait for a storage."""

PIDS = range(2, (1 << 22) + 1)
"""What may be the number of a process: 0 and 1 are us and all, and no system of ours counts further."""

LAST_WORDS = 0.1
"""Seconds that what a child said just before its death may take to come through."""


class ChildProcess:
    """A child that was started; with a slate that it writes on, and a file in which it says where it is."""

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
        """Why its supervisor killed it. It may have died of something else before that reached it."""
        self.working = False
        """Whether it has begun to claim."""
        self.figures: dict[Key, tuple[float, ...]] = {}
        """What it has counted, as far as it has told."""
        self.parted = False
        """Whether it has said goodbye; what it holds after that, it holds no more."""
        self.dismissed = False
        """Whether it said so because an operator wants it gone."""
        self.recycled: str | None = None
        """For what it is to be replaced by another, if it has said so."""
        self.outdated = False
        """Whether it was told to go, for its code has changed."""

    @classmethod
    def started(cls, command: Sequence[str], incarnation: str, *, siblings: bool, clock: Clock) -> Self:
        """Start a child, which has siblings or none.

        Raises:
            OSError: it cannot be started.
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
        """Kill it, unless it is dead, and remember why. The first reason stands."""
        if not self.process.gone:
            self.killed_for = self.killed_for or sentence
            self.process.send(signal.SIGKILL)

    async def ended(self, hear: Callable[[ChildMessage], None]) -> ProcessExit:
        """Wait until it is dead, hearing what it says. A fork of it may hold its line open; that keeps nobody."""
        heard = asyncio.ensure_future(self._listen(hear))
        try:
            death = await self.process.ended()
            await asyncio.wait({heard}, timeout=LAST_WORDS)
        finally:
            heard.cancel()
            await asyncio.gather(heard, return_exceptions=True)
        return death

    def remains(self, now: float) -> tuple[Workplace, KnownRuns]:
        """Return what it last told of itself, at this uptime, and what is known of its runs.

        Nothing of it where it has written over its slate, as a wild pointer does before it kills: a burial needs none.
        """
        try:
            return self.workplace(now), self.slate.known_runs()
        except (ArithmeticError, LookupError, ValueError):
            return Workplace(), KnownRuns()

    def workplace(self, now: float) -> Workplace:
        """Return what it last told of itself, at this uptime."""
        told_at, turned_at = self.slate.told_at, self.slate.turned_at
        lag = max(self.slate.lag, now - turned_at - TICK if turned_at else 0.0)
        told_ago = None if not told_at else max(0, round((now - told_at) * SECOND))
        return Workplace(round(lag * SECOND), self.slate.memory, told_ago)

    def hangs(self, now: float, beyond: float) -> bool:
        """Say whether its loop has been blocked for so long beyond its `max_block`, though nobody has stopped it."""
        turned_at = self.slate.turned_at
        if self.hello is None or not turned_at or self.process.death is not None:
            return False
        return now - turned_at > self.hello.max_block + beyond and not self.process.stopped

    def hurry(self) -> None:
        """Tell it to leave at once."""
        # Not by a second signal: whoever tells the whole group has sent the children one of their own.
        self.process.say(NOW)

    def clear_away(self) -> None:
        """Kill what it had started, for that must not work on beside the runs that replace its own; let go of it."""
        self.process.sweep_up()
        # The kernel ends them with it, but not what their handlers have started.
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
                            # Whoever listens starts another; this one goes on.
                            pass
                    hear(word)

    def _count(self, series: Iterable[tuple[Key, tuple[float, ...]]]) -> None:
        for key, numbers in series:
            if len(self.figures) < 2 * MOST or key in self.figures:
                self.figures[key] = numbers
