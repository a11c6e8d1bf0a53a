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
from tenure.processes.process import Process, ProcessExit, is_isolated_or_gone
from tenure.supervisor.kill_reason import KillReason
from tenure.worker.loop_lag import TICK
from tenure.worker.scoreboard import KnownRuns, Scoreboard
from tenure.worker.stacks.stack_file import StackFile
from tenure.worker.supervisor_messages import (
    STOP_NOW,
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

ROWS = 2_048
"""How many runs a child's scoreboard has room for: its concurrency, and outcomes that wait to be settled."""

PIDS = range(2, (1 << 22) + 1)
"""Valid process ids of a child: `killpg` of 0 is our own group, 1 is init, and no supported system counts further."""

LAST_MESSAGES_WAIT = 0.1
"""Seconds to wait for messages that a child sent just before its death."""


class ChildProcess:
    """A started child process, with the scoreboard and the stack file that it writes."""

    def __init__(
        self, owner_id: str, process: Process, scoreboard: Scoreboard, stacks: StackFile, *, started_at: float
    ) -> None:
        self.owner_id = owner_id
        self.process = process
        self.scoreboard = scoreboard
        self.stacks = stacks
        self.started_at = started_at
        """The uptime of its start."""
        self.hello: ChildStarted | None = None
        self.hello_received = asyncio.Event()
        """Set once it has said hello."""
        self.kill_reason: KillReason | None = None
        """Why its supervisor killed it. It may have died of another cause before the signal arrived."""
        self.working = False
        """True once it has begun to claim jobs."""
        self.metrics: dict[Key, tuple[float, ...]] = {}
        """The metrics that it has sent."""
        self.said_goodbye = False
        """True once it has said goodbye, which means that it has handed back its jobs."""
        self.dismissed = False
        """True if it said goodbye because of an operator's order."""
        self.recycle_reason: str | None = None
        """Why it asks to be replaced; None if it has not asked."""
        self.outdated = False
        """True if the supervisor stopped it because its code had changed."""

    @classmethod
    def start(cls, command: Sequence[str], owner_id: str, *, siblings: bool, clock: Clock) -> Self:
        """Start a child. `siblings`: whether the supervisor runs several children.

        Raises:
            OSError: the process cannot be started.
        """
        scoreboard, stacks = Scoreboard.new(ROWS), StackFile.new()
        config = ChildConfig(owner_id, scoreboard.descriptor, stacks.descriptor, siblings)
        try:
            process = Process.start(
                command,
                variable=VARIABLE,
                config=msgspec.json.encode(config).decode(),
                pass_fds=[scoreboard.descriptor, stacks.descriptor],
                env=os.environ,
            )
        except BaseException:
            scoreboard.close()
            stacks.close()
            raise
        return cls(owner_id, process, scoreboard, stacks, started_at=clock.uptime())

    def kill(self, reason: KillReason) -> None:
        """Kill the process, unless it has exited, and store the reason. The first reason is kept."""
        if not self.process.has_exited:
            self.kill_reason = self.kill_reason or reason
            self.process.send_signal(signal.SIGKILL)

    async def wait(self, on_message: Callable[[ChildMessage], None]) -> ProcessExit:
        """Wait until the process has exited, and pass on its messages; a fork that holds its socket open is ignored."""
        reading = asyncio.ensure_future(self._read_messages(on_message))
        try:
            exit_info = await self.process.wait()
            await asyncio.wait({reading}, timeout=LAST_MESSAGES_WAIT)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        return exit_info

    def last_state(self, now: float) -> tuple[Workplace, KnownRuns]:
        """Return its last report of itself, at this uptime, and what is known of its runs.

        Both are empty if the scoreboard is corrupt, as after a wild pointer; recovery works without them.
        """
        try:
            return self.workplace(now), self.scoreboard.known_runs()
        except (ArithmeticError, LookupError, ValueError):
            return Workplace(), KnownRuns()

    def workplace(self, now: float) -> Workplace:
        """Return its last report of itself, at this uptime."""
        reported_at, turned_at = self.scoreboard.reported_at, self.scoreboard.turned_at
        lag = max(self.scoreboard.lag, now - turned_at - TICK if turned_at else 0.0)
        report_age = None if not reported_at else max(0, round((now - reported_at) * SECOND))
        return Workplace(round(lag * SECOND), self.scoreboard.memory, report_age)

    def hangs(self, now: float, beyond: float) -> bool:
        """Return True if its loop has been blocked for `max_block` plus `beyond`, and it is not stopped (SIGSTOP)."""
        turned_at = self.scoreboard.turned_at
        if self.hello is None or not turned_at or self.process.exit is not None:
            return False
        return now - turned_at > self.hello.max_block + beyond and not self.process.stopped

    def stop_now(self) -> None:
        """Ask it to leave at once."""
        # Not by a second signal: a sender that signals all processes, as systemd does, has signalled the children too.
        self.process.write(STOP_NOW)

    def clean_up(self) -> None:
        """Kill the processes that it had started, so that they do not run in parallel with the retries; free resources.

        For a child that has exited.
        """
        self.process.kill_group()
        # The kernel kills the isolated processes with their worker, but not the processes that handlers have started.
        for pid in self._isolated_pids():
            if is_isolated_or_gone(pid):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
        self.scoreboard.close()
        self.stacks.close()

    def _isolated_pids(self) -> list[int]:
        try:
            return [pid for pid in self.scoreboard.isolated_pids if pid in PIDS]
        except (ArithmeticError, ValueError):
            return []

    async def _read_messages(self, on_message: Callable[[ChildMessage], None]) -> None:
        loop, reader = asyncio.get_running_loop(), MessageReader()
        with contextlib.suppress(ConnectionError):
            while part := await loop.sock_recv(self.process.socket, 65_536):
                for message in reader.feed(part):
                    match message:
                        case ChildStarted():
                            self.hello = self.hello or message
                            self.hello_received.set()
                        case ChildReady():
                            self.working = True
                        case MetricsUpdate(series):
                            self._add_metrics(series)
                        case ChildLeaving(dismissed, recycled):
                            self.said_goodbye, self.dismissed, self.recycle_reason = True, dismissed, recycled
                        case ChildRetiring():
                            # The caller starts a replacement; this child continues its runs.
                            pass
                    on_message(message)

    def _add_metrics(self, series: Iterable[tuple[Key, tuple[float, ...]]]) -> None:
        for key, numbers in series:
            if len(self.metrics) < 2 * MOST or key in self.metrics:
                self.metrics[key] = numbers
