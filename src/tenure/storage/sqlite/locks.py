"""Kernel locks between processes of one machine: one file, with a byte for writers and a byte for each owner.

The locks belong to the open file (OFD locks), not to the process. So they also work between two storages of one
process, and they are not lost when other code opens and closes the file. The kernel releases them when the last
descriptor is closed, at the latest when the process dies. Therefore a forked child must close the descriptors that it
inherits.
"""

import errno
import fcntl
import os
import struct
import sys
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import blake2b

from tenure.errors import StorageError, StorageUnavailableError
from tenure.storage.sqlite.permissions import missing_permission

_DARWIN = sys.platform == "darwin"
# Older Pythons define these names on Linux only. The numbers are part of each system's interface.
_GETLK: int = getattr(fcntl, "F_OFD_GETLK", 92 if _DARWIN else 36)
_SETLK: int = getattr(fcntl, "F_OFD_SETLK", 90 if _DARWIN else 37)
_SETLKW: int = getattr(fcntl, "F_OFD_SETLKW", 91 if _DARWIN else 38)
# struct flock: (type, whence, start, len, pid) on Linux, (start, len, pid, type, whence) on Darwin.
_FLOCK = struct.Struct("@qqihh" if _DARWIN else "@hhqqi4x")

_WRITERS = 0


class Locks:
    """The lock file next to a database. One thread uses it at a time.

    It holds its locks until it is closed or garbage-collected.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd: int | None = None
        self._file: tuple[int, int] | None = None
        self._owners: set[str] = set()
        self._guarded: set[str] = set()
        self._signed_off: set[str] = set()
        self._seen_alive: set[str] | None = None
        """The owners seen alive since the lock file was replaced; None if it was never replaced."""

    @contextmanager
    def writing(self) -> Generator[None]:
        """Be the only writer on this machine while the block runs."""
        self._lock_for_writing()
        try:
            yield
        finally:
            if self._fd is not None:
                _apply(self._fd, _SETLK, _UNLOCK_WRITERS)

    def hold(self, owner: str) -> None:
        """Hold an owner's life lock from now on, until `close` or the end of the process."""
        self._signed_off.discard(owner)
        if owner not in self._owners and _share(self._open(), _byte(owner)):
            self._owners.add(owner)

    def guard(self, owner: str) -> None:
        """Hold the life lock of another process's owner too, so that it outlasts that process, until `release`."""
        if owner not in self._guarded and _share(self._open(), _byte(owner)):
            self._guarded.add(owner)

    def release(self, owner: str) -> None:
        """Stop guarding an owner. Idempotent."""
        if owner in self._guarded:
            self._guarded.discard(owner)
            if owner not in self._owners and self._fd is not None:
                _lock(self._fd, _SETLK, fcntl.F_UNLCK, _byte(owner))

    def sign_off(self, owner: str) -> None:
        """Record that an owner has signed off. Its process is alive, so its life lock is kept until `close`."""
        self._signed_off.add(owner)

    @property
    def has_owners(self) -> bool:
        """True if this object holds the life lock of an owner that has not signed off."""
        return not self._owners <= self._signed_off

    def holds(self, owner: str) -> bool:
        """Return True if this object holds the owner's life lock."""
        return owner in self._owners

    def close_if_unused(self) -> None:
        """Release all locks, unless an owner has not signed off yet."""
        if not self.has_owners:
            self.close()

    def alive(self, owner: str) -> bool:
        """Return True if a process holds an owner's life lock, or may hold it.

        If the lock file was replaced, other processes move to the new file later. An owner that was not seen there yet
        may be alive, so only its leases decide.
        """
        if owner in self._owners or owner in self._guarded:
            return True
        if _held(self._open(), _byte(owner)):
            if self._seen_alive is not None:
                self._seen_alive.add(owner)
            return True
        return self._seen_alive is not None and owner not in self._seen_alive

    def close(self) -> None:
        """Release all locks."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None
        self._owners.clear()
        self._guarded.clear()
        self._signed_off.clear()

    def __del__(self) -> None:
        # A storage that is garbage-collected has no owners.
        self.close()

    def _lock_for_writing(self) -> None:
        while True:
            _apply(self._open(), _SETLKW, _LOCK_WRITERS)
            if self._is_current():
                return
            # The file was replaced. Other processes lock the new file, so our locks must move there.
            self._reopen()

    def _open(self) -> int:
        return self._use(_open(self.path)) if self._fd is None else self._fd

    def _use(self, fd: int) -> int:
        here = os.fstat(fd)
        self._fd, self._file = fd, (here.st_dev, here.st_ino)
        return fd

    def _is_current(self) -> bool:
        try:
            current = os.stat(self.path)
        except FileNotFoundError:
            return False
        return (current.st_dev, current.st_ino) == self._file

    def _reopen(self) -> None:
        before, fd = self._fd, self._use(_open(self.path))
        self._seen_alive = set()
        self._owners = {owner for owner in self._owners if _share(fd, _byte(owner))}
        self._guarded = {owner for owner in self._guarded if _share(fd, _byte(owner))}
        if before is not None:
            os.close(before)


def lock_file(database: str | os.PathLike[str]) -> str:
    """Return the path of the lock file that the users of a database share."""
    return f"{os.path.realpath(database)}.lock"


@contextmanager
def quiet(path: str) -> Generator[None]:
    """Prevent writes to the database of this lock file while the block runs.

    Stop a process (SIGSTOP) inside this block: then the process is not in a transaction, and does not block the others.
    """
    locks = Locks(path)
    try:
        with locks.writing():
            yield
    finally:
        locks.close()


def written(path: str) -> bool:
    """Return True if a process holds the write lock of this lock file at this moment."""
    descriptor = _open(path)
    try:
        return _held(descriptor, _WRITERS)
    finally:
        os.close(descriptor)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        why = missing_permission(path.removesuffix(".lock")) or f"cannot open the lock file {path}: {error.strerror}"
        raise StorageUnavailableError(why) from error


def _byte(owner: str) -> int:
    number = int.from_bytes(blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
    return 1 + number % (1 << 62)


def _lock(fd: int, command: int, kind: int, byte: int) -> int:
    """Apply a lock command to one byte; return the lock type in the kernel's answer."""
    found = _FLOCK.unpack(_apply(fd, command, _packed(kind, byte)))
    return int(found[3] if _DARWIN else found[0])


def _packed(kind: int, byte: int) -> bytes:
    return _FLOCK.pack(*((byte, 1, 0, kind, os.SEEK_SET) if _DARWIN else (kind, os.SEEK_SET, byte, 1, 0)))


_LOCK_WRITERS = _packed(fcntl.F_WRLCK, _WRITERS)
_UNLOCK_WRITERS = _packed(fcntl.F_UNLCK, _WRITERS)


def _apply(fd: int, command: int, packed: bytes) -> bytes:
    try:
        return fcntl.fcntl(fd, command, packed)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOTSUP):
            raise StorageError(
                "this system or file system has no open-file-description locks, which Tenure needs on SQLite; "
                "use a local file system of Linux or macOS"
            ) from error
        raise


def _share(fd: int, byte: int) -> bool:
    """Take a life lock, shared with other holders; return False if an older release holds it exclusively."""
    try:
        _lock(fd, _SETLK, fcntl.F_RDLCK, byte)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _held(fd: int, byte: int) -> bool:
    """Return True if another open file holds this byte. Our own locks do not count."""
    return _lock(fd, _GETLK, fcntl.F_WRLCK, byte) != fcntl.F_UNLCK
