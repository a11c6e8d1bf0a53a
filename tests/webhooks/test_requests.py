"""What a webhook sends, to which address, and what it makes of the answer. The receivers are real servers."""

import asyncio
import ssl
from collections.abc import Sequence

import pytest

from tenure import JobFailed, Webhook
from tenure.clock import SECOND, SystemClock
from tenure.webhooks import request
from tenure.webhooks.delivery import WebhookSender, refusal_of
from tenure.webhooks.request import Answer, RequestFailedError, Resolve, Resolver
from tests.webhooks.receivers import NAME, OLD_SECRET, SECRET, Certificate, Got, answer, receiving

LOOPBACK = ("127.0.0.0/8",)


class FixedClock(SystemClock):
    """A clock that stands still."""

    def now(self) -> int:
        return 1_800_000_000 * SECOND


class Names:
    """A resolver with fixed answers, one for each question; the last is repeated."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self.answers[min(len(self.asked), len(self.answers)) - 1]


def sender_to(
    url: str,
    *,
    opened: Sequence[str] = LOOPBACK,
    resolve: Resolve | None = None,
    secret: str | None = SECRET,
    clock: SystemClock | None = None,
) -> WebhookSender:
    webhook = Webhook("pay", url, events=(JobFailed,), secret_env="PAY", allow_networks=opened)
    environ = {} if secret is None else {"PAY": secret}
    return WebhookSender(webhook, clock or SystemClock(), resolve=resolve or Resolver(), environ=environ)


async def test_a_message_arrives_with_a_signature_that_verifies() -> None:
    async with receiving() as hooks:
        sent = await sender_to(f"http://127.0.0.1:{hooks.port}/in?a=1").send("msg_1", '{"a":"ü"}')

    [got] = hooks.got
    got.verify()
    assert sent.taken
    assert (got.line, got.id, got.body) == ("POST /in?a=1 HTTP/1.1", "msg_1", '{"a":"ü"}'.encode())
    assert got.headers["content-type"] == "application/json"
    assert got.headers["host"] == f"127.0.0.1:{hooks.port}"


async def test_during_a_rotation_both_secrets_verify() -> None:
    async with receiving() as hooks:
        await sender_to(f"http://127.0.0.1:{hooks.port}/", secret=f"{SECRET} {OLD_SECRET}").send("msg_1", "{}")

    [got] = hooks.got
    got.verify(SECRET)
    got.verify(OLD_SECRET)


async def test_tls_asks_for_the_name_and_checks_its_certificate(trusted: Certificate) -> None:
    names = Names(["127.0.0.1"])
    async with receiving(tls=trusted.server_context()) as hooks:
        sent = await sender_to(f"https://{NAME}:{hooks.port}/", resolve=names).send("msg_1", "{}")

        assert sent.taken
        assert hooks.got[0].server_name == NAME
        assert hooks.got[0].headers["host"] == f"{NAME}:{hooks.port}"

        other = sender_to(f"https://other.example.com:{hooks.port}/", resolve=names)
        with pytest.raises(RequestFailedError, match=r"(?i)certificate|hostname"):
            await other.send("msg_2", "{}")

    assert len(hooks.got) == 1


async def test_a_certificate_that_is_not_trusted_is_refused(certificate: Certificate) -> None:
    async with receiving(tls=certificate.server_context()) as hooks:
        sender = sender_to(f"https://{NAME}:{hooks.port}/", resolve=Names(["127.0.0.1"]))
        with pytest.raises(RequestFailedError, match=r"(?i)certificate"):
            await sender.send("msg_1", "{}")

    assert hooks.got == []


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["8.8.8.8", "127.0.0.1"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["169.254.169.254"],
        ["fe80::1%lo"],
        [],
    ],
)
async def test_a_name_that_leads_inside_is_refused_and_not_connected(addresses: list[str]) -> None:
    async with receiving() as hooks:
        sender = sender_to(f"https://inner.example.com:{hooks.port}/", opened=(), resolve=Names(addresses))
        with pytest.raises(RequestFailedError, match=r"not a public address|has no address"):
            await sender.send("msg_1", "{}")

        assert hooks.connections == 0


async def test_localhost_is_refused_by_the_resolver_of_the_system() -> None:
    async with receiving() as hooks:
        with pytest.raises(RequestFailedError, match="not a public address"):
            await sender_to(f"https://localhost:{hooks.port}/", opened=(), resolve=Resolver()).send("msg_1", "{}")

        assert hooks.connections == 0


async def test_a_name_that_changes_after_the_check_leads_nowhere_else() -> None:
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    async with receiving() as checked, receiving(host="127.0.0.2", port=checked.port) as other:
        sender = sender_to(f"http://rebind.example.com:{checked.port}/", opened=["127.0.0.1"], resolve=names)
        assert (await sender.send("msg_1", "{}")).taken

        # The next attempt resolves and checks again.
        with pytest.raises(RequestFailedError, match=r"127\.0\.0\.2 is not in allow_networks"):
            await sender.send("msg_1", "{}")

        assert (len(checked.got), other.connections) == (1, 0)
    assert names.asked == [("rebind.example.com", checked.port)] * 2


async def test_a_second_address_is_used_if_the_first_is_unreachable() -> None:
    async with receiving() as hooks:
        names = Names(["127.0.0.9", "127.0.0.1"])
        assert (await sender_to(f"http://two.example.com:{hooks.port}/", resolve=names).send("msg_1", "{}")).taken


async def test_a_redirect_is_not_followed() -> None:
    async with receiving() as inner:
        to_inner = answer("302 Found", f"location: http://127.0.0.1:{inner.port}/secret")
        async with receiving(lambda _: to_inner) as hooks:
            sent = await sender_to(f"http://127.0.0.1:{hooks.port}/").send("msg_1", "{}")

        assert inner.connections == 0
    assert "redirects are not followed" in str(refusal_of(sent))


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as proxy, receiving() as hooks:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert (await sender_to(f"http://127.0.0.1:{hooks.port}/").send("msg_1", "{}")).taken

        assert (proxy.connections, len(hooks.got)) == (0, 1)


@pytest.mark.parametrize(
    ("reply", "status", "retry_after", "text"),
    [
        (answer("200 OK", body="fine"), 200, None, ""),
        (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + answer("202 Accepted"), 202, None, ""),
        (b"HTTP/1.0 200\r\n\r\n", 200, None, ""),
        (answer("429 Too Many Requests", "Retry-After: 17"), 429, 17.0, ""),
        (answer("503 x", "retry-after: Fri, 15 Jan 2027 08:00:30 GMT"), 503, 30.0, ""),
        (answer("503 x", "retry-after: Fri, 15 Jan 1999 08:00:30 GMT"), 503, 0.0, ""),
        (answer("503 x", "retry-after: soon"), 503, None, ""),
        (answer("410 Gone", body="no\nmore"), 410, None, "no more"),
        (
            b"HTTP/1.1 500 x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
            500,
            None,
            "abcde",
        ),
        (b"HTTP/1.1 500 x\r\ncontent-length: 99\r\n\r\npart", 500, None, "part"),
        (answer("500 x", body="no\u202etxt\x1b[0m \xa0 end"), 500, None, "no txt [0m   end"),
    ],
)
async def test_an_answer_is_read_like_this(reply: bytes, status: int, retry_after: float | None, text: str) -> None:
    async with receiving(lambda _: reply) as hooks:
        got = await sender_to(f"http://127.0.0.1:{hooks.port}/", clock=FixedClock()).send("msg_1", "{}")

    assert (got.status, got.retry_after, got.text) == (status, retry_after, text)
    assert got.taken == (status < 300)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (None, "closed before the answer"),
        (b"HTTP/1.1 200 OK\r\nx: y\r\n", "closed before the answer"),
        (b"HTTP/2 200\r\n\r\n", "not HTTP"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 20_000 + b"\r\n\r\n", "longer than 16,384 bytes"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 2_000, "longer than 16,384 bytes"),
    ],
)
async def test_an_answer_that_is_not_http_or_not_whole_is_an_error(reply: bytes | None, why: str) -> None:
    async with receiving(lambda _: reply) as hooks:
        with pytest.raises(RequestFailedError, match=why):
            await sender_to(f"http://127.0.0.1:{hooks.port}/").send("msg_1", "{}")


async def test_a_receiver_that_does_not_answer_is_left_after_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "LIMIT", 0.3)
    silent = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        await silent.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(RequestFailedError, match="did not answer within"):
            await sender_to(f"http://127.0.0.1:{port}/").send("msg_1", "{}")
        silent.set()


@pytest.mark.thorough
async def test_a_status_is_kept_if_the_time_ends_within_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "LIMIT", 2.0)
    monkeypatch.setattr(request, "BODY_LIMIT", 60.0)
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 410 Gone\r\ncontent-length: 99\r\n\r\npart")
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        sent = await sender_to(f"http://127.0.0.1:{port}/").send("msg_1", "{}")
        ended.set()

    assert (sent.status, sent.text) == (410, "part")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"-2\r\n" * 4_000, ""),
        (b"+3\r\nabc\r\n", ""),
        (b"0_3\r\nabc\r\n", ""),
        (b"0x3\r\nabc\r\n", ""),
        (b"000000003\r\nabc\r\n", ""),
        (b"3\r\nabc\r\n0\r\n\r\n3\r\ndef\r\n", "abc"),
        (b"1 ;x\r\na\r\n" * 2_000, "a" * 300),
    ],
)
async def test_a_chunked_refusal_is_read_as_far_as_it_is_valid(body: bytes, text: str) -> None:
    reply = b"HTTP/1.1 500 x\r\ntransfer-encoding: chunked\r\n\r\n" + body
    async with asyncio.timeout(5), receiving(lambda _: reply) as hooks:
        sent = await sender_to(f"http://127.0.0.1:{hooks.port}/").send("msg_1", "{}")

    assert sent.text == text


async def test_a_refusal_that_quotes_the_url_shows_no_token() -> None:
    def quoted(got: Got) -> bytes:
        return answer("404 /in/0123456789", body=f"no route {got.line}, key=abcdefgh01, see /in")

    async with receiving(quoted) as hooks:
        sent = await sender_to(f"http://127.0.0.1:{hooks.port}/in/0123456789?key=abcdefgh01").send("msg_1", "{}")

    assert (sent.reason, sent.text) == ("…", "no route POST … HTTP/1.1, …, see /in")


def test_tls_before_1_2_is_not_used() -> None:
    assert sender_to("https://example.com/").tls().minimum_version is ssl.TLSVersion.TLSv1_2


async def test_a_receiver_out_of_reach_is_named() -> None:
    async with receiving() as hooks:
        pass
    with pytest.raises(RequestFailedError, match=f"cannot connect to 127.0.0.1:{hooks.port}"):
        await sender_to(f"http://127.0.0.1:{hooks.port}/").send("msg_1", "{}")


async def test_a_name_without_an_address_is_named() -> None:
    with pytest.raises(RequestFailedError, match=r"nowhere\.invalid cannot be resolved"):
        await sender_to("https://nowhere.invalid/", opened=()).send("msg_1", "{}")


@pytest.mark.parametrize(
    ("secret", "problem"),
    [
        (None, "PAY of webhook 'pay' is not set"),
        ("", "has 0 secrets"),
        (f"{SECRET} {SECRET} {OLD_SECRET}", "has 3 secrets"),
        ("secret", "does not begin with whsec_"),
        ("whsec_!!!", "not base64"),
        ("whsec_c2hvcnQ=", "of 5 bytes"),
        (SECRET, None),
    ],
)
def test_a_process_knows_if_its_secret_is_invalid(secret: str | None, problem: str | None) -> None:
    found = sender_to("https://example.com/", secret=secret).problem()

    assert (found is None) == (problem is None)
    if problem is not None:
        assert problem in str(found)
        assert "c2hvcnQ" not in str(found)


def test_a_refusal_shows_what_the_receiver_says() -> None:
    assert refusal_of(Answer(204, "", None, "")) is None
    assert refusal_of(Answer(500, "Oh no", None, "stack")) == "the receiver answered 500 Oh no: stack"
    assert refusal_of(Answer(400, "", None, "")) == "the receiver answered 400"


def test_a_got_request_with_a_changed_body_does_not_verify() -> None:
    got = Got("", {"webhook-id": "a", "webhook-timestamp": "1", "webhook-signature": "v1,x"}, b"{}")

    with pytest.raises(Exception, match=r"(?i)timestamp|signature"):
        got.verify()
