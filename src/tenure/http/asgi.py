"""The types of ASGI, and what apps without a framework share: the path below a mount point, the lifespan."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = list[tuple[bytes, bytes]]


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


async def refuse_websocket(receive: Receive, send: Send) -> None:
    """Close a WebSocket before it is accepted: the server answers 403."""
    await receive()
    await send({"type": "websocket.close", "code": 1000})
