"""The writer's thread: it commits waiting calls together, and a call that fails does not affect the others."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from contextvars import Context
from pathlib import Path
from random import Random
from typing import Any, TypeVarTuple

import pytest

from tenure.core.decision import PutBack, RunEnd
from tenure.core.job import Ref
from tenure.core.outcome import Returned
from tenure.core.settlement import Settlement, settlement
from tenure.errors import StorageFullError
from tenure.storage.protocol import ClaimRequest, EventReader, RenewRequest, SweepRequest
from tenure.storage.sqlite import SQLiteStorage
from tenure.storage.sqlite.locks import lock_file, quiet
from tests.storage.helpers import child, end, job, next_line, owner, script

pytestmark = pytest.mark.thorough


class Onlooker:
    """A separate connection, which sees whether others have committed."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self.version()

    def version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def ask(self, sql: str) -> list[tuple[object, ...]]:
        return self._connection.execute(sql).fetchall()

    def close(self) -> None:
        self._connection.close()


async def test_operations_that_wait_together_are_committed_together(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    storage = SQLiteStorage(path)
    await storage.open()
    with quiet(lock_file(path)):
        calls = [asyncio.ensure_future(storage.enqueue([job(str(n))])) for n in range(200)]
        await asyncio.sleep(0.1)
    receipts = [receipt.action for (receipt,) in await asyncio.gather(*calls)]
    onlooker = Onlooker(path)
    instants = onlooker.ask("SELECT count(*) FROM tenure_job")
    onlooker.close()
    await storage.close()

    assert receipts == ["created"] * 200
    assert instants == [(200,)]


async def test_a_call_that_cannot_be_done_fails_alone(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    storage = SQLiteStorage(path)
    await storage.open()
    with quiet(lock_file(path)):
        calls = [
            asyncio.ensure_future(storage.enqueue([job(f"{n}"), job(f"{n}+", priority=2**70 if n == 33 else 0)]))
            for n in range(60)
        ]
        await asyncio.sleep(0.1)
    answers = await asyncio.gather(*calls, return_exceptions=True)
    counts = (await storage.survey()).queues[0].counts
    kept = await storage.get([Ref("q", "33"), Ref("q", "34+")])
    await storage.close()

    assert [n for n, answer in enumerate(answers) if isinstance(answer, BaseException)] == [33]
    assert isinstance(answers[33], OverflowError)
    assert list(counts.values()) == [118]
    assert [detail is not None for detail in kept] == [False, True]


async def test_nothing_to_do_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    storage = SQLiteStorage(path)
    await storage.enqueue([job("later", delay=3_600_000_000)])
    await storage.sweep(SweepRequest(owner()))
    reader = EventReader("r", "me")
    page = await storage.events(None, reader=reader)
    onlooker = Onlooker(path)
    before = onlooker.version()
    with quiet(lock_file(path)):
        # All of these are answered without the writers' lock.
        answer = await storage.exchange(owner(), (), ClaimRequest(("q", "empty"), 5))
        await storage.exchange(owner())
        swept = await storage.sweep(SweepRequest(owner()))
        again = await storage.events(page.next, reader=reader)
    unchanged = onlooker.version() == before
    await storage.exchange(owner(), [settlement_of_nothing()], ClaimRequest(("q",), 5))
    still = onlooker.version() == before
    await storage.enqueue([job("now")])
    onlooker.ask("SELECT 1 FROM tenure_job")
    changed = onlooker.version() != before
    onlooker.close()
    await storage.close()

    assert (answer.left, answer.leases) == (False, ())
    assert answer.next_due is not None
    assert 0 < answer.next_due <= 3_600_000_000
    assert swept.terms == ()
    assert swept.retry_in is not None
    assert again.events == ()
    assert unchanged
    assert still
    assert changed


def settlement_of_nothing() -> Settlement:
    return Settlement(Ref("q", "unknown"), 1, PutBack(charge="releases"), RunEnd("released"))


Ts = TypeVarTuple("Ts")


class HeldLoop(asyncio.SelectorEventLoop):
    """An event loop that keeps its timers back until `run_timers`, and calls `observe` when the main thread looks."""

    def __init__(self, observe: Callable[[], None]) -> None:
        super().__init__()
        self.ran = threading.Event()
        self._observe = observe
        self._kept: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._kept.append((callback, args))
        return super().call_later(0, lambda: None, context=context)

    def run_timers(self) -> None:
        kept, self._kept = self._kept, []
        for callback, args in kept:
            callback(*args)
        self.ran.set()

    def is_closed(self) -> bool:
        if threading.current_thread() is threading.main_thread():
            self._observe()
        return super().is_closed()


def test_a_call_of_one_loop_succeeds_while_another_loop_ends_its_watch(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db")
    observed, over, ready = threading.Event(), threading.Event(), threading.Barrier(4)
    in_turn = threading.Lock()
    loops: list[HeldLoop] = []

    def observe() -> None:
        # The call of the main thread checks the other loops: their watches end at this moment.
        observed.set()
        for loop in loops:
            loop.ran.wait(2)

    async def enqueue(name: str) -> str:
        (receipt,) = await storage.enqueue([job(name)])
        return receipt.action

    def work(name: str) -> None:
        loop = HeldLoop(observe)
        with in_turn:
            loop.run_until_complete(enqueue(name))
        loops.append(loop)
        ready.wait(10)
        observed.wait(10)
        loop.run_timers()
        over.wait(10)
        loop.close()

    threads = [threading.Thread(target=work, args=(f"other-{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    ready.wait(10)
    try:
        made = asyncio.run(enqueue("mine"))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    asyncio.run(storage.close())

    assert observed.is_set()
    assert all(loop.ran.is_set() for loop in loops)
    assert made == "created"


async def test_calls_come_from_several_threads_and_loops(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db")
    made: list[str] = []

    def call(name: str) -> None:
        async def enqueue() -> None:
            for n in range(20):
                (receipt,) = await storage.enqueue([job(f"{name}-{n}")])
                made.append(receipt.action)

        asyncio.run(enqueue())

    threads = [threading.Thread(target=call, args=(str(n),)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    await storage.close()

    assert made == ["created"] * 100


async def test_a_beat_precedes_waiting_operations(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    storage = SQLiteStorage(path)
    by = owner()
    await storage.enqueue([job("mine")])
    (lease,) = (await storage.exchange(by, (), ClaimRequest(("q",), 1))).leases
    order: list[str] = []
    with quiet(lock_file(path)):
        first = asyncio.ensure_future(storage.enqueue([job("first")]))
        await asyncio.sleep(0.1)
        calls = [asyncio.ensure_future(storage.enqueue([job(f"{n}")])) for n in range(300)]
        beat = asyncio.ensure_future(storage.renew(RenewRequest(by)))
        calls[-1].add_done_callback(lambda _: order.append("last"))
        beat.add_done_callback(lambda _: order.append("beat"))
        await asyncio.sleep(0.05)
    await asyncio.gather(first, beat, *calls)
    await storage.close()

    assert lease.job.owner == by.id
    assert order == ["beat", "last"]


WAKER = script(
    """
async def main():
    await storage.open()
    say("ready")
    for n in range(20):
        await resumed()
        await storage.enqueue([NewJob(queue="q", id=f"{n}", task="t", payload=b"")])
        say(time.monotonic_ns())
"""
)


async def test_a_job_of_another_process_is_noticed_within_50_milliseconds(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    storage = SQLiteStorage(path)
    await storage.open()
    process = child(WAKER, path)
    loop = asyncio.get_running_loop()

    assert await loop.run_in_executor(None, next_line, process) == "ready"

    notices = storage.notices(["queue:q"])
    delays: list[float] = []
    for n in range(20):
        await asyncio.sleep(0.3 if n % 4 == 0 else 0.05)
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        while True:
            await asyncio.wait_for(anext(notices), 5)
            woken = time.monotonic_ns()
            if (await storage.exchange(owner(), (), ClaimRequest(("q",), 1))).leases:
                break
        delays.append((woken - int(await loop.run_in_executor(None, next_line, process))) / 1e9)
    notices.close()
    await storage.close()
    end(process)

    # The bounds allow for busy machines; the usual delays are a tenth of them.
    assert sorted(delays)[10] < 0.06, delays
    assert max(delays) < 0.5, delays


async def test_a_waiting_process_hardly_uses_the_processor(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db")
    await storage.open()
    notices = storage.notices(["queue:q"])
    await asyncio.sleep(0.5)
    before = time.process_time()
    await asyncio.sleep(2)
    used = time.process_time() - before
    notices.close()
    await storage.close()

    # Usually a fiftieth of a core. Polling without a pause would take a whole core, also on a slow machine.
    assert used < 0.2


async def test_a_full_disk_raises_and_work_continues_once_it_has_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db")
    await storage.enqueue([job("kept")])
    by = owner()
    (lease,) = (await storage.exchange(by, (), ClaimRequest(("q",), 1))).leases
    await storage.close()
    connect = sqlite3.connect
    made: list[sqlite3.Connection] = []

    def crammed(*args: object, **fields: object) -> sqlite3.Connection:
        made.append(connect(*args, **fields))  # type: ignore[call-overload]
        made[-1].execute("PRAGMA max_page_count = 80")
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", crammed)
        await storage.open()
        with pytest.raises(StorageFullError):
            await fill(storage)
        with pytest.raises(StorageFullError):
            await storage.enqueue([job(f"all{n}", payload=b"x" * 5000) for n in range(100)])
    counted = sum((await storage.survey()).queues[0].counts.values())
    none_of_it = await storage.get([Ref("q", "all0")])
    made[-1].execute("PRAGMA max_page_count = 100000")
    await storage.enqueue([job("after", payload=b"x" * 5000)])
    answer = await storage.exchange(by, [settlement(lease, Returned(b"1"), Random(1))])
    findings = await storage.examine()
    await storage.close()

    assert counted > 1
    assert none_of_it == [None]
    assert [verdict.verdict for verdict in answer.verdicts] == ["done"]
    assert not [finding for finding in findings if finding.level == "error"]


async def fill(storage: SQLiteStorage) -> None:
    for n in range(1000):
        await storage.enqueue([job(f"big{n}", payload=b"x" * 5000)])


CHURN = script(
    """
from random import Random
from tenure.core.outcome import Returned
from tenure.core.settlement import Settlement, settlement

async def main():
    owner = Owner(sys.argv[2])
    leases = []
    for n in range(1_000_000):
        names = [f"{sys.argv[2]}-{n}-{k}" for k in range(5)]
        await storage.enqueue([NewJob(queue="q", id=name, task="t", payload=b"x" * 300) for name in names])
        done = [settlement(lease, Returned(b"1"), Random(1)) for lease in leases]
        leases = (await storage.exchange(owner, done, ClaimRequest(("q",), 5))).leases
        if n % 10 == 0:
            await storage.sweep(SweepRequest(owner))
        say(n)
"""
)


@pytest.mark.fault("F5", "W-N13", "W-P4")
async def test_kills_in_the_middle_of_writing_leave_a_sound_file(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    acknowledged = 0
    for turn in range(6):
        process = child(CHURN, path, f"{turn:016x}")
        reached = -1
        for _ in range(3 + 7 * turn):
            reached = int(next_line(process))
        process.kill()
        rest, _ = process.communicate()
        acknowledged += 5 * (1 + max([reached, *map(int, rest.split())]))
    storage = SQLiteStorage(path)
    swept = await storage.sweep(SweepRequest(owner(), None))
    counts = (await storage.survey()).queues[0].counts
    findings = await storage.examine()
    await storage.close()
    connection = sqlite3.connect(path)
    (verdict,) = connection.execute("PRAGMA integrity_check").fetchone()
    connection.close()

    assert verdict == "ok"
    assert not [finding for finding in findings if finding.level == "error"]
    assert sum(counts.values()) >= acknowledged
    assert {stalled.reason for stalled in swept.stalled} <= {"process_died"}
