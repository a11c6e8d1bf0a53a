"""The queue in the user's own SQLite file: Tenure adds its tables, and changes nothing of the user."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tenure.core.outcome import Returned
from tenure.core.settlement import settlement
from tenure.errors import StorageFullError, StorageUnavailableError, UsageError
from tenure.storage.connections import recognise
from tenure.storage.protocol import ClaimRequest, EventReader, SweepRequest
from tenure.storage.sqlite import SQLiteStorage, database
from tenure.testing import ManualClock
from tests.storage.helpers import child, job, owner
from tests.storage.test_sqlite_files import refused

pytestmark = pytest.mark.thorough

USERS = """
    CREATE TABLE job (id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT);
    CREATE TABLE event (id INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER REFERENCES job (id) ON DELETE CASCADE);
    CREATE TABLE meta (key TEXT PRIMARY KEY, value);
    CREATE TABLE "key" (name TEXT);
    CREATE TABLE queue (name TEXT);
    CREATE TABLE worker (name TEXT);
    CREATE TABLE tally (seq INTEGER PRIMARY KEY, jobs INTEGER);
    CREATE INDEX job_ready ON job (title);
    CREATE VIEW run AS SELECT * FROM job;
    CREATE TRIGGER noted AFTER INSERT ON job BEGIN INSERT INTO event (job) VALUES (new.id); END;
    INSERT INTO job (title) VALUES ('carpenter'), ('nurse'), ('baker');
    INSERT INTO meta VALUES ('schema_version', 3), ('proto', 'theirs'), ('identity', 'ours');
    INSERT INTO "key" VALUES ('house');
    INSERT INTO queue VALUES ('at the till');
    INSERT INTO worker VALUES ('ann');
    INSERT INTO tally VALUES (1, 17);
    DELETE FROM job WHERE title = 'baker';
"""
"""Tables, an index, a view and a trigger of a user, with the names of Tenure's but without the prefix."""

PRAGMAS = ("application_id", "user_version", "page_size", "auto_vacuum", "encoding")


@pytest.fixture(params=["delete", "wal"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a file of a user, in each journal mode."""
    return users_file(tmp_path, request.param)


def users_file(folder: Path, mode: str = "delete") -> Path:
    path = folder / "shop.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for pragma in ("page_size = 1024", "application_id = 42", "user_version = 7", f"journal_mode = {mode}"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        connection.executescript(USERS)
    return path


def state(path: Path) -> tuple[list[Any], ...]:
    """Return the content of the user in a file: tables with their rows, and the numbers in the header."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(
            "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE tbl_name NOT LIKE 'tenure!_%' ESCAPE '!'"
            " ORDER BY type, name"
        ).fetchall()
        tables = [name for kind, name, *_ in found if kind == "table" and name != "sqlite_sequence"]
        rows = [(name, connection.execute(f'SELECT rowid, * FROM "{name}"').fetchall()) for name in tables]
        sequences = connection.execute(
            "SELECT name, seq FROM sqlite_sequence WHERE name NOT LIKE 'tenure!_%' ESCAPE '!' ORDER BY name"
        ).fetchall()
        header = [(name, connection.execute(f"PRAGMA {name}").fetchone()) for name in PRAGMAS]
    return found, rows, sequences, header


def names(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}


def ours(path: Path) -> set[str]:
    """Return the names of the tables and indexes in a file that are not the user's."""
    with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(":memory:")) as users:
        users.executescript(USERS)
        return names(connection) - names(users)


async def work(path: Path) -> None:
    """Run jobs in a file, sweep it, and read its events."""
    clock = ManualClock()
    storage = SQLiteStorage(path, clock=clock)
    me = owner()
    await storage.enqueue([job(f"j{number}", delay=number % 2) for number in range(8)])
    leases = (await storage.exchange(me, (), ClaimRequest(("q",), 4))).leases
    answer = await storage.exchange(me, [settlement(lease, Returned(b"1"), Random(1)) for lease in leases])
    clock.advance(60)
    swept = await storage.sweep(SweepRequest(me))
    page = await storage.events(None, reader=EventReader("audit", "me", "0"))
    findings = await storage.examine()
    await storage.close()

    assert {verdict.verdict for verdict in answer.verdicts} == {"done"}
    assert swept.troubles == ()
    assert page.events
    assert not [finding for finding in findings if finding.level == "error"]


async def test_the_users_rows_and_header_numbers_are_unchanged(path: Path) -> None:
    before = state(path)
    await work(path)
    new = ours(path)

    assert before[1]
    assert state(path) == before
    assert {"tenure_meta", "tenure_job", "tenure_job_ready", "sqlite_autoindex_tenure_job_1"} <= new
    assert [name for name in new if not name.removeprefix("sqlite_autoindex_").startswith("tenure_")] == []


