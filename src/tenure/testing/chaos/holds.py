"""Handlers that let nothing else go on: a signal makes a worker block its loop, or hold its interpreter, for so long.

The number of the signal says which and for how long. What it interrupts may be any line of the worker's main thread.
"""

import ctypes
import signal
import time
from pathlib import Path
from types import FrameType

LENGTHS = (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 25.0, 30.0)
"""Seconds; each has a signal of its own for each kind."""

BLOCK, GRIP = 0, len(LENGTHS)
"""The kinds, as offsets of their signals."""


def number(kind: int, place: int) -> int:
    """Return the signal for a kind, and a length by its place."""
    return signal.SIGRTMIN + 1 + kind + place


def obey() -> None:
    """Do as these signals say, in this process from now on; in its main thread."""
    for place in range(len(LENGTHS)):
        signal.signal(number(BLOCK, place), _block)
        signal.signal(number(GRIP, place), _grip)


def obeys(pid: int, number: int) -> bool:
    """Say whether a process has a handler for a signal, which would kill it else."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (number - 1) & 1)


def _block(number_: int, _: FrameType | None) -> None:
    time.sleep(LENGTHS[number_ - number(BLOCK, 0)])


def _grip(number_: int, _: FrameType | None) -> None:
    # A library loaded as PyDLL is called without letting go of the interpreter; and the wait for a lock that the caller
    # holds itself is one that no signal cuts short.
    library, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(256)
    whole, rest = divmod(time.time_ns() + round(LENGTHS[number_ - number(GRIP, 0)] * 1e9), 10**9)
    library.pthread_mutex_init(lock, None)
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_timedlock(lock, (ctypes.c_long * 2)(whole, rest))
