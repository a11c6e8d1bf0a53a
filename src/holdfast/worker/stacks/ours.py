"""Which frames of a stack are ours, and the stacks of all threads."""

import asyncio
import sys
from pathlib import Path
from types import FrameType

WORKER = Path(__file__).parent.parent
HOUSE = str(WORKER.parent)
ASYNCIO = str(Path(asyncio.__file__).parent)

THREADS = str(WORKER / "threads.py")
"""Where a plain function is called in a thread of ours."""

MIDDLEWARE = str(WORKER.parent / "middleware.py")
"""Which stands between the frames of handlers."""

OURS = frozenset(map(str, [MIDDLEWARE, *WORKER.rglob("*.py")]))
"""The files whose frames are no handler's."""


def current_frames() -> dict[int, FrameType]:
    """Return the frame that each thread is in, by the thread's number."""
    return sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # documented, in spite of its name
