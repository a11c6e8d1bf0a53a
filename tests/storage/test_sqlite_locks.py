"""The kernel's locks: one writer at a time, and a lock of each owner that ends with its process."""

import asyncio
import gc
import os
import signal
import sqlite3
import threading
from functools import partial
from pathlib import Path

import pytest

from tenure import Tenure, Timing
from tenure.core.job import Owner
from tenure.errors import StorageError
from tenure.storage.protocol import ClaimRequest, RenewRequest, StalledLease, SweepRequest
from tenure.storage.sqlite import SQLiteStorage, session
from tenure.storage.sqlite.locks import Locks, lock_file, quiet
from tests.storage.helpers import child, end, job, next_line, owner, resume, script

pytestmark = pytest.mark.thorough

WORKER = script(
    """
async def main():
    owner = Owner(sys.argv[2])
    await storage.enqueue([NewJob(queue="q", id=f"j{n}", task="t", payload=b"") for n in range(3)])
    await storage.renew(RenewRequest(owner, worker=WorkerInfo(("q",))))
    if len(sys.argv) > 3:
        await storage.sweep(SweepRequest(owner, 3_600_000_000))
    say(len((await storage.exchange(owner, (), ClaimRequest(("q",), 2))).leases))
    await resumed()
"""
)


def test_two_storages_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    one, two = Locks(str(tmp_path / "lock")), Locks(str(tmp_path / "lock"))
    order: list[str] = []

    def write() -> None:
        with two.writing():
            order.append("two")

    with one.writing():
        other = threading.Thread(target=write)
        other.start()
        other.join(0.1)
        order.append("one")
    other.join()
    one.close()
    two.close()

    assert order == ["one", "two"]


def test_an_owner_lock_survives_the_closing_of_another_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    mine, theirs = Locks(str(path)), Locks(str(path))
    mine.hold("me")
    path.read_bytes()

    assert theirs.alive("me")
    assert mine.alive("me")
    assert not theirs.alive("you")

    mine.close()

    assert not theirs.alive("me")

    theirs.close()


def test_a_guarded_owner_is_alive_until_its_guard_releases_it_or_ends(tmp_path: Path) -> None:
    mine, guard, others = (Locks(str(tmp_path / "lock")) for _ in range(3))
    for over in (partial(guard.release, "me"), guard.close):
        mine.hold("me")
        guard.guard("me")
        mine.close()

        assert others.alive("me")
        assert guard.alive("me")
        assert not guard.has_owners
        assert not guard.holds("me")

        over()

        assert not others.alive("me")
        assert not guard.alive("me")

    others.close()


def test_releasing_a_guard_keeps_the_lock_of_the_same_owner(tmp_path: Path) -> None:
    mine, others = Locks(str(tmp_path / "lock")), Locks(str(tmp_path / "lock"))
    mine.hold("me")
    mine.guard("me")
    mine.release("me")

    assert others.alive("me")

    mine.close()
    others.close()


