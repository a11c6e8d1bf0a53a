"""Plans of the SQL statements: a claim reads the jobs that it takes, although the planner has no statistics."""

import time
from typing import Any

import psycopg
import pytest

from tenure.core.lease import Lease
from tenure.storage.postgres.address import read
from tenure.storage.postgres.storage import PostgresStorage
from tenure.storage.protocol import ClaimRequest
from tenure_testing.conformance.helpers import settled
from tests.storage.helpers import job, owner

pytestmark = pytest.mark.postgres

WAITING, CLAIMED = 60_000, 50
"""With 20,000 jobs the planner used the right index even without our settings; with 60,000 it sorted all of them."""

PROGRAM = "test_postgres_plans"
"""The name of the storage's connections: other tests' connections to the same server may stay open."""


def rows_read(shell: psycopg.Connection[tuple[Any, ...]], table: str = "job_live") -> int:
    """Return how many rows all index scans of a table have read. Server processes report when they end.

    Row versions that no transaction sees any more count, too, as long as vacuum has to keep them.
    """
    deadline = time.monotonic() + 30
    ours = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
    while shell.execute(ours, [PROGRAM]).fetchone() is not None:
        assert time.monotonic() < deadline, "a connection of the storage is still open"
        time.sleep(0.01)
    reads = "SELECT sum(pg_stat_get_tuples_returned(indexrelid))::bigint FROM pg_index WHERE indrelid = to_regclass(%s)"
    row = shell.execute(reads, [table]).fetchone()
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


ROUNDS = 30
"""How often jobs are enqueued, claimed and completed while a snapshot is held."""


async def test_under_an_old_snapshot_a_claim_reads_few_former_versions(postgres_url: str) -> None:
    server, _, schema = postgres_url.partition("?schema=")
    url = f"{postgres_url}&application_name={PROGRAM}"
    storage, worker = PostgresStorage(read(url)), owner()
    await storage.open()
    with psycopg.connect(server, autocommit=True) as shell, psycopg.connect(server) as holder:
        shell.execute(f"SET search_path = {schema}".encode())
        shell.execute("ALTER TABLE job_live SET (autovacuum_enabled = off)")
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT txid_current_snapshot()")
        for number in range(ROUNDS):
            await storage.enqueue([job(f"{number}-{offset}") for offset in range(CLAIMED)])
            claimed = await storage.exchange(worker, order=ClaimRequest(("q",), CLAIMED))
            done = await storage.exchange(worker, [settled(lease) for lease in claimed.leases])
            assert [one.verdict for one in done.verdicts] == ["done"] * CLAIMED
        await storage.enqueue([job(f"last-{offset}") for offset in range(CLAIMED)])
        await storage.close()
        before = rows_read(shell)
        leases = await claim(url, CLAIMED)

        assert len(leases) == CLAIMED
        assert rows_read(shell) - before < 10 * CLAIMED
        holder.rollback()


async def test_an_enqueue_does_not_read_the_jobs_that_ended_before(postgres_url: str) -> None:
    server, _, schema = postgres_url.partition("?schema=")
    url = f"{postgres_url}&application_name={PROGRAM}"
    storage, worker = PostgresStorage(read(url)), owner()
    await storage.open()
    with psycopg.connect(server, autocommit=True) as shell:
        shell.execute(f"SET search_path = {schema}".encode())
        shell.execute("ALTER TABLE job_ended_other SET (autovacuum_enabled = off)")
        for number in range(ROUNDS):
            await storage.enqueue([job(f"{number}-{offset}") for offset in range(CLAIMED)])
            claimed = await storage.exchange(worker, order=ClaimRequest(("q",), CLAIMED))
            await storage.exchange(worker, [settled(lease) for lease in claimed.leases])
        await storage.close()

        assert rows_read(shell, "job_ended_other") < 10 * ROUNDS * CLAIMED
