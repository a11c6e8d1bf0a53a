"""Finds the programs of PostgreSQL on this machine, and the user who runs them: a server refuses to run as root."""

import os
import pwd
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

DISTRIBUTIONS = ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin")
"""Where Debian and Red Hat put the programs of a server: not on the PATH."""


UNPRIVILEGED = 65534
"""The user who owns no file of the system."""


@cache
def postgres_programs() -> Path | None:
    """Return the folder of initdb, postgres and pg_basebackup: that of the `postgres` on the PATH, else the newest."""
    found = shutil.which("postgres")
    if found is not None:
        return Path(found).resolve().parent
    folders = [
        folder for pattern in DISTRIBUTIONS for folder in Path("/").glob(pattern) if (folder / "postgres").exists()
    ]
    return max(folders, key=lambda folder: version_of(folder / "postgres"), default=None)


@cache
def version_of(program: Path) -> tuple[int, ...]:
    """Return the version that a program prints: (15, 18)."""
    # A program of this machine, without a shell.
    printed = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout  # noqa: S603
    found = re.search(r"\b\d+(\.\d+)*", printed)
    if found is None:
        raise ValueError(f"{program} prints no version: {printed!r}")
    return tuple(map(int, found[0].split(".")))


@cache
def server_user() -> dict[str, Any]:
    """Return the arguments for `subprocess` that run a server: as an unprivileged user if this process is root."""
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwuid(UNPRIVILEGED)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def give_to_server(path: Path) -> Path:
    """Give a file or folder to the user who runs the servers, and return it."""
    if user := server_user():
        os.chown(path, user["user"], user["group"])
    return path
