"""Plans of the SQL statements: a claim reads the jobs that it takes, although the planner has no statistics."""

import time
from typing import Any

import psycopg
import pytest

from tenure.core.lease import Lease
from tenure.storage.postgres.address import read
from tenure.storage.postgres.storage import PostgresStorage
from tenure.storage.protocol import ClaimRequest
from tests.storage.helpers import job, owner

pytestmark = pytest.mark.postgres

WAITING, CLAIMED = 60_000, 50
"""With 20,000 jobs the planner used the right index even without our settings; with 60,000 it sorted all of them."""

PROGRAM = "test_postgres_plans"
"""The name of the storage's connections: other tests' connections to the same server may stay open."""


def rows_read(shell: psycopg.Connection[tuple[Any, ...]]) -> int:
    """Return how many rows all index scans of unfinished jobs have read. Server processes report when they end."""
    deadline = time.monotonic() + 30
    ours = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
    while shell.execute(ours, [PROGRAM]).fetchone() is not None:
        assert time.monotonic() < deadline, "a connection of the storage is still open"
        time.sleep(0.01)
    reads = "SELECT sum(pg_stat_get_tuples_returned(indexrelid))::bigint FROM pg_index WHERE indrelid = to_regclass(%s)"
    row = shell.execute(reads, ["job_live"]).fetchone()
    assert row is not None
    return int(row[0])


async def claim(url: str, count: int) -> tuple[Lease, ...]:
    storage = PostgresStorage(read(url))
    answer = await storage.exchange(owner(), order=ClaimRequest(("q",), count))
    await storage.close()
    return answer.leases


async def test_a_claim_does_not_read_all_waiting_jobs(postgres_url: str) -> None:
    server, _, schema = postgres_url.partition("?schema=")
    url = f"{postgres_url}&application_name={PROGRAM}"
    storage = PostgresStorage(read(url))
    await storage.open()
    with psycopg.connect(server, autocommit=True) as shell:
        shell.execute(f"SET search_path = {schema}".encode())
        shell.execute("ALTER TABLE job_live SET (autovacuum_enabled = off)")
        for first in range(0, WAITING, 1_000):
            await storage.enqueue([job(str(number)) for number in range(first, first + 1_000)])
        await storage.close()
        before = rows_read(shell)
        leases = await claim(url, CLAIMED)

        assert len(leases) == CLAIMED
        assert rows_read(shell) - before < 10 * CLAIMED
