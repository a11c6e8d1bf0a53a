"""Notifications between the parts of one process: listeners by topic, notified from any thread."""

import asyncio
import contextvars
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Self


class NotificationHub:
    """Delivers hints to the listeners of a topic. Notifying a topic without listeners costs almost nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: defaultdict[str, list[Listener]] = defaultdict(list)

    def listen(self, topics: Iterable[str]) -> "Listener":
        """Start listening on the running loop; later notifications are not missed."""
        listener = Listener(self, tuple(topics), asyncio.get_running_loop())
        with self._lock:
            for topic in listener.topics:
                self._listeners[topic].append(listener)
        return listener

    def notify(self, topics: Iterable[str]) -> None:
        """Notify the listeners of these topics that something changed. May be called from any thread."""
        for listener in self._listening(topics):
            listener.wake()

    def notify_here(self, topics: Iterable[str]) -> None:
        """Notify as `notify` does, but from the loop of all the listeners, which saves one turn of the loop."""
        for listener in self._listening(topics):
            listener.wake_here()

    def notify_all(self) -> None:
        """Notify all listeners that anything may have changed."""
        if self._listeners:
            self.notify(tuple(self._listeners))

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that have a listener."""
        return tuple(self._listeners)

    @property
    def has_listeners(self) -> bool:
        """True if there is a listener."""
        return bool(self._listeners)

    def clear(self) -> None:
        """Remove every listener: after a fork they belong to loops of another process."""
        self._lock = threading.Lock()
        self._listeners.clear()

    def _listening(self, topics: Iterable[str]) -> "Iterable[Listener]":
        if not self._listeners:
            return ()
        with self._lock:
            # A dict, not a set: the order of waking must not depend on memory addresses.
            return dict.fromkeys(listener for topic in topics for listener in self._listeners.get(topic, ()))

    def remove(self, listener: "Listener") -> None:
        """Remove a listener."""
        with self._lock:
            for topic in listener.topics:
                heard = self._listeners.get(topic, [])
                if listener in heard:
                    heard.remove(listener)
                if not heard:
                    self._listeners.pop(topic, None)


class Listener:
    """A listener for some topics: an async iterator that yields None for each hint and merges simultaneous hints."""

    on_hint: Callable[[], None] | None = None
    """If set, it is called on the listener's loop for each hint, one turn of the loop before a waiter could continue.
    """

    def __init__(self, hub: NotificationHub, topics: tuple[str, ...], loop: asyncio.AbstractEventLoop) -> None:
        self.topics = topics
        self._hub = hub
        self._loop = loop
        self._event = asyncio.Event()
        self._pending = False
        # Run the callback in the listener's own context, not in the notifier's.
        self._context = contextvars.copy_context()

    def wake(self) -> None:
        """Record a hint. May be called from any thread."""
        if self._pending:
            return
        self._pending = True
        if asyncio._get_running_loop() is self._loop:
            # From its own loop, which does not need to be woken by a byte through a socket.
            self._loop.call_soon(self._deliver, context=self._context)
            return
        try:
            self._loop.call_soon_threadsafe(self._deliver, context=self._context)
        except RuntimeError:
            # The listener's loop was closed while the listener was still registered.
            self._hub.remove(self)

    def wake_here(self) -> None:
        """Record a hint, from the listener's own loop."""
        self._pending = True
        self._deliver()

    def _deliver(self) -> None:
        if self.on_hint is None:
            self._event.set()
        else:
            # Reset before the call: a hint that arrives during the call must cause another one.
            self._pending = False
            self.on_hint()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> None:
        await self._event.wait()
        self._event.clear()
        self._pending = False

    def take(self) -> bool:
        """Return True if there was a hint since the last call, without waiting for one."""
        pending, self._pending = self._pending, False
        self._event.clear()
        return pending

    def close(self) -> None:
        """Stop listening."""
        self._hub.remove(self)
