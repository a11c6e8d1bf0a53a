"""What a request that changes something must have: an origin, a role that may, a console that may, and a JSON body."""

import asyncio
import json
from typing import Any

import pytest
from msgspec import Struct

from tenure import Tenure
from tenure.console import Console, Tokens, User, unsafe
from tenure.console.act_table import ACTS
from tenure.console.bodies import CALL_BODY, JobBody, QueuePatch
from tenure.console.problems import ProblemError
from tenure.console.routes import SMALL_BODY
from tenure.console.unsafe import body_of
from tenure.storage.protocol import ActsQuery
from tests.console.conftest import Shop, served
from tests.console.site import Headers, Reply, act_headers, call, get, path_to

pytestmark = pytest.mark.thorough

SECRET = "0123456789abcdef"
BEARER = ("authorization", f"Bearer {SECRET}")
JSON = ("content-type", "application/json")
HOST = ("host", "localhost:8787")
QUEUE = path_to("queues", "mail")


def site(value: str) -> tuple[str, str]:
    return ("sec-fetch-site", value)


def origin(value: str) -> tuple[str, str]:
    return ("origin", value)


def everyone(request: object) -> User:
    return User("ann", "admin")


async def patched(headers: Headers, *, body: Any = b'{"paused": true}', auth: Any = None, **scope: Any) -> Reply:
    """Pause a queue of a console, which is unknown; so 404 shows that the request was let through."""
    console = Console(Tenure("memory://"), auth=auth)
    parts = [body] if isinstance(body, bytes) else body
    return await call(console, QUEUE, method="PATCH", headers=headers, body=parts, **scope)


# ── origin ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "headers",
    [
        [site("same-origin")],
        [site("same-origin"), origin("http://localhost:8787")],
        [origin("http://localhost:8787")],
        [origin("HTTP://LOCALHOST:8787")],
        # A page of another site can neither add such a header nor read an answer.
        [BEARER],
        [BEARER, site("same-origin"), origin("https://evil.example")],
    ],
)
async def test_a_page_of_the_console_or_a_token_may_act(headers: Headers) -> None:
    assert (await patched([HOST, JSON, *headers])).problem == "unknown-queue"


async def test_a_token_may_act_from_a_page_of_another_site() -> None:
    # Its owner has given it to that page; a browser does not send it by itself.
    headers = [HOST, JSON, BEARER, site("cross-site"), origin("https://pages.example")]

    assert (await patched(headers, auth=Tokens(f"ann:admin:{SECRET}"))).problem == "unknown-queue"


@pytest.mark.parametrize(
    ("headers", "pointer"),
    [
        ([], "/header/origin"),
        ([site("same-site")], "/header/sec-fetch-site"),
        ([site("cross-site")], "/header/sec-fetch-site"),
        ([site("none")], "/header/sec-fetch-site"),
        ([site("")], "/header/sec-fetch-site"),
        ([site("cross-site"), origin("http://localhost:8787")], "/header/sec-fetch-site"),
        ([site("same-origin"), site("cross-site")], "/header/sec-fetch-site"),
        ([origin("null")], "/header/origin"),
        ([origin("")], "/header/origin"),
        ([origin("http://localhost")], "/header/origin"),
        ([origin("http://localhost:8788")], "/header/origin"),
        ([origin("http://localhost:8787.evil.example")], "/header/origin"),
        ([origin("http://localhost:8787@evil.example")], "/header/origin"),
        ([origin("http://localhost:8787/x")], "/header/origin"),
        ([origin("https://evil.example"), origin("http://localhost:8787")], "/header/origin"),
        ([("authorization", "Basic YTpi")], "/header/origin"),
        ([("authorization", "Bearer ")], "/header/origin"),
        ([("cookie", "session=1"), origin("https://evil.example")], "/header/origin"),
    ],
)
async def test_a_page_of_another_site_cannot_act(headers: Headers, pointer: str) -> None:
    reply = await patched([HOST, JSON, *headers], auth=everyone)

    assert (reply.status, reply.problem) == (403, "cross-site")
    assert [part["pointer"] for part in reply.json["errors"]] == [pointer]
    assert "Authorization: Bearer TOKEN" in reply.json["remedy"]


