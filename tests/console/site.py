"""What asks a console: over a real socket, or as an ASGI server calls it."""

import asyncio
import http.client
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tenure.console.problems import PREFIX
from tenure.console.routes import BASE
from tenure.http.asgi import ASGIApp

Headers = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """The name of the problem."""
        assert self.header("content-type") == "application/problem+json", self.body
        assert self.json["status"] == self.status
        return str(self.json["type"]).removeprefix(PREFIX)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


def act_headers(port: int | None = None) -> list[tuple[str, str]]:
    """Return the headers that a page of the console sends with an act."""
    site = [("sec-fetch-site", "same-origin")] if port is None else [("origin", f"http://127.0.0.1:{port}")]
    return [*site, ("content-type", "application/json")]


def path_to(*names: str) -> str:
    """Return a path of the API, with its names escaped."""
    return "/".join([BASE, *(quote(name, safe="") for name in names)])


async def get(port: int, path: str, *, headers: Headers = (), method: str = "GET", body: bytes | None = None) -> Reply:
    """Ask a server over a socket, without holding up what else goes on here."""

    def ask() -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.putrequest(method, path, skip_host=any(name.lower() == "host" for name, _ in headers))
            for name, value in headers:
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("content-length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            found = [(key.lower(), value) for key, value in response.getheaders()]
            return Reply(response.status, found, response.read())
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


async def call(
    app: ASGIApp,
    path: str,
    *,
    headers: Headers = (("host", "localhost"),),
    client: tuple[str, int] | None = ("127.0.0.1", 5000),
    method: str = "GET",
    body: Sequence[bytes] = (b"",),
    **scope: Any,
) -> Reply:
    """Call an ASGI app as a server does. `body`: its parts; without one, the client has left."""
    where, _, query = path.partition("?")
    sent: list[Any] = []
    parts = list(body)

    async def receive() -> dict[str, Any]:
        if not parts:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Any) -> None:
        sent.append(message)

    whole: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": where,
        "query_string": query.encode(),
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        "client": client,
    }
    await app({**whole, **scope}, receive, send)
    start, *bodies = sent
    found = [(name.decode(), value.decode()) for name, value in start["headers"]]
    return Reply(start["status"], found, b"".join(message["body"] for message in bodies))
