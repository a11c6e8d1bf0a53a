"""Each problem: its type, its status, the parameter that it is about, and the remedy."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import Struct

from tenure import StorageError, StorageUnavailableError, Tenure
from tenure.client.codec import JsonCodec
from tenure.console import Console, Tokens, User
from tenure.console.api import AdminAPI
from tenure.console.problems import PROBLEMS
from tenure.console.reads import meta
from tenure.console.records import MetaView
from tenure.console.routes import ApiCall, Route, RouteTable
from tenure.core.suggestion import COMPARED, close_to
from tenure.ops.access import StorageAccess
from tenure.options import Timing
from tenure.storage.memory.storage import MemoryStorage
from tests.console.conftest import Shop
from tests.console.site import Headers, Reply, act_headers, call, path_to

pytestmark = pytest.mark.thorough

SECRET = "0123456789abcdef"


@dataclass(frozen=True)
class Mistake:
    """A wrong request, and what its problem says."""

    path: str
    name: str
    pointer: str | None
    says: str
    method: str = "GET"
    headers: Headers = ()


MISTAKES = [
    Mistake("/api", "unknown-route", None, "the API begins at /api/v1/meta"),
    Mistake("/api/v1", "unknown-route", None, "/api/v1/openapi.json lists all"),
    Mistake("/api/v1/job", "unknown-route", None, "did you mean '/jobs'"),
    Mistake("/api/v1/webhooks/alert", "unknown-webhook", "/path/webhook", "did you mean 'alerts'?"),
    Mistake("/api/v1/queues/", "unknown-route", None, "did you mean '/queues'"),
    Mistake("/api/v1/queues/mail", "method-not-allowed", None, "use GET or HEAD or PATCH", method="DELETE"),
    Mistake("/api/v1/jobs?lmit=5", "unknown-parameter", "/query/lmit", "did you mean 'limit'?"),
    Mistake("/api/v1/jobs?x=5", "unknown-parameter", "/query/x", "use after, filter, limit"),
    Mistake("/api/v1/queues?x=5", "unknown-parameter", "/query/x", "the path takes none"),
    Mistake("/api/v1/jobs?limit=0", "invalid-parameter", "/query/limit", "expected int >= 1"),
    Mistake("/api/v1/jobs?limit=201", "invalid-parameter", "/query/limit", "expected int <= 200"),
    Mistake("/api/v1/jobs?limit=ten", "invalid-parameter", "/query/limit", "a whole number from 1 to 200"),
    Mistake("/api/v1/jobs?limit=1&limit=2", "invalid-parameter", "/query/limit", "it is given more than once"),
    Mistake("/api/v1/jobs?limit=", "invalid-parameter", "/query/limit", "expected int"),
    Mistake("/api/v1/jobs?after=", "invalid-parameter", "/query/after", "`next` of the page before"),
    Mistake("/api/v1/jobs?filter=%ff", "invalid-parameter", None, "not UTF-8"),
    Mistake("/api/v1/jobs?" + "&".join(["limit=1"] * 101), "invalid-parameter", None, "more than 100 fields"),
    Mistake("/api/v1/events?kind=faild", "invalid-parameter", "/query/kind", "did you mean 'failed'?"),
    Mistake("/api/v1/events?within=1x", "invalid-parameter", "/query/within", "is not a duration"),
    Mistake("/api/v1/events?within=1h&after=0", "invalid-parameter", "/query/within", "give one of them"),
    Mistake("/api/v1/queues/mail/statistics?window=-1", "invalid-parameter", "/query/window", "is not a duration"),
    Mistake("/api/v1/jobs/mail/%00", "invalid-parameter", "/path/id", "without NUL"),
    Mistake("/api/v1/jobs/%00/x/why", "invalid-parameter", "/path/queue", "without NUL"),
    Mistake("/api/v1/dead/groups?task=", "invalid-parameter", "/query/task", "must be a text"),
    Mistake("/api/v1/dead/groups?queue=%00", "invalid-parameter", "/query/queue", "without NUL"),
    Mistake("/api/v1/events?queue=%00", "invalid-parameter", "/query/queue", "without NUL"),
    Mistake("/api/v1/jobs?filter=state:faild", "invalid-filter", "/query/filter", "did you mean 'failed'?"),
    Mistake("/api/v1/jobs?after=nonsense!", "invalid-cursor", "/query/after", "at the end of the previous page"),
    Mistake("/api/v1/events?after=nonsense!", "invalid-cursor", "/query/after", "is not a cursor"),
    Mistake("/api/v1/queues/mial", "unknown-queue", "/path/queue", "did you mean 'mail'?"),
    Mistake("/api/v1/queues/%2e%2e", "unknown-queue", "/path/queue", "/api/v1/queues lists all"),
    Mistake("/api/v1/tasks/chrge", "unknown-task", "/path/task", "did you mean 'charge'?"),
    Mistake("/api/v1/jobs/mail/nope", "unknown-job", "/path/id", "no job 'nope' in queue 'mail'"),
    Mistake("/api/v1/jobs/mail/nope/why", "unknown-job", "/path/id", "/api/v1/jobs?filter=id:ID"),
    Mistake("/api/v1/schedules/hourli", "unknown-schedule", "/path/schedule", "did you mean 'hourly'?"),
    Mistake("/api/v1/workers/web-33", "unknown-worker", "/path/worker", "did you mean 'web-3'?"),
    Mistake("/api/v1/workers/none", "unknown-worker", "/path/worker", "/api/v1/workers lists all"),
    Mistake("/api/v1/workers/host/stacks", "unknown-worker", "/path/worker", "'host' is unknown"),
    Mistake("/api/v1/audit?actor=%00", "invalid-parameter", "/query/actor", "without NUL"),
    Mistake("/api/v1/audit?limit=501", "invalid-parameter", "/query/limit", "expected int <= 500"),
    Mistake("/api/v1/audit?after=nonsense!", "invalid-cursor", "/query/after", "is not a cursor"),
    Mistake("/api/v1/dead/groups/0a0a", "unknown-fault", "/path/fault", "12 hexadecimal digits"),
    Mistake("/api/v1/dead/groups/0a0a0a0a0a0a", "unknown-fault", "/path/fault", "/api/v1/dead/groups"),
    Mistake("/api/v1/meta", "local-only", "/header/host", "Host = 'evil.example'", headers=[("Host", "evil.example")]),
    Mistake(
        "/api/v1/meta", "cross-site", "/header/sec-fetch-site", "another site",
        headers=[("Sec-Fetch-Site", "cross-site")],
    ),
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: f"{mistake.name} {mistake.path[:40]}")
async def test_a_mistake_is_answered_with_its_problem(shop: Shop, mistake: Mistake) -> None:
    reply = await shop.get(mistake.path, method=mistake.method, headers=mistake.headers)

    assert reply.problem == mistake.name
    assert (reply.status, reply.json["title"]) == PROBLEMS[mistake.name]  # type: ignore[index]
    assert mistake.says in f"{reply.json['detail']}; {reply.json.get('remedy', '')}"
    assert mistake.pointer in [part["pointer"] for part in reply.json.get("errors", [])] or mistake.pointer is None


async def test_all_wrong_parameters_are_named_at_once(shop: Shop) -> None:
    unknown = await shop.get(f"{path_to('jobs')}?lmit=1&fitler=x")
    invalid = await shop.get(f"{path_to('jobs')}?limit=0&after=")

    assert [part["pointer"] for part in unknown.json["errors"]] == ["/query/lmit", "/query/fitler"]
    assert [part["pointer"] for part in invalid.json["errors"]] == ["/query/limit", "/query/after"]


async def test_an_invalid_filter_names_the_position(shop: Shop) -> None:
    (part,) = (await shop.get(f"{path_to('jobs')}?filter=queue:mail%20state:faild")).json["errors"]

    assert part["position"] == len("queue:mail state:") + 1


# ── problems of the console and the storage ───────────────────────────────────────────────────────────────────────────


async def answered(error: Exception | None = None, *, role: str = "read", **options: Any) -> Reply:
    """Return the answer of a route whose handler raises this error, or hangs."""

    async def read(call: ApiCall, query: Struct) -> Struct:
        if error is None:
            await asyncio.Event().wait()
        raise error or AssertionError

    storage = MemoryStorage()

    async def access() -> StorageAccess:
        return StorageAccess(storage, JsonCodec().decode, Timing())

    route = Route("GET", "/read", role, read, MetaView, limit=0.01)  # type: ignore[arg-type]
    api = AdminAPI(access, table=RouteTable([route, Route("POST", "/read", "admin", meta, MetaView)]), **options)
    return await call(api, path_to("read"), method=options.get("method", "GET"))


@pytest.mark.parametrize(
    ("error", "name", "says"),
    [
        (StorageUnavailableError("connection refused"), "storage-unavailable", "connection refused"),
        (ConnectionResetError("reset by peer"), "storage-unavailable", "reset by peer"),
        (StorageError("another schema"), "storage-refused", "another schema"),
        (None, "timeout", "did not answer within 0.01 s"),
        (RuntimeError("secret=42"), "internal", "read the log"),
    ],
)
async def test_a_failure_is_a_problem_that_tells_no_secret(
    error: Exception | None, name: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    reply = await answered(error)

    assert reply.problem == name
    assert says in f"{reply.json['detail']}; {reply.json['remedy']}"
    assert b"secret" not in reply.body
    (record,) = (record for record in caplog.records if record.name == "tenure.console")
    # The traceback of an unexpected exception is in the log.
    assert (record.levelno == logging.ERROR, bool(record.exc_info)) == (name == "internal", name == "internal")
    assert (reply.header("retry-after") == "2") == (name == "storage-unavailable")


async def test_a_path_adds_no_line_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def access() -> StorageAccess:
        raise StorageUnavailableError("gone")

    reply = await call(AdminAPI(access), "/api/v1/queues/a\nERROR", raw_path=b"/api/v1/queues/a%0aERROR")

    assert reply.problem == "storage-unavailable"
    assert "\n" not in caplog.records[-1].getMessage()


def test_a_name_is_not_compared_with_a_great_number_of_names() -> None:
    # Each comparison takes time, in which the event loop stands still.
    assert close_to("mial", ["mail", *map(str, range(COMPARED - 1))]) == ["mail"]
    assert close_to("mial", ["mail", *map(str, range(COMPARED))]) == []


async def test_a_read_only_console_refuses_changes() -> None:
    async def access() -> StorageAccess:
        return StorageAccess(MemoryStorage(), JsonCodec().decode, Timing())

    table = RouteTable(
        [Route("POST", "/things", "read", meta, MetaView), Route("GET", "/meta", "read", meta, MetaView)]
    )
    for read_only, status in ((True, 403), (False, 200)):
        api = AdminAPI(access, table=table, read_only=read_only)
        changed = await call(api, path_to("things"), method="POST", headers=[("host", "localhost"), *act_headers()])

        assert changed.status == status
        assert (await call(api, path_to("meta"))).json["read_only"] is read_only
        assert status == 200 or changed.problem == "read-only"


async def test_the_other_problems_are_about_users() -> None:
    app = Tenure("memory://")
    console = Console(app, auth=Tokens(f"ann:read:{SECRET}"))
    bearer = [("authorization", f"Bearer {SECRET}")]
    wrong = [("authorization", "Bearer wrong")]
    unauthorized = await call(console, path_to("meta"))
    forbidden = await call(console, path_to("doctor"), headers=bearer)
    for _ in range(20):
        await call(console, path_to("meta"), headers=wrong)
    many = await call(console, path_to("meta"), headers=wrong)

    assert unauthorized.problem == "unauthorized"
    assert unauthorized.header("www-authenticate") == 'Bearer realm="tenure"'
    assert forbidden.problem == "forbidden"
    assert "'ann' has the role read, and this needs operate" in forbidden.json["detail"]
    assert many.problem == "too-many-attempts"


OF_ACTS = [
    *("not-json", "slow-body", "body-too-large", "invalid-json", "invalid-body", "unknown-field"),
    *("changed", "wrong-state", "key-held", "settings-changed", "key-reused", "throttled", "not-audited"),
    *("unconfirmed", "unknown-operation", "too-many-jobs", "internal-queue"),
]
"""The problems of acts; test_acts.py, test_bodies.py and test_operations.py show each."""


def test_each_problem_has_a_test() -> None:
    elsewhere = {"too-many-streams", "storage-unavailable", "storage-refused", "timeout", "internal", "read-only"}
    of_users = {"unauthorized", "forbidden", "too-many-attempts", "unknown-host"}
    of_acts = {*OF_ACTS}

    assert {mistake.name for mistake in MISTAKES} | elsewhere | of_users | of_acts == set(PROBLEMS)
    assert User("ann").may("read")
