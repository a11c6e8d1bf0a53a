"""How a process of ours ends with whoever has started it, and all that it has started itself with it.

the kernel kills it where it can, also while a handler holds the interpreter; everywhere else, and for what it has
started: its line is closed ──► a thread notices ──► the whole group is killed
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


def inherited(descriptor: int) -> socket.socket:
    """Return our end of the line to whoever has started us; what a handler starts does not come by it.

    Raises:
        OSError: it is none.
    """
    line = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    return line


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread ends that has started it; on Linux."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with_all() -> NoReturn:
    """End at once, for nobody is left to whom this process belongs; with all that it has started.

    Nothing may go on beside the runs that replace its own.
    """
    with contextlib.suppress(OSError):
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
    os._exit(1)
