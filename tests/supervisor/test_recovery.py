"""A recovery, and its report, if the storage does not answer."""

import asyncio
import logging
from collections.abc import Sequence
from random import Random

import pytest

from tenure.clock import SECOND
from tenure.core.events import JobStalled, RunFenced, WorkerDied
from tenure.core.job import Owner, Policy, Ref
from tenure.core.lifecycle import State
from tenure.core.settlement import Settlement
from tenure.errors import StorageUnavailableError
from tenure.metrics import MetricsRegistry
from tenure.processes.process import ProcessExit
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import SWEEP_LIMIT, ClaimRequest, ExchangeResult, Query, ReclaimResult
from tenure.supervisor.recovery import CrashRecovery, DeadWorker
from tenure.supervisor.supervisor import ChildHistory
from tenure.testing.clock import ManualClock
from tenure.worker.scoreboard import KnownRuns
from tenure_testing.conformance.helpers import new_job

WORKER = Owner("feedfacefeedface", "host:7", "host", 7)
SUPERVISOR = Owner("beefbeefbeefbeef", "supervisor host:2", "host", 2)


class LostReplies(MemoryStorage):
    """A storage that loses its first answers to a reclaim; the reclaim may have been done or not.

    `apart`: it returns its jobs in two parts, and the second answer is lost, as with several servers.
    `twice`: a network carries out the request twice, and loses the first of the two answers.
    """

    lost = 0
    done = True
    apart = False
    twice = False

    async def reclaim(self, dead: str, owner: Owner) -> ReclaimResult:
        """Reclaim, and lose the first answers."""
        if self.apart and self.lost:
            self.lost -= 1
            taken = (await super().reclaim(dead, owner)).stalled
            return ReclaimResult(taken[:1], more=True, incomplete=True)
        if self.twice and self.lost:
            self.lost -= 1
            await super().reclaim(dead, owner)
            return await super().reclaim(dead, owner)
        if not self.lost:
            return await super().reclaim(dead, owner)
        self.lost -= 1
        if self.done:
            await super().reclaim(dead, owner)
        raise StorageUnavailableError("the connection was closed")


async def dead_worker(held: int) -> tuple[ManualClock, LostReplies, CrashRecovery]:
    """Let a worker claim this many jobs; return what recovers them."""
    clock = ManualClock()
    storage = LostReplies(clock=clock)
    await storage.enqueue([new_job(f"{number:03}") for number in range(held)])
    claimed = 0
    while claimed < held:
        claimed += len((await storage.exchange(WORKER, (), ClaimRequest((new_job("x").queue,), held))).leases)
    logger = logging.getLogger("recovery")
    return (
        clock,
        storage,
        CrashRecovery(SUPERVISOR, clock=clock, rng=Random(1), logger=logger, metrics=MetricsRegistry()),
    )


