"""The types of ASGI, and what apps without a framework share: the path below a mount point, the lifespan."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from typing import Any

from tenure.waiting import first

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = list[tuple[bytes, bytes]]

TAKEN_WITHIN = 30.0
"""Seconds within which a client must take what a stream has sent."""


def path_below_root(path: str, root: str) -> str:
    """Return a path without the mount point that it begins with."""
    root = root.rstrip("/")
    # Some frameworks remove the mount point from the path, others do not.
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


async def answer(scope: Scope, send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send a whole answer that no cache keeps; to HEAD without its body."""
    head = [
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


async def answer_in_parts(
    scope: Scope, receive: Receive, send: Send, headers: Headers, parts: AsyncGenerator[bytes]
) -> None:
    """Send an answer whose parts come over time, until they end or the client goes away; to HEAD without a part.

    A client that takes nothing for `TAKEN_WITHIN` seconds gets no more.
    """
    # The last one asks nginx not to collect the parts.
    head = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"), (b"x-accel-buffering", b"no")]
    try:
        await send({"type": "http.response.start", "status": 200, "headers": [*head, *headers]})
        if scope["method"] != "HEAD":
            await first(_send_parts(send, parts), _disconnected(receive))
    finally:
        await parts.aclose()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(TAKEN_WITHIN):
            await send({"type": "http.response.body", "body": b""})


async def _send_parts(send: Send, parts: AsyncGenerator[bytes]) -> None:
    async for part in parts:
        try:
            async with asyncio.timeout(TAKEN_WITHIN):
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except TimeoutError:
            return


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def refuse_websocket(receive: Receive, send: Send) -> None:
    """Close a WebSocket before it is accepted: the server answers 403."""
    await receive()
    await send({"type": "websocket.close", "code": 1000})
