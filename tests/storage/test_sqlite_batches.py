"""Batches of jobs on SQLite: they take few statements, and each job gets the same answer as in a call of its own."""

import asyncio
import sqlite3
from pathlib import Path
from random import Random

import pytest

from tenure.core.decision import Decision, Finish, PutBack, RunEnd
from tenure.core.events import JobEvent
from tenure.core.job import Key, NewJob, Policy, RecordedError, Ref
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.outcome import Raised, Returned
from tenure.core.retry import Backoff
from tenure.core.settlement import Settlement, settlement
from tenure.storage.protocol import ClaimRequest, LeaseRenewal, NewLogLine, RenewRequest
from tenure.storage.sql import exchange
from tenure.storage.sql.enqueue import INSERT_BYTES
from tenure.storage.sqlite import SQLiteStorage
from tenure.storage.sqlite.database import Database
from tenure.storage.sqlite.locks import Locks, lock_file, quiet
from tenure.storage.sqlite.transaction import SQLiteTransaction
from tests.storage.helpers import job, owner

ME = owner()
ORDER = ClaimRequest(("q",), 100)
JOBS = 100
ERROR = RecordedError("ValueError", "no")


def done(lease: Lease, result: bytes = b"1") -> Settlement:
    return settlement(lease, Returned(result), Random(1))


def named(prefix: str) -> list[NewJob]:
    return [job(f"{prefix}{number:03}", payload=b"%d" % number, headers={"n": str(number)}) for number in range(JOBS)]


async def settle(storage: SQLiteStorage, settlements: list[Settlement]) -> list[str]:
    answer = await storage.exchange(ME, settlements)
    return [verdict.verdict for verdict in answer.verdicts]


