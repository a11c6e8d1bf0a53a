"""Connection pools for each event loop, and script calls that are retried only where that is safe.

call ──► where is the partition? ──► a connection to that server ──► EVALSHA ──► reply
              ▲                                                        │
              └──── a short rest ◄──── refused before it did anything (it fails over, moves slots, starts)
                    NOSCRIPT: the next try sends the script along

Callers may repeat any call. This module repeats a call only if the server said that it did nothing. After a cut
connection or a late answer, it is unknown whether the server ran the script: the caller gets an error and decides.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from random import Random
from typing import Protocol, cast

from msgspec import Struct
from redis.exceptions import AskError, MovedError, NoScriptError, ReadOnlyError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from tenure.clock import entropy
from tenure.core.exponential_delay import ExponentialDelay
from tenure.errors import NotDurableError, TenureError
from tenure.storage.redis.address import RedisAddress, ServerAddress
from tenure.storage.redis.connection import ANSWERING, LONGEST, ServerConnection, error_of, unreached, why
from tenure.storage.redis.errors import cause_of, ours, undone
from tenure.storage.redis.loops import PerLoop
from tenure.storage.redis.resp import Command, Reply, Word, packed_after
from tenure.storage.redis.routes import Routes, routes
from tenure.storage.redis.script_library import Script

LIMIT = 64
"""Maximum number of connections from one event loop to one server. If all are in use, a call waits for one."""

KEPT = 16
"""Maximum number of idle connections that stay open."""

TRIES = 7
PATIENCE = ExponentialDelay(0.05, 0.4)
"""How often a temporarily refused call is tried, and the rests between the tries: about a second in all."""

SILENT = 2.0
"""Seconds after which an unanswered call is checked by a PING on a second connection: this detects half-open ones."""

GIVEN_UP = 0.5
"""A call that the caller cancels after at least this many seconds counts as unanswered by the server."""

CONFIRMING = 1.0
"""Seconds that a replica has to confirm a write if it can only confirm it in memory (WAIT)."""

WRITING = 3.0
"""Seconds that a server and a replica have to get a write onto their disks (WAITAOF). With `appendfsync everysec` that
takes up to one second, or two if the disk is busy, and a replica reports it once a second."""

SOON = 0.05
"""Seconds of the first, short WAITAOF. It suffices if both servers write before they answer (`appendfsync always`)."""

AGAIN = 60.0
"""Seconds until WAITAOF is tried again on a server that did not know it, or that had no append-only file."""


class ScriptCall(Struct, frozen=True, gc=False):
    """A call of a script on a partition. Without a script, `args` are the words of a plain command."""

    script: Script | None
    base: str
    args: tuple[Word, ...] = ()

    @property
    def command(self) -> Command:
        """The command to send; it assumes that the server has the script."""
        if self.script is None:
            return self.args
        return packed_after((b"EVALSHA", self.script.sha, b"1", self.base), self.args)

    @property
    def name(self) -> str:
        """The script's name, or "" for a plain command."""
        return self.script.name if self.script is not None else ""


