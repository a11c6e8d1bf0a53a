"""When a cell of a Cluster may be left alone, and that nothing comes too late by it, be every hint lost."""

from collections.abc import AsyncIterator, Callable
from random import Random

import pytest
from msgspec import Struct

from tenure.clock import SECOND
from tenure.core.events import AnyEvent, JobSuspected, LeadershipAcquired, LeadershipLost
from tenure.core.job import Key, Owner, StallSetting, StallTerms
from tenure.core.leadership import LATE, longest_rest
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
from tenure.storage.redis.sweep_schedule import AWAKE, EMPTY, LEFTOVERS, RESTING
from tenure.testing import ManualClock
from tenure.testing.conformance.material import ALICE, DEPUTY, LEASE, QUEUE, REAPER, new_job, settled

pytestmark = pytest.mark.redis

EVERY, GRACE, TERM = 2 * SECOND, 3 * SECOND, 4 * SECOND
REST = round(SECOND * longest_rest(LEASE / SECOND, EVERY / SECOND, TERM / SECOND))
BOUND = GRACE + 2 * EVERY
"""Within this and its lease a job is claimable again whose holder is lost."""

MakeCell = Callable[[], Partition]


def bid(owner: Owner = REAPER, *, rest: int = REST) -> SweepRequest:
    return SweepRequest(owner, term=TERM, every=EVERY, grace=GRACE, rest=rest)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def make_cell(clock: ManualClock, redis_url: str) -> AsyncIterator[MakeCell]:
    """Return what makes cells, each empty."""
    address = read(redis_url)
    connections = Connections(address)
    made: list[Partition] = []

    def make() -> Partition:
        base = "{" + f"{address.namespace}:{len(made)}" + "}"
        made.append(Partition(connections, base, scope=f"cell {len(made)}", clock=clock))
        return made[-1]

    yield make
    await connections.close()


@pytest.fixture
def cell(make_cell: MakeCell) -> Partition:
    return make_cell()


async def claim(cell: Partition) -> Lease:
    [lease] = (await cell.exchange(ALICE, order=ClaimRequest((QUEUE,), 1))).leases
    return lease


async def run_one(cell: Partition) -> None:
    """Leave a job behind that is over: then the cell is in use, and nothing waits."""
    await cell.enqueue([new_job("first")])
    lease = await claim(cell)
    await cell.exchange(ALICE, [settled(lease)])


async def look(cell: Partition) -> int:
    [sight] = await cell.look([cell.base])
    return sight


async def told(cell: Partition, *kinds: type[AnyEvent]) -> list[AnyEvent]:
    return [event for event in (await cell.events(limit=10_000)).events if isinstance(event, kinds)]


# ── who may rest ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_where_nothing_waits_for_a_sweep_it_rests_and_its_term_lasts_for_that(
    cell: Partition, clock: ManualClock
) -> None:
    await run_one(cell)

    assert (await cell.sweep(bid())).again_in == REST

    clock.advance(REST / SECOND)

    assert (await cell.sweep(bid(DEPUTY))).retry_in == TERM
    assert (await cell.sweep(bid())).again_in == REST
    assert len(await told(cell, LeadershipAcquired, LeadershipLost)) == 1


async def test_who_asks_for_no_rest_gets_none(cell: Partition) -> None:
    await run_one(cell)

    assert (await cell.sweep(bid(rest=0))).again_in is None


async def test_where_anybody_holds_a_lease_or_is_suspected_or_parked_nobody_rests(
    cell: Partition, clock: ManualClock
) -> None:
    await cell.enqueue([new_job(f"job-{number}", keys=(Key("k"),)) for number in range(2)])
    lease = await claim(cell)

    assert (await cell.sweep(bid())).again_in is None

    clock.advance(LEASE / SECOND)
    await cell.tune(Target("queue", QUEUE), Settings(record=("suspected",)))
    suspected = await cell.sweep(bid())

    assert (suspected.did["suspected"], suspected.again_in) == (1, None)

    await cell.exchange(ALICE, [settled(lease)], ClaimRequest((QUEUE,), 0))
    other = await claim(cell)
    await cell.exchange(ALICE, [settled(other)])

    assert (await cell.sweep(bid())).again_in == REST
    assert len(await told(cell, JobSuspected)) == 1


