"""The schema is migrated while workers run: workers of this version, and an invented next version of Tenure."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import tenure
from tenure.core.job import Ref
from tenure.core.lifecycle import State
from tenure.errors import SchemaMismatchError
from tenure.storage.postgres.address import read
from tenure.storage.postgres.migration_files import SCHEMA
from tenure.storage.postgres.storage import PostgresStorage
from tenure.storage.protocol import ClaimRequest, LeaseRenewal, RenewRequest, WorkerInfo
from tenure_testing.conformance.helpers import ALICE, QUEUE, new_job, start
from tenure_testing.postgres_programs import postgres_programs
from tests.servers import until
from tests.system.worker_fleet import WorkerFleet, by_job

pytestmark = [pytest.mark.system, pytest.mark.postgres]

NEXT = SCHEMA + 1

EXPAND = f"""-- oldest: {SCHEMA}
ALTER TABLE job ADD COLUMN colour text;
ALTER TABLE worker ADD COLUMN colour text NOT NULL DEFAULT 'grey';
CREATE TABLE colour (name text PRIMARY KEY);
CREATE INDEX worker_colour ON worker (colour);
"""
"""A migration that is compatible with running processes."""

CONTRACT = "ALTER FUNCTION has_ended(text, text) RENAME TO ended_before;\n"
"""A migration after which programs of the previous version cannot enqueue."""

SLOW = f"-- oldest: {SCHEMA}\nCREATE TABLE colour (name text PRIMARY KEY);\nSELECT pg_sleep({{seconds}});\n"


class NextVersion:
    """A copy of the package with one more migration, with its commands and workers."""

    def __init__(self, folder: Path, fleet: WorkerFleet, migration: str) -> None:
        package = folder / "next" / "tenure"
        shutil.copytree(Path(tenure.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
        (package / f"storage/postgres/migrations/{NEXT:04}_next.sql").write_text(migration)
        if migration == CONTRACT:
            enqueue = package / "storage/postgres/sql/enqueue.sql"
            enqueue.write_text(enqueue.read_text().replace("has_ended(", "ended_before("))
        self.fleet = WorkerFleet(folder, url=fleet.url, lease="8s")
        self.fleet.env["PYTHONPATH"] = str(package.parent)

    def migrate(self, *words: str) -> "subprocess.Popen[str]":
        """Start `tenure migrate` with these words."""
        return subprocess.Popen(
            [sys.executable, "-m", "tenure", "migrate", *words],
            env=self.fleet.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def status(self) -> dict[str, Any]:
        """Return the answer of `tenure migrate status`."""
        done = self.fleet.run("migrate", "status", "-o", "json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture
def fleet(make_fleet: Callable[..., WorkerFleet], postgres_url: str) -> WorkerFleet:
    return make_fleet(lease="8s", url=postgres_url)


@pytest.fixture
def next_version(tmp_path: Path, fleet: WorkerFleet) -> Callable[[str], NextVersion]:
    made: list[NextVersion] = []

    def make(migration: str) -> NextVersion:
        made.append(NextVersion(tmp_path, fleet, migration))
        return made[-1]

    return make


def ask(url: str, query: str, *values: object) -> list[tuple[Any, ...]]:
    """Return the rows of a query in the schema of an address."""
    server, _, schema = url.partition("?schema=")
    with closing(psycopg.connect(server, autocommit=True)) as connection:
        connection.execute(f"SET search_path = {schema}".encode())
        cursor = connection.execute(query.encode(), values)
        return cursor.fetchall() if cursor.description else []


def meta(url: str) -> dict[str, str]:
    return dict(ask(url, "SELECT key, value FROM meta"))


async def ready(fleet: WorkerFleet, count: int) -> None:
    async def there() -> bool:
        return len(await fleet.pids()) >= count

    await fleet.until(there, within=40)


async def test_workers_continue_during_a_compatible_migration_under_load(
    fleet: WorkerFleet, next_version: Callable[[str], NextVersion]
) -> None:
    new = next_version(EXPAND)
    old = [fleet.alone("--concurrency", "4") for _ in range(2)]
    await ready(fleet, 2)
    refs = fleet.enqueue("quick", 1, times=300) + fleet.enqueue("nap", 0.05, times=300)
    with new.migrate("up", "-o", "json") as up:
        refs += fleet.enqueue("nap", 0.02, times=300)
        out, err = up.communicate(timeout=60)
    assert (up.returncode, err) == (0, ""), err
    unfinished = await fleet.count(State.WAITING, State.ACTIVE)
    newer = new.fleet.alone("--concurrency", "4")
    refs += fleet.enqueue("quick", 1, times=100)

    async def over() -> bool:
        return await fleet.count(State.COMPLETED) == len(refs)

    await fleet.until(over, within=90)
    # A worker of the old version can also start on the newer schema.
    late = fleet.alone()
    await ready(fleet, 4)
    runs = by_job(fleet.lines())
    records = [detail.job for detail in await fleet.details(refs)]
    await new.fleet.close()

    assert json.loads(out)["after"] == NEXT
    assert meta(fleet.url)["schema_version"] == str(NEXT)
    assert meta(fleet.url)["oldest"] == str(SCHEMA)
    assert unfinished > 0
    assert {process.poll() for process in (*old, late)} == {None}
    assert newer.poll() == 0
    assert {ref.id for ref in refs} <= runs.keys()
    assert {len([line for line in runs[ref.id] if line.what in ("start", "nap")]) for ref in refs} == {1}
    assert {(job.starts, job.failures, job.stalls) for job in records} == {(1, 0, 0)}


async def test_an_incompatible_migration_is_refused_until_old_workers_drained(
    fleet: WorkerFleet, next_version: Callable[[str], NextVersion]
) -> None:
    new = next_version(CONTRACT)
    old = fleet.worker("--processes", "1", "--concurrency", "2")
    await ready(fleet, 1)
    (worker,) = await fleet.pids()
    status, shown = new.status(), new.fleet.run("migrate", "status")
    with new.migrate("up") as refused:
        _, why = refused.communicate(timeout=60)
    assert meta(fleet.url)["schema_version"] == str(SCHEMA)
    newer = new.fleet.alone()
    refusal = newer.wait(60)
    held = fleet.enqueue("nap", 15, times=2)

    async def running() -> bool:
        return await fleet.count(State.ACTIVE) == 2

    await fleet.until(running, within=30)
    waiting = fleet.enqueue("quick", 1, times=20)
    with new.migrate("up", "--drain") as up:
        out, err = up.communicate(timeout=90)
    assert up.returncode == 0, err
    ended = old.wait(60)
    new.fleet.alone()
    waiting += new.fleet.enqueue("quick", 1, times=2)

    async def over() -> bool:
        return ask(fleet.url, "SELECT count(*) FROM job WHERE state = 'completed'") == [(24,)]

    await new.fleet.until(over, within=60)
    rows = dict(ask(fleet.url, "SELECT id, (failures, stalls)::text FROM job"))
    await new.fleet.close()

    assert [one["knows"] for one in status["cut_off"]] == [SCHEMA]
    assert [(one["number"], one["oldest"]) for one in status["pending"]] == [(NEXT, NEXT)]
    assert f"pid {worker}" in shown.stdout
    assert refused.returncode == 1
    assert "would cut off 1 worker: " in why
    assert "--drain" in why
    assert refusal != 0
    assert "waiting for 1 worker" in err
    assert f"to schema {NEXT}" in out
    assert ended == 0
    assert "SchemaMismatchError: the schema is about to be raised" in fleet.log()
    # The old worker ended its jobs, and started no other.
    assert {rows[ref.id] for ref in (*held, *waiting)} == {"(0,0)"}
    runs = by_job(fleet.lines())
    assert {line.pid for ref in held for line in runs[ref.id] if line.what in ("start", "end")} == {worker}
    assert {len([line for line in runs[ref.id] if line.what == "start"]) for ref in (*held, *waiting)} == {1}
    assert worker not in {line.pid for ref in waiting for line in runs[ref.id] if line.what == "start"}


async def test_a_drain_that_takes_too_long_changes_nothing(
    fleet: WorkerFleet, next_version: Callable[[str], NextVersion]
) -> None:
    new = next_version(CONTRACT)
    fleet.alone()
    await ready(fleet, 1)
    held = fleet.enqueue("nap", 12)

    async def running() -> bool:
        return await fleet.count(State.ACTIVE) == 1

    await fleet.until(running, within=30)
    with new.migrate("up", "--drain", "--timeout", "1s") as up:
        _, why = up.communicate(timeout=60)
    fleet.alone()
    again = fleet.enqueue("quick", 1)

    async def over() -> bool:
        return await fleet.count(State.COMPLETED) == 2

    await fleet.until(over, within=60)

    assert up.returncode == 1
    assert "after 1 s there is still 1 worker" in why
    assert meta(fleet.url)["schema_version"] == str(SCHEMA)
    assert {detail.job.starts for detail in await fleet.details([*held, *again])} == {1}


async def test_a_worker_stops_after_an_incompatible_migration(fleet: WorkerFleet) -> None:
    worker = fleet.alone()
    await ready(fleet, 1)
    fleet.enqueue("nap", 60)

    async def running() -> bool:
        return await fleet.count(State.ACTIVE) == 1

    await fleet.until(running, within=30)
    ask(fleet.url, "UPDATE meta SET value = %s WHERE key IN ('schema_version', 'oldest')", str(NEXT))
    status = worker.wait(60)
    late = fleet.alone().wait(60)

    assert status == 0
    assert f"SchemaMismatchError: {read(fleet.url).shown} has schema {NEXT}, this Tenure knows up to" in fleet.log()
    assert late != 0


async def test_each_call_of_an_outdated_process_is_refused_and_writes_nothing(postgres_url: str) -> None:
    storage = PostgresStorage(read(postgres_url))
    lease = await start(storage, new_job())
    rows = "SELECT (SELECT count(*) FROM job), (SELECT max(seen_at) FROM worker), (SELECT max(id) FROM event)"
    before = ask(postgres_url, rows)
    ask(postgres_url, "INSERT INTO meta VALUES ('features', '[\"flows\"]')")
    beat = await storage.renew(RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence),), WorkerInfo()))
    for call in (
        storage.enqueue([new_job("second")]),
        storage.exchange(ALICE, (), ClaimRequest((QUEUE,), 1)),
        storage.get([Ref(QUEUE, "job")]),
    ):
        with pytest.raises(SchemaMismatchError, match="with flows, this Tenure knows up to"):
            await call
    await storage.close()

    assert beat.lost == ((lease.ref, lease.fence),)
    assert beat.orders is not None
    assert [order.partition(":")[0] for order in beat.orders] == ["outdated"]
    assert ask(postgres_url, rows) == before


def test_two_migrations_at_once_run_one_after_the_other(
    fleet: WorkerFleet, next_version: Callable[[str], NextVersion], postgres_url: str
) -> None:
    assert fleet.run("migrate", "up").returncode == 0
    new = next_version(SLOW.format(seconds=3))
    with new.migrate("up") as first, new.migrate("up") as second:
        done = [process.communicate(timeout=60) for process in (first, second)]

    assert (first.returncode, second.returncode) == (0, 0), done
    assert meta(postgres_url)["schema_version"] == str(NEXT)


def test_a_killed_migration_changes_nothing(
    fleet: WorkerFleet, next_version: Callable[[str], NextVersion], postgres_url: str
) -> None:
    assert fleet.run("migrate", "up").returncode == 0
    new = next_version(SLOW.format(seconds=20))
    with new.migrate("up") as up:
        asleep = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND application_name = 'tenure'"
        until(lambda: bool(ask(postgres_url, asleep)) or up.poll() is not None, "the migration to reach its middle")
        up.send_signal(signal.SIGKILL)
        up.communicate(timeout=10)
    half = ask(postgres_url, "SELECT to_regclass('colour')"), meta(postgres_url)["schema_version"]
    # The server detects that the process has ended, so other processes can continue at once.
    listed = fleet.run("migrate", "status", "-o", "json")
    assert half == ([(None,)], str(SCHEMA))
    assert json.loads(listed.stdout)["schema"] == SCHEMA
    assert ask(postgres_url, asleep) == []


def test_the_printed_script_creates_the_same_schema_as_up(
    fleet: WorkerFleet, next_version: Callable[[str], NextVersion], postgres_urls: Callable[[], str], tmp_path: Path
) -> None:
    new = next_version(EXPAND)
    programs = postgres_programs()
    assert programs is not None

    def described(url: str) -> list[str]:
        server, _, schema = url.partition("?schema=")
        dump: list[str | Path] = [programs / "pg_dump", server, "--schema", schema, "--schema-only", "--no-comments"]
        text = subprocess.run(dump, capture_output=True, text=True, check=True).stdout
        return [line.replace(schema, "X") for line in text.splitlines() if not line.startswith(("--", "\\"))]

    def script(url: str) -> str:
        new.fleet.env["TENURE_URL"] = url
        done = new.fleet.run("migrate", "sql")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def psql(url: str, text: str) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "script.sql").write_text(text)
        words: list[str | Path] = [programs / "psql", "-qX", "-f", tmp_path / "script.sql", url.partition("?")[0]]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    by_up, by_psql = postgres_urls(), postgres_urls()
    new.fleet.env["TENURE_URL"] = by_up
    assert new.fleet.run("migrate", "up").returncode == 0
    text = script(by_psql)
    done = psql(by_psql, text)
    assert "ERROR" not in done.stderr

    assert described(by_up) == described(by_psql)
    assert meta(by_up).keys() == meta(by_psql).keys()
    assert "needs no migration" in script(by_psql)
    assert "ERROR" in psql(by_psql, text).stderr
    assert meta(by_psql)["schema_version"] == str(NEXT)


def test_a_migration_waits_for_readers_only_briefly_each_time(
    fleet: WorkerFleet, next_version: Callable[[str], NextVersion], postgres_url: str
) -> None:
    assert fleet.run("migrate", "up").returncode == 0
    new = next_version(EXPAND)
    server, _, schema = postgres_url.partition("?schema=")
    with closing(psycopg.connect(server, application_name="a forgotten shell")) as reader:
        reader.execute(f"SELECT count(*) FROM {schema}.job".encode())
        with new.migrate("up") as up:
            fleet.enqueue("quick", 1, times=3)
            _, why = up.communicate(timeout=90)
        reader.rollback()
        with new.migrate("up") as again:
            again.communicate(timeout=60)

    assert up.returncode == 1
    assert "has tables in use" in why
    assert "'a forgotten shell'" in why
    assert again.returncode == 0
