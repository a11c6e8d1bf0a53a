"""One connection to one server: commands out, replies in, and gone for good if a reply stays unread.

It is made by redis-py, which knows TLS, sockets and logins; none of its clients and pools is used: those repeat by
themselves what may have been done already, and know nothing of several event loops. What a server answers to a command,
be it an error, is a value here; what is raised is trouble with the connection itself.
"""

import asyncio
import errno
import os
import select
import socket
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, Protocol, cast

from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tenure.storage.redis.address import Login, RedisAddress, ServerAddress
from tenure.storage.redis.resp import INCOMPLETE, Command, ReadError, Reply, ReplyParser, packed, reader

CONNECTING = 2.0
"""Seconds until a server that does not answer a connection is taken to be out of reach."""

ANSWERING = 3.0
"""Seconds without a byte of a command or its answer until a server is taken to be out of reach."""

LONGEST = 30.0
"""Seconds that a command and its answer may take however steadily their bytes flow."""

# The kernel asks a silent peer after ten seconds and gives it up after nineteen: a half-open connection is found out
# without a single command.
_KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}

# Who we are is said along with the first call, or each connection would cost two more trips. redis-py 8 says it another
# way than its elders.
_ANONYMOUS: dict[str, None] = (
    {"driver_info": None}
    if "driver_info" in signature(AbstractConnection).parameters
    else {"lib_name": None, "lib_version": None}
)

_GREETING: tuple[Command, ...] = (("CLIENT", "SETNAME", "tenure"),)
"""What a connection is called in CLIENT LIST; a server that does not care says so, and is not heard."""

# Replies, though redis-py takes them for trouble with the connection.
_SAID = (ResponseError, AuthenticationError, AuthorizationError, BusyLoadingError)


class _DriverConnection(Protocol):
    """What is used of redis-py's connection, which is typed but in part: how it begins and ends."""

    async def connect(self) -> None: ...

    async def disconnect(self, nowait: bool = False) -> None: ...


