"""Skips of idle partitions of a Cluster: when they begin and end, and their cost if a notification is lost."""

from collections.abc import AsyncIterator, Callable
from random import Random

import pytest
from msgspec import Struct, structs

from tenure.clock import SECOND
from tenure.core.events import AnyEvent, JobSuspected, LeadershipAcquired, LeadershipLost
from tenure.core.job import Key, Owner, StallTerms
from tenure.core.leadership import LATE, longest_skip
from tenure.core.lease import Lease
from tenure.core.schedule import Schedule
from tenure.storage.protocol import (
    ClaimRequest,
    LeaseRenewal,
    PutSchedule,
    RenewRequest,
    Settings,
    SweepRequest,
    SweepResult,
    Target,
)
from tenure.storage.redis.address import read
from tenure.storage.redis.connections import Connections
from tenure.storage.redis.partition import Partition
from tenure.testing import ManualClock
from tenure_testing.conformance.helpers import ALICE, DEPUTY, LEASE, QUEUE, REAPER, new_job, settled

pytestmark = pytest.mark.redis

EVERY, GRACE, TERM = 2 * SECOND, 3 * SECOND, 4 * SECOND
SKIP = round(SECOND * longest_skip(LEASE / SECOND, EVERY / SECOND, TERM / SECOND, GRACE / SECOND))
BOUND = GRACE + 2 * EVERY
"""The longest time from the end of a lost holder's lease until its job is claimable again."""

MakePartition = Callable[[], Partition]


def bid(owner: Owner = REAPER, *, max_skip: int = SKIP) -> SweepRequest:
    return SweepRequest(owner, term=TERM, every=EVERY, grace=GRACE, max_skip=max_skip)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def make_partition(clock: ManualClock, redis_url: str) -> AsyncIterator[MakePartition]:
    """Return a function that creates an empty partition."""
    address = read(redis_url)
    connections = Connections(address)
    made: list[Partition] = []

    def make() -> Partition:
        base = "{" + f"{address.namespace}:{len(made)}" + "}"
        made.append(Partition(connections, base, scope=f"partition {len(made)}", clock=clock))
        return made[-1]

    yield make
    await connections.close()


@pytest.fixture
def partition(make_partition: MakePartition) -> Partition:
    return make_partition()


async def claim(partition: Partition) -> Lease:
    [lease] = (await partition.exchange(ALICE, order=ClaimRequest((QUEUE,), 1))).leases
    return lease


async def run_one(partition: Partition) -> None:
    """Run one job to its end: then the partition has a queue, and nothing waits for a sweep."""
    await partition.enqueue([new_job("first")])
    lease = await claim(partition)
    await partition.exchange(ALICE, [settled(lease)])


async def skip(partition: Partition, request: SweepRequest) -> int:
    """Sweep; return the length of the skip that the partition grants."""
    _, granted = await partition.sweep_or_skip(request)
    return granted


async def seconds_of_term(partition: Partition) -> float:
    refused = await partition.sweep(bid(DEPUTY))
    assert refused.retry_in is not None
    return refused.retry_in / SECOND


async def recorded_events(partition: Partition, *kinds: type[AnyEvent]) -> list[AnyEvent]:
    return [event for event in (await partition.events(limit=10_000)).events if isinstance(event, kinds)]


# ── when a partition is skipped ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_partition_without_work_is_skipped_and_its_term_lasts_as_long(
    partition: Partition, clock: ManualClock
) -> None:
    await run_one(partition)

    assert await skip(partition, bid()) == SKIP

    clock.advance(SKIP / SECOND)

    assert (await partition.sweep(bid(DEPUTY))).retry_in == TERM
    assert await skip(partition, bid()) == SKIP
    assert len(await recorded_events(partition, LeadershipAcquired, LeadershipLost)) == 1


async def test_a_request_without_max_skip_gets_no_skip(partition: Partition) -> None:
    await run_one(partition)

    assert await skip(partition, bid(max_skip=0)) == 0


async def test_leases_suspects_and_parked_jobs_prevent_a_skip(partition: Partition, clock: ManualClock) -> None:
    await partition.enqueue([new_job(f"job-{number}", keys=(Key("k"),)) for number in range(2)])
    lease = await claim(partition)

    assert await skip(partition, bid()) == 0

    clock.advance(LEASE / SECOND)
    await partition.tune(Target("queue", QUEUE), Settings(record=("suspected",)))
    suspected, granted = await partition.sweep_or_skip(bid())

    assert (suspected.did["suspected"], granted) == (1, 0)

    await partition.exchange(ALICE, [settled(lease)], ClaimRequest((QUEUE,), 0))
    other = await claim(partition)
    await partition.exchange(ALICE, [settled(other)])

    assert await skip(partition, bid()) == SKIP
    assert len(await recorded_events(partition, JobSuspected)) == 1


async def test_a_skip_ends_when_the_first_job_or_tick_falls_due(partition: Partition, clock: ManualClock) -> None:
    await partition.enqueue([new_job("old", ttl=9 * SECOND), new_job("late", delay=7 * SECOND)])
    await partition.plan([PutSchedule(schedule(clock, every=5))])

    assert await skip(partition, bid()) == 5 * SECOND

    clock.advance(1)

    assert await skip(partition, bid()) == 4 * SECOND

    clock.advance(2)

    assert await skip(partition, bid()) == 0  # a tick is due within two sweeps