@pytest.mark.parametrize(("held", "lost", "done"), [(2, 0, True), (0, 0, True), (2, 1, True), (2, 2, False)])
async def test_a_recovery_counts_its_jobs_although_answers_are_lost(
    held: int, lost: int, done: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock, storage, recovery = await dead_worker(held)
    storage.lost, storage.done = lost, done
    dead = DeadWorker(WORKER.id, 7, ProcessExit(-9), clock.now())

    jobs = await recovery.recover(dead, storage, within=60.0)

    assert jobs == held
    assert ChildHistory(7, -9, lifetime=1.0, clean_exit=False, charged_jobs=jobs).early == (held == 0)
    assert f"jobs recovered: {held}, within " in caplog.text
    assert "reapers will recover" not in caplog.text


@pytest.mark.thorough
@pytest.mark.parametrize("held", [3, SWEEP_LIMIT + 5])
@pytest.mark.parametrize("how", ["whole", "in part", "twice"])
@pytest.mark.parametrize("lost", [0, 1, 3])
async def test_jobs_of_a_reclaim_with_a_lost_answer_are_charged_to_the_death(held: int, how: str, lost: int) -> None:
    clock, storage, recovery = await dead_worker(held)
    storage.lost, storage.apart, storage.twice = lost, how == "in part", how == "twice"
    died_at = clock.now()
    clock.advance(0.25)

    assert await recovery.recover(DeadWorker(WORKER.id, 7, ProcessExit(-9), died_at), storage, within=60.0) == held

    page = await storage.find(Query(limit=1_000))
    details = [detail for detail in await storage.get([job.ref for job in page.jobs]) if detail is not None]
    assert [(each.job.state, each.job.owner, each.job.stalls) for each in details] == [(State.WAITING, None, 1)] * held
    assert {each.runs[-1].reason for each in details} == {"process_died"}
    events = (await storage.events(limit=1_000)).events
    stalled = [event for event in events if isinstance(event, JobStalled)]
    assert {(event.owner, event.reason, event.silent_for) for event in stalled} == {(WORKER.id, "process_died", 0.25)}
    assert all("SIGKILL" in (event.post_mortem or "") for event in stalled)
    assert not [event for event in events if isinstance(event, RunFenced)]
    assert [event.jobs for event in events if isinstance(event, WorkerDied)] == [held]


async def test_a_post_mortem_counts_until_the_death_not_until_the_recovery() -> None:
    clock, storage, recovery = await dead_worker(1)
    clock.advance(2.0)
    died_at = clock.now()
    clock.advance(8.0)
    await recovery.recover(DeadWorker(WORKER.id, 7, ProcessExit(-9), died_at), storage, within=60.0)

    [text] = [event.post_mortem or "" for event in (await storage.events()).events if isinstance(event, JobStalled)]
    assert "ran for 2.0 s; last sign of life 2.0 s before it died" in text


class Partial(LostReplies):
    """A storage of several servers, some of which do not answer the first settlements."""

    away = 0

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        """Exchange what concerns the servers that answer."""
        if not (settlements and self.away):
            return await super().exchange(owner, settlements, order)
        self.away -= 1
        return await super().exchange(owner, settlements[1:], order)


async def test_a_stall_refused_by_a_part_of_the_storage_is_settled_later() -> None:
    clock, _, recovery = await dead_worker(0)
    storage = Partial(clock=clock)
    await storage.enqueue([new_job(name) for name in "abc"])
    await storage.exchange(WORKER, (), ClaimRequest((new_job("x").queue,), 3))
    storage.away = 2

    assert await recovery.recover(DeadWorker(WORKER.id, 7, ProcessExit(-9), clock.now()), storage, within=60.0) == 3

    events = (await storage.events(limit=1_000)).events
    assert [(event.owner, event.reason) for event in events if isinstance(event, JobStalled)] == [
        (WORKER.id, "process_died")
    ] * 3
    assert [event.jobs for event in events if isinstance(event, WorkerDied)] == [3]
    page = await storage.find(Query(limit=10))
    assert [(job.state, job.owner, job.stalls) for job in page.jobs] == [(State.WAITING, None, 1)] * 3


async def test_two_concurrent_recoveries_do_not_take_jobs_from_each_other() -> None:
    clock, storage, recovery = await dead_worker(2)
    other = Owner("facefacefaceface", "host:8", "host", 8)
    await storage.enqueue([new_job("his")])
    await storage.exchange(other, (), ClaimRequest((new_job("x").queue,), 5))
    storage.lost = 2
    deaths = [(WORKER, ProcessExit(-9)), (other, ProcessExit(3 << 8))]

    jobs = await asyncio.gather(
        *(
            recovery.recover(DeadWorker(item.id, item.pid, death, clock.now()), storage, within=60.0)
            for item, death in deaths
        )
    )

    assert jobs == [2, 1]
    events = [event for event in (await storage.events(limit=1_000)).events if isinstance(event, JobStalled)]
    assert {(event.id, event.owner) for event in events} == {("000", WORKER.id), ("001", WORKER.id), ("his", other.id)}
    assert {event.id: "SIGKILL" in (event.post_mortem or "") for event in events} == {
        "000": True,
        "001": True,
        "his": False,
    }


async def test_a_hundred_answered_recoveries_use_one_owner_id() -> None:
    clock, storage, recovery = await dead_worker(0)
    takers: set[str] = set()

    class RecordingReplies(LostReplies):
        async def reclaim(self, dead: str, owner: Owner) -> ReclaimResult:
            takers.add(owner.id)
            return await storage.reclaim(dead, owner)

    noting = RecordingReplies(clock=clock)
    for number in range(100):
        await recovery.recover(DeadWorker(f"{number:016x}", 7, ProcessExit(-9), clock.now()), noting, within=60.0)

    assert len(takers) == 1
    assert SUPERVISOR.id not in takers


async def test_an_unanswered_reclaim_reports_an_unknown_number_of_jobs() -> None:
    clock = ManualClock()
    storage = LostReplies(clock=clock)
    storage.lost = 1_000
    recovery = CrashRecovery(
        SUPERVISOR, clock=clock, rng=Random(1), logger=logging.getLogger("recovery"), metrics=MetricsRegistry()
    )

    assert await recovery.recover(DeadWorker(WORKER.id, 7, ProcessExit(-9), SECOND), storage, within=0.3) is None


class RefusesSettlements(LostReplies):
    """A storage that accepts no settlement."""

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        """Refuse settlements."""
        if settlements:
            raise StorageUnavailableError("the connection was closed")
        return await super().exchange(owner, settlements, order)


async def test_a_recovery_that_settles_nothing_in_time_counts_its_jobs() -> None:
    clock, _, recovery = await dead_worker(0)
    storage = RefusesSettlements(clock=clock)
    await storage.enqueue([new_job(name) for name in "abc"])
    await storage.exchange(WORKER, (), ClaimRequest((new_job("x").queue,), 3))

    jobs = await recovery.recover(DeadWorker(WORKER.id, 7, ProcessExit(-9), clock.now()), storage, within=0.3)

    # The worker did work: its replacement need not wait as for one that cannot start.
    assert jobs == 3


async def test_an_unbegun_run_of_a_left_worker_runs_although_its_job_runs_once() -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    policy = Policy(on_worker_lost="fail")
    begun, waiting = new_job("begun", policy=policy), new_job("waiting", policy=policy)
    await storage.enqueue([begun, waiting])
    await storage.exchange(WORKER, (), ClaimRequest((begun.queue,), 2))
    recovery = CrashRecovery(
        SUPERVISOR, clock=clock, rng=Random(1), logger=logging.getLogger("recovery"), metrics=MetricsRegistry()
    )
    refs = [Ref(job.queue, job.id) for job in (begun, waiting)]
    runs = KnownRuns(frozenset(refs[:1]), waiting=frozenset(refs[1:]))

    await recovery.clean_up(WORKER.id, 7, storage, within=5.0, worked=True, runs=runs)

    left, put_back = [detail for detail in await storage.get(refs) if detail is not None]
    assert (left.job.state, left.job.reason) == (State.FAILED, "crashed")
    assert (put_back.job.state, put_back.job.stalls, put_back.job.releases) == (State.WAITING, 0, 1)
