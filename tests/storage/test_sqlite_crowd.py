"""Eight threads, each with a storage and connections of its own, on one file: no clock is held, only invariants are."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tenure.storage.sqlite.storage import SQLiteStorage
from tests.storage.crowd import work


@pytest.mark.slow
@pytest.mark.statement(76, 77, 78)
def test_eight_threads_on_one_file_break_no_promise(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    work(lambda: SQLiteStorage(path, durability="fast"))

    with closing(sqlite3.connect(path)) as connection:
        for table in ("slot", "key"):
            assert connection.execute(f"SELECT count(*) FROM tenure_{table}").fetchone() == (0,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
