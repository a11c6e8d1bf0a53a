"""A worker process as its supervisor's child: told who it is, saying when it is ready, dying when it is orphaned."""

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
from typing import Self

import msgspec

from holdfast.errors import UsageError

VARIABLE = "HOLDFAST_CHILD"
"""Carries the descriptor of the child's line to its supervisor, and the owner id chosen for it."""

GOODBYE = b"goodbye\n"
"""What a child says that has handed back what it held and ends for that."""

_PR_SET_PDEATHSIG = 1


class Hello(msgspec.Struct, frozen=True):
    """What a child says on its line when it is ready: where the jobs are remembered."""

    url: str


class Child:
    """The child's end of the line. Its other end closes with the supervisor, and then this process goes at once."""

    def __init__(self, line: socket.socket, incarnation: str) -> None:
        self.incarnation = incarnation
        self._line = line

    @classmethod
    def from_environment(cls) -> Self | None:
        """Return this process as a child, or None if it has no supervisor.

        Raises:
            UsageError: the variable is set, but not by a supervisor.
        """
        told = os.environ.pop(VARIABLE, None)
        if told is None:
            return None
        descriptor, _, incarnation = told.partition(":")
        try:
            line = socket.socket(fileno=int(descriptor))
        except (ValueError, OSError) as error:
            raise UsageError(f"{VARIABLE} = {told!r} is set by hand; unset it, the supervisor sets its own") from error
        line.set_inheritable(False)
        return cls(line, incarnation)

    def hello(self, url: str) -> None:
        """Tell the supervisor where the jobs are remembered, and follow it into death from now on."""
        if sys.platform == "linux":
            # The kernel's own net: it works while a handler holds the interpreter.
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        threading.Thread(target=self._follow, name="holdfast-orphan", daemon=True).start()
        self._line.sendall(msgspec.json.encode(Hello(url)) + b"\n")

    def goodbye(self) -> None:
        """Tell the supervisor that nothing is left to be taken back."""
        with contextlib.suppress(OSError):
            self._line.sendall(GOODBYE)

    def _follow(self) -> None:
        with contextlib.suppress(OSError):
            while self._line.recv(64):
                pass
        # Handlers must not go on beside the runs that replace theirs, nor must what they have started.
        with contextlib.suppress(OSError):
            if os.getpgid(0) == os.getpid():
                os.killpg(0, signal.SIGKILL)
        os._exit(1)
