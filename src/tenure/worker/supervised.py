"""The connection of a worker process to its supervisor: it gets its config, reports its state, and ends if orphaned.

The process may get SIGTERM several times, from its supervisor and from a signal to the whole group. All of them mean
the same: stop when the runs are over. Only the supervisor can order to end at once, over the socket.
"""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Protocol, Self

import msgspec

from tenure.errors import UsageError
from tenure.metrics import Key, MetricsRegistry
from tenure.options import Timing
from tenure.processes.process import end_with_parent, inherited_socket, kill_own_group
from tenure.worker.scoreboard import Scoreboard
from tenure.worker.stacks.stack_file import StackFile
from tenure.worker.stop_signals import SIGNALS, Stoppable, StopSignals, draining
from tenure.worker.supervisor_messages import (
    VARIABLE,
    ChildConfig,
    ChildLeaving,
    ChildMessage,
    ChildReady,
    ChildRetiring,
    ChildStarted,
    encode_message,
    metrics_messages,
    names_that_fit,
)

METRICS_INTERVAL = 2.0
"""Seconds between two metrics messages. If the process dies, the counts since its last message are lost."""


class Recyclable(Stoppable, Protocol):
    """A worker that reports when it must be recycled."""

    async def retired(self) -> str:
        """Wait until the worker claims no more because it is recycled. Return the reason."""
        ...


class SupervisorLink:
    """The child's end of the socket. The other end closes with the supervisor, and then this process ends at once."""

    def __init__(
        self, line: socket.socket, incarnation: str, scoreboard: Scoreboard, stacks: StackFile, *, siblings: bool
    ) -> None:
        self.owner_id = incarnation
        self.siblings = siblings
        """True if the supervisor has several children."""
        self.scoreboard = scoreboard
        """The memory that this process shares with its supervisor."""
        self._line = line
        self._stacks = stacks
        self._unsent = b""
        """The bytes that the socket did not take yet."""
        self._metrics = MetricsRegistry()
        self._sent_metrics: dict[Key, tuple[float, ...]] = {}
        """The metrics that the supervisor has got."""
        self._stop_ordered = False
        self._stop_now: Callable[[], object] = lambda: None

    @classmethod
    def from_environment(cls) -> Self | None:
        """Return the link of this process, or None if it has no supervisor.

        Raises:
            UsageError: the variable is set, but not by a supervisor.
        """
        value = os.environ.pop(VARIABLE, None)
        if value is None:
            return None
        descriptor, _, text = value.partition(":")
        try:
            line, config = inherited_socket(int(descriptor)), msgspec.json.decode(text, type=ChildConfig)
            scoreboard, stacks = Scoreboard(config.scoreboard), StackFile(config.stacks)
        except (ValueError, OSError, msgspec.MsgspecError) as error:
            raise UsageError(f"{VARIABLE} = {value!r} is set by hand; unset it, the supervisor sets its own") from error
        # Processes that handlers start must not inherit them.
        for inherited in (scoreboard.descriptor, stacks.descriptor):
            os.set_inheritable(inherited, False)
        return cls(line, config.owner_id, scoreboard, stacks, siblings=config.siblings)

    def hello(
        self,
        url: str,
        timing: Timing,
        *,
        queues: Iterable[str] = (),
        serves: Iterable[str] = (),
        outbox: str | None = None,
    ) -> None:
        """Send the addresses of the storage and of the outbox, and the timing, to the supervisor.

        From now on, end when the supervisor ends.
        """
        end_with_parent()
        threading.Thread(target=self._follow_supervisor, name="tenure-parent", daemon=True).start()
        # After the message, the supervisor may ask for the stacks.
        self._stacks.register()
        hello = ChildStarted(
            url,
            timing.beat.total_seconds(),
            timing.max_block.total_seconds(),
            timing.lease.total_seconds(),
            timing.sweep.total_seconds(),
            timing.grace.total_seconds(),
            timing.leader_ttl.total_seconds(),
            names_that_fit(sorted(queues)),
            names_that_fit(serves),
            outbox,
        )
        self._line.sendall(encode_message(hello))

    async def work(self, worker: Recyclable, metrics: MetricsRegistry) -> None:
        """Run a worker until SIGTERM or SIGINT, however often they come, or until its supervisor orders to end at once.

        Metrics are sent meanwhile. The signal handlers stay installed, because a late signal must not turn a clean end
        into a crash.

        Raises:
            StorageError: the storage cannot be opened.
            BaseExceptionGroup: something in the worker itself failed.
        """
        loop, orders = asyncio.get_running_loop(), StopSignals()
        for number in (*SIGNALS, *draining()):
            loop.add_signal_handler(number, orders.drain)
        self._stop_now = lambda: loop.call_soon_threadsafe(orders.stop_now)
        if self._stop_ordered:
            # The order came before `_stop_now` was set.
            orders.stop_now()
        self._metrics = metrics
        telling = [asyncio.create_task(self._send_metrics()), asyncio.create_task(self._retire(worker))]
        try:
            await orders.run(worker, started=lambda: self._send(ChildReady()))
        finally:
            for task in telling:
                task.cancel()

    def goodbye(self, *, dismissed: bool = False, recycled: str | None = None) -> None:
        """Tell the supervisor that this process holds no more jobs. `ChildLeaving` explains the arguments."""
        self._queue_metrics()
        self._send(ChildLeaving(dismissed, recycled))

    def _send(self, message: ChildMessage) -> None:
        with contextlib.suppress(OSError):
            self._line.sendall(self._unsent + encode_message(message))
        self._unsent = b""

    async def _retire(self, worker: Recyclable) -> None:
        self._send(ChildRetiring(await worker.retired()))

    async def _send_metrics(self) -> None:
        while True:
            await asyncio.sleep(METRICS_INTERVAL)
            self._queue_metrics()
            # A suspended supervisor must not block this process. The rest goes with the next message.
            with contextlib.suppress(OSError):
                self._unsent = self._unsent[self._line.send(self._unsent, socket.MSG_DONTWAIT) :]

    def _queue_metrics(self) -> None:
        """Add the changed metrics to the bytes to send, but only if all earlier bytes are sent."""
        if self._unsent:
            return
        totals = self._metrics.totals()
        news = {key: numbers for key, numbers in totals.items() if self._sent_metrics.get(key) != numbers}
        self._sent_metrics.update(news)
        self._unsent = b"".join(encode_message(message) for message in metrics_messages(news))

    def _follow_supervisor(self) -> None:
        with contextlib.suppress(OSError):
            while self._line.recv(64):
                self._stop_ordered = True
                self._stop_now()
        kill_own_group()
