"""The audit finds counters, slots, collected calls and inboxes that contradict the jobs."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tenure.core.job import CollectKey, Key, Ref
from tenure.core.lifecycle import State
from tenure.core.outcome import Returned
from tenure.core.retention import KeepRule, RetentionRules
from tenure.core.waiting import Dependent, Links, Need, Wait, WaitToken
from tenure.storage.queries import Finding
from tenure.storage.revisions import DeleteJob, Settings, Target
from tenure.storage.sqlite.storage import SQLiteStorage
from tenure.storage.waiting import DeliverToken
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import ALICE, bid, claim, counted, settle
from tests.storage.helpers import job

WRONG = {
    "a counter too high": "UPDATE tenure_tally SET jobs = jobs + 1 WHERE state = 'waiting'",
    "a slot of an unknown job": "INSERT INTO tenure_slot (queue, key, id) VALUES ('q', 'k', 'unknown')",
    "a missing call": "DELETE FROM tenure_call WHERE id = 'call-1'",
    "a call of a deleted job": "INSERT INTO tenure_call (queue, id, job, place) VALUES ('q', 'late', 'gone', 0)",
    "a job without its collected calls": "UPDATE tenure_job SET collected = 7 WHERE id = 'call-0'",
    "a box that counts a token twice": "UPDATE tenure_inbox SET completed = completed + 1",
    "a missing token": "DELETE FROM tenure_token",
    "a step of an unknown job": "INSERT INTO tenure_step VALUES (999, 'name', 1, 1, 1, 'timer', NULL)",
    "a suspended job without its wait": "UPDATE tenure_job SET links = NULL WHERE id = 'waits'",
}


async def audited(storage: SQLiteStorage) -> Finding:
    return next(finding for finding in await storage.examine() if finding.subject == "counters")


@pytest.mark.parametrize("wrong", WRONG)
async def test_counts_that_contradict_the_jobs_are_found(tmp_path: Path, wrong: str) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db")
    collected = CollectKey("k", 1, 9)
    await storage.enqueue([job("plain", keys=(Key("k"),)), *(job(f"call-{n}", merge=collected) for n in range(3))])
    await storage.enqueue([job("waits", links=Links(wait=Wait((Need(box="x"),))))])
    await storage.revise([DeliverToken(Ref("q", "plain"), WaitToken("y", "1"))])

    assert (await audited(storage)).level == "ok"

    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection, connection:
        connection.execute(WRONG[wrong])
    finding = await audited(storage)
    await storage.close()

    assert finding.level == "error"
    assert finding.message.startswith("1 counts")


@pytest.mark.parametrize("by", ["completion", "sweep", "operator"])
async def test_an_inbox_is_deleted_with_its_job(tmp_path: Path, by: str) -> None:
    clock = ManualClock()
    storage = SQLiteStorage(tmp_path / "jobs.db", clock=clock)
    wait = Wait((Need(box="x", step="first"),))
    names = [f"{number}" for number in range(3)]
    await storage.enqueue(
        [job(name, links=Links(wait=wait, dependents=(Dependent(Ref("q", "gone"), "x", name),))) for name in names]
    )
    await storage.revise([DeliverToken(Ref("q", name), WaitToken("x", "1", body=b"yes")) for name in names])
    if by == "completion":
        keep = KeepRule(3600 * 1_000_000, 0)
        await storage.tune(Target("queue", "q"), Settings(retention=RetentionRules(completed=keep)))
    for lease in await claim(storage, queue="q"):
        assert await settle(storage, ALICE, lease, Returned(b"")) == "done"
    if by == "sweep":
        await storage.tune(Target("queue", "q"), Settings(retention=RetentionRules(completed=KeepRule(1))))
    if by == "operator":
        await storage.revise([DeleteJob(Ref("q", name)) for name in names])
    clock.advance(1)
    await storage.sweep(bid())
    left = await counted(storage, "q")
    await storage.close()
    tables = ("tenure_token", "tenure_inbox", "tenure_step")
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        rows = [connection.execute(f"SELECT count(*) FROM {table}").fetchone() for table in tables]

    assert left.get(State.COMPLETED, 0) == 0
    assert rows == [(0,)] * 3
