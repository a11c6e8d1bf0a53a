"""The pages of the console: static files that hold no data and ask the admin API for everything they show.

index.html is served at each path that is not of the API. The other files lie at `static/DIGEST/`, where DIGEST stands
for the content of all of them, so that a browser may keep them for ever. Every address in them is relative.
"""

import gzip
import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from urllib.parse import quote

from msgspec import Struct

from tenure.console.requests import ConsoleRequest
from tenure.http.asgi import Headers, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; font-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""The content security policy of the pages: nothing inline, nothing remote, no text that becomes code or HTML."""

_GUARDS: Headers = [
    (b"content-security-policy", POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]

_KINDS = {
    "css": b"text/css; charset=utf-8",
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
    "toml": b"text/plain; charset=utf-8",
    "txt": b"text/plain; charset=utf-8",
}

_COMMENT = re.compile(rb"^ *(?://[^\n]*|/\*(?:(?!\*/).)*\*/) *$", re.MULTILINE | re.DOTALL)
"""A comment that has its lines for itself, in a script or a style sheet."""

_INDENTATION = re.compile(rb"^ +", re.MULTILINE)

_INDEX = "index.html"
_PLACE = b'"static/@/'
"""What index.html has in place of the folder of the other files."""

_CHECK = b"no-cache"
_KEEP = b"private, max-age=31536000, immutable"


class StaticFile(Struct, frozen=True):
    """A file as it is served: `packed` is the body for a client that reads gzip."""

    kind: bytes
    body: bytes
    packed: bytes
    etag: str


class PageReply(Struct, frozen=True):
    """An answer without its guards."""

    status: int
    headers: Headers
    body: bytes


def page_reply(request: ConsoleRequest, scope: Scope) -> PageReply | None:
    """Return the answer to a request for a page or for one of its files; None if the API has to answer."""
    if request.method not in ("GET", "HEAD"):
        return None
    root = str(scope.get("root_path", "")).rstrip("/")
    if root and scope["path"] in ("", root):
        # Relative addresses need the slash. The last part of the mount point is relative, too.
        query = bytes(scope.get("query_string", b""))
        place = request.path.rpartition("/")[2] or quote(root.rpartition("/")[2])
        target = f"./{place}/".encode() + (b"?" + query if query else b"")
        return PageReply(307, [(b"location", target), (b"cache-control", _CHECK)], b"")
    if request.path and not request.path.startswith("/"):
        # The request names a whole address, as one to a proxy does.
        return None
    first, *rest = request.path.removeprefix("/").split("/")
    if first == "api":
        return None
    digest, known = static_files()
    if first != "static" or not rest:
        return _file_reply(request, _index(len(rest)), _CHECK)
    found = known.get("/".join(rest[1:]))
    if found is None:
        kind = (b"content-type", _KINDS["txt"])
        return PageReply(404, [kind, (b"cache-control", _CHECK)], b"The console has no such file.\n")
    return _file_reply(request, found, _KEEP if rest[0] == digest else _CHECK)


async def send_page(scope: Scope, send: Send, reply: PageReply) -> None:
    """Send an answer; to HEAD without its body."""
    length = [] if reply.status == 304 else [(b"content-length", str(len(reply.body)).encode())]
    await send({"type": "http.response.start", "status": reply.status, "headers": [*reply.headers, *length, *_GUARDS]})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else reply.body})


@cache
def static_files() -> tuple[str, dict[str, StaticFile]]:
    """Return the digest of all files except index.html, and these files by name."""
    found = {name: _static_file(name, body) for name, body in _read(files("tenure.console").joinpath("static"))}
    del found[_INDEX]
    whole = "\n".join(f"{name} {file.etag}" for name, file in sorted(found.items()))
    return hashlib.sha256(whole.encode()).hexdigest()[:16], found


@cache
def _index_template() -> bytes:
    return files("tenure.console").joinpath("static", _INDEX).read_bytes()


def _index(depth: int) -> StaticFile:
    """Return index.html for a path that is this many folders below the mount point."""
    place = f'"{"../" * depth}static/{static_files()[0]}/'
    return _static_file(_INDEX, _index_template().replace(_PLACE, place.encode()))


def _read(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _read(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in _KINDS:
            yield prefix + entry.name, _trimmed(prefix + entry.name, entry.read_bytes())


def _trimmed(name: str, body: bytes) -> bytes:
    """Return a script or style sheet of ours without comments and indentation. Each line keeps its number."""
    if name.startswith("vendor/") or not name.endswith((".js", ".css")):
        return body
    return _INDENTATION.sub(b"", _COMMENT.sub(lambda found: b"\n" * found[0].count(b"\n"), body))


def _static_file(name: str, body: bytes) -> StaticFile:
    # The tag is weak: it is that of the content, packed or not.
    tag = f'W/"{hashlib.sha256(body).hexdigest()[:20]}"'
    return StaticFile(_KINDS[name.rpartition(".")[2]], body, gzip.compress(body, mtime=0), tag)


def _file_reply(request: ConsoleRequest, file: StaticFile, caching: bytes) -> PageReply:
    headers: Headers = [
        (b"cache-control", caching),
        (b"etag", file.etag.encode()),
        (b"vary", b"accept-encoding"),
    ]
    if file.etag in _items(request.headers("if-none-match")):
        return PageReply(304, headers, b"")
    headers.append((b"content-type", file.kind))
    accepted = {item.replace(" ", "") for item in _items(request.headers("accept-encoding"))}
    if any(item == "gzip" or (item.startswith("gzip;q=") and item[7:].strip("0.")) for item in accepted):
        return PageReply(200, [*headers, (b"content-encoding", b"gzip")], file.packed)
    return PageReply(200, headers, file.body)


def _items(values: Iterable[str]) -> list[str]:
    """Return the items of a header that is a list."""
    return [item.strip() for value in values for item in value.split(",")]
