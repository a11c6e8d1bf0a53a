"""The queries: each verb finds its rows by an index, for any number of jobs."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib.resources import files
from itertools import count
from pathlib import Path

import pytest

from tenure.core.lifecycle import State
from tenure.storage.protocol import Query
from tenure.storage.script_files import statements
from tenure.storage.sql import reading
from tenure.storage.sql.sweep import sweep
from tenure.storage.sqlite import database
from tenure.storage.sqlite.storage import SQLiteStorage
from tenure.storage.sqlite.transaction import SQLiteTransaction
from tenure.testing import ManualClock
from tenure_testing.conformance.helpers import ALICE, bid, new_job, settle, start

PACKAGE = "tenure.storage.sqlite"

MAY_SCAN = {
    ("acts", "page"): "the acts, at most 100,000, if few of them match",
    ("events", "bounds"): "sqlite_sequence has one row",
    ("exchange", "due_queues"): "EXISTS ends at the first row",
    ("exchange", "queues"): "sqlite_sequence has one row",
    ("find", "active"): "all active jobs, up to the limit",
    ("find", "queues"): "the counters of queues that have jobs",
    ("publish", "forget"): "the published tasks, 2,000 at most",
    ("published", "all"): "lists all published tasks, 2,000 at most",
    ("repair", "wrong_counters"): "a queue with a damaged job, whose jobs are counted again",
    ("repair", "recount_keys"): "a queue with a damaged job, whose jobs are counted again",
    ("repair", "delete_keys"): "a queue with a damaged job, whose jobs are counted again",
    ("repair", "orphaned_calls"): "the merged calls, after a job's queue or id became unreadable",
    ("repair", "orphaned_slots"): "the slots of active jobs, after a job's queue or id became unreadable",
    ("rates", "limited_queues"): "the queues that are limited as a whole",
    ("rates", "opening_ahead"): "the rates that jobs are parked under, after the clock was set back",
    ("rates", "check_all"): "the rates that jobs are parked under, after the clock was set back",
    ("record_act", "oldest"): "the oldest acts, up to the limit",
    ("reclaim", "held"): "all active jobs, when a worker has died",
    ("survey", "counts"): "the counters of queues that have jobs",
    ("survey", "schedules"): "lists all schedules",
    ("survey", "workers"): "lists all workers",
    ("sweep", "holders"): "all active jobs: each owner's lock is checked",
    ("sweep", "workers"): "the workers of the last ten minutes",
    ("sweep", "delete_workers"): "the workers of the last ten minutes",
    ("sweep", "delete_commands"): "the workers of the last ten minutes",
    ("sweep", "delete_tags"): "the fair queues that have jobs, up to the limit",
    ("sweep", "idle_fair_queues"): "the fair queues; those without jobs are deleted, up to the limit",
    ("sweep", "lengths"): "one entry for each length, by LIMIT 1",
    ("sweep", "invalid_state"): "the damaged jobs, usually none, up to the limit",
    ("tally", "recount"): "doctor's audit",
    ("tally", "recount_calls"): "doctor's audit",
    ("tally", "recount_keys"): "doctor's audit",
}
"""The statements that scan a table, a whole index or all jobs of a queue, each with the bound of the scan."""


def named() -> Iterator[tuple[str, str, str]]:
    for file in sorted(entry.name for entry in files(PACKAGE).joinpath("sql").iterdir()):
        for name, statement in statements(PACKAGE, "sql", file).items():
            yield file.removesuffix(".sql"), name, statement


@pytest.fixture(scope="module")
def schema() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.executescript(database.schema())
    yield connection
    connection.close()


PAST = 40
"""How many queues had a job once. A scan of their counters takes some instructions for each of them."""


async def instructions_of_a_sweep(path: Path, *, past: int, kept: bool) -> int:
    """Return how many instructions SQLite runs for an idle sweep of a file with this many past queues."""
    clock = ManualClock()
    storage = SQLiteStorage(path, clock=clock)
    for number in range(past):
        await settle(storage, ALICE, await start(storage, new_job(queue=f"past-{number}")))
    for _ in range(3):
        await storage.sweep(bid())
        clock.advance(1 if kept else 3600)
    await storage.close()
    counted = count()
    with closing(sqlite3.connect(path)) as connection, connection:
        tx = SQLiteTransaction(connection)
        tx.now = clock.now()
        connection.set_progress_handler(lambda: next(counted) < 0, 1)
        swept = sweep(tx, bid(), lambda _: True)
        tx.flush()

    assert (swept.troubles, sum(swept.did.values())) == ((), 0)
    return next(counted)


@pytest.mark.parametrize("kept", [True, False])
async def test_an_idle_sweep_does_not_visit_past_queues(tmp_path: Path, *, kept: bool) -> None:
    fresh = await instructions_of_a_sweep(tmp_path / "fresh.db", past=0, kept=kept)
    used = await instructions_of_a_sweep(tmp_path / "used.db", past=PAST, kept=kept)

    assert used < fresh + PAST


READS = (
    Query(states=(State.COMPLETED, State.FAILED)),
    Query(states=(State.COMPLETED, State.FAILED), looks=50),
    Query(states=(State.WAITING, State.ACTIVE), looks=50),
    Query(fault="0123456789ab", looks=50),
    Query(id="job-0001"),
    Query(merge="job:k"),
)


async def statements_of_reads(path: Path, *, queues: int) -> list[int]:
    """Return how many statements a survey and some listings take, with jobs in this many queues."""
    clock = ManualClock()
    storage = SQLiteStorage(path, clock=clock)
    for number in range(queues):
        await settle(storage, ALICE, await start(storage, new_job(queue=f"queue-{number}")))
        await start(storage, new_job("active", queue=f"queue-{number}"))
        await storage.enqueue([new_job("waiting", queue=f"queue-{number}")])
    await storage.close()
    taken: list[int] = []
    with closing(sqlite3.connect(path)) as connection, connection:
        tx = SQLiteTransaction(connection)
        tx.now = clock.now()
        traced: list[str] = []
        connection.set_trace_callback(traced.append)
        for query in (None, *READS):
            traced.clear()
            if query is None:
                reading.survey(tx, (), 10)
            else:
                reading.find(tx, query)
            taken.append(len(traced))
    return taken


async def test_reads_of_many_queues_take_no_more_statements(tmp_path: Path) -> None:
    few = await statements_of_reads(tmp_path / "few.db", queues=1)

    assert await statements_of_reads(tmp_path / "many.db", queues=20) == few
    assert max(few[1:]) < 10


QUERIES = [case for case in named() if case[0] != "session"]


JOBS_OF_A_QUEUE = re.compile(r"sqlite_autoindex_tenure_job_1 \(queue=\?\)")


def scans(connection: sqlite3.Connection, statement: str) -> list[str]:
    """Return the steps of a statement that scan a table, a whole index, or all jobs of a queue."""
    values = dict.fromkeys(re.findall(r":(\w+)", statement))
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    # Parameters that are lists, and tables that the statement itself creates, are as long as the call requires.
    made = {"CONSTANT", *re.findall(r"\bRECURSIVE (\w+)", statement), *re.findall(r"\) AS (\w+)", statement)}
    return [
        step
        for step in plan
        if JOBS_OF_A_QUEUE.search(step)
        or ((found := re.match(r"SCAN (\S+)", step)) and found[1] not in made and "VIRTUAL TABLE" not in step)
        if "(subquery" not in step
    ]


@pytest.mark.fault("W-B2", "W-N15", "W-P11")
@pytest.mark.parametrize(("verb", "name", "statement"), QUERIES)
def test_no_query_scans_a_table_or_an_index(schema: sqlite3.Connection, verb: str, name: str, statement: str) -> None:
    assert (verb, name) in MAY_SCAN or scans(schema, statement) == []


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("partial", [True, False])
def test_an_analysis_of_a_small_queue_makes_no_query_scan(rows: int, partial: bool) -> None:
    """A user may run ANALYZE while there are few jobs, and the figures stay when there are many."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(database.schema())
        connection.execute("ANALYZE")
        connection.execute("DELETE FROM sqlite_stat1")
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        for (table,) in tables:
            indexes = connection.execute("SELECT name, partial FROM pragma_index_list(?)", (table,)).fetchall()
            for index, is_partial in indexes:
                # An index that is always empty in a sound queue has no figures.
                if index == "tenure_job_stateless" or (is_partial and not partial):
                    continue
                ((columns,),) = connection.execute("SELECT count(*) FROM pragma_index_info(?)", (index,))
                # How many rows there are, and how many have the same first column, the same two first ones, ...
                figures = " ".join([str(rows)] * columns + ["1"])
                # The index of a table WITHOUT ROWID is the table.
                name = table if "autoindex" in index and has_no_rowid(connection, table) else index
                connection.execute("INSERT INTO sqlite_stat1 VALUES (?, ?, ?)", (table, name, figures))
        connection.execute("ANALYZE sqlite_schema")
        scanning = {(verb, name): found for verb, name, text in QUERIES if (found := scans(connection, text))}

    assert {query: steps for query, steps in scanning.items() if query not in MAY_SCAN} == {}


