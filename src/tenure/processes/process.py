"""A child process: started in its own session, connected by a socket, and waited for to learn how it ended.

It does not use `asyncio.subprocess`, which reports only the exit status. A post-mortem also needs the peak memory of
the process, which `os.wait4` reports.

A child ends with its parent, together with all processes that it has started:

    on Linux: the kernel kills the child, even while a handler holds the interpreter
    on all systems: its socket to the parent is closed ──► a thread notices ──► it kills the whole process group
"""

import asyncio
import contextlib
import ctypes
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
from typing import NoReturn, Self

from msgspec import Struct

EXTRA_OOM_SCORE = 200
"""How much a child's `oom_score_adj` exceeds its parent's, in thousandths of all memory."""

_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024
"""The unit of `ru_maxrss`, in bytes."""

_PROC = Path("/proc/self/stat").exists()
"""True if the system has /proc."""


class ProcessExit(Struct, frozen=True):
    """How a process ended. `peak_memory`: the most memory that it occupied, in bytes; None if that is not known.

    It is the largest resident set of the process, or of a child that it waited for: the kernel reports the larger one.
    Shared pages count in full, swapped-out pages do not count.
    """

    status: int | None
    """The exit status; minus the signal's number if a signal ended it; None if the status could not be read."""
    peak_memory: int | None = None

    @property
    def signal(self) -> int | None:
        """The signal that ended it; None if it ended by itself, or if its status could not be read."""
        return -self.status if self.status is not None and self.status < 0 else None

    def __str__(self) -> str:
        if self.status is None:
            return "exit status unknown"
        if self.signal is None:
            return f"exit status {self.status}"
        try:
            return f"signal {self.signal} ({signal.Signals(self.signal).name})"
        except ValueError:
            return f"signal {self.signal} (unnamed)"


class Process:
    """A process that was started here. `line` is a stream socket; the process inherits its other end."""

    def __init__(self, process: "subprocess.Popen[bytes]", sock: socket.socket) -> None:
        self.pid = process.pid
        self.socket = sock
        self._process = process
        self._baseline = _own_peak()
        self._exit: asyncio.Future[ProcessExit] = asyncio.get_running_loop().create_future()
        threading.Thread(
            target=self._wait, args=(asyncio.get_running_loop(),), name=f"tenure-wait-{self.pid}", daemon=True
        ).start()

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        variable: str,
        config: str = "",
        pass_fds: Sequence[int] = (),
        env: Mapping[str, str],
    ) -> Self:
        """Start a process. It finds its end of the socket in an environment variable, as `descriptor:config`.

        `pass_fds`: further descriptors that it inherits.

        Raises:
            OSError: the process cannot be started, or no thread can be started to wait for its end.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                ours.setblocking(False)
                process = subprocess.Popen(  # noqa: S603 - our own command
                    list(command),
                    env={**env, variable: f"{theirs.fileno()}:{config}"},
                    pass_fds=[theirs.fileno(), *pass_fds],
                    stdin=subprocess.DEVNULL,
                    # In its own session, so that a signal to our group (Ctrl-C) reaches it once, through us.
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        _prefer_as_oom_victim(process.pid)
        try:
            return cls(process, ours)
        except RuntimeError as error:
            # Without this thread its exit would never be noticed.
            ours.close()
            process.kill()
            process.wait()
            raise OSError(errno.EAGAIN, f"no thread can wait for its end: {error}") from error

    async def wait(self) -> ProcessExit:
        """Wait until the process has exited and is reaped; return how it ended."""
        return await asyncio.shield(self._exit)

    @property
    def exit(self) -> ProcessExit | None:
        """How it ended; None while it runs."""
        return self._exit.result() if self._exit.done() else None

    @property
    def has_exited(self) -> bool:
        """Return True if the process has exited, even if no waiter has been notified."""
        if self.exit is not None:
            return True
        try:
            # WNOWAIT keeps it waitable for the thread that waits for its end.
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    @property
    def stopped(self) -> bool:
        """Return True if the process is stopped (SIGSTOP) or traced by a debugger, so that it does nothing."""
        if self.exit is not None:
            return False
        if _PROC:
            return is_stopped(self.pid)
        try:
            # WNOWAIT, as above.
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return False

    def send_signal(self, number: int) -> None:
        """Send it a signal. No other process can get it: the kernel reuses a process id only after we have waited."""
        if self.exit is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        """Send a signal to its process group: to it and to the processes that it has started there."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def write(self, messages: bytes) -> None:
        """Send bytes over its socket, if it still reads."""
        with contextlib.suppress(OSError):
            self.socket.send(messages)

    def kill_group(self) -> None:
        """Kill its whole process group and close the socket. For a process that has exited, or that must exit."""
        self.signal_group(signal.SIGKILL)
        self.socket.close()

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        exit_info = self._wait4()
        # Popen must not wait for the next process that gets this process id.
        self._process.returncode = exit_info.status or 0
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._exit.set_result, exit_info)

    def _wait4(self) -> ProcessExit:
        """Wait until the process has exited, and return how."""
        try:
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:
            # A handler has waited for any child, or a library ignores SIGCHLD, so that the kernel discards the status.
            return ProcessExit(None)
        peak = _peak(usage)
        # Until it had started its program, the child had its parent's memory: a peak below that says nothing about it.
        return ProcessExit(os.waitstatus_to_exitcode(status), peak if peak > self._baseline else None)


def is_stopped(pid: int) -> bool:
    """Return True if a process is stopped or traced, on Linux; False if the process does not exist."""
    try:
        # The process name is in brackets, and may itself contain brackets.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def reap_orphans(known: Collection[int]) -> int:
    """Reap exited orphans that we have inherited, as the first process of a container does; return how many.

    `known`: our own children, which their own threads wait for.
    """
    count = 0
    while True:
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return count
        if dead is None or dead.si_pid in known:
            # Orphans behind one of our own children are reaped by a later call.
            return count
        os.waitpid(dead.si_pid, os.WNOHANG)
        count += 1


def _prefer_as_oom_victim(pid: int) -> None:
    """Make the OOM killer prefer this process, and the processes that it will start, to its parent; on Linux.

    The kernel may need a second victim while the first one still exits. That must not be the parent, which recovers.
    """
    with contextlib.suppress(OSError, ValueError):
        ours = int(Path("/proc/self/oom_score_adj").read_text())
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(min(1000, ours + EXTRA_OOM_SCORE)))


def is_isolated_or_gone(pid: int) -> bool:
    """Return True if this process id names an isolated process or no process: it has not been reused elsewhere."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True
    return not command or b"tenure.worker.isolation.main" in command


def _peak(usage: resource.struct_rusage) -> int:
    return usage.ru_maxrss * _PEAK_UNIT


def _own_peak() -> int:
    """Return the most memory that this process has occupied, in bytes.

    On Linux `ru_maxrss` is not that: it also counts the memory of the process that started this one.
    """
    with contextlib.suppress(OSError, StopIteration):
        status = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in status if line.startswith("VmHWM:")).split()[1]) * 1024
    return _peak(resource.getrusage(resource.RUSAGE_SELF))


_PR_SET_PDEATHSIG = 1


def inherited_socket(descriptor: int) -> socket.socket:
    """Return our end of the socket to the parent process; processes that handlers start do not inherit it.

    Raises:
        OSError: the descriptor is not a socket.
    """
    line = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    return line


def end_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends; on Linux only."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def kill_own_group() -> NoReturn:
    """Kill this process and its process group at once, because the parent has died.

    Nothing of it may run in parallel with the runs that replace its own.
    """
    with contextlib.suppress(OSError):
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
    os._exit(1)
