"""Middleware: coroutine functions that wrap every run of an app or of a task, one inside the other.

app's first ─► app's second ─► task's first ─► handler
◄─              ◄─             ◄─
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

from tenure.core.check import several, shown
from tenure.errors import UsageError
from tenure.handlers.context import JobContext
from tenure.handlers.functions import is_async
from tenure.handlers.injection import refuse_injections


class RunCall:
    """A run before its handler is called. Middleware may change `args` and `kwargs`; the handler gets the result."""

    def __init__(self, job: JobContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.job = job
        """The job, as `current_job()` returns it."""
        self.args = args
        self.kwargs = kwargs

    @property
    def task(self) -> str:
        """The task's name."""
        return self.job.task


Proceed = Callable[[], Awaitable[Any]]
"""Calls the next middleware or the handler and returns its result. A middleware may await it at most once."""

Middleware = Callable[[RunCall, Proceed], Awaitable[Any]]
"""A coroutine function that is called for each run. Its return value or exception is the outcome of the run."""

Heart = Callable[[RunCall], Awaitable[Any]]
"""The innermost call of a run, which all its middleware wraps."""

WrappedHandler = Callable[[RunCall, Heart], Awaitable[Any]]
"""All middleware of a task combined into one function; it takes the run and the run's innermost call."""


def valid_middleware(value: object) -> Middleware:
    """Return the middleware.

    Raises:
        UsageError: it is not a coroutine function of two arguments, the run and `proceed`.
    """
    if not callable(value) or not is_async(value):
        raise UsageError(f"middleware {shown(value)} must be a coroutine function: async def layer(call, proceed)")
    try:
        inspect.signature(value).bind(None, None)
    except TypeError as error:
        raise UsageError(
            f"middleware {shown(value)} cannot be called with a run and the function that continues it: {error}; "
            "write async def layer(call, proceed)"
        ) from None
    refuse_injections(value, owner=f"middleware {shown(value)}")
    return cast(Middleware, value)


def valid_middlewares(value: object) -> tuple[Middleware, ...]:
    """Return several middleware functions.

    Raises:
        UsageError: the value is not a sequence, or one of its items is not middleware.
    """
    return tuple(valid_middleware(item) for item in several(value, field="middleware"))


def wrap(middleware: Iterable[Middleware]) -> WrappedHandler | None:
    """Combine middleware into one function, the first outermost. Return None if `middleware` is empty."""
    wrapped: WrappedHandler | None = None
    for function in reversed(tuple(middleware)):
        wrapped = _around(function, wrapped)
    return wrapped


def _around(middleware: Middleware, inner: WrappedHandler | None) -> WrappedHandler:
    async def wrapped(call: RunCall, heart: Heart) -> Any:
        went_on = False

        async def proceed() -> Any:
            nonlocal went_on
            if went_on:
                name = getattr(middleware, "__qualname__", None) or shown(middleware)
                raise UsageError(
                    f"middleware {name} called proceed() twice; to run a job again, raise RetryLater or Snooze"
                )
            went_on = True
            return await (heart(call) if inner is None else inner(call, heart))

        return await middleware(call, proceed)

    return wrapped
