"""Sends one HTTP request of a webhook to a vetted address, and reads the head of the answer.

    URL ──resolve──► all addresses ──each allowed?──► connect to one of them ──TLS with the name──► send ──► answer

The connection goes to an address that was checked, and the name is not resolved again: a name that changes between the
check and the connection (DNS rebinding) leads nowhere else. TLS checks the certificate against the name. Redirects are
answers like others, and proxies of the environment are not used.
"""

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from ipaddress import ip_address

from msgspec import Struct

from tenure.clock import SECOND, Clock
from tenure.threads import DaemonExecutor, NoThreadError
from tenure.webhooks.addresses import Address, Network, Receiver, first_refusal

LIMIT = 10.0
"""Seconds that one request may take, from the resolution of the name to the end of the answer."""

BODY_LIMIT = 1.0
"""Seconds, of these, that the body of a refusal may take."""

READ = 16 * 1024
"""How many bytes of an answer are read, with its interim answers (1xx)."""

TEXT_SHOWN = 300
"""How many characters of the body of a refusal are shown."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Takes a host and a port; returns its addresses."""

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: ([^\r\n]*))?")
_UNPRINTABLE = re.compile(r"\n+")
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")
_ENOUGH = 4 * TEXT_SHOWN
"""How many bytes of a body are decoded; a character takes up to four."""


class RequestFailedError(Exception):
    """A request did not reach the receiver, or no answer came. The message says why."""


class Answer(Struct, frozen=True):
    """The answer of a receiver. `retry_after`: in seconds, if it asks for a pause; `text`: the begin of its body."""

    status: int
    reason: str
    retry_after: float | None
    text: str

    @property
    def taken(self) -> bool:
        """True if the receiver has taken the message."""
        return 200 <= self.status < 300


class Resolver:
    """Resolves names in threads, because the system's resolver blocks."""

    def __init__(self) -> None:
        self._pool = DaemonExecutor("tenure-resolver")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a name.

        Raises:
            RequestFailedError: it has none, or cannot be resolved now.
        """
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._pool, _addresses, host, port)
        except (OSError, UnicodeError, NoThreadError) as error:
            raise RequestFailedError(f"the name {host} cannot be resolved: {error}") from error
        return list(dict.fromkeys(found))


def _addresses(host: str, port: int) -> list[str]:
    return [str(place[0]) for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


async def post(
    receiver: Receiver,
    headers: Mapping[str, str],
    body: bytes,
    *,
    opened: Sequence[Network],
    resolve: Resolve,
    tls: Callable[[], ssl.SSLContext],
    clock: Clock,
) -> Answer:
    """Send a POST and return the answer.

    Raises:
        RequestFailedError: an address of the name is not allowed, the receiver cannot be reached, its certificate is
            not valid for the name, or no answer came within `LIMIT` seconds.
    """
    try:
        async with asyncio.timeout(LIMIT) as limit:
            addresses = await _vetted(receiver, opened, resolve)
            async with _connected(receiver, addresses, tls) as (reader, writer):
                writer.write(_request(receiver, headers, body))
                return await _answer(reader, receiver, clock, limit)
    except TimeoutError:
        raise RequestFailedError(f"{receiver.name} did not answer within {LIMIT:g} s") from None


async def _vetted(receiver: Receiver, opened: Sequence[Network], resolve: Resolve) -> list[Address]:
    addresses = [ip_address(text) for text in await resolve(receiver.host, receiver.port)]
    why = first_refusal(addresses, receiver.scheme, opened)
    if why is not None:
        raise RequestFailedError(f"{receiver.host} is not allowed: {why}")
    if not addresses:
        raise RequestFailedError(f"the name {receiver.host} has no address")
    return addresses


@asynccontextmanager
async def _connected(
    receiver: Receiver, addresses: Sequence[Address], tls: Callable[[], ssl.SSLContext]
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to the first address that answers; each gets a fair share of half the time."""
    context = tls() if receiver.secure else None
    why: Exception | None = None
    for address in addresses:
        try:
            async with asyncio.timeout(LIMIT / 2 / len(addresses) if len(addresses) > 1 else None):
                # A literal address: nothing is resolved here.
                reader, writer = await asyncio.open_connection(
                    str(address),
                    receiver.port,
                    limit=READ,
                    ssl=context,
                    server_hostname=None if context is None else receiver.host,
                )
            break
        except TimeoutError as error:
            why = error
        except (OSError, ValueError) as error:
            # A certificate that is not valid is an OSError; ValueError: a name that TLS cannot send.
            why = error
    else:
        cause = "no connection in time" if isinstance(why, TimeoutError) else why
        raise RequestFailedError(f"cannot connect to {receiver.name}: {cause}") from why
    try:
        yield reader, writer
    finally:
        # What has been sent is in the hands of the system; a receiver that reads slowly must not keep us.
        writer.transport.abort()


