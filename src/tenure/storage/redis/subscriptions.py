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
from tenure.storage.redis.connection import ServerConnection, said, text, why
from tenure.storage.redis.connections import SILENT, Connections
from tenure.storage.redis.loops import PerLoop
from tenure.storage.redis.resp import Command, Reply
from tenure.waiting import first

PATIENCE = ExponentialDelay(0.1, 5.0)
"""The rests between two attempts to subscribe at a server."""

PING_EVERY = 10.0
"""Seconds without any message after which a connection is tested.

TCP keepalive detects that a server's host is gone. The PING detects proxies and the like that keep the connection open
in the server's place but pass nothing on.
"""

ANSWER = 3.0
"""Seconds after which a connection is given up if the server has not answered on it."""

LINGERING = 10.0
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
        self._posts = PerLoop(
            lambda: _LoopSubscriptions(connections, bases_of, chance), abandon=_LoopSubscriptions.abandon
        )
        connections.on_trouble = self._doubt

    def listen(self, topics: Iterable[str]) -> Listener:
        """Start to listen on the running loop. No hint from now on is missed, but one may arrive late."""
        post, _ = self._posts.here()
        listener = post.hub.listen(topics)
        post.start()
        return listener

    async def close(self) -> None:
        """Close the subscriptions. Listeners stay registered and are notified after `resume`."""
        await self._posts.close(_LoopSubscriptions.stop, keep=True)

    def resume(self) -> None:
        """Subscribe again for the listeners that were registered before `close`."""
        self._posts.everywhere(_LoopSubscriptions.resume)

    def _doubt(self, place: ServerAddress) -> None:
        if (post := self._posts.there()) is not None:
            post.doubt(place)


class _SubscribingHub(NotificationHub):
    """A hub that reports the topics whose listeners have come or gone."""

    def __init__(self, changed: Callable[[Iterable[str]], None]) -> None:
        super().__init__()
        self._tell = changed

    def listen(self, topics: Iterable[str]) -> Listener:
        listener = super().listen(topics)
        self._tell(listener.topics)
        return listener

    def forget(self, listener: Listener) -> None:
        super().forget(listener)
        self._tell(listener.topics)

    def hears(self, topic: str) -> bool:
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
        self._news = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._lines: dict[ServerAddress, _Subscription] = {}
        self._where: dict[str, ServerAddress] = {}
        """The server of each partition with subscriptions."""
        # A deque, because a listener may be closed on another thread.
        self._changes: deque[str] = deque()
        self._failures: Counter[str] = Counter()
        self._resting: set[str] = set()
        self._deaf = False

    def start(self) -> None:
        """Start the task that keeps connections open while there are listeners."""
        if self._keeper is None:
            # In an empty context: the task must not inherit the context of the first job that listens.
            self._keeper = self._loop.create_task(self._keep(), name="tenure-ear", context=contextvars.Context())

    def resume(self) -> None:
        """Start again if there are listeners."""
        if self.hub.heard:
            self.start()

    async def stop(self) -> None:
        """Close the connections."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    def abandon(self) -> None:
        """Drop connections that belong to the parent process."""
        for line in self._lines.values():
            line.abandon()

    def began(self, base: str) -> None:
        """Note that a partition's notifications arrive."""
        self._failures.pop(base, None)
        if self._deaf:
            self._deaf = False
            logger.info("the notices of %s come in again", self._connections.address.shown)

    def doubt(self, place: ServerAddress) -> None:
        """Test a subscription connection at once, because what broke a call may have broken it, too."""
        if (line := self._lines.get(place)) is not None:
            line.doubt()

    def lost(self, line: "_Subscription", error: BaseException) -> None:
        """Note that a connection is lost; its partitions' servers are looked up again after a rest."""
        if self._lines.get(line.place) is not line:
            return
        del self._lines[line.place]
        for base in [base for base, place in self._where.items() if place == line.place]:
            self._rest(base, error)

    def _rest(self, base: str, error: BaseException) -> None:
        self._where.pop(base, None)
        self._failures[base] += 1
        self._resting.add(base)
        self._loop.call_later(PATIENCE.rest(self._failures[base], self._rng), self._rested, base)
        if not self._deaf:
            self._deaf = True
            logger.warning("no notices until a next try succeeds, so others are asked now and then: %s", why(error))

    def _rested(self, base: str) -> None:
        self._resting.discard(base)
        self._changed(self.hub.topics)

    def _changed(self, topics: Iterable[str]) -> None:
        self._changes.extend(topics)
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            self._news.set()
        else:
            # A closed loop has no listeners left.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._news.set)

    async def _keep(self) -> None:
        try:
            self._changes.extend(self.hub.topics)
            while True:
                self._news.clear()
                await self._arrange()
                if self.hub.heard:
                    await self._news.wait()
                    continue
                await first(self._news.wait(), within=LINGERING)
                if not self.hub.heard:
                    break
        except asyncio.CancelledError:
            raise
        except Exception:
            # A bug of ours. Listeners go on by polling, and the next listener starts this task again.
            logger.exception("the notices of %s have failed", self._connections.address.shown)
        finally:
            if self._keeper is asyncio.current_task():
                # From here on, the next listener starts another task.
                self._keeper = None
            lines = list(self._lines.values())
            self._lines.clear()
            self._where.clear()
            await asyncio.gather(*(line.stop() for line in lines))

    async def _arrange(self) -> None:
        """Pass changed topics on to the connections, and open those that are missing."""
        while self._changes:
            topic = self._changes.popleft()
            for base in self._bases_of(topic):
                name = channel(base, topic)
                if not self.hub.hears(topic):
                    line = self._lines.get(self._where[base]) if base in self._where else None
                    if line is not None:
                        line.unwant(name)
                elif (place := await self._placed(base)) is not None:
                    line = self._lines.get(place)
                    if line is None:
                        line = self._lines[place] = _Subscription(self, self._connections, place)
                    line.want(name, base, topic)

    async def _placed(self, base: str) -> ServerAddress | None:
        place = self._where.get(base)
        if place is not None or base in self._resting:
            return place
        try:
            if self._failures[base]:
                await self._connections.moved()
            place = self._where[base] = await self._connections.place(base)
        except TenureError as error:
            self._rest(base, error)
        return place


