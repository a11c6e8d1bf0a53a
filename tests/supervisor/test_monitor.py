"""The supervisor's monitor helps a worker that cannot help itself, on a manual clock."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.events import RunFenced, WorkerHung
from tenure.core.job import NewJob, Owner, Ref, StallTerms
from tenure.errors import StorageUnavailableError
from tenure.metrics import RENEWALS, MetricsRegistry
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import ClaimRequest, RenewRequest, RenewResult
from tenure.supervisor.child import KillReason
from tenure.supervisor.monitor import OVERDUE, ExternalRenewer
from tenure.testing.clock import ManualClock
from tenure.worker import run
from tenure.worker.scoreboard import Scoreboard, Way
from tenure.worker.worker_metrics import WorkerMetrics

OWNER = Owner("feedfacefeedface", "host:7", "host", 7)
LEASE = 4.0
TERMS = StallTerms(lease=4 * SECOND)

STACK = """Current thread 0x00007f0000000001 (most recent call first):
  File "/app/mail.py", line 31 in send
  File "HERE/run.py", line 150 in _call
  File "/usr/lib/python3.11/asyncio/events.py", line 80 in _run
  File "/app/main.py", line 2 in <module>
""".replace("HERE", str(Path(run.__file__).parent))


class Child:
    """The process, as the monitor sees it."""

    stopped = False


class Flaky(MemoryStorage):
    """A storage that can be unavailable."""

    down = False
    partial = False

    async def renew(self, beat: RenewRequest) -> RenewResult:
        """Renew, if available; if `partial`, the server of all these leases gives no answer."""
        if self.down:
            raise StorageUnavailableError("no answer")
        if self.partial:
            return RenewResult(incomplete=tuple((renewal.ref, renewal.fence) for renewal in beat.renewals))
        return await super().renew(beat)


class MonitoredWorker:
    """A worker that holds the jobs that it claimed, and its monitor."""

    def __init__(self, *, max_block: float = 600.0) -> None:
        self.clock = ManualClock()
        self.clock.advance(100)
        self.storage = Flaky(clock=self.clock)
        self.scoreboard = Scoreboard.new(8)
        self.child = Child()
        self.kill_reasons: list[KillReason] = []
        self.figures = MetricsRegistry()
        self.asked = 0
        self.meanwhile: Callable[[], None] = lambda: None
        """A callback that runs while the stack of the process is read."""
        self.watcher = ExternalRenewer(
            self.storage,
            OWNER,
            self.scoreboard,
            self.child,
            beat=1.0,
            max_block=max_block,
            clock=self.clock,
            rng=Random(7),
            logger=logging.getLogger("tenure.tests.watcher"),
            read_stacks=self._stack,
            kill=self.kill_reasons.append,
            metrics=WorkerMetrics(self.figures),
        )

    async def claim(self, id_: str = "a", *, way: Way = "loop", **fields: Any) -> int:
        """Have the worker claim a job whose loop has just turned; return its row on the scoreboard."""
        await self.storage.open()
        new = NewJob(queue="default", id=id_, task="mail.send", payload=b"", stall=TERMS)
        await self.storage.enqueue([structs.replace(new, **fields)])
        [lease] = (await self.storage.exchange(OWNER, (), ClaimRequest(("default",), 1))).leases
        self.turns()
        now = self.clock.uptime()
        place = self.scoreboard.write(lease, way=way, claimed_at=now, renewed_at=now)
        assert place is not None
        return place

    def turns(self) -> None:
        """Let the loop of the worker, and its keeper's thread, have turned now."""
        self.scoreboard.turned(self.clock.uptime(), 0.0)
        self.scoreboard.beaten(self.clock.uptime(), 0)

    async def let(self, seconds: float, *, turning: bool = False) -> None:
        """Let time pass, and the monitor check as often as it wants to."""
        end = self.clock.uptime() + seconds
        while self.clock.uptime() < end:
            if turning:
                self.turns()
            self.clock.advance(min(await self.watcher.turn(), end - self.clock.uptime()))

    def blocks(self, place: int) -> None:
        """Let the worker's own thread have seen that the run in this row blocks the loop."""
        [run] = [run for run in self.scoreboard.runs() if run.row == place]
        self.scoreboard.set_blocker(place, run.fence, self.scoreboard.turned_at)

    async def let_beating(self, seconds: float) -> None:
        """Let time pass in which the worker's own thread continues, and its loop does not."""
        end = self.clock.uptime() + seconds
        while self.clock.uptime() < end:
            self.scoreboard.beaten(self.clock.uptime(), 0)
            await self.let(min(0.5, end - self.clock.uptime()))

    async def lease_left(self, id_: str = "a") -> float:
        """Return for how many seconds the storage still leases a job to its worker."""
        [detail] = await self.storage.get([Ref("default", id_)])
        assert detail is not None
        assert detail.job.lease_until is not None
        return (detail.job.lease_until - self.clock.now()) / SECOND

    async def recorded(self) -> list[WorkerHung]:
        """Return the recorded events of workers that hang."""
        return [event for event in (await self.storage.events(None)).events if isinstance(event, WorkerHung)]

    async def _stack(self) -> str:
        self.asked += 1
        self.meanwhile()
        return STACK


