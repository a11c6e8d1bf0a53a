"""PostgreSQL at its limits: no connection or space is free, or transactions conflict. Nothing is lost or done twice."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg
import pytest

from tenure.core.job import NewJob, Ref
from tenure.core.lifecycle import State
from tenure.errors import StorageFullError, StorageUnavailableError
from tenure.storage.postgres.address import read
from tenure.storage.postgres.storage import PostgresStorage
from tenure.storage.protocol import ClaimRequest, Query
from tenure_testing.chaos.storage import fill, mount, unmount
from tenure_testing.conformance.helpers import ALICE, QUEUE, new_job, new_jobs, settled
from tenure_testing.postgres_programs import give_to_server
from tests.postgres_servers import PgBouncer, PostgresServer
from tests.servers import until

pytestmark = pytest.mark.postgres

StartPostgres = Callable[..., PostgresServer]
StartPgBouncer = Callable[..., PgBouncer]


def occupy(url: str, into: ExitStack) -> int:
    """Use every free connection until `into` ends; return how many there were."""
    taken = 0
    with suppress(psycopg.OperationalError):
        while True:
            into.enter_context(psycopg.connect(url, autocommit=True, connect_timeout=5))
            taken += 1
    return taken


async def test_without_a_free_connection_calls_fail_in_time(start_postgres: StartPostgres) -> None:
    server = start_postgres(max_connections=12)
    storage = PostgresStorage(read(server.url))
    with ExitStack() as taken:
        assert occupy(server.url, taken)
        with pytest.raises(StorageUnavailableError, match=r"connection slots are reserved.*raise its max_connections"):
            await storage.enqueue([new_job("first")])
    await storage.close()


async def test_a_call_that_waits_for_a_connection_succeeds_when_one_is_free(start_postgres: StartPostgres) -> None:
    server = start_postgres(max_connections=12)
    storage = PostgresStorage(read(server.url))
    await storage.enqueue([new_job("first")])
    await storage.close()
    await storage.open()
    with ExitStack() as taken:
        # Its reader has a connection. A writer opens one when it is first used.
        occupy(server.url, taken)
        write = asyncio.ensure_future(storage.enqueue([new_job("second")]))
        await asyncio.wait({write}, timeout=0.5)
        waited = not write.done()
    await write

    assert waited
    assert {job.id for job in (await storage.find(Query())).jobs} == {"first", "second"}
    await storage.close()


async def test_many_processes_share_one_connection_of_pgbouncer(
    postgres_server: PostgresServer, start_pgbouncer: StartPgBouncer
) -> None:
    pgbouncer = start_pgbouncer(postgres_server.url, default_pool_size=1)
    storages = [PostgresStorage(read(f"{pgbouncer.url}?listen=off")) for _ in range(6)]
    await asyncio.gather(*(storage.enqueue([new_job(f"job-{n}")]) for n, storage in enumerate(storages)))
    found = await asyncio.gather(*(storage.get([Ref(QUEUE, f"job-{n}")]) for n, storage in enumerate(storages)))
    backends = postgres_server.execute("SELECT count(*) FROM pg_stat_activity WHERE usename = 'tenure'")
    for storage in storages:
        await storage.close()

    assert all(detail is not None for [detail] in found)
    assert backends == [(1,)]


async def test_a_pgbouncer_without_room_for_clients_is_reported(
    postgres_server: PostgresServer, start_pgbouncer: StartPgBouncer
) -> None:
    pgbouncer = start_pgbouncer(postgres_server.url, max_client_conn=6)
    storage = PostgresStorage(read(f"{pgbouncer.url}?listen=off"))
    with ExitStack() as taken:
        assert occupy(pgbouncer.url, taken)
        with pytest.raises(StorageUnavailableError, match="no more connections allowed"):
            await storage.enqueue([new_job("first")])
    await storage.enqueue([new_job("second")])

    assert {job.id for job in (await storage.find(Query())).jobs} == {"second"}
    await storage.close()


async def enqueue_big_jobs(storage: PostgresStorage, stored: list[NewJob]) -> None:
    """Enqueue big jobs until the disk is full; add them to those that are stored."""
    for number in range(100):
        big = new_job(f"big-{number}", payload=b"x" * 100_000)
        await storage.enqueue([big])
        stored.append(big)


async def test_a_full_disk_refuses_jobs_and_keeps_those_it_has(postgres_server: PostgresServer) -> None:
    folder = postgres_server.folder / "small"
    folder.mkdir()
    mounted = await mount(folder)
    try:
        if not mounted:
            pytest.skip("only root may mount a small disk")
        give_to_server(folder)
        postgres_server.execute(f"CREATE TABLESPACE small OWNER tenure LOCATION '{folder}'")
        postgres_server.execute("ALTER DATABASE tenure SET default_tablespace = small")
        storage = PostgresStorage(read(postgres_server.url))
        stored = new_jobs(5)
        await storage.enqueue(stored)
        [lease] = (await storage.exchange(ALICE, (), ClaimRequest((QUEUE,), 1))).leases
        await asyncio.to_thread(fill, Path(folder, "filler"))
        with pytest.raises(StorageFullError, match="is full; nothing was written"):
            await enqueue_big_jobs(storage, stored)
        # The server still answers, and the run continues.
        [detail] = await storage.get([lease.ref])
        (folder / "filler").unlink()
        late = new_job("late", payload=b"x" * 100_000)
        await storage.enqueue([late])
        answer = await storage.exchange(ALICE, [settled(lease)])
        jobs = (await storage.find(Query(limit=500))).jobs
        await storage.close()
    finally:
        if mounted:
            postgres_server.stop("immediate")
            await unmount(folder)

    assert detail is not None
    assert detail.job.state is State.ACTIVE
    assert [one.verdict for one in answer.verdicts] == ["done"]
    assert {job.id for job in jobs} == {job.id for job in [*stored, late]}


CONFLICT = """
CREATE SEQUENCE {schema}.conflicts;
CREATE FUNCTION {schema}.conflict() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- A sequence also counts what is rolled back.
    IF nextval('{schema}.conflicts') <= 3 THEN
        RAISE EXCEPTION 'injected' USING ERRCODE = '{state}';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER conflict AFTER INSERT ON {schema}.event {when}
    FOR EACH ROW EXECUTE FUNCTION {schema}.conflict();
