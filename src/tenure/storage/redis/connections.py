"""The way to the servers: a few connections for each event loop, and the call of a script that is sure of its end.

call ──► where is the cell? ──► a connection of that server ──► EVALSHA ──► reply
              ▲                                                   │
              └──── a short rest ◄──── refused before anything was done (it fails over, moves, starts)
                    NOSCRIPT: the script goes along with the next try

Every call may be repeated by whoever made it. Here it is only where a server has said that it did nothing of it; a
connection that is cut, or an answer that is late, leaves that open and is the caller's to know.
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
from tenure.storage.redis.connection import ANSWERING, LONGEST, ServerConnection, said, unreached, why
from tenure.storage.redis.errors import ours, undone
from tenure.storage.redis.loops import PerLoop
from tenure.storage.redis.resp import Command, Reply, Word, packed_after
from tenure.storage.redis.routes import Routes, routes
from tenure.storage.redis.script_library import Script

LIMIT = 64
"""How many connections one event loop opens to one server; who finds none free waits for one."""

KEPT = 16
"""How many of them stay open when idle."""

TRIES = 7
PATIENCE = ExponentialDelay(0.05, 0.4)
"""How often, and after which rests, a call is made that its server refuses for now: about a second in all."""

SILENT = 2.0
"""Seconds after which a call without an answer is compared with another connection: half-open ones are found out so."""

GIVEN_UP = 0.5
"""Seconds after which a call that its caller cancels counts as one that the server has not answered."""

CONFIRMING = 1.0
"""Seconds that a replica gets to confirm a write where that is to be had in memory only (WAIT)."""

WRITING = 3.0
"""Seconds that a server and a replica get to have a write on their disks (WAITAOF). With `appendfsync everysec` it is
there after up to one, after two if the disk is busy, and a replica says so once a second."""

SOON = 0.05
"""The part of it after which they are asked once more: it does where both write before they answer (`always`)."""

AGAIN = 60.0
"""Seconds after which a server without WAITAOF, or without an append-only file, is asked whether it has one by now."""


class ScriptCall(Struct, frozen=True, gc=False):
    """A script to be called on a cell, or with none a plain command, of which the arguments are all words."""

    script: Script | None
    base: str
    args: tuple[Word, ...] = ()

    @property
    def command(self) -> Command:
        """What a server is told that knows the script."""
        if self.script is None:
            return self.args
        return packed_after((b"EVALSHA", self.script.sha, b"1", self.base), self.args)

    @property
    def name(self) -> str:
        """The script's name, if it is one."""
        return self.script.name if self.script is not None else ""


