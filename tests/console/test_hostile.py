"""Hostile input: names, paths, values of users, raw bytes on the socket; and what must not leave the process."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure import Tenure
from tenure.console import Console, User
from tenure.console.redaction import DEEPEST, REDACTED, Redactor
from tenure.ops.audit import audited
from tenure.ops.task_schemas import JSONSchema
from tests.console.conftest import Shop, served
from tests.console.site import call, get, path_to

pytestmark = pytest.mark.thorough

NAMES = [
    "a/b",
    "../../etc",
    "a b",
    "<script>alert(1)</script>",
    "ü?#%2F",
    "a\nb",
    "'; DROP TABLE jobs; --",
    "\u202e",
    ".",
]


class OddCodec:
    """A codec whose values are not JSON."""

    def __init__(self) -> None:
        self.value: Any = {}

    def encode(self, value: Any, /) -> bytes:
        return b"odd"

    def decode(self, data: bytes, /) -> Any:
        return self.value


class Rude:
    """An object that does not even have a text."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Whole(int): ...


class Real(float): ...


class Text(str): ...


class Instant(datetime): ...


class Account(msgspec.Struct):
    """A record of a user, as a codec may return."""

    name: str
    password: str


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("name", NAMES)
async def test_any_name_can_be_read_by_its_path(name: str) -> None:
    async with Tenure("memory://") as app:

        @app.task(name=name, queue=name)
        async def work() -> None: ...

        job = await work.options(id=name, tags=[name]).enqueue()
        async with served(app) as port:
            assert (await get(port, path_to("queues", name))).json["queue"] == name
            assert (await get(port, path_to("tasks", name))).json["name"] == name
            assert (await get(port, path_to("jobs", name, job.id))).json["id"] == name
            quoted = '"{}"'.format(name.replace("\\", "\\\\").replace('"', '\\"'))
            for field in ("queue", "task", "tag", "id"):
                query = path_to(f"{field}:{quoted}").rpartition("/")[2]
                rows = (await get(port, f"{path_to('jobs')}?filter={query}")).json["jobs"]

                assert [row["id"] for row in rows] == [name]


@pytest.mark.parametrize(
    "value",
    [
        "\ud800 lone",
        {"key \udfff": "\0"},
        {("a", 1): 2, 3: 4},
        float("nan"),
        [float("inf")],
        2**70,
        object(),
        Rude(),
        {1, 2},
        b"bytes",
        nested(10_000),
        {"a": Rude()},
        10**5_000,
        # Codecs may return subclasses, as numpy has them.
        [Whole(1), Real(1.5), Text("a"), Text("ü"), {Text("b"): True}],
        Instant(2026, 1, 1, tzinfo=UTC),
        Account("ann", "hunter2"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_any_value_of_a_codec_becomes_json(value: Any) -> None:
    codec = OddCodec()
    async with Tenure("memory://", codec=codec) as app:

        @app.task(name="work")
        async def work() -> None: ...

        job = await work.enqueue()
        codec.value = value
        reply = await call(Console(app, redact=["x"]), path_to("jobs", "default", job.id))

        assert reply.status == 200
        assert "arguments" in json.loads(reply.body)


async def test_large_integers_are_written_as_they_are() -> None:
    async with Tenure("memory://") as app:

        @app.task(name="work")
        async def work(number: int) -> None: ...

        job = await work.enqueue(2**60 + 1)
        reply = await call(Console(app), path_to("jobs", "default", job.id))

        assert f'"number":{2**60 + 1}'.encode() in reply.body


RAW = st.binary(max_size=60)


@settings(max_examples=150, deadline=None)
@given(path=RAW, query=RAW, headers=st.lists(st.tuples(RAW, RAW), max_size=3), root=st.sampled_from(["", "/a", "/api"]))
def test_any_bytes_of_a_request_get_an_answer_below_500(
    path: bytes, query: bytes, headers: list[tuple[bytes, bytes]], root: str
) -> None:
    async def ask() -> int:
        async with Tenure("memory://") as app:
            return (
                await call(
                    Console(app, auth=lambda request: None if request.header("x") else User("ann")),
                    "/",
                    raw_path=b"/api/v1/" + path,
                    query_string=query,
                    headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers],
                    root_path=root,
                )
            ).status

    assert asyncio.run(ask()) in (200, 400, 401, 403, 404)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /api/v1/meta HTTP/1.1\r\n\r\n",
        b"GET http://evil.example/api/v1/meta HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"\x16\x03\x01\x02\x00 not http\r\n\r\n",
        b"GET /api/v1/%zz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
        b"GET /api/v1/meta HTTP/1.0\r\n\r\n",
    ],
    ids=lambda request: request[:30].decode("latin-1"),
)
async def test_raw_bytes_are_refused_and_the_server_lives_on(shop: Shop, request_: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", shop.port)
    writer.write(request_)
    await writer.drain()
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()

    assert answer.startswith(b"HTTP/1.1 4"), answer[:100]
    assert (await shop.get(path_to("meta"))).status == 200


async def test_answers_forbid_other_pages_and_caches(shop: Shop) -> None:
    for path in (path_to("meta"), path_to("nowhere")):
        reply = await shop.get(path)

        assert reply.header("content-security-policy") == "default-src 'none'; frame-ancestors 'none'"
        assert reply.header("cross-origin-resource-policy") == "same-origin"
        assert reply.header("x-content-type-options") == "nosniff"
        assert reply.header("cache-control") == "no-store"
        assert reply.header("access-control-allow-origin") is None


# ── payloads and secrets ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("payloads", "shown"), [("read", "read operate admin"), ("operate", "operate admin"), ("never", "")]
)
async def test_payloads_are_shown_to_their_role_only(shop: Shop, payloads: Any, shown: str) -> None:
    for role in ("read", "operate", "admin"):
        user = User("ann", role)
        console = Console(shop.app, payloads=payloads, auth=lambda request, user=user: user)  # type: ignore[misc]
        job = (await call(console, path_to("jobs", "mail", shop.jobs["sent"]))).json

        if role in shown.split():
            assert (job["arguments"]["to"], job["result"]) == ("ann", "sent to ann")
        else:
            assert job["arguments"].keys() == job["result"].keys() == {"opaque_bytes"}


