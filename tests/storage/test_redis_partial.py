"""Partial answers: no lease is lost because another part of the same call failed."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random

import pytest

from tenure.clock import SECOND, SystemClock
from tenure.core.events import JobStalled, WorkerStarted
from tenure.core.job import NewJob, Owner
from tenure.core.lane import Lane
from tenure.core.lifecycle import State
from tenure.errors import NotDurableError, StorageUnavailableError
from tenure.metrics import MetricsRegistry
from tenure.processes.process import ProcessExit
from tenure.storage.protocol import ClaimRequest, LeaseRenewal, NewLogLine, RenewRequest, RenewResult, WorkerInfo
from tenure.storage.redis import connections
from tenure.storage.redis.address import read
from tenure.storage.redis.routes import slot
from tenure.storage.redis.storage import RedisStorage
from tenure.supervisor.recovery import CrashRecovery, DeadWorker
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    DEPUTY,
    REAPER,
    bid,
    new_job,
    record,
    settled,
    stalled,
)
from tenure_testing.proxy import Proxy
from tests.clusters import RedisCluster
from tests.servers import RedisServer


@pytest.fixture
async def replicated(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RedisStorage]:
    monkeypatch.setattr(connections, "CONFIRMING", 0.1)
    storage = RedisStorage(read(f"{redis_url}&durability=replicated"))
    yield storage
    await storage.close()


async def test_a_claim_that_no_replica_confirms_is_released_and_not_run(replicated: RedisStorage) -> None:
    with pytest.raises(NotDurableError):
        await replicated.enqueue([new_job("job")])
    # A failover might undo the claim, and another worker would run the job at the same time.
    with pytest.raises(NotDurableError):
        await replicated.exchange(ALICE, order=ClaimRequest(("default",), 1, Lane(0, 1)))
    claimed = await record(replicated, new_job("job").ref)
    await replicated.exchange(ALICE, order=ClaimRequest(("default",), 0, Lane(0, 2)))
    job = await record(replicated, claimed.ref)

    assert claimed.state is State.ACTIVE
    assert (job.state, job.stalls, job.releases) == (State.WAITING, 0, 1)


async def active(storage: RedisStorage, jobs: Sequence[NewJob]) -> int:
    return [(await record(storage, job.ref)).state for job in jobs].count(State.ACTIVE)


async def test_a_claim_of_several_scripts_releases_only_unanswered_parts(
    redis_server: RedisServer,
) -> None:
    # A script answers with no further job once it has 750 kB.
    jobs = [new_job(name, payload=b"x" * 700_000) for name in "abcdef"]
    with Proxy(redis_server.port) as proxy:
        storage, other = RedisStorage(read(f"redis://{proxy.address}/0")), RedisStorage(read(redis_server.url))
        try:
            await storage.enqueue(jobs)
            # The first reply, with two jobs, arrives; the next one is cut.
            proxy.set_faults(cuts=1, cut_from=1_450_000)
            first = await storage.exchange(ALICE, order=ClaimRequest(("default",), 6, Lane(0, 1)))
            held = await active(other, jobs)
            await storage.exchange(ALICE, order=ClaimRequest(("default",), 0, Lane(0, 2, 1)))
            after = [await record(other, job.ref) for job in jobs]
        finally:
            await storage.close()
            await other.close()

    answered = {lease.ref for lease in first.leases}
    assert 0 < len(answered) < held
    assert {job.ref for job in after if job.state is State.ACTIVE} == answered
    assert {(job.releases, job.stalls) for job in after if job.starts and job.ref not in answered} == {(1, 0)}


def two_queues(cluster: RedisCluster, storage: RedisStorage) -> tuple[str, str]:
    """Return queues of different masters."""
    names = [f"queue-{number}" for number in range(64)]
    holders = {name: cluster.holder(slot(storage.bases_of(f"queue:{name}")[0])) for name in names}
    first = names[0]
    return first, next(name for name in names if holders[name] is not holders[first])


async def test_a_silent_shard_withholds_no_lease_of_another_shard(
    start_cluster: Callable[..., RedisCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    # By default a Cluster serves nothing while a part of it is unavailable.
    redis_cluster = start_cluster(cluster_require_full_coverage=False)
    monkeypatch.setattr(connections, "ANSWERING", 1.0)
    storage = RedisStorage(read(redis_cluster.url))
    try:
        here, there = two_queues(redis_cluster, storage)
        await storage.enqueue([new_job("a", queue=here), new_job("b", queue=there), new_job("c", queue=here)])
        # A server that does not know the script yet would have to get it first.
        await storage.exchange(REAPER, order=ClaimRequest((there,), 0))
        frozen = redis_cluster.holder(slot(storage.bases_of(f"queue:{there}")[0]))
        frozen.freeze()
        try:
            first = await storage.exchange(ALICE, order=ClaimRequest((here, there), 3, Lane(0, 1)))
            await storage.exchange(BOB, [settled(first.leases[0])], ClaimRequest((there, here), 2, Lane(0, 1)))
            with pytest.raises(StorageUnavailableError):
                await storage.exchange(ALICE, order=ClaimRequest((there,), 1, Lane(0, 2, 1)))
        finally:
            frozen.thaw()
        swept = await storage.sweep(bid())
        # After SIGCONT it carries out the request, but the caller has given up.
        lost = await record(storage, new_job("b", queue=there).ref)
        await storage.exchange(ALICE, order=ClaimRequest((here, there), 0, Lane(0, 3, 1)))
        kept = await record(storage, first.leases[1].ref)
        handed_back = await record(storage, lost.ref)
    finally:
        await storage.close()

    assert [lease.ref.id for lease in first.leases] == ["a", "c"]
    assert (lost.state, lost.owner) == (State.ACTIVE, ALICE.id)
    # The jobs that the other shard gave out are acknowledged by then, and stay.
    assert (kept.state, kept.owner) == (State.ACTIVE, ALICE.id)
    assert (handed_back.state, handed_back.releases, handed_back.stalls) == (State.WAITING, 1, 0)
    assert not swept.troubles


SUPERVISOR = Owner("beefbeefbeefbeef", "supervisor host:2", "host", 2)


def recovery() -> CrashRecovery:
    return CrashRecovery(
        SUPERVISOR, clock=SystemClock(), rng=Random(7), logger=logging.getLogger("recovery"), metrics=MetricsRegistry()
    )


async def stalls(storage: RedisStorage) -> list[JobStalled]:
    return [event for event in (await storage.events(limit=1_000)).events if isinstance(event, JobStalled)]


@pytest.mark.parametrize("cuts", [1, 2])
async def test_jobs_of_a_dead_worker_are_free_in_a_second_after_a_lost_answer(
    redis_server: RedisServer, cuts: int, caplog: pytest.LogCaptureFixture
) -> None:
    with Proxy(redis_server.port) as proxy:
        storage = RedisStorage(read(f"redis://{proxy.address}/0"))
        try:
            await storage.enqueue([new_job(name) for name in "abc"])
            await storage.exchange(ALICE, order=ClaimRequest(("default",), 3))
            before = len(redis_server.command("KEYS", "*:held:*"))
            # The next reply is the one to the reclaim, which the server has carried out by then.
            proxy.set_faults(cuts=cuts)
            died_at = SystemClock().now()
            taken = await recovery().recover(
                DeadWorker(ALICE.id, ALICE.pid, ProcessExit(-9), died_at), storage, within=10.0
            )
            stalled_events = await stalls(storage)
            jobs = [await record(storage, new_job(name).ref) for name in "abc"]
        finally:
            await storage.close()

    assert "retrying" in caplog.text
    assert (before, taken) == (1, 3)
    assert max(event.at.timestamp() for event in stalled_events if event.at is not None) - died_at / SECOND < 1
    assert [(event.owner, event.reason) for event in stalled_events] == [(ALICE.id, "process_died")] * 3
    assert all("SIGKILL" in (event.post_mortem or "") for event in stalled_events)
    assert [(job.state, job.stalls, job.owner) for job in jobs] == [(State.WAITING, 1, None)] * 3
    assert redis_server.command("KEYS", "*:held:*") == []


async def test_a_silent_shard_delays_no_recovery_of_jobs_in_another_shard(
    start_cluster: Callable[..., RedisCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_cluster = start_cluster(cluster_require_full_coverage=False)
    monkeypatch.setattr(connections, "ANSWERING", 1.0)
    storage = RedisStorage(read(redis_cluster.url))
    try:
        here, there = two_queues(redis_cluster, storage)
        jobs = [new_job("a", queue=here), new_job("b", queue=there)]
        await storage.enqueue(jobs)
        await storage.exchange(ALICE, order=ClaimRequest((here, there), 2))
        frozen = redis_cluster.holder(slot(storage.bases_of(f"queue:{there}")[0]))
        frozen.freeze()
        try:
            first = await storage.reclaim(ALICE.id, REAPER)
            with pytest.raises(StorageUnavailableError):
                await storage.reclaim(ALICE.id, DEPUTY)
            settled_there = await storage.exchange(REAPER, [stalled(taken) for taken in first.stalled])
        finally:
            frozen.thaw()
        # After SIGCONT it carries out the request, but the caller has given up; so its effects are searched for.
        taken = await recovery().recover(
            DeadWorker(ALICE.id, ALICE.pid, ProcessExit(-9), SystemClock().now()), storage, within=10.0
        )
        strayed = [
            stall.lease.ref for owner in (REAPER, DEPUTY) for stall in (await storage.reclaim(owner.id, BOB)).stalled
        ]
    finally:
        await storage.close()

    assert [item.lease.ref for item in first.stalled] == [jobs[0].ref]
    assert (first.more, first.incomplete) == (True, True)
    assert [verdict.verdict for verdict in settled_there.verdicts] == ["done"]
    # Its jobs were reclaimed for a call whose answer was lost, and are found with that, or for the recovery.
    assert (taken, strayed) in ((1, []), (0, [jobs[1].ref]))


def owner_on(cluster: RedisCluster, storage: RedisStorage, queue: str) -> Owner:
    """Return an owner whose record lies on the master of a queue."""
    master = cluster.holder(slot(storage.bases_of(f"queue:{queue}")[0]))
    ids = (f"{number:016x}" for number in range(1_000))
    # The record of an owner lies where a queue with that name would.
    found = next(job_id for job_id in ids if cluster.holder(slot(storage.bases_of(f"queue:{job_id}")[0])) is master)
    return Owner(found, "worker host:1", "host", 1)


@pytest.mark.parametrize("home", ["here", "there"])
async def test_a_silent_shard_is_reported_and_delays_no_renewal_beyond_its_limit(
    start_cluster: Callable[..., RedisCluster], home: str
) -> None:
    redis_cluster = start_cluster(cluster_require_full_coverage=False)
    storage = RedisStorage(read(redis_cluster.url))
    line = NewLogLine("info", "said", {})
    started = WorkerStarted(owner="alice", host="host", pid=1, queues=("queue",), concurrency=1)
    try:
        here, there = two_queues(redis_cluster, storage)
        owner = owner_on(redis_cluster, storage, here if home == "here" else there)
        await storage.enqueue([new_job("a", queue=here), new_job("b", queue=there)])
        leases = (await storage.exchange(owner, order=ClaimRequest((here, there), 2))).leases
        beat = RenewRequest(
            owner,
            tuple(LeaseRenewal(lease.ref, lease.fence, log=(line,)) for lease in leases),
            WorkerInfo((here, there)),
            (started,),
            answer_within=500_000,
        )
        frozen = redis_cluster.holder(slot(storage.bases_of(f"queue:{there}")[0]))
        frozen.freeze()
        try:
            pulses: list[RenewResult] = []
            took: list[float] = []
            for _ in range(2):
                asked_at = time.monotonic()
                pulses.append(await storage.renew(beat))
                took.append(time.monotonic() - asked_at)
            [logged] = [detail for detail in await storage.get([leases[0].ref]) if detail is not None]
        finally:
            frozen.thaw()
        await asyncio.sleep(0.6)
        whole = await storage.renew(beat)
    finally:
        await storage.close()

    assert [lease.ref.queue for lease in leases] == [here, there]
    for pulse in pulses:
        assert pulse.incomplete == ((leases[1].ref, leases[1].fence),)
        assert (pulse.lost, pulse.orders) == ((), () if home == "here" else None)
    assert 0.4 < took[0] < 2.0
    # It is not waited for again at once.
    assert took[1] < 0.4
    assert logged.log[0].message == "said"
    assert (whole.incomplete, whole.orders) == ((), ())


async def test_a_timed_out_beat_withholds_no_claim_of_a_healthy_shard(
    start_cluster: Callable[..., RedisCluster],
) -> None:
    redis_cluster = start_cluster()
    storage = RedisStorage(read(redis_cluster.url))
    try:
        here, there = two_queues(redis_cluster, storage)
        await storage.enqueue([new_job("a", queue=here), new_job("b", queue=there)])
        # A lease that is about to expire leaves a beat next to no time.
        with pytest.raises(StorageUnavailableError):
            await storage.renew(RenewRequest(ALICE, (LeaseRenewal(new_job("x", queue=there).ref, 1),), answer_within=1))
        claimed = (await storage.exchange(ALICE, order=ClaimRequest((here, there), 2, Lane(0, 1)))).leases
        after = await storage.exchange(ALICE, [settled(lease) for lease in claimed])
    finally:
        await storage.close()

    # Before: the shard was not asked again for four seconds.
    assert [lease.ref.queue for lease in claimed] == [here, there]
    assert [verdict.verdict for verdict in after.verdicts] == ["done", "done"]
