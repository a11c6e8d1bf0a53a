"""A claim over many queues takes as many statements on SQLite as a claim over few."""

import sqlite3
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from tenure.clock import SECOND
from tenure.core.job import NewJob
from tenure.storage.protocol import ClaimRequest
from tenure.storage.sql import exchange
from tenure.storage.sql.exchange import QUEUES_READ
from tenure.storage.sqlite import SQLiteStorage
from tenure.storage.sqlite.transaction import SQLiteTransaction
from tenure.testing import ManualClock
from tenure_testing.conformance.helpers import QUEUE
from tenure_testing.conformance.unknown_tasks import park_under_many
from tests.storage.helpers import job, owner

pytestmark = pytest.mark.thorough

ME = owner(name="me")
QUEUES = tuple(f"queue-{number}" for number in range(200))


async def statements(path: Path, jobs: Sequence[NewJob], *, room: int, few: int) -> tuple[int, int]:
    """Return how many statements a claim takes over the first few of the queues, and one over all of them."""
    clock = ManualClock()
    storage = SQLiteStorage(path, clock=clock)
    await storage.enqueue(jobs)
    await storage.close()
    clock.advance(1)
    connection = sqlite3.connect(path, isolation_level=None)
    counts: list[int] = []
    for queues in (QUEUES[:few], QUEUES):
        seen: list[str] = []
        connection.execute("BEGIN")
        tx = SQLiteTransaction(connection)
        tx.now = clock.now()
        connection.set_trace_callback(seen.append)
        exchange.exchange(tx, ME, [], ClaimRequest(queues, room))
        connection.set_trace_callback(None)
        connection.execute("ROLLBACK")
        counts.append(len(seen))
    connection.close()
    return counts[0], counts[1]


async def test_queues_without_any_jobs_cost_a_claim_no_statement(tmp_path: Path) -> None:
    few, many = await statements(tmp_path / "jobs.db", [job("a", QUEUES[0])], room=5, few=QUEUES_READ + 1)

    assert many == few


async def test_queues_beyond_the_room_of_a_claim_cost_no_statements(tmp_path: Path) -> None:
    jobs = [job(f"{number}", queue) for queue in QUEUES for number in range(6)]
    few, many = await statements(tmp_path / "jobs.db", jobs, room=5, few=QUEUES_READ + 1)

    assert many == few


async def test_queues_whose_jobs_are_not_due_cost_none(tmp_path: Path) -> None:
    jobs = [job("late", queue, delay=3600 * SECOND) for queue in QUEUES]
    few, many = await statements(tmp_path / "jobs.db", [*jobs, job("a", QUEUES[0])], room=5, few=QUEUES_READ + 1)

    assert many == few


@pytest.mark.parametrize(("known", "most"), [("others", 300), ("parked", 400)])
async def test_a_claim_looks_at_a_bounded_number_of_parked_jobs(tmp_path: Path, known: str, most: int) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db", clock=ManualClock())
    tasks = await park_under_many(storage, 600)
    await storage.close()
    knows = {f"{known}-{number}": 1 for number in range(400)} | dict.fromkeys(tasks if known == "parked" else [], 1)
    connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    connection.execute("BEGIN")
    tx = SQLiteTransaction(connection)
    tx.now = ManualClock().now()
    ran = count()
    connection.set_progress_handler(lambda: next(ran) < 0, 100)
    exchange.exchange(tx, ME, [], ClaimRequest((QUEUE,), 1, tasks=knows))
    connection.close()

    # In hundreds of instructions of SQLite.
    assert next(ran) <= most
