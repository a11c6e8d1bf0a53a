"""Transactions of users on each kind of connection, with the real libraries."""

import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

# These two have no types.
asyncpg: Any = import_module("asyncpg")
django: Any = import_module("django")
settings: Any = import_module("django.conf").settings
connections: Any = import_module("django.db").connections
atomic: Any = import_module("django.db.transaction").atomic


@dataclass
class Transaction:
    """One open transaction: the object to give as `tx`, and how to end it."""

    tx: Any
    commit: Callable[[], Awaitable[object]]
    rollback: Callable[[], Awaitable[object]]
    waits: bool


Begin = Callable[[], AbstractAsyncContextManager[Transaction]]


def _soon(do: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    async def call() -> object:
        return do()

    return call


def _of(tx: Any, *, waits: bool = False) -> Transaction:
    if waits:
        return Transaction(tx, tx.commit, tx.rollback, waits)
    return Transaction(tx, _soon(tx.commit), _soon(tx.rollback), waits)


def _parts(url: str, scheme: str = "postgresql") -> str:
    parts = urlsplit(url)
    query = "&".join(word for word in parts.query.split("&") if word and not word.startswith(("schema=", "listen=")))
    return f"{scheme}://{parts.netloc}{parts.path}" + (f"?{query}" if query else "")


@asynccontextmanager
async def psycopg_sync(url: str) -> AsyncGenerator[Begin]:
    with psycopg.connect(_parts(url)) as connection:

        @asynccontextmanager
        async def begin() -> AsyncGenerator[Transaction]:
            yield _of(connection)

        yield begin


@asynccontextmanager
async def psycopg_async(url: str) -> AsyncGenerator[Begin]:
    async with await psycopg.AsyncConnection.connect(_parts(url)) as connection:

        @asynccontextmanager
        async def begin() -> AsyncGenerator[Transaction]:
            yield _of(connection, waits=True)

        yield begin


@asynccontextmanager
async def asyncpg_pool(url: str) -> AsyncGenerator[Begin]:
    async with asyncpg.create_pool(_parts(url), min_size=1, max_size=1) as pool:

        @asynccontextmanager
        async def begin() -> AsyncGenerator[Transaction]:
            async with pool.acquire() as connection:
                transaction = connection.transaction()
                await transaction.start()
                yield Transaction(connection, transaction.commit, transaction.rollback, waits=True)

        yield begin


def _sqlalchemy(make: Callable[[str], Any], shape: Callable[[Any], Any], *, waits: bool) -> Any:
    @asynccontextmanager
    async def kind(url: str) -> AsyncGenerator[Begin]:
        engine = make(url)

        @asynccontextmanager
        async def begin() -> AsyncGenerator[Transaction]:
            if waits:
                async with shape(engine) as tx:
                    yield _of(tx, waits=True)
            else:
                with shape(engine) as tx:
                    yield _of(tx)

        yield begin
        if waits:
            await engine.dispose()
        else:
            engine.dispose()

    return kind


def _django(settings_of: Callable[[str], dict[str, Any]]) -> Any:
    @asynccontextmanager
    async def kind(url: str) -> AsyncGenerator[Begin]:
        if not settings.configured:
            settings.configure(DATABASES={}, USE_TZ=True)
            django.setup()
        connections.databases["queue"] = settings_of(url)
        connection = connections["queue"]

        @asynccontextmanager
        async def begin() -> AsyncGenerator[Transaction]:
            block = atomic(using="queue")
            block.__enter__()

            def commit() -> None:
                block.__exit__(None, None, None)

            def rollback() -> None:
                connection.set_rollback(True)
                commit()

            yield Transaction(connection, _soon(commit), _soon(rollback), waits=False)

        yield begin
        connection.close()
        del connections["queue"], connections.databases["queue"]

    return kind


def _django_settings(**given: Any) -> dict[str, Any]:
    return {
        "NAME": "",
        "USER": "",
        "PASSWORD": "",
        "HOST": "",
        "PORT": "",
        "OPTIONS": {},
        "TIME_ZONE": None,
        "CONN_MAX_AGE": 0,
        "CONN_HEALTH_CHECKS": False,
        "AUTOCOMMIT": True,
        "ATOMIC_REQUESTS": False,
        "TEST": {},
        **given,
    }


def _django_postgres(url: str) -> dict[str, Any]:
    info = conninfo_to_dict(_parts(url))
    names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    given = {names[key]: str(info[key]) for key in info if key in names}
    return _django_settings(ENGINE="django.db.backends.postgresql", **given)


def _django_sqlite(url: str) -> dict[str, Any]:
    return _django_settings(ENGINE="django.db.backends.sqlite3", NAME=url.removeprefix("sqlite:///"))


@asynccontextmanager
async def sqlite_module(url: str) -> AsyncGenerator[Begin]:
    connection = sqlite3.connect(Path(url.removeprefix("sqlite:///")))

    @asynccontextmanager
    async def begin() -> AsyncGenerator[Transaction]:
        yield _of(connection)

    yield begin
    connection.close()


def _alchemy_psycopg(url: str) -> Any:
    return create_engine(_parts(url, "postgresql+psycopg"))


def _alchemy_asyncpg(url: str) -> Any:
    return create_async_engine(_parts(url, "postgresql+asyncpg"))


def _alchemy_psycopg_async(url: str) -> Any:
    return create_async_engine(_parts(url, "postgresql+psycopg"))


def _alchemy_sqlite(url: str) -> Any:
    return create_engine(url)


def _alchemy_aiosqlite(url: str) -> Any:
    return create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))