class Connections:
    """All connections of a storage, for every event loop of this process."""

    def __init__(self, address: RedisAddress, *, rng: Random | None = None) -> None:
        self.address = address
        chance = rng or entropy()
        self.on_trouble: Callable[[ServerAddress], None] = lambda place: None
        """Called when a server has not answered a call, on the event loop of that call."""
        self._homes = PerLoop(
            lambda: _LoopConnections(address, chance, lambda place: self.on_trouble(place)),
            abandon=_LoopConnections.abandon,
        )

    async def call(self, script: Script, base: str, *args: Word, durable: bool = False) -> Reply:
        """Call a script on a partition and return its reply.

        `durable`: wait until a replica has the writes, too.

        Raises:
            StorageUnavailableError: the server is unreachable or takes no calls. It may have run the script anyway,
                unless the message says otherwise.
            StorageFullError: the server has no room.
            NotDurableError: the write was made, but no replica has confirmed it in time.
            StorageError: the server refuses us, or the script has failed.
        """
        home = self._homes.there() or await self._home()
        calls = (ScriptCall(script, base, args),)
        place = home.routes.known(base)
        if place is None or durable:
            [reply] = await home.make(calls, durable=durable)
        else:
            # The usual case, made fast: the partition's server is known, so the call goes there directly.
            replies: list[Reply]
            try:
                replies = await home.ask(place, (calls[0].command,))
            except (RedisError, OSError) as error:
                replies = [error]
            reply = replies[0]
            if isinstance(reply, BaseException):
                home.handle_replies(place, calls, replies)
                [reply] = await home.make_again(calls, replies, durable=durable)
        if isinstance(reply, BaseException):
            raise ours(reply, self.address.shown, script.name)
        return reply

    async def call_all(self, calls: Sequence[ScriptCall], *, durable: bool = False) -> list[Reply]:
        """Make several calls at once, in one round trip to each server, and return their replies.

        Raises:
            StorageError: as `call`; the first one, if several calls fail. The other calls were made anyway.
        """
        outcomes = await self.outcomes(calls, durable=durable)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return outcomes

    async def outcomes(self, calls: Sequence[ScriptCall], *, durable: bool = False) -> list[Reply]:
        """Make several calls at once; return each call's reply, or the error that `call` would raise."""
        home = await self._home()
        replies = await home.make(calls, durable=durable)
        return [
            ours(reply, self.address.shown, call.name) if isinstance(reply, BaseException) else reply
            for call, reply in zip(calls, replies, strict=True)
        ]

    async def run_command(self, base: str, *command: Word, durable: bool = False) -> Reply:
        """Send a plain command on a partition's key to its server, and return the reply.

        Raises:
            StorageError: as `call`.
        """
        [reply] = await self.call_all((ScriptCall(None, base, command),), durable=durable)
        return reply

    async def ask(self, place: ServerAddress, *command: Word) -> Reply:
        """Send one server a plain command and return the reply.

        Raises:
            StorageError: as `call`.
        """
        [reply] = await self.ask_all(place, [command])
        if isinstance(reply, BaseException):
            raise ours(reply, self.address.shown)
        return reply

    async def ask_all(self, place: ServerAddress, commands: Sequence[Command]) -> list[Reply]:
        """Send one server plain commands in one round trip; return its replies, errors included.

        Raises:
            StorageUnavailableError: the server is unreachable.
        """
        home = await self._home()
        try:
            return await home.ask(place, commands)
        except (RedisError, OSError) as error:
            raise ours(error, self.address.shown) from cause_of(error)

    async def places(self) -> list[ServerAddress]:
        """Return every server that holds one of our partitions. Asks the Sentinels or the Cluster again.

        Raises:
            StorageUnavailableError: no Sentinel or node answers at the moment.
        """
        home = await self._home()
        try:
            home.routes.doubt()
            return await home.routes.places()
        except (RedisError, OSError) as error:
            raise ours(error, self.address.shown) from cause_of(error)

    async def place(self, base: str) -> ServerAddress:
        """Return the server that holds a partition.

        Raises:
            StorageUnavailableError: no Sentinel or node answers at the moment.
        """
        home = await self._home()
        try:
            return await home.routes.place(base)
        except (RedisError, OSError) as error:
            raise ours(error, self.address.shown) from cause_of(error)

    async def moved(self) -> None:
        """Look up the partitions' servers again before the next call from this event loop."""
        (await self._home()).routes.doubt()

    async def open(self, place: ServerAddress) -> ServerConnection:
        """Open a connection outside the pools; the caller owns and closes it.

        Raises:
            StorageUnavailableError: the server is unreachable.
        """
        try:
            return await ServerConnection.open(place, self.address, db=self.address.db)
        except (RedisError, OSError) as error:
            raise ours(error, self.address.shown) from cause_of(error)

    async def close(self) -> None:
        """Close every connection, those of other threads' event loops too. A later call opens new ones."""
        await self._homes.close(_LoopConnections.close)

    async def _home(self) -> "_LoopConnections":
        home, new = self._homes.here()
        if new:
            await home.settle_in()
        return home