def _request(receiver: Receiver, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [
        f"POST {receiver.target} HTTP/1.1",
        f"host: {receiver.name}",
        "connection: close",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "user-agent: tenure-webhooks",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


async def _answer(reader: asyncio.StreamReader, receiver: Receiver, clock: Clock, limit: asyncio.Timeout) -> Answer:
    """Read the answer. `limit`: the time of the whole request."""
    match, fields, rest, had = await _head(reader)
    reason = receiver.hides(_plain(match[2] or b""))
    answer = Answer(int(match[1]), reason, _retry_after(fields.get("retry-after"), clock), "")
    if answer.taken:
        return answer
    # The status is known, so a body that does not end in time changes nothing.
    soon, end = asyncio.get_running_loop().time() + BODY_LIMIT, limit.when()
    limit.reschedule(None)
    with contextlib.suppress(TimeoutError, RequestFailedError):
        async with asyncio.timeout_at(soon if end is None else min(soon, end)):
            while True:
                part = await _more(reader, had)
                rest, had = rest + part, had + len(part)
    text = _plain((_joined(rest) if "chunked" in fields.get("transfer-encoding", "") else rest)[:_ENOUGH])
    return Answer(answer.status, reason, answer.retry_after, receiver.hides(text)[:TEXT_SHOWN])


async def _head(reader: asyncio.StreamReader) -> tuple[re.Match[bytes], dict[str, str], bytes, int]:
    """Return the status line and the fields of the answer, what has arrived of its body, and how much was read."""
    data, had = b"", 0
    while True:
        head, found, rest = data.partition(b"\r\n\r\n")
        match = _STATUS.match(head)
        if found and match is not None and match[1].startswith(b"1"):
            # It says that more follows.
            data = rest
            continue
        if found:
            break
        part = await _more(reader, had)
        data, had = data + part, had + len(part)
    if match is None:
        raise RequestFailedError(f"the answer is not HTTP: {_plain(head[:60])!r}")
    return match, _fields(head), rest, had


async def _more(reader: asyncio.StreamReader, had: int) -> bytes:
    """Return more of an answer.

    Raises:
        RequestFailedError: it has ended, or is too long.
    """
    if had >= READ:
        raise RequestFailedError(f"the head of the answer is longer than {READ:,} bytes")
    try:
        part = await reader.read(READ - had)
    except OSError as error:
        raise RequestFailedError(f"the connection broke before the answer: {error}") from error
    if not part:
        raise RequestFailedError("the connection was closed before the answer")
    return part


def _fields(head: bytes) -> dict[str, str]:
    """Return the header fields of an answer; of a field that comes twice, the first."""
    fields: dict[str, str] = {}
    for line in head.decode("latin-1").split("\r\n")[1:]:
        name, _, value = line.partition(":")
        fields.setdefault(name.strip().lower(), value.strip())
    return fields


def _joined(body: bytes) -> bytes:
    """Return the begin of the content of a chunked body, as far as it has arrived."""
    content = b""
    while len(content) < _ENOUGH:
        size, _, body = body.partition(b"\r\n")
        digits = size.partition(b";")[0].strip()
        # `int` takes more than digits. A negative size would let a body of 16 KiB keep the loop busy for minutes.
        length = int(digits, 16) if _CHUNK_SIZE.fullmatch(digits) else 0
        if length == 0:
            break
        content, body = content + body[:length], body[length + 2 :]
    return content


def _retry_after(value: str | None, clock: Clock) -> float | None:
    """Return the seconds of a Retry-After, which holds seconds or a date; None if it is neither."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        at = parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(0.0, at - clock.now() / SECOND)


def _plain(data: bytes) -> str:
    """Return a text that a log can show on one line."""
    text = data.decode("utf-8", errors="replace")
    return _UNPRINTABLE.sub(" ", "".join(char if char.isprintable() else "\n" for char in text)).strip()
