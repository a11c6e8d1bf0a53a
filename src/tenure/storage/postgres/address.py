"""Parses the storage URL of a PostgreSQL: the server, the login, and the schema in which the jobs are stored.

postgresql://[user[:password]@][host[:5432],...]/[database][?schema=tenure&listen=on&listen_url=...]

`schema`: the namespace. `listen`: "off" if the server cannot pass on notifications, as PgBouncer in transaction mode.
`listen_url`: another address for these, which leads past PgBouncer. All other options are libpq's.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from tenure.errors import UsageError
from tenure.storage.secrets import shown_of

SCHEMES = frozenset({"postgresql", "postgres"})

SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
"""The names of schemas that need no quotes, except for names that PostgreSQL reserves."""

_RESERVED = ("pg_", "information_schema")

_LIBPQ = frozenset(
    (
        *("application_name", "channel_binding", "connect_timeout", "dbname", "gssencmode", "host", "hostaddr"),
        *("keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval", "krbsrvname", "options"),
        *("load_balance_hosts", "passfile", "password", "port", "requirepeer", "require_auth", "service", "sslcert"),
        *("sslcrl", "sslkey", "sslmode", "sslnegotiation", "sslpassword", "sslrootcert", "target_session_attrs"),
        *("tcp_user_timeout", "user"),
    )
)
"""The options of a connection that libpq knows."""


@dataclass(frozen=True)
class PostgresAddress:
    """A parsed storage URL. `url`: as it was given. `shown`: without passwords, for messages.

    `server` and `listener`: addresses for libpq. `listener` is None if there are no notifications.
    """

    url: str
    shown: str
    server: str
    listener: str | None
    schema: str = "tenure"

    def __repr__(self) -> str:
        return f"PostgresAddress({self.shown!r})"

    @property
    def gate(self) -> int:
        """The key of the advisory lock that each writing transaction takes."""
        return _number("gate", self.schema)

    @property
    def migration_lock(self) -> int:
        """The key of the advisory lock under which the schema is changed."""
        return _number("migration", self.schema)

    @property
    def channel(self) -> str:
        """The channel of the notifications."""
        return f"tenure_{_number('channel', self.schema) & (1 << 64) - 1:016x}"


def read(url: str) -> PostgresAddress:
    """Parse a URL of one of the SCHEMES.

    Raises:
        UsageError: the URL is malformed, or has an unknown option or a bad value.
    """
    shown = shown_of(url)
    parts = urlsplit(url)
    if parts.fragment or "@" in parts.path:
        raise _bad(shown, 'is torn at a "/", "?" or "#"; write these in a password as %2F, %3F and %23')
    for host in parts.netloc.rpartition("@")[2].split(","):
        port = host.rpartition("]")[2].rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""
        if port and not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65536):
            raise _bad(shown, f"has the port {port!r}; use a whole number from 1 to 65,535")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema = options.pop("schema", "tenure")
    if not SCHEMA.fullmatch(schema) or schema.startswith(_RESERVED):
        raise _bad(
            shown,
            f"has schema={schema!r}; use up to 63 small letters, digits and underscores, with a letter first, and not "
            "a name that begins with pg_",
        )
    listen = options.pop("listen", "on")
    if listen not in ("on", "off"):
        raise _bad(shown, f'has listen={listen!r}; use "on" or "off"')
    listener = options.pop("listen_url", "")
    if listener and urlsplit(listener).scheme not in SCHEMES:
        raise _bad(shown, "has a listen_url that is not a postgresql:// URL; quote it (%3A, %2F, %3F, %26)")
    unknown = next((name for name in options if name not in _LIBPQ), None)
    if unknown is not None:
        raise _bad(
            shown, f"has the unknown option {unknown!r}; here may be schema, listen, listen_url, and those of libpq"
        )
    if "," in parts.netloc:
        # Of several servers, the one that takes writes.
        options.setdefault("target_session_attrs", "read-write")
    server = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(options, quote_via=quote), ""))
    return PostgresAddress(url, shown, server, None if listen == "off" else listener or server, schema)


def _number(kind: str, schema: str) -> int:
    digest = blake2b(f"tenure {kind} {schema}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def _bad(shown: str, why: str) -> UsageError:
    return UsageError(f"storage URL {shown!r} {why}")