@pytest.mark.parametrize(
    ("host", "value", "allowed"),
    [
        ("queue.example", "https://queue.example", True),
        ("queue.example", "http://queue.example", True),
        ("queue.example", "https://queue.example:443", True),
        ("queue.example:443", "https://queue.example", True),
        ("queue.example:8443", "https://queue.example:8443", True),
        ("queue.example", "https://queue.example:8443", False),
        ("queue.example:80", "https://queue.example", False),
        ("[::1]:8787", "http://[::1]:8787", True),
        ("", "http://", False),
    ],
)
async def test_an_origin_is_compared_with_the_host(host: str, value: str, allowed: bool) -> None:
    headers = [("host", host), JSON, origin(value)]
    reply = await patched(headers, auth=everyone)

    assert reply.problem == ("unknown-queue" if allowed else "cross-site")


async def test_a_read_needs_no_origin() -> None:
    assert (await call(Console(Tenure("memory://")), path_to("meta"))).status == 200


async def test_without_authentication_the_host_is_still_checked() -> None:
    rebound = [("host", "evil.example"), origin("http://evil.example"), JSON]

    assert (await patched(rebound)).problem == "local-only"
    assert (await patched([HOST, BEARER, JSON], client=("10.0.0.1", 5))).problem == "local-only"


async def test_no_act_is_allowed_to_a_form_or_a_preflight() -> None:
    form = [HOST, origin("http://localhost:8787"), ("content-type", "text/plain")]

    assert (await patched(form)).problem == "not-json"

    preflight = await call(
        Console(Tenure("memory://")),
        QUEUE,
        method="OPTIONS",
        headers=[HOST, origin("https://evil.example"), ("access-control-request-method", "PATCH")],
    )
    assert preflight.status == 405
    assert not any(name.startswith("access-control") for name, _ in preflight.headers)


# ── a read-only console ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_read_only_console_does_nothing(shop: Shop, read_only: bool) -> None:
    names = {"queue": "mail", "id": shop.jobs["sent"], "task": "charge", "worker": "web-3", "schedule": "hourly"}
    names["webhook"] = "alerts"
    async with served(shop.app, read_only=read_only) as port:
        for route in ACTS:
            path = path_to(*(names.get(part.strip("{}"), part) for part in route.parts))
            reply = await get(port, path, headers=act_headers(port), method=route.method, body=b'{"nothing": 1}')
            meta = (await get(port, path_to("meta"))).json

            assert reply.problem == ("read-only" if read_only else "unknown-field"), path
            assert meta["read_only"] is read_only
            assert "acts" in meta["features"]


async def test_without_authentication_this_machine_may_act(shop: Shop) -> None:
    reply = await shop.act(QUEUE, {"paused": True}, method="PATCH")

    assert (reply.status, reply.json["paused"]) == (200, True)


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("types", "allowed"),
    [
        (["application/json"], True),
        (["Application/JSON; charset=utf-8"], True),
        ([], False),
        ([""], False),
        (["text/json"], False),
        (["application/x-www-form-urlencoded"], False),
        (["application/json-patch+json"], False),
        (["application/json", "text/plain"], False),
    ],
)
async def test_a_body_must_be_declared_as_json(types: list[str], allowed: bool) -> None:
    reply = await patched([HOST, BEARER, *(("content-type", value) for value in types)])

    assert reply.problem == ("unknown-queue" if allowed else "not-json")
    assert allowed or (reply.status, reply.json["errors"][0]["pointer"]) == (415, "/header/content-type")


@pytest.mark.parametrize(
    ("raw", "position", "says"),
    [
        (b'{"paused" true}', 11, "expected ':'"),
        (b'{"paused": tru}', 16, "invalid"),
        (b'{"paused":', 11, "truncated"),
        (b"{} {}", 5, "trailing characters"),
        ('{"\u00fc": nan}'.encode(), 11, "invalid"),
        (b'{"a": "\xff"}', 8, "not UTF-8"),
        (b"[" * 100_000, None, "truncated|too deep"),
        (b'{"a": ' * 5_000 + b"1" + b"}" * 5_000, None, "too deep|unknown"),
        (b"1" * 5_000, None, "out of range"),
        (b'"\\ud800"', None, "truncated|surrogate"),
    ],
)
async def test_a_body_that_is_not_json_names_the_position(raw: bytes, position: int | None, says: str) -> None:
    with pytest.raises(ProblemError, match=says) as caught:
        body_of(raw, QueuePatch)
    problem = caught.value.problem

    assert problem.type.endswith(("invalid-json", "unknown-field", "invalid-body"))
    if position is not None:
        assert (problem.status, problem.errors[0].position) == (400, position)


