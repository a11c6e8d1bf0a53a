"""Stops a worker that was started by the command line: the first request drains it, the second ends it at once.

    alone                  SIGTERM or SIGINT: drain          the same signal again: end at once
    under a supervisor     SIGTERM or SIGINT: drain          a message of the supervisor: end at once (supervised.py)
    either                 SIGHUP or SIGQUIT: drain, however often; USR1, USR2, ALRM and the like: nothing

A supervised worker does not count signals. If systemd, for example, signals all processes of a group, the worker gets
the signal once directly and once from its supervisor.
"""

import asyncio
import signal
from collections.abc import Callable
from typing import Protocol

from tenure.waiting import first

SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""The signals that stop a process."""

DRAINING = (signal.SIGHUP, signal.SIGQUIT)
"""The signals that drain, however often they come: a terminal that closes may send SIGHUP more than once."""

UNUSED = tuple(
    getattr(signal, name)
    for name in ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGSTKFLT")
    if hasattr(signal, name)
)
"""Signals that would end a process by default, but mean nothing to a worker."""


def draining() -> list[signal.Signals]:
    """Return the signals that drain this process, without those that it was started to ignore (`nohup`)."""
    return [number for number in DRAINING if signal.getsignal(number) is not signal.SIG_IGN]


def ignore_unused() -> None:
    """Install a handler for the signals that mean nothing, unless they have one, so that they do not end this process.

    They are not set to SIG_IGN, because processes that handlers start would inherit that.
    """
    for number in UNUSED:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _go_on)


def _go_on(number: int, frame: object) -> None:
    """Do nothing."""


class Stoppable(Protocol):
    """The methods of a worker that stop signals need."""

    async def start(self) -> None:
        """Begin to claim."""
        ...

    async def wait(self) -> None:
        """Wait until the worker has ended."""
        ...

    async def stop(self, *, force: bool = False) -> None:
        """Stop, at once if `force`, also if a stop is in progress."""
        ...


class StopSignals:
    """The two requests, drain and end at once, on the running loop."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()
        self._forced = asyncio.Event()

    def drain(self) -> None:
        """Drain the worker. Idempotent."""
        self._stopping.set()

    def stop_now(self) -> None:
        """End the worker at once. Idempotent."""
        self._forced.set()
        self._stopping.set()

    def drain_then_stop(self) -> None:
        """Drain the worker. On the second call, end it at once."""
        if self._stopping.is_set():
            self._forced.set()
        self._stopping.set()

    async def run(self, worker: Stoppable, *, started: Callable[[], object] = lambda: None) -> None:
        """Run a worker until it ends by itself or must stop. Call `started` before its first claim.

        Raises:
            StorageError: the storage cannot be opened.
            BaseExceptionGroup: something in the worker itself failed.
        """

        async def start() -> None:
            await worker.start()
            # No other task has run since, so the caller knows about the start before any job is claimed.
            started()

        forcing = asyncio.create_task(self._force(worker))
        try:
            # A stop also works while the start waits for the storage.
            await first(start(), self._stopping.wait())
            if not self._stopping.is_set():
                await first(worker.wait(), self._stopping.wait())
        finally:
            try:
                await worker.stop(force=self._forced.is_set())
            finally:
                forcing.cancel()
                await asyncio.gather(forcing, return_exceptions=True)

    async def _force(self, worker: Stoppable) -> None:
        await self._forced.wait()
        await worker.stop(force=True)
