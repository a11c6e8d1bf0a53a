"""Requests to a health server over a real socket."""

import http.client
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Response:
    """A server's response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Return the parsed body."""
        return json.loads(self.body)


def probe(
    port: int, path: str, *, token: str | None = None, method: str = "GET", host: str = "127.0.0.1", within: float = 10
) -> Response:
    """Send a request to a server; raises OSError if no server listens, or if it takes longer than `within` seconds."""
    connection = http.client.HTTPConnection(host, port, timeout=within)
    try:
        connection.request(method, path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return Response(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()
