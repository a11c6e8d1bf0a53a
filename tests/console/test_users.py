"""Who may read: roles, tokens, proxies, narrowed users, and the rule for a console without authentication."""

from collections.abc import Awaitable
from pathlib import Path
from typing import Any, cast

import pytest

from tenure import Tenure, UsageError
from tenure.clock import SECOND
from tenure.console import Auth, Console, ConsoleRequest, ProxyAuth, Role, Token, Tokens, User
from tenure.console.api import AdminAPI
from tenure.console.table import TABLE
from tenure.console.users import ADDRESSES_KEPT, ROLES, WRONG_TOKENS, WrongTokens
from tenure.core.internal import OPS_QUEUE
from tenure.core.job import Owner, RateKey
from tenure.ops.access import StorageAccess
from tenure.options import Timing
from tenure.storage.protocol import RenewRequest, Settings, Target, WorkerInfo
from tenure.testing.clock import ManualClock
from tests.console.conftest import HOLDER, Shop, served
from tests.console.site import Headers, Reply, get, path_to
from tests.console.site import call as call_app

SECRETS = {role: f"{role}-0123456789abcdef" for role in ROLES}
META = path_to("meta")
HOST = ("host", "localhost:8787")


def tokens(**options: Any) -> Tokens:
    return Tokens(*(f"{role}er:{role}:{secret}" for role, secret in SECRETS.items()), **options)


def bearer(secret: str) -> Headers:
    return [("authorization", f"Bearer {secret}")]


async def status(console: Console, headers: Headers = (), client: tuple[str, int] | None = ("127.0.0.1", 5)) -> int:
    return (await call_app(console, META, headers=headers, client=client)).status


# ── roles ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.thorough
@pytest.mark.parametrize("role", ROLES)
async def test_each_route_is_open_to_its_role_and_the_roles_above(shop: Shop, role: Role) -> None:
    names = {"queue": "mail", "task": "charge", "id": shop.jobs["sent"], "worker": HOLDER.id, "schedule": "hourly"}
    clock = ManualClock()
    async with served(shop.app, auth=tokens(clock=clock)) as port:
        for route in TABLE.routes:
            # There are more routes than wrong tokens that an address may send within a minute.
            clock.advance(60)
            path = path_to(
                *({**names, "fault": "0" * 12, "webhook": "alerts"}.get(part.strip("{}"), part) for part in route.parts)
            )
            # A stream would not end.
            method = "HEAD" if route.stream else route.method

            async def ask(headers: Headers, path: str = path, method: str = method) -> Reply:
                # The field is unknown, so an act that is allowed does nothing.
                sent = [*headers, ("content-type", "application/json")]
                return await get(port, path, headers=sent, method=method, body=b'{"nothing": 1}')

            reply = await ask(bearer(SECRETS[role]))
            allowed = ROLES.index(role) >= ROLES.index(route.role)

            assert (reply.status == 403) == (not allowed), path
            assert route.method == "GET" or reply.problem == ("unknown-field" if allowed else "forbidden"), path
            assert (await ask([])).status == 401
            assert (await ask(bearer("wrong" * 4))).status == 401


def test_roles_and_users_are_checked() -> None:
    with pytest.raises(UsageError, match="role = 'root' is unknown; use one of 'read', 'operate', 'admin'"):
        User("ann", "root")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is a single text, not several"):
        User("ann", queues="mail")
    with pytest.raises(UsageError, match=r"auth = .* must be one or more functions"):
        Console(Tenure("memory://"), auth=[])
    with pytest.raises(UsageError, match="auth = 'ann:read' must be"):
        Console(Tenure("memory://"), auth=cast(Any, "ann:read"))
    with pytest.raises(UsageError, match="app = 'memory://' must be a Tenure"):
        Console(cast(Any, "memory://"))
    with pytest.raises(UsageError, match="payloads = 'none' is unknown"):
        Console(Tenure("memory://"), payloads=cast(Any, "none"))