def test_locks_move_to_a_file_that_replaced_theirs(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    mine = Locks(str(path))
    mine.hold("me")
    path.unlink()
    newcomer = Locks(str(path))

    assert not newcomer.alive("me")

    with mine.writing():
        pass

    assert newcomer.alive("me")

    mine.close()
    newcomer.close()


def test_an_owner_of_a_replaced_lock_file_is_alive_until_seen_at_the_new(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    mover, comer, hidden = (Locks(str(path)) for _ in range(3))
    comer.hold("comer")
    hidden.hold("hidden")
    with mover.writing():
        path.unlink()
    with mover.writing():
        pass

    # Their locks are in the old file, which is not checked any more.
    assert mover.alive("comer")
    assert mover.alive("hidden")

    with comer.writing():
        pass

    assert mover.alive("comer")

    comer.close()
    hidden.close()

    assert not mover.alive("comer")
    # The death of this owner is detected by its lease only.
    assert mover.alive("hidden")

    mover.close()


async def test_a_deleted_lock_file_makes_no_worker_lose_its_jobs(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    working, sweeping = SQLiteStorage(path), SQLiteStorage(path)
    worker, reaper = owner(), owner()
    await working.enqueue([job("a")])
    await working.exchange(worker, (), ClaimRequest(("q",), 1))
    before = await sweeping.sweep(SweepRequest(reaper))
    os.unlink(lock_file(path))
    after = await sweeping.sweep(SweepRequest(reaper))
    await working.close()
    await sweeping.close()

    assert (before.stalled, after.stalled) == ((), ())


def test_a_kill_releases_the_lock_of_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    by = owner()
    process = child(WORKER, path, by.id)

    assert next_line(process) == "2"

    locks = Locks(f"{path}.lock")

    assert locks.alive(by.id)

    end(process)

    assert not locks.alive(by.id)

    locks.close()


@pytest.mark.parametrize("leading", [False, True])
async def test_a_sweep_reclaims_leases_of_a_killed_process_at_once(tmp_path: Path, leading: bool) -> None:
    path = tmp_path / "jobs.db"
    dead, by = owner(), owner()
    process = child(WORKER, path, dead.id, *(["lead"] if leading else []))

    assert next_line(process) == "2"

    end(process)
    storage = SQLiteStorage(path)
    before = await storage.survey()
    swept = await storage.sweep(SweepRequest(by))
    after = await storage.survey()
    await storage.close()

    assert {(stalled.reason, stalled.owner) for stalled in swept.stalled} == {("process_died", dead.id)}
    assert [stalled.lease.job.owner for stalled in swept.stalled] == [by.id, by.id]
    assert [worker.died for worker in before.workers + after.workers] == [False, True]
    assert [term.owner for term in after.leaders] == [by.id]


async def test_a_sweep_leaves_a_killed_worker_to_its_supervisor(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    dead, by = owner(), owner()
    guard, others = SQLiteStorage(path), SQLiteStorage(path)
    await guard.renew(RenewRequest(dead, guarding=True))
    process = child(WORKER, path, dead.id)

    assert next_line(process) == "2"

    end(process)
    swept = await others.sweep(SweepRequest(owner()))
    taken = await guard.reclaim(dead.id, by)
    died = [worker.died for worker in (await others.survey()).workers]
    alive = (lock := Locks(f"{path}.lock")).alive(dead.id)
    lock.close()
    await guard.close()
    await others.close()

    assert swept.stalled == ()
    assert [(stalled.reason, stalled.lease.job.owner) for stalled in taken.stalled] == [("process_died", by.id)] * 2
    assert (died, alive) == ([True], False)


async def test_a_sweep_leaves_the_jobs_of_a_living_process(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    process = child(WORKER, path, owner().id)

    assert next_line(process) == "2"

    storage = SQLiteStorage(path)
    swept = await storage.sweep(SweepRequest(owner()))
    survey = await storage.survey()
    await storage.close()
    end(process)

    assert swept.stalled == ()
    assert len(survey.workers) == 1


async def test_a_second_storage_of_an_owner_takes_over_its_lock(tmp_path: Path) -> None:
    by = owner()
    one, two = SQLiteStorage(tmp_path / "jobs.db"), SQLiteStorage(tmp_path / "jobs.db")
    await one.enqueue([job("a")])
    await one.exchange(by, (), ClaimRequest(("q",), 1))
    await two.renew(RenewRequest(by))
    await one.close()
    await two.renew(RenewRequest(by))
    third = SQLiteStorage(tmp_path / "jobs.db")
    swept = await third.sweep(SweepRequest(owner()))
    await two.close()
    await third.close()

    assert swept.stalled == ()


FORKING = script(
    """
import os
import signal
from tenure.storage.sqlite.locks import Locks

async def main():
    owner = Owner(sys.argv[2])
    await storage.enqueue([NewJob(queue="q", id="before", task="t", payload=b"")])
    await storage.exchange(owner, (), ClaimRequest(("q",), 1))
    await storage.survey()
    pid = os.fork()
    if pid == 0:
        loop = asyncio.new_event_loop()
        asyncio._set_running_loop(None)
        made = loop.run_until_complete(storage.enqueue([NewJob(queue="q", id="inside", task="t", payload=b"")]))
        seen = loop.run_until_complete(storage.survey()).queues[0].counts
        say(f"child {made[0].action} {sum(seen.values())}")
        time.sleep(60)
    await storage.enqueue([NewJob(queue="q", id="after", task="t", payload=b"")])
    say(f"parent {pid}")
    await resumed()
"""
)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_works_on_its_own_and_keeps_no_lock_of_its_parents(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    by = owner()
    process = child(FORKING, path, by.id)
    words = dict(line.split(" ", 1) for line in (next_line(process), next_line(process)))
    locks = Locks(f"{path}.lock")
    lived = locks.alive(by.id)
    process.kill()
    process.wait()
    died = not locks.alive(by.id)
    os.kill(int(words["parent"]), 9)
    process.communicate()
    locks.close()

    assert words["child"].startswith("created")
    assert lived
    assert died


def test_a_fork_that_times_out_leaves_the_gate_to_its_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "FORK_PATIENCE", 0.01)
    # Not connected yet: another thread is about to connect, and waits for the write lock.
    one = session.ThreadConnection("nowhere", lambda: sqlite3.connect(":memory:"))
    inside, over = threading.Event(), threading.Event()

    def connect() -> None:
        with one.gate:
            inside.set()
            over.wait()

    thread = threading.Thread(target=connect)
    thread.start()
    inside.wait()
    one.before_fork()
    one.after_fork_in_parent()

    assert one.gate.locked()

    over.set()
    thread.join()

    assert not one.gate.locked()

    one.before_fork()

    assert one.gate.locked()

    one.after_fork_in_parent()

    assert not one.gate.locked()


def test_a_child_forked_while_a_connection_is_made_does_not_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "FORK_PATIENCE", 0.01)
    one = session.ThreadConnection("nowhere", lambda: sqlite3.connect(":memory:"))
    with one.gate:
        one.before_fork()
        one.after_fork_in_child()
    with one.gate, pytest.raises(StorageError, match="spawn"):
        one.use()


CLOSING = script(
    """
async def main():
    owner = Owner(sys.argv[2])
    await storage.enqueue([NewJob(queue="q", id=f"j{n}", task="t", payload=b"") for n in range(3)])
    (lease,) = (await storage.exchange(owner, (), ClaimRequest(("q",), 1))).leases
    await storage.close()
    say("closed")
    await resumed()
    beat = RenewRequest(owner, (LeaseRenewal(lease.ref, lease.fence),), WorkerInfo(("q",)))
    say(len((await storage.renew(beat)).lost))
    await resumed()
    await storage.renew(RenewRequest(owner, last=True))
    try:
        await storage.survey()
    except Exception as error:
        say(type(error).__name__)
    await resumed()
"""
)


async def test_closing_under_a_living_owner_does_not_declare_it_dead(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    by = owner()
    process = child(CLOSING, path, by.id)
    storage = SQLiteStorage(path)
    locks = Locks(lock_file(path))

    assert next_line(process) == "closed"

    swept = await storage.sweep(SweepRequest(owner(), None))
    resume(process)

    assert next_line(process) == "0"

    resume(process)

    # A storage that was closed while it had owners closes again after its last owner.
    assert next_line(process) == "StorageUnavailableError"

    left = not locks.alive(by.id)
    end(process)
    await storage.close()
    locks.close()

    assert swept.stalled == ()
    assert left


async def test_a_worker_works_on_after_its_app_was_closed(tmp_path: Path) -> None:
    app = Tenure(f"sqlite:///{tmp_path / 'jobs.db'}", timing=Timing(lease="1s", sweep="200ms", grace="100ms"))
    started, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def patient() -> str:
        started.set()
        await go.wait()
        return "done"

    other, by = SQLiteStorage(tmp_path / "jobs.db"), owner()
    stalled: list[StalledLease] = []
    async with app.worker(reaper=False):
        first, second = await patient.enqueue(), await patient.enqueue()
        await started.wait()
        await app.close()
        for _ in range(25):
            # Longer than lease and grace together.
            stalled += (await other.sweep(SweepRequest(by, None, 200_000, 100_000))).stalled
            await asyncio.sleep(0.1)
        go.set()
        results = [await job.result(timeout=10) for job in (first, second)]
    await other.close()
    await app.close()

    assert stalled == []
    assert results == ["done", "done"]


def test_a_garbage_collected_storage_releases_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    mine, theirs = Locks(str(path)), Locks(str(path))
    mine.hold("me")
    mine.close_if_unused()
    lived = theirs.alive("me")
    del mine
    gc.collect()
    died = not theirs.alive("me")
    theirs.close()

    assert (lived, died) == (True, True)


LATE = script(
    """
import atexit
from tenure.background_loop import PORTAL

async def main():
    await storage.enqueue([NewJob(queue="q", id="a", task="t", payload=b"")])

def ask():
    try:
        PORTAL.call(storage.survey(), verb="survey")
    except Exception as error:
        say(f"{type(error).__name__}: {error}")
    PORTAL.call(storage.close(), verb="close")
    say("closed")

PORTAL.call(storage.open(), verb="open")
atexit.register(ask)
"""
)


def test_a_call_at_interpreter_exit_raises_an_error_that_names_atexit(tmp_path: Path) -> None:
    process = child(LATE, tmp_path / "jobs.db")
    lines = [next_line(process), next_line(process)]
    process.communicate()

    assert lines[0].startswith("StorageUnavailableError: ")
    assert "atexit" in lines[0]
    assert lines[1] == "closed"
    assert process.returncode == 0


async def test_a_process_frozen_between_transactions_blocks_no_other(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    busy = script(
        """
async def main():
    for n in range(1_000_000):
        await storage.enqueue([NewJob(queue="q", id=f"{n}", task="t", payload=b"")])
        if n == 20:
            say("busy")
"""
    )
    process = child(busy, path)

    assert next_line(process) == "busy"

    storage = SQLiteStorage(path)
    await storage.open()
    with quiet(lock_file(path)):
        stop(process.pid)
    receipts = await asyncio.wait_for(storage.enqueue([job("mine")]), 10)
    await storage.close()
    end(process)

    assert receipts[0].action == "created"


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)


async def test_an_owner_needs_no_hexadecimal_name(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db")
    await storage.enqueue([job("a")])
    answer = await storage.exchange(Owner("ann's machine ☃"), (), ClaimRequest(("q",), 1))
    await storage.close()

    assert len(answer.leases) == 1
