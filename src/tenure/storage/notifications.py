"""Hints between the parts of one process: who listens for which topic, and a knock that any thread may give."""

import asyncio
import contextvars
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Self


class NotificationHub:
    """Passes hints on to the listeners of a topic. Knocking costs next to nothing where nobody listens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: defaultdict[str, list[Listener]] = defaultdict(list)

    def listen(self, topics: Iterable[str]) -> "Listener":
        """Start to listen on the running loop; a knock from now on is not missed."""
        listener = Listener(self, tuple(topics), asyncio.get_running_loop())
        with self._lock:
            for topic in listener.topics:
                self._listeners[topic].append(listener)
        return listener

    def knock(self, topics: Iterable[str]) -> None:
        """Hint that something changed on these topics; from any thread."""
        for listener in self._listening(topics):
            listener.wake()

    def knock_here(self, topics: Iterable[str]) -> None:
        """Do as `knock`, on the loop of all who listen: they hear it a turn of the loop sooner."""
        for listener in self._listening(topics):
            listener.wake_here()

    def knock_all(self) -> None:
        """Hint that anything may have changed."""
        if self._listeners:
            self.knock(tuple(self._listeners))

    @property
    def topics(self) -> tuple[str, ...]:
        """What anybody listens for."""
        return tuple(self._listeners)

    @property
    def heard(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    def clear(self) -> None:
        """Forget every listener: after a fork they belong to loops of another process."""
        self._lock = threading.Lock()
        self._listeners.clear()

    def _listening(self, topics: Iterable[str]) -> "Iterable[Listener]":
        if not self._listeners:
            return ()
        with self._lock:
            # A dict, not a set: the order of waking must not depend on where objects lie in memory.
            return dict.fromkeys(listener for topic in topics for listener in self._listeners.get(topic, ()))

    def forget(self, listener: "Listener") -> None:
        """Stop to wake a listener."""
        with self._lock:
            for topic in listener.topics:
                heard = self._listeners.get(topic, [])
                if listener in heard:
                    heard.remove(listener)
                if not heard:
                    self._listeners.pop(topic, None)


class Listener:
    """One who listens; an async iterator that yields None for each hint, merging those that come together."""

    hear: Callable[[], None] | None = None
    """What is called for each hint instead, on the listener's loop: a turn sooner than who waits can go on."""

    def __init__(self, hub: NotificationHub, topics: tuple[str, ...], loop: asyncio.AbstractEventLoop) -> None:
        self.topics = topics
        self._hub = hub
        self._loop = loop
        self._event = asyncio.Event()
        self._told = False
        # Woken as what it is, not as a part of whoever knocked.
        self._context = contextvars.copy_context()

    def wake(self) -> None:
        """Note a hint; from any thread."""
        if self._told:
            return
        self._told = True
        try:
            self._loop.call_soon_threadsafe(self._tell, context=self._context)
        except RuntimeError:
            # The listener's loop has closed without saying goodbye; there is nobody left to tell.
            self._hub.forget(self)

    def wake_here(self) -> None:
        """Note a hint, on the loop that the listener is on."""
        self._told = True
        self._tell()

    def _tell(self) -> None:
        if self.hear is None:
            self._event.set()
        else:
            # Before it hears: what comes from now on is a hint of its own.
            self._told = False
            self.hear()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> None:
        await self._event.wait()
        self._event.clear()
        self._told = False

    def take(self) -> bool:
        """Say whether there was a hint since the last time, without waiting for one."""
        told, self._told = self._told, False
        self._event.clear()
        return told

    def close(self) -> None:
        """Listen no more."""
        self._hub.forget(self)
