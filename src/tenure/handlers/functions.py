"""What can be said of a function: whether a worker can run it, what a call of it makes, what it is called."""

import functools
import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any

from tenure.core.check import shown
from tenure.errors import UsageError

BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
"""The kinds of parameters that a call may fill by their place."""

_REST = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def runnable(function: object) -> Callable[..., Any]:
    """Return what a worker can run: a function, a partial of one, or an object with a `__call__`.

    Raises:
        UsageError: it cannot be called, is a class, or makes a generator.
    """
    if isinstance(function, staticmethod):
        # What a class body hands over; the function in it is what will be called.
        return runnable(function.__func__)
    if not callable(function):
        raise UsageError(f"{shown(function)} cannot be called, so it is no task; give a function: @app.task(name=...)")
    if inspect.isclass(function):
        raise UsageError(f"{shown(function)} is a class, so it is no task; give a function that makes the object")
    if yields(function):
        raise UsageError(f"{name_of(function)} yields, so it is no task; return the values, or enqueue a job for each")
    return function


def is_async(function: Callable[..., Any]) -> bool:
    """Say whether a call makes a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(body_of(function))


def yields(function: Callable[..., Any]) -> bool:
    """Say whether a call makes a generator, of either sort."""
    body = body_of(function)
    return inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body)


def same_call(hook: object, signature: inspect.Signature, *, field: str) -> None:
    """Make sure that a hook can be called with whatever fits the signature.

    Raises:
        UsageError: it cannot be called, is a class, yields, or takes other arguments.
    """
    if not callable(hook) or inspect.isclass(hook):
        raise UsageError(f"{field} must be a function, not {shown(hook)}")
    if yields(hook):
        raise UsageError(f"{field} yields, so it does nothing when it is called; give a function that does not")
    given = [one for one in signature.parameters.values() if one.kind not in _REST]
    for called in (given, [one for one in given if one.default is one.empty]):
        args = [None for one in called if one.kind in BY_PLACE]
        kwargs = {one.name: None for one in called if one.kind not in BY_PLACE}
        try:
            inspect.signature(hook).bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(f"{field} cannot be called as the handler is: {error}; give it the same ones") from None


def name_of(function: Callable[..., Any]) -> str:
    """Return `module.function`; of a partial that of its function, of an object that of its class."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def body_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function whose code runs in the end."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__
