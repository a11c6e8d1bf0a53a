"""Parses the storage URL of a Redis or Valkey: the servers, the login, and where the jobs are stored.

redis://[user:password@]host[:6379][/db]                    one server; rediss:// uses TLS; valkey[s]:// is the same
unix:///path/to/socket[?db=0]                               one server on this machine
redis+sentinel://[user:password@]host[:26379],.../name[/db] the master that Sentinels name
redis+cluster://[user:password@]host[:6379],...             a Cluster, reached through any of these nodes
"""

from dataclasses import dataclass
from typing import Literal, TypeGuard
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from tenure.errors import UsageError
from tenure.storage.secrets import shown_of

Kind = Literal["server", "sentinel", "cluster"]
Durability = Literal["ack", "replicated"]

SCHEMES = frozenset(
    {"unix"}
    | {name + tls + way for name in ("redis", "valkey") for tls in ("", "s") for way in ("", "+sentinel", "+cluster")}
)

PARTITIONS = 16
"""Number of hash slots over which the queues of a Cluster are spread, unless the address says otherwise."""

MOST_PARTITIONS = 1024

_PORTS: dict[Kind, int] = {"server": 6379, "sentinel": 26379, "cluster": 6379}


@dataclass(frozen=True)
class ServerAddress:
    """Where one server listens: a host and port, or the path of a socket (then the port is 0)."""

    host: str
    port: int

    def __str__(self) -> str:
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Login:
    """User name and password; the repr never shows them."""

    username: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"Login({'set' if self.password else 'none'})"


@dataclass(frozen=True)
class Tls:
    """How to check a server's certificate, and the client certificate to present."""

    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    verify: bool = True
    check_hostname: bool = True


@dataclass(frozen=True)
class RedisAddress:
    """A parsed storage URL. `url`: as it was given. `shown`: without passwords, for messages."""

    url: str
    shown: str
    kind: Kind
    places: tuple[ServerAddress, ...]
    service: str = ""
    db: int = 0
    login: Login = Login()
    sentinel_login: Login = Login()
    tls: Tls | None = None
    namespace: str = "tenure"
    durability: Durability = "ack"
    partitions: int = 1
    allow_unchecked: bool = False

    def __repr__(self) -> str:
        return f"RedisAddress({self.shown!r})"

    @property
    def bases(self) -> tuple[str, ...]:
        """The prefix of each partition's keys: the hash tag that keeps a partition on one node."""
        if self.kind != "cluster":
            return ("{" + self.namespace + "}",)
        return tuple("{" + f"{self.namespace}:{partition}" + "}" for partition in range(self.partitions))


def read(url: str) -> RedisAddress:
    """Parse a URL of one of the SCHEMES.

    Raises:
        UsageError: the URL is malformed, or has an unknown option or a bad value.
    """
    parts = urlsplit(url)
    secret = _authority(parts.netloc)
    shown = shown_of(url)
    scheme, _, way = parts.scheme.partition("+")
    kind: Kind = "server" if not way else "sentinel" if way == "sentinel" else "cluster"
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.fragment or _is_torn(parts, kind):
        raise _bad(shown, 'is torn at a "/", "?" or "#"; write these in a password as %2F, %3F and %23')
    service, db = "", "0"
    if scheme == "unix":
        if parts.netloc or len(parts.path) < 2:
            raise _bad(shown, "names no socket; use unix:///path/to/redis.sock")
        places: tuple[ServerAddress, ...] = (ServerAddress(unquote(parts.path), 0),)
        db = options.pop("db", "0")
    else:
        places = _places(secret.hosts, _PORTS[kind], shown, many=kind != "server")
        path = [unquote(step) for step in parts.path.split("/")[1:]]
        if path and not path[-1]:
            path.pop()
        if kind == "sentinel":
            if not path or not path[0]:
                raise _bad(shown, "names no service; add the master's name after the hosts, as in .../mymaster/0")
            service = path.pop(0)
        if len(path) > 1 or (path and kind == "cluster" and path != ["0"]):
            more = "a Cluster has no databases" if kind == "cluster" else "one number is the database"
            raise _bad(shown, f"has the path {parts.path!r}; {more}")
        db = options.pop("db", "") or (path[0] if path else "0")
    address = RedisAddress(
        url,
        shown,
        kind,
        places,
        service,
        _number(db, "db", shown, 0, 1 << 16),
        Login(
            options.pop("username", "") or secret.username or None,
            options.pop("password", "") or secret.password or None,
        ),
        Login(options.pop("sentinel_username", "") or None, options.pop("sentinel_password", "") or None)
        if kind == "sentinel"
        else Login(),
        _tls(options, shown) if scheme.endswith("s") and scheme != "redis" else None,
        _namespace(options.pop("namespace", "tenure"), shown),
        _durability(options.pop("durability", "ack"), shown),
        _number(options.pop("partitions", str(PARTITIONS)), "partitions", shown, 1, MOST_PARTITIONS)
        if kind == "cluster"
        else 1,
        _flag(options.pop("allow_unchecked", "0"), "allow_unchecked", shown),
    )
    if options:
        known = ", ".join(_known(kind, tls=scheme.endswith("s") and scheme != "redis"))
        raise _bad(shown, f"has the unknown option {next(iter(options))!r}; here may be {known}")
    if kind == "cluster" and address.db:
        raise _bad(shown, "names a database; a Cluster has none but 0")
    return address


