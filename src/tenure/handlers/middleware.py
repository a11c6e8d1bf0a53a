"""Middleware: what is wrapped around every run of an app, or of a task, like the skins of an onion.

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
from tenure.handlers.injection import not_injected


class RunCall:
    """A run on its way to its handler. What middleware puts into `args` and `kwargs`, the handler is called with."""

    def __init__(self, job: JobContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.job = job
        """The job, as `current_job()` shows it."""
        self.args = args
        self.kwargs = kwargs

    @property
    def task(self) -> str:
        """The task's name."""
        return self.job.task


Proceed = Callable[[], Awaitable[Any]]
"""Goes on inwards, to the handler in the end, and returns what it returned; to be awaited once at most."""

Middleware = Callable[[RunCall, Proceed], Awaitable[Any]]
"""A coroutine function that is called for each run. What it returns, or raises, is what the run comes to."""

Heart = Callable[[RunCall], Awaitable[Any]]
"""What all the middleware of a run is wrapped around."""

Onion = Callable[[RunCall, Heart], Awaitable[Any]]
"""All the middleware of a task in one, for whatever heart a run has."""


def layer(given: object) -> Middleware:
    """Return what can be wrapped around a run.

    Raises:
        UsageError: it is no coroutine function of the run and what it goes on with.
    """
    if not callable(given) or not is_async(given):
        raise UsageError(f"middleware {shown(given)} must be a coroutine function: async def layer(call, proceed)")
    try:
        inspect.signature(given).bind(None, None)
    except TypeError as error:
        raise UsageError(
            f"middleware {shown(given)} cannot be called with a run and what goes on with it: {error}; "
            "write async def layer(call, proceed)"
        ) from None
    not_injected(given, whose=f"middleware {shown(given)}")
    return cast(Middleware, given)


def layers(given: object) -> tuple[Middleware, ...]:
    """Return several of them.

    Raises:
        UsageError: they are not several, or one of them is none.
    """
    return tuple(layer(one) for one in several(given, field="middleware"))


def onion(middleware: Iterable[Middleware]) -> Onion | None:
    """Return middleware wrapped around each other, the first outermost, or None if there is none."""
    whole: Onion | None = None
    for one in reversed(tuple(middleware)):
        whole = _around(one, whole)
    return whole


def _around(middleware: Middleware, inner: Onion | None) -> Onion:
    async def wrapped(call: RunCall, heart: Heart) -> Any:
        went_on = False

        async def proceed() -> Any:
            nonlocal went_on
            if went_on:
                name = getattr(middleware, "__qualname__", None) or shown(middleware)
                raise UsageError(f"middleware {name} has gone on twice; to run a job again, raise RetryLater or Snooze")
            went_on = True
            return await (heart(call) if inner is None else inner(call, heart))

        return await middleware(call, proceed)

    return wrapped