class Connections:
    """All connections of a storage, for every event loop of this process."""

    def __init__(self, address: RedisAddress, *, rng: Random | None = None) -> None:
        self.address = address
        chance = rng or entropy()
        self.on_trouble: Callable[[ServerAddress], None] = lambda place: None
        """Told when a server has not answered a call, on the event loop of that call."""
        self._homes = PerLoop(
            lambda: _LoopConnections(address, chance, lambda place: self.on_trouble(place)),
            abandon=_LoopConnections.abandon,
        )

    async def call(self, script: Script, base: str, *args: Word, durable: bool = False) -> Reply:
        """Call a script on a cell and return what it says.

        `durable`: wait until a replica has what was written, too.

        Raises:
            StorageUnavailableError: the server is out of reach or takes no calls; it may have done its work all the
                same, unless the message says otherwise.
            StorageFullError: it has no room.
            NotDurableError: it is written, but no replica has confirmed that in time.
            StorageError: it refuses us, or the script has failed.
        """
        home = self._homes.there() or await self._home()
        calls = (ScriptCall(script, base, args),)
        place = home.routes.known(base)
        if place is None or durable:
            [reply] = await home.make(calls, durable=durable)
        else:
            # As a rule nobody has to be asked where it is, and it is made at once.
            replies: list[Reply]
            try:
                replies = await home.ask(place, (calls[0].command,))
            except (RedisError, OSError) as error:
                replies = [error]
            reply = replies[0]
            if isinstance(reply, BaseException):
                home.heed(place, calls, replies)
                [reply] = await home.make_again(calls, replies, durable=durable)
        if isinstance(reply, BaseException):
            raise ours(reply, self.address.shown, script.name)
        return reply

    async def call_all(self, calls: Sequence[ScriptCall], *, durable: bool = False) -> list[Reply]:
        """Make several calls at once, in one trip to each server, and return what each says.

        Raises:
            StorageError: as `call`; of several the first. The others have been made all the same.
        """
        outcomes = await self.outcomes(calls, durable=durable)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return outcomes

    async def outcomes(self, calls: Sequence[ScriptCall], *, durable: bool = False) -> list[Reply]:
        """Make several calls at once; what one of them would raise stands in its place."""
        home = await self._home()
        replies = await home.make(calls, durable=durable)
        return [
            ours(reply, self.address.shown, call.name) if isinstance(reply, BaseException) else reply
            for call, reply in zip(calls, replies, strict=True)
        ]

    async def tell(self, base: str, *command: Word, durable: bool = False) -> Reply:
        """Send the server of a cell a plain command on one of its keys and return what it says.

        Raises:
            StorageError: as `call`.
        """
        [reply] = await self.call_all((ScriptCall(None, base, command),), durable=durable)
        return reply

    async def ask(self, place: ServerAddress, *command: Word) -> Reply:
        """Send one server a plain command and return what it says.

        Raises:
            StorageError: as `call`.
        """
        [reply] = await self.ask_all(place, [command])
        if isinstance(reply, BaseException):
            raise ours(reply, self.address.shown)
        return reply

    async def ask_all(self, place: ServerAddress, commands: Sequence[Command]) -> list[Reply]:
        """Send one server plain commands in one trip; an error that it answers stands in its place.

        Raises:
            StorageUnavailableError: it is out of reach.
        """
        home = await self._home()
        try:
            return await home.ask(place, commands)
        except (RedisError, OSError) as error:
            raise ours(error, self.address.shown) from error

    async def places(self) -> list[ServerAddress]:
        """Return every server that holds cells of ours, asking anew where that can change.

        Raises:
            StorageUnavailableError: nobody can tell at the moment.
        """
        home = await self._home()
        try:
            home.routes.doubt()
            return await home.routes.places()
        except (RedisError, OSError) as error:
            raise ours(error, self.address.shown) from error

    async def place(self, base: str) -> ServerAddress:
        """Return the server that holds a cell.

        Raises:
            StorageUnavailableError: nobody can tell at the moment.
        """
        home = await self._home()
        try:
            return await home.routes.place(base)
        except (RedisError, OSError) as error:
            raise ours(error, self.address.shown) from error

    async def moved(self) -> None:
        """Ask anew where the cells are, before the next call from this event loop."""
        (await self._home()).routes.doubt()

    async def open(self, place: ServerAddress) -> ServerConnection:
        """Open a connection of the caller's own, who also closes it.

        Raises:
            StorageUnavailableError: the server is out of reach.
        """
        try:
            return await ServerConnection.open(place, self.address, db=self.address.db)
        except (RedisError, OSError) as error:
            raise ours(error, self.address.shown) from error

    async def close(self) -> None:
        """Close every connection, also those of the event loops of other threads. A later call opens new ones."""
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
        """Who waits for one of them to come back."""

    def lend(self) -> ServerConnection | None:
        """Return a connection that is idle and fit to be used, if nobody has to wait for one; it is in use then."""
        if not self.idle or self.lent >= LIMIT or self.line or self.idle[-1].unfit:
            return None
        self.lent += 1
        return self.idle.pop()

    async def enter(self) -> None:
        """Have one connection more in use, as soon as there are not too many."""
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
            # Until it goes on, one of the idle connections is meant for it.
            self.line.remove(turn)

    def leave(self) -> None:
        """Have one less in use, or the next in line in its place."""
        for turn in self.line:
            if not turn.done():
                turn.set_result(None)
                return
        self.lent -= 1


