"""Inspects other processes, and stops one without blocking the others."""

import os
import signal
import subprocess
import threading
from contextlib import nullcontext
from pathlib import Path

from tenure.storage.protocol import Storage
from tenure.storage.sqlite.locks import quiet
from tenure.storage.sqlite.storage import SQLiteStorage

PATIENCE = 5.0
"""Seconds within which a process stops after the signal."""

_LOOK = 0.002


def writers_lock(storage: Storage) -> str | None:
    """Return the file of the storage's write lock, or None if the storage has none."""
    return f"{storage.path}.lock" if isinstance(storage, SQLiteStorage) else None


def alive(pid: int) -> bool:
    """Return True if a process runs, and is not just a zombie."""
    return bool(_states(pid) - {"Z", "X"})


def pause(pid: int, lock_file: str | None) -> bool:
    """Stop a process with all its threads; return False if it is gone. Blocks for some milliseconds.

    `lock_file`: the storage's write lock, if there is one. A process that is stopped while it holds the lock would
    block all other writers. Therefore this function holds the lock meanwhile.
    """
    with quiet(lock_file) if lock_file is not None else nullcontext():
        if not send(pid, signal.SIGSTOP):
            return False
        waiting = threading.Event()
        for _ in range(round(PATIENCE / _LOOK)):
            states = _states(pid)
            # A thread that has not stopped yet could still take the write lock and stop then.
            if states and states <= {"T", "t"}:
                return True
            waiting.wait(_LOOK)
    send(pid, signal.SIGCONT)
    return False


def send(pid: int, number: int) -> bool:
    """Send a signal. Return False if the process does not exist."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _states(pid: int) -> set[str]:
    """Return the states of a process's threads as letters, or an empty set if the process does not exist."""
    if Path("/proc/self/stat").exists():
        return {state for task in _listed(Path(f"/proc/{pid}/task")) if (state := _state(task))}
    listed = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False)  # noqa: S603, S607 - a number, and the system's own ps
    return {listed.stdout.strip()[:1]} - {""}


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _state(task: Path) -> str:
    try:
        # The name in front of it is in parentheses and may contain any character.
        return (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