# ── tokens ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (bearer(SECRETS["read"]), 200),
        ([("authorization", f"bearer   {SECRETS['read']} ")], 200),
        ([], 401),
        (bearer(""), 401),
        (bearer(SECRETS["read"] + "x"), 401),
        (bearer(SECRETS["read"][:-1]), 401),
        (bearer(f"reader:read:{SECRETS['read']}"), 401),
        # A browser would send basic credentials by itself, also from pages of other sites.
        ([("authorization", "Basic cmVhZGVyOnJlYWQtMDEyMzQ1Njc4OWFiY2RlZg==")], 401),
        ([*bearer(SECRETS["read"]), *bearer(SECRETS["read"])], 401),
        (bearer("\xff\xfe"), 401),
    ],
)
async def test_only_the_secret_as_a_bearer_token_is_believed(headers: Headers, expected: int) -> None:
    assert await status(Console(Tenure("memory://"), auth=tokens()), headers) == expected


def test_tokens_keep_no_secret_and_show_none() -> None:
    kept: list[Token] = vars(tokens())["_tokens"]

    assert len(kept) == len(SECRETS)
    assert not any(secret in repr(vars(token)) for token in kept for secret in SECRETS.values())
    with pytest.raises(UsageError) as short:
        Tokens("ann:read:hunter2hunter2")
    with pytest.raises(UsageError) as odd:
        Tokens("ann:reed:hunter2hunter2hunter2")
    assert "hunter2" not in f"{short.value} {odd.value}"
    assert "at least 16 visible ASCII characters" in str(short.value)
    assert "token 1 is not NAME:ROLE:SECRET; ROLE is one of read, operate, admin" in str(odd.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no token"),
        ("# a comment\n\n", "has no token"),
        ("ann:read:0123456789abcdef\nbob:admin\n", "line 2 is not NAME:ROLE:SECRET"),
        ("ann:read:0123456789abcdef\nbob:admin:0123456789abcdef\n", "two tokens have the same secret"),
    ],
)
def test_a_token_file_that_is_invalid_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "tokens").write_text(text)

    with pytest.raises(UsageError, match=message):
        Tokens.from_file(tmp_path / "tokens")
    with pytest.raises(UsageError, match="cannot be read"):
        Tokens.from_file(tmp_path / "none")


