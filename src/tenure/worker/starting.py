"""How a run's task begins: at once, where the interpreter can, and else in the next turn of the loop."""

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable, Coroutine
from typing import Any

Attending = Coroutine[Any, Any, None]
Starter = Callable[[Attending], "asyncio.Task[None]"]


def starter(loop: asyncio.AbstractEventLoop) -> Starter:
    """Return what makes a task of a coroutine.

    Where the interpreter can, that begins at once, and one that waits for nothing never meets the queue of the loop.
    """
    # Whoever has a factory has his own ideas of when a task begins.
    if sys.version_info >= (3, 12) and loop.get_task_factory() is None:
        if _takes_more(loop.create_task):
            return functools.partial(loop.create_task, eager_start=True)
        return functools.partial(asyncio.Task, loop=loop, eager_start=True)
    return loop.create_task


def _takes_more(function: Callable[..., object]) -> bool:
    """Say whether what is not known to a function is handed on."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
