"""Where the threads of a process are, also while it does nothing else: it writes that down at a signal.

faulthandler does so from within the signal handler, without the interpreter: a C call that holds the GIL for ever is
shown with the line that made it.
"""

import asyncio
import contextlib
import faulthandler
import fcntl
import os
import signal
import sys
import tempfile

from tenure.processes.process import Process

SIGNAL = getattr(signal, "SIGUSR2", None)
"""By which a child is asked where it is; a handler that has another use for it loses this one."""

PATIENCE = 1.0
"""Seconds that a child gets to answer; the kernel may keep it in a call that no signal ends."""

_LOOK = 0.01


class StackFile:
    """A file in memory that both have open: the child appends, its supervisor reads."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def new(cls) -> "StackFile":
        """Return an empty one."""
        if sys.platform == "linux":
            descriptor = os.memfd_create("tenure-stacks")
        else:
            descriptor, path = tempfile.mkstemp(prefix="tenure-stacks-")
            os.unlink(path)
        # Or what is written after it was emptied would stand behind a hole.
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)
        return cls(descriptor)

    def answer_here(self) -> None:
        """Have this process write down where its threads are, whenever it is asked."""
        if SIGNAL is not None:
            faulthandler.register(SIGNAL, file=self.descriptor, all_threads=True, chain=False)

    async def ask(self, child: Process) -> str:
        """Ask a child that has said hello where its threads are; empty if it does not answer."""
        if SIGNAL is None or child.stopped:
            return ""
        os.ftruncate(self.descriptor, 0)
        child.send(SIGNAL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                return await self._written()
        return self._read()

    def close(self) -> None:
        """Let go of it."""
        os.close(self.descriptor)

    async def _written(self) -> str:
        """Wait until something is there, and no more of it comes."""
        before = ""
        while True:
            await asyncio.sleep(_LOOK)
            now = self._read()
            if now and now == before:
                return now
            before = now

    def _read(self) -> str:
        size = os.fstat(self.descriptor).st_size
        return os.pread(self.descriptor, size, 0).decode(errors="replace")