_Wish = tuple[str, str]
"""The partition and the topic of a channel."""


class _Subscription:
    """A connection to one server that carries only subscriptions."""

    def __init__(self, post: _LoopSubscriptions, connections: Connections, place: ServerAddress) -> None:
        self.place = place
        self._post = post
        self._connections = connections
        self._wanted: dict[str, _Wish] = {}
        self._arriving: dict[str, _Wish] = {}
        self._departing: dict[str, _Wish] = {}
        self._leaving: Counter[str] = Counter()
        """For each channel, the number of SUNSUBSCRIBE commands that the server has not confirmed yet."""
        self._doubted = False
        self._heard_at = 0.0
        """When the server last sent anything."""
        self._asked_at: float | None = None
        """When the first command was sent since then; None if the server has sent something after every command."""
        self._news = asyncio.Event()
        self._link: ServerConnection | None = None
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"tenure-ear {place}")

    def want(self, name: str, base: str, topic: str) -> None:
        """Subscribe to a channel. Idempotent."""
        if name not in self._wanted:
            self._wanted[name] = wish = (base, topic)
            if self._departing.pop(name, None) is None:
                self._arriving[name] = wish
            self._news.set()

    def unwant(self, name: str) -> None:
        """Unsubscribe from a channel. Idempotent."""
        wish = self._wanted.pop(name, None)
        if wish is not None:
            if self._arriving.pop(name, None) is None:
                self._departing[name] = wish
            self._news.set()

    def doubt(self) -> None:
        """Soon check whether the server still answers."""
        self._doubted = True
        self._news.set()

    async def stop(self) -> None:
        """Close the connection."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def abandon(self) -> None:
        """Drop a connection that belongs to the parent process."""
        if self._link is not None:
            self._link.abandon()

    async def _run(self) -> None:
        try:
            self._link = link = await self._connections.open(self.place)
            self._heard_at = asyncio.get_running_loop().time()
            try:
                await first(link.listen(self._heard), self._write(link))
            finally:
                await link.drop()
        except (TenureError, RedisError, OSError) as error:
            self._post.lost(self, error)
        except Exception as error:
            logger.exception("the notices of %s have failed", self.place)
            self._post.lost(self, error)

    def _heard(self, reply: Reply) -> None:
        if (error := said(reply)) is not None:
            raise error
        self._doubted, self._asked_at = False, None
        self._heard_at = asyncio.get_running_loop().time()
        if not isinstance(reply, list):
            return
        kind, name = (text(part) for part in cast("list[object]", reply)[:2])
        match kind:
            case "smessage" | "ssubscribe" if (wish := self._wanted.get(name)) is not None:
                base, topic = wish
                if kind == "ssubscribe":
                    self._post.began(base)
                self._post.hub.knock_here((topic,))
            case "sunsubscribe" if self._leaving[name]:
                self._leaving[name] -= 1
            case "sunsubscribe" if name in self._wanted and name not in self._arriving:
                raise StorageUnavailableError(f"{self.place} no longer holds what was listened to")
            case _:
                pass

    async def _write(self, link: ServerConnection) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            self._news.clear()
            departing, self._departing = self._departing, {}
            arriving, self._arriving = self._arriving, {}
            self._leaving.update(departing.keys())
            commands: list[Command] = [*_commands("SUNSUBSCRIBE", departing), *_commands("SSUBSCRIBE", arriving)]
            now = clock()
            # The server answers every command, so an SSUBSCRIBE tests the connection as well as a PING.
            if self._asked_at is None and (self._doubted or now >= self._heard_at + PING_EVERY):
                commands.append(("PING",))
            if commands:
                await link.send(commands)
                self._asked_at = now if self._asked_at is None else self._asked_at
            answer = SILENT if self._doubted else ANSWER
            until = self._heard_at + PING_EVERY if self._asked_at is None else self._asked_at + answer
            with contextlib.suppress(TimeoutError):
                # An answer does not set `_news`, so it does not end this wait.
                async with asyncio.timeout_at(min(until, now + PING_EVERY)):
                    await self._news.wait()
            # An answer resets `_asked_at` to None.
            if self._asked_at is not None and clock() >= self._asked_at + answer:
                raise StorageUnavailableError(f"{self.place} has not answered for {answer:g} s")


def _commands(verb: str, channels: dict[str, _Wish]) -> Iterable[Command]:
    """Return the commands, separate ones for each partition: a Cluster command may name channels of one slot only."""
    by_base: dict[str, list[str]] = {}
    for name, (base, _) in channels.items():
        by_base.setdefault(base, []).append(name)
    for names in by_base.values():
        for start in range(0, len(names), BATCH):
            yield (verb, *names[start : start + BATCH])
