"""What each event loop of this process has for itself, and what becomes of that when the process forks."""

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

CLOSING = 3.0
"""Seconds that the event loop of another thread gets to close what it has."""


class PerLoop(Generic[T]):
    """One thing for each event loop, made at its first use there and used nowhere else."""

    def __init__(self, make: Callable[[], T], *, abandon: Callable[[T], object]) -> None:
        self._make = make
        self._abandon = abandon
        self._lock = threading.Lock()
        self._things: dict[asyncio.AbstractEventLoop, T] = {}
        _all.add(self)

    def here(self) -> tuple[T, bool]:
        """Return what the running loop has, and whether that is new."""
        loop = asyncio.get_running_loop()
        thing = self._things.get(loop)
        if thing is not None:
            return thing, False
        with self._lock:
            # Their sockets are closed as they are collected; nothing else can be done for a loop that is over.
            for gone in [other for other in self._things if other.is_closed()]:
                del self._things[gone]
            thing = self._things[loop] = self._make()
            return thing, True

    def there(self) -> T | None:
        """Return what the running loop has so far."""
        return self._things.get(asyncio.get_running_loop())

    async def close(self, close: Callable[[T], Coroutine[Any, Any, None]], *, keep: bool = False) -> None:
        """Close the thing of each loop, there; `keep`: it is used again if the loop comes back."""
        here = asyncio.get_running_loop()
        with self._lock:
            # A loop that stands still can close nothing; it does when it ends.
            things = {loop: thing for loop, thing in self._things.items() if loop is here or loop.is_running()}
            if not keep:
                self._things = {loop: thing for loop, thing in self._things.items() if loop not in things}
        for loop, thing in things.items():
            if loop is here:
                await close(thing)
            else:
                await _elsewhere(close(thing), loop)

    def everywhere(self, tell: Callable[[T], object]) -> None:
        """Have each loop do something with its thing, soon."""
        with self._lock:
            things = list(self._things.items())
        for loop, thing in things:
            try:
                loop.call_soon_threadsafe(tell, thing)
            except RuntimeError:
                # Closed in between.
                continue

    def begin_anew(self) -> None:
        """After a fork, in the child: have nothing of the parent's."""
        things = list(self._things.items())
        self._lock = threading.Lock()
        self._things = {}
        for _, thing in things:
            self._abandon(thing)
        # Never collected: the end of a connection or a task is told to an event loop that the parent runs.
        _abandoned.extend(things)


async def _elsewhere(closing: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
    try:
        ended = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(closing, loop))
    except RuntimeError:
        # That loop has ended in between, and closed what it had.
        closing.close()
        return
    # It may be blocked; then this goes on without it, and it closes what it has when it can.
    done, _ = await asyncio.wait([ended], timeout=CLOSING)
    for one in done:
        if not one.cancelled():
            one.result()


_all: "weakref.WeakSet[PerLoop[Any]]" = weakref.WeakSet()
_abandoned: list[object] = []


def _after_fork() -> None:
    for one in list(_all):
        one.begin_anew()


os.register_at_fork(after_in_child=_after_fork)
