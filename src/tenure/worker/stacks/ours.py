"""Which frames of a stack are ours, and the stacks of all threads."""

import asyncio
import sys
from pathlib import Path
from types import FrameType

WORKER = Path(__file__).parent.parent
HOUSE = str(WORKER.parent)
ASYNCIO = str(Path(asyncio.__file__).parent)

THREADS = str(WORKER.parent / "threads.py")
"""Where a plain function is called in a thread of ours."""

BUS = str(WORKER.parent / "events" / "bus.py")
"""Where the plain functions are event handlers."""

MIDDLEWARE = str(WORKER.parent / "handlers" / "middleware.py")
"""Which stands between the frames of handlers."""

OURS = frozenset(map(str, [MIDDLEWARE, THREADS, *WORKER.rglob("*.py")]))
"""The files whose frames are no handler's."""


def current_frames() -> dict[int, FrameType]:
    """Return the frame that each thread is in, by the thread's number."""
    return sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # documented, in spite of its name
