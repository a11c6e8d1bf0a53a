"""Kernel locks between the processes of one machine: one file, one byte for the writers, one for each owner's life.

The locks belong to the open file (OFD locks), not to the process: so they stand between two storages of one process,
too, and are not lost when somebody else opens and closes the file. The kernel frees them when the last descriptor goes,
which is at the process's death, whatever the cause; therefore a forked child must close what it inherits.
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

_DARWIN = sys.platform == "darwin"
# Older Pythons know the names on Linux only; the numbers are part of each system's interface.
_GETLK: int = getattr(fcntl, "F_OFD_GETLK", 92 if _DARWIN else 36)
_SETLK: int = getattr(fcntl, "F_OFD_SETLK", 90 if _DARWIN else 37)
_SETLKW: int = getattr(fcntl, "F_OFD_SETLKW", 91 if _DARWIN else 38)
# struct flock: (type, whence, start, len, pid) on Linux, (start, len, pid, type, whence) on Darwin.
_FLOCK = struct.Struct("@qqihh" if _DARWIN else "@hhqqi4x")

_WRITERS = 0


class Locks:
    """The lock file beside a database. Used by one thread at a time.

    Whatever it holds it holds until it is closed, or nobody knows of it any more.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd: int | None = None
        self._file: tuple[int, int] | None = None
        self._lives: set[str] = set()
        self._guarded: set[str] = set()
        self._parted: set[str] = set()
        self._arrived: set[str] | None = None
        """Who was seen to live since the file was replaced; None where it never was."""

    @contextmanager
    def writing(self) -> Generator[None]:
        """Be the only writer of this machine, for as long as the block lasts."""
        self._take_turn()
        try:
            yield
        finally:
            if self._fd is not None:
                _apply(self._fd, _SETLK, _END_TURN)

    def live(self, owner: str) -> None:
        """Hold an owner's life from now on, until `close` or the end of the process."""
        self._parted.discard(owner)
        if owner not in self._lives and _share(self._open(), _byte(owner)):
            self._lives.add(owner)

    def guard(self, owner: str) -> None:
        """Hold the life of another process's owner, too, until `let_go`: then it does not end with that process."""
        if owner not in self._guarded and _share(self._open(), _byte(owner)):
            self._guarded.add(owner)

    def let_go(self, owner: str) -> None:
        """Guard an owner no more. Idempotent."""
        if owner in self._guarded:
            self._guarded.discard(owner)
            if owner not in self._lives and self._fd is not None:
                _lock(self._fd, _SETLK, fcntl.F_UNLCK, _byte(owner))

    def leave(self, owner: str) -> None:
        """Note that an owner has taken its leave; its process has not died, so its life ends with `close` only."""
        self._parted.add(owner)

    @property
    def lived(self) -> bool:
        """Whether the life of any owner is held here that has not taken its leave."""
        return not self._lives <= self._parted

    def holds(self, owner: str) -> bool:
        """Say whether it is here that an owner's life is held."""
        return owner in self._lives

    def close_unless_lived(self) -> None:
        """Give everything up, but not under an owner that has not left."""
        if not self.lived:
            self.close()

    def alive(self, owner: str) -> bool:
        """Say whether anybody holds an owner's life, or may: where the file was replaced, the others come to it later.

        Of those who were not seen there yet nothing is known, and their leases must do.
        """
        if owner in self._lives or owner in self._guarded:
            return True
        if _held(self._open(), _byte(owner)):
            if self._arrived is not None:
                self._arrived.add(owner)
            return True
        return self._arrived is not None and owner not in self._arrived

    def close(self) -> None:
        """Give everything up."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None
        self._lives.clear()
        self._guarded.clear()
        self._parted.clear()

    def __del__(self) -> None:
        # Through a storage that is gone nobody can live.
        self.close()

    def _take_turn(self) -> None:
        while True:
            _apply(self._open(), _SETLKW, _TURN)
            if self._in_place():
                return
            # Somebody replaced the file: others meet at the new one, so that is where our locks belong.
            self._move()

    def _open(self) -> int:
        return self._use(_open(self.path)) if self._fd is None else self._fd

    def _use(self, fd: int) -> int:
        here = os.fstat(fd)
        self._fd, self._file = fd, (here.st_dev, here.st_ino)
        return fd

    def _in_place(self) -> bool:
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        return (there.st_dev, there.st_ino) == self._file

    def _move(self) -> None:
        before, fd = self._fd, self._use(_open(self.path))
        self._arrived = set()
        self._lives = {owner for owner in self._lives if _share(fd, _byte(owner))}
        self._guarded = {owner for owner in self._guarded if _share(fd, _byte(owner))}
        if before is not None:
            os.close(before)


def lock_file(database: str | os.PathLike[str]) -> str:
    """Return where those who use a database meet."""
    return f"{os.path.realpath(database)}.lock"


@contextmanager
def quiet(path: str) -> Generator[None]:
    """Keep every process from writing to the database of this lock file while the block lasts.

    Whoever wants to stop a process (SIGSTOP) does so in here: then it is in the middle of no transaction, and does not
    stop all others with it.
    """
    locks = Locks(path)
    try:
        with locks.writing():
            yield
    finally:
        locks.close()


def written(path: str) -> bool:
    """Say whether anybody has the turn to write to the database of this lock file at this moment."""
    descriptor = _open(path)
    try:
        return _held(descriptor, _WRITERS)
    finally:
        os.close(descriptor)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise StorageUnavailableError(f"cannot open the lock file {path}: {error.strerror}") from error


def _byte(owner: str) -> int:
    number = int.from_bytes(blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
    return 1 + number % (1 << 62)


def _lock(fd: int, command: int, kind: int, byte: int) -> int:
    """Apply one lock command to one byte; return the kind of lock that the kernel answers."""
    found = _FLOCK.unpack(_apply(fd, command, _packed(kind, byte)))
    return int(found[3] if _DARWIN else found[0])


def _packed(kind: int, byte: int) -> bytes:
    return _FLOCK.pack(*((byte, 1, 0, kind, os.SEEK_SET) if _DARWIN else (kind, os.SEEK_SET, byte, 1, 0)))


_TURN = _packed(fcntl.F_WRLCK, _WRITERS)
_END_TURN = _packed(fcntl.F_UNLCK, _WRITERS)


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
    """Hold a life beside others that do; say whether it could be had, which an older release may forbid."""
    try:
        _lock(fd, _SETLK, fcntl.F_RDLCK, byte)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _held(fd: int, byte: int) -> bool:
    """Say whether another open file holds a byte; our own locks do not count."""
    return _lock(fd, _GETLK, fcntl.F_WRLCK, byte) != fcntl.F_UNLCK
