"""What `tenure doctor` finds on a PostgreSQL: each fault is a real one."""

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from tenure.core.job import CollectKey, DebounceKey, Key, RateKey, Ref, ThrottleKey, UniqueKey
from tenure.errors import StorageError
from tenure.storage.postgres import grants, health
from tenure.storage.postgres.address import read
from tenure.storage.postgres.storage import PostgresStorage
from tenure.storage.protocol import (
    ClaimRequest,
    EventReader,
    Finding,
    LeaseRenewal,
    NewLogLine,
    Query,
    RenewRequest,
    Settings,
    SweepRequest,
    Target,
    WorkerInfo,
)
from tenure_testing.conformance.helpers import ALICE, BOB, QUEUE, new_job, new_jobs, settled
from tests.postgres_servers import PostgresServer
from tests.servers import until

pytestmark = pytest.mark.postgres

PAGE = Path(__file__).parents[2] / "docs/howto/postgres.md"


@pytest.fixture
def server(start_postgres: Callable[..., PostgresServer]) -> PostgresServer:
    return start_postgres(durable=True, autovacuum_naptime="1d", max_prepared_transactions=2, wal_level="logical")


async def examined(url: str) -> dict[str, Finding]:
    """Return the findings of an examination by their subjects."""
    storage = PostgresStorage(read(url))
    try:
        return {finding.subject: finding for finding in await storage.examine(deep=False)}
    finally:
        await storage.close()


async def warned(url: str, subject: str, words: str) -> Finding:
    """Examine a storage, check that its only warning is of this subject and in these words, and return the finding."""
    found = await examined(url)
    assert {name for name, finding in found.items() if finding.level != "ok"} == {subject}, found
    assert words in found[subject].message
    assert found[subject].remedy
    return found[subject]


async def test_a_healthy_server_has_only_ok_findings(server: PostgresServer) -> None:
    found = await examined(server.url)

    assert {finding.level for finding in found.values()} == {"ok"}, found
    assert found.keys() == {
        *("postgres", "schema", "durability", "autovacuum", "dead rows", "snapshot", "connections", "role", "calls")
    }
    assert "owns the tables" in found["role"].message


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
async def test_a_server_that_may_be_damaged_by_a_crash_is_a_finding(server: PostgresServer, setting: str) -> None:
    server.configure(**{setting: "off"})

    assert f"set {setting} = on" in (await warned(server.url, "durability", f"{setting} is off")).remedy


async def test_a_role_whose_commits_are_not_durable_is_a_finding(server: PostgresServer) -> None:
    server.execute("ALTER ROLE tenure SET synchronous_commit = off")
    await warned(server.url, "durability", "synchronous_commit is off for this role")


async def test_commits_that_do_not_wait_for_the_standbys_are_a_finding(server: PostgresServer) -> None:
    server.execute("ALTER ROLE tenure SET synchronous_commit = local")
    server.configure(synchronous_standby_names="one")
    await warned(server.url, "durability", "(one): a failover loses the last ones")


async def test_autovacuum_off_for_the_server_a_table_or_by_lost_settings(server: PostgresServer) -> None:
    await examined(server.url)
    server.execute("ALTER TABLE tenure.job_live RESET (autovacuum_vacuum_scale_factor)")
    lost = await warned(server.url, "autovacuum", "job_live lost the settings")
    server.execute(lost.remedy)
    server.execute("ALTER TABLE tenure.event SET (autovacuum_enabled = false)")
    disabled = await warned(server.url, "autovacuum", "autovacuum is off for event")
    server.execute(disabled.remedy)
    server.configure(autovacuum="off")
    await warned(server.url, "autovacuum", "autovacuum is off:")


async def test_dead_rows_are_a_finding(server: PostgresServer) -> None:
    storage = PostgresStorage(read(server.url))
    await storage.enqueue([new_job()])
    await storage.close()
    server.execute(
        "INSERT INTO tenure.log SELECT 1, line, 1, 1, 'info', 'x', NULL, 0 FROM generate_series(1, 12000) line"
    )
    server.execute("DELETE FROM tenure.log WHERE line > 100")
    dead = "SELECT 1 FROM pg_stat_user_tables WHERE relname = 'log' AND n_dead_tup >= 11900"
    until(lambda: bool(server.execute(dead)), "the statistics")

    assert (
        "VACUUM tenure.log" in (await warned(server.url, "dead rows", "log has 11,900 dead rows and 100 live")).remedy
    )