async def test_a_token_file_may_have_comments_and_colons_in_secrets(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("# people\nann:admin:0123456789:abcdef\n\n  bob:read:fedcba9876543210  \n")
    console = Console(Tenure("memory://"), auth=Tokens.from_file(tmp_path / "tokens"))

    for secret, name in (("0123456789:abcdef", "ann"), ("fedcba9876543210", "bob")):
        assert (await call_app(console, META, headers=bearer(secret))).json["user"]["name"] == name


async def test_an_address_with_many_wrong_tokens_waits_for_a_minute() -> None:
    clock = ManualClock()
    console = Console(Tenure("memory://"), auth=tokens(clock=clock))
    right, wrong = bearer(SECRETS["read"]), bearer("wrong-0123456789")
    for _ in range(WRONG_TOKENS):
        assert await status(console, wrong) == 401
        clock.advance(1)

    # Otherwise the answer to a right guess would show it.
    assert await status(console, right) == 429
    assert await status(console, right, ("127.0.0.2", 5)) == 200
    assert (await call_app(console, META, headers=wrong)).header("retry-after") == "41"

    clock.advance(40.5)

    assert await status(console, right) == 200
    assert await status(console, wrong) == 401


def test_the_addresses_of_wrong_tokens_take_bounded_memory() -> None:
    counts = WrongTokens(ManualClock())
    for number in range(2 * ADDRESSES_KEPT):
        counts.count(f"10.0.{number // 250}.{number % 250}")
    for number in range(100):
        counts.count(f"2001:db8::{number:x}")

    kept = vars(counts)["_counts"]

    assert len(kept) == ADDRESSES_KEPT
    assert kept["2001:db8::/64"][1] == 100


# ── proxies and functions ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("headers", "client", "expected"),
    [
        ([("x-forwarded-user", "ann")], "10.0.0.5", 200),
        ([("x-forwarded-user", "ann")], "::ffff:10.0.0.5", 200),
        ([("x-forwarded-user", "ann")], "10.1.0.5", 401),
        ([("x-forwarded-user", "ann")], "127.0.0.1", 401),
        ([("x-forwarded-user", "ann")], None, 401),
        ([("x-forwarded-user", "")], "10.0.0.5", 401),
        ([], "10.0.0.5", 401),
        ([("x-forwarded-user", "ann"), ("x-forwarded-user", "bob")], "10.0.0.5", 401),
    ],
)
async def test_a_user_header_is_believed_from_its_proxy_only(
    headers: Headers, client: str | None, expected: int
) -> None:
    console = Console(Tenure("memory://"), auth=ProxyAuth(peers=["10.0.0.0/24"]))

    assert await status(console, [HOST, *headers], client and (client, 5)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("evil.example:8787", 403),
        ("queue.example.com.evil.example", 403),
        ("localhost.evil.example", 403),
        ("", 403),
        ("[::1", 403),
        ("Queue.Example.com:443", 200),
        ("queue.example.com", 200),
        ("localhost:8787", 200),
        ("10.0.0.9:8787", 200),
        ("[fd00::9]:8787", 200),
    ],
)
async def test_a_proxy_must_pass_on_a_known_host(host: str, expected: int) -> None:
    """A page on the web can use a browser on the proxy's machine, after its name was made to lead to the console."""
    console = Console(Tenure("memory://"), auth=ProxyAuth(peers=["10.0.0.0/24"], hosts=["queue.example.com"]))
    headers = [("host", host), ("x-forwarded-user", "ann")]
    reply = await call_app(console, META, headers=headers, client=("10.0.0.5", 5))

    assert reply.status == expected
    if expected != 200:
        assert reply.problem == "unknown-host"
        assert [part["pointer"] for part in reply.json["errors"]] == ["/header/host"]


async def test_a_proxy_on_a_unix_socket_may_pass_on_any_host() -> None:
    console = Console(Tenure("memory://"), auth=ProxyAuth(peers=["unix"]))
    headers = [("host", "queue.example.com"), ("x-forwarded-user", "ann")]

    assert (await call_app(console, META, headers=headers, client=None)).status == 200


@pytest.mark.parametrize("scheme", ["Basic cmVhZGVyOg==", "Bearer of-the-proxy-itself"])
async def test_credentials_for_a_proxy_do_not_use_up_the_attempts(scheme: str) -> None:
    console = Console(Tenure("memory://"), auth=[tokens(), ProxyAuth(peers=["127.0.0.1"])])
    for _ in range(WRONG_TOKENS + 2):
        assert await status(console, [HOST, ("x-forwarded-user", "ann"), ("authorization", scheme)]) == 200


async def test_a_name_of_a_proxy_that_is_too_long_is_refused() -> None:
    console = Console(Tenure("memory://"), auth=ProxyAuth(peers=["127.0.0.1"]))
    reply = await call_app(console, META, headers=[HOST, ("x-forwarded-user", "a" * 2000)])

    assert reply.problem == "invalid-parameter"
    assert [part["pointer"] for part in reply.json["errors"]] == ["/header/x-forwarded-user"]


