"""Handlers that misbehave, as some real ones do: one waits forever for an answer, one holds the interpreter."""

import ctypes
import inspect
import socket
import threading
from collections.abc import Callable

from tenure.clock import SystemClock

LONGEST = 60.0
"""Seconds after which even a hanging handler gives up. Its worker is killed long before."""

_TURN = 0.001
_CALM = 0.1


def wait_forever(say: Callable[[str], object]) -> None:
    """Wait for an answer that never comes, after reporting the line of the wait in the form of a traceback.

    Raises:
        TimeoutError: this process was not killed within `LONGEST` seconds.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(LONGEST)
        (here, *_) = inspect.stack(context=0)
        say(f'File "{__file__}", line {here.lineno + 2}')
        ours.recv(1)


def hold_interpreter(seconds: int, busy: Callable[[], bool]) -> float:
    """Keep all other threads of this process from running. Return for how many seconds none of them ran.

    It begins when `busy` returns False: a thread that is stopped inside a transaction would block all other processes.
    """
    uptime, over, longest = SystemClock().uptime, threading.Event(), 0.0

    def take_turns() -> None:
        nonlocal longest
        last = uptime()
        while not over.wait(_TURN):
            now = uptime()
            last, longest = now, max(longest, now - last)

    # ctypes calls a PyDLL library without releasing the interpreter.
    library, other = ctypes.PyDLL(None), threading.Thread(target=take_turns, daemon=True)
    other.start()
    over.wait(_CALM)
    while busy():
        over.wait(_TURN)
    library.sleep(seconds)
    # Otherwise this thread might end before the other one has run again.
    over.wait(_CALM)
    over.set()
    other.join()
    return longest
