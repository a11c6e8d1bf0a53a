"""The cost of fairness and rates on SQLite: almost nothing for plain jobs, and independent of the number of tenants."""

import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tenure.clock import SECOND
from tenure.core.job import NewJob, RateKey, Ref
from tenure.storage.protocol import ClaimRequest, DeleteJob, Settings, SweepRequest, Target
from tenure.storage.sql import exchange, fair_queue, sweep_steps
from tenure.storage.sql.transaction import Transaction
from tenure.storage.sqlite import SQLiteStorage
from tenure.storage.sqlite.transaction import SQLiteTransaction
from tenure.testing import ManualClock
from tests.storage.helpers import job, owner

pytestmark = pytest.mark.thorough

ME = owner(name="me")


class Bench:
    """Runs transactions in a file one by one, and counts the statements of each."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._clock = clock

    def statements(self, do: Callable[[Transaction], Any]) -> int:
        """Return how many statements a transaction took, including those at its end."""
        seen: list[str] = []
        self._connection.execute("BEGIN IMMEDIATE")
        tx = SQLiteTransaction(self._connection)
        tx.now = self._clock.now()
        self._connection.set_trace_callback(seen.append)
        do(tx)
        tx.flush()
        self._connection.set_trace_callback(None)
        self._connection.execute("COMMIT")
        return len(seen)

    def enqueue(self, jobs: Sequence[NewJob]) -> int:
        return self.statements(lambda tx: exchange.enqueue_all(tx, [jobs]))

    def claim(self, room: int) -> int:
        return self.statements(lambda tx: exchange.exchange(tx, ME, [], ClaimRequest(("q",), room)))

    def count(self, table: str) -> int:
        return int(self._connection.execute(f"SELECT count(*) FROM tenure_{table}").fetchone()[0])

    def version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        self._connection.close()


@contextmanager
def bench(path: Path, clock: ManualClock) -> Generator[Bench]:
    made = Bench(path, clock)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def path(tmp_path: Path, clock: ManualClock) -> Path:
    storage = SQLiteStorage(tmp_path / "jobs.db", clock=clock)
    await storage.open()
    await storage.close()
    return tmp_path / "jobs.db"


def test_a_plain_queue_pays_one_statement_a_call_for_fairness(path: Path, clock: ManualClock) -> None:
    with bench(path, clock) as plain:
        one, many = plain.enqueue([job("a")]), plain.enqueue([job(f"b{n}") for n in range(100)])
        first, hundred = plain.claim(1), plain.claim(100)

    # One for all rows; the others read the fair queue and the settings of the queue, and change the counter.
    assert many == one == 4
    assert hundred == first


def test_a_fair_queue_pays_for_each_tenant_once_a_call(path: Path, clock: ManualClock) -> None:
    with bench(path, clock) as fair:
        fair.enqueue([job("a", fair_key="a")])
        one = fair.enqueue([job("b", fair_key="a")])
        many = fair.enqueue([job(f"c{n}", fair_key="a") for n in range(100)])
        first, hundred = fair.claim(1), fair.claim(100)

    # An INSERT each, and before it two checks whether the id is that of a job or of a collected call.
    assert many - one == 99 * 3
    assert hundred == first


def test_an_empty_queue_forgets_its_fairness_records(path: Path, clock: ManualClock) -> None:
    with bench(path, clock) as fair:
        fair.enqueue([job(f"a{n}", fair_key=f"tenant-{n}") for n in range(20)])
        kept = fair.count("fair_tag")
        fair.claim(20)
        fair.enqueue([job("plain")])
        left = [fair.count(table) for table in ("fair_line", "fair_reached", "fair_tag")]

    assert kept == 20
    assert left == [0, 0, 0]


async def test_a_sweep_deletes_tenants_that_the_queue_has_passed(path: Path, clock: ManualClock) -> None:
    storage = SQLiteStorage(path, clock=clock)
    with bench(path, clock) as fair:
        fair.enqueue([job(f"once-{n}", fair_key=f"tenant-{n}") for n in range(20)])
        fair.enqueue([job(f"more-{n}", fair_key="steady") for n in range(9)])
        fair.claim(22)
        await storage.sweep(SweepRequest(ME, None))
        left = fair.count("fair_tag")
    await storage.close()

    assert left == 1


async def test_sweeps_delete_fair_queues_without_jobs_in_batches(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_steps, "PASSED_LIMIT", 15)
    storage = SQLiteStorage(path, clock=clock)
    with bench(path, clock) as fair:
        fair.enqueue([job(f"a{n}", fair_key=f"tenant-{n}") for n in range(20)])
        fair.enqueue([job("b", queue="busy", fair_key="a"), job("c", queue="busy", fair_key="a", delay=SECOND)])
        await storage.revise([DeleteJob(Ref("q", f"a{n}")) for n in range(20)])
        kept: list[list[int]] = []
        for _ in range(3):
            await storage.sweep(SweepRequest(ME, None))
            kept.append([fair.count(table) for table in ("fair_line", "fair_reached", "fair_tag")])
    await storage.close()

    assert kept == [[2, 2, 6], [1, 1, 1], [1, 1, 1]]


async def test_a_sweep_deletes_rates_that_no_longer_limit_a_job(path: Path, clock: ManualClock) -> None:
    storage = SQLiteStorage(path, clock=clock)
    with bench(path, clock) as paced:
        paced.enqueue([job(f"a{n}", rates=(RateKey(f"r{n}", SECOND),)) for n in range(20)])
        paced.claim(20)
        kept = paced.count("rate")
        clock.advance(2)
        await storage.sweep(SweepRequest(ME, None))
        left = paced.count("rate")
    await storage.close()

    assert (kept, left) == (20, 0)


async def test_sweeps_delete_rates_in_batches_with_or_without_parked_jobs(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_steps, "PASSED_LIMIT", 7)
    storage = SQLiteStorage(path, clock=clock)
    kept: list[int] = []
    with bench(path, clock) as paced:
        for of in ("first", "second", "third"):
            paced.enqueue([job(f"{of}{n}", rates=(RateKey(f"r{n}", SECOND),)) for n in range(10)])
        paced.claim(20)
        clock.advance(0.000_001)
        paced.claim(20)
        parked = paced.count("rate WHERE opens_at IS NOT NULL")
        await storage.revise([DeleteJob(Ref("q", f"third{n}")) for n in range(10)])
        left = paced.count("rate WHERE opens_at IS NOT NULL")
        clock.advance(5)
        for _ in range(2):
            await storage.sweep(SweepRequest(ME, None))
            kept.append(paced.count("rate"))
    await storage.close()

    assert (parked, left, kept) == (10, 0, [3, 0])


def test_a_claim_costs_no_more_when_ten_times_as_many_rates_have_opened(path: Path, clock: ManualClock) -> None:
    with bench(path, clock) as paced:

        def cost(tenants: int) -> int:
            for of in range(3):
                paced.enqueue(
                    [
                        job(f"{of}-{tenants}-{n}", rates=(RateKey(f"{tenants}-{n}", 60 * SECOND),))
                        for n in range(tenants)
                    ]
                )
            for _ in range(2):
                while paced.claim(128) > 20:
                    pass
                clock.advance(0.000_001)
            clock.advance(60)
            return paced.claim(10)

        few, many = cost(200), cost(2000)

    assert many <= few


@pytest.mark.fault("W-N12")
async def test_a_claim_before_a_rate_opens_writes_nothing(path: Path, clock: ManualClock) -> None:
    storage = SQLiteStorage(path, clock=clock)
    await storage.tune(Target("queue", "whole"), Settings(rate=RateKey("queue", 60 * SECOND)))
    await storage.enqueue([job(f"a{n}", rates=(RateKey("r", 60 * SECOND),)) for n in range(5)])
    await storage.enqueue([job(f"w{n}", queue="whole") for n in range(5)])
    order = ClaimRequest(("q", "whole"), 10)
    for _ in range(3):
        await storage.exchange(ME, order=order)
        clock.advance(0.000_001)
    with bench(path, clock) as watching:
        before = watching.version()
        answers = [await storage.exchange(ME, order=order) for _ in range(20)]
        after = watching.version()
        clock.advance(60)
        opened = await storage.exchange(ME, order=order)
    await storage.close()

    assert {(answer.leases, answer.left) for answer in answers} == {((), False)}
    assert before == after
    assert [lease.ref.id for lease in opened.leases] == ["a2", "w2"]


def test_a_step_that_is_rolled_back_leaves_the_fair_queue_unchanged(path: Path, clock: ManualClock) -> None:
    with bench(path, clock) as fair:
        fair.enqueue([job(f"a{n}", fair_key="a") for n in range(3)])

        def fails(tx: Transaction) -> tuple[int, int]:
            def chore() -> None:
                fair_queue.score(tx, job("lost", fair_key="a"), tx.now)
                raise ValueError("poisoned")

            before = fair_queue.score(tx, job("one", fair_key="b"), tx.now)
            tx.savepoint(chore, None)
            return before, fair_queue.score(tx, job("two", fair_key="a"), tx.now)

        scores: list[tuple[int, int]] = []
        fair.statements(lambda tx: scores.append(fails(tx)))

    # The fourth job of A comes three shares after the first of B, as if the failed step had not been there.
    assert scores[0][1] - scores[0][0] == 3 * SECOND
