"""A worker process as its supervisor's child: told who it is, saying when it is ready, dying when it is orphaned.

It hears SIGTERM as often as others please, from its supervisor and from whoever tells the whole group, and takes it as
one word: stop, when what runs is done. That it shall leave at once only its supervisor says, on their line.
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
from tenure.processes.parent_death import end_with_all, end_with_parent, inherited
from tenure.worker.scoreboard import Scoreboard
from tenure.worker.stacks.asked import StackFile
from tenure.worker.stop_signals import SIGNALS, Stoppable, StopSignals, draining
from tenure.worker.supervisor_messages import (
    VARIABLE,
    ChildConfig,
    ChildLeaving,
    ChildMessage,
    ChildReady,
    ChildRetiring,
    ChildStarted,
    counted,
    fitting,
    spoken,
)

COUNT_EVERY = 2.0
"""Seconds between two words on what has been counted; so much of it a death may take along."""


class Recyclable(Stoppable, Protocol):
    """A worker that says when it is worn out."""

    async def retired(self) -> str:
        """Wait until it claims no more, for another to take its place; return why."""
        ...


class SupervisorLink:
    """The child's end of the line. Its other end closes with the supervisor, and then this process goes at once."""

    def __init__(
        self, line: socket.socket, incarnation: str, slate: Scoreboard, stacks: StackFile, *, siblings: bool
    ) -> None:
        self.incarnation = incarnation
        self.siblings = siblings
        """Whether it is one of several."""
        self.slate = slate
        """What this process writes down for its supervisor."""
        self._line = line
        self._stacks = stacks
        self._unsent = b""
        """The rest of what did not go through at once."""
        self._figures = MetricsRegistry()
        self._counted: dict[Key, tuple[float, ...]] = {}
        """What the supervisor has been told of them."""
        self._hurried = False
        self._hurry: Callable[[], object] = lambda: None

    @classmethod
    def from_environment(cls) -> Self | None:
        """Return this process as a child, or None if it has no supervisor.

        Raises:
            UsageError: the variable is set, but not by a supervisor.
        """
        value = os.environ.pop(VARIABLE, None)
        if value is None:
            return None
        descriptor, _, text = value.partition(":")
        try:
            line, told = inherited(int(descriptor)), msgspec.json.decode(text, type=ChildConfig)
            slate, stacks = Scoreboard(told.slate), StackFile(told.stacks)
        except (ValueError, OSError, msgspec.MsgspecError) as error:
            raise UsageError(f"{VARIABLE} = {value!r} is set by hand; unset it, the supervisor sets its own") from error
        # What a handler starts must not come by them.
        for beside in (slate.descriptor, stacks.descriptor):
            os.set_inheritable(beside, False)
        return cls(line, told.incarnation, slate, stacks, siblings=told.siblings)

    def hello(self, url: str, timing: Timing, *, queues: Iterable[str] = (), serves: Iterable[str] = ()) -> None:
        """Tell the supervisor where the jobs are remembered, and follow it into death from now on."""
        end_with_parent()
        threading.Thread(target=self._follow, name="tenure-orphan", daemon=True).start()
        # From the hello on it may be asked.
        self._stacks.answer_here()
        hello = ChildStarted(
            url,
            timing.beat.total_seconds(),
            timing.max_block.total_seconds(),
            timing.lease.total_seconds(),
            timing.sweep.total_seconds(),
            timing.grace.total_seconds(),
            timing.leader_ttl.total_seconds(),
            fitting(sorted(queues)),
            fitting(serves),
        )
        self._line.sendall(spoken(hello))

    async def work(self, worker: Recyclable, figures: MetricsRegistry) -> None:
        """Let a worker work until SIGTERM or SIGINT, however often they come, or until its supervisor is in a hurry.

        What is counted meanwhile is told.

        The signals are heard ever after: one that comes late must not turn a clean end into a death.

        Raises:
            StorageError: the storage cannot be opened.
            BaseExceptionGroup: something in the worker itself failed.
        """
        loop, orders = asyncio.get_running_loop(), StopSignals()
        for number in (*SIGNALS, *draining()):
            loop.add_signal_handler(number, orders.stop)
        self._hurry = lambda: loop.call_soon_threadsafe(orders.hurry)
        if self._hurried:
            # It was said before anybody could listen.
            orders.hurry()
        self._figures = figures
        telling = [asyncio.create_task(self._tell()), asyncio.create_task(self._retire(worker))]
        try:
            await orders.obeyed_by(worker, started=lambda: self._say(ChildReady()))
        finally:
            for one in telling:
                one.cancel()

    def goodbye(self, *, dismissed: bool = False, recycled: str | None = None) -> None:
        """Tell the supervisor that nothing is left to be taken back; `Goodbye` says what else it wants to know."""
        self._count()
        self._say(ChildLeaving(dismissed, recycled))

    def _say(self, word: ChildMessage) -> None:
        with contextlib.suppress(OSError):
            self._line.sendall(self._unsent + spoken(word))
        self._unsent = b""

    async def _retire(self, worker: Recyclable) -> None:
        self._say(ChildRetiring(await worker.retired()))

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(COUNT_EVERY)
            self._count()
            # A supervisor that stands still must not make us do the same; the rest goes with the next word.
            with contextlib.suppress(OSError):
                self._unsent = self._unsent[self._line.send(self._unsent, socket.MSG_DONTWAIT) :]

    def _count(self) -> None:
        """Put what has changed into what is to be sent; only once all before it has gone through."""
        if self._unsent:
            return
        totals = self._figures.totals()
        news = {key: numbers for key, numbers in totals.items() if self._counted.get(key) != numbers}
        self._counted.update(news)
        self._unsent = b"".join(spoken(word) for word in counted(news))

    def _follow(self) -> None:
        with contextlib.suppress(OSError):
            while self._line.recv(64):
                self._hurried = True
                self._hurry()
        end_with_all()
