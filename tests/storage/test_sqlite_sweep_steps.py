"""If one chore of the sweep fails, all others are still done."""

import sqlite3
from pathlib import Path

import pytest

from tenure import Reaper, ReaperFailed, State, Tenure
from tenure.core.job import Policy, Redriving, Ref
from tenure.core.retry import Backoff
from tenure.storage.protocol import PROMOTE_LIMIT, Settings, SweepRequest, Target
from tenure.storage.sqlite.storage import SQLiteStorage
from tenure.testing import ManualClock
from tenure_testing.conformance.helpers import ALICE, BOB, RAISED, claim, enqueue, new_job, record, settle, start

SECOND = 1_000_000

POISON = {
    "reclaimed": "UPDATE ON tenure_job WHEN old.state = 'active' AND new.fence > old.fence",
    "suspected": "UPDATE ON tenure_job WHEN old.suspect_until IS NULL AND new.suspect_until IS NOT NULL",
    "expired": "UPDATE ON tenure_job WHEN new.state = 'expired'",
    "promoted": "UPDATE ON tenure_job WHEN old.state = 'delayed' AND new.state = 'waiting'",
    "unparked": "UPDATE ON tenure_job WHEN old.parked_under IS NOT NULL AND new.parked_under IS NULL",
    "redriven": "UPDATE ON tenure_job WHEN old.state = 'failed' AND new.state = 'waiting'",
    "trimmed": "DELETE ON tenure_job",
    "forgotten": "DELETE ON tenure_event",
}


def poison(path: Path, chore: str) -> None:
    """Make one chore fail, as a record that violates a constraint would."""
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TRIGGER poison BEFORE {POISON[chore]} BEGIN SELECT RAISE(ABORT, 'poisoned'); END")
    connection.commit()
    connection.close()


@pytest.mark.statement(36)
@pytest.mark.parametrize("chore", ["promoted", "reclaimed"])
async def test_a_failing_chore_leaves_the_others_alone(tmp_path: Path, chore: str) -> None:
    clock = ManualClock()
    storage = SQLiteStorage(tmp_path / "queue.db", clock=clock)
    await storage.open()
    await enqueue(storage, new_job("stalls"))
    (lease,) = await claim(storage, ALICE)
    await enqueue(storage, new_job("later", delay=SECOND))
    poison(tmp_path / "queue.db", chore)
    troubles: list[str] = []
    # The lease expires, then its grace, which is two beats because no process has swept for a while.
    for seconds in (21, 11):
        clock.advance(seconds)
        troubles += (await storage.sweep(SweepRequest(BOB, term=None))).troubles
    states = [(await record(storage, Ref("default", name))).state for name in ("stalls", "later")]
    taken = (await record(storage, lease.ref)).fence > lease.fence
    await storage.close()

    assert troubles
    assert all("poisoned" in trouble for trouble in troubles)
    if chore == "reclaimed":
        assert (taken, states[1]) == (False, State.WAITING)
    else:
        assert (taken, states[1]) == (True, State.DELAYED)


@pytest.mark.parametrize("chore", [None, *POISON])
async def test_a_sweep_does_all_chores_except_the_one_that_fails(tmp_path: Path, chore: str | None) -> None:
    clock = ManualClock()
    storage = SQLiteStorage(tmp_path / "queue.db", clock=clock)
    again = Policy(retry=Backoff(max_attempts=1), redrive=Redriving(3600 * SECOND))
    await enqueue(storage, new_job("silent"), new_job("completes"), new_job("fails", policy=again))
    silent, completes, fails = await claim(storage)
    await settle(storage, ALICE, completes)
    await settle(storage, ALICE, fails, RAISED)
    # The grace of "silent" is over at the second sweep, which makes "stalls" a suspect.
    clock.advance(21)
    await storage.sweep(SweepRequest(BOB, term=None))
    # A task that is resumed releases PROMOTE_LIMIT of its jobs at once; the sweep releases the last one.
    halted = Target("task", "halted")
    await storage.tune(halted, Settings(paused=True))
    await enqueue(storage, *(new_job(f"halted-{number}", task="halted") for number in range(PROMOTE_LIMIT + 1)))
    await claim(storage)
    await storage.tune(halted, Settings(paused=False))
    await enqueue(storage, new_job("aged", ttl=SECOND), new_job("later", delay=SECOND))
    await start(storage, new_job("stalls", queue="other"))
    if chore is not None:
        poison(tmp_path / "queue.db", chore)
    clock.advance(8 * 86_400)
    swept = await storage.sweep(SweepRequest(BOB, term=None))
    findings = await storage.examine()
    await storage.close()

    assert [chore for chore, did in swept.did.items() if not did] == ([] if chore is None else [chore])
    assert ["poisoned" in trouble for trouble in swept.troubles] == ([] if chore is None else [True])
    assert silent.ref in [stalled.lease.ref for stalled in swept.stalled] or chore == "reclaimed"
    assert not [finding for finding in findings if finding.level == "error"]


async def test_the_reaper_reports_a_failed_chore(tmp_path: Path) -> None:
    clock = ManualClock()
    storage = SQLiteStorage(tmp_path / "queue.db", clock=clock)
    await storage.open()
    await enqueue(storage, new_job("later", delay=SECOND))
    poison(tmp_path / "queue.db", "promoted")
    clock.advance(2)
    reaper = Reaper(Tenure(storage=storage, clock=clock), election=None)
    reported: list[ReaperFailed] = []
    reaper.on(ReaperFailed)(reported.append)
    await reaper.turn()
    await storage.close()

    assert ["poisoned" in event.error for event in reported] == [True]
