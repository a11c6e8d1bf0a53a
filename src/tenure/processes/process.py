"""A process of ours: started in a session of its own, with a line to it, and waited for until we know how it ended.

Not asyncio's: that waits with what tells no more than the status, and how much memory a process had taken when it was
killed is what a post-mortem begins with.
"""

import asyncio
import contextlib
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Self

from msgspec import Struct

OFFERED = 200
"""By how many thousandths of all memory a process of ours seems larger to the kernel than whoever has started it."""

_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes that the system counts a process's peak in."""

_PROC = Path("/proc/self/stat").exists()
"""Whether the system shows the states of processes as files."""


class ProcessExit(Struct, frozen=True):
    """How a process ended. `peak_memory`: the most that it had occupied, in bytes, where the system tells.

    It is the largest resident set of the process, or of one that it had started itself and waited for: the kernel
    counts them as one. Pages that are shared count in full, those swapped out not at all.
    """

    status: int | None
    """The exit status; of a process that a signal ended, minus its number; None if nobody has seen how it ended."""
    peak_memory: int | None = None

    @property
    def signal(self) -> int | None:
        """The signal that ended it, None if it ended by itself, or nobody has seen how."""
        return -self.status if self.status is not None and self.status < 0 else None

    def __str__(self) -> str:
        if self.status is None:
            return "nobody saw how"
        if self.signal is None:
            return f"exit status {self.status}"
        try:
            return f"signal {self.signal} ({signal.Signals(self.signal).name})"
        except ValueError:
            return f"signal {self.signal} (unnamed)"


class Process:
    """A process that was started here. Its line is a stream socket, whose other end it got as a descriptor."""

    def __init__(self, process: "subprocess.Popen[bytes]", line: socket.socket) -> None:
        self.pid = process.pid
        self.line = line
        self._process = process
        self._baseline = _peak(resource.getrusage(resource.RUSAGE_SELF))
        self._death: asyncio.Future[ProcessExit] = asyncio.get_running_loop().create_future()
        threading.Thread(
            target=self._wait, args=(asyncio.get_running_loop(),), name=f"tenure-waits-for-{self.pid}", daemon=True
        ).start()

    @classmethod
    def started(
        cls, command: Sequence[str], *, variable: str, told: str = "", give: Sequence[int] = (), env: Mapping[str, str]
    ) -> Self:
        """Start a process. It finds its end of the line in an environment variable, as `descriptor:told`.

        `give`: the descriptors that it inherits beside.

        Raises:
            OSError: it cannot be started, or there is no thread to wait for its end in.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                ours.setblocking(False)
                process = subprocess.Popen(  # noqa: S603 - our own command
                    list(command),
                    env={**env, variable: f"{theirs.fileno()}:{told}"},
                    pass_fds=[theirs.fileno(), *give],
                    stdin=subprocess.DEVNULL,
                    # Of its own session, so a signal to our group (Ctrl-C) comes through us, and once.
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        _offer(process.pid)
        try:
            return cls(process, ours)
        except RuntimeError as error:
            # Nobody would ever hear of its death.
            ours.close()
            process.kill()
            process.wait()
            raise OSError(errno.EAGAIN, f"no thread can wait for its end: {error}") from error

    async def ended(self) -> ProcessExit:
        """Wait until it is dead, and buried in the process table."""
        return await asyncio.shield(self._death)

    @property
    def death(self) -> ProcessExit | None:
        """How it ended, None while it lives."""
        return self._death.result() if self._death.done() else None

    @property
    def gone(self) -> bool:
        """Whether it is dead, be it that nobody has been told yet."""
        if self.death is not None:
            return True
        try:
            # It stays waitable: whoever waits for its end must not miss it.
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    @property
    def stopped(self) -> bool:
        """Whether somebody has stopped it (SIGSTOP), or looks at it with a debugger: it lives and does nothing."""
        if self.death is not None:
            return False
        if _PROC:
            return stands_still(self.pid)
        try:
            # It stays waitable, too.
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return False

    def send(self, number: int) -> None:
        """Send it a signal; to nobody else, for its number is not given away before we have waited for it."""
        if self.death is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def send_all(self, number: int) -> None:
        """Send a signal to it and to whatever it has started in its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def say(self, words: bytes) -> None:
        """Say something on its line, if it still listens."""
        with contextlib.suppress(OSError):
            self.line.send(words)

    def sweep_up(self) -> None:
        """Kill whatever it had started and is still there, and close the line. For when it is dead, or shall be."""
        self.send_all(signal.SIGKILL)
        self.line.close()

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        death = self._seen()
        # Popen must not wait for whoever has the number next.
        self._process.returncode = death.status or 0
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._death.set_result, death)

    def _seen(self) -> ProcessExit:
        """Wait until it is dead, and return what there was to see of it."""
        try:
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:
            # A handler has waited for any child, or one of its libraries ignores SIGCHLD, so that the kernel waits.
            return ProcessExit(None)
        peak = _peak(usage)
        # What it was forked from counts as its own; no more than that tells nothing of it.
        return ProcessExit(os.waitstatus_to_exitcode(status), peak if peak > self._baseline else None)


def stands_still(pid: int) -> bool:
    """Say whether a process is stopped or traced; on Linux. One that is not there is not."""
    try:
        # Its name stands in brackets, and may hold any.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def bury_strangers(known: Collection[int]) -> int:
    """Wait for the dead that others left to us, as orphans are to the first process of a container; return how many.

    `known`: the children of our own, whom somebody waits for.
    """
    many = 0
    while True:
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return many
        if dead is None or dead.si_pid in known:
            # Whoever is behind that one has time.
            return many
        os.waitpid(dead.si_pid, os.WNOHANG)
        many += 1


def _offer(pid: int) -> None:
    """Have the kernel take a process before us, where it kills for memory, and with it what that will start; on Linux.

    While its first victim is still on its way out it may need another one. That must not be who sees the deaths.
    """
    with contextlib.suppress(OSError, ValueError):
        ours = int(Path("/proc/self/oom_score_adj").read_text())
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(min(1000, ours + OFFERED)))


def slot_or_gone(pid: int) -> bool:
    """Say whether nobody else has been given the number of a slot's process meanwhile."""
    try:
        told = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True
    return not told or b"tenure.worker.isolation.main" in told


def _peak(usage: resource.struct_rusage) -> int:
    return usage.ru_maxrss * _PEAK_UNIT
