"""Health as a plain ASGI app: `/live`, `/ready`, `/health/queues` and `/metrics`."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Literal
from urllib.parse import parse_qsl

import msgspec

from tenure.core.check import named
from tenure.errors import TenureError, UsageError
from tenure.health.assessment import Health, alarms_of, consuming, judged, unreachable
from tenure.health.auth import TokenAuth
from tenure.health.metrics import CONTENT_TYPE, rendered
from tenure.health.monitor import LIMIT, StorageMonitor, SurveyResult, logger
from tenure.health.process_health import ProcessHealth
from tenure.http.asgi import Headers, Receive, Scope, Send, answer, path_below_root, refuse_websocket
from tenure.options import Timing
from tenure.outbox.outbox import Outbox, OutboxState

DegradedIs = Literal[200, 503]

UNREADY_AFTER = 10.0
"""Seconds that the storage may fail before this process reports that it is not ready."""

RECENT = 1.0
"""Seconds for which `/ready` reuses a survey; it needs no token, so a flood of requests must not reach the storage."""

MOST_FIELDS = 100
"""The greatest number of fields in a query string."""

_TEXT = b"text/plain; charset=utf-8"
_JSON = b"application/json"


def no_outbox() -> Outbox | None:
    """Return None: most apps have no outbox."""
    return None


Answer = tuple[int, bytes, bytes, Headers]


class HealthApp:
    """A plain ASGI app. With a lifespan it surveys the storage every few seconds; mounted, only on requests."""

    def __init__(
        self,
        watch: StorageMonitor,
        auth: TokenAuth,
        *,
        timing: Callable[[], Timing],
        queues: Callable[[], Iterable[str]] = tuple,
        degraded_is: DegradedIs = 200,
        process_health: Callable[[], ProcessHealth] = ProcessHealth,
        outbox: Callable[[], Outbox | None] = no_outbox,
    ) -> None:
        """Take the parts.

        `queues`: returns queues that exist even if the storage does not know them. `process_health`: returns the health
        of this process; any thread may call it. `outbox`: returns an outbox whose calls are part of the metrics.
        """
        self._outbox = outbox
        self._watch = watch
        self._gate = auth
        self._timing = timing
        self._queues = queues
        self._degraded_is = degraded_is
        self._vitals = process_health

    @property
    def protected(self) -> bool:
        """Return True if queue health and metrics require a token."""
        return self._gate.closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or run one lifespan."""
        match scope["type"]:
            case "http":
                status, kind, body, more = await self._answer(scope)
                await answer(scope, send, status, [(b"content-type", kind), *more], body)
            case "lifespan":
                await self._lifespan(receive, send)
            case "websocket":
                await refuse_websocket(receive, send)
            case other:
                raise ValueError(f"health speaks HTTP only, not {other}")

    async def health(self, only: Iterable[str] = (), *, survey: SurveyResult | None = None) -> Health:
        """Return the assessment of all queues, or of these, from a new survey or a given one."""
        survey = await self._watch.look() if survey is None else survey
        if survey.survey is None:
            return unreachable(survey.error)
        return judged(
            survey.survey,
            timing=self._timing(),
            defined=self._queues(),
            only=only,
            thresholds=self._watch.thresholds,
            backlog=self._watch.backlog,
            now=survey.at,
        )

    async def ready(self) -> bool:
        """Return True if this process can work: the storage answers, it is not stopping, and one claim loop turns."""
        vitals = self._vitals()
        if vitals.stopping:
            return False
        await self._watch.look(max_age=RECENT)
        failing, last_success = self._watch.failing_since, self._watch.last_success
        if (
            last_success is None
            or last_success.survey is None
            or (failing is not None and self._watch.now - failing >= UNREADY_AFTER)
        ):
            return False
        if vitals.owners is None:
            return True
        timing = self._timing()
        return any(consuming(last_success.survey, owner, timing) for owner in vitals.owners)

    async def _answer(self, scope: Scope) -> Answer:
        answers = {
            "/live": self._live,
            "/ready": self._ready,
            "/health/queues": self._health_queues,
            "/metrics": self._metrics,
        }
        found = answers.get(path_below_root(str(scope["path"]), str(scope.get("root_path", ""))))
        if found is None:
            return 404, _JSON, b'{"error":"not found"}', []
        if found in (self._health_queues, self._metrics) and not self._admitted(scope):
            return 401, _JSON, b'{"error":"unauthorized"}', _CHALLENGES
        if scope["method"] not in ("GET", "HEAD"):
            return 405, _JSON, b'{"error":"method not allowed"}', [(b"allow", b"GET, HEAD")]
        return await found(scope)

    async def _live(self, scope: Scope) -> Answer:
        why = self._vitals().dead
        return (503, _TEXT, f"no: {why}".encode(), []) if why else (200, _TEXT, b"yes", [])

    async def _ready(self, scope: Scope) -> Answer:
        ready, alarms = await self.ready(), b""
        if (last_success := self._watch.last_success) is not None and last_success.survey is not None:
            alarms = "".join(f"; {alarm}" for alarm in alarms_of(last_success.survey)).encode()
        return (200, _TEXT, b"yes" + alarms, []) if ready else (503, _TEXT, b"no" + alarms, [])

    async def _health_queues(self, scope: Scope) -> Answer:
        try:
            only = _queue_names(scope)
        except (UsageError, ValueError) as error:
            return 400, _JSON, msgspec.json.encode({"error": str(error)}), []
        health = await self.health(only)
        statuses = {"ok": 200, "degraded": self._degraded_is, "unhealthy": 500, "unreachable": 503}
        return statuses[health.status], _JSON, msgspec.json.encode(health), []

    async def _metrics(self, scope: Scope) -> Answer:
        survey = await self._watch.look(max_age=RECENT)
        health = await self.health(survey=survey)
        return 200, CONTENT_TYPE, rendered(survey.survey, health, self._vitals(), await self._outbox_state()), []

    async def _outbox_state(self) -> OutboxState | None:
        """Return the state of the outbox; None without one, or if it does not answer."""
        outbox = self._outbox()
        if outbox is None:
            return None
        try:
            async with asyncio.timeout(LIMIT):
                return await outbox.state()
        except (TenureError, TimeoutError) as error:
            logger.warning("the outbox %s does not answer: %s", outbox.url, error)
            return None

    def _admitted(self, scope: Scope) -> bool:
        return self._gate.admits([value for name, value in scope["headers"] if name.lower() == b"authorization"])

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        async with asyncio.TaskGroup() as group:
            sampler = group.create_task(self._watch.sample())
            await send({"type": "lifespan.startup.complete"})
            await receive()
            sampler.cancel()
        await send({"type": "lifespan.shutdown.complete"})


_CHALLENGES: Headers = [
    (b"www-authenticate", b'Bearer realm="tenure"'),
    (b"www-authenticate", b'Basic realm="tenure", charset="UTF-8"'),
]


def _queue_names(scope: Scope) -> list[str]:
    """Return the queues that a query string names: `?queue=mail&queue=default`, or `?queue=mail,default`."""
    query = bytes(scope.get("query_string", b"")).decode("latin-1")
    fields = parse_qsl(query, keep_blank_values=True, max_num_fields=MOST_FIELDS)
    values = [value for name, value in fields if name == "queue"]
    return [named(text.strip(), field="queue") for value in values for text in value.split(",")]
