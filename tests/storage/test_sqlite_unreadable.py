"""Garbage in any column of a job's row on SQLite: the job is set aside, and all other jobs continue."""

import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tenure.core.events import JobFailed, JobRepaired, QueueDrained
from tenure.core.job import CollectKey, Key, NewJob, Ref
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.outcome import Returned
from tenure.core.settlement import settlement
from tenure.storage.protocol import ClaimRequest, Query, Settings, SweepRequest, Target
from tenure.storage.sqlite import SQLiteStorage
from tenure.storage.sqlite.database import schema
from tenure.testing import ManualClock
from tests.storage.unreadable import BAD, GOOD, ME, REAPER, SECOND, check_others_continue, claim_in_a_lane, some_of

pytestmark = pytest.mark.thorough


def columns() -> list[tuple[str, str]]:
    """Return the names and types of the columns of a job."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(schema())
    found = [(name, kind) for _, name, kind, *_ in connection.execute("PRAGMA table_info(tenure_job)") if name != "seq"]
    connection.close()
    return found


GARBAGE: dict[str, list[object]] = {
    "TEXT": ["garbage{", b"\xff\xfe\x00"],
    "INTEGER": [2**63 - 1, -(2**63)],
    "BLOB": [b"\xff\x00"],
    "ANY": ["garbage{", "[]", b"\xff\x00", float("inf"), 2**63 - 1],
}
DEEP = '{"unknown":' + "[" * 50_000
"""JSON that is nested too deeply to be read, in a field that a newer version may have added."""
CASES: dict[str, tuple[str, object]] = {
    **{f"{name} {str(value)[:6]}": (name, value) for name, kind in columns() for value in GARBAGE[kind]},
    **{f"{name} deep": (name, DEEP) for name in ("merge", "policy", "error", "progress")},
    **{f"{name} deep": (name, f"[{DEEP}") for name in ("keys", "rates")},
}
EMPTIED = ("owner", "heard_at", "lease_until", "started")
"""Columns that may be NULL, except in an active job."""
STRUCTURED = ("headers", "tags", "keys", "rates", "merge", "pinned", "policy", "error")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def storage(clock: ManualClock, tmp_path: Path, empty_database: Path) -> AsyncIterator[SQLiteStorage]:
    shutil.copyfile(empty_database, tmp_path / "tenure.db")
    storage = SQLiteStorage(tmp_path / "tenure.db", clock=clock)
    await storage.open()
    yield storage
    await storage.close()


async def damage(storage: SQLiteStorage, column: str, value: object, *, id_: str = "bad") -> None:
    """Write a value into a column of a job, as another program could."""
    connection = sqlite3.connect(storage.path)
    cast = "CAST(? AS TEXT)" if isinstance(value, bytes) and dict(columns())[column] == "TEXT" else "?"
    changed = connection.execute(f"UPDATE tenure_job SET {column} = {cast} WHERE id = ?", (value, id_)).rowcount
    connection.commit()
    connection.close()
    assert changed == 1


@pytest.mark.parametrize(("case", "state"), some_of(CASES))
async def test_garbage_in_a_column_stops_no_neighbour(
    storage: SQLiteStorage, clock: ManualClock, case: str, state: str
) -> None:
    column, value = CASES[case]
    bad, failed = await check_others_continue(storage, clock, state, lambda: damage(storage, column, value))

    assert bad is None or bad.job.state in TERMINAL
    if column in STRUCTURED and state in ("waiting", "delayed"):
        assert bad is not None
        assert (bad.job.state, bad.job.reason) == (State.FAILED, "undecodable")
        assert bad.job.error is not None
        assert column in bad.job.error.message
        assert [(event.id, event.reason) for event in failed] == [("bad", "undecodable")]


@pytest.mark.parametrize("column", [name for name in STRUCTURED if name != "error"])
async def test_a_damaged_job_whose_run_raises_does_not_run_again(
    storage: SQLiteStorage, clock: ManualClock, column: str
) -> None:
    bad, failed = await check_others_continue(storage, clock, "raised", lambda: damage(storage, column, "garbage{"))

    assert bad is not None
    assert (bad.job.state, bad.job.reason) == (State.FAILED, "undecodable")
    assert [(event.id, event.reason) for event in failed] == [("bad", "undecodable")]


@pytest.mark.parametrize("value", GARBAGE["TEXT"])
@pytest.mark.parametrize("state", ["waiting", "delayed", "active", "settled"])
async def test_an_unreadable_state_fails_the_job_and_frees_its_key(
    storage: SQLiteStorage, clock: ManualClock, state: str, value: object
) -> None:
    common: dict[str, Any] = {"queue": "q", "task": "t", "payload": b"[]", "keys": (Key("k", 1),)}
    delay = SECOND if state == "delayed" else 0
    await storage.enqueue([NewJob(**common, id="bad", delay=delay), NewJob(**common, id="good", delay=delay)])
    order = ClaimRequest(("q",), 10)
    held = (await storage.exchange(ME, (), order)).leases if state in ("active", "settled") else ()
    await damage(storage, "state", value)
    if state == "settled":
        answer = await storage.exchange(ME, [settlement(lease, Returned(b"1"), Random(1)) for lease in held])
        assert [verdict.verdict for verdict in answer.verdicts] == ["lost"]
    clock.advance(10)
    await storage.sweep(SweepRequest(REAPER, term=None))
    claimed = (await storage.exchange(ME, (), order)).leases
    page = await storage.find(Query(queues=("q",), states=(State.FAILED,)))
    survey = await storage.survey()
    events = (await storage.events(limit=1000, ref=BAD)).events
    findings = await storage.examine()

    assert [lease.ref for lease in claimed] == [GOOD]
    assert [(job.ref, job.reason) for job in page.jobs] == [(BAD, "undecodable")]
    assert survey.queues[0].counts == {State.ACTIVE: 1, State.FAILED: 1}
    assert [event.reason for event in events if isinstance(event, JobFailed)] == ["undecodable"]
    assert not [finding for finding in findings if finding.level == "error"]


@pytest.mark.parametrize("state", ["waiting", "delayed", "active"])
@pytest.mark.parametrize("column", ["id", "queue"])
async def test_a_job_with_an_unreadable_name_fails_once_under_another_name(
    storage: SQLiteStorage, clock: ManualClock, column: str, state: str
) -> None:
    common: dict[str, Any] = {"queue": "q", "task": "t", "payload": b"[]", "keys": (Key("k", 1),)}
    delay = SECOND if state == "delayed" else 0
    await storage.enqueue([NewJob(**common, id="bad", delay=delay), NewJob(**common, id="good", delay=delay)])
    order = ClaimRequest(("q",), 10)
    if state == "active":
        await storage.exchange(ME, (), order)
    await damage(storage, column, b"\xff\xfe")
    claimed: list[Ref] = []
    for _ in range(6):
        clock.advance(60)
        await storage.sweep(SweepRequest(REAPER, term=None))
        leases = (await storage.exchange(ME, (), order)).leases
        claimed += [lease.ref for lease in leases]
        await storage.exchange(ME, [settlement(lease, Returned(b"1"), Random(1)) for lease in leases])
    page = await storage.find(Query(states=(State.FAILED,)))
    events = (await storage.events(limit=1000)).events
    findings = await storage.examine()

    assert claimed == [GOOD]
    assert [job.reason for job in page.jobs] == ["undecodable"]
    assert len([event for event in events if isinstance(event, JobRepaired)]) == 1
    assert not [finding for finding in findings if finding.level == "error"]


@pytest.mark.parametrize("column", ["id", "queue"])
async def test_calls_move_to_the_new_name_of_their_job(storage: SQLiteStorage, clock: ManualClock, column: str) -> None:
    ids = ("other", "bad")
    for id_ in ids:
        key = CollectKey(id_, SECOND, 10)
        calls = [id_, f"{id_}1", f"{id_}2"]
        await storage.enqueue([NewJob(queue="q", id=call, task="t", payload=b"[]", merge=key) for call in calls])
    clock.advance(60)
    await storage.exchange(ME, (), ClaimRequest(("q",), 10))
    for id_ in ids:
        await damage(storage, column, id_[:2].encode() + b"\xff", id_=id_)
    clock.advance(60)
    await storage.sweep(SweepRequest(REAPER, term=None))
    findings = await storage.examine()
    jobs = (await storage.find(Query(states=(State.FAILED,)))).jobs

    assert not [finding for finding in findings if finding.level == "error"]
    assert len(jobs) == 2
    for job in jobs:
        id_ = "bad" if "ba" in job.queue + job.id else "other"
        found = await storage.get([Ref(job.queue, call) for call in (id_, f"{id_}1", f"{id_}2")])
        assert [detail and detail.job.ref for detail in found] == [job.ref] * 3


@pytest.mark.parametrize("column", ["state", "id", "queue"])
@pytest.mark.parametrize("state", ["waiting", "active"])
async def test_a_repair_that_ends_the_last_job_drains_its_queue(
    storage: SQLiteStorage, clock: ManualClock, column: str, state: str
) -> None:
    await storage.tune(Target("queue", "q"), Settings(record=("queue_drained",)))
    await storage.enqueue([NewJob(queue="q", id="bad", task="t", payload=b"[]")])
    if state == "active":
        await storage.exchange(ME, (), ClaimRequest(("q",), 10))
    await damage(storage, column, b"\xff")
    for _ in range(3):
        clock.advance(60)
        await storage.sweep(SweepRequest(REAPER, term=None))
        await storage.exchange(ME, (), ClaimRequest(("q",), 10))
    events = (await storage.events(limit=1000)).events

    assert [event.queue for event in events if isinstance(event, QueueDrained)] == ["q"]


async def test_the_repair_of_an_ended_job_leaves_the_limit_of_its_key(
    storage: SQLiteStorage, clock: ManualClock
) -> None:
    common: dict[str, Any] = {"queue": "q", "task": "t", "payload": b"[]", "keys": (Key("k", 1),)}
    await storage.enqueue([NewJob(**common, id="bad")])
    (lease,) = (await storage.exchange(ME, (), ClaimRequest(("q",), 10))).leases
    await storage.exchange(ME, [settlement(lease, Returned(b"1"), Random(1))])
    await storage.enqueue([NewJob(**common, id="good"), NewJob(**common, id="second")])
    claimed = (await storage.exchange(ME, (), ClaimRequest(("q",), 1))).leases
    await storage.exchange(ME, [settlement(lease, Returned(b"1"), Random(1)) for lease in claimed])
    await damage(storage, "state", b"\xff")
    await damage(storage, "finished", 2**63 - 1)
    clock.advance(60)
    await storage.sweep(SweepRequest(REAPER, term=None))
    findings = await storage.examine()
    claimed = (await storage.exchange(ME, (), ClaimRequest(("q",), 10))).leases

    assert not [finding for finding in findings if finding.level == "error"]
    assert [lease.ref.id for lease in claimed] == ["second"]


@pytest.mark.parametrize("state", ["active", "lost"])
@pytest.mark.parametrize("column", EMPTIED)
async def test_an_active_job_with_a_missing_field_does_not_block_others(
    storage: SQLiteStorage, clock: ManualClock, state: str, column: str
) -> None:
    bad, _ = await check_others_continue(storage, clock, state, lambda: damage(storage, column, None))

    assert bad is not None
    assert bad.job.state in TERMINAL


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("state ")])
async def test_a_damaged_job_whose_claim_was_lost_is_claimed_once_more_at_most(
    storage: SQLiteStorage, clock: ManualClock, case: str, plain: bool
) -> None:
    column, value = CASES[case]
    await claim_in_a_lane(storage, clock, lambda: damage(storage, column, value), plain=plain)


@pytest.mark.parametrize("column", ["headers", "tags", "pinned", "policy", "task", "lease", "timeout"])
@pytest.mark.parametrize("state", ["waiting", "delayed"])
async def test_garbage_in_a_plain_jobs_row_stops_no_neighbour(
    storage: SQLiteStorage, clock: ManualClock, state: str, column: str
) -> None:
    value = GARBAGE[dict(columns())[column]][-1]
    bad, failed = await check_others_continue(storage, clock, state, lambda: damage(storage, column, value), plain=True)

    assert bad is not None
    assert bad.job.reason == "undecodable"
    assert [event.id for event in failed] == ["bad"]
