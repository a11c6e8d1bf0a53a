"""One worker process as its supervisor sees it, from its start until its process group is gone.

started ──► said hello ──► working ──► goodbye, status 0: it has handed back its jobs
                                  └──► any other end: it has crashed, and its jobs must be recovered

A supervisor kills a child for a reason, which names the runs that caused the kill; recovery needs both.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Self

import msgspec
from msgspec import Struct

from tenure.clock import SECOND, Clock
from tenure.core.events import WorkerHung
from tenure.core.job import Ref
from tenure.core.postmortem import Workplace
from tenure.metrics import MOST, Key
from tenure.processes.process import Process, ProcessExit, is_isolated_or_gone
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

KillCode = Literal["loop_blocked", "timeout", "not_claiming", "leaving"]


class KillReason(Struct, frozen=True):
    """Why a child had to be killed from outside: its event loop or its claim loop hung, or it did not exit in time.

    `loop_blocked`: the event loop was blocked for longer than `max_block`, by the runs named here if they are known.
    `timeout`: the blocked loop could not end the runs named here at their timeout; they have timed out. In both cases
    the other runs of the child are not charged.
    `not_claiming`: the claim loop had no answer although the storage answers. `leaving`: the child was asked to leave
    and still ran after its time limit. In these two cases no run is charged.
    """

    reason: KillCode
    blocked_for: float
    """Seconds that the loop was blocked; for `leaving`, seconds since the child was asked to leave."""
    limit: float
    """The limit that it exceeded, in seconds: `max_block`, the time allowed past a timeout, or the longest wait of a
    claim loop; 0 for `leaving`."""
    causes: tuple[tuple[Ref, int], ...] = ()
    """The runs that blocked the loop, by job and fence; empty if they are unknown: then any run may be the cause."""
    stack: str = ""
    """The stacks of its threads, the latest call first; empty if it did not answer."""

    recorded: bool = False
    """True if the event that the worker hangs is already recorded."""

    def hung(self, owner: str) -> tuple[WorkerHung, ...]:
        """Return the event to record for that worker in addition to its death."""
        if self.recorded or self.reason == "leaving":
            return ()
        return (WorkerHung(owner=owner, blocked_for=self.blocked_for, stack=self.stack),)

    @property
    def charges_no_run(self) -> bool:
        """Return True if no run is to blame for the kill."""
        return self.reason in ("not_claiming", "leaving")

    def __str__(self) -> str:
        if self.reason == "timeout":
            return (
                f"killed by its supervisor: a run was past its timeout, and the loop blocked {self.blocked_for:.1f} s"
            )
        if self.reason == "not_claiming":
            return f"killed by its supervisor: its claim loop had had no answer for {self.blocked_for:.1f} s"
        if self.reason == "leaving":
            return f"killed by its supervisor: it had not stopped {self.blocked_for:.1f} s after the request"
        return f"killed by its supervisor: its event loop was blocked for {self.blocked_for:.1f} s"


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