"""


@pytest.mark.parametrize("when", ["NOT DEFERRABLE", "DEFERRABLE INITIALLY DEFERRED"], ids=["statement", "commit"])
@pytest.mark.parametrize("state", ["40001", "40P01"], ids=["serialization", "deadlock"])
async def test_a_transaction_that_conflicts_with_others_is_repeated(postgres_url: str, state: str, when: str) -> None:
    storage = PostgresStorage(read(postgres_url))
    await storage.enqueue(new_jobs(3))
    leases = (await storage.exchange(ALICE, (), ClaimRequest((QUEUE,), 3))).leases
    schema = read(postgres_url).schema
    with psycopg.connect(postgres_url.partition("?")[0], autocommit=True) as connection:
        connection.execute(CONFLICT.format(schema=schema, state=state, when=when).encode())
        answer = await storage.exchange(ALICE, [settled(lease) for lease in leases])
        [(tries,)] = connection.execute(f"SELECT last_value FROM {schema}.conflicts".encode()).fetchall()
    details = await storage.get([lease.ref for lease in leases])
    findings = await storage.examine()
    await storage.close()

    assert tries > 3
    assert [one.verdict for one in answer.verdicts] == ["done"] * 3
    assert [detail.job.starts for detail in details if detail is not None] == [1] * 3
    assert [finding for finding in findings if finding.level == "error"] == []


async def test_a_real_deadlock_is_resolved(postgres_server: PostgresServer) -> None:
    storage = PostgresStorage(read(postgres_server.url))
    await storage.enqueue([new_job("first")])
    waiting = "SELECT FROM pg_locks WHERE NOT granted AND locktype = 'relation'"
    with postgres_server.connect() as other, postgres_server.connect() as watcher:
        # The storage's transaction waits first, so the server finds the deadlock there, and ends it.
        other.execute("SET deadlock_timeout = '20s'")
        other.execute("BEGIN")
        other.execute("LOCK TABLE tenure.job IN SHARE ROW EXCLUSIVE MODE")
        write = asyncio.ensure_future(storage.enqueue([new_job("second")]))
        await asyncio.to_thread(until, lambda: watcher.execute(waiting).fetchall(), "the storage to wait")
        await asyncio.to_thread(other.execute, "SELECT pg_advisory_xact_lock(%s)", [storage.address.gate])
        other.execute("ROLLBACK")
    await write
    jobs = (await storage.find(Query())).jobs
    await storage.close()

    assert {job.id for job in jobs} == {"first", "second"}
    assert "deadlock detected" in postgres_server.log.read_text()
