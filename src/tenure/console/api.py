"""The admin API as a plain ASGI app: checks the user, finds the route, reads or acts, answers with JSON or a problem.

request ──► user ──► route ──► role ──► parameters, or origin and body ──► handler ──► answer
└────────┴─────────┴──────────┴─────────────┴─────────────────────────────────────► problem
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import Self, cast, get_args

import msgspec
from msgspec import Struct

from tenure.console.live import LiveEvents
from tenure.console.openapi import text as openapi_text
from tenure.console.pages import page_reply, send_page
from tenure.console.problems import PREFIX, ProblemError, bad_parameter, from_message, unknown_job
from tenure.console.redaction import Redactor
from tenure.console.requests import ConsoleRequest
from tenure.console.routes import BASE, SAFE, ApiCall, Payloads, Route, RouteTable
from tenure.console.table import TABLE
from tenure.console.unsafe import read_body, require_same_origin
from tenure.console.users import Auth, User, local_user, user_of
from tenure.core.check import flag, one_of, shown
from tenure.core.filter_text import FilterTextError
from tenure.errors import (
    JobNotFoundError,
    StorageError,
    StorageUnavailableError,
    UnknownScheduleError,
    UsageError,
)
from tenure.http.asgi import Headers, Receive, Scope, Send, answer, answer_in_parts, refuse_websocket
from tenure.ops.access import StorageAccess
from tenure.ops.internal_tasks import internal_worker
from tenure.ops.slow_runs import Slow

logger = logging.getLogger("tenure.console")

_JSON = b"application/json"
_STREAM = b"text/event-stream"
_PROBLEM = b"application/problem+json"

_GUARDS: Headers = [
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
]
"""An answer is data for a program: no page of another site may show or read it."""

_CHALLENGE: Headers = [(b"www-authenticate", b'Bearer realm="tenure"')]


class AdminAPI:
    """Answers the requests of one console."""

    def __init__(
        self,
        access: Callable[[], Awaitable[StorageAccess]],
        *,
        auth: Auth | Sequence[Auth] | None = None,
        read_only: bool = False,
        payloads: Payloads = "read",
        redact: Iterable[str] = (),
        table: RouteTable = TABLE,
    ) -> None:
        """Take the storage and the rules.

        `access`: returns the storage, opened. `auth`: functions that name the user of a request; without one, only
        this machine may read. `payloads`: the role that may see arguments, results and data of jobs.

        Raises:
            UsageError: an option has an invalid value.
        """
        functions = [auth] if callable(auth) else list(auth or ())
        if auth is not None and (not functions or not all(map(callable, cast("list[object]", functions)))):
            raise UsageError(f"auth = {shown(auth)} must be one or more functions; write Tokens(...) or ProxyAuth(...)")
        self._access = access
        self._auth: list[Auth] = functions
        self._read_only = bool(flag(read_only, field="read_only"))
        self._payloads: Payloads = one_of(payloads, get_args(Payloads), field="payloads")
        self._redactor = Redactor(redact)
        self._table = table
        self._slow = Slow()
        self._live = LiveEvents(self._redactor)
        self._internal = internal_worker(access)

    def start(self) -> None:
        """Serve the internal queues in this event loop, unless this console is read-only. Idempotent."""
        if not self._read_only:
            self._internal.start()

    async def stop(self) -> None:
        """Serve the internal queues no more; another console goes on with what runs. Idempotent."""
        await self._internal.stop()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def protected(self) -> bool:
        """True if it asks for credentials."""
        return bool(self._auth)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or take part in one lifespan. It opens its storage when it is first used."""
        match scope["type"]:
            case "http":
                page = page_reply(ConsoleRequest(scope), scope)
                if page is not None:
                    await send_page(scope, send, page)
                    return
                status, headers, body = await self._answer(scope, receive)
                if isinstance(body, bytes):
                    await answer(scope, send, status, [*headers, *_GUARDS], body)
                else:
                    await answer_in_parts(scope, receive, send, [*headers, *_GUARDS], body)
            case "lifespan":
                await receive()
                self.start()
                await send({"type": "lifespan.startup.complete"})
                await receive()
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
            case "websocket":
                await refuse_websocket(receive, send)
            case other:
                raise ValueError(f"the console speaks HTTP only, not {other}")

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, Headers, bytes | AsyncGenerator[bytes]]:
        try:
            status, headers, found = await self._content(ConsoleRequest(scope), receive)
            return status, [(b"content-type", _JSON if isinstance(found, bytes) else _STREAM), *headers], found
        except Exception as error:
            failure = _problem_of(error, changes=str(scope["method"]) not in SAFE)
        problem = failure.problem
        if problem.status >= 500:
            logger.log(
                logging.ERROR if problem.type == f"{PREFIX}internal" else logging.WARNING,
                # A path may contain line breaks, which would look like lines of their own.
                "%s %r: %s",
                scope["method"],
                scope["path"][:200],
                problem.detail,
                exc_info=failure.__cause__ if problem.type == f"{PREFIX}internal" else None,
            )
        body = msgspec.json.encode(self._redactor.plain(problem))
        return problem.status, [(b"content-type", _PROBLEM), *failure.headers], body

    async def _content(
        self, request: ConsoleRequest, receive: Receive
    ) -> tuple[int, Headers, bytes | AsyncGenerator[bytes]]:
        segments = request.segments()
        base = BASE.strip("/").split("/")
        if segments[: len(base)] != base:
            raise ProblemError(
                "unknown-route",
                f"{request.path[:200]} is not a resource",
                f"the API begins at {BASE}/meta; {BASE}/openapi.json describes it",
            )
        inner = segments[len(base) :]
        if inner == ["openapi.json"] and request.method in SAFE:
            # It holds nothing of the storage, so it needs no user.
            return 200, [], openapi_text(self._table).encode()
        user = await self._user(request)
        route, names = self._table.find(request.method, inner)
        self._permit(user, route)
        given: Struct = request.query(route.query)
        if route.method not in SAFE:
            require_same_origin(request)
            if route.body is not None:
                given = await read_body(request, receive, route.body, most=route.most)
        try:
            async with asyncio.timeout(route.limit):
                access = await self._access()
                call = ApiCall(
                    access, user, names, self._payloads, self._read_only, self._slow, self._live, request, self.start
                )
                found = await route.handler(call, given)
        except TimeoutError as error:
            raise ProblemError(
                "timeout",
                f"the storage did not answer within {route.limit:g} s",
                "narrow the request, or find out whether the storage is overloaded: tenure doctor"
                if route.method in SAFE
                else "look whether it was done, and find out whether the storage is overloaded: tenure doctor",
            ) from error
        if isinstance(found, Struct):
            status = 202 if route.accepted is not None and route.accepted(found) else 200
            return status, call.reply_headers, msgspec.json.encode(self._redactor.plain(found))
        return 200, call.reply_headers, found

    async def _user(self, request: ConsoleRequest) -> User:
        if not self._auth:
            return local_user(request)
        try:
            user = await user_of(request, self._auth)
        except ProblemError:
            raise
        except Exception as error:
            # Its text is not for a client that is not known yet, and it is not an error of the storage.
            raise ProblemError("internal", "a function of auth has failed", "read the log of the console") from error
        if user is None:
            raise ProblemError(
                "unauthorized",
                "the request names no user that may read",
                "send Authorization: Bearer TOKEN",
                headers=_CHALLENGE,
            )
        return user

    def _permit(self, user: User, route: Route) -> None:
        if self._read_only and route.method not in SAFE:
            raise ProblemError("read-only", "this console changes nothing", "use another console, or tenure")
        if not user.may(route.role):
            raise ProblemError(
                "forbidden",
                f"{user.name!r} has the role {user.role}, and this needs {route.role}",
                f"ask a user with the role {route.role}",
            )


def _problem_of(error: Exception, *, changes: bool) -> ProblemError:
    """Return the problem that an exception is answered with. `changes`: the request was to change something."""
    message = str(error)
    match error:
        case ProblemError():
            return error
        case FilterTextError():
            found = bad_parameter("invalid-filter", "filter", message, position=error.position)
        case JobNotFoundError():
            found = unknown_job(message)
        case UnknownScheduleError():
            found = from_message("unknown-schedule", message)
        case UsageError():
            found = from_message("invalid-parameter", message)
        case StorageUnavailableError() | OSError():
            # What was asked for may have happened, and a repeated call would make a second job.
            again: Headers = [] if changes else [(b"retry-after", b"2")]
            remedy = "look whether it was done, or repeat it with the same Idempotency-Key" if changes else "try again"
            found = ProblemError(
                "storage-unavailable", message, f"{remedy}; tenure doctor names the cause", headers=again
            )
        case StorageError():
            found = ProblemError("storage-refused", message, "tenure doctor names the cause")
        case _:
            # What went wrong is in the log: the text of an unexpected exception may hold a secret.
            found = ProblemError("internal", "an unexpected exception was raised", "read the log of the console")
    found.__cause__ = error
    return found
