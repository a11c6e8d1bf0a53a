"""One chore of the sweep that fails keeps none of the others from being done."""

import sqlite3
from pathlib import Path

import pytest

from holdfast import Holdfast, Reaper, ReaperFailed, State
from holdfast.core.job import Ref
from holdfast.storage.protocol import Bid
from holdfast.storage.sqlite.storage import SQLiteStorage
from holdfast.testing import ManualClock
from holdfast.testing.conformance.material import ALICE, BOB, claim, enqueue, new_job, record

SECOND = 1_000_000

POISON = {
    "promotion": "WHEN old.state = 'delayed' AND new.state = 'waiting'",
    "reclaim": "WHEN old.state = 'active' AND new.fence > old.fence",
}


def poison(path: Path, chore: str) -> None:
    """Make one chore fail, as a record that offends a constraint would."""
    connection = sqlite3.connect(path)
    connection.execute(
        f"CREATE TRIGGER poison BEFORE UPDATE ON job {POISON[chore]} BEGIN SELECT RAISE(ABORT, 'poisoned'); END"
    )
    connection.commit()
    connection.close()


@pytest.mark.statement(36)
@pytest.mark.parametrize("chore", list(POISON))
async def test_a_failing_chore_leaves_the_others_alone(tmp_path: Path, chore: str) -> None:
    clock = ManualClock()
    storage = SQLiteStorage(tmp_path / "queue.db", clock=clock)
    await storage.open()
    await enqueue(storage, new_job("stalls"))
    (lease,) = await claim(storage, ALICE)
    await enqueue(storage, new_job("later", delay=SECOND))
    poison(tmp_path / "queue.db", chore)
    troubles: list[str] = []
    # The lease runs out, then its grace, which is two beats since nobody has swept for a while.
    for seconds in (21, 11):
        clock.advance(seconds)
        troubles += (await storage.sweep(Bid(BOB, term=None))).troubles
    states = [(await record(storage, Ref("default", name))).state for name in ("stalls", "later")]
    taken = (await record(storage, lease.ref)).fence > lease.fence
    await storage.close()

    assert troubles
    assert all("poisoned" in trouble for trouble in troubles)
    if chore == "reclaim":
        assert (taken, states[1]) == (False, State.WAITING)
    else:
        assert (taken, states[1]) == (True, State.DELAYED)


async def test_the_reaper_says_so(tmp_path: Path) -> None:
    clock = ManualClock()
    storage = SQLiteStorage(tmp_path / "queue.db", clock=clock)
    await storage.open()
    await enqueue(storage, new_job("later", delay=SECOND))
    poison(tmp_path / "queue.db", "promotion")
    clock.advance(2)
    reaper = Reaper(Holdfast(storage=storage, clock=clock), election=None)
    heard: list[ReaperFailed] = []
    reaper.on(ReaperFailed)(heard.append)
    await reaper.turn()
    await storage.close()

    assert ["poisoned" in event.error for event in heard] == [True]