@pytest.mark.parametrize(
    ("body", "name", "pointers", "says"),
    [
        ([], "invalid-body", ["/body"], "an array, not an object"),
        (None, "invalid-body", ["/body"], "null"),
        (True, "invalid-body", ["/body"], "true or false"),
        (1, "invalid-body", ["/body"], "a number"),
        ("x", "invalid-body", ["/body"], "a text"),
        ({}, "invalid-body", [], "changes nothing"),
        ({"reason": "x"}, "invalid-body", [], "changes nothing"),
        ({"pause": True}, "unknown-field", ["/body/pause"], "did you mean 'paused'?"),
        ({"a/b~": 1, "paused": 1}, "unknown-field", ["/body/a~1b~0", "/body/paused"], "use lift, paused, rate"),
        ({"paused": "yes"}, "invalid-body", ["/body/paused"], "expected bool"),
        ({"paused": None}, "invalid-body", ["/body/paused"], "got null"),
        ({"rate": "often"}, "invalid-body", ["/body/rate"], "is not a rate"),
        ({"rate": 5}, "invalid-body", ["/body/rate"], "100/m"),
        ({"rate": {"every": 0}}, "invalid-body", ["/body/rate"], "Rate.per"),
        ({"rate": {"every": 1, "brst": 2}}, "invalid-body", ["/body/rate"], "unknown field brst"),
        ({"rate": {"every": 1, "burst": "x"}}, "invalid-body", ["/body/rate/burst"], "expected int"),
        ({"stall": {"lease": "1x"}}, "invalid-body", ["/body/stall"], "lease = '1x' is not a duration"),
        ({"stall": {"max_stalls": -1}}, "invalid-body", ["/body/stall"], "Stall.max_count"),
        ({"retention": {"failed": {"age": -1}}}, "invalid-body", ["/body/retention"], "Keep.age"),
        ({"retention": {"failed": {}}}, "invalid-body", ["/body/retention/failed"], "missing required field age"),
        ({"record": ["startd"]}, "invalid-body", ["/body/record/0"], "invalid enum value"),
        ({"lift": ""}, "invalid-body", ["/body/lift"], "must be a text"),
        ({"reason": "x" * 501, "paused": True}, "invalid-body", ["/body/reason"], "length <= 500"),
    ],
)
async def test_a_field_that_is_wrong_is_named(
    shop: Shop, body: object, name: str, pointers: list[str], says: str
) -> None:
    reply = await shop.act(QUEUE, body, method="PATCH") if body is not None else await shop_null(shop)

    assert (reply.status, reply.problem) == (422, name), reply.json
    assert [part["pointer"] for part in reply.json.get("errors", [])] == pointers
    assert says in json.dumps(reply.json, ensure_ascii=False)
    assert (await shop.get(QUEUE)).json["paused"] is False


async def shop_null(shop: Shop) -> Reply:
    return await get(shop.port, QUEUE, headers=act_headers(shop.port), method="PATCH", body=b"null")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"ended": "2026-01-01T00:00:00"}, "/body/ended"),
        ({"ended": 5}, "/body/ended"),
        ({"ended": "yesterday"}, "/body/ended"),
        ({"ended": False}, "/body/ended"),
    ],
)
async def test_a_guard_must_be_an_instant_or_null(shop: Shop, body: object, pointer: str) -> None:
    reply = await shop.act(path_to("jobs", "mail", shop.jobs["failed"], "redrive"), body)

    assert (reply.status, reply.problem) == (422, "invalid-body")
    assert [part["pointer"] for part in reply.json["errors"]] == [pointer]