async def test_a_snapshot_held_by_a_forgotten_session_is_a_finding(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await examined(server.url)
    monkeypatch.setattr(health, "OLD_SNAPSHOT", 0.5)
    with psycopg.connect(server.url, application_name="a forgotten shell") as shell:
        shell.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        shell.execute("SELECT count(*) FROM tenure.job")
        pid = shell.info.backend_pid
        server.execute("SELECT pg_sleep(1)")
        found = await warned(server.url, "snapshot", "a forgotten shell, idle in transaction) since 20")
        shell.rollback()

    assert f"process {pid} of" in found.message
    assert "role tenure" in found.message


async def test_sessions_of_other_roles_are_said_to_be_hidden(server: PostgresServer) -> None:
    before = await examined(server.url)
    with server.connect() as other:
        other.execute("SELECT 1")
        assert "no transaction has been open" in before["snapshot"].message
        found = await examined(server.url)

    assert "hidden from this one" in found["snapshot"].message
    assert "pg_read_all_stats" in (found["snapshot"].remedy or "")


async def test_a_prepared_transaction_is_a_finding(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    await examined(server.url)
    monkeypatch.setattr(health, "OLD_SNAPSHOT", 0.5)
    with psycopg.connect(server.url, autocommit=True) as shell:
        shell.execute("BEGIN; CREATE TABLE prepared (x int); PREPARE TRANSACTION 'left behind'")
    server.execute("SELECT pg_sleep(1)")
    await warned(server.url, "snapshot", "prepared transaction 'left behind' of role tenure in database tenure")


async def test_a_replication_slot_that_nothing_reads_is_a_finding(server: PostgresServer) -> None:
    await examined(server.url)
    server.execute("SELECT pg_create_logical_replication_slot('left', 'pgoutput')")
    found = await warned(server.url, "snapshot", "replication slot 'left', which no process reads")

    assert "pg_drop_replication_slot" in (found.remedy or "")


async def test_too_few_connections_are_a_finding(server: PostgresServer) -> None:
    await examined(server.url)
    storage = PostgresStorage(read(server.url))
    for number in range(3):
        owner = type(ALICE)(f"{number:016x}", "worker", "host", number)
        await storage.renew(RenewRequest(owner, worker=WorkerInfo()))
    await storage.close()
    server.execute("ALTER ROLE tenure CONNECTION LIMIT 10")
    await warned(server.url, "connections", "of 10 connections are in use; 3 workers need up to 12")


# --- roles -----------------------------------------------------------------------------------------


def documented(page: str) -> str:
    """Return the statements of the page that create the roles."""
    (block,) = re.findall(r"```sql\n(.*?GRANT.*?)```", page, re.DOTALL)
    return re.sub(r"--.*", "", block)


@pytest.fixture
async def roles(server: PostgresServer) -> dict[str, str]:
    """Return addresses of the roles of the page, on a schema that neither of them owns."""
    await examined(server.url)
    server.execute(documented(PAGE.read_text()))
    server.execute("ALTER ROLE tenure_worker LOGIN PASSWORD 'w'; ALTER ROLE tenure_producer LOGIN PASSWORD 'p'")
    return {name: f"postgresql://tenure_{name}:{name[0]}@{server.address}/tenure" for name in ("worker", "producer")}


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[PostgresStorage]:
    storage = PostgresStorage(read(url))
    await storage.open()
    try:
        yield storage
    finally:
        await storage.close()


JOBS = [
    new_job("plain"),
    new_job("again"),
    new_job("merged-1", merge=UniqueKey("u"), ttl=1),
    new_job("merged-2", merge=UniqueKey("u")),
    new_job("throttled", throttle=ThrottleKey("t", 1, 60_000_000)),
    new_job("keyed", keys=(Key("k"),)),
    new_job("rated", rates=(RateKey("r", 1_000_000),)),
    new_job("fair", fair_key="tenant"),
    new_job("debounced-1", merge=DebounceKey("d", 60_000_000)),
    new_job("debounced-2", merge=DebounceKey("d", 60_000_000)),
    new_job("collected-1", merge=CollectKey("c", 60_000_000, 10)),
    new_job("collected-2", merge=CollectKey("c", 60_000_000, 10)),
]


async def enqueue_everything(storage: PostgresStorage) -> None:
    """Use each way to enqueue, and what a caller reads afterwards."""
    for job in JOBS:
        await storage.enqueue([job])
    await storage.enqueue([new_job("again"), *new_jobs(3)])
    await storage.get([Ref(QUEUE, "plain")])
    await storage.find(Query())
    await storage.survey()
    await storage.events(None)


async def test_a_producer_enqueues_and_nothing_else(roles: dict[str, str]) -> None:
    async with opened(roles["producer"]) as storage:
        await enqueue_everything(storage)
        found = await examined(roles["producer"])
        calls = {
            "worker": storage.renew(RenewRequest(ALICE, worker=WorkerInfo())),
            "setting": storage.tune(Target("queue", QUEUE), Settings(paused=True)),
            "job_live": storage.exchange(ALICE, (), ClaimRequest((QUEUE,), 1)),
            "leader": storage.sweep(SweepRequest(ALICE)),
        }
        for table, call in calls.items():
            with pytest.raises(StorageError, match=rf"refuses this to the role 'tenure_producer'.* {table}"):
                await call

    assert (found["role"].level, found["role"].message) == (
        "ok",
        "tenure_producer may enqueue and read, but not run jobs",
    )


async def test_a_worker_needs_no_more_than_the_page_says(roles: dict[str, str], server: PostgresServer) -> None:
    async with opened(roles["worker"]) as storage:
        await enqueue_everything(storage)
        await storage.renew(RenewRequest(ALICE, worker=WorkerInfo()))
        line = NewLogLine(level="info", message="hello", fields={})
        for owner in (ALICE, BOB):
            answer = await storage.exchange(owner, (), ClaimRequest((QUEUE,), 3))
            for lease in answer.leases:
                await storage.renew(
                    RenewRequest(owner, (LeaseRenewal(lease.ref, lease.fence, log=(line,)),), WorkerInfo())
                )
            await storage.exchange(owner, [settled(lease) for lease in answer.leases])
        await storage.tune(Target("queue", QUEUE), Settings(paused=True))
        await storage.sweep(SweepRequest(ALICE))
        await storage.events(None, reader=EventReader("reader", "caller"))
        found = await examined(roles["worker"])
        # The leader creates the tables of the days, and drops those that are empty.
        made = "SELECT count(*) FROM pg_class WHERE relname ~ '^job_ended_[0-9]+$' AND relkind = 'r'"
        until(lambda: server.execute(made)[0][0] > 0, "the tables of the days")
        owners = server.execute("SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'tenure'")

    assert (found["role"].level, found["role"].message.partition(";")[0]) == (
        "ok",
        "tenure_worker may do all that a worker does",
    )
    assert owners == [("tenure",)]


@pytest.mark.parametrize("role", ["worker", "producer"])
async def test_each_missing_grant_is_named(role: str, roles: dict[str, str], server: PostgresServer) -> None:
    name = f"tenure_{role}"
    for one in grants.privileges(grants.WORKER if role == "worker" else grants.PRODUCER):
        on = f'{"SEQUENCE " if one.kind == "USAGE" else ""}tenure."{one.table}"'
        server.execute(f"REVOKE {one.kind} ON {on} FROM {name}")
        for (column,) in server.execute(COLUMNS, [one.table] if one.kind == "UPDATE" else [""]):
            server.execute(f'REVOKE UPDATE ("{column}") ON {on} FROM {name}')
        if one.kind == "SELECT" and one.table in ("meta", "worker", "intake"):
            # The doctor itself reads this table, or the statement that begins its transaction does.
            with pytest.raises(StorageError, match=re.escape(one.grant("tenure", name))):
                await examined(roles[role])
        else:
            found = (await examined(roles[role]))["role"]
            assert found.level == "error", one
            assert found.message == f"{name} lacks {one.kind} on {one.table}"
            assert found.remedy == one.grant("tenure", name)
        server.execute(one.grant("tenure", name))
    assert (await examined(roles[role]))["role"].level == "ok"


COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('tenure.' || quote_ident(%s)) AND attnum > 0"


async def test_the_error_at_run_time_names_the_grant(roles: dict[str, str], server: PostgresServer) -> None:
    async with opened(roles["producer"]) as storage:
        await storage.enqueue([new_job("there")])
        server.execute("REVOKE INSERT ON tenure.tally FROM tenure_producer")
        with pytest.raises(StorageError, match=r'GRANT INSERT ON tenure\."tally" TO "tenure_producer"'):
            await storage.enqueue([new_job("one")])
        server.execute("REVOKE SELECT ON tenure.run FROM tenure_producer")
        with pytest.raises(StorageError, match=r'GRANT SELECT ON tenure\."run" TO "tenure_producer"'):
            await storage.get([Ref(QUEUE, "there")])
        server.execute("REVOKE USAGE ON SCHEMA tenure FROM tenure_producer")
        with pytest.raises(StorageError, match='GRANT USAGE ON SCHEMA tenure TO "tenure_producer"'):
            await storage.enqueue([new_job("one")])


async def test_a_role_without_rights_to_change_the_schema_learns_who_has_them(server: PostgresServer) -> None:
    server.execute("CREATE ROLE stranger LOGIN PASSWORD 's'")
    storage = PostgresStorage(read(f"postgresql://stranger:s@{server.address}/tenure"))
    with pytest.raises(StorageError, match=r"may not change the schema.*tenure migrate up.*tenure migrate sql"):
        await storage.open()
    await storage.close()
