"""Random walks with jobs that wait, on the model and on SQLite at once: every answer and every record is the same."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec import structs

from tenure.clock import Clock
from tenure.core.job import NewJob, Owner
from tenure.core.settlement import Settlement
from tenure.core.waiting import BoxCounts
from tenure.storage.memory.model import Model
from tenure.storage.requests import (
    ClaimRequest,
    EnqueueResult,
    ExchangeResult,
    RenewRequest,
    RenewResult,
    SweepRequest,
    SweepResult,
)
from tenure.storage.revisions import Revision, RevisionResult
from tenure.storage.sql import exchange, inbox, reading, renew, revise, sweep
from tenure.storage.sql.audit import counters
from tenure.storage.sql.transitions import find_job, recount
from tenure.storage.sqlite.database import Database
from tenure.storage.sqlite.locks import Locks, lock_file
from tenure.storage.sqlite.transaction import SQLiteTransaction
from tests.storage.waiting_walk import Walk

pytestmark = pytest.mark.thorough

LENGTH = 120

T = TypeVar("T")


class Twin(Model):
    """A model that makes each call also on a SQLite file, and compares the answers and the states."""

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(clock)
        self.connection = Database(
            str(path), Locks(lock_file(str(path))), durability="fast", auto_migrate=True
        ).writer()

    def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Compare an enqueue."""
        expected = super().enqueue(jobs)
        self.compare(expected, lambda tx: exchange.enqueue_all(tx, [jobs])[0])
        return expected

    def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        """Compare an exchange. The model also hands out the entries that other calls have written since then."""
        expected = super().exchange(owner, settlements, order)
        handed_out: list[Any] = []

        def ask(tx: SQLiteTransaction) -> ExchangeResult:
            answer = exchange.exchange(tx, owner, settlements, order)
            handed_out.extend(answer.outbox)
            return structs.replace(answer, outbox=())

        self.compare(structs.replace(expected, outbox=()), ask)
        assert all(entry in expected.outbox for entry in handed_out)
        return expected

    def renew(self, beat: RenewRequest) -> RenewResult:
        """Compare a beat."""
        expected = super().renew(beat)
        self.compare(expected, lambda tx: renew.renew(tx, beat))
        return expected

    def sweep(self, bid: SweepRequest) -> SweepResult:
        """Compare a sweep."""
        expected = super().sweep(bid)
        self.compare(expected, lambda tx: sweep.sweep(tx, bid, lambda _: True))
        return expected

    def revise(self, revisions: Sequence[Revision]) -> list[RevisionResult]:
        """Compare revisions."""
        expected = super().revise(revisions)
        self.compare(expected, lambda tx: revise.revise(tx, revisions))
        return expected

    def compare(self, expected: T, ask: Callable[[SQLiteTransaction], T]) -> None:
        """Make a call on SQLite, and compare its answer, then all records, inboxes, entries and events."""
        tx = SQLiteTransaction(self.connection, repairs=True)
        tx.now = self._clock.now()
        self.connection.execute("BEGIN IMMEDIATE")
        answer = ask(tx)
        tx.flush()
        recount(tx)
        self.connection.execute("COMMIT")
        assert answer == expected
        refs = list(self.records)
        assert reading.get(tx, refs) == self.get(refs)
        assert reading.survey(tx, (), 0).queues == self.survey().queues
        assert reading.events(tx, None, 100_000).events == self.events(None, 100_000).events
        for ref in refs:
            found = find_job(tx, ref)
            assert found is not None
            expected_boxes = (
                {
                    name: BoxCounts(len(box.failed), len(box.completed), box.total, box.first_failed)
                    for name, box in self.inboxes[ref].boxes.items()
                    if box.arrived or box.total is not None
                }
                if ref in self.inboxes
                else {}
            )
            assert inbox.read(tx, found[0]).boxes == expected_boxes


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[] if seed < 3 else pytest.mark.slow) for seed in range(20)])
def test_every_wait_is_that_of_the_model(tmp_path: Path, seed: int) -> None:
    twins: list[Twin] = []

    class OnFile(Twin):
        def __init__(self, clock: Clock) -> None:
            super().__init__(tmp_path / "jobs.db", clock)
            twins.append(self)

    Walk(seed, OnFile).run(LENGTH)
    (twin,) = twins

    assert counters(SQLiteTransaction(twin.connection)).level == "ok"
    twin.connection.close()