async def test_it_rests_until_the_first_thing_falls_due(cell: Partition, clock: ManualClock) -> None:
    await cell.enqueue([new_job("old", ttl=9 * SECOND), new_job("late", delay=7 * SECOND)])
    await cell.plan([PutSchedule(schedule(clock, every=5))])

    assert (await cell.sweep(bid())).again_in == 5 * SECOND

    clock.advance(1)

    assert (await cell.sweep(bid())).again_in == 4 * SECOND

    clock.advance(2)

    assert (await cell.sweep(bid())).again_in is None  # what is due within a sweep is no rest


async def test_a_lease_that_is_shorter_than_most_makes_all_rests_shorter(make_cell: MakeCell) -> None:
    for number, terms in enumerate((StallTerms(lease=16 * SECOND), StallTerms(lease=8 * SECOND))):
        short = make_cell()
        await short.enqueue([new_job(f"job-{number}", stall=terms)])
        lease = terms.lease / SECOND

        assert (await short.sweep(bid())).again_in == (SECOND * longest_rest(lease, 2, 4) or None)

    told_so, watched = make_cell(), make_cell()
    await told_so.tune(Target("queue", QUEUE), Settings(stall=StallSetting(lease=12 * SECOND)))
    await told_so.enqueue([new_job()])
    await watched.enqueue([new_job(heartbeat_timeout=12 * SECOND)])

    assert (await told_so.sweep(bid())).again_in == 6 * SECOND
    assert (await watched.sweep(bid())).again_in == 6 * SECOND


# ── how a rest ends ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_first_change_ends_a_rest_and_makes_the_term_as_short_as_any(
    make_cell: MakeCell, clock: ManualClock
) -> None:
    async def enqueues(cell: Partition) -> None:
        await cell.enqueue([new_job()])

    async def plans(cell: Partition) -> None:
        await cell.plan([PutSchedule(schedule(clock, every=60))])

    for change in (enqueues, plans):
        cell = make_cell()
        await run_one(cell)
        await cell.sweep(bid())
        clock.advance(1)

        assert await look(cell) == RESTING

        await change(cell)
        clock.advance(1)

        assert await look(cell) == AWAKE
        assert (await cell.sweep(bid(DEPUTY))).retry_in == TERM - SECOND
        assert (await cell.sweep(bid())).again_in == REST
        assert await look(cell) == RESTING


async def test_a_look_tells_what_is_empty_and_what_is_left_over(cell: Partition, clock: ManualClock) -> None:
    assert await look(cell) == EMPTY

    await cell.renew(RenewRequest(ALICE, events=()))

    assert await look(cell) == EMPTY

    await run_one(cell)

    assert await look(cell) == AWAKE

    clock.advance(3_601)
    await cell.sweep(bid())  # its job is forgotten, and so is its queue

    assert await look(cell) == LEFTOVERS
    assert (await cell.survey()).swept_ago is None


# ── what a rest may not cost ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_rest_is_no_gap_to_the_pause_guard_but_what_stands_still_in_it_is(
    make_cell: MakeCell, clock: ManualClock
) -> None:
    async def grace_after(seconds: float) -> int:
        """Return the grace of a lease that has run out when it is swept so long after a rest began."""
        cell = make_cell()
        await run_one(cell)
        await cell.sweep(bid())
        await cell.enqueue([new_job(stall=StallTerms(lease=9 * SECOND))])
        lease = await claim(cell)
        clock.advance(seconds)
        await cell.sweep(bid())
        [detail] = await cell.get([lease.ref])
        assert detail is not None
        assert detail.job.suspect_until is not None
        return detail.job.suspect_until - clock.now()

    assert await grace_after(REST / SECOND + 5.9) == GRACE
    assert await grace_after(REST / SECOND + 6.1) == 9 * SECOND // 2


