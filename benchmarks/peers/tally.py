"""The notes of handlers: one file a process, of 16 bytes a note; standard library only.

A note is two unsigned little-endian integers of 8 bytes: the number of the job, with `FINISHED` added when it is its
end that is noted, and the monotonic clock in nanoseconds (one for all processes of a machine; in Node it is
`process.hrtime.bigint()`). Notes follow each other from the file's start; where the clock is 0, there are no more. The
file is called PID.tally; a process may make it large and fill it, or let it grow.
"""

import itertools
import mmap
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

FINISHED = 1 << 62
NOTE = struct.Struct("<QQ")
MOST = 1 << 18
"""How many notes a process can take."""

PIECE = 4096 * NOTE.size


class Tally:
    """Takes notes in this process, from any thread; a forked child takes its own."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._open()
        os.register_at_fork(after_in_child=self._open)

    def started(self, number: int) -> None:
        """Note that a handler has started, or that a job is about to be sent."""
        NOTE.pack_into(self._memory, next(self._places), number, time.monotonic_ns())

    def finished(self, number: int) -> None:
        """Note that a handler has finished."""
        self.started(number + FINISHED)

    def _open(self) -> None:
        with Path(self._folder, f"{os.getpid()}.tally").open("w+b") as file:
            file.truncate(MOST * NOTE.size)
            self._memory = mmap.mmap(file.fileno(), MOST * NOTE.size)
        # The only step that two threads must not make at once is a single call of C.
        self._places = itertools.count(0, NOTE.size)


class Note(NamedTuple):
    """One note: a job's number, when, and in which process."""

    number: int
    at_ns: int
    process: str


class Reader:
    """Reads the notes of the processes of one folder, while they write them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self.started: list[Note] = []
        self.finished: list[Note] = []

    def read(self) -> int:
        """Read what is new; return how many starts there are by now."""
        for file in self._folder.glob("*.tally"):
            place = self._read.get(file, 0)
            with file.open("rb") as opened:
                opened.seek(place)
                for note in _notes(opened, file.stem):
                    place += NOTE.size
                    if note.number >= FINISHED:
                        self.finished.append(note._replace(number=note.number - FINISHED))
                    else:
                        self.started.append(note)
            self._read[file] = place
        return len(self.started)


def _notes(file: BinaryIO, process: str) -> Iterator[Note]:
    while piece := file.read(PIECE):
        for number, at_ns in NOTE.iter_unpack(piece[: len(piece) // NOTE.size * NOTE.size]):
            if not at_ns:
                return
            yield Note(number, at_ns, process)
