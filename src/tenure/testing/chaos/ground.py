"""What the crew stands on: a storage of its own, the addresses that lead to it, and its own kinds of faults."""

import asyncio
import os
import sqlite3
import subprocess
from pathlib import Path
from typing import Protocol

from tenure.storage.sqlite.locks import lock_file

ROOM = 256
"""The disk of a SQLite ground, in MiB: so small that filling it takes no time."""


class Ground(Protocol):
    """A storage that may be struck."""

    lock: str | None
    """The file that its writers take turns by, if they do."""

    without: dict[str, str]
    """Kinds of faults that cannot be had here, each with its reason."""

    async def open(self) -> None:
        """Make it ready."""
        ...

    def url(self, member: str) -> str:
        """Return the address that a member of the crew shall use; "" is for the conductor, who is never cut off."""
        ...

    async def flaws(self) -> list[str]:
        """Return what its own check of itself finds, when all have left."""
        ...

    async def close(self) -> None:
        """Let go of it. Idempotent."""
        ...


class SQLiteGround:
    """One file; on a small disk of its own where this process may make one."""

    def __init__(self, folder: Path) -> None:
        self.disk = folder / "disk"
        self.database = self.disk / "tenure.db"
        self.lock: str | None = lock_file(self.database)
        self.without: dict[str, str] = {}
        self._mounted = False

    async def open(self) -> None:
        """Make the disk."""
        self.disk.mkdir()
        if os.geteuid() == 0:
            self._mounted = await _did("mount", "-t", "tmpfs", "-o", f"size={ROOM}m", "tmpfs", str(self.disk))
        if not self._mounted:
            self.without["full disk"] = "needs the right to mount a small disk"

    def url(self, member: str) -> str:
        """Return the address, the same for all."""
        return f"sqlite:///{self.database}"

    async def flaws(self) -> list[str]:
        """Return what SQLite finds wrong with the file."""
        return await asyncio.to_thread(self._checked)

    def _checked(self) -> list[str]:
        connection = sqlite3.connect(self.database)
        try:
            rows = connection.execute("PRAGMA integrity_check").fetchall()
        finally:
            connection.close()
        return [str(row[0]) for row in rows if row[0] != "ok"]

    async def close(self) -> None:
        """Give the disk back."""
        if self._mounted:
            # Lazily, for a process that dies just now may still hold a file.
            await _did("umount", "-l", str(self.disk))
            self._mounted = False


async def _did(*command: str) -> bool:
    try:
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:
        return False
    return await process.wait() == 0