async def test_redacted_values_are_in_no_answer(shop: Shop) -> None:
    console = Console(shop.app, redact=["PassWord"])
    for job in ("sent", "failed"):
        for part in ([], ["runs"], ["log"], ["events"], ["why"]):
            reply = await call(console, path_to("jobs", "mail", shop.jobs[job], *part))

            assert reply.status == 200
            assert b"hunter2" not in reply.body, part
    async with audited(
        shop.app.storage,
        actor="ann",
        role="admin",
        via="api",
        action="jobs.cancel",
        target="mail/password=hunter2",
        filter='password:"hunter2"',
        reason="password=hunter2",
    ) as act:
        act.verdict = "failed: password: hunter2"
    for path in ("jobs", "events", "dead/groups", "survey", "audit"):
        assert b"hunter2" not in (await call(console, path_to(*path.split("/")))).body
    shown = (await call(console, path_to("jobs", "mail", shop.jobs["sent"]))).json

    assert shown["arguments"] == {"to": "ann", "password": REDACTED}
    assert shown["log"][0]["fields"]["password"] == REDACTED


def test_a_schema_keeps_its_fields_and_loses_their_redacted_values() -> None:
    def schema(field: dict[str, Any]) -> dict[str, Any]:
        return {"properties": {"password": field, "to": {"default": 1}}, "anyOf": [{"properties": {"password": field}}]}

    left = {"type": "string", "description": "see password=x"}
    whole = schema({**left, "default": "hunter2", "enum": ["hunter2"]})

    assert Redactor(["Password"]).plain({"a": JSONSchema(whole), "password": {"default": 1}}) == {
        "a": schema(left),
        "password": REDACTED,
    }


def test_records_of_users_are_redacted_as_dicts_are() -> None:
    shown = Redactor(["password", "owner"]).plain({"a": [Account("ann", "hunter2")], "owner": Account("bob", "x")})

    assert shown == {"a": [{"name": "ann", "password": REDACTED}], "owner": REDACTED}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password=hunter2", "password=[redacted]"),
        ("PASSWORD: hunter2, x", "PASSWORD: [redacted], x"),
        ("{'password': 'hun ter2', 'b': 1}", "{'password': [redacted], 'b': 1}"),
        ('{"password": "hun\\"ter2"}', '{"password": [redacted]}'),
        ("db_password = hunter2", "db_password = [redacted]"),
        ("the password is long", "the password is long"),
        ("mypassword=x", "mypassword=x"),
        ("api.key=1 apiXkey=2", "api.key=[redacted] apiXkey=2"),
    ],
)
def test_names_with_values_in_texts_are_redacted(text: str, shown: str) -> None:
    assert Redactor(["password", "api.key"]).plain(text) == shown


def test_what_is_nested_too_deep_is_left_out() -> None:
    assert json.dumps(Redactor().plain(nested(DEEPEST * 2))).count("[") == DEEPEST + 2
