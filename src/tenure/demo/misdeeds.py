"""What a handler had better not do, and what some do: wait for ever for an answer, hold the interpreter."""

import ctypes
import inspect
import socket
import threading
from collections.abc import Callable

from tenure.clock import SystemClock

LONGEST = 60.0
"""Seconds after which even a hanging handler gives up; its worker is killed long before."""

_TURN = 0.001
_CALM = 0.1


def wait_for_nobody(say: Callable[[str], object]) -> None:
    """Wait for an answer that never comes; say before where that is, as a traceback would.

    Raises:
        TimeoutError: nobody has killed this process.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(LONGEST)
        (here, *_) = inspect.stack(context=0)
        say(f'File "{__file__}", line {here.lineno + 2}')
        ours.recv(1)


def hold_interpreter(seconds: int, busy: Callable[[], bool]) -> float:
    """Let no other thread of this process have a turn; return for how many seconds none had one.

    It begins when nobody is `busy`: a thread that has to stop inside a transaction would stop all others with it.
    """
    uptime, over, longest = SystemClock().uptime, threading.Event(), 0.0

    def take_turns() -> None:
        nonlocal longest
        last = uptime()
        while not over.wait(_TURN):
            now = uptime()
            last, longest = now, max(longest, now - last)

    # A library loaded as PyDLL is called without letting go of the interpreter.
    library, other = ctypes.PyDLL(None), threading.Thread(target=take_turns, daemon=True)
    other.start()
    over.wait(_CALM)
    while busy():
        over.wait(_TURN)
    library.sleep(seconds)
    # Else it might end before it has had a turn again.
    over.wait(_CALM)
    over.set()
    other.join()
    return longest
