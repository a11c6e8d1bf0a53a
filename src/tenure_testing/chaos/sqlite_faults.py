"""Faults of a SQLite file: a foreign writer, a full disk, and processes that die during a commit."""

import asyncio
import signal
import sqlite3
from pathlib import Path

from tenure.storage.sqlite.locks import written
from tenure_testing.chaos.faults import Fault, Field, stop_writer
from tenure_testing.chaos.storage import ChaosSQLite, fill
from tenure_testing.demo.processes import send

HELD = (1.0, 9.0)
"""Seconds for which a foreign writer holds the file. Tenure's connections give up waiting after five."""

FULL = (1.0, 8.0)
"""Seconds for which the disk is full."""

WATCHED = 2000
"""How often the test looks for a writer before it kills the workers anyway."""


async def foreign_writer(field: Field) -> bool:
    """Hold the file by a transaction of a program that does not use Tenure's write lock."""
    storage = _storage_of(field)
    if storage is None or field.is_struck("storage"):
        return False
    with field.striking("storage"):
        connection = await asyncio.to_thread(_taken, storage.database)
        if connection is None:
            return False
        deed = field.note("foreign writer", "outage", "storage")
        try:
            await field.rest(HELD)
        finally:
            connection.rollback()
            connection.close()
        await field.healed(deed)
    return True


async def full_disk(field: Field) -> bool:
    """Fill the disk to its last byte."""
    storage = _storage_of(field)
    if storage is None or "full disk" in storage.without or field.is_struck("storage"):
        return False
    with field.striking("storage"):
        filler = storage.disk / "filler"
        deed = field.note("full disk", "outage", "storage")
        try:
            await asyncio.to_thread(fill, filler)
            await field.rest(FULL)
        finally:
            filler.unlink(missing_ok=True)
        await field.healed(deed)
    return True


async def kill_in_commit(field: Field) -> bool:
    """Kill the workers of all hosts at once, while one of the processes holds the write lock."""
    storage = _storage_of(field)
    hosts = [member for member in field.processes.of("host") if member.pid and not field.is_struck(member.name)]
    if storage is None or not hosts or storage.lock is None:
        return False
    with field.striking(*(member.name for member in hosts)):
        workers = {member.name: member.workers() for member in hosts}
        for _ in range(WATCHED):
            if written(storage.lock):
                break
            await asyncio.sleep(0)
        deeds = [field.note("kill in commit", "death", name, pids, alone=True) for name, pids in workers.items()]
        for pids in workers.values():
            for pid in pids:
                send(pid, signal.SIGKILL)
        for _ in range(100):
            if all(len(member.workers()) >= len(workers[member.name]) for member in hosts):
                break
            await field.rest((0.1, 0.1))
        for deed in deeds:
            field.over(deed)
    return True


SQLITE: dict[str, Fault] = {
    "foreign writer": foreign_writer,
    "full disk": full_disk,
    "kill in commit": kill_in_commit,
    "stop writer": stop_writer,
}
"""Faults of a SQLite file, by name."""


def _storage_of(field: Field) -> ChaosSQLite | None:
    return field.storage if isinstance(field.storage, ChaosSQLite) else None


def _taken(database: Path) -> sqlite3.Connection | None:
    connection = sqlite3.connect(database, timeout=5, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        connection.close()
        return None
    return connection
