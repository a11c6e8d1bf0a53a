"""Plans of the SQL statements: a claim reads the jobs that it takes, although the planner has no statistics."""

import time
from typing import Any

import msgspec
import psycopg
import pytest

from tenure.core.job import Ref
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.storage.postgres.address import read
from tenure.storage.postgres.storage import PostgresStorage
from tenure.storage.protocol import ClaimRequest, Query
from tenure.storage.sql.reading import SORTED_MOST
from tenure_testing.conformance.helpers import settled, sweep_all
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


POLLS = 20
"""How often workers look for jobs in a queue without any."""


async def test_under_an_old_snapshot_an_idle_queue_is_not_read_again(postgres_url: str) -> None:
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
            await storage.exchange(worker, [settled(lease) for lease in claimed.leases])
        shell.execute("UPDATE front SET began = 0")
        await sweep_all(storage)
        await storage.close()
        before = rows_read(shell)
        storage = PostgresStorage(read(url))
        for _ in range(POLLS):
            assert not (await storage.exchange(owner(), order=ClaimRequest(("q",), CLAIMED))).leases
        await storage.close()

        assert rows_read(shell) - before < ROUNDS * CLAIMED
        holder.rollback()


@pytest.mark.parametrize("state", ["waiting", "completed", "active"])
async def test_a_front_that_hides_a_job_is_lowered_after_a_minute(postgres_url: str, state: str) -> None:
    server, _, schema = postgres_url.partition("?schema=")
    storage, worker = PostgresStorage(read(postgres_url)), owner()
    await storage.open()
    with psycopg.connect(server, autocommit=True) as shell:
        shell.execute(f"SET search_path = {schema}".encode())
        await storage.enqueue([job("first"), job("second")])
        claimed = await storage.exchange(worker, order=ClaimRequest(("q",), 2 if state == "active" else 1))
        if state == "completed":
            await storage.exchange(worker, [settled(lease) for lease in claimed.leases])
        await sweep_all(storage)
        too_high = (
            "INSERT INTO front VALUES (%s, %s, %s, 0) ON CONFLICT (queue, state) DO UPDATE SET reached = %s, began = 0"
        )
        shell.execute(too_high, ["" if state == "active" else "q", state, 1 << 62, 1 << 62])
        await sweep_all(storage)
        first = {
            "waiting": "SELECT min(score) FROM job_live WHERE state = 'waiting'",
            "completed": "SELECT min(finished) FROM job WHERE state = 'completed'",
            "active": "SELECT min(started) FROM job_live WHERE state = 'active'",
        }[state]
        lowered = shell.execute(f"SELECT reached <= ({first}), began > 0 FROM front WHERE state = %s".encode(), [state])

        assert lowered.fetchall() == [(True, True)]
        await storage.close()


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


async def test_calls_that_only_a_newer_version_reads_cost_no_step(postgres_url: str) -> None:
    server, _, schema = postgres_url.partition("?schema=")
    url = f"{postgres_url}&application_name={PROGRAM}"
    storage = PostgresStorage(read(url))
    await storage.open()
    await storage.close()
    with psycopg.connect(server, autocommit=True) as shell:
        shell.execute(f"SET search_path = {schema}".encode())
        columns = "queue, id, at, job, format"
        store = f"INSERT INTO intake ({columns}) SELECT 'q', n::text, 0, %s, %s FROM generate_series(1, %s) AS n"
        shell.execute(store.encode(), [b"of a newer version", 1_000, ROUNDS * CLAIMED])
        before = rows_read(shell, "intake")
        shell.execute(store.encode(), [msgspec.msgpack.encode(job("readable")), 1, 1])
        storage, one = PostgresStorage(read(url)), owner()
        for _ in range(POLLS):
            claimed = await storage.exchange(one, order=ClaimRequest(("q",), CLAIMED))
            await storage.get([Ref("q", "a job that is not there")])
            await storage.exchange(one, [settled(lease) for lease in claimed.leases])
        await storage.close()

        assert rows_read(shell, "intake") - before < ROUNDS * CLAIMED
        found = shell.execute("SELECT DISTINCT format FROM intake").fetchall()
        assert found == [(1_000,)]


async def test_a_page_of_a_long_queue_does_not_read_all_its_jobs(postgres_url: str) -> None:
    server, _, schema = postgres_url.partition("?schema=")
    url = f"{postgres_url}&application_name={PROGRAM}"
    storage = PostgresStorage(read(url))
    await storage.open()
    with psycopg.connect(server, autocommit=True) as shell:
        shell.execute(f"SET search_path = {schema}".encode())
        shell.execute("ALTER TABLE job_live SET (autovacuum_enabled = off)")
        for first in range(0, 2 * SORTED_MOST, 1_000):
            await storage.enqueue([job(str(number)) for number in range(first, first + 1_000)])
        await storage.close()
        before = rows_read(shell)
        storage = PostgresStorage(read(url))
        page = await storage.find(Query(queues=("q",), states=(State.WAITING, State.FAILED), limit=CLAIMED))
        await storage.close()

        assert [one.id for one in page.jobs] == [str(2 * SORTED_MOST - 1 - number) for number in range(CLAIMED)]
        assert page.next is not None
        assert rows_read(shell) - before < 10 * CLAIMED
