"""Ends a child process, with all processes that it has started, when its parent dies.

on Linux: the kernel kills the child, even while a handler holds the interpreter
on all systems: its socket to the parent is closed ──► a thread notices ──► it kills the whole process group
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys
from typing import NoReturn

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