def _connect(engine: Any) -> Any:
    return engine.connect()


KINDS: dict[str, tuple[str, Any]] = {
    "psycopg": ("postgresql", psycopg_sync),
    "psycopg-async": ("postgresql", psycopg_async),
    "asyncpg": ("postgresql", asyncpg_pool),
    "session-psycopg": ("postgresql", _sqlalchemy(_alchemy_psycopg, Session, waits=False)),
    "connection-psycopg": ("postgresql", _sqlalchemy(_alchemy_psycopg, _connect, waits=False)),
    "async-session-asyncpg": ("postgresql", _sqlalchemy(_alchemy_asyncpg, AsyncSession, waits=True)),
    "async-connection-psycopg": ("postgresql", _sqlalchemy(_alchemy_psycopg_async, _connect, waits=True)),
    "django-postgresql": ("postgresql", _django(_django_postgres)),
    "sqlite3": ("sqlite", sqlite_module),
    "session-sqlite": ("sqlite", _sqlalchemy(_alchemy_sqlite, Session, waits=False)),
    "connection-sqlite": ("sqlite", _sqlalchemy(_alchemy_sqlite, _connect, waits=False)),
    "async-session-aiosqlite": ("sqlite", _sqlalchemy(_alchemy_aiosqlite, AsyncSession, waits=True)),
    "django-sqlite": ("sqlite", _django(_django_sqlite)),
}
"""Each kind of connection: the database, and how to open one."""


@asynccontextmanager
async def autocommitting(kind: str, url: str) -> AsyncGenerator[Any]:
    """Yield a connection of a kind that commits each statement."""
    match kind:
        case "psycopg":
            with psycopg.connect(_parts(url), autocommit=True) as connection:
                yield connection
        case "psycopg-async":
            async with await psycopg.AsyncConnection.connect(_parts(url), autocommit=True) as opened:
                yield opened
        case "asyncpg":
            bare = await asyncpg.connect(_parts(url))
            yield bare
            await bare.close()
        case "sqlite3":
            file = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
            yield file
            file.close()
        case "django-postgresql" | "django-sqlite":
            async with KINDS[kind][1](url):
                yield connections["queue"]
        case _:
            makers: dict[str, tuple[Callable[[str], Any], Callable[[Any], Any]]] = {
                "session-psycopg": (_alchemy_psycopg, Session),
                "connection-psycopg": (_alchemy_psycopg, _connect),
                "async-session-asyncpg": (_alchemy_asyncpg, AsyncSession),
                "async-connection-psycopg": (_alchemy_psycopg_async, _connect),
                "session-sqlite": (_alchemy_sqlite, Session),
                "connection-sqlite": (_alchemy_sqlite, _connect),
                "async-session-aiosqlite": (_alchemy_aiosqlite, AsyncSession),
            }
            make, shape = makers[kind]
            engine = make(url)
            bound = shape(engine.execution_options(isolation_level="AUTOCOMMIT"))
            if "async" in kind:
                async with bound as tx:
                    yield tx
                await engine.dispose()
            else:
                with bound as tx:
                    yield tx
                engine.dispose()