class _LoopConnections:
    """The connections of one event loop; used on it and nowhere else."""

    def __init__(self, address: RedisAddress, rng: Random, trouble: Callable[[ServerAddress], None]) -> None:
        self._trouble = trouble
        self.routes: Routes = routes(address)
        self._address = address
        self._rng = rng
        self._pools: dict[ServerAddress, _Pool] = {}
        self._links: set[ServerConnection] = set()
        self._in_memory: dict[ServerAddress, float] = {}
        """Until when the servers that cannot confirm what is on disk are not asked for it."""
        self._watch = _CallMonitor(self._compare_soon)
        self._comparing: set[asyncio.Task[None]] = set()
        self._end: AsyncGenerator[None] | None = None
        self._closed = False

    async def settle_in(self) -> None:
        """Have the connections closed when the event loop ends."""
        self._end = _until_the_loop_ends(self)
        await anext(self._end)

    async def make(self, calls: Sequence[ScriptCall], *, durable: bool) -> list[Reply]:
        """Make calls, again where that is safe; an error stands in the place of the reply."""
        replies: list[Reply] = [None] * len(calls)
        await self._try(calls, range(len(calls)), replies, (), durable)
        return await self.make_again(calls, replies, durable=durable)

    async def make_again(self, calls: Sequence[ScriptCall], replies: list[Reply], *, durable: bool) -> list[Reply]:
        """Make those of the calls again that were not made; return the replies to all."""
        for tried in range(1, TRIES):
            left = [
                at for at, one in enumerate(replies) if _may_go_again(one, elsewhere=self._address.kind != "server")
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
        """Send commands in one trip, scripts before them; `durable`: one more reply, that of a replica."""
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
            # A caller with a limit of its own gives up sooner than we do, and still learns of a failover.
            if loop.time() - now >= GIVEN_UP:
                self._suspect(place)
            raise

    def _suspect(self, place: ServerAddress) -> None:
        """Take a server for one that may be gone."""
        # What has cut one connection, or made it silent, has not spared those that are idle; each of them would be
        # found out by a call that waits for its answer in vain.
        self._retire(place)
        self.routes.doubt(place)
        self._trouble(place)

    async def _on_disk(self, place: ServerAddress, link: ServerConnection) -> Reply:
        """Ask whether what a connection has written is on the disks of the server and of a replica."""
        # In a trip of its own, and again soon: a replica tells when it is asked what it has on disk, and else once a
        # second. Asked along with a write, it tells what it had there before it.
        reply: Reply = None
        for within in (SOON, WRITING - SOON):
            [reply] = await link.ask([("WAITAOF", 1, 1, round(within * 1000))], 1)
            if _knows_no_waitaof(reply):
                self._in_memory[place] = asyncio.get_running_loop().time() + AGAIN
                # On the same connection: it asks for what this one has written.
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
        """Give up a connection that says nothing, if the server answers on another one."""
        asked = link.asked
        try:
            async with asyncio.timeout(ANSWERING):
                other = await ServerConnection.open(place, self._address, db=self._address.db)
                try:
                    [reply] = await other.ask([("PING",)], 1)
                finally:
                    await other.drop()
        except (RedisError, OSError):
            return
        # The call may have come to its end in between, and another have begun.
        if said(reply) is None and link.silent and link.asked == asked:
            link.give_up()

    async def close(self) -> None:
        """Close what is idle now, and what is not when it is."""
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
        """Let go of connections that are another process's."""
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

        async def one(place: ServerAddress, group: list[int]) -> None:
            made = await self._make_at(place, [calls[at] for at in group], load=load, durable=durable)
            for at, reply in zip(group, made, strict=True):
                replies[at] = reply

        trips = [one(place, group) for place, group in groups.items()]
        if len(trips) == 1:
            await trips[0]
        elif trips:
            await asyncio.gather(*trips)

    async def _make_at(
        self, place: ServerAddress, calls: Sequence[ScriptCall], *, load: Sequence[Script], durable: bool
    ) -> list[Reply]:
        """Make calls once, where their cells are; an error stands in the place of the reply."""
        try:
            replies = await self.ask(place, [call.command for call in calls], load=load, durable=durable)
        except (RedisError, OSError) as error:
            return [error] * len(calls)
        if durable and (lacking := _lacking(replies.pop(), self._address.shown)) is not None:
            replies = [UnconfirmedError(lacking, reply) if said(reply) is None else reply for reply in replies]
        self.heed(place, calls, replies)
        return replies

    def heed(self, place: ServerAddress, calls: Sequence[ScriptCall], replies: Sequence[Reply]) -> None:
        """Learn from replies, or errors in their places, where cells are, and which connections are of no use."""
        for call, reply in zip(calls, replies, strict=True):
            match reply:
                case list() | bytes() | int():
                    pass
                case MovedError():
                    to = cast("_Redirection", reply)
                    self.routes.moved(call.base, ServerAddress(to.host or place.host, to.port))
                case ReadOnlyError():
                    # What it leads to was the master once.
                    self.routes.doubt()
                    self._retire(place)
                case RedisError() if undone(reply) and not isinstance(reply, AskError | NoScriptError):
                    self.routes.doubt()
                case _:
                    # An AskError, too. The slot is on its way from one node to another, with part of its keys here and
                    # part there: who goes on there finds half of a cell. So the call waits until all has arrived.
                    pass

    def _retire(self, place: ServerAddress) -> None:
        """Use no connection to a server again that is idle now."""
        if (pool := self._pools.get(place)) is not None:
            for link in pool.idle:
                link.retired = True

    async def _borrowed(self, place: ServerAddress, pool: _Pool, within: float) -> ServerConnection:
        """Return a connection of one's own, who gives it back; raise a TimeoutError if there is none in time."""
        async with asyncio.timeout(within):
            await pool.enter()
            try:
                return await self._idle(pool) or await self._connect(place)
            except BaseException:
                pool.leave()
                raise

    def _rests(self, pool: _Pool, link: ServerConnection) -> bool:
        """Give a connection back, if it is one to be used again and there are not too many."""
        if link.retired or self._closed or len(pool.idle) >= KEPT:
            return False
        pool.idle.append(link)
        pool.leave()
        return True

    async def _put_away(self, pool: _Pool, link: ServerConnection) -> None:
        """Give a connection back, whatever it is."""
        try:
            if link.retired:
                await self._hang_up(link)
                return
            pool.idle.append(link)
            # While others wait for one, more than a few are wanted.
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
                # Of one server the place is the address, which is named anyhow.
                at = "" if self._address.kind == "server" else f"{place}: "
                raise _NotConnectedError(f"{at}{why(error)}") from error
            raise
        if self._address.kind == "sentinel":
            # Sentinels are told of a failover before the server is that they have named.
            [role] = await link.ask([("ROLE",)], 1)
            if isinstance(role, list) and role[:1] != [b"master"]:
                await link.drop()
                raise ReadOnlyError(f"{place} is no master (yet, or any more)")
        self._links.add(link)
        return link


class _CallInProgress(Struct):
    """A call on its way: when it began, what time it has above the usual, and when its bytes were last seen to flow."""

    began: float
    more: float
    flow: tuple[int, int]
    stirred_at: float
    compared: bool = False


class _CallMonitor:
    """Gives calls time for as long as their bytes flow, and has a connection compared with another if none do.

    One timer looks at all of them: a call as they are is over long before the first look.
    """

    def __init__(self, compare: Callable[[ServerAddress, ServerConnection], None]) -> None:
        self._compare = compare
        self._calls: dict[ServerConnection, _CallInProgress] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, link: ServerConnection, began: float, more: float) -> None:
        """Look at a call from now on."""
        self._calls[link] = _CallInProgress(began, more, (link.heard, 0), began)
        if self._timer is None:
            self._set()

    def end(self, link: ServerConnection) -> None:
        """Look at it no more."""
        del self._calls[link]

    def close(self) -> None:
        """Look at nothing, once the calls that are on their way are over: they have nobody else to give them up."""
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
    """What redis-py reads from a redirection, and gives no type."""

    host: str
    port: int


