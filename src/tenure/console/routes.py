"""Routes: method, path, role, handler, parameters and answer of each resource. OpenAPI is generated from them."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct

from tenure.console.live import LiveEvents
from tenure.console.problems import ProblemError, ProblemName
from tenure.console.requests import ConsoleRequest
from tenure.console.users import Role, User
from tenure.core.suggestion import did_you_mean
from tenure.http.asgi import Headers
from tenure.ops.access import StorageAccess
from tenure.ops.slow_runs import Slow
from tenure.ops.views import Decode

HeaderName = Literal["If-Match", "Idempotency-Key", "Last-Event-ID"]
"""A request header that a route may read."""

SMALL_BODY = 64 * 1024
"""The greatest size of most bodies, in bytes."""

SAFE = ("GET", "HEAD")
"""The methods that change nothing."""

Payloads = Literal["read", "operate", "never"]
"""The role that may see arguments, results and data of jobs; `never`: no role."""

BASE = "/api/v1"

LIMIT = 10.0
"""Seconds that a request may take."""


class NoQuery(Struct, frozen=True):
    """The path takes no query parameters."""


@dataclass(frozen=True)
class ApiCall:
    """A request to a handler: the storage, the user, the names in the path, and the settings of the console.

    `serve`: lets this process serve the internal queues, if it does not yet. `reply_headers`: the handler adds to them.
    """

    access: StorageAccess
    user: User
    path: Mapping[str, str]
    payloads: Payloads
    read_only: bool
    slow: Slow
    live: LiveEvents
    request: ConsoleRequest
    serve: Callable[[], None]
    reply_headers: Headers = field(default_factory=Headers)

    @property
    def shows_payloads(self) -> bool:
        """True if the user may see arguments, results and data."""
        return self.payloads != "never" and self.user.may(self.payloads)

    @property
    def decode(self) -> Decode:
        """The decoder of arguments and results; for a user who may not see them, it fails, so their size is shown."""
        return self.access.decode if self.shows_payloads else _hidden

    @property
    def narrowed(self) -> bool:
        """True if the user may see some queues only."""
        return self.user.queues is not None


def _hidden(data: bytes) -> Any:
    raise ValueError("this user may not see payloads")


Handler = Callable[[ApiCall, Any], Awaitable[Struct | AsyncGenerator[bytes]]]
"""Answers a request, a stream with its parts; its second argument holds the query parameters, or the body."""


@dataclass(frozen=True)
class Route:
    """A resource. `query`: its parameters; `answer`: what it answers with; `problems`: those of this route alone.

    `path`: below `BASE`; a part in braces is a name. `limit`: seconds that it may take. `body`: what it reads, if it
    changes something; then the handler gets it in place of the parameters. `most`: the greatest size of the body, in
    bytes. `headers`: the request headers that it reads. `stream`: it answers with a `text/event-stream`, whose frames
    are `answer`. `accepted`: returns True if an answer says that the work follows later (202).
    """

    method: str
    path: str
    role: Role
    handler: Handler
    answer: type[Struct]
    query: type[Struct] = NoQuery
    problems: tuple[ProblemName, ...] = ()
    limit: float = LIMIT
    body: type[Struct] | None = None
    most: int = SMALL_BODY
    headers: tuple[HeaderName, ...] = ()
    stream: bool = False
    accepted: Callable[[Any], bool] | None = None
    parts: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.path.removeprefix("/").split("/")))

    @property
    def name(self) -> str:
        """The name of the operation."""
        return self.handler.__name__

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the path."""
        return tuple(part[1:-1] for part in self.parts if part.startswith("{"))

    def match(self, segments: list[str]) -> dict[str, str] | None:
        """Return the names in the path, None if the path is another one."""
        if len(segments) != len(self.parts):
            return None
        names: dict[str, str] = {}
        for part, segment in zip(self.parts, segments, strict=True):
            if part.startswith("{"):
                if not segment:
                    return None
                names[part[1:-1]] = segment
            elif part != segment:
                return None
        return names


class RouteTable:
    """Finds the route of a request."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)

    def find(self, method: str, segments: list[str]) -> tuple[Route, dict[str, str]]:
        """Return the route of a path below `BASE`, and the names in the path. `HEAD` is answered as `GET` is.

        Raises:
            ProblemError: no route has this path, or none has it with this method.
        """
        found = [(route, names) for route in self.routes if (names := route.match(segments)) is not None]
        if not found:
            path = "/".join(["", *segments])
            known = [route.path for route in self.routes]
            meant = did_you_mean(path, known).removeprefix("; did you mean ").removesuffix("?")
            remedy = f"did you mean {meant}?" if meant else f"{BASE}/openapi.json lists all resources"
            raise ProblemError("unknown-route", f"{BASE}{path[:200]} is not a resource", remedy)
        wanted = "GET" if method == "HEAD" else method
        for route, names in found:
            if route.method == wanted:
                return route, names
        allowed = sorted({route.method for route, _ in found} | {"HEAD" for route, _ in found if route.method == "GET"})
        raise ProblemError(
            "method-not-allowed",
            f"{method} is not a method of this resource",
            f"use {' or '.join(allowed)}",
            headers=[(b"allow", ", ".join(allowed).encode())],
        )
