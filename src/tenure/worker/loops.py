"""Which event loop handlers run on: uvloop where it is installed, else that of asyncio."""

import asyncio
import os
from typing import Literal, get_args

from tenure.errors import UsageError

Loop = Literal["auto", "asyncio", "uvloop"]
LOOPS: tuple[Loop, ...] = get_args(Loop)

VARIABLE = "TENURE_WORKER_LOOP"
"""Which one a worker process was told of: its own processes, which run handlers too, learn it there."""


def runner(asked: Loop) -> asyncio.Runner:
    """Return what runs coroutines on the loop that was asked for. `auto`: uvloop, if there is one.

    Raises:
        UsageError: uvloop was asked for, and is not installed.
    """
    if asked == "asyncio":
        return asyncio.Runner()
    try:
        from uvloop import new_event_loop
    except ImportError as error:
        if asked == "auto":
            return asyncio.Runner()
        raise UsageError(
            "--loop uvloop needs uvloop, which is not to be had here; pip install 'tenure[uvloop]', or leave --loop out"
        ) from error
    return asyncio.Runner(loop_factory=new_event_loop)


def told() -> Loop:
    """Return which loop the environment asks for; `auto` where it names none that we know."""
    match os.environ.get(VARIABLE):
        case "asyncio" | "uvloop" as named:
            return named
        case _:
            return "auto"
