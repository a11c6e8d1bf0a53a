"""Subscriptions to notifications: one connection for each event loop and server, for any number of listeners.

listen(topics) ──► hub ──► channels by server ──► a connection to each ──► SSUBSCRIBE {partition}:n:<topic>
                    ▲                                      │
                    └── notify ◄── a message, or a subscription that has begun: earlier messages were missed

A broken connection is opened again, with growing rests and without end. Its subscriptions begin again, so each of its
listeners is notified once. An idle connection costs a PING every ten seconds. No listener ever gets an error from here.
"""

import asyncio
import contextlib
import contextvars
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import cast

from redis.exceptions import RedisError

from tenure.clock import entropy
from tenure.core.exponential_delay import ExponentialDelay
from tenure.errors import StorageUnavailableError, TenureError
from tenure.storage.notifications import Listener, NotificationHub
from tenure.storage.redis.address import ServerAddress
from tenure.storage.redis.connection import ServerConnection, error_of, text, why
from tenure.storage.redis.connections import SILENT, Connections
from tenure.storage.redis.loops import PerLoop
from tenure.storage.redis.resp import Command, Reply
from tenure.waiting import first

RETRY_DELAY = ExponentialDelay(0.1, 5.0)
"""The rests between two attempts to subscribe at a server."""

PING_EVERY = 10.0
"""Seconds without any message after which a connection is tested.

TCP keepalive detects that a server's host is gone. The PING detects proxies and the like that keep the connection open
in the server's place but pass nothing on.
"""

ANSWER_WAIT = 3.0
"""Seconds after which a connection is given up if the server has not answered on it."""

IDLE_WAIT = 10.0
"""Seconds that connections stay open without listeners, because the next wait for a result often begins soon."""

BATCH = 500
"""Maximum number of channels in one command."""

logger = logging.getLogger("tenure")


def channel(base: str, topic: str) -> str:
    """Return the channel on which a partition's scripts publish hints for a topic."""
    return f"{base}:n:{topic}"


class Subscriptions:
    """Receives what scripts publish, for every event loop of this process."""

    def __init__(
        self, connections: Connections, bases_of: Callable[[str], Sequence[str]], *, rng: Random | None = None
    ) -> None:
        chance = rng or entropy()
        self._per_loop = PerLoop(
            lambda: _LoopSubscriptions(connections, bases_of, chance), abandon=_LoopSubscriptions.abandon
        )
        connections.on_trouble = self._check

    def listen(self, topics: Iterable[str]) -> Listener:
        """Start to listen on the running loop. No hint from now on is missed, but one may arrive late."""
        owner, _ = self._per_loop.here()
        listener = owner.hub.listen(topics)
        owner.start()
        return listener

    async def close(self) -> None:
        """Close the subscriptions. Listeners stay registered and are notified after `resume`."""
        await self._per_loop.close(_LoopSubscriptions.stop, keep=True)

    def resume(self) -> None:
        """Subscribe again for the listeners that were registered before `close`."""
        self._per_loop.everywhere(_LoopSubscriptions.resume)

    def _check(self, place: ServerAddress) -> None:
        if (owner := self._per_loop.there()) is not None:
            owner.check(place)


class _SubscribingHub(NotificationHub):
    """A hub that reports the topics whose listeners have come or gone."""

    def __init__(self, changed: Callable[[Iterable[str]], None]) -> None:
        super().__init__()
        self._on_change = changed

    def listen(self, topics: Iterable[str]) -> Listener:
        listener = super().listen(topics)
        self._on_change(listener.topics)
        return listener

    def remove(self, listener: Listener) -> None:
        super().remove(listener)
        self._on_change(listener.topics)

    def has_listener(self, topic: str) -> bool:
        """Return True if a topic has listeners."""
        return topic in self._listeners