class _ReplyReader(asyncio.Protocol):
    """The end of a connection that bytes come to: counts them, and makes replies of them."""

    def __init__(self, reader: ReplyParser, before: asyncio.BaseProtocol) -> None:
        self.heard = 0
        """How many bytes have come."""
        self.lost: Exception | None = None
        """Why nothing will come any more."""
        self.replies: list[Reply] = []
        """What has come and nobody has taken."""
        self._reader = reader
        self._before = before
        self._wanted = 0
        self._passed_over = 0
        self._waiter: asyncio.Future[list[Reply]] | None = None
        self._hear: Callable[[Reply], None] | None = None

    def take(self, count: int, *, after: int = 0) -> "asyncio.Future[list[Reply]]":
        """Return what will be the next replies, so many after others; a RedisError if the connection is lost before."""
        self._wanted = count + after
        self._passed_over = after
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        if len(self.replies) >= self._wanted:
            self._hand_over(waiter)
        elif self.lost is not None:
            waiter.set_exception(self.lost)
        return waiter

    def _hand_over(self, waiter: "asyncio.Future[list[Reply]]") -> None:
        count = self._wanted
        taken, self.replies = self.replies[:count], self.replies[count:]
        for reply in taken:
            if isinstance(reply, RedisConnectionError) and not isinstance(reply, _SAID):
                waiter.set_exception(reply)
                return
        waiter.set_result(taken[self._passed_over :] if self._passed_over else taken)

    async def listen(self, hear: Callable[[Reply], None]) -> None:
        """Have every reply heard as it comes, until the connection is lost or hearing fails: that is raised."""
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        self._hear = hear
        try:
            self._tell(hear)
            if self.lost is not None:
                self.give_up(self.lost)
            await waiter
        finally:
            self._hear = None

    def _tell(self, hear: Callable[[Reply], None]) -> None:
        replies, self.replies = self.replies, []
        try:
            for reply in replies:
                hear(reply)
        except Exception as error:
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Have whoever waits for replies get an error instead."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def data_received(self, data: bytes) -> None:
        """Take in what has come."""
        self.heard += len(data)
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not INCOMPLETE:
                self.replies.append(reply)
        except RedisError as error:
            self.lost = error
            self.give_up(error)
            return
        if self._hear is not None:
            self._tell(self._hear)
        elif self._waiter is not None and len(self.replies) >= self._wanted and not self._waiter.done():
            self._hand_over(self._waiter)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection has ended, and tell redis-py, which waits for that when it closes."""
        self.lost = RedisConnectionError(str(exc) if exc is not None else CUT)
        self.lost.__cause__ = exc
        self.give_up(self.lost)
        self._before.connection_lost(exc)


class ServerConnection:
    """A connection that is open."""

    def __init__(self, place: ServerAddress, wire: _DriverConnection) -> None:
        self.place = place
        self.retired = False
        """Not to be used again."""
        self._wire = wire
        self._greeted = False
        # redis-py has let us in. From here on its reader would cost three turns of the event loop for each answer where
        # one does, and keep to itself how much of it has come.
        self._transport = cast("asyncio.StreamWriter", getattr(wire, "_writer")).transport  # noqa: B009 - see _Wire
        self._line = _ReplyReader(reader(_parse(wire)), self._transport.get_protocol())
        self._transport.set_protocol(self._line)
        self.asked = 0
        """How often something was asked by it."""
        self._heard_before = 0
        self._kernel = select.poll()
        self._kernel.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)

    @classmethod
    async def open(
        cls, place: ServerAddress, address: RedisAddress, *, login: Login | None = None, db: int = 0
    ) -> "ServerConnection":
        """Connect to a place and log in.

        Raises:
            RedisError: the place cannot be reached, or does not let us in.
            TimeoutError: it does not answer.
        """
        wire = _wire(place, address, address.login if login is None else login, db)
        try:
            # The host has two seconds to take the connection, and the rest of three to let us in.
            async with asyncio.timeout(ANSWERING):
                await wire.connect()
        except BaseException:
            # Cancelled in the midst of its greeting it would be open, and of no use.
            await wire.disconnect(nowait=True)
            raise
        return cls(place, wire)

    async def ask(self, commands: Sequence[Command], replies: int) -> list[Reply]:
        """Send commands at once and return what the server says to each.

        Whatever is raised, a cancellation too, the connection is no longer: its next reply would belong to another.
        """
        try:
            return await self.put(commands, replies)
        except BaseException:
            await self.drop()
            raise

    def put(self, commands: Sequence[Command], replies: int) -> "asyncio.Future[list[Reply]]":
        """Send commands at once and return what the server will say to each.

        Whoever gets an error from this, or does not wait for all of it, has to drop the connection: see `ask`.
        """
        self.asked += 1
        self._heard_before = self._line.heard
        if self._greeted:
            self._send(commands)
            return self._line.take(replies)
        self._greeted = True
        self._send((*_GREETING, *commands))
        return self._line.take(replies, after=len(_GREETING))

    async def send(self, commands: Sequence[Command]) -> None:
        """Send commands and leave what the server says to whoever reads."""
        self._send(commands)

    async def listen(self, hear: Callable[[Reply], None]) -> None:
        """Have everything that the server says heard in the turn of the loop in which it comes.

        Raises:
            RedisError: the connection is lost. Or what hearing raises.
        """
        await self._line.listen(hear)

    def give_up(self) -> None:
        """Have whoever waits for an answer wait no longer: a TimeoutError ends that, and with it the connection."""
        self._line.give_up(TimeoutError())

    @property
    def unfit(self) -> bool:
        """Whether it is not to be used: retired, hung up by the server, or with words in it that nobody asked for."""
        if self.retired or self._line.lost is not None or self._line.replies or self._transport.is_closing():
            return True
        # Asked of the kernel, which knows it before the event loop has come to look. Nothing is to be read of an idle
        # connection but its end.
        return bool(self._kernel.poll(0))

    @property
    def silent(self) -> bool:
        """Whether nothing of a command is still to be sent, and nothing of an answer has come."""
        return not self._unsent and self._line.heard == self._heard_before

    @property
    def heard(self) -> int:
        """How many bytes have come."""
        return self._line.heard

    @property
    def flow(self) -> tuple[int, int]:
        """How many bytes have come, and how many are still to be sent: what changes while a call gets on."""
        return self._line.heard, self._unsent

    async def drop(self) -> None:
        """Cut the connection, now."""
        await self._wire.disconnect(nowait=True)

    async def close(self) -> None:
        """Take leave of the server."""
        await self._wire.disconnect()

    def abandon(self) -> None:
        """Let go of this process's copy of a connection that belongs to another one, its parent.

        Nothing of it may be closed the usual way: its event loop watches it by a list in the kernel that both processes
        share. So its descriptor is turned to nothing; what is in memory has to stay there.
        """
        line = self._transport.get_extra_info("socket").fileno()
        if line >= 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, line, inheritable=False)
            os.close(nothing)

    @property
    def _unsent(self) -> int:
        """How many bytes the kernel has not taken yet."""
        return self._transport.get_write_buffer_size()

    def _send(self, commands: Sequence[Command]) -> None:
        if self._line.lost is not None:
            raise self._line.lost
        self._transport.write(packed(commands))


def text(reply: Reply) -> str:
    """Return a reply as text."""
    return reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)


def said(reply: Reply) -> RedisError | None:
    """Return a reply if it is an error."""
    return reply if isinstance(reply, RedisError) else None


REFUSED = "connection refused"
NO_HOST = "no such host"
LATE = "no answer in time"
CUT = "Connection closed by server."


def why(error: BaseException) -> str:
    """Return what an error says, without the address that whoever tells it names already."""
    if isinstance(error, TimeoutError | RedisTimeoutError):
        return LATE
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return NO_HOST
        # A host of several addresses that all refuse has several errors in one, which has their texts only.
        if isinstance(cause, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(cause):
            return REFUSED
        cause = cause.__cause__ or cause.__context__
    return str(error) or LATE


def unreached(error: BaseException) -> bool:
    """Say whether no connection came about, or it was cut; what a server says is something else."""
    return isinstance(error, RedisConnectionError | RedisTimeoutError | OSError) and not isinstance(error, _SAID)


def _parse(wire: _DriverConnection) -> ReadError:
    """Return what makes of a server's words one of redis-py's errors."""
    return cast("ReadError", getattr(wire, "_parser").parse_error)  # noqa: B009 - see _Wire


def _wire(place: ServerAddress, address: RedisAddress, login: Login, db: int) -> _DriverConnection:
    about: dict[str, Any] = {
        "db": db,
        "username": login.username,
        "password": login.password,
        # The limit of a whole call is set outside; redis-py's own would cost a task for every send.
        "socket_timeout": None,
        "socket_connect_timeout": CONNECTING,
        "protocol": 2,
        **_ANONYMOUS,
    }
    if not place.port:
        return cast("_DriverConnection", UnixDomainSocketConnection(path=place.host, **about))
    about |= {
        "host": place.host,
        "port": place.port,
        "socket_keepalive": True,
        "socket_keepalive_options": _KEEPALIVE,
    }
    if address.tls is None:
        return cast("_DriverConnection", Connection(**about))
    return cast(
        "_DriverConnection",
        SSLConnection(
            ssl_ca_certs=address.tls.ca_certs,
            ssl_certfile=address.tls.certfile,
            ssl_keyfile=address.tls.keyfile,
            ssl_cert_reqs="required" if address.tls.verify else "none",
            ssl_check_hostname=address.tls.check_hostname and address.tls.verify,
            **about,
        ),
    )