async def test_a_proxy_gives_each_user_a_role() -> None:
    auth = ProxyAuth("Remote-User", peers=["unix"], role=None, roles={"ann": "admin", "bob": "read"})
    console = Console(Tenure("memory://"), auth=[tokens(), auth])
    roles = {
        name: (await call_app(console, META, headers=[("remote-user", name)], client=None)).json.get("user")
        for name in ("ann", "bob", "eve")
    }

    assert roles["ann"] == {"name": "ann", "role": "admin", "queues": None}
    assert roles["bob"]["role"] == "read"
    assert roles["eve"] is None
    assert await status(console, bearer(SECRETS["read"])) == 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"peers": []}, "peers is empty"),
        ({"peers": "10.0.0.1"}, "is a single text"),
        ({"peers": ["10.0.0.1/8"]}, "peers = '10.0.0.1/8' is not a network: .* has host bits set"),
        ({"peers": ["proxy"]}, "is not a network"),
        ({"peers": ["10.0.0.1"], "user": "a b"}, "is not the name of a header"),
        ({"peers": ["10.0.0.1"], "roles": {"ann": "root"}}, "role = 'root' is unknown"),
        ({"peers": ["10.0.0.1"], "hosts": ["https://queue.example.com"]}, "is not the name of a host"),
        ({"peers": ["10.0.0.1"], "hosts": "queue.example.com"}, "is a single text"),
    ],
)
def test_an_invalid_proxy_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ProxyAuth(**options)


async def test_a_function_names_the_user_of_a_request() -> None:
    async def by_header(request: ConsoleRequest) -> User | None:
        return User("ann", "operate") if request.header("x-key") == "open" else None

    def of_ann(request: ConsoleRequest) -> User | Awaitable[User | None] | None:
        return by_header(request)

    auths: list[Auth] = [by_header, of_ann]
    for auth in auths:
        console = Console(Tenure("memory://"), auth=auth)

        assert await status(console, [("x-key", "open")]) == 200
        assert await status(console, [("x-key", "closed")]) == 401


async def test_a_function_that_returns_no_user_fails_the_request() -> None:
    def name(request: ConsoleRequest) -> Any:
        return "ann"

    assert await status(Console(Tenure("memory://"), auth=name)) == 500


@pytest.mark.parametrize("error", [ConnectionError("ldap://secret"), UsageError("secret"), TimeoutError("secret")])
async def test_an_error_of_a_function_is_not_shown(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: ConsoleRequest) -> User:
        raise error

    reply = await call_app(Console(Tenure("memory://"), auth=fail), META)

    assert reply.problem == "internal"
    assert b"secret" not in reply.body
    assert "secret" in caplog.text


# ── no authentication ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("client", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8787", "127.0.0.1:1", "[::1]:8787", "[::1]"])
async def test_without_authentication_this_machine_may_read(client: str, host: str) -> None:
    assert await status(Console(Tenure("memory://")), [("host", host)], (client, 5)) == 200


@pytest.mark.parametrize(
    ("headers", "client"),
    [
        ([], "127.0.0.1"),
        ([("host", "evil.example")], "127.0.0.1"),
        ([("host", "localhost.evil.example")], "127.0.0.1"),
        ([("host", "localhost:80:80")], "127.0.0.1"),
        ([("host", "evil.example"), ("host", "localhost")], "127.0.0.1"),
        ([("host", "10.0.0.1")], "127.0.0.1"),
        ([("host", "[::1")], "127.0.0.1"),
        ([("host", "localhost\n")], "127.0.0.1"),
        ([("host", "localhost")], "10.0.0.1"),
        ([("host", "localhost")], "testclient"),
        ([("host", "localhost")], None),
        *(
            ([("host", "localhost"), (name, "x")], "127.0.0.1")
            for name in (
                "forwarded",
                "via",
                "x-real-ip",
                "x-forwarded-for",
                "x-forwarded-host",
                "x-forwarded-proto",
                "X-Forwarded-Y",
            )
        ),
    ],
)
async def test_without_authentication_other_requests_are_refused(headers: Headers, client: str | None) -> None:
    reply = await call_app(Console(Tenure("memory://")), META, headers=headers, client=client and (client, 5))  # type: ignore[arg-type]

    assert reply.problem == "local-only"
    assert "--token-file" in reply.json["remedy"]


@pytest.mark.parametrize(("site", "expected"), [("same-origin", 200), ("none", 200), ("same-site", 403)])
async def test_pages_of_other_sites_cannot_make_it_read(site: str, expected: int) -> None:
    headers = [("host", "localhost"), ("sec-fetch-site", site)]

    assert await status(Console(Tenure("memory://")), headers) == expected