@pytest.fixture
def worker() -> Iterator[MonitoredWorker]:
    made = MonitoredWorker()
    yield made
    made.scoreboard.close()


async def test_a_run_that_its_worker_does_not_renew_is_renewed_for_it(worker: MonitoredWorker) -> None:
    place = await worker.claim()
    await worker.let(3 * LEASE)

    assert await worker.lease_left() > LEASE / 4
    assert worker.scoreboard.external_renewal(place, worker.scoreboard.runs()[0].fence) > worker.clock.uptime() - LEASE
    # Each renewal comes every two beats.
    assert worker.figures.totals() == {(RENEWALS.name, "renewed"): (5.0,)}


async def test_a_run_that_its_worker_renews_is_not_renewed_by_the_monitor(worker: MonitoredWorker) -> None:
    place = await worker.claim()
    for _ in range(10):
        await worker.let(1.5, turning=True)
        worker.scoreboard.renewed(place, worker.clock.uptime())

    assert worker.scoreboard.external_renewal(place, worker.scoreboard.runs()[0].fence) == 0


async def test_a_stopped_process_loses_its_leases_and_is_not_killed_on_resume(worker: MonitoredWorker) -> None:
    await worker.claim()
    worker.child.stopped = True
    await worker.let(3 * LEASE)

    assert await worker.lease_left() < 0
    assert not worker.kill_reasons

    worker.child.stopped = False
    await worker.let(0.1)
    # It had no chance to turn since; that is not its fault.
    assert not worker.kill_reasons
    assert await worker.lease_left() > 0


async def test_a_process_stopped_beyond_max_block_is_kept_when_it_continues() -> None:
    worker = MonitoredWorker(max_block=5.0)
    await worker.claim()
    worker.child.stopped = True
    await worker.let(20)
    worker.child.stopped = False
    await worker.let(1)

    assert not worker.kill_reasons


async def test_a_suspended_supervisor_excuses_the_time_that_it_missed() -> None:
    worker = MonitoredWorker(max_block=5.0)
    await worker.claim()
    await worker.watcher.turn()
    worker.clock.advance(60)
    await worker.let(1)

    assert not worker.kill_reasons


async def test_a_loop_blocked_beyond_its_limit_is_killed_once_with_a_reason() -> None:
    worker = MonitoredWorker(max_block=5.0)
    await worker.claim()
    await worker.let(10)

    [kill_reason] = worker.kill_reasons
    assert (kill_reason.reason, kill_reason.limit, kill_reason.stack) == ("loop_blocked", 5.0, STACK)
    # No other run was active.
    assert [ref.id for ref, _ in kill_reason.causes] == ["a"]
    assert 5.0 < kill_reason.blocked_for < 6.5
    assert await worker.recorded() == []
    assert [event.stack for event in kill_reason.hung(OWNER.id)] == [STACK]


@pytest.mark.parametrize(
    ("until", "fields"), [(10.0, {}), (2.5, {"timeout": 1 * SECOND})], ids=["max_block", "timeout"]
)
async def test_a_loop_that_turns_again_during_the_stack_request_is_not_killed(
    until: float, fields: dict[str, Any]
) -> None:
    worker = MonitoredWorker(max_block=10.0)
    await worker.claim(**fields)
    await worker.let(until)
    asked, worker.meanwhile = worker.asked, worker.turns
    await worker.let(1.6)

    assert worker.asked == asked + 1
    assert not worker.kill_reasons


@pytest.mark.parametrize("way", ["process", "thread"])
async def test_a_run_that_cannot_block_the_loop_is_not_charged_for_it(worker: MonitoredWorker, way: Way) -> None:
    # Code of the app that belongs to no run blocks the loop.
    await worker.claim(way=way, timeout=1 * SECOND)
    await worker.let_beating(20)

    assert not worker.kill_reasons
    assert await worker.lease_left() > 0