async def test_the_users_file_stays_in_wal_mode(path: Path) -> None:
    await work(path)

    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        # The user can still write.
        connection.execute("INSERT INTO job (title) VALUES ('smith')")
        assert connection.execute("SELECT max(id) FROM job").fetchone() == (4,)


async def test_the_users_file_is_not_changed_without_auto_migrate(path: Path) -> None:
    refusal = await refused(path, auto_migrate=False)

    assert "shop.db has no schema yet" in refusal
    assert "tenure migrate up" in refusal


async def test_an_open_file_of_the_user_gets_the_tables(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("SELECT * FROM job").fetchall()
        await work(path)
        connection.execute("INSERT INTO job (title) VALUES ('smith')")

        assert connection.execute("SELECT count(*) FROM tenure_job").fetchone() == (8,)
        assert connection.execute("SELECT count(*) FROM job").fetchone() == (3,)


FOREIGN = {
    "other columns": "CREATE TABLE tenure_meta (owner TEXT, house TEXT); INSERT INTO tenure_meta VALUES ('ann', 'x')",
    "upper case": "CREATE TABLE Tenure_Meta (owner TEXT, house TEXT)",
    "no version": "CREATE TABLE tenure_meta (key TEXT, value TEXT)",
    "no number": "CREATE TABLE tenure_meta (key TEXT, value TEXT);"
    "INSERT INTO tenure_meta VALUES ('schema_version', 'the first')",
    "view": "CREATE VIEW tenure_meta AS SELECT * FROM job",
    "another table": "CREATE TABLE tenure_job (title TEXT)",
    "index": "CREATE INDEX tenure_job_ready ON job (title)",
}


@pytest.mark.parametrize("foreign", FOREIGN)
async def test_tables_of_others_with_our_names_are_refused_unchanged(path: Path, foreign: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(FOREIGN[foreign])
    refusal = await refused(path)

    assert "belongs to another program" in refusal
    assert f" {({'another table': 'tenure_job', 'index': 'tenure_job_ready'}).get(foreign, 'tenure_meta')} " in refusal


async def test_an_open_file_with_a_table_of_our_name_is_refused_unchanged(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(FOREIGN["other columns"])

        assert "belongs to another program" in await refused(path)

        connection.execute("INSERT INTO tenure_meta VALUES ('still', 'mine')")


async def test_other_tables_that_begin_with_tenure_are_allowed(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE tenure (years INTEGER); CREATE TABLE tenure_outbox (job TEXT)")
    await work(path)


async def test_a_file_with_another_encoding_is_refused_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("PRAGMA encoding = 'UTF-16'; CREATE TABLE song (title TEXT)")

    assert "UTF-16" in await refused(path)


# --- the switch to a write-ahead log ----------------------------------------------------------------

HOLDS = {
    "reads": ("BEGIN", "SELECT * FROM job"),
    "has the write lock": ("BEGIN IMMEDIATE",),
    "has written": ("BEGIN IMMEDIATE", "DELETE FROM worker"),
}


def hold(path: Path, how: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for statement in HOLDS[how]:
        connection.execute(statement).fetchall()
    return connection


@pytest.mark.parametrize("how", HOLDS)
async def test_a_file_in_use_is_switched_once_the_other_transactions_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path = users_file(tmp_path)
    tried = threading.Semaphore(0)
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def traced(*args: object, **fields: object) -> sqlite3.Connection:
        made = connect(*args, **fields)
        made.set_trace_callback(lambda sql: tried.release() if "journal_mode" in sql else None)
        return made

    holder = hold(path, how)
    monkeypatch.setattr(sqlite3, "connect", traced)
    storage = SQLiteStorage(path)
    opening = asyncio.create_task(storage.open())
    for _ in range(3):
        assert await asyncio.get_running_loop().run_in_executor(None, tried.acquire, True, 30)
    holder.execute("ROLLBACK")
    await opening
    await storage.enqueue([job("one")])
    await storage.close()
    holder.close()

    assert "tenure_job" in ours(path)


@pytest.mark.parametrize("how", HOLDS)
async def test_a_file_that_stays_locked_is_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path = users_file(tmp_path)
    monkeypatch.setattr(database, "_WAL_ATTEMPTS", 3)
    holder = hold(path, how)
    storage = SQLiteStorage(path)
    with pytest.raises(StorageUnavailableError) as refusal:
        await storage.open()
    holder.execute("ROLLBACK")
    holder.close()
    with closing(sqlite3.connect(path)) as connection:
        mode = connection.execute("PRAGMA journal_mode").fetchone()

    assert str(path) in str(refusal.value)
    assert "journal mode WAL" in str(refusal.value)
    assert "end the transactions of other programs" in str(refusal.value)
    assert mode == ("delete",)
    assert not ours(path)

    await storage.open()
    await storage.close()

    assert "tenure_job" in ours(path)


@pytest.mark.slow
@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
async def test_a_locked_file_is_refused_after_five_seconds(tmp_path: Path, begin: str) -> None:
    path = users_file(tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(begin)
        storage = SQLiteStorage(path)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(StorageUnavailableError, match=r"shop\.db cannot .* another program keeps it locked; end"):
            await storage.open()
        taken = asyncio.get_running_loop().time() - begun
        await storage.close()

    assert taken > 4


async def test_a_file_in_wal_mode_is_opened_while_others_read(tmp_path: Path) -> None:
    path = users_file(tmp_path, "wal")
    with closing(hold(path, "reads")):
        await work(path)


# --- crashes ----------------------------------------------------------------------------------------

DIES = """
import asyncio, os, sqlite3, sys
from tenure.storage.sqlite import SQLiteStorage
connect = sqlite3.connect
def dying(*args, **fields):
    made = connect(*args, **fields)
    made.set_trace_callback(lambda sql: os._exit(9) if sys.argv[2] in sql else None)
    return made
sqlite3.connect = dying
asyncio.run(SQLiteStorage(sys.argv[1]).open())
"""


@pytest.mark.parametrize("at", ["journal_mode = WAL", "CREATE TABLE tenure_meta", "tenure_rate_idle", "COMMIT"])
async def test_a_crash_while_the_tables_are_created_leaves_none(path: Path, at: str) -> None:
    before = state(path)
    process = child(DIES, path, at)
    status = process.wait(60)
    process.communicate()
    left = ours(path)
    await work(path)

    assert status == 9
    assert not left
    assert state(path) == before


async def test_a_failure_while_the_tables_are_created_leaves_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = state(path)
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def crammed(*args: object, **fields: object) -> sqlite3.Connection:
        made = connect(*args, **fields)
        made.execute("PRAGMA max_page_count = 40")
        return made

    storage = SQLiteStorage(path)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", crammed)
        with pytest.raises(StorageFullError):
            await storage.open()
    left = ours(path)
    await storage.open()
    await storage.close()

    assert not left
    assert "tenure_fair_tag_passed" in ours(path)
    assert state(path) == before


CRASHES = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 5")
connection.execute("BEGIN")
connection.execute("DELETE FROM job")
connection.execute("CREATE TABLE filler (body)")
connection.executemany("INSERT INTO filler VALUES (zeroblob(500))", [()] * 500)
os._exit(9)
"""


async def test_the_half_written_data_of_a_crashed_program_is_rolled_back_first(tmp_path: Path) -> None:
    path = users_file(tmp_path)
    before = state(path)
    process = child(CRASHES, path)
    process.wait(60)
    process.communicate()
    journal = (tmp_path / "shop.db-journal").stat().st_size
    await work(path)

    assert journal > 0
    assert state(path) == before


# --- transactions -----------------------------------------------------------------------------------


async def test_a_call_and_a_users_row_are_stored_together_or_not_at_all(path: Path) -> None:
    storage = SQLiteStorage(path)
    await storage.prepare_tx()
    with closing(sqlite3.connect(path)) as connection:
        for end in (connection.rollback, connection.commit):
            connection.execute("INSERT INTO job (title) VALUES ('smith')")
            (result,) = await storage.enqueue_in(recognise(connection), [job("one")])
            assert result.action == "created"
            end()
        titles = connection.execute("SELECT title FROM job ORDER BY id").fetchall()
    leases = (await storage.exchange(owner(), (), ClaimRequest(("q",), 4))).leases
    await storage.close()

    assert titles == [("carpenter",), ("nurse",), ("smith",)]
    assert [lease.ref.id for lease in leases] == ["one"]


async def test_a_call_through_another_or_an_attached_file_is_refused(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    path, theirs = users_file(mine), users_file(other)
    # Both files have their own queue.
    for place in (path, theirs):
        await work(place)
    storage = SQLiteStorage(path)
    await storage.prepare_tx()
    before = state(path), state(theirs)
    with closing(sqlite3.connect(theirs)) as connection:
        with pytest.raises(UsageError, match=r"is a connection to .*other/shop\.db, but the queue is in .*mine/shop"):
            await storage.enqueue_in(recognise(connection), [job("one")])
        connection.rollback()
        connection.execute("ATTACH ? AS jobs", (str(path),))
        with pytest.raises(UsageError, match="only attached as 'jobs'"):
            await storage.enqueue_in(recognise(connection), [job("one")])
        connection.commit()
    survey = await storage.survey()
    await storage.close()

    assert sum(survey.queues[0].counts.values()) == 8
    assert (state(path), state(theirs)) == before
