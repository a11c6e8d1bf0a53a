"""The queries: each verb's work is found by an index, however many jobs there are."""

import re
import sqlite3
from collections.abc import Iterator
from importlib.resources import files

import pytest

from holdfast.storage.scripts import statements
from holdfast.storage.sqlite import database

PACKAGE = "holdfast.storage.sqlite"

MAY_SCAN = {
    ("find", "all"): "newest first, by the primary key, up to the limit",
    ("tally", "recount"): "doctor's audit",
    ("tally", "recount_calls"): "doctor's audit",
    ("tally", "recount_keys"): "doctor's audit",
}


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


@pytest.mark.fault("W-B2", "W-N15", "W-P11")
@pytest.mark.parametrize(("verb", "name", "statement"), [case for case in named() if case[0] != "session"])
def test_no_query_walks_through_all_jobs(schema: sqlite3.Connection, verb: str, name: str, statement: str) -> None:
    words = set(re.findall(r":(\w+)", statement))
    numbers = [int(number) for number in re.findall(r"\?(\d+)", statement)]
    count = max(numbers) if numbers else statement.count("?")
    values = dict.fromkeys(words) if words else [None] * count
    plan = [row[3] for row in schema.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    scans = [
        step
        for step in plan
        if re.match(r"SCAN (job|run|log|event|call|window|rate)\b(?! USING (COVERING )?INDEX)", step)
    ]

    assert not scans or (verb, name) in MAY_SCAN, plan


def test_a_file_without_names_is_one_statement() -> None:
    whole = statements(PACKAGE, "", "schema.sql")

    assert list(whole) == ["schema"]


def test_every_statement_file_begins_with_its_promise() -> None:
    for file in files(PACKAGE).joinpath("sql").iterdir():
        assert file.read_text(encoding="utf-8").startswith("-- "), file.name