class Sweeper(Struct):
    """A reaper that hears no hint: it comes when its rest, its rhythm or another's term is over."""

    owner: Owner
    comes_at: int

    def heed(self, swept: SweepResult, now: int, rng: Random) -> None:
        """Note when to come again."""
        if swept.retry_in is not None:
            self.comes_at = now + swept.retry_in + round(SECOND * LATE * rng.random())
        elif swept.again_in is not None:
            self.comes_at = now + swept.again_in
        else:
            self.comes_at = now + round(EVERY * (1 - 0.1 * rng.random()))


@pytest.mark.parametrize("leader_dies", [False, True])
@pytest.mark.parametrize("lease", [LEASE, 15 * SECOND, 9 * SECOND, 5 * SECOND])
async def test_a_lease_that_begins_in_a_rest_is_reclaimed_within_the_bound_though_every_hint_is_lost(
    make_cell: MakeCell, clock: ManualClock, lease: int, leader_dies: bool
) -> None:
    longest = 0
    for seed in range(40):
        rng = Random(f"{seed} {lease} {leader_dies}")
        cell = make_cell()
        await run_one(cell)
        # That such leases may begin here is known before, as when a task has run once.
        await cell.enqueue([new_job("waits", stall=StallTerms(lease=lease))])
        begins_at = clock.now() + round(rng.uniform(1, 30) * SECOND)
        sweepers = [Sweeper(REAPER, clock.now()), Sweeper(DEPUTY, clock.now() + round(rng.uniform(0, 2) * SECOND))]
        began: int | None = None
        while True:
            now = clock.now()
            if began is None and now >= begins_at:
                await claim(cell)
                began = now
                if leader_dies:
                    [term] = (await cell.survey()).leaders
                    sweepers = [sweeper for sweeper in sweepers if sweeper.owner.id != term.owner]
            stalled = 0
            for sweeper in sweepers:
                if sweeper.comes_at <= now:
                    swept = await cell.sweep(bid(sweeper.owner))
                    stalled += len(swept.stalled)
                    sweeper.heed(swept, now, rng)
            if stalled:
                assert began is not None
                longest = max(longest, now - began)
                break
            ahead = [sweeper.comes_at for sweeper in sweepers] + ([begins_at] if began is None else [])
            clock.advance((min(ahead) - now) / SECOND)
    print(f"lease {lease / SECOND:g} s, leader dies: {leader_dies}: reclaimed after {longest / SECOND:.1f} s at most")

    assert longest <= lease + BOUND


@pytest.mark.parametrize("lease", [LEASE, 9 * SECOND])
async def test_nobody_who_lives_is_reaped_after_a_rest_in_which_all_stood_still(
    make_cell: MakeCell, clock: ManualClock, lease: int
) -> None:
    for seed in range(40):
        rng = Random(f"{seed} {lease}")
        cell = make_cell()
        await run_one(cell)
        await cell.enqueue([new_job("waits", stall=StallTerms(lease=lease))])
        rest = (await cell.sweep(bid())).again_in or EVERY
        ends_at = clock.now() + rest
        clock.advance(rng.uniform(0, rest / SECOND))
        held = await claim(cell)
        # All stand still; then the reaper comes first, as it was to, or is late, and each beat at its own time.
        clock.advance(rng.uniform(0, 40))
        clock.advance(max(0, ends_at - clock.now()) / SECOND)
        beats_at, sweeps_at = clock.now() + round(rng.random() * lease / 4), clock.now()
        until = clock.now() + 3 * lease
        while clock.now() < until:
            now = clock.now()
            if now >= sweeps_at:
                assert (await cell.sweep(bid())).stalled == ()
                sweeps_at = now + EVERY
            if now >= beats_at:
                assert (await cell.renew(RenewRequest(ALICE, (LeaseRenewal(held.ref, held.fence),)))).lost == ()
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
