"""Starts the task of a run: at once (eagerly) if the interpreter can, else in the next turn of the loop."""

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable, Coroutine
from typing import Any

Attending = Coroutine[Any, Any, None]
Starter = Callable[[Attending], "asyncio.Task[None]"]


def starter(loop: asyncio.AbstractEventLoop) -> Starter:
    """Return a function that makes a task of a coroutine.

    If the interpreter supports it, the task starts eagerly. A run that awaits nothing then never enters the loop's
    queue.
    """
    # A custom task factory decides when tasks start; do not force an eager start.
    if sys.version_info >= (3, 12) and loop.get_task_factory() is None:
        if _accepts_keywords(loop.create_task):
            return functools.partial(loop.create_task, eager_start=True)
        return functools.partial(asyncio.Task, loop=loop, eager_start=True)
    return loop.create_task


def _accepts_keywords(function: Callable[..., object]) -> bool:
    """Return True if a function accepts arbitrary keyword arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
