"""The storage of a chaos test: how it is started, the addresses of its members, and faults that it cannot have."""

import asyncio
import os
import sqlite3
import subprocess
from pathlib import Path
from typing import Protocol

from tenure.storage.sqlite.locks import lock_file

ROOM = 256
"""The size of a small disk in MiB: it can be filled at once."""

UNMOUNTED = "needs the right to mount a small disk"
"""Why the disk is not full, if this process may not mount one."""

_CHUNK = b"\0" * (1 << 20)


class ChaosStorage(Protocol):
    """A storage that faults can hit."""

    lock: str | None
    """The file of the write lock, if the storage has one."""

    without: dict[str, str]
    """Kinds of faults that are not possible here, each with its reason."""

    async def open(self) -> None:
        """Start the storage."""
        ...

    def url(self, member: str) -> str:
        """Return the address for a member. The name "" stands for the conductor, which is never cut off."""
        ...

    async def flaws(self) -> list[str]:
        """Return the flaws that the storage's own check finds after all processes have ended."""
        ...

    async def close(self) -> None:
        """Release all resources. Idempotent."""
        ...


class ChaosSQLite:
    """A SQLite file, on a separate small disk if this process may mount one."""

    def __init__(self, folder: Path) -> None:
        self.disk = folder / "disk"
        self.database = self.disk / "tenure.db"
        self.lock: str | None = lock_file(self.database)
        self.without: dict[str, str] = {}
        self._mounted = False

    async def open(self) -> None:
        """Create the folder, and mount the disk."""
        self.disk.mkdir()
        self._mounted = await mount(self.disk)
        if not self._mounted:
            self.without["full disk"] = UNMOUNTED

    def url(self, member: str) -> str:
        """Return the address, which is the same for all members."""
        return f"sqlite:///{self.database}"

    async def flaws(self) -> list[str]:
        """Return the flaws that SQLite finds in the file."""
        return await asyncio.to_thread(self._checked)

    def _checked(self) -> list[str]:
        connection = sqlite3.connect(self.database)
        try:
            rows = connection.execute("PRAGMA integrity_check").fetchall()
        finally:
            connection.close()
        return [str(row[0]) for row in rows if row[0] != "ok"]

    async def close(self) -> None:
        """Unmount the disk."""
        if self._mounted:
            await unmount(self.disk)
            self._mounted = False


async def mount(folder: Path) -> bool:
    """Put a small disk there. Return False if this process may not do that."""
    return os.geteuid() == 0 and await _did("mount", "-t", "tmpfs", "-o", f"size={ROOM}m", "tmpfs", str(folder))


async def unmount(folder: Path) -> None:
    """Take the disk away, even if a process that is just dying still has an open file there."""
    await _did("umount", "-l", str(folder))


def fill(path: Path) -> None:
    """Write until the disk is full. Halve the size of a write each time one fails."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = len(_CHUNK)
        while size:
            try:
                os.write(descriptor, _CHUNK[:size])
            except OSError:
                size //= 2
    finally:
        os.close(descriptor)


async def _did(*command: str) -> bool:
    try:
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:
        return False
    return await process.wait() == 0
