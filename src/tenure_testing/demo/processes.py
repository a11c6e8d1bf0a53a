"""Inspects other processes, and stops one without blocking the others."""

import os
import signal
import subprocess
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from tenure.storage.postgres.address import PostgresAddress
from tenure.storage.protocol import Storage
from tenure.storage.sqlite.locks import quiet, written
from tenure.storage.sqlite.storage import SQLiteStorage

PATIENCE = 5.0
"""Seconds within which a process stops after the signal."""

_LOOK = 0.002


@contextmanager
def quiet_writers(storage: Storage) -> Generator[None]:
    """Let no process write meanwhile, if the storage has one writer at a time."""
    if isinstance(storage, SQLiteStorage):
        with quiet(f"{storage.path}.lock"):
            yield
    elif (address := _postgres(storage)) is not None:
        import psycopg

        with psycopg.connect(address.server) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [address.gate])
            yield
    else:
        yield


def is_writing(storage: Storage) -> bool:
    """Return True if this process has the storage's write lock, or on SQLite if any process has it."""
    if isinstance(storage, SQLiteStorage):
        return written(f"{storage.path}.lock")
    return any(getattr(storage, writer).busy for writer in ("flow", "care")) if _postgres(storage) else False


def _postgres(storage: Storage) -> PostgresAddress | None:
    address = getattr(storage, "address", None)
    return address if isinstance(address, PostgresAddress) else None


def alive(pid: int) -> bool:
    """Return True if a process runs, and is not just a zombie."""
    return bool(_states(pid) - {"Z", "X"})


def pause(pid: int, meanwhile: AbstractContextManager[object] | None = None) -> bool:
    """Stop a process with all its threads; return False if it is gone. Blocks for some milliseconds.

    `meanwhile`: holds the storage's write lock. A process that is stopped while it has the lock would block all other
    writers.
    """
    with meanwhile or nullcontext():
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
