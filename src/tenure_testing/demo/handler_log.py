"""The handlers' log file, independent of the queue: a line at the start and at the end of each run.

Each line is one append. A process that is killed during an append can leave only a part of a line. Therefore each line
also begins with a line break, so that such a part does not damage the next line.
"""

import os
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from tenure_testing.demo.work import Facts


class HandlerLogLine(Struct, frozen=True, omit_defaults=True):
    """A record of a handler. `answer` is missing at the start, and at the end of a run that was stopped.

    `parent`: the parent of its process. `place`: the line where the handler will hang. `held`: the microseconds for
    which no other thread of its process ran.
    """

    job: str
    run: int
    fence: int
    pid: int
    mark: Literal["start", "end"]
    answer: Facts | None = None
    parent: int = 0
    place: str | None = None
    held: int | None = None


L = TypeVar("L", bound=Struct)

_encode = msgspec.json.Encoder().encode


def note(path: str, line: Struct) -> None:
    """Append a line in one write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, b"\n" + _encode(line) + b"\n")
    finally:
        os.close(descriptor)


def going_on(path: Path) -> set[tuple[str, int]]:
    """Return the job and the fence of each run whose handler has begun and not ended."""
    lines, _ = read(path, HandlerLogLine)
    runs = {mark: {(line.job, line.fence) for line in lines if line.mark == mark} for mark in ("start", "end")}
    return runs["start"] - runs["end"]


def read(path: Path, kind: type[L]) -> tuple[list[L], int]:
    """Return the lines in the order in which they were written, and the number of incomplete lines."""
    decode = msgspec.json.Decoder(kind).decode
    lines: list[L] = []
    pieces = 0
    for raw in path.read_bytes().split(b"\n") if path.exists() else []:
        if raw:
            try:
                lines.append(decode(raw))
            except msgspec.MsgspecError:
                pieces += 1
    return lines, pieces
