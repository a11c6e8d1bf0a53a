"""Finds the permission that this process lacks on a database, its directory or the files next to it."""

import os
import pwd
import stat
from pathlib import Path

_SUFFIXES = ("", "-wal", "-shm", ".lock")
"""The files of a database: itself, SQLite's log and its index, and our lock file."""


def missing_permission(path: str) -> str | None:
    """Return who lacks which right on which path, with the remedy; None if no right is missing."""
    folder = Path(path).parent
    for place in reversed([folder, *folder.parents]):
        if not place.exists():
            return None
        if not os.access(place, os.X_OK):
            return f"user {_user()} may not enter the directory {_described(place)}; give the right to search it (x)"
    if _is_mounted_read_only(folder):
        return f"the file system of {path} is mounted read-only; mount it writable, or name a file elsewhere"
    if not os.access(folder, os.W_OK):
        return (
            f"user {_user()} may not write the directory {_described(folder)}, where SQLite keeps the "
            f"-wal and -shm files of {Path(path).name}; give the right to write (w) on the directory, or name a file "
            "elsewhere"
        )
    for file in (Path(path + suffix) for suffix in _SUFFIXES):
        rights = [name for name, mode in (("read", os.R_OK), ("write", os.W_OK)) if not os.access(file, mode)]
        if rights and file.exists():
            needed = " and ".join(f"{name} ({name[0]})" for name in rights)
            return f"user {_user()} may not {' or '.join(rights)} {_described(file)}; give the right to {needed}"
    return None


def _is_mounted_read_only(folder: Path) -> bool:
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _described(path: Path) -> str:
    """Return a path with its permissions and its owner."""
    try:
        found = path.stat()
    except OSError:
        return str(path)
    return f"{path} ({stat.filemode(found.st_mode)}, owner {_name(found.st_uid)})"


def _user() -> str:
    return _name(os.geteuid())


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        # A container may run as a user without a name.
        return str(uid)
