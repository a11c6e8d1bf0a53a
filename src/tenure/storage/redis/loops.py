"""Objects that exist once for each event loop of this process, and their disposal after a fork."""

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

CLOSING = 3.0
"""Seconds that another thread's event loop has to close its object."""


class PerLoop(Generic[T]):
    """One object for each event loop, made at its first use on that loop and used only there."""

    def __init__(self, make: Callable[[], T], *, abandon: Callable[[T], object]) -> None:
        self._make = make
        self._abandon = abandon
        self._lock = threading.Lock()
        self._things: dict[asyncio.AbstractEventLoop, T] = {}
        _all.add(self)

    def here(self) -> tuple[T, bool]:
        """Return the running loop's object, and True if it was made just now."""
        loop = asyncio.get_running_loop()
        thing = self._things.get(loop)
        if thing is not None:
            return thing, False
        with self._lock:
            # Garbage collection closes their sockets; a closed loop can do nothing more.
            for gone in [other for other in self._things if other.is_closed()]:
                del self._things[gone]
            thing = self._things[loop] = self._make()
            return thing, True

    def there(self) -> T | None:
        """Return the running loop's object, or None."""
        return self._things.get(asyncio.get_running_loop())

    async def close(self, close: Callable[[T], Coroutine[Any, Any, None]], *, keep: bool = False) -> None:
        """Close the object of each loop, on that loop. `keep`: the object stays registered and may be used again."""
        here = asyncio.get_running_loop()
        with self._lock:
            # A loop that is not running cannot close its object now; that happens when the loop ends.
            things = {loop: thing for loop, thing in self._things.items() if loop is here or loop.is_running()}
            if not keep:
                self._things = {loop: thing for loop, thing in self._things.items() if loop not in things}
        for loop, thing in things.items():
            if loop is here:
                await close(thing)
            else:
                await _elsewhere(close(thing), loop)

    def everywhere(self, action: Callable[[T], object]) -> None:
        """Soon call `action` with each loop's object, on that loop."""
        with self._lock:
            things = list(self._things.items())
        for loop, thing in things:
            try:
                loop.call_soon_threadsafe(action, thing)
            except RuntimeError:
                # The loop was closed meanwhile.
                continue

    def start_again(self) -> None:
        """Abandon the parent's objects. Called in the child after a fork."""
        things = list(self._things.items())
        self._lock = threading.Lock()
        self._things = {}
        for _, thing in things:
            self._abandon(thing)
        # Keep them forever: collecting a connection or a task would use the event loop, which the parent runs.
        _abandoned.extend(things)


async def _elsewhere(closing: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
    try:
        ended = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(closing, loop))
    except RuntimeError:
        # That loop has ended meanwhile and closed its object.
        closing.close()
        return
    # If that loop is blocked, do not wait longer; it closes its object when it can.
    done, _ = await asyncio.wait([ended], timeout=CLOSING)
    for future in done:
        if not future.cancelled():
            future.result()


_all: "weakref.WeakSet[PerLoop[Any]]" = weakref.WeakSet()
_abandoned: list[object] = []


def _after_fork() -> None:
    for per_loop in list(_all):
        per_loop.start_again()


os.register_at_fork(after_in_child=_after_fork)
