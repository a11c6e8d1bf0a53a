"""Creates a storage from its URL; imports a driver only if the URL needs it."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

from tenure.clock import Clock
from tenure.core.check import shown
from tenure.errors import UsageError
from tenure.storage.postgres import address as postgres
from tenure.storage.protocol import Storage
from tenure.storage.redis import address as redis
from tenure.storage.secrets import shown_of

KNOWN = (
    'use "sqlite:///tenure.db" (a file, four slashes for an absolute path), "redis://localhost:6379/0" (also '
    'rediss://, valkey://, redis+sentinel://, redis+cluster://), "postgresql://localhost/app" or "memory://" (tests)'
)


@dataclass(frozen=True)
class StorageURL:
    """A parsed URL: the storage, the file path, and the durability of a write."""

    url: str
    scheme: Literal["memory", "sqlite"]
    path: str = ""
    durability: Literal["full", "fast"] = "full"


def locate(url: str, *, clock: Clock | None = None, auto_migrate: bool = True) -> Storage:
    """Return the storage at a URL, not yet opened.

    Raises:
        UsageError: the URL is invalid, or names an unknown storage or option.
    """
    address = read(url)
    if isinstance(address, redis.RedisAddress):
        if find_spec("redis") is None:
            raise UsageError(f"{address.shown} needs redis-py, which is not installed: pip install 'tenure[redis]'")
        from tenure.storage.redis.storage import RedisStorage

        return RedisStorage(address, clock=clock)
    if isinstance(address, postgres.PostgresAddress):
        if find_spec("psycopg") is None:
            raise UsageError(f"{address.shown} needs psycopg, which is not installed: pip install 'tenure[postgres]'")
        from tenure.storage.postgres.storage import PostgresStorage

        return PostgresStorage(address, clock=clock, auto_migrate=auto_migrate)
    match address.scheme:
        case "memory":
            from tenure.storage.memory.storage import MemoryStorage

            return MemoryStorage(clock=clock)
        case "sqlite":
            from tenure.storage.sqlite.storage import SQLiteStorage

            return SQLiteStorage(address.path, clock=clock, auto_migrate=auto_migrate, durability=address.durability)


def read(url: object) -> StorageURL | redis.RedisAddress | postgres.PostgresAddress:
    """Parse a URL without importing a driver or opening a connection.

    Raises:
        UsageError: the URL is invalid, or names an unknown storage or option.
    """
    if not isinstance(url, str):
        raise UsageError(f"storage URL {shown(url)} is not a string; {KNOWN}")
    # Even an invalid URL may contain a password.
    shown_url = shown_of(url)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"storage URL {shown_url!r} cannot be read ({error}); {KNOWN}") from None
    if parts.scheme in redis.SCHEMES:
        return redis.read(url)
    if parts.scheme in postgres.SCHEMES:
        return postgres.read(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    match parts.scheme:
        case "memory":
            address = StorageURL(url, "memory")
        case "sqlite":
            path = url.split("?", 1)[0].removeprefix("sqlite:")
            if not path.startswith("///") or path[3:] in ("", ":memory:"):
                raise UsageError(f"storage URL {shown_url!r} names no file; {KNOWN}")
            durability = options.pop("durability", "full")
            if durability not in ("full", "fast"):
                raise UsageError(f'storage URL {url!r}: durability is {durability!r}; use "full" or "fast"')
            address = StorageURL(url, "sqlite", path[3:], "fast" if durability == "fast" else "full")
        case _:
            raise UsageError(f"storage URL {shown_url!r} is not supported; {KNOWN}")
    if options:
        raise UsageError(f"storage URL {url!r} has the unknown option {next(iter(options))!r}; leave it out")
    return address