def test_a_hundred_plain_jobs_take_no_more_statements_than_one(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    connection = Database(path, Locks(lock_file(path)), durability="fast", auto_migrate=True).writer()
    seen: list[str] = []
    now = 1_000_000
    connection.set_trace_callback(seen.append)

    def counted(jobs: int) -> tuple[int, int]:
        nonlocal now
        counts: list[int] = []
        leases: tuple[Lease, ...] = ()
        for _ in range(2):
            tx = SQLiteTransaction(connection)
            tx.now = now = now + 1
            seen.clear()
            exchange.enqueue_all(tx, [[item] for item in named(f"{now}-")[:jobs]])
            tx.flush()
            counts.append(len(seen))
            tx = SQLiteTransaction(connection)
            tx.now = now = now + 1
            seen.clear()
            leases = exchange.exchange(tx, ME, [done(lease) for lease in leases], ClaimRequest(("q",), jobs)).leases
            tx.flush()
            counts.append(len(seen))
            assert len(leases) == jobs
        exchange.exchange(SQLiteTransaction(connection), ME, [done(lease) for lease in leases], None)
        return counts[2], counts[3]

    one, hundred = counted(1), counted(JOBS)
    connection.close()

    # The counters take one statement for each state, for any number of jobs.
    assert one == hundred
    assert sum(hundred) < 20


def test_no_statement_exceeds_the_limit_of_sqlite_for_any_size_of_call(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    connection = Database(path, Locks(lock_file(path)), durability="fast", auto_migrate=True).writer()
    # The default is a thousand million bytes, as much as a thousand of our largest jobs.
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2 * INSERT_BYTES)
    tx = SQLiteTransaction(connection)
    each = bytes(INSERT_BYTES // 4)
    (receipts,) = exchange.enqueue_all(tx, [[job(f"{number}", payload=each) for number in range(12)]])
    answer = exchange.exchange(tx, ME, [], ClaimRequest(("q",), 3))
    connection.close()

    assert [receipt.action for receipt in receipts] == ["created"] * 12
    assert [(lease.ref.id, len(lease.job.payload)) for lease in answer.leases] == [
        (f"{n}", len(each)) for n in range(3)
    ]


async def test_calls_committed_together_get_their_own_receipts(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    storage = SQLiteStorage(path)
    await storage.open()
    calls = [[job("z")], [job("y"), job("x", task="other")], [job("y")], [job("w", priority=1)], [job("v")], []]
    with quiet(lock_file(path)):
        waiting = [asyncio.ensure_future(storage.enqueue(call)) for call in calls]
        await asyncio.sleep(0.1)
    receipts = [[receipt.action for receipt in call] for call in await asyncio.gather(*waiting)]
    again = [receipt.action for receipt in await storage.enqueue([job("a"), job("z"), job("b"), job("a")])]
    leases = (await storage.exchange(ME, (), ORDER)).leases
    counts = (await storage.survey()).queues[0].counts
    findings = await storage.examine()
    await storage.close()

    assert receipts == [["created"], ["created", "created"], ["duplicate"], ["created"], ["created"], []]
    assert again == ["created", "duplicate", "created", "duplicate"]
    assert [lease.ref.id for lease in leases] == ["v", "w", "y", "z", "x", "a", "b"]
    assert list(counts.values()) == [7]
    assert not [finding for finding in findings if finding.level == "error"]


@pytest.mark.parametrize("name", ["a\0b", "\0", 'a"b', "\\u0000", "ü☃\U0001f600", ""])
async def test_an_id_may_consist_of_any_characters(tmp_path: Path, name: str) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db")
    await storage.enqueue([job("a"), job(name, headers={name: name}), job("b")])
    leases = (await storage.exchange(ME, (), ORDER)).leases
    verdicts = await settle(storage, [done(lease) for lease in leases])
    (kept,) = await storage.get([Ref("q", name)])
    events = [(event.queue, event.id) for event in (await storage.events()).events if isinstance(event, JobEvent)]
    await storage.close()

    assert [lease.ref.id for lease in leases] == ["a", name, "b"]
    assert leases[1].job.headers == {name: name}
    assert verdicts == ["done"] * 3
    assert kept is not None
    assert kept.job.state == "completed"
    assert events == [("q", "a"), ("q", name), ("q", "b")]


async def test_payloads_and_results_are_returned_unchanged(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db")
    parts = [b"", b"\0", b"\xff\0\xfe", b"", bytes(range(256)) * 40, b"[1]"]
    await storage.enqueue([job(f"{n}", payload=part) for n, part in enumerate(parts)])
    leases = (await storage.exchange(ME, (), ORDER)).leases
    await settle(storage, [done(lease, lease.job.payload) for lease in leases])
    kept = await storage.get([lease.ref for lease in leases])
    await storage.enqueue([job("nothing", payload=b"")])
    (lease,) = (await storage.exchange(ME, (), ORDER)).leases
    await settle(storage, [done(lease, b"")])
    (nothing,) = await storage.get([lease.ref])
    await storage.close()

    assert [lease.job.payload for lease in leases] == parts
    assert [detail.job.result for detail in kept if detail is not None] == parts
    assert nothing is not None
    assert (nothing.job.payload, nothing.job.result) == (b"", b"")


async def test_each_of_a_batch_of_settlements_gets_its_own_verdict(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db")
    await storage.enqueue([job("plain"), job("keyed", keys=(Key("k"),)), job("failed"), job("lost"), job("twice")])
    leases = {lease.ref.id: lease for lease in (await storage.exchange(ME, (), ORDER)).leases}
    lost = leases["lost"]
    outdated = Settlement(lost.ref, lost.fence - 1, done(lost).decision, done(lost).ended)
    batch = [
        done(leases["plain"]),
        outdated,
        done(leases["keyed"]),
        settlement(leases["failed"], Raised(ERROR), Random(1)),
        done(leases["twice"]),
        done(leases["twice"]),
        Settlement(Ref("q", "unknown"), 1, done(lost).decision, done(lost).ended),
    ]
    verdicts = await settle(storage, batch)
    kept = await storage.get([lease.ref for lease in leases.values()])
    findings = await storage.examine()
    await storage.close()

    assert verdicts == ["done", "lost", "done", "done", "done", "duplicate", "gone"]
    assert [detail.job.state for detail in kept if detail is not None] == [
        "completed",
        "completed",
        "delayed",
        "active",
        "completed",
    ]
    assert not [finding for finding in findings if finding.level == "error"]


async def test_each_run_of_a_job_is_recorded(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db")
    await storage.enqueue([job("j", policy=Policy(retry=Backoff(max_attempts=5)))])
    for _ in range(3):
        (lease,) = (await storage.exchange(ME, (), ORDER)).leases
        await settle(storage, [settlement(lease, Raised(ERROR, after=0), Random(1))])
    (lease,) = (await storage.exchange(ME, (), ORDER)).leases
    (held,) = await storage.get([lease.ref])
    await settle(storage, [done(lease)])
    (over,) = await storage.get([lease.ref])
    await storage.close()

    assert held is not None
    assert over is not None
    assert [(run.number, run.ended) for run in held.runs] == [(1, "raised"), (2, "raised"), (3, "raised"), (4, None)]
    assert [run.ended for run in over.runs] == ["raised", "raised", "raised", "completed"]
    assert over.runs[-1].reason is None
    assert [run.owner for run in over.runs] == [ME.id] * 4


async def test_texts_with_nul_characters_are_stored_unchanged(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db")
    await storage.enqueue([job(f"{number}") for number in range(4)])
    leases = (await storage.exchange(ME, (), ORDER)).leases
    lines = (NewLogLine("info", "a\0b", {}), NewLogLine("info", "plain", {"c\0": "d\0"}))
    beat = tuple(LeaseRenewal(lease.ref, lease.fence, trace="e\0f", log=lines) for lease in leases)
    await storage.renew(RenewRequest(ME, beat))
    (traced,) = await storage.get([leases[0].ref])
    ended = RunEnd("raised", "g\0h", "i\0j")
    decisions: list[Decision] = [
        Finish(state=State.FAILED, reason="k\0l", error=RecordedError("E", "m\0n")),
        PutBack(charge="failures", after=10, reason="k\0l", error=RecordedError("E", "m\0n")),
        Finish(state=State.FAILED, reason="plain"),
        PutBack(charge="failures", reason="plain"),
    ]
    settlements = [
        Settlement(lease.ref, lease.fence, decision, ended if number < 2 else RunEnd("raised", "plain"))
        for number, (lease, decision) in enumerate(zip(leases, decisions, strict=True))
    ]
    verdicts = await settle(storage, settlements)
    found = await storage.get([lease.ref for lease in leases])
    await storage.close()

    assert verdicts == ["done"] * 4
    assert traced is not None
    assert [run.trace for run in traced.runs] == ["e\0f"]
    for number, kept in enumerate(found):
        assert kept is not None
        assert [(line.message, line.fields) for line in kept.log] == [("a\0b", {}), ("plain", {"c\0": "d\0"})]
        shown = [kept.job.reason, kept.runs[0].reason, kept.runs[0].detail]
        assert shown == (["k\0l", "g\0h", "i\0j"] if number < 2 else ["plain", "plain", None])
        assert kept.job.error == (RecordedError("E", "m\0n") if number < 2 else None)
