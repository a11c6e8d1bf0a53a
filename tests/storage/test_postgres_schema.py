"""The schema of a PostgreSQL: it is checked before any change, created once, and left alone if it is not ours."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

import psycopg
import pytest

from tenure.core.job import Key, NewJob, ThrottleKey, UniqueKey
from tenure.errors import SchemaMismatchError, UsageError
from tenure.storage.postgres.address import read
from tenure.storage.postgres.migration_files import SCHEMA
from tenure.storage.postgres.storage import PostgresStorage
from tenure.storage.protocol import LeaseRenewal, NewLogLine, RenewRequest
from tenure_testing.conformance.helpers import ALICE, new_job, start

pytestmark = pytest.mark.postgres


@contextmanager
def connected(url: str) -> Generator[psycopg.Connection]:
    """Return a connection whose current schema is the one of the address."""
    server, _, schema = url.partition("?schema=")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"SET search_path = {schema}".encode())
        yield connection


async def test_processes_that_start_together_create_the_schema_once(postgres_url: str) -> None:
    storages = [PostgresStorage(read(postgres_url)) for _ in range(5)]
    await asyncio.gather(*(storage.open() for storage in storages))
    for storage in storages:
        await storage.close()

    with connected(postgres_url) as connection:
        assert connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchall() == [(str(SCHEMA),)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (f"UPDATE meta SET value = '{SCHEMA + 1}' WHERE key IN ('schema_version', 'oldest')", f"schema {SCHEMA + 1}"),
        ("""INSERT INTO meta VALUES ('features', '["flows"]')""", "with flows"),
        ("DELETE FROM meta WHERE key = 'schema_version'", "has schema None"),
    ],
)
async def test_a_newer_schema_is_refused_and_left_untouched(postgres_url: str, change: str, message: str) -> None:
    first = PostgresStorage(read(postgres_url))
    await first.enqueue([new_job()])
    await first.close()
    with connected(postgres_url) as connection:
        connection.execute(change.encode())
        before = connection.execute("SELECT * FROM meta ORDER BY key").fetchall()

    storage = PostgresStorage(read(postgres_url))
    for call in (storage.open(), storage.enqueue([new_job("second")])):
        with pytest.raises(SchemaMismatchError, match=message):
            await call
    await storage.close()

    with connected(postgres_url) as connection:
        assert connection.execute("SELECT * FROM meta ORDER BY key").fetchall() == before
        assert connection.execute("SELECT id FROM job").fetchall() == [("job",)]


async def test_a_schema_of_another_program_is_refused_and_left_untouched(postgres_url: str) -> None:
    with connected(postgres_url) as connection:
        connection.execute(f"CREATE SCHEMA {read(postgres_url).schema}".encode())
        connection.execute("CREATE TABLE orders (id bigint)")
    storage = PostgresStorage(read(postgres_url))
    with pytest.raises(SchemaMismatchError, match="tables of another program"):
        await storage.open()
    await storage.close()

    with connected(postgres_url) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema").fetchall()
    assert found == [("orders",)]


async def test_without_automatic_migration_a_new_schema_is_refused(postgres_url: str) -> None:
    storage = PostgresStorage(read(postgres_url), auto_migrate=False)
    with pytest.raises(SchemaMismatchError, match=r"no schema yet.*tenure migrate"):
        await storage.open()
    await storage.close()


@pytest.mark.parametrize(
    ("job", "field"),
    [
        (new_job(queue="a\0b"), "queue"),
        (new_job("a\0b"), "id"),
        (new_job(task="a\0b"), "task"),
        (new_job(tags=("fine", "a\0b")), "tags"),
        (new_job(keys=(Key("a\0b"),)), "concurrency_key"),
        (new_job(merge=UniqueKey("a\0b")), "merge"),
        (new_job(throttle=ThrottleKey("a\0b", 1, 1)), "throttle"),
        (new_job(fair_key="a\0b"), "fair_key"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_name_with_nul_is_refused(empty_schema: str, job: NewJob, field: str) -> None:
    storage = PostgresStorage(read(empty_schema))
    with pytest.raises(UsageError, match=f"{field} = .*contains NUL"):
        await storage.enqueue([job])
    await storage.close()


async def test_free_texts_with_nul_are_kept_visibly(empty_schema: str) -> None:
    storage = PostgresStorage(read(empty_schema))
    lease = await start(storage, new_job())
    line = NewLogLine(level="info", message="a\0b", fields={"c": "d\0"})
    renewal = LeaseRenewal(lease.ref, lease.fence, progress=0.5, note="half\0", log=(line,), trace="here\0")
    await storage.renew(RenewRequest(ALICE, (renewal,)))
    (detail,) = await storage.get([lease.ref])
    await storage.close()

    assert detail is not None
    assert detail.job.progress_note == "half?"
    assert detail.runs[0].trace == "here?"
    assert [(line.message, line.fields) for line in detail.log] == [("a?b", {"c": "d\0"})]