class _LoopSubscriptions:
    """The subscription connections of one event loop, and the channels of each."""

    def __init__(self, connections: Connections, bases_of: Callable[[str], Sequence[str]], rng: Random) -> None:
        self.hub = _SubscribingHub(self._changed)
        self._connections = connections
        self._bases_of = bases_of
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        self._changed_event = asyncio.Event()
        self._task_of_changes: asyncio.Task[None] | None = None
        self._subscriptions: dict[ServerAddress, _Subscription] = {}
        self._places: dict[str, ServerAddress] = {}
        """The server of each partition with subscriptions."""
        # A deque, because a listener may be closed on another thread.
        self._changes: deque[str] = deque()
        self._failures: Counter[str] = Counter()
        self._delayed: set[str] = set()
        self._disconnected = False

    def start(self) -> None:
        """Start the task that keeps connections open while there are listeners."""
        if self._task_of_changes is None:
            # In an empty context: the task must not inherit the context of the first job that listens.
            self._task_of_changes = self._loop.create_task(
                self._keep(), name="tenure-subscriptions", context=contextvars.Context()
            )

    def resume(self) -> None:
        """Start again if there are listeners."""
        if self.hub.has_listeners:
            self.start()

    async def stop(self) -> None:
        """Close the connections."""
        task, self._task_of_changes = self._task_of_changes, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def abandon(self) -> None:
        """Drop connections that belong to the parent process."""
        for subscription in self._subscriptions.values():
            subscription.abandon()

    def mark_connected(self, base: str) -> None:
        """Note that a partition's notifications arrive."""
        self._failures.pop(base, None)
        if self._disconnected:
            self._disconnected = False
            logger.info("notifications of %s arrive again", self._connections.address.shown)

    def check(self, place: ServerAddress) -> None:
        """Test a subscription connection at once, because what broke a call may have broken it, too."""
        if (subscription := self._subscriptions.get(place)) is not None:
            subscription.check()

    def lost(self, subscription: "_Subscription", error: BaseException) -> None:
        """Note that a connection is lost; its partitions' servers are looked up again after a rest."""
        if self._subscriptions.get(subscription.place) is not subscription:
            return
        del self._subscriptions[subscription.place]
        for base in [base for base, place in self._places.items() if place == subscription.place]:
            self._retry_later(base, error)

    def _retry_later(self, base: str, error: BaseException) -> None:
        self._places.pop(base, None)
        self._failures[base] += 1
        self._delayed.add(base)
        self._loop.call_later(RETRY_DELAY.rest(self._failures[base], self._rng), self._retry, base)
        if not self._disconnected:
            self._disconnected = True
            logger.warning("no notifications until the next try succeeds; waiters poll meanwhile: %s", why(error))

    def _retry(self, base: str) -> None:
        self._delayed.discard(base)
        self._changed(self.hub.topics)

    def _changed(self, topics: Iterable[str]) -> None:
        self._changes.extend(topics)
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            self._changed_event.set()
        else:
            # A closed loop has no listeners left.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._changed_event.set)

    async def _keep(self) -> None:
        try:
            self._changes.extend(self.hub.topics)
            while True:
                self._changed_event.clear()
                await self._apply_changes()
                if self.hub.has_listeners:
                    await self._changed_event.wait()
                    continue
                await first(self._changed_event.wait(), within=IDLE_WAIT)
                if not self.hub.has_listeners:
                    break
        except asyncio.CancelledError:
            raise
        except Exception:
            # A bug of ours. Listeners go on by polling, and the next listener starts this task again.
            logger.exception("the subscriptions of %s have failed", self._connections.address.shown)
        finally:
            if self._task_of_changes is asyncio.current_task():
                # From here on, the next listener starts another task.
                self._task_of_changes = None
            subscriptions = list(self._subscriptions.values())
            self._subscriptions.clear()
            self._places.clear()
            await asyncio.gather(*(subscription.stop() for subscription in subscriptions))

    async def _apply_changes(self) -> None:
        """Pass changed topics on to the connections, and open those that are missing."""
        while self._changes:
            topic = self._changes.popleft()
            for base in self._bases_of(topic):
                name = channel(base, topic)
                if not self.hub.has_listener(topic):
                    subscription = self._subscriptions.get(self._places[base]) if base in self._places else None
                    if subscription is not None:
                        subscription.unsubscribe(name)
                elif (place := await self._place_of(base)) is not None:
                    subscription = self._subscriptions.get(place)
                    if subscription is None:
                        subscription = self._subscriptions[place] = _Subscription(self, self._connections, place)
                    subscription.subscribe(name, base, topic)

    async def _place_of(self, base: str) -> ServerAddress | None:
        place = self._places.get(base)
        if place is not None or base in self._delayed:
            return place
        try:
            if self._failures[base]:
                await self._connections.moved()
            place = self._places[base] = await self._connections.place(base)
        except TenureError as error:
            self._retry_later(base, error)
        return place


_Channel = tuple[str, str]
"""The partition and the topic of a channel."""


