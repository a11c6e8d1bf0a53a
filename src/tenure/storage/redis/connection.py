"""One connection to one server: sends commands, reads replies, and is dropped if a reply stays unread.

redis-py opens the connection, because it supports TLS, sockets and logins. Its clients and pools are not used: they
repeat commands that may have been carried out already, and do not support several event loops. Every answer of the
server is a return value here, errors too; only trouble with the connection itself is raised.
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
"""Seconds after which a server that does not accept a connection counts as unreachable."""

ANSWERING = 3.0
"""Seconds without a byte sent or received, after which a server that owes an answer counts as unreachable."""

LONGEST = 30.0
"""Maximum seconds for a command and its answer, even if their bytes keep moving."""

# The kernel probes a silent peer after ten seconds and gives it up after nineteen. So a half-open connection is
# detected even if no command is sent on it.
_KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}

# redis-py must not announce the client: that would cost each connection two more round trips. We send the name along
# with the first call. redis-py 8 has another parameter for this than earlier versions.
_ANONYMOUS: dict[str, None] = (
    {"driver_info": None}
    if "driver_info" in signature(AbstractConnection).parameters
    else {"lib_name": None, "lib_version": None}
)

_GREETING: tuple[Command, ...] = (("CLIENT", "SETNAME", "tenure"),)
"""Sets the connection's name in CLIENT LIST. The reply is ignored, so a server may refuse it."""

# These are replies of the server, although redis-py derives some of them from its connection error.
_SAID = (ResponseError, AuthenticationError, AuthorizationError, BusyLoadingError)


class _DriverConnection(Protocol):
    """The methods that we use of redis-py's connection, which is only partly typed: connecting and disconnecting."""

    async def connect(self) -> None: ...

    async def disconnect(self, nowait: bool = False) -> None: ...