class _Pool:
    """The connections to one server."""

    def __init__(self) -> None:
        self.idle: list[ServerConnection] = []
        self.lent = 0
        """How many are in use."""
        self.line: deque[asyncio.Future[None]] = deque()
        """Calls that wait for a connection, in order of arrival."""

    def lend(self) -> ServerConnection | None:
        """Take an idle, usable connection; return None if there are no such connections or if others wait."""
        if not self.idle or self.lent >= LIMIT or self.line or self.idle[-1].unfit:
            return None
        self.lent += 1
        return self.idle.pop()

    async def enter(self) -> None:
        """Count one more connection as in use; wait while LIMIT are in use."""
        if self.lent < LIMIT:
            self.lent += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self.line.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.leave()
            raise
        finally:
            # It stays in the queue until it runs again: until then, one of the idle connections is reserved for it.
            self.line.remove(turn)

    def leave(self) -> None:
        """Pass the place to the first waiting call, or count one connection less as in use."""
        for turn in self.line:
            if not turn.done():
                turn.set_result(None)
                return
        self.lent -= 1


class _LoopConnections:
    """The connections of one event loop; use it on that loop only."""

    def __init__(self, address: RedisAddress, rng: Random, trouble: Callable[[ServerAddress], None]) -> None:
        self._trouble = trouble
        self.routes: Routes = routes(address)
        self._address = address
        self._rng = rng
        self._pools: dict[ServerAddress, _Pool] = {}
        self._links: set[ServerConnection] = set()
        self._in_memory: dict[ServerAddress, float] = {}
        """The servers that cannot confirm writes on disk, and until when WAITAOF is not tried there again."""
        self._watch = _CallMonitor(self._compare_soon)
        self._comparing: set[asyncio.Task[None]] = set()
        self._end: AsyncGenerator[None] | None = None
        self._closed = False

    async def settle_in(self) -> None:
        """Arrange that the connections are closed when the event loop ends."""
        self._end = _until_the_loop_ends(self)
        await anext(self._end)

    async def make(self, calls: Sequence[ScriptCall], *, durable: bool) -> list[Reply]:
        """Make calls, and retry them where that is safe; return each call's reply or error."""
        replies: list[Reply] = [None] * len(calls)
        await self._try(calls, range(len(calls)), replies, (), durable)
        return await self.make_again(calls, replies, durable=durable)

    async def make_again(self, calls: Sequence[ScriptCall], replies: list[Reply], *, durable: bool) -> list[Reply]:
        """Retry the calls that were not carried out; return the replies to all calls."""
        for tried in range(1, TRIES):
            left = [
                at for at, reply in enumerate(replies) if _may_go_again(reply, elsewhere=self._address.kind != "server")
            ]
            if not left:
                break
            lacking = (calls[at].script for at in left if isinstance(replies[at], NoScriptError))
            unknown = {script.sha: script for script in lacking if script is not None}
            if tried > 2 or not all(_at_once(replies[at]) for at in left):
                await asyncio.sleep(PATIENCE.rest(tried, self._rng))
            await self._try(calls, left, replies, list(unknown.values()), durable)
        return replies

    async def ask(
        self, place: ServerAddress, commands: Sequence[Command], *, load: Sequence[Script] = (), durable: bool = False
    ) -> list[Reply]:
        """Send commands in one round trip and return the replies.

        `load`: scripts to load first. `durable`: adds one more reply, the one to WAITAOF or WAIT.
        """
        sent = [*(("SCRIPT", "LOAD", script.text) for script in load), *commands] if load else commands
        loop = asyncio.get_running_loop()
        now = loop.time()
        in_memory = durable and now < self._in_memory.get(place, 0.0)
        more = durable * (CONFIRMING if in_memory else WRITING)
        pool = self._pools.get(place)
        if pool is None:
            pool = self._pools[place] = _Pool()
        try:
            if (link := pool.lend()) is None:
                link = await self._borrowed(place, pool, ANSWERING + more)
                now = loop.time()
            self._watch.begin(link, now, more)
            try:
                if in_memory:
                    replies = await link.put([*sent, _wait()], len(sent) + 1)
                else:
                    replies = await link.put(sent, len(sent))
                    if durable:
                        replies.append(await self._on_disk(place, link))
                return _unloaded(replies, len(load)) if load else replies
            except BaseException:
                link.retired = True
                raise
            finally:
                self._watch.end(link)
                if not self._rests(pool, link):
                    await self._put_away(pool, link)
        except (RedisError, OSError):
            self._suspect(place)
            raise
        except asyncio.CancelledError:
            # A caller with a shorter time limit cancels before our own limit; a failover must still be noticed.
            if loop.time() - now >= GIVEN_UP:
                self._suspect(place)
            raise

    def _suspect(self, place: ServerAddress) -> None:
        """Treat a server as possibly gone."""
        # What broke one connection has probably broken the idle ones, too. Without this, each of them would cost one
        # call that waits for an answer that never comes.
        self._retire(place)
        self.routes.doubt(place)
        self._trouble(place)

    async def _on_disk(self, place: ServerAddress, link: ServerConnection) -> Reply:
        """Ask whether a connection's writes are on the disks of the server and of a replica."""
        # A replica reports its disk state when it is asked, and otherwise once a second. If WAITAOF came in one trip
        # with the write, the replica would report its state before the write. So ask in a trip of its own, twice.
        reply: Reply = None
        for within in (SOON, WRITING - SOON):
            [reply] = await link.ask([("WAITAOF", 1, 1, round(within * 1000))], 1)
            if _knows_no_waitaof(reply):
                self._in_memory[place] = asyncio.get_running_loop().time() + AGAIN
                # Use the same connection: WAIT asks about the writes of its own connection.
                [reply] = await link.ask([_wait()], 1)
                break
            if 0 not in _counts(reply):
                break
        return reply

    def _compare_soon(self, place: ServerAddress, link: ServerConnection) -> None:
        comparing = asyncio.get_running_loop().create_task(
            self._compare(place, link), name="tenure-compare", context=contextvars.Context()
        )
        self._comparing.add(comparing)
        comparing.add_done_callback(self._comparing.discard)

    async def _compare(self, place: ServerAddress, link: ServerConnection) -> None:
        """Give up a silent connection if the server answers on another one."""
        sent_before = link.commands_sent
        try:
            async with asyncio.timeout(ANSWERING):
                other = await ServerConnection.open(place, self._address, db=self._address.db)
                try:
                    [reply] = await other.ask([("PING",)], 1)
                finally:
                    await other.drop()
        except (RedisError, OSError):
            return
        # Meanwhile the call may have ended and another one begun on this connection.
        if error_of(reply) is None and link.silent and link.commands_sent == sent_before:
            link.give_up()

    async def close(self) -> None:
        """Close the idle connections now, and each of the others when its call ends."""
        if self._end is not None:
            await self._end.aclose()

    async def shut(self) -> None:
        """See `close`."""
        self._closed = True
        self._watch.close()
        for comparing in self._comparing:
            comparing.cancel()
        for pool in self._pools.values():
            while pool.idle:
                link = pool.idle.pop()
                self._links.discard(link)
                await link.close()

    def abandon(self) -> None:
        """Drop connections that belong to the parent process."""
        for link in self._links:
            link.abandon()

    async def _try(
        self,
        calls: Sequence[ScriptCall],
        left: Sequence[int],
        replies: list[Reply],
        load: Sequence[Script],
        durable: bool,
    ) -> None:
        groups: dict[ServerAddress, list[int]] = {}
        for at in left:
            try:
                groups.setdefault(await self.routes.place(calls[at].base), []).append(at)
            except (TenureError, RedisError, OSError) as error:
                replies[at] = error

        async def send(place: ServerAddress, group: list[int]) -> None:
            made = await self._make_at(place, [calls[at] for at in group], load=load, durable=durable)
            for at, reply in zip(group, made, strict=True):
                replies[at] = reply

        trips = [send(place, group) for place, group in groups.items()]
        if len(trips) == 1:
            await trips[0]
        elif trips:
            await asyncio.gather(*trips)

    async def _make_at(
        self, place: ServerAddress, calls: Sequence[ScriptCall], *, load: Sequence[Script], durable: bool
    ) -> list[Reply]:
        """Make calls once on one server; return each call's reply or error."""
        try:
            replies = await self.ask(place, [call.command for call in calls], load=load, durable=durable)
        except (RedisError, OSError) as error:
            return [error] * len(calls)
        if durable and (lacking := _lacking(replies.pop(), self._address.shown)) is not None:
            replies = [UnconfirmedError(lacking, reply) if error_of(reply) is None else reply for reply in replies]
        self.handle_replies(place, calls, replies)
        return replies

    def handle_replies(self, place: ServerAddress, calls: Sequence[ScriptCall], replies: Sequence[Reply]) -> None:
        """Update the routes from replies and errors, and retire connections to a server that is not a master."""
        for call, reply in zip(calls, replies, strict=True):
            match reply:
                case list() | bytes() | int():
                    pass
                case MovedError():
                    to = cast("_Redirection", reply)
                    self.routes.moved(call.base, ServerAddress(to.host or place.host, to.port))
                case ReadOnlyError():
                    # These connections lead to a server that was the master before.
                    self.routes.doubt()
                    self._retire(place)
                case RedisError() if undone(reply) and not isinstance(reply, AskError | NoScriptError):
                    self.routes.doubt()
                case _:
                    # This includes AskError: the slot is being migrated, so each node holds a part of its keys. The
                    # other node would see half of a partition, so the call waits until the migration is over.
                    pass

    def _retire(self, place: ServerAddress) -> None:
        """Never use the currently idle connections to a server again."""
        if (pool := self._pools.get(place)) is not None:
            for link in pool.idle:
                link.retired = True

    async def _borrowed(self, place: ServerAddress, pool: _Pool, within: float) -> ServerConnection:
        """Return a connection for the caller, which must return it.

        Raises:
            TimeoutError: no connection became available in time.
        """
        async with asyncio.timeout(within):
            await pool.enter()
            try:
                return await self._idle(pool) or await self._connect(place)
            except BaseException:
                pool.leave()
                raise

    def _rests(self, pool: _Pool, link: ServerConnection) -> bool:
        """Return True and put the connection back into the pool, if it is usable and the pool has room."""
        if link.retired or self._closed or len(pool.idle) >= KEPT:
            return False
        pool.idle.append(link)
        pool.leave()
        return True

    async def _put_away(self, pool: _Pool, link: ServerConnection) -> None:
        """Give a connection back: close it if it is retired, and close idle ones above the limit."""
        try:
            if link.retired:
                await self._hang_up(link)
                return
            pool.idle.append(link)
            # Keep more idle connections than usual while calls wait for one.
            while pool.idle and (self._closed or (len(pool.idle) > KEPT and pool.lent < LIMIT and not pool.line)):
                await self._hang_up(pool.idle.pop(0))
        finally:
            pool.leave()

    async def _idle(self, pool: _Pool) -> ServerConnection | None:
        while pool.idle:
            link = pool.idle.pop()
            if not link.unfit:
                return link
            await self._hang_up(link)
        return None

    async def _hang_up(self, link: ServerConnection) -> None:
        self._links.discard(link)
        await link.drop()

    async def _connect(self, place: ServerAddress) -> ServerConnection:
        try:
            link = await ServerConnection.open(place, self._address, db=self._address.db)
        except (RedisError, OSError) as error:
            if unreached(error):
                # For a single server, the message names the address already.
                at = "" if self._address.kind == "server" else f"{place}: "
                raise _NotConnectedError(f"{at}{why(error)}") from error
            raise
        if self._address.kind == "sentinel":
            # Sentinels may name a server before it has become the master, so ask the server itself.
            [role] = await link.ask([("ROLE",)], 1)
            if isinstance(role, list) and role[:1] != [b"master"]:
                await link.drop()
                raise ReadOnlyError(f"{place} is not a master (not yet, or no longer)")
        self._links.add(link)
        return link


