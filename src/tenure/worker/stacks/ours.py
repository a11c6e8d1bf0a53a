"""Distinguishes frames of Tenure's own code from others, and returns the stacks of all threads."""

import asyncio
import sys
from pathlib import Path
from types import FrameType

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
