"""Selects the event loop that handlers run on: uvloop if it is installed, else asyncio's."""

import asyncio
import os
from typing import Literal, get_args

from tenure.errors import UsageError

Loop = Literal["auto", "asyncio", "uvloop"]
LOOPS: tuple[Loop, ...] = get_args(Loop)

VARIABLE = "TENURE_WORKER_LOOP"
"""The environment variable with the event loop of a worker process. Its isolated processes read it, too."""


def runner(loop: Loop) -> asyncio.Runner:
    """Return a runner for the loop `asked`. `auto` means uvloop if it is installed.

    Raises:
        UsageError: `asked` is uvloop, which is not installed.
    """
    if loop == "asyncio":
        return asyncio.Runner()
    try:
        from uvloop import new_event_loop
    except ImportError as error:
        if loop == "auto":
            return asyncio.Runner()
        raise UsageError(
            "--loop uvloop needs uvloop, which is not installed; pip install 'tenure[uvloop]', or leave --loop out"
        ) from error
    return asyncio.Runner(loop_factory=new_event_loop)


def loop_from_environment() -> Loop:
    """Return the loop that the environment names; `auto` if it names no known one."""
    match os.environ.get(VARIABLE):
        case "asyncio" | "uvloop" as named:
            return named
        case _:
            return "auto"
