"""The handlers' own file, outside the queue: a line at the start and at the end of each run, whatever the queue says.

Each line is one append. A process killed inside an append can leave a piece of a line at most, which is why a line
also begins with a line break: the piece then stands alone and spoils no other.
"""

import os
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from tenure.demo.work import Facts


class HandlerLogLine(Struct, frozen=True, omit_defaults=True):
    """What a handler noted. The answer is missing at the start, and at the end of a run that was stopped.

    `parent`: who started its process. `place`: where it was about to hang. `held`: for how many microseconds it let no
    other thread of its process have a turn.
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


def read(path: Path, kind: type[L]) -> tuple[list[L], int]:
    """Return the lines in the order they were written, and how many pieces of lines lie between them."""
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
