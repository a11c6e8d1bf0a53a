"""A receiver of webhooks: a real HTTP server on this machine, with TLS if wanted, that verifies what it gets."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from standardwebhooks.webhooks import Webhook as Verifier

SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
OLD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NAME = "hooks.example.com"

OK = b"HTTP/1.1 204 No Content\r\n\r\n"


def answer(status: str, *headers: str, body: str = "") -> bytes:
    """Return an answer of a receiver."""
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, f"content-length: {len(body)}", "", body]).encode()


@dataclass
class Got:
    """A request that arrived. `server_name`: the name that TLS asked for."""

    line: str
    headers: dict[str, str]
    body: bytes
    server_name: str | None = None

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def verify(self, secret: str = SECRET) -> None:
        """Raise unless the signature is one of this secret."""
        Verifier(secret).verify(self.body, self.headers)


@dataclass
class Hooks:
    """A running receiver. `answers`: returns the answer to a request, None to close the connection without one."""

    port: int = 0
    got: list[Got] = field(default_factory=list[Got])
    answers: Callable[[Got], bytes | None] = lambda got: OK
    connections: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait_for(self, count: int) -> list[Got]:
        """Wait until this many requests have arrived."""
        while len(self.got) < count:
            self.arrived.clear()
            await self.arrived.wait()
        return self.got


@asynccontextmanager
async def receiving(
    answers: Callable[[Got], bytes | None] | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
) -> AsyncGenerator[Hooks]:
    """Run a receiver."""
    hooks = Hooks()
    if answers is not None:
        hooks.answers = answers
    names: list[str | None] = []
    if tls is not None:
        tls.sni_callback = lambda _, name, __: names.append(name)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hooks.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *fields = head.strip().split("\r\n")
            pairs = [field.partition(": ") for field in fields]
            headers = {name.lower(): value for name, _, value in pairs}
            body = await reader.readexactly(int(headers["content-length"]))
            got = Got(line, headers, body, names[-1] if names else None)
            reply = hooks.answers(got)
            hooks.got.append(got)
            hooks.arrived.set()
            if reply is not None:
                writer.write(reply)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, host, port, ssl=tls)
    async with server:
        hooks.port = server.sockets[0].getsockname()[1]
        yield hooks


@dataclass(frozen=True)
class Certificate:
    """A certificate for `NAME` that signs itself, and its key."""

    cert: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        return context


def make_certificate(folder: Path) -> Certificate:
    """Make a certificate with openssl."""
    assert shutil.which("openssl") is not None, "no openssl on the PATH makes a certificate"
    made = Certificate(folder / "server.pem", folder / "server.key")
    make = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName=DNS:{NAME}"
    subprocess.run([*make.split(), "-out", made.cert, "-keyout", made.key], check=True, capture_output=True)
    return made
