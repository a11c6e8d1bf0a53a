"""Work that one Redis script has no time for is done by the next; a call at its limits is complete anyway."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tenure.core.duration import moment
from tenure.core.events import QueueDrained
from tenure.core.job import TRACE_KEPT, Key, Owner, RecordedError
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.outcome import Interrupted, Raised, Returned
from tenure.errors import StorageUnavailableError
from tenure.storage.protocol import (
    CLAIM_LIMIT,
    RENEW_LIMIT,
    SCAN_LIMIT,
    SETTLE_LIMIT,
    SWEEP_LIMIT,
    ClaimRequest,
    LeaseRenewal,
    NewLogLine,
    RenewRequest,
    RenewResult,
    SweepRequest,
    WorkerInfo,
)
from tenure.storage.redis.address import read
from tenure.storage.redis.connections import Connections
from tenure.storage.redis.partition import Partition
from tenure.storage.redis.script_library import Script
from tenure.testing import ManualClock
from tenure_testing.conformance.helpers import ALICE, QUEUE, REAPER, new_job, new_jobs, settled
from tests.servers import client_of, command

pytestmark = pytest.mark.redis


LARGE = 900_000
"""Bytes of a payload, or of a result, of which one script has time for one."""


class Wire:
    """A connection that counts the calls of each script, and can be cut after a number of calls."""

    def __init__(self, connections: Connections) -> None:
        self.calls = Counter[str]()
        self.cut_after: int | None = None
        self._connections = connections

    async def call(self, script: Script, base: str, *args: bytes | str | int, durable: bool = False) -> Any:
        """Call a script, or raise as a cut connection does."""
        if self.cut_after == 0:
            raise StorageUnavailableError("cut")
        if self.cut_after is not None:
            self.cut_after -= 1
        self.calls[script.name] += 1
        return await self._connections.call(script, base, *args, durable=durable)


@pytest.fixture
async def wire(redis_url: str) -> AsyncIterator[Wire]:
    connections = Connections(read(redis_url))
    yield Wire(connections)
    await connections.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def partition(wire: Wire, clock: ManualClock, redis_url: str) -> Partition:
    return Partition(wire, read(redis_url).bases[0], clock=clock)


async def held(partition: Partition, number: int, owner: Owner = ALICE) -> list[Lease]:
    """Enqueue this many jobs and claim them."""
    jobs = new_jobs(number)
    for start in range(0, number, 100):
        await partition.enqueue(jobs[start : start + 100])
    leases: list[Lease] = []
    while won := (await partition.exchange(owner, (), ClaimRequest((QUEUE,), CLAIM_LIMIT))).leases:
        leases += won
    return leases


async def large_jobs(partition: Partition, number: int) -> dict[str, bytes]:
    """Enqueue this many jobs of almost a megabyte; return the payload of each."""
    payloads = {f"large-{at:02}": b"%02d" % at * (LARGE // 2) for at in range(number)}
    for id_, payload in payloads.items():
        await partition.enqueue([new_job(id_, payload=payload)])
    return payloads


async def test_few_settlements_and_claims_are_one_script(partition: Partition, wire: Wire) -> None:
    leases = await held(partition, 20)
    await partition.enqueue([new_job(f"more-{number}") for number in range(20)])
    wire.calls.clear()
    answer = await partition.exchange(
        ALICE, [settled(lease, Returned(b"null")) for lease in leases], ClaimRequest((QUEUE,), 20)
    )

    assert wire.calls == {"exchange": 1}
    assert len(answer.leases) == 20


async def test_all_that_a_call_may_settle_and_claim_is_settled_and_claimed(partition: Partition, wire: Wire) -> None:
    leases = await held(partition, SETTLE_LIMIT)
    await partition.enqueue([new_job(f"more-{number:03}") for number in range(CLAIM_LIMIT + 1)])
    wire.calls.clear()
    answer = await partition.exchange(
        ALICE, [settled(lease, Returned(b"null")) for lease in leases], ClaimRequest((QUEUE,), CLAIM_LIMIT)
    )

    assert [(verdict.ref, verdict.verdict) for verdict in answer.verdicts] == [(item.ref, "done") for item in leases]
    assert [lease.ref.id for lease in answer.leases] == [f"more-{number:03}" for number in range(CLAIM_LIMIT)]
    assert answer.left
    assert wire.calls["exchange"] > 1


async def test_a_claim_of_several_scripts_looks_at_no_more_jobs(partition: Partition, wire: Wire) -> None:
    one = (Key("one"),)
    await partition.enqueue([new_job("holder", keys=one)])
    await partition.exchange(ALICE, (), ClaimRequest((QUEUE,), 1))
    for start in range(0, SCAN_LIMIT + 100, 100):
        await partition.enqueue([new_job(f"job-{start + n:03}", keys=one) for n in range(100)])
    wire.calls.clear()
    answer = await partition.exchange(ALICE, (), ClaimRequest((QUEUE,), 1))

    assert (answer.leases, answer.left) == ((), True)
    assert (await partition.survey()).queues[0].parked == SCAN_LIMIT
    assert wire.calls["exchange"] > 1


async def test_jobs_claimed_before_a_lost_connection_are_returned(partition: Partition, wire: Wire) -> None:
    # Their keys have to be looked at one by one.
    keyed = (Key("k", 1000),)
    await partition.enqueue([new_job(f"job-{number:03}", keys=keyed) for number in range(100)])
    await partition.enqueue([new_job(f"more-{number:03}", keys=keyed) for number in range(100)])
    wire.cut_after = 1
    answer = await partition.exchange(ALICE, (), ClaimRequest((QUEUE,), CLAIM_LIMIT))

    assert 0 < len(answer.leases) < CLAIM_LIMIT
    assert answer.left

    wire.cut_after = None

    assert (await partition.survey()).queues[0].counts[State.ACTIVE] == len(answer.leases)


async def test_settlements_that_are_cut_off_are_sent_again(partition: Partition, wire: Wire) -> None:
    settlements = [settled(lease, Returned(b"null")) for lease in await held(partition, SETTLE_LIMIT)]
    wire.cut_after = 1
    with pytest.raises(StorageUnavailableError):
        await partition.exchange(ALICE, settlements)
    wire.cut_after = None
    verdicts = [verdict.verdict for verdict in (await partition.exchange(ALICE, settlements)).verdicts]

    assert set(verdicts) == {"duplicate", "done"}
    assert verdicts == sorted(verdicts, reverse=True)


async def test_a_claim_of_large_jobs_takes_several_scripts_and_is_bounded(partition: Partition, wire: Wire) -> None:
    payloads = await large_jobs(partition, 12)
    wire.calls.clear()
    answer = await partition.exchange(ALICE, (), ClaimRequest((QUEUE,), CLAIM_LIMIT))

    assert len(answer.leases) == 9
    assert answer.left
    assert wire.calls["exchange"] == 9

    rest = await partition.exchange(ALICE, (), ClaimRequest((QUEUE,), CLAIM_LIMIT))

    assert not rest.left
    assert {lease.ref.id: lease.job.payload for lease in (*answer.leases, *rest.leases)} == payloads


async def test_large_results_are_settled_in_several_scripts_before_the_claim(partition: Partition, wire: Wire) -> None:
    leases = await held(partition, 5)
    await partition.enqueue([new_job("next")])
    wire.calls.clear()
    settlements = [settled(lease, Returned(b"x" * LARGE)) for lease in leases]
    answer = await partition.exchange(ALICE, settlements, ClaimRequest((QUEUE,), CLAIM_LIMIT))
    details = await partition.get([lease.ref for lease in leases])

    assert [(verdict.ref, verdict.verdict) for verdict in answer.verdicts] == [(item.ref, "done") for item in leases]
    assert [lease.ref.id for lease in answer.leases] == ["next"]
    assert all(detail and detail.job.result == b"x" * LARGE for detail in details)
    assert wire.calls["exchange"] > 2


async def test_settlements_and_renewals_that_are_long_to_read_are_done_anyway(partition: Partition) -> None:
    leases = await held(partition, 20)
    line = (NewLogLine("info", "x" * 30_000, {}),)
    pulse = await partition.renew(
        RenewRequest(ALICE, tuple(LeaseRenewal(lease.ref, lease.fence, log=line) for lease in leases))
    )
    error = RecordedError("ValueError", "no good", "x" * 30_000)
    answer = await partition.exchange(ALICE, [settled(lease, Raised(error)) for lease in leases])

    assert pulse.lost == ()
    assert [verdict.verdict for verdict in answer.verdicts] == ["done"] * 20


async def test_large_jobs_are_reclaimed_a_few_at_a_time(partition: Partition, wire: Wire) -> None:
    payloads = await large_jobs(partition, 5)
    await held(partition, 0)
    wire.calls.clear()
    taken = await partition.reclaim(ALICE.id, REAPER)

    assert (len(taken.stalled), taken.more) == (3, True)
    assert wire.calls["reclaim"] == 3

    rest = await partition.reclaim(ALICE.id, REAPER)

    assert not rest.more
    assert {stall.lease.ref.id: stall.lease.job.payload for stall in (*taken.stalled, *rest.stalled)} == payloads


async def test_large_jobs_are_reclaimed_in_parts_and_delay_no_other_sweep_step(
    partition: Partition, clock: ManualClock
) -> None:
    payloads = await large_jobs(partition, 5)
    await held(partition, 0)
    clock.advance(21)
    await partition.sweep(SweepRequest(REAPER))
    await partition.enqueue([new_job("delayed", delay=1_000_000)])
    clock.advance(21)
    swept = await partition.sweep(SweepRequest(REAPER))

    assert len(swept.stalled) == swept.did["reclaimed"] == 3
    assert swept.did["promoted"] == 1
    assert swept.more

    rest = await partition.sweep(SweepRequest(REAPER))

    assert not rest.more
    assert {stall.lease.ref.id: stall.lease.job.payload for stall in (*swept.stalled, *rest.stalled)} == payloads


async def test_a_beat_in_several_scripts_renews_all_leases_and_reports_once(
    partition: Partition, wire: Wire, clock: ManualClock
) -> None:
    leases = await held(partition, RENEW_LIMIT)
    clock.advance(5)
    line = (NewLogLine("info", "a line", {"k": "v"}),)
    renewals = tuple(LeaseRenewal(lease.ref, lease.fence + number % 2, log=line) for number, lease in enumerate(leases))
    events = (QueueDrained(queue="other", at=moment(0)),)
    wire.calls.clear()
    pulse = await partition.renew(RenewRequest(ALICE, renewals, WorkerInfo(queues=(QUEUE,)), events))
    details = await partition.get([lease.ref for lease in leases])
    drained = [event for event in (await partition.events(limit=1000)).events if isinstance(event, QueueDrained)]

    assert wire.calls["renew"] > 1
    assert pulse.lost == tuple((renewal.ref, renewal.fence) for renewal in renewals[1::2])
    assert [detail and (detail.job.heard_at, len(detail.log)) for detail in details[::2]] == [(clock.now(), 1)] * 250
    assert len(drained) == 1
    assert [worker.owner.id for worker in (await partition.survey()).workers] == [ALICE.id]


async def test_a_beat_with_long_traces_is_sent_in_parts_and_stores_the_worker(
    partition: Partition, wire: Wire, clock: ManualClock
) -> None:
    leases = await held(partition, 100)
    texts = [f"{number}" + "x" * (TRACE_KEPT - 9) for number in range(100)]
    renewals = tuple(
        LeaseRenewal(lease.ref, lease.fence, trace=text) for lease, text in zip(leases, texts, strict=True)
    )
    events = (QueueDrained(queue="other", at=moment(0)),)
    for _ in range(2):
        clock.advance(5)
        wire.calls.clear()

        assert (
            await partition.renew(RenewRequest(ALICE, renewals, WorkerInfo(queues=(QUEUE,)), events)) == RenewResult()
        )
        assert wire.calls["renew"] >= 4

    details = await partition.get([lease.ref for lease in leases])
    drained = [event for event in (await partition.events(limit=1000)).events if isinstance(event, QueueDrained)]

    assert [detail and detail.runs[-1].trace for detail in details] == texts
    assert {detail and detail.job.heard_at for detail in details} == {clock.now()}
    assert len(drained) == 2

    # Without any it is one call again.
    clock.advance(5)
    wire.calls.clear()
    untold = tuple(LeaseRenewal(lease.ref, lease.fence) for lease in leases)

    assert await partition.renew(RenewRequest(ALICE, untold, WorkerInfo(queues=(QUEUE,)))) == RenewResult()
    assert wire.calls["renew"] == 1


async def test_a_leftover_trace_is_not_shown_for_the_next_run(
    partition: Partition, clock: ManualClock, redis_url: str
) -> None:
    [first] = await held(partition, 1)
    renewal = LeaseRenewal(first.ref, first.fence, trace="here")
    await partition.renew(RenewRequest(ALICE, (renewal,)))
    with client_of(redis_url.partition("?")[0]) as client:
        there = command(client, "HGETALL", f"{partition.base}:traces")
        # Settled by the scripts of the version before, which do not know of traces.
        await partition.exchange(ALICE, [settled(first, Interrupted("shutdown"))])
        gone = command(client, "HGETALL", f"{partition.base}:traces")
        command(client, "HSET", f"{partition.base}:traces", *next(iter(there.items())))
    clock.advance(1)
    await partition.exchange(ALICE, (), ClaimRequest((QUEUE,), 1))
    [detail] = await partition.get([first.ref])

    assert (len(there), len(gone)) == (1, 0)
    assert detail is not None
    assert [run.trace for run in detail.runs] == [None, None]


async def test_all_that_a_reclaim_may_take_is_taken(partition: Partition, wire: Wire) -> None:
    await held(partition, SWEEP_LIMIT + 10)
    taken = await partition.reclaim(ALICE.id, REAPER)

    assert (len(taken.stalled), taken.more) == (SWEEP_LIMIT, True)
    assert wire.calls["reclaim"] > 1

    rest = await partition.reclaim(ALICE.id, REAPER)

    assert (len(rest.stalled), rest.more) == (10, False)


async def test_jobs_reclaimed_before_a_lost_connection_are_returned(partition: Partition, wire: Wire) -> None:
    await held(partition, SWEEP_LIMIT)
    wire.cut_after = 1
    taken = await partition.reclaim(ALICE.id, REAPER)

    assert 0 < len(taken.stalled) < SWEEP_LIMIT
    assert (taken.more, taken.incomplete) == (True, True)


async def test_jobs_swept_before_a_lost_connection_are_returned(
    partition: Partition, wire: Wire, clock: ManualClock
) -> None:
    await held(partition, SWEEP_LIMIT)
    clock.advance(21)
    await partition.sweep(SweepRequest(REAPER))
    clock.advance(21)
    wire.cut_after = 1
    swept = await partition.sweep(SweepRequest(REAPER))

    assert 0 < len(swept.stalled) < SWEEP_LIMIT
    assert swept.did["reclaimed"] == len(swept.stalled)
    assert swept.more
    assert [term.owner for term in swept.terms] == [REAPER.id]


async def test_a_sweep_that_is_cut_before_it_took_anything_raises(partition: Partition, wire: Wire) -> None:
    wire.cut_after = 0
    with pytest.raises(StorageUnavailableError):
        await partition.sweep(SweepRequest(REAPER))


async def test_sweeps_that_never_reach_their_end_do_not_count_as_a_pause(
    partition: Partition, wire: Wire, clock: ManualClock
) -> None:
    bid = SweepRequest(REAPER)
    await held(partition, 2 * SWEEP_LIMIT)
    for _ in range(6):
        await partition.sweep(bid)
        clock.advance(2)
    await partition.enqueue([new_job("late")])
    [late] = (await partition.exchange(ALICE, (), ClaimRequest((QUEUE,), 1))).leases
    for _ in range(6):
        await partition.sweep(bid)
        clock.advance(2)
    # By now so many leases have expired that a call has time for nothing else.
    for _ in range(4):
        wire.cut_after = 1
        assert (await partition.sweep(bid)).more
        clock.advance(2)
    wire.cut_after = None
    await partition.sweep(bid)
    [detail] = await partition.get([late.ref])

    assert detail is not None
    # The usual grace, not the longer one after a time without sweeps.
    assert detail.job.suspect_until == clock.now() + bid.grace
