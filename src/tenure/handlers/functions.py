"""Inspects functions: whether a worker can run one, what a call of it returns, and its name."""

import functools
import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any, cast

from tenure.core.check import shown
from tenure.errors import UsageError

POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
"""The kinds of parameters that a call may fill by position."""

_REST = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def runnable(function: object) -> Callable[..., Any]:
    """Return the function if a worker can run it: a function, a partial, or an object with `__call__`.

    Raises:
        UsageError: it is not callable, is a class or a method without its object, or yields.
    """
    if isinstance(function, staticmethod):
        # A decorator in a class body gets the staticmethod object; the function in it will be called.
        return runnable(function.__func__)
    if isinstance(function, classmethod):
        function = cast(Any, function).__func__
    if _is_method(function):
        raise UsageError(
            f"{name_of(cast(Any, function))} is a method, so it cannot be a task: a worker has no object to call it "
            "on; make it a function, or give the method of an object that exists when the module is imported: "
            "app.task(mailer.send)"
        )
    if not callable(function):
        raise UsageError(
            f"{shown(function)} cannot be called, so it cannot be a task; give a function: @app.task(name=...)"
        )
    if inspect.isclass(function):
        raise UsageError(f"{shown(function)} is a class, so it cannot be a task; give a function that makes the object")
    if yields(function):
        raise UsageError(
            f"{name_of(function)} yields, so it cannot be a task; return the values, or enqueue a job for each"
        )
    return function


def _is_method(function: object) -> bool:
    """Return True for a function of a class body that takes the object or the class as its first argument."""
    if not inspect.isfunction(function):
        return False
    scope = function.__qualname__.rpartition(".")[0]
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return (
        scope != ""
        and not scope.endswith("<locals>")
        and first is not None
        and first.name in ("self", "cls")
        and first.kind in POSITIONAL
    )


def is_async(function: Callable[..., Any]) -> bool:
    """Return True if a call returns a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(unwrapped(function))


def yields(function: Callable[..., Any]) -> bool:
    """Return True if a call returns a generator or an async generator."""
    body = unwrapped(function)
    return inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body)


def check_same_call(hook: object, signature: inspect.Signature, *, field: str) -> None:
    """Check that a hook accepts all arguments that fit the signature.

    Raises:
        UsageError: the hook is not callable, is a class, yields, or takes other arguments.
    """
    if not callable(hook) or inspect.isclass(hook):
        raise UsageError(f"{field} must be a function, not {shown(hook)}")
    if yields(hook):
        raise UsageError(f"{field} yields, so it does nothing when it is called; give a function that does not")
    parameters = [parameter for parameter in signature.parameters.values() if parameter.kind not in _REST]
    for called in (parameters, [parameter for parameter in parameters if parameter.default is parameter.empty]):
        args = [None for parameter in called if parameter.kind in POSITIONAL]
        kwargs = {parameter.name: None for parameter in called if parameter.kind not in POSITIONAL}
        try:
            inspect.signature(hook).bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(
                f"{field} cannot be called like the handler: {error}; give it the same parameters"
            ) from None


def name_of(function: Callable[..., Any]) -> str:
    """Return `module.function`: for a partial the name of its function, for an object the name of its class."""
    while isinstance(function, functools.partial):
        function = function.func
    target = function if hasattr(function, "__qualname__") else type(function)
    return f"{target.__module__}.{target.__qualname__}"


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function whose code a call runs: of a partial its function, of an object its `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__
