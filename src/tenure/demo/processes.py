"""What the system tells of other processes, and how one is stopped without stopping the others with it."""

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
"""Seconds within which a process that was told to stop does."""

_LOOK = 0.002


def writers_lock(storage: Storage) -> str | None:
    """Return the file that the writers of a storage take turns by, None where the storage sees to that alone."""
    return f"{storage.path}.lock" if isinstance(storage, SQLiteStorage) else None


def alive(pid: int) -> bool:
    """Say whether a process is there and not merely waiting to be buried."""
    return bool(_states(pid) - {"Z", "X"})


def pause(pid: int, lock_file: str | None) -> bool:
    """Stop a process with all its threads; return False if it is gone. Blocks for some milliseconds.

    `lock_file`: that of the writers, if the storage has one. A process stopped within its turn to write would keep all
    others from writing, so it is stopped while the turn is ours.
    """
    with quiet(lock_file) if lock_file is not None else nullcontext():
        if not send(pid, signal.SIGSTOP):
            return False
        waiting = threading.Event()
        for _ in range(round(PATIENCE / _LOOK)):
            states = _states(pid)
            # One thread still on its way might yet take the turn to write and stop then.
            if states and states <= {"T", "t"}:
                return True
            waiting.wait(_LOOK)
    send(pid, signal.SIGCONT)
    return False


def send(pid: int, number: int) -> bool:
    """Send a signal; return False if there is no such process."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _states(pid: int) -> set[str]:
    """Return the states of a process's threads, as one letter each; none if there is no such process."""
    if Path("/proc/self/stat").exists():
        return {state for task in _listed(Path(f"/proc/{pid}/task")) if (state := _state(task))}
    told = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False)  # noqa: S603, S607 - a number, and the system's own ps
    return {told.stdout.strip()[:1]} - {""}


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _state(task: Path) -> str:
    try:
        # The name before it stands in parentheses and may hold anything.
        return (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