@dataclass(frozen=True)
class _Authority:
    hosts: str
    username: str
    password: str


def instead(address: RedisAddress, kind: Kind, place: ServerAddress) -> str:
    """Return the correct URL, without passwords, for a server of another kind than the address says."""
    parts = urlsplit(address.shown)
    scheme = parts.scheme.partition("+")[0]
    user, at, _ = parts.netloc.rpartition("@")
    fitting = _known(kind, tls=address.tls is not None)
    kept = [pair for pair in parts.query.split("&") if pair.partition("=")[0] in fitting]
    way, path = {"server": ("", ""), "sentinel": ("+sentinel", "/NAME"), "cluster": ("+cluster", "")}[kind]
    return f"{scheme}{way}://{user}{at}{place}{path}{'?' * bool(kept)}{'&'.join(kept)}"


def _is_torn(parts: SplitResult, kind: Kind) -> bool:
    """Return True if there is an "@" after the hosts, which means an unescaped delimiter in a password."""
    known = _known(kind, tls=True)
    others = [pair for pair in parts.query.split("&") if pair.partition("=")[0] not in known]
    return parts.scheme != "unix" and any("@" in part for part in (parts.path, *others))


def _known(kind: Kind, *, tls: bool) -> list[str]:
    """Return the options that an address of this kind can have."""
    return [
        *("namespace", "durability", "allow_unchecked", "db", "username", "password"),
        *(("sentinel_username", "sentinel_password") if kind == "sentinel" else ()),
        *(("partitions",) if kind == "cluster" else ()),
        *(("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname") if tls else ()),
    ]


def _authority(netloc: str) -> _Authority:
    user, _, hosts = netloc.rpartition("@")
    name, _, password = user.partition(":")
    return _Authority(hosts, unquote(name), unquote(password))


def _places(hosts: str, port: int, shown: str, *, many: bool) -> tuple[ServerAddress, ...]:
    found: list[ServerAddress] = []
    for entry in hosts.split(","):
        host, at = entry, ""
        if entry.startswith("["):
            host, _, at = entry[1:].partition("]")
            at = at.removeprefix(":")
        elif ":" in entry:
            host, _, at = entry.rpartition(":")
        if not host and (many or at):
            raise _bad(shown, "has a host without a name")
        found.append(ServerAddress(unquote(host) or "localhost", _number(at, "port", shown, 1, 65535) if at else port))
    if len(found) > 1 and not many:
        raise _bad(shown, "names several hosts; say redis+cluster:// or redis+sentinel:// for those")
    return tuple(found)


def _tls(options: dict[str, str], shown: str) -> Tls:
    verify = options.pop("ssl_cert_reqs", "required")
    if verify not in ("required", "none"):
        raise _bad(shown, f'has ssl_cert_reqs={verify!r}; use "required" or "none"')
    return Tls(
        options.pop("ssl_ca_certs", "") or None,
        options.pop("ssl_certfile", "") or None,
        options.pop("ssl_keyfile", "") or None,
        verify == "required",
        _flag(options.pop("ssl_check_hostname", "1"), "ssl_check_hostname", shown),
    )


def _namespace(name: str, shown: str) -> str:
    if not name or len(name.encode("utf-8", "replace")) > 100 or set(name) & set("{}\0"):
        raise _bad(shown, f"has the namespace {name!r}; use 1 to 100 bytes without braces and NUL")
    return name


def _durability(text: str, shown: str) -> Durability:
    if not _is_durability(text):
        raise _bad(shown, f'has durability={text!r}; use "ack" or "replicated"')
    return text


def _is_durability(text: str) -> TypeGuard[Durability]:
    return text in ("ack", "replicated")


def _number(text: str, field: str, shown: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and least <= int(text[:10]) <= most):
        raise _bad(shown, f"has {field}={text!r}; use a whole number from {least:,} to {most:,}")
    return int(text)


def _flag(text: str, field: str, shown: str) -> bool:
    if text not in ("0", "1"):
        raise _bad(shown, f"has {field}={text!r}; use 1 or 0")
    return text == "1"


def _bad(shown: str, why: str) -> UsageError:
    return UsageError(f"storage URL {shown!r} {why}")