async def test_a_loop_that_has_ended_or_has_not_begun_is_not_expected_to_turn(worker: MonitoredWorker) -> None:
    await worker.claim()
    worker.scoreboard.turned(0.0, 0.0)
    await worker.let(1_000)

    assert not worker.kill_reasons
    assert await worker.lease_left() < 0


async def test_an_overdue_run_on_a_blocked_loop_ends_with_its_process_as_cause(
    worker: MonitoredWorker,
) -> None:
    await worker.claim("slow", timeout=1 * SECOND)
    await worker.claim("other", task="mail.fetch", timeout=1 * SECOND)
    # The stack of its threads contains a function called send.
    await worker.let(3 * OVERDUE)

    [kill_reason] = worker.kill_reasons
    assert kill_reason.reason == "timeout"
    assert [ref.id for ref, _ in kill_reason.causes] == ["slow"]


async def test_a_run_that_does_not_block_the_loop_is_renewed_past_its_timeout(
    worker: MonitoredWorker,
) -> None:
    hog = await worker.claim("hog")
    await worker.claim("thread", way="thread", timeout=1 * SECOND)
    await worker.claim("waits", timeout=1 * SECOND, heartbeat_timeout=2 * SECOND)
    await worker.claim("slot", way="process", timeout=6 * SECOND)
    worker.blocks(hog)
    for _ in range(40):
        await worker.let_beating(0.5)
        assert min([await worker.lease_left(id_) for id_ in ("hog", "thread", "waits", "slot")]) > 0

    assert not worker.kill_reasons


async def test_a_blocked_loop_does_not_extend_the_heartbeat_of_isolated_runs(worker: MonitoredWorker) -> None:
    hog = await worker.claim("hog")
    # It can send heartbeats, because another thread receives them.
    await worker.claim("slot", way="process", heartbeat_timeout=2 * SECOND)
    worker.blocks(hog)
    await worker.let_beating(4)

    assert await worker.lease_left("slot") < 0 < await worker.lease_left("hog")


async def test_a_finished_isolated_run_is_renewed_until_its_loop_turns(worker: MonitoredWorker) -> None:
    hog = await worker.claim("hog")
    terms = structs.replace(TERMS, renewed=False)
    over = await worker.claim("slot", way="process", timeout=1 * SECOND, heartbeat_timeout=2 * SECOND, stall=terms)
    worker.blocks(hog)
    await worker.let_beating(0.5)
    worker.scoreboard.finished(over, terms)
    for _ in range(20):
        await worker.let_beating(0.5)
        assert await worker.lease_left("slot") > 0


async def test_a_run_in_a_suspended_process_is_not_renewed(worker: MonitoredWorker) -> None:
    stopped = await worker.claim("slot", way="process")
    worker.scoreboard.renewable(stopped, None)
    await worker.let(0.9 * LEASE)
    assert await worker.lease_left("slot") == pytest.approx(0.1 * LEASE)

    worker.scoreboard.renewable(stopped, TERMS)
    await worker.let(0.9 * LEASE)
    assert await worker.lease_left("slot") > 0


async def test_its_own_limits_hold_for_the_run_that_blocks_the_loop(worker: MonitoredWorker) -> None:
    worker.blocks(await worker.claim("hog", timeout=1 * SECOND))
    await worker.let_beating(OVERDUE + 2)

    [kill_reason] = worker.kill_reasons
    assert [ref.id for ref, _ in kill_reason.causes] == ["hog"]
    assert 1.0 + OVERDUE < kill_reason.blocked_for < 1.6 + OVERDUE
    assert await worker.lease_left("hog") < 0


async def test_a_run_is_not_killed_for_time_that_another_run_blocked_the_loop(worker: MonitoredWorker) -> None:
    first = await worker.claim("first")
    second = await worker.claim("second", timeout=1 * SECOND)
    worker.blocks(first)
    await worker.let_beating(10)
    worker.blocks(second)
    await worker.let_beating(0.9 * OVERDUE)

    assert not worker.kill_reasons

    await worker.let_beating(0.9 * OVERDUE)

    assert [ref.id for ref, _ in worker.kill_reasons[0].causes] == ["second"]


async def test_no_run_is_killed_for_a_timeout_if_the_gil_holder_is_unknown() -> None:
    worker = MonitoredWorker(max_block=20.0)
    # Two runs of the function that is on the loop.
    await worker.claim("one", timeout=1 * SECOND)
    await worker.claim("two", timeout=1 * SECOND)
    await worker.let(15)

    assert not worker.kill_reasons
    assert min(await worker.lease_left("one"), await worker.lease_left("two")) > 0

    await worker.let(10)

    [kill_reason] = worker.kill_reasons
    assert (kill_reason.reason, kill_reason.causes) == ("loop_blocked", ())


