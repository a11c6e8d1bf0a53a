"""Signal handlers that make a worker block its event loop, or hold its interpreter, for some seconds.

The signal's number selects the kind and the length. It may interrupt any line of the worker's main thread.
"""

import ctypes
import signal
import time
from pathlib import Path
from types import FrameType

LENGTHS = (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 25.0, 30.0)
"""Lengths in seconds. Each length has its own signal for each kind."""

BLOCK, HOLD_GIL = 0, len(LENGTHS)
"""The kinds, as offsets of their signals."""


def number(kind: int, place: int) -> int:
    """Return the signal for a kind and for a length, given by its index."""
    return signal.SIGRTMIN + 1 + kind + place


def obey() -> None:
    """Install the signal handlers in this process. Call this on its main thread."""
    for place in range(len(LENGTHS)):
        signal.signal(number(BLOCK, place), _block)
        signal.signal(number(HOLD_GIL, place), _hold_gil)


def obeys(pid: int, number: int) -> bool:
    """Return True if a process has a handler for a signal. Without one, the signal would kill the process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (number - 1) & 1)


def _block(number_: int, _: FrameType | None) -> None:
    time.sleep(LENGTHS[number_ - number(BLOCK, 0)])


def _hold_gil(number_: int, _: FrameType | None) -> None:
    # ctypes calls a PyDLL library without releasing the interpreter. Waiting for a lock that the caller itself holds is
    # not interrupted by signals.
    library, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(256)
    whole, rest = divmod(time.time_ns() + round(LENGTHS[number_ - number(HOLD_GIL, 0)] * 1e9), 10**9)
    library.pthread_mutex_init(lock, None)
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_timedlock(lock, (ctypes.c_long * 2)(whole, rest))
