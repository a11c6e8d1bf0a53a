"""Prepared statements: a direct connection has them, one through a pooler does not, and their loss fails no call."""

import psycopg
import pytest

from tenure.core.job import Ref
from tenure.storage.postgres.address import read
from tenure.storage.postgres.connection import PREPARE_AFTER, Session
from tenure.storage.postgres.statements import NAMED
from tenure.storage.postgres.storage import PostgresStorage
from tenure.storage.protocol import ClaimRequest
from tests.storage.helpers import job, owner

pytestmark = pytest.mark.postgres


def prepared(url: str) -> int:
    """Return how many statements a connection has prepared after it has sent one of them often enough."""
    address = read(url)
    session = Session(address, address.server, check=lambda connection: None)
    try:
        connection = session.use()
        for _ in range(2 * PREPARE_AFTER):
            connection.execute(NAMED["session.backend"])
        row = connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
        assert row is not None
        return int(row[0])
    finally:
        session.close()


def test_a_direct_connection_prepares_a_statement(postgres_url: str) -> None:
    assert prepared(postgres_url) == 1


def test_a_connection_through_a_pooler_prepares_none(pgbouncer_url: str) -> None:
    assert prepared(pgbouncer_url) == 0


async def enqueue_and_claim(storage: PostgresStorage, first: int) -> None:
    for number in range(first, first + 2 * PREPARE_AFTER):
        # A claim of such a job selects its whole row.
        await storage.enqueue([job(str(number), lifo=True)])
        answer = await storage.exchange(owner(), order=ClaimRequest(("q",), 1))
        assert [lease.job.id for lease in answer.leases] == [str(number)]
        [detail] = await storage.get([Ref("q", str(number))])
        assert detail is not None


async def test_a_column_that_a_migration_adds_fails_no_call(postgres_url: str) -> None:
    storage = PostgresStorage(read(postgres_url))
    await enqueue_and_claim(storage, 0)
    server, _, schema = postgres_url.partition("?schema=")
    with psycopg.connect(server, autocommit=True) as shell:
        shell.execute(f"SET search_path = {schema}".encode())
        shell.execute("ALTER TABLE job ADD COLUMN tint text")

    await enqueue_and_claim(storage, 100)
    await storage.close()