async def test_the_run_that_blocked_the_loop_beyond_max_block_is_named() -> None:
    worker = MonitoredWorker(max_block=5.0)
    await worker.claim("other")
    worker.blocks(await worker.claim("hog"))
    await worker.let_beating(10)

    [kill_reason] = worker.kill_reasons
    assert (kill_reason.reason, [ref.id for ref, _ in kill_reason.causes]) == ("loop_blocked", ["hog"])


async def test_a_run_past_its_timeout_on_a_loop_that_turns_is_left_to_the_worker(worker: MonitoredWorker) -> None:
    await worker.claim("slow", timeout=1 * SECOND)
    await worker.let(5 * OVERDUE, turning=True)

    assert not worker.kill_reasons


async def test_the_run_that_holds_the_interpreter_is_named_once_with_its_line(
    worker: MonitoredWorker, caplog: pytest.LogCaptureFixture
) -> None:
    await worker.claim("a")
    await worker.let(20)

    assert worker.asked == 1
    [records] = [record.message for record in caplog.records]
    assert "job a (mail.send) has held the interpreter of worker 7" in records
    assert "/app/mail.py:31 in send" in records


async def test_a_run_that_blocks_only_the_loop_is_reported_by_the_worker(
    worker: MonitoredWorker, caplog: pytest.LogCaptureFixture
) -> None:
    await worker.claim("a")
    for _ in range(20):
        worker.scoreboard.beaten(worker.clock.uptime(), 0)
        await worker.let(0.5)

    assert not caplog.records
    assert worker.scoreboard.worker_must_warn(worker.scoreboard.turned_at)


async def test_a_run_that_its_handler_alone_renews_is_not_renewed(worker: MonitoredWorker) -> None:
    await worker.claim(stall=structs.replace(TERMS, renewed=False))
    await worker.let(2 * LEASE)

    assert await worker.lease_left() < 0


async def test_a_handler_that_is_silent_for_too_long_is_not_kept_alive(worker: MonitoredWorker) -> None:
    await worker.claim(heartbeat_timeout=2 * SECOND)
    await worker.let(3 * LEASE)

    assert await worker.lease_left() < -LEASE


async def test_a_heartbeat_that_the_worker_could_not_send_counts(worker: MonitoredWorker) -> None:
    place = await worker.claim(heartbeat_timeout=6 * SECOND)
    await worker.let(5)
    worker.scoreboard.signed(place, worker.clock.uptime())
    await worker.let(5)

    assert await worker.lease_left() > 0


async def test_a_storage_that_returns_before_the_lease_expires_costs_no_lease(
    worker: MonitoredWorker, caplog: pytest.LogCaptureFixture
) -> None:
    await worker.claim()
    worker.storage.down = True
    await worker.let(LEASE - 0.5, turning=True)
    worker.storage.down = False
    await worker.let(1.5, turning=True)

    assert await worker.lease_left() > 0
    assert len(caplog.records) == 1
    counts = {key[1]: numbers[0] for key, numbers in worker.figures.totals().items()}
    assert counts.keys() == {"renewed", "failed"}


async def test_a_renewal_that_its_server_did_not_answer_does_not_count(worker: MonitoredWorker) -> None:
    place = await worker.claim()
    (run,) = worker.scoreboard.runs()
    worker.storage.partial = True
    await worker.let(3.0)

    assert worker.scoreboard.external_renewal(place, run.fence) == 0.0
    assert worker.scoreboard.runs()[0].renewed_at == run.renewed_at

    worker.storage.partial = False
    await worker.let(1.0)

    assert worker.scoreboard.external_renewal(place, run.fence) > run.renewed_at


async def test_a_lost_run_is_not_renewed_again(worker: MonitoredWorker) -> None:
    place = await worker.claim()
    [run] = worker.scoreboard.runs()
    [taken] = (await worker.storage.reclaim(OWNER.id, Owner("reaper", "r", "host", 8))).stalled
    await worker.let(2 * LEASE)

    assert worker.scoreboard.external_renewal(place, run.fence) == 0
    assert taken.lease.fence > run.fence
    fenced = [event for event in (await worker.storage.events(None)).events if isinstance(event, RunFenced)]
    assert len(fenced) == 1


async def test_checks_come_as_often_as_the_shortest_lease_requires(worker: MonitoredWorker) -> None:
    assert await worker.watcher.turn() == 0.5

    await worker.claim(stall=structs.replace(TERMS, lease=SECOND))

    assert await worker.watcher.turn() == 0.125