def has_no_rowid(connection: sqlite3.Connection, table: str) -> bool:
    """Return whether the table is its primary key."""
    ((sql,),) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,))
    return str(sql).endswith("WITHOUT ROWID")


def test_all_tables_and_indexes_have_names_that_begin_with_tenure(schema: sqlite3.Connection) -> None:
    found = [name.removeprefix("sqlite_autoindex_") for (name,) in schema.execute("SELECT name FROM sqlite_schema")]

    assert [name for name in found if not name.startswith("tenure_")] == ["sqlite_sequence"]


@pytest.mark.parametrize(("verb", "name", "statement"), QUERIES)
def test_a_query_uses_only_tables_of_tenure(schema: sqlite3.Connection, verb: str, name: str, statement: str) -> None:
    used: set[str] = set()

    def note(action: int, table: str | None, *_: str | None) -> int:
        if action in (sqlite3.SQLITE_READ, sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE):
            used.add(table or "")
        return sqlite3.SQLITE_OK

    # The first use of json_each in a connection declares it, which the authorizer sees as a write to sqlite_master.
    schema.execute("SELECT 1 FROM json_each('[]')")
    schema.set_authorizer(note)
    schema.execute(f"EXPLAIN {statement}", dict.fromkeys(re.findall(r":(\w+)", statement)))
    schema.set_authorizer(None)
    # Tables that the statement itself creates.
    made = {"", "json_each", *re.findall(r"\) AS (\w+)", statement)}

    assert {table for table in used - made if not table.startswith("tenure_")} <= {"sqlite_sequence"}, (verb, name)


def test_a_file_without_names_is_one_statement() -> None:
    whole = statements(PACKAGE, "", "schema.sql")

    assert list(whole) == ["schema"]


def test_every_statement_file_begins_with_a_comment() -> None:
    for file in files(PACKAGE).joinpath("sql").iterdir():
        assert file.read_text(encoding="utf-8").startswith("-- "), file.name