class _ReplyReader(asyncio.Protocol):
    """The receiving side of a connection: counts bytes and parses them into replies."""

    def __init__(self, reader: ReplyParser, before: asyncio.BaseProtocol) -> None:
        self.heard = 0
        """The number of bytes received."""
        self.lost: Exception | None = None
        """The error that ended the connection; None while it is open."""
        self.replies: list[Reply] = []
        """Replies that were received and not taken yet."""
        self._reader = reader
        self._before = before
        self._wanted = 0
        self._passed_over = 0
        self._waiter: asyncio.Future[list[Reply]] | None = None
        self._on_reply: Callable[[Reply], None] | None = None

    def take(self, count: int, *, after: int = 0) -> "asyncio.Future[list[Reply]]":
        """Return a future of the next `count` replies, skipping `after` replies before them.

        The future fails with a RedisError if the connection is lost before they arrive.
        """
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

    async def listen(self, on_reply: Callable[[Reply], None]) -> None:
        """Call `on_reply` with each reply as it arrives. Ends only by an error of the connection or of `on_reply`."""
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        self._on_reply = on_reply
        try:
            self._deliver(on_reply)
            if self.lost is not None:
                self.give_up(self.lost)
            await waiter
        finally:
            self._on_reply = None

    def _deliver(self, on_reply: Callable[[Reply], None]) -> None:
        replies, self.replies = self.replies, []
        try:
            for reply in replies:
                on_reply(reply)
        except Exception as error:
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Raise an error in the caller that waits for replies."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes and pass on complete replies."""
        self.heard += len(data)
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not INCOMPLETE:
                self.replies.append(reply)
        except RedisError as error:
            self.lost = error
            self.give_up(error)
            return
        if self._on_reply is not None:
            self._deliver(self._on_reply)
        elif self._waiter is not None and len(self.replies) >= self._wanted and not self._waiter.done():
            self._hand_over(self._waiter)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection has ended, and pass that on to redis-py, which waits for it when it closes."""
        self.lost = RedisConnectionError(str(exc) if exc is not None else CUT)
        self.lost.__cause__ = exc
        self.give_up(self.lost)
        self._before.connection_lost(exc)


class ServerConnection:
    """An open connection."""

    def __init__(self, place: ServerAddress, wire: _DriverConnection) -> None:
        self.place = place
        self.retired = False
        """True if the connection must not be used again."""
        self._wire = wire
        self._greeted = False
        # redis-py has logged in. From here on we read ourselves: its reader needs three iterations of the event loop
        # for each answer instead of one, and does not show how many bytes have arrived.
        self._transport = cast("asyncio.StreamWriter", getattr(wire, "_writer")).transport  # noqa: B009 - not typed
        self._line = _ReplyReader(reader(_parse(wire)), self._transport.get_protocol())
        self._transport.set_protocol(self._line)
        self.commands_sent = 0
        """The number of requests sent on it."""
        self._heard_before = 0
        self._kernel = select.poll()
        self._kernel.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)

    @classmethod
    async def open(
        cls, place: ServerAddress, address: RedisAddress, *, login: Login | None = None, db: int = 0
    ) -> "ServerConnection":
        """Connect to a place and log in.

        Raises:
            RedisError: the server is unreachable, or refuses the login.
            TimeoutError: the server does not answer.
        """
        wire = _wire(place, address, address.login if login is None else login, db)
        try:
            # The host has two seconds to accept the connection, and three in all until the login succeeds.
            async with asyncio.timeout(ANSWERING):
                await wire.connect()
        except BaseException:
            # A cancelled login would leave the connection open, but unusable.
            await wire.disconnect(nowait=True)
            raise
        return cls(place, wire)

    async def ask(self, commands: Sequence[Command], replies: int) -> list[Reply]:
        """Send commands together and return the server's reply to each.

        After any exception, cancellation included, the connection is dropped: its next reply would belong to an
        earlier command.
        """
        try:
            return await self.put(commands, replies)
        except BaseException:
            await self.drop()
            raise

    def put(self, commands: Sequence[Command], replies: int) -> "asyncio.Future[list[Reply]]":
        """Send commands together and return a future of the server's replies.

        A caller that gets an error, or does not wait for all replies, must drop the connection: see `ask`.
        """
        self.commands_sent += 1
        self._heard_before = self._line.heard
        if self._greeted:
            self._send(commands)
            return self._line.take(replies)
        self._greeted = True
        self._send((*_GREETING, *commands))
        return self._line.take(replies, after=len(_GREETING))

    async def send(self, commands: Sequence[Command]) -> None:
        """Send commands; `listen` receives the replies."""
        self._send(commands)

    async def listen(self, on_reply: Callable[[Reply], None]) -> None:
        """Call `on_reply` with each reply, in the iteration of the event loop in which it arrives.

        Raises:
            RedisError: the connection is lost. An exception from `on_reply` ends this, too.
        """
        await self._line.listen(on_reply)

    def give_up(self) -> None:
        """Raise TimeoutError in the caller that waits for an answer; that caller then drops the connection."""
        self._line.give_up(TimeoutError())

    @property
    def unfit(self) -> bool:
        """True if it must not be used: it is retired, closed by the server, or holds unexpected bytes."""
        if self.retired or self._line.lost is not None or self._line.replies or self._transport.is_closing():
            return True
        # Ask the kernel, which knows before the event loop does. On an idle connection, the only thing to read is its
        # end.
        return bool(self._kernel.poll(0))

    @property
    def silent(self) -> bool:
        """True if all bytes of the command are sent, and no byte of the answer has arrived."""
        return not self._unsent and self._line.heard == self._heard_before

    @property
    def heard(self) -> int:
        """The number of bytes received."""
        return self._line.heard

    @property
    def flow(self) -> tuple[int, int]:
        """The numbers of bytes received and still unsent; they change while a call makes progress."""
        return self._line.heard, self._unsent

    async def drop(self) -> None:
        """Close the connection at once."""
        await self._wire.disconnect(nowait=True)

    async def close(self) -> None:
        """Close the connection gracefully."""
        await self._wire.disconnect()

    def abandon(self) -> None:
        """Drop this process's copy of a connection that belongs to the parent process.

        It must not be closed in the usual way: the parent's event loop watches the descriptor through a kernel object
        that both processes share. So the descriptor is redirected to /dev/null, and the Python objects stay in memory.
        """
        line = self._transport.get_extra_info("socket").fileno()
        if line >= 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, line, inheritable=False)
            os.close(nothing)

    @property
    def _unsent(self) -> int:
        """The number of bytes that the kernel has not accepted yet."""
        return self._transport.get_write_buffer_size()

    def _send(self, commands: Sequence[Command]) -> None:
        if self._line.lost is not None:
            raise self._line.lost
        self._transport.write(packed(commands))


def text(reply: Reply) -> str:
    """Return a reply as text."""
    return reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)


def error_of(reply: Reply) -> RedisError | None:
    """Return the reply if it is an error, otherwise None."""
    return reply if isinstance(reply, RedisError) else None


REFUSED = "connection refused"
NO_HOST = "no such host"
LATE = "no answer in time"
CUT = "Connection closed by server."


def why(error: BaseException) -> str:
    """Return an error's reason without the address, which the caller's message names already."""
    if isinstance(error, TimeoutError | RedisTimeoutError):
        return LATE
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return NO_HOST
        # If a host has several addresses and all refuse, one error holds only the texts of the others.
        if isinstance(cause, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(cause):
            return REFUSED
        cause = cause.__cause__ or cause.__context__
    return str(error) or LATE


def unreached(error: BaseException) -> bool:
    """Return True if a connection failed to open or was cut; False for an error that a server replied."""
    return isinstance(error, RedisConnectionError | RedisTimeoutError | OSError) and not isinstance(error, _SAID)


def _parse(wire: _DriverConnection) -> ReadError:
    """Return redis-py's function that turns the text of an error reply into an exception."""
    return cast("ReadError", getattr(wire, "_parser").parse_error)  # noqa: B009 - not typed


def _wire(place: ServerAddress, address: RedisAddress, login: Login, db: int) -> _DriverConnection:
    about: dict[str, Any] = {
        "db": db,
        "username": login.username,
        "password": login.password,
        # Our own time limit covers the whole call; redis-py's would cost a task for every send.
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
