"""What endangers the promise, and its remedy: the part of `holdfast doctor` that knows SQLite."""

import os
import shutil
import sqlite3

from holdfast.storage.protocol import Finding
from holdfast.storage.sqlite import place
from holdfast.storage.sqlite.database import Database
from holdfast.storage.sqlite.queries import query
from holdfast.storage.sqlite.step import Step

_SOUND = (3, 51, 3)
_SCARCE = 100 << 20


def examine(step: Step, database: Database) -> list[Finding]:
    """Look at the library, the file, and the place where it lies."""
    return [
        _library(sqlite3.sqlite_version_info),
        _durability(database),
        _schema(step),
        _place(database.path),
        _room(database.path),
        _lock_file(database.lock_path),
        _integrity(step),
        _counters(step),
    ]


def _library(version: tuple[int, ...]) -> Finding:
    name = ".".join(map(str, version))
    if version >= _SOUND:
        return Finding("ok", "sqlite", f"SQLite {name}")
    return Finding(
        "ok",
        "sqlite",
        f"SQLite {name} can corrupt a database when one connection checkpoints while another commits; Holdfast avoids "
        "it by checkpointing only under its own lock",
        "if other programs write to this file, turn their automatic checkpoints off, or use SQLite 3.51.3 or newer",
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


def _schema(step: Step) -> Finding:
    row = step.one(query("session", "version"))
    return Finding("ok", "schema", f"schema {row[0] if row else 0}")


def _place(path: str) -> Finding:
    kind = place.file_system(path)
    if not place.doubtful(kind):
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


def _lock_file(path: str) -> Finding:
    if os.path.exists(path):
        return Finding("ok", "lock file", path)
    return Finding(
        "error",
        "lock file",
        f"{path} is gone, so processes cannot see each other",
        "never delete it; it comes back with the next write",
    )


def _integrity(step: Step) -> Finding:
    row = step.one(query("session", "quick_check"))
    if row is not None and row[0] == "ok":
        return Finding("ok", "integrity", "the file is sound")
    return Finding(
        "error",
        "integrity",
        f"the file is damaged: {row[0] if row else 'no answer'}",
        "stop all workers, keep a copy, restore a backup or save what can be read with `sqlite3 <file> .recover`",
    )


def _counters(step: Step) -> Finding:
    wrong = [row for audit in ("recount", "recount_calls", "recount_keys") for row in step.all(query("tally", audit))]
    if not wrong:
        return Finding("ok", "counters", "the counts agree with the jobs")
    return Finding(
        "error",
        "counters",
        f"{len(wrong)} counts of jobs, of slots under a key, or of gathered calls are wrong",
        "report a bug",
    )