# ── how a skip ends ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_first_change_ends_a_skip_and_shortens_the_term(
    make_partition: MakePartition, clock: ManualClock
) -> None:
    async def enqueues(partition: Partition) -> None:
        await partition.enqueue([new_job()])

    async def plans(partition: Partition) -> None:
        await partition.plan([PutSchedule(schedule(clock, every=60))])

    for change in (enqueues, plans):
        partition = make_partition()
        await run_one(partition)
        await partition.sweep(bid())
        clock.advance(1)

        assert await seconds_of_term(partition) == (SKIP + TERM) / SECOND - 1

        await change(partition)
        clock.advance(1)

        assert (await partition.sweep(bid(DEPUTY))).retry_in == TERM - SECOND
        assert await skip(partition, bid()) == SKIP


# ── what a skip may not cost ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_skip_does_not_count_as_a_pause_until_a_change_ends_it(
    make_partition: MakePartition, clock: ManualClock
) -> None:
    async def grace_after(idle: float, seconds: float) -> int:
        """Return the grace of a lease of 5 s that begins `idle` seconds into a skip and is swept `seconds` later."""
        impatient = structs.replace(bid(), grace=SECOND)
        partition = make_partition()
        await run_one(partition)
        await partition.sweep(impatient)
        clock.advance(idle)
        await partition.enqueue([new_job(stall=StallTerms(lease=5 * SECOND))])
        lease = await claim(partition)
        clock.advance(seconds)
        await partition.sweep(impatient)
        [detail] = await partition.get([lease.ref])
        assert detail is not None
        assert detail.job.suspect_until is not None
        return detail.job.suspect_until - clock.now()

    for idle in (0, 8):
        assert await grace_after(idle, 5.9) == SECOND
        assert await grace_after(idle, 6.1) == 5 * SECOND // 2


class Sweeper(Struct):
    """A reaper without notifications: it sweeps when a skip, its interval or another's term has ended."""

    owner: Owner
    comes_at: int

    def plan(self, swept: SweepResult, skip: int, now: int, rng: Random) -> None:
        """Plan the next sweep."""
        if swept.retry_in is not None:
            self.comes_at = now + swept.retry_in + round(SECOND * LATE * rng.random())
        elif skip:
            self.comes_at = now + skip
        else:
            self.comes_at = now + round(EVERY * (1 - 0.1 * rng.random()))


@pytest.mark.parametrize("leader_dies", [False, True])
@pytest.mark.parametrize("lease", [LEASE, 15 * SECOND, 9 * SECOND, 5 * SECOND])
async def test_a_lease_of_a_skip_is_reclaimed_in_time_without_notifications(
    make_partition: MakePartition, clock: ManualClock, lease: int, leader_dies: bool
) -> None:
    longest = 0
    for seed in range(40):
        rng = Random(f"{seed} {lease} {leader_dies}")
        partition = make_partition()
        await run_one(partition)
        await partition.enqueue([new_job("waits", stall=StallTerms(lease=lease))])
        begins_at = clock.now() + round(rng.uniform(1, 30) * SECOND)
        sweepers = [Sweeper(REAPER, clock.now()), Sweeper(DEPUTY, clock.now() + round(rng.uniform(0, 2) * SECOND))]
        began: int | None = None
        while True:
            now = clock.now()
            if began is None and now >= begins_at:
                await claim(partition)
                began = now
                if leader_dies:
                    [term] = (await partition.survey()).leaders
                    sweepers = [sweeper for sweeper in sweepers if sweeper.owner.id != term.owner]
            stalled = 0
            for sweeper in sweepers:
                if sweeper.comes_at <= now:
                    swept, granted = await partition.sweep_or_skip(bid(sweeper.owner))
                    stalled += len(swept.stalled)
                    sweeper.plan(swept, granted, now, rng)
            if stalled:
                assert began is not None
                longest = max(longest, now - began)
                break
            ahead = [sweeper.comes_at for sweeper in sweepers] + ([begins_at] if began is None else [])
            clock.advance((min(ahead) - now) / SECOND)
    print(f"lease {lease / SECOND:g} s, leader dies: {leader_dies}: reclaimed after {longest / SECOND:.1f} s at most")

    # The reaper knows its own lease only, so a shorter one may be noticed a skip too late.
    assert longest <= lease + BOUND + (SKIP if lease < LEASE else 0)


@pytest.mark.parametrize("lease", [LEASE, 15 * SECOND, 9 * SECOND])
async def test_no_live_holder_loses_its_job_if_all_hosts_freeze_in_a_skip(
    make_partition: MakePartition, clock: ManualClock, lease: int
) -> None:
    for seed in range(40):
        rng = Random(f"{seed} {lease}")
        partition = make_partition()
        await run_one(partition)
        await partition.enqueue([new_job("waits", stall=StallTerms(lease=lease))])
        skipped = await skip(partition, bid())
        ends_at = clock.now() + skipped
        clock.advance(rng.uniform(0, skipped / SECOND))
        held = await claim(partition)
        # All hosts freeze. Then the reaper sweeps first, in time or late, and each holder renews at its own time.
        clock.advance(rng.uniform(0, 40))
        clock.advance(max(0, ends_at - clock.now()) / SECOND)
        beats_at, sweeps_at = clock.now() + round(rng.random() * lease / 4), clock.now()
        until = clock.now() + 3 * lease
        while clock.now() < until:
            now = clock.now()
            if now >= sweeps_at:
                assert (await partition.sweep(bid())).stalled == ()
                sweeps_at = now + EVERY
            if now >= beats_at:
                assert (await partition.renew(RenewRequest(ALICE, (LeaseRenewal(held.ref, held.fence),)))).lost == ()
                beats_at = now + lease // 4
            clock.advance((min(beats_at, sweeps_at) - now) / SECOND)


def schedule(clock: ManualClock, *, every: int) -> Schedule:
    return Schedule(
        name="tick",
        job=new_job(""),
        every=every * SECOND,
        last_tick=clock.now(),
        next_tick=clock.now() + every * SECOND,
    )
