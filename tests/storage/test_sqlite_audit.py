"""The audit finds counters, slots and collected calls that contradict the jobs."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tenure.core.job import CollectKey, Key
from tenure.storage.protocol import Finding
from tenure.storage.sqlite.storage import SQLiteStorage
from tests.storage.helpers import job

WRONG = {
    "a counter too high": "UPDATE tenure_tally SET jobs = jobs + 1 WHERE state = 'waiting'",
    "a slot of an unknown job": "INSERT INTO tenure_slot (queue, key, id) VALUES ('q', 'k', 'unknown')",
    "a missing call": "DELETE FROM tenure_call WHERE id = 'call-1'",
    "a call of a deleted job": "INSERT INTO tenure_call (queue, id, job, place) VALUES ('q', 'late', 'gone', 0)",
    "a job without its collected calls": "UPDATE tenure_job SET collected = 7 WHERE id = 'call-0'",
}


async def audited(storage: SQLiteStorage) -> Finding:
    return next(finding for finding in await storage.examine() if finding.subject == "counters")


@pytest.mark.parametrize("wrong", WRONG)
async def test_counts_that_contradict_the_jobs_are_found(tmp_path: Path, wrong: str) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db")
    collected = CollectKey("k", 1, 9)
    await storage.enqueue([job("plain", keys=(Key("k"),)), *(job(f"call-{n}", merge=collected) for n in range(3))])

    assert (await audited(storage)).level == "ok"

    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection, connection:
        connection.execute(WRONG[wrong])
    finding = await audited(storage)
    await storage.close()

    assert finding.level == "error"
    assert finding.message.startswith("1 counts")