class _CallInProgress(Struct):
    """A running call: its start, the seconds it has above the usual limit, and when its bytes last moved."""

    began: float
    more: float
    flow: tuple[int, int]
    stirred_at: float
    compared: bool = False


class _CallMonitor:
    """Ends calls whose bytes have stopped moving; calls `compare` earlier for a connection that looks silent.

    One timer checks all calls. A normal call ends long before the first check.
    """

    def __init__(self, compare: Callable[[ServerAddress, ServerConnection], None]) -> None:
        self._compare = compare
        self._calls: dict[ServerConnection, _CallInProgress] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, link: ServerConnection, began: float, more: float) -> None:
        """Start to monitor a call."""
        self._calls[link] = _CallInProgress(began, more, (link.heard, 0), began)
        if self._timer is None:
            self._set()

    def end(self, link: ServerConnection) -> None:
        """Stop monitoring a call."""
        del self._calls[link]

    def close(self) -> None:
        """Stop the timer if no call is running. Otherwise keep it: running calls have no other time limit."""
        if self._timer is not None and not self._calls:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(min(SILENT, ANSWERING) / 8, self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for link, call in self._calls.items():
            if (flow := link.flow) != call.flow:
                call.flow, call.stirred_at = flow, now
            if now >= min(call.stirred_at + ANSWERING + call.more, call.began + LONGEST):
                link.give_up()
            elif now >= call.began + SILENT + call.more and not call.compared:
                call.compared = True
                self._compare(link.place, link)
        if self._calls:
            self._set()


class _Redirection(Protocol):
    """The attributes that redis-py sets on a redirection error without declaring their types."""

    host: str
    port: int


class UnconfirmedError(NotDurableError):
    """A write was made, but no replica has confirmed it. `reply`: the reply of the server that made it."""

    def __init__(self, message: str, reply: Reply = None) -> None:
        super().__init__(message)
        self.reply = reply


class _NotConnectedError(RedisConnectionError):
    """No connection could be opened, so the server did nothing."""


async def _until_the_loop_ends(home: _LoopConnections) -> AsyncGenerator[None]:
    """Close an event loop's connections before it closes: `asyncio.run` closes the remaining async generators."""
    try:
        yield
    finally:
        await home.shut()


def _may_go_again(reply: Reply, *, elsewhere: bool) -> bool:
    """Return True if a call was not carried out and may be retried.

    `elsewhere`: the partition may move to another server, so a failed connection is worth a retry, too.
    """
    error = error_of(reply)
    return error is not None and (undone(error) or (elsewhere and isinstance(error, _NotConnectedError)))


def _at_once(reply: Reply) -> bool:
    """Return True if a retry needs no rest before it: the server said what was missing."""
    return isinstance(reply, NoScriptError | MovedError)


def _unloaded(replies: list[Reply], loaded: int) -> list[Reply]:
    """Return the replies without those to SCRIPT LOAD. If a load failed, its error replaces each NOSCRIPT error."""
    if not loaded:
        return replies
    trouble = next((error for reply in replies[:loaded] if (error := error_of(reply)) is not None), None)
    answers = replies[loaded:]
    if trouble is None:
        return answers
    return [trouble if isinstance(reply, NoScriptError) else reply for reply in answers]


def _wait() -> Command:
    return ("WAIT", 1, round(CONFIRMING * 1000))


def _knows_no_waitaof(reply: Reply) -> bool:
    error = str(error_of(reply) or "")
    return "unknown command" in error or "appendonly is disabled" in error


def _counts(reply: Reply) -> list[int]:
    """Return how many servers have a write: for WAITAOF [server, replicas], for WAIT [replicas], for an error [0]."""
    if error_of(reply) is not None:
        return [0]
    return cast("list[int]", reply) if isinstance(reply, list) else [cast("int", reply)]


def _lacking(reply: Reply, shown: str) -> str | None:
    """Return the error message if the reply to WAIT or WAITAOF shows no confirmation; otherwise None."""
    if (error := error_of(reply)) is not None:
        return f"{shown} cannot confirm a write ({error}); but it was made"
    match _counts(reply):
        case [0, _]:
            return (
                f"{shown} has made the write, but did not get it onto its own disk within {WRITING:g} s. See to that "
                "disk, and that appendfsync there is always or everysec"
            )
        case [_, 0]:
            lacking = f"no replica has confirmed within {WRITING:g} s that it is on its disk, too"
            remedy = "See that one is connected and writes an append-only file (appendonly yes there, too)"
        case [0]:
            lacking = f"no replica has confirmed it within {CONFIRMING:g} s"
            remedy = "See that one is connected"
        case _:
            return None
    return (
        f"{shown} has made the write, but {lacking}. {remedy}, or accept that a failover can lose writes: "
        'durability="ack"'
    )
