"""Serves an ASGI app over HTTP in its own thread, so that it answers while the main loop is blocked."""

import asyncio
import contextlib
import importlib.util
import ipaddress
import logging
import os
import re
import socket
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

from tenure.background_loop import BackgroundLoop
from tenure.core.check import shown
from tenure.errors import UsageError
from tenure.http.asgi import ASGIApp, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from uvicorn import Server as Uvicorn

logger = logging.getLogger("tenure.http")

LONGEST_HEAD = 16 * 1024
"""The greatest size of a request's head, in bytes."""

SEND_BUFFER = 128 * 1024
"""The size of a connection's send buffer, in bytes. With a large one, a slow client seems to receive nothing."""

GOODBYE = 1
"""Seconds that running requests get to end when the server stops."""


@dataclass(frozen=True)
class ListenAddress:
    """The host and port to listen on."""

    host: str
    port: int

    @classmethod
    def read(cls, text: str, *, field: str) -> Self:
        """Read "8080", "127.0.0.1:8080" or "[::1]:8080"; a port alone listens on this machine only.

        Raises:
            UsageError: `text` has none of these forms.
        """
        found = re.fullmatch(r"(?:(?:\[([^\]]+)\]|([^:\s]+)):)?(\d{1,5})", text.strip())
        if found is None or int(found[3]) > 65_535:
            raise UsageError(f"{field} = {shown(text)} is not an address; write 8080, 127.0.0.1:8080 or [::1]:8080")
        return cls(found[1] or found[2] or "127.0.0.1", int(found[3]))

    @property
    def loopback(self) -> bool:
        """Return True if only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def bound(self) -> socket.socket:
        """Return a socket that listens there.

        Raises:
            UsageError: the address cannot be bound.
        """
        try:
            listening = socket.create_server(
                (self.host, self.port), family=socket.AF_INET6 if ":" in self.host else socket.AF_INET
            )
        except OSError as error:
            # The text of an OSError repeats the address; but `strerror` does not know the codes of a gaierror.
            why = str(error) if error.errno is None or isinstance(error, socket.gaierror) else os.strerror(error.errno)
            raise UsageError(f"cannot listen on {self}: {why}; choose another address") from error
        # Connections inherit these options. Without the first one the body waits for the head's acknowledgement, about
        # 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        return listening

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def permitted(address: ListenAddress, *, protected: bool, remedy: str) -> None:
    """Check that serving at this address is allowed: other machines may reach it only with authentication.

    Raises:
        UsageError: other machines could read it without a token, or uvicorn is not installed.
    """
    if not address.loopback and not protected:
        raise UsageError(f"{address} can be reached from other machines and no token is asked for; {remedy}")
    if importlib.util.find_spec("uvicorn") is None:
        raise UsageError('serving over HTTP needs uvicorn; pip install "tenure[web]"')


class HTTPServer:
    """Serves an app until it is stopped."""

    def __init__(self, app: ASGIApp, address: ListenAddress, *, purpose: str, protected: bool) -> None:
        """Take the app and the address.

        `purpose`: names the app in the log. `protected`: the app asks for credentials.

        Raises:
            UsageError: the app may not be served at this address, or uvicorn is not installed.
        """
        permitted(address, protected=protected, remedy="give it a token, or listen on 127.0.0.1")
        self._app = app
        self._purpose = purpose
        self._address = address
        self._side = BackgroundLoop("tenure-http")
        self._uvicorn: Uvicorn | None = None
        self._listening: socket.socket | None = None
        self._serving: Future[None] | None = None
        self._stopping: asyncio.Event | None = None
        """It belongs to the server's loop."""

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            UsageError: the address cannot be bound.
        """
        self._listening = self._address.bound()
        self._serving = self._side.submit(self._serve(self._listening))
        self._serving.add_done_callback(self._ended)

    @property
    def address(self) -> ListenAddress:
        """The address; while it listens, with the port that the system has chosen for port 0."""
        if self._listening is None:
            return self._address
        host, port = self._listening.getsockname()[:2]
        return ListenAddress(host, port)

    async def stop(self) -> None:
        """Stop listening; running requests get a moment to end, and streams end at once. Idempotent."""
        serving, self._serving = self._serving, None
        if serving is not None and self._uvicorn is not None:
            self._side.submit(self._end())
            with contextlib.suppress(Exception):
                async with asyncio.timeout(2 * GOODBYE):
                    await asyncio.wrap_future(serving)
        await self._side.stop()
        if self._listening is not None:
            self._listening.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _end(self) -> None:
        if self._stopping is not None:
            self._stopping.set()
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True

    async def _until_stop(self, stopping: asyncio.Event, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. When the server stops, the client of an app that still waits for it counts as gone."""
        await self._app(scope, receive if scope["type"] == "lifespan" else partial(_received, stopping, receive), send)

    async def _serve(self, listening: socket.socket) -> None:
        import uvicorn

        from tenure.http.connection import MOST, HTTPConnection

        self._stopping = asyncio.Event()
        config = uvicorn.Config(
            partial(self._until_stop, self._stopping),
            interface="asgi3",
            # In addition to names, uvicorn takes subclasses of its protocols.
            http=HTTPConnection,
            ws="none",
            lifespan="on",
            # The application configures logging.
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            # Idle connections are closed before this limit, so it bounds the running requests.
            limit_concurrency=MOST + 1,
            h11_max_incomplete_event_size=LONGEST_HEAD,
            timeout_graceful_shutdown=GOODBYE,
        )
        self._uvicorn = uvicorn.Server(config)
        logger.info("%s is served on http://%s", self._purpose, self.address)
        # Outside the main thread uvicorn installs no signal handlers.
        await self._uvicorn.serve(sockets=[listening])

    def _ended(self, serving: "Future[None]") -> None:
        if not serving.cancelled() and (failure := serving.exception()) is not None:
            logger.critical("the server of %s has failed", self._purpose, exc_info=failure)


async def _received(stopping: asyncio.Event, receive: Receive) -> Message:
    message, stop = asyncio.ensure_future(receive()), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait([message, stop], return_when=asyncio.FIRST_COMPLETED)
        return message.result() if message.done() else {"type": "http.disconnect"}
    finally:
        message.cancel()
        stop.cancel()
