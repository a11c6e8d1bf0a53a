"""Finds the line of a handler that a thread executes: from its frames, or from a dump that it wrote at a signal.

Frames of Tenure's own code and of asyncio do not belong to handlers.
"""

import asyncio
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

from msgspec import Struct

WORKER = Path(__file__).parent.parent
PACKAGE = str(WORKER.parent)
ASYNCIO = str(Path(asyncio.__file__).parent)

THREADS = str(WORKER.parent / "threads.py")
"""The file that calls a plain function in a worker thread."""

BUS = str(WORKER.parent / "events" / "bus.py")
"""The file that calls plain event handlers."""

MIDDLEWARE = str(WORKER.parent / "handlers" / "middleware.py")
"""The file whose frames lie between the frames of handlers."""

OWN_FILES = frozenset(map(str, [MIDDLEWARE, THREADS, *WORKER.rglob("*.py")]))
"""The files whose frames do not belong to handlers."""


def current_frames() -> dict[int, FrameType]:
    """Return the current frame of each thread, by thread id."""
    return sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # documented, in spite of its name


_STEP = str(Path(ASYNCIO) / "events.py")
"""The file in which asyncio calls due callbacks. No handler is further out."""

_CALLERS = frozenset(str(WORKER / name) for name in ("run.py", "injected.py", "lifespan.py"))
"""The files that call user code on the loop."""

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.+)$')


class CodeLine(Struct, frozen=True):
    """A line of a function."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class HandlerPosition(Struct, frozen=True):
    """A handler at work: the handler's own current line, and the innermost line of the call that it makes there."""

    handler: CodeLine
    innermost: CodeLine

    def __str__(self) -> str:
        return str(self.handler) if self.handler == self.innermost else f"{self.handler} (now at {self.innermost})"


def on_loop(stack: Iterable[CodeLine]) -> HandlerPosition | None:
    """Return a handler's position in the stack of its loop's thread, innermost frame first. None if none is at work."""
    own: list[CodeLine] = []
    for place in stack:
        if place.file in _CALLERS:
            return _at(own)
        if place.file == _STEP and place.function == "_run":
            # A task that a handler has started, or a task of our own.
            return None if not own or own[-1].file.startswith((ASYNCIO, PACKAGE)) else _at(own)
        own.append(place)
    return None


def in_thread(stack: Iterable[CodeLine]) -> HandlerPosition | None:
    """Return a job handler's position in the stack of a worker thread. None if the thread is idle or not a worker's."""
    own: list[CodeLine] = []
    for place in stack:
        if place.file == THREADS:
            return None if own and own[-1].file == BUS else _at(own)
        own.append(place)
    return None


def frames(frame: FrameType | None) -> Iterator[CodeLine]:
    """Return the lines of a thread's frames, the innermost first."""
    while frame is not None:
        yield CodeLine(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name)
        frame = frame.f_back


class Dump:
    """The output of faulthandler for all threads of a process."""

    def __init__(self, text: str) -> None:
        self._stacks = [_read(part) for part in re.split(r"^(?:Current thread|Thread) .*$", text, flags=re.MULTILINE)]

    def on_loop(self) -> HandlerPosition | None:
        """Return the position of the handler that runs on the main thread's loop."""
        for stack in self._stacks:
            # The outermost frame of every other thread is in the module `threading`.
            if stack and stack[-1].function != "_bootstrap" and (found := on_loop(stack)) is not None:
                return found
        return None

    def in_threads(self) -> list[HandlerPosition]:
        """Return the positions of the handlers that run in threads."""
        return [found for stack in self._stacks if (found := in_thread(stack)) is not None]


def _at(stack: Iterable[CodeLine]) -> HandlerPosition | None:
    own = [place for place in stack if place.file != MIDDLEWARE]
    return HandlerPosition(own[-1], own[0]) if own else None


def _read(part: str) -> list[CodeLine]:
    found = [_FRAME.match(line) for line in part.splitlines()]
    return [
        CodeLine(match["file"], int(match["line"]) if match["line"].isdigit() else 0, match["function"])
        for match in found
        if match is not None
    ]
