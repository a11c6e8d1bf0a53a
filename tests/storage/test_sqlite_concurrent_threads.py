"""Eight threads on one file, each with its own storage and the real clock: the invariants must hold."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tenure.storage.sqlite.storage import SQLiteStorage
from tests.storage.concurrent_threads import run_threads


@pytest.mark.slow
@pytest.mark.statement(76, 77, 78)
def test_eight_threads_on_one_file_keep_the_invariants(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    run_threads(lambda: SQLiteStorage(path, durability="fast"))

    with closing(sqlite3.connect(path)) as connection:
        for table in ("slot", "key"):
            assert connection.execute(f"SELECT count(*) FROM tenure_{table}").fetchone() == (0,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
