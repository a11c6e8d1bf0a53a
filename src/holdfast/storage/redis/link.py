"""One connection to one server, by redis-py: commands out, replies in, and gone for good if a reply stays unread.

Only redis-py's connection is used, none of its clients and pools: those repeat by themselves what may have been done
already, and know nothing of several event loops. What a server answers to a command, be it an error, is a value here;
what is raised is trouble with the connection itself.
"""

import asyncio
import errno
import os
import select
import socket
from collections.abc import Callable, Iterable, Sequence
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

from holdfast.storage.redis.address import Login, Place, RedisAddress

CONNECTING = 2.0
"""Seconds until a server that does not answer a connection is taken to be out of reach."""

ANSWERING = 3.0
"""Seconds without a byte of a command or its answer until a server is taken to be out of reach."""

LONGEST = 30.0
"""Seconds that a command and its answer may take however steadily their bytes flow."""

Word = bytes | str | int
"""A word of a command."""

Command = Sequence[Word]

Reply = object
"""What a server answered: bytes, int, None, a list of such, or an error of `redis.exceptions`."""

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

_GREETING: tuple[Command, ...] = (("CLIENT", "SETNAME", "holdfast"),)
"""What a connection is called in CLIENT LIST; a server that does not care says so, and is not heard."""

# Replies, though redis-py takes them for trouble with the connection.
_SAID = (ResponseError, AuthenticationError, AuthorizationError, BusyLoadingError)


class _Wire(Protocol):
    """What is used of redis-py's connection, which is typed but in part."""

    async def connect(self) -> None: ...

    async def disconnect(self, nowait: bool = False) -> None: ...

    async def send_packed_command(self, command: Iterable[bytes], check_health: bool = True) -> None: ...

    async def read_response(self, *, disconnect_on_error: bool = True) -> Reply: ...


class _Count:
    """How many bytes have come by a connection, whichever parser reads them: hiredis keeps to itself what it has."""

    def __init__(self) -> None:
        self.bytes = 0

    def listen(self, wire: _Wire) -> None:
        """Count what comes from now on."""
        reader = getattr(wire, "_reader", None)
        if reader is None:
            return
        feed: Callable[[bytes], None] = reader.feed_data

        def counted(data: bytes) -> None:
            self.bytes += len(data)
            feed(data)

        reader.feed_data = counted


class Link:
    """A connection that is open."""

    def __init__(self, place: Place, wire: _Wire) -> None:
        self.place = place
        self.retired = False
        """Not to be used again."""
        self._wire = wire
        self._greeted = False
        self._heard = _Count()
        self._heard_before = 0
        self._heard.listen(wire)

    @classmethod
    async def open(cls, place: Place, address: RedisAddress, *, login: Login | None = None, db: int = 0) -> "Link":
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

    async def ask(self, commands: Iterable[Command], replies: int) -> list[Reply]:
        """Send commands at once and return what the server says to each.

        Whatever is raised, a cancellation too, the connection is no longer: its next reply would belong to another.
        """
        try:
            greeting = () if self._greeted else _GREETING
            self._greeted = True
            self._heard_before = self._heard.bytes
            await self.send((*greeting, *commands))
            said = [await self._read() for _ in range(len(greeting) + replies)]
            return said[len(greeting) :]
        except BaseException:
            await self.drop()
            raise

    async def send(self, commands: Iterable[Command]) -> None:
        """Send commands and leave what the server says to whoever reads."""
        await self._wire.send_packed_command([packed(commands)], check_health=False)

    async def hear(self) -> Reply:
        """Return the next thing that the server says, however long that takes."""
        return await self._read()

    @property
    def stale(self) -> bool:
        """Whether the server has hung up, or said something that nobody asked for, while the link was idle."""
        line = self._line()
        if line is None:
            return True
        # Asked of the kernel, which knows it before the event loop has come to look. Nothing is to be read of an idle
        # connection but its end.
        looked = select.poll()
        looked.register(line, select.POLLIN)
        return bool(looked.poll(0)) or self._unread

    @property
    def silent(self) -> bool:
        """Whether nothing of a command is still to be sent, and nothing of an answer has come."""
        return not self._unsent and self._heard.bytes == self._heard_before

    @property
    def flow(self) -> tuple[int, int]:
        """How many bytes have come, and how many are still to be sent: what changes while a call gets on."""
        return self._heard.bytes, self._unsent

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
        line = self._line()
        if line is not None:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, line, inheritable=False)
            os.close(nothing)

    @property
    def _unread(self) -> bool:
        """Whether something has come that was not read yet."""
        return bool(getattr(getattr(self._wire, "_reader", None), "_buffer", b""))

    @property
    def _unsent(self) -> int:
        """How many bytes the kernel has not taken yet."""
        writer = cast("asyncio.StreamWriter | None", getattr(self._wire, "_writer", None))
        return 0 if writer is None else writer.transport.get_write_buffer_size()

    def _line(self) -> int | None:
        """Return the descriptor of the connection's socket, while it has one."""
        writer = cast("asyncio.StreamWriter | None", getattr(self._wire, "_writer", None))
        line = None if writer is None else writer.get_extra_info("socket")
        return line.fileno() if line is not None and line.fileno() >= 0 else None

    async def _read(self) -> Reply:
        try:
            return await self._wire.read_response(disconnect_on_error=False)
        except _SAID as said:
            return said


def packed(commands: Iterable[Command]) -> bytes:
    """Return commands as a server reads them."""
    parts: list[bytes] = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        for word in command:
            raw = word if isinstance(word, bytes) else str(word).encode()
            parts += (b"$%d\r\n" % len(raw), raw, b"\r\n")
    return b"".join(parts)


def text(reply: Reply) -> str:
    """Return a reply as text."""
    return reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)


def said(reply: Reply) -> RedisError | None:
    """Return a reply if it is an error."""
    return reply if isinstance(reply, RedisError) else None


REFUSED = "connection refused"
NO_HOST = "no such host"
LATE = "no answer in time"


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


def _wire(place: Place, address: RedisAddress, login: Login, db: int) -> _Wire:
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
        return cast("_Wire", UnixDomainSocketConnection(path=place.host, **about))
    about |= {
        "host": place.host,
        "port": place.port,
        "socket_keepalive": True,
        "socket_keepalive_options": _KEEPALIVE,
    }
    if address.tls is None:
        return cast("_Wire", Connection(**about))
    return cast(
        "_Wire",
        SSLConnection(
            ssl_ca_certs=address.tls.ca_certs,
            ssl_certfile=address.tls.certfile,
            ssl_keyfile=address.tls.keyfile,
            ssl_cert_reqs="required" if address.tls.verify else "none",
            ssl_check_hostname=address.tls.check_hostname and address.tls.verify,
            **about,
        ),
    )