class _Subscription:
    """A connection to one server that carries only subscriptions."""

    def __init__(self, owner: _LoopSubscriptions, connections: Connections, place: ServerAddress) -> None:
        self.place = place
        self._owner = owner
        self._connections = connections
        self._wanted: dict[str, _Channel] = {}
        self._arriving: dict[str, _Channel] = {}
        self._departing: dict[str, _Channel] = {}
        self._leaving: Counter[str] = Counter()
        """For each channel, the number of SUNSUBSCRIBE commands that the server has not confirmed yet."""
        self._check_soon = False
        self._received_at = 0.0
        """When the server last sent anything."""
        self._asked_at: float | None = None
        """When the first command was sent since then; None if the server has sent something after every command."""
        self._changed_event = asyncio.Event()
        self._connection: ServerConnection | None = None
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"tenure-subscriptions {place}")

    def subscribe(self, name: str, base: str, topic: str) -> None:
        """Subscribe to a channel. Idempotent."""
        if name not in self._wanted:
            self._wanted[name] = entry = (base, topic)
            if self._departing.pop(name, None) is None:
                self._arriving[name] = entry
            self._changed_event.set()

    def unsubscribe(self, name: str) -> None:
        """Unsubscribe from a channel. Idempotent."""
        entry = self._wanted.pop(name, None)
        if entry is not None:
            if self._arriving.pop(name, None) is None:
                self._departing[name] = entry
            self._changed_event.set()

    def check(self) -> None:
        """Soon check whether the server still answers."""
        self._check_soon = True
        self._changed_event.set()

    async def stop(self) -> None:
        """Close the connection."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def abandon(self) -> None:
        """Drop a connection that belongs to the parent process."""
        if self._connection is not None:
            self._connection.abandon()

    async def _run(self) -> None:
        try:
            self._connection = connection = await self._connections.open(self.place)
            self._received_at = asyncio.get_running_loop().time()
            try:
                await first(connection.listen(self._receive), self._write(connection))
            finally:
                await connection.drop()
        except (TenureError, RedisError, OSError) as error:
            self._owner.lost(self, error)
        except Exception as error:
            logger.exception("the subscriptions of %s have failed", self.place)
            self._owner.lost(self, error)

    def _receive(self, reply: Reply) -> None:
        if (error := error_of(reply)) is not None:
            raise error
        self._check_soon, self._asked_at = False, None
        self._received_at = asyncio.get_running_loop().time()
        if not isinstance(reply, list):
            return
        kind, name = (text(part) for part in cast("list[object]", reply)[:2])
        match kind:
            case "smessage" | "ssubscribe" if (entry := self._wanted.get(name)) is not None:
                base, topic = entry
                if kind == "ssubscribe":
                    self._owner.mark_connected(base)
                self._owner.hub.notify_here((topic,))
            case "sunsubscribe" if self._leaving[name]:
                self._leaving[name] -= 1
            case "sunsubscribe" if name in self._wanted and name not in self._arriving:
                raise StorageUnavailableError(f"{self.place} no longer holds the subscribed partition")
            case _:
                pass

    async def _write(self, connection: ServerConnection) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            self._changed_event.clear()
            departing, self._departing = self._departing, {}
            arriving, self._arriving = self._arriving, {}
            self._leaving.update(departing.keys())
            commands: list[Command] = [*_commands("SUNSUBSCRIBE", departing), *_commands("SSUBSCRIBE", arriving)]
            now = clock()
            # The server answers every command, so an SSUBSCRIBE tests the connection as well as a PING.
            if self._asked_at is None and (self._check_soon or now >= self._received_at + PING_EVERY):
                commands.append(("PING",))
            if commands:
                await connection.send(commands)
                self._asked_at = now if self._asked_at is None else self._asked_at
            answer = SILENT if self._check_soon else ANSWER_WAIT
            until = self._received_at + PING_EVERY if self._asked_at is None else self._asked_at + answer
            with contextlib.suppress(TimeoutError):
                # An answer does not set `_news`, so it does not end this wait.
                async with asyncio.timeout_at(min(until, now + PING_EVERY)):
                    await self._changed_event.wait()
            # An answer resets `_asked_at` to None.
            if self._asked_at is not None and clock() >= self._asked_at + answer:
                raise StorageUnavailableError(f"{self.place} has not answered for {answer:g} s")


def _commands(verb: str, channels: dict[str, _Channel]) -> Iterable[Command]:
    """Return the commands, separate ones for each partition: a Cluster command may name channels of one slot only."""
    by_base: dict[str, list[str]] = {}
    for name, (base, _) in channels.items():
        by_base.setdefault(base, []).append(name)
    for names in by_base.values():
        for start in range(0, len(names), BATCH):
            yield (verb, *names[start : start + BATCH])
