"""The part of `tenure doctor` for SQLite: finds conditions that could lose or repeat jobs, and their remedies."""

import contextlib
import os
import shutil
import sqlite3
from glob import glob

from tenure.storage.protocol import Finding
from tenure.storage.sql.audit import counters
from tenure.storage.sql.transaction import Transaction
from tenure.storage.sqlite import filesystem_check
from tenure.storage.sqlite.database import Database

SOUND = (3, 51, 3)
_SCARCE = 100 << 20
_LONG_LOG = 256 << 20
"""Four times the size that SQLite truncates the log to after a full checkpoint (`wal_limit` in session.sql)."""


def examine(tx: Transaction, database: Database, *, deep: bool) -> list[Finding]:
    """Check the library, the file and its location; with `deep` read the whole file."""
    quick = [
        library(sqlite3.sqlite_version_info),
        _durability(database),
        _schema(tx),
        _place(database.path),
        _room(database.path),
        _journal(tx),
        log(database.path),
        _lock_file(database.lock_path),
    ]
    return [*quick, _integrity(tx), counters(tx)] if deep else quick


def library(version: tuple[int, ...]) -> Finding:
    """Report whether a SQLite version has the WAL-reset bug, which can corrupt a database."""
    name = ".".join(map(str, version))
    if version >= SOUND:
        return Finding("ok", "sqlite", f"SQLite {name}, without the WAL-reset bug of 3.7.0 to 3.51.2")
    # Not a warning: use through Tenure alone is safe, and most Python builds have such a version.
    return Finding(
        "ok",
        "sqlite",
        f"SQLite {name} is, by its number, one of those (3.7.0 to 3.51.2) that can in rare cases corrupt a database "
        "when one connection checkpoints while another commits. Tenure avoids it: it checkpoints only under a lock "
        "that all its own commits take, too; other programs that write to this file do not",
        "if there are such programs, turn their automatic checkpoints off (PRAGMA wal_autocheckpoint = 0), or use a "
        "Python with SQLite 3.51.3 or newer",
    )


def _durability(database: Database) -> Finding:
    if database.durability == "full":
        return Finding("ok", "durability", "every commit reaches the disk before it is acknowledged")
    return Finding(
        "warning",
        "durability",
        "the last commits may be lost if the machine loses power (durability='fast')",
        "use durability='full'",
    )


def _schema(tx: Transaction) -> Finding:
    row = tx.one("session.version")
    return Finding("ok", "schema", f"schema {row[0] if row else 0}")


def _place(path: str) -> Finding:
    kind = filesystem_check.file_system(path)
    if not filesystem_check.is_maybe_shared(kind):
        return Finding("ok", "file system", f"{path} lies on {kind or 'a file system of unknown type'}")
    return Finding(
        "warning",
        "file system",
        f"{path} lies on {kind}, which may be shared with another machine",
        "make sure that only this machine uses it, or move the file to a local disk",
    )


def _room(path: str) -> Finding:
    free = shutil.disk_usage(os.path.dirname(path)).free
    if free >= _SCARCE:
        return Finding("ok", "disk", f"{free >> 20:,} MiB free")
    return Finding("warning", "disk", f"only {free >> 20:,} MiB free", "free some space before enqueueing is refused")


def _journal(tx: Transaction) -> Finding:
    row = tx.one("session.journal")
    return journal(str(row[0]) if row else "unknown")


def journal(mode: str) -> Finding:
    """Report whether the journal mode is the one requested when the file was opened."""
    if mode == "wal":
        return Finding("ok", "journal", "a write-ahead log: readers and writers do not wait for each other")
    return Finding(
        "error",
        "journal",
        f"the journal mode is {mode} and cannot be set to wal: readers hold up writers, and a claim takes long",
        "stop other programs that hold the file, and see that it lies on a local disk; then restart the workers",
    )


def log(path: str) -> Finding:
    """Report whether the write-ahead log was deleted, and, by its length, whether it gets checkpointed."""
    users = _users_of_deleted(f"{path}-wal")
    if users:
        return Finding(
            "error",
            "log",
            f"{path}-wal was deleted while processes use it ({', '.join(users)}): its commits exist only as long as "
            "these run",
            "do not stop these processes: their next write copies the commits into the file; find what deletes it",
        )
    try:
        size = os.path.getsize(f"{path}-wal")
    except FileNotFoundError:
        size = 0
    if size < _LONG_LOG:
        return Finding("ok", "log", f"the write-ahead log takes {size / (1 << 20):,.1f} MiB")
    return Finding(
        "warning",
        "log",
        f"the write-ahead log takes {size >> 20:,} MiB: it has not been copied into the file for long",
        "start a worker or tenure reaper if none runs; else look for a program that holds a read transaction "
        "open on this file, such as a backup or a forgotten shell",
    )


def _users_of_deleted(path: str) -> list[str]:
    """Return the ids of the processes that have this deleted file open, of those that this process may look at."""
    gone, users = f"{os.path.realpath(path)} (deleted)", set[str]()
    for link in glob("/proc/[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(link) == gone and os.stat(link).st_size:
                users.add(link.split("/")[2])
    return sorted(users, key=int)


def _lock_file(path: str) -> Finding:
    if os.path.exists(path):
        return Finding("ok", "lock file", path)
    return Finding(
        "error",
        "lock file",
        f"{path} is gone, so processes cannot see each other",
        "never delete it; it comes back with the next write",
    )


def _integrity(tx: Transaction) -> Finding:
    row = tx.one("session.integrity")
    if row is not None and row[0] == "ok":
        return Finding("ok", "integrity", "the file is sound")
    return Finding(
        "error",
        "integrity",
        f"the file is damaged: {row[0] if row else 'no answer'}",
        "stop all workers, keep a copy, restore a backup or save what can be read with `sqlite3 <file> .recover`",
    )