@pytest.mark.parametrize(
    ("verb", "body", "says"),
    [
        ("reschedule", {}, "give delay, priority or both"),
        ("reschedule", {"delay": -1}, "delay"),
        ("reschedule", {"priority": 501}, "must be 500 or less"),
        ("reschedule", {"priority": 2**70}, "priority"),
        ("retain", {}, "the field ttl is missing"),
        ("retain", {"ttl": 0}, "ttl"),
        ("retain", {"ttl": "1e9d"}, "ttl"),
        ("redrive", {"delay": "x"}, "delay"),
    ],
)
async def test_a_number_out_of_range_is_named(shop: Shop, verb: str, body: object, says: str) -> None:
    reply = await shop.act(path_to("jobs", "mail", shop.jobs["delayed"], verb), body)

    assert reply.problem == "invalid-body"
    assert says in json.dumps(reply.json)


async def test_an_empty_body_is_an_empty_object() -> None:
    assert body_of(b"", JobBody) == body_of(b" \n", JobBody) == body_of(b"{}", JobBody) == JobBody()


async def test_a_body_may_arrive_in_parts_up_to_its_limit() -> None:
    parts = [b'{"paused"', b"", b": true", b" " * (SMALL_BODY - 16), b"}"]

    assert (await patched([HOST, BEARER, JSON], body=parts)).problem == "unknown-queue"

    too_large = await patched([HOST, BEARER, JSON], body=[*parts, b" "])
    declared = await patched([HOST, BEARER, JSON, ("content-length", "99999999999999999999999")], body=[])

    assert (too_large.status, too_large.problem) == (413, "body-too-large")
    assert declared.problem == "body-too-large"
    assert "more than 65,536 bytes" in declared.json["detail"]


async def test_a_call_may_have_a_larger_body_than_other_acts(shop: Shop) -> None:
    async def enqueue(size: int) -> Reply:
        body = {"task": "mail.send", "arguments": {"to": "x" * size}}
        return await shop.act(path_to("jobs"), body)

    assert (await enqueue(900_000)).json["action"] == "created"
    assert (await enqueue(CALL_BODY)).problem == "body-too-large"


async def test_a_client_that_leaves_gets_no_act_done() -> None:
    app = Tenure("memory://")
    parts = [b'{"paused": true', b"}"]
    console = Console(app, auth=everyone)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return (
            {"type": "http.request", "body": parts[0], "more_body": True} if not sent else {"type": "http.disconnect"}
        )

    async def once() -> dict[str, Any]:
        found = await receive()
        sent.append(found)
        return found

    async def send(message: Any) -> None: ...

    headers = [(name.encode(), value.encode()) for name, value in [HOST, *act_headers()]]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": path_to("jobs"), "headers": headers}
    await console({**scope, "query_string": b"", "client": ("127.0.0.1", 5)}, once, send)

    assert [message["type"] for message in sent] == ["http.request", "http.disconnect"]
    assert (await app.storage.acts(ActsQuery())).acts == ()


async def test_a_body_that_does_not_arrive_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsafe, "BODY_WITHIN", 0.01)
    console = Console(Tenure("memory://"), auth=Tokens(f"ann:admin:{SECRET}"))
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(name.encode(), value.encode()) for name, value in [HOST, BEARER, JSON]]
    scope: dict[str, Any] = {"type": "http", "method": "PATCH", "path": QUEUE, "headers": headers}
    await console({**scope, "query_string": b"", "client": ("127.0.0.1", 5)}, receive, send)

    assert sent[0]["status"] == 408
    assert b"slow-body" in sent[1]["body"]


async def test_an_act_takes_no_query_parameters(shop: Shop) -> None:
    reply = await shop.act(f"{QUEUE}?paused=true", {"paused": True}, method="PATCH")

    assert reply.problem == "unknown-parameter"


def test_each_body_is_a_struct_without_other_fields() -> None:
    for route in ACTS:
        assert route.method in ("POST", "PATCH", "DELETE")
        assert route.body is not None
        assert issubclass(route.body, Struct)
        assert route.body.__struct_config__.forbid_unknown_fields
        assert "reason" in route.body.__struct_fields__