# ── users of some queues ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_user_of_some_queues_sees_nothing_of_others(shop: Shop) -> None:
    auth = Tokens(Token(User("payer", "admin", queues=["pay/*"]), "0123456789abcdef"))
    mail = shop.jobs["sent"]
    async with served(shop.app, auth=auth) as port:

        async def read(*names: str, query: str = "") -> Any:
            reply = await get(port, path_to(*names) + query, headers=bearer("0123456789abcdef"))
            return reply.json if reply.status == 200 else reply.problem

        assert (await read("meta"))["user"]["queues"] == ["pay/*"]
        for names in (["survey"], ["queues"]):
            assert [queue["queue"] for queue in (await read(*names))["queues"]] == ["pay/eu"]
        assert list((await read("health"))["queues"]) == ["pay/eu"]
        assert await read("doctor") == "forbidden"
        assert await read("audit") == "forbidden"
        assert await read("queues", "mail") == "unknown-queue"
        assert await read("queues", "mail", "statistics") == "unknown-queue"
        assert (await read("queues", "pay/eu"))["counts"]["active"] == 1
        assert {row["queue"] for row in (await read("jobs"))["jobs"]} == {"pay/eu"}
        assert (await read("jobs", query="?filter=queue:mail"))["jobs"] == []
        assert (await read("jobs", query=f"?filter=id:{mail}"))["jobs"] == []
        for part in ([], ["why"], ["runs"], ["log"], ["events"]):
            assert await read("jobs", "mail", mail, *part) == "unknown-job"
        assert {event.get("queue") for event in (await read("events"))["events"]} <= {"pay/eu"}
        assert (await read("events", query="?queue=mail"))["events"] == []
        assert [worker["name"] for worker in (await read("workers"))["workers"]] == ["web-3"]
        assert (await read("schedules"))["schedules"] == []
        assert await read("schedules", "hourly") == "unknown-schedule"
        assert [task["name"] for task in (await read("tasks"))["tasks"]] == ["charge"]
        assert await read("tasks", "mail.send") == "unknown-task"
        assert (await read("dead", "groups"))["total"] == 0
        assert (await read("dead", "groups", query="?queue=mail"))["total"] == 0


def test_no_pattern_of_a_user_matches_an_internal_queue() -> None:
    assert User("ann").sees(OPS_QUEUE)
    for pattern in ("*", "tenure.*", OPS_QUEUE):
        assert not User("ann", queues=[pattern]).sees(OPS_QUEUE)
    assert User("ann", queues=["*"]).sees("mail")


async def test_a_user_of_some_queues_sees_no_task_of_others(shop: Shop) -> None:
    user = User("payer", "admin", queues=["pay/*"])
    storage = shop.app.storage
    both = WorkerInfo(("pay/eu", "mail"), 1, 0, tasks={"charge": 1, "mail.send": 1})
    await storage.renew(RenewRequest(Owner("11bb11bb11bb11bb", "both", "host", 78), (), both))
    for task in ("mail.break", "charge"):
        await storage.tune(Target("task", task), Settings(paused=True, rate=RateKey("x", SECOND, 1)))

    async def access() -> StorageAccess:
        # As `tenure console --url`: without an app, nothing says which queue a task belongs to.
        return StorageAccess(storage, shop.app.codec.decode, Timing())

    for console in (Console(shop.app, auth=lambda _: user), AdminAPI(access, auth=lambda _: user)):
        survey = (await call_app(console, path_to("survey"))).json
        tasks = (await call_app(console, path_to("tasks"))).json["tasks"]
        # Jobs of one of these exist, in another queue.
        page = (await call_app(console, f"{path_to('jobs')}?filter=task:mail.send,mail.none")).json

        assert (survey["paused_tasks"], list(survey["task_rates"])) == (["charge"], ["charge"])
        assert [task["name"] for task in tasks] == ["charge"]
        assert page["hints"] == ["task 'mail.send' is unknown", "task 'mail.none' is unknown"]
