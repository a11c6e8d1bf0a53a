"""The time limit of one run: its handler is cancelled at the limit, and abandoned if it does not end."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tenure.failures import is_a


class TimeLimitExceeded(Exception):
    """The run passed its own limit."""


class TimeLimit:
    """Like `asyncio.timeout`, with one callback before the cancellation and one if the body does not end.

    `over` is called at the limit. `overdue` is called `linger` seconds later, unless the body has ended by then.

    Raises:
        TimeLimitExceeded: on the way out, if the body ended by that cancellation.
    """

    def __init__(self, seconds: float, linger: float, *, over: Callable[[], None], overdue: Callable[[], None]) -> None:
        self._seconds = seconds
        self._linger = linger
        self._over = over
        self._overdue = overdue
        self._expired = False
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self._task = task = asyncio.current_task()
        self._cancelling = 0 if task is None else task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._expired or self._task is None:
            return
        # If other code cancelled the task as well, the CancelledError must propagate.
        cancelled = error is not None and is_a(error, asyncio.CancelledError)
        if self._task.uncancel() <= self._cancelling and cancelled:
            raise TimeLimitExceeded from error

    def _expire(self) -> None:
        self._expired = True
        self._over()
        if self._task is not None:
            self._task.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._linger, self._overdue)
