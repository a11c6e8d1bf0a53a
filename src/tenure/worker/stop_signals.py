"""What tells a worker of the command line to stop: the first word lets it drain, the second makes it leave at once.

    alone                  SIGTERM or SIGINT: asked          the same again: hurried
    under a supervisor     SIGTERM or SIGINT: asked          a word on its line: hurried      (worker/supervised.py)
    either                 SIGHUP or SIGQUIT: asked, however often; USR1, USR2, ALRM and the like: nothing

A supervised worker counts no signals: systemd, and whoever else tells all processes of a group to stop, tells it once
by itself and once by its supervisor.
"""

import asyncio
import signal
from collections.abc import Callable
from typing import Protocol

from tenure.waiting import first

SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""By which a process is told to stop."""

DRAINING = (signal.SIGHUP, signal.SIGQUIT)
"""By which it is told to drain, however often: a terminal that closes may send SIGHUP more than once."""

UNUSED = tuple(
    getattr(signal, name)
    for name in ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGSTKFLT")
    if hasattr(signal, name)
)
"""Those that would end a process, and mean nothing to a worker."""


def draining() -> list[signal.Signals]:
    """Return the signals that make this process drain, without those that it was started to ignore (`nohup`)."""
    return [number for number in DRAINING if signal.getsignal(number) is not signal.SIG_IGN]


def outlive() -> None:
    """Let the signals that mean nothing end this process no more, unless something else is done at them already.

    They are not ignored by the system: that would pass on to all that handlers start.
    """
    for number in UNUSED:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _go_on)


def _go_on(number: int, frame: object) -> None:
    """Do nothing."""


class Stoppable(Protocol):
    """A worker, as far as orders go."""

    async def start(self) -> None:
        """Begin to claim."""
        ...

    async def wait(self) -> None:
        """Wait until the worker has ended."""
        ...

    async def stop(self, *, force: bool = False) -> None:
        """Stop, at once if `force`; also if it stops already."""
        ...


class StopSignals:
    """The two words, heard on the running loop."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._hurried = asyncio.Event()

    def stop(self) -> None:
        """Let it drain. Idempotent."""
        self._asked.set()

    def hurry(self) -> None:
        """Let it leave at once. Idempotent."""
        self._hurried.set()
        self._asked.set()

    def again(self) -> None:
        """Let it drain; said once more, let it leave at once."""
        if self._asked.is_set():
            self._hurried.set()
        self._asked.set()

    async def obeyed_by(self, worker: Stoppable, *, started: Callable[[], object] = lambda: None) -> None:
        """Let a worker work until it ends by itself or is told to; call `started` before its first claim.

        Raises:
            StorageError: the storage cannot be opened.
            BaseExceptionGroup: something in the worker itself failed.
        """

        async def start() -> None:
            await worker.start()
            # Nothing else has had a turn since, so whoever hears of it knows before anything is claimed.
            started()

        haste = asyncio.create_task(self._hasten(worker))
        try:
            # It can be told to stop also while the storage lets the start wait.
            await first(start(), self._asked.wait())
            if not self._asked.is_set():
                await first(worker.wait(), self._asked.wait())
        finally:
            try:
                await worker.stop(force=self._hurried.is_set())
            finally:
                haste.cancel()
                await asyncio.gather(haste, return_exceptions=True)

    async def _hasten(self, worker: Stoppable) -> None:
        await self._hurried.wait()
        await worker.stop(force=True)