class UnconfirmedError(NotDurableError):
    """No replica has confirmed a write that was made. `reply`: what the server that made it said."""

    def __init__(self, message: str, reply: Reply = None) -> None:
        super().__init__(message)
        self.reply = reply


class _NotConnectedError(RedisConnectionError):
    """No connection came about, so nothing was done."""


async def _until_the_loop_ends(home: _LoopConnections) -> AsyncGenerator[None]:
    """Close the connections of an event loop before it closes: `asyncio.run` ends what generators it has left."""
    try:
        yield
    finally:
        await home.shut()


def _may_go_again(reply: Reply, *, elsewhere: bool) -> bool:
    """Say whether a call was not made, and may be now; `elsewhere`: the cell can be found at another server."""
    error = said(reply)
    return error is not None and (undone(error) or (elsewhere and isinstance(error, _NotConnectedError)))


def _at_once(reply: Reply) -> bool:
    """Say whether a call that goes again needs no rest before: the server has said what it lacks."""
    return isinstance(reply, NoScriptError | MovedError)


def _unloaded(replies: list[Reply], loaded: int) -> list[Reply]:
    """Return the replies without those to the loading of scripts, unless that is what has failed."""
    if not loaded:
        return replies
    trouble = next((error for reply in replies[:loaded] if (error := said(reply)) is not None), None)
    told = replies[loaded:]
    if trouble is None:
        return told
    return [trouble if isinstance(reply, NoScriptError) else reply for reply in told]


def _wait() -> Command:
    return ("WAIT", 1, round(CONFIRMING * 1000))


def _knows_no_waitaof(reply: Reply) -> bool:
    error = str(said(reply) or "")
    return "unknown command" in error or "appendonly is disabled" in error


def _counts(reply: Reply) -> list[int]:
    """Return who has a write: by WAITAOF the server and its replicas, by WAIT the replicas, by an error nobody."""
    if said(reply) is not None:
        return [0]
    return cast("list[int]", reply) if isinstance(reply, list) else [cast("int", reply)]


def _lacking(reply: Reply, shown: str) -> str | None:
    """Return what to say if not one replica has what was written, from the reply to WAIT or WAITAOF."""
    if (error := said(reply)) is not None:
        return f"{shown} cannot confirm a write ({error}); it was made all the same"
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
