"""Dumps the stacks of a child process's threads at a signal, even if the process is blocked.

faulthandler writes the dump inside the signal handler, without the interpreter. So it shows the line of a C call that
never releases the GIL.
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
"""The signal that asks a child for its stacks. A handler cannot use this signal for another purpose."""

ANSWER_TIMEOUT = 1.0
"""Seconds that a child gets to answer. The kernel may hold it in a call that no signal interrupts."""

_CHECK_INTERVAL = 0.01


class StackFile:
    """A file in memory that both processes have open: the child appends, its supervisor reads."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def new(cls) -> "StackFile":
        """Return an empty stack file."""
        if sys.platform == "linux":
            descriptor = os.memfd_create("tenure-stacks")
        else:
            descriptor, path = tempfile.mkstemp(prefix="tenure-stacks-")
            os.unlink(path)
        # Append mode: otherwise a write after `ftruncate` would leave a hole before it.
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)
        return cls(descriptor)

    def register(self) -> None:
        """Make this process write the stacks of its threads whenever it is asked."""
        if SIGNAL is not None:
            faulthandler.register(SIGNAL, file=self.descriptor, all_threads=True, chain=False)

    async def read_from(self, child: Process) -> str:
        """Return the stacks of a child that has sent `ChildStarted`; empty if it does not answer."""
        if SIGNAL is None or child.stopped:
            return ""
        os.ftruncate(self.descriptor, 0)
        child.send_signal(SIGNAL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_TIMEOUT):
                return await self._written()
        return self._read()

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)

    async def _written(self) -> str:
        """Wait until the file has text and does not grow any more."""
        before = ""
        while True:
            await asyncio.sleep(_CHECK_INTERVAL)
            now = self._read()
            if now and now == before:
                return now
            before = now

    def _read(self) -> str:
        size = os.fstat(self.descriptor).st_size
        return os.pread(self.descriptor, size, 0).decode(errors="replace")
