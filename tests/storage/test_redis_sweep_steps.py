"""What sweeps of a Redis maintain: damaged indexes, steps that fail, and work that is done in turns."""

from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from tenure.clock import SECOND
from tenure.core.events import JobRepaired
from tenure.core.job import Key, Policy, Redriving, Ref
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.outcome import Returned
from tenure.core.retention import KeepRule, RetentionRules
from tenure.core.retry import Backoff
from tenure.storage.protocol import (
    PROMOTE_LIMIT,
    TRIM_LIMIT,
    CancelJob,
    ClaimRequest,
    DeleteJob,
    LeaseRenewal,
    RenewRequest,
    Settings,
    SweepRequest,
    Target,
)
from tenure.storage.redis.address import read
from tenure.storage.redis.storage import RedisStorage
from tenure.testing import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    QUEUE,
    RAISED,
    REAPER,
    beat,
    bid,
    claim,
    enqueue,
    events_of,
    new_job,
    record,
    settle,
    settled,
    start,
)
from tests.servers import client_of

pytestmark = pytest.mark.redis

DAY = 86_400
ROUND = 60
"""Sweeps after which the audit has surely checked the few indexes of a test."""


class RedisPartition(NamedTuple):
    """A storage, and its keys."""

    storage: RedisStorage
    client: Any
    base: str

    def key(self, kind: str, *names: str) -> str:
        """Return the key of an index."""
        return ":".join((self.base, kind, "\0".join(names))) if names else f"{self.base}:{kind}"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def partition(clock: ManualClock, redis_url: str) -> AsyncIterator[RedisPartition]:
    address = read(redis_url)
    storage = RedisStorage(address, clock=clock)
    await storage.open()
    with client_of(redis_url.partition("?")[0]) as client:
        yield RedisPartition(storage, client, address.bases[0])
    await storage.close()


# ── the audit ─────────────────────────────────────────────────────────────────────────────────────────────────────────

REF = f"{QUEUE}\0job"

BROKEN: dict[str, tuple[Callable[[RedisPartition], object], str]] = {
    "out of line": (
        lambda partition: partition.client.zrem(partition.key("ready", QUEUE), "job"),
        "missing in ready:default",
    ),
    "misplaced in line": (
        lambda partition: partition.client.zincrby(partition.key("ready", QUEUE), 7, "job"),
        "misplaced in ready:default",
    ),
    "not in its state": (
        lambda partition: partition.client.zrem(partition.key("in", QUEUE, "waiting"), "job"),
        "missing in in:default waiting",
    ),
    "in another state, too": (
        lambda partition: partition.client.zadd(partition.key("in", QUEUE, "failed"), {"job": 1}),
        "in in:default failed",
    ),
    "delayed as well": (
        lambda partition: partition.client.zadd(partition.key("delayed", QUEUE), {"job": 1}),
        "in delayed:default",
    ),
    "leased without an owner": (
        lambda partition: partition.client.zadd(partition.key("leases"), {REF: 1}),
        "in leases",
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_damage_to_a_waiting_job_is_repaired_and_recorded(partition: RedisPartition, broken: str) -> None:
    breaking, found = BROKEN[broken]
    await enqueue(partition.storage, new_job(keys=(Key("k"),)), new_job("other", queue="other"))
    breaking(partition)
    for _ in range(ROUND):
        await partition.storage.sweep(bid())
    repaired = await events_of(partition.storage, JobRepaired)

    assert [(event.id, event.found) for event in repaired] == [("job", found)]
    assert [lease.ref.id for lease in await claim(partition.storage)] == ["job"]


async def test_an_entry_without_a_record_is_removed(partition: RedisPartition) -> None:
    await enqueue(partition.storage, new_job())
    partition.client.zadd(partition.key("ready", QUEUE), {"missing": 1})
    for _ in range(ROUND):
        await partition.storage.sweep(bid())
    repaired = await events_of(partition.storage, JobRepaired)

    assert [(event.id, event.found, event.repair) for event in repaired] == [
        ("missing", "in ready:default without a record", "taken out")
    ]
    assert partition.client.zrange(partition.key("ready", QUEUE), 0, -1) == [b"job"]


async def test_a_run_without_a_stored_lease_is_found_and_given_to_another(
    partition: RedisPartition, clock: ManualClock
) -> None:
    lease = await start(partition.storage)
    partition.client.zrem(partition.key("leases"), REF)
    clock.advance(60)
    for _ in range(ROUND):
        clock.advance(2)
        await partition.storage.sweep(bid())
    job = await record(partition.storage, lease.ref)

    assert [event.found for event in await events_of(partition.storage, JobRepaired)] == ["missing in leases"]
    assert job.owner == REAPER.id


async def test_a_slot_whose_holder_is_gone_is_free_again(partition: RedisPartition) -> None:
    one = (Key("one"),)
    await enqueue(partition.storage, new_job(keys=one))
    partition.client.zadd(partition.key("slots", QUEUE, "one"), {"missing": 1})

    assert await claim(partition.storage) == []

    for _ in range(ROUND):
        await partition.storage.sweep(bid())

    assert [lease.ref.id for lease in await claim(partition.storage)] == ["job"]
    assert [event.id for event in await events_of(partition.storage, JobRepaired)] == ["missing"]


async def test_a_parked_job_that_is_missing_in_the_index_is_released(partition: RedisPartition) -> None:
    one = (Key("one"),)
    first = await start(partition.storage, new_job("first", keys=one))
    await enqueue(partition.storage, new_job(keys=one))
    await claim(partition.storage)
    partition.client.zrem(partition.key("places"), f"{QUEUE}\0one")
    for _ in range(ROUND):
        await partition.storage.sweep(bid())

    assert partition.client.zrange(partition.key("places"), 0, -1) == [f"{QUEUE}\0one".encode()]

    await settle(partition.storage, ALICE, first)

    assert [lease.ref.id for lease in await claim(partition.storage)] == ["job"]


async def test_a_dead_entry_delays_no_step(partition: RedisPartition, clock: ManualClock) -> None:
    await start(partition.storage, new_job("silent"))
    await enqueue(partition.storage, new_job("aged", ttl=SECOND), new_job("later", delay=SECOND))
    for kind in ("aging", "leases", "suspects", "kept", "redrives"):
        partition.client.zadd(partition.key(kind), {f"{QUEUE}\0missing": 1})
    partition.client.zadd(partition.key("delayed", QUEUE), {"missing": 1})
    clock.advance(21)
    swept = await partition.storage.sweep(bid())

    assert swept.troubles == ()
    assert (await record(partition.storage, Ref(QUEUE, "aged"))).state is State.EXPIRED
    assert (await record(partition.storage, Ref(QUEUE, "later"))).state is State.WAITING
    assert (await record(partition.storage, Ref(QUEUE, "silent"))).suspect_until is not None
    assert {event.id for event in await events_of(partition.storage, JobRepaired)} == {"missing"}


# ── steps that fail ───────────────────────────────────────────────────────────────────────────────────────────────────

POISON = {
    "reclaim": ("suspects", ["reclaimed", "suspected"]),
    "expire": ("aging", ["expired"]),
    "promote": ("dues", ["promoted"]),
    "unpark": ("places", ["unparked"]),
    "redrive": ("redrives", ["redriven"]),
    "trim": ("kept", ["trimmed"]),
}
"""The index that prevents a step, and what is not done then; a suspected job goes to the suspects."""


@pytest.mark.statement(36)
@pytest.mark.parametrize("step", [None, *POISON])
async def test_a_turn_does_all_but_the_step_that_fails(
    partition: RedisPartition, clock: ManualClock, step: str | None
) -> None:
    storage = partition.storage
    again = Policy(retry=Backoff(max_attempts=1), redrive=Redriving(3600 * SECOND))
    await enqueue(storage, new_job("silent"), new_job("completes"), new_job("fails", policy=again))
    silent, completes, fails = await claim(storage)
    await settle(storage, ALICE, completes)
    await settle(storage, ALICE, fails, RAISED)
    clock.advance(21)
    await storage.sweep(SweepRequest(BOB, term=None))
    halted = Target("task", "halted")
    await storage.tune(halted, Settings(paused=True))
    await enqueue(storage, *(new_job(f"halted-{number}", task="halted") for number in range(PROMOTE_LIMIT + 1)))
    await claim(storage)
    await storage.tune(halted, Settings(paused=False))
    await enqueue(storage, new_job("aged", ttl=SECOND), new_job("later", delay=SECOND))
    await start(storage, new_job("stalls", queue="other"))
    if step is not None:
        partition.client.set(partition.key(POISON[step][0]), "poison")
    clock.advance(8 * DAY)
    swept = await storage.sweep(SweepRequest(BOB, term=None))
    failed_steps = {failure.partition(":")[0] for failure in swept.troubles}

    # A step that moves entries to the damaged index fails, too, but keeps its own position.
    assert [name for name, did in swept.did.items() if not did] == ([] if step is None else POISON[step][1])
    assert step is None or step in failed_steps
    assert all("WRONGTYPE" in failure and "\n" not in failure for failure in swept.troubles)
    assert silent.ref in [stalled.lease.ref for stalled in swept.stalled] or step == "reclaim"


# ── bounded work continues in the next sweep ──────────────────────────────────────────────────────────────────────────


async def test_more_queues_than_one_sweep_looks_at_have_their_turns(
    partition: RedisPartition, clock: ManualClock
) -> None:
    queues = [f"q-{number:03}" for number in range(450)]
    await enqueue(partition.storage, *(new_job(queue=queue) for queue in queues))
    await partition.storage.revise([CancelJob(Ref(queue, "job")) for queue in queues])
    clock.advance(8 * DAY)
    trimmed = [(await partition.storage.sweep(bid())).did["trimmed"] for _ in range(4)]

    assert (sum(trimmed), max(trimmed)) == (450, 200)
    assert not partition.client.exists(partition.key("queues"))


async def test_queues_that_a_sweep_could_not_trim_come_first_in_the_next(
    partition: RedisPartition, clock: ManualClock
) -> None:
    worn = [Ref(QUEUE, f"job-{number:03}") for number in range(TRIM_LIMIT + 50)] + [Ref("second", "job")]
    # More than one sweep looks at: what it passes over has to wait until all the others had their turn.
    queues = [f"q-{number:03}" for number in range(250)]
    await enqueue(partition.storage, *(new_job(ref.id, queue=ref.queue) for ref in worn))
    await enqueue(partition.storage, *(new_job(queue=queue) for queue in queues))
    await partition.storage.revise([CancelJob(ref) for ref in worn])
    clock.advance(8 * DAY)
    trimmed = [(await partition.storage.sweep(bid())).did["trimmed"] for _ in range(4)]

    # The full queue has had its turn, and gets another after the others.
    assert trimmed[:2] == [TRIM_LIMIT, 1]
    assert sum(trimmed) == len(worn)


async def test_a_queue_that_gets_a_setting_is_not_forgotten(partition: RedisPartition, clock: ManualClock) -> None:
    await enqueue(partition.storage, new_job(), new_job(queue="mail"))
    await partition.storage.tune(Target("queue", QUEUE), Settings(paused=True))
    await partition.storage.revise([CancelJob(new_job().ref), DeleteJob(new_job().ref), DeleteJob(Ref("mail", "job"))])
    for _ in range(3):
        await partition.storage.sweep(bid())

    assert partition.client.zrange(partition.key("queues"), 0, -1) == [QUEUE.encode()]
    assert [queue.queue for queue in (await partition.storage.survey()).queues] == [QUEUE]


async def test_a_queue_that_was_due_too_early_is_looked_at_again_when_it_is_due(
    partition: RedisPartition, clock: ManualClock
) -> None:
    await enqueue(partition.storage, new_job("soon", delay=SECOND), new_job("later", delay=10 * SECOND))
    await partition.storage.revise([CancelJob(Ref(QUEUE, "soon"))])
    clock.advance(2)

    assert (await partition.storage.sweep(bid())).did["promoted"] == 0
    assert partition.client.zscore(partition.key("dues"), QUEUE) == clock.now() + 8 * SECOND

    clock.advance(8)

    assert (await partition.storage.sweep(bid())).did["promoted"] == 1
    assert not partition.client.exists(partition.key("dues"))


@pytest.mark.parametrize("beaten", [False, True])
async def test_leases_from_before_the_clock_was_set_back_are_all_found(
    partition: RedisPartition, clock: ManualClock, beaten: bool
) -> None:
    count = 1200
    for start_at in range(0, count, 300):
        await enqueue(partition.storage, *(new_job(f"job-{start_at + n:04}") for n in range(300)))
    leases: list[Lease] = []
    while won := await claim(partition.storage):
        leases += won
    if beaten:
        for start_at in range(0, count, 500):
            await beat(partition.storage, ALICE, leases[start_at : start_at + 500])
            await beat(partition.storage, ALICE, leases[start_at : start_at + 500])
    clock.step_wall(-3600)
    # These are correct, and come before the others.
    await start(partition.storage, new_job("sound"))
    suspected = 0
    while (swept := await partition.storage.sweep(bid())).more:
        suspected += swept.did["suspected"]

    assert suspected + swept.did["suspected"] == count
    assert partition.client.zcard(partition.key("leases")) == 1
    assert partition.client.zcard(partition.key("suspects")) == count


async def test_suspicions_from_before_the_clock_was_set_back_all_end_soon(
    partition: RedisPartition, clock: ManualClock
) -> None:
    count = 90
    await enqueue(partition.storage, *(new_job(f"job-{number:02}") for number in range(count)))
    while await claim(partition.storage):
        pass
    clock.advance(21)
    await partition.storage.sweep(bid())

    assert partition.client.zcard(partition.key("suspects")) == count

    clock.step_wall(-3600)
    # A sweep has a time limit for each step, and continues there in the next one.
    for _ in range(2):
        await partition.storage.sweep(bid())

    assert partition.client.zcount(partition.key("suspects"), "-inf", clock.now() + 10 * SECOND) == count


# ── what a beat stores apart from the record ──────────────────────────────────────────────────────────────────────────


async def test_data_that_beats_store_apart_from_the_record_ends_with_the_run(
    partition: RedisPartition, clock: ManualClock
) -> None:
    lease = await start(partition.storage, new_job(timeout=3600 * SECOND, heartbeat_timeout=60 * SECOND))
    renewal = LeaseRenewal(lease.ref, lease.fence, ran=SECOND, silent=SECOND)
    for _ in range(3):
        clock.advance(1)
        await partition.storage.renew(RenewRequest(ALICE, (renewal,)))
    job = await record(partition.storage, lease.ref)

    assert partition.client.hlen(partition.key("beats")) == 1
    assert job.heard_at == clock.now()
    assert job.lease_until == clock.now() + 20 * SECOND
    assert job.progress_until == clock.now() + 59 * SECOND
    assert partition.client.zscore(partition.key("leases"), REF) == job.lease_until

    await settle(partition.storage, ALICE, lease)

    assert not partition.client.exists(partition.key("beats"))
    assert not partition.client.exists(partition.key("leases"))


async def test_a_beat_finds_a_cancel_requested_since_the_last_one(partition: RedisPartition) -> None:
    lease = await start(partition.storage)
    beats = [await beat(partition.storage, ALICE, [lease]) for _ in range(2)]
    await partition.storage.revise([CancelJob(lease.ref, "enough")])
    beats += [await beat(partition.storage, ALICE, [lease]) for _ in range(2)]

    assert [[request.reason for request in pulse.cancelling] for pulse in beats] == [[], [], ["enough"], ["enough"]]


async def test_keys_with_a_raised_limit_fill_step_by_step_with_others_waiting(partition: RedisPartition) -> None:
    names = ("one", "two", "three")
    for name in names:
        await enqueue(partition.storage, *(new_job(f"{name}-{number}", keys=(Key(name, 1),)) for number in range(71)))
    assert len(await claim(partition.storage, room=3)) == 3
    while (await partition.storage.exchange(ALICE, order=ClaimRequest((QUEUE,), 1))).left:
        pass  # a job that finds its key taken is parked under it

    async def parked() -> int:
        return (await partition.storage.survey((QUEUE,))).queues[0].parked

    assert await parked() == 210

    await enqueue(partition.storage, *(new_job(f"{name}-more", keys=(Key(name, 500),)) for name in names))

    # One call releases no more than others do: a server does nothing else meanwhile.
    assert await parked() == 210 - PROMOTE_LIMIT

    for _ in range(3):
        await partition.storage.sweep(bid())

    assert await parked() == 0
    assert not partition.client.exists(partition.key("resumed"))
    assert len(await claim(partition.storage, room=128)) + len(await claim(partition.storage, room=128)) == 213


async def test_a_script_forgets_a_bounded_number_of_jobs_in_many_queues(
    partition: RedisPartition, clock: ManualClock
) -> None:
    # Queues that are used in turn pass their limits at the same time.
    queues = tuple(f"queue-{number}" for number in range(50))
    settings = Settings(retention=RetentionRules(completed=KeepRule(DAY * SECOND, 0)))
    for queue in queues:
        await partition.storage.tune(Target("queue", queue), settings)

    async def complete(name: str) -> int:
        """Complete one job of each queue, none of them plain; return how many completed jobs there are."""
        await enqueue(partition.storage, *(new_job(name, queue=queue, keys=(Key("k", 9),)) for queue in queues))
        leases: list[Lease] = []
        while len(leases) < len(queues):
            leases += (await partition.storage.exchange(ALICE, (), ClaimRequest(queues, 50))).leases
        clock.advance(1)
        before = scripts()
        await partition.storage.exchange(ALICE, [settled(lease) for lease in leases])
        took.append(scripts() - before)
        return sum([partition.client.zcard(partition.key("over", queue, "completed")) for queue in queues])

    def scripts() -> int:
        return int(partition.client.info("commandstats")["cmdstat_evalsha"]["calls"])

    took: list[int] = []
    kept = [await complete(f"job-{number}") for number in range(130)]
    forgotten = [before + len(queues) - after for before, after in pairwise(kept)]

    assert kept[99] == 100 * len(queues)
    assert all(some <= 200 * scripts for some, scripts in zip(forgotten, took[1:], strict=True))
    assert max(kept) <= 101 * len(queues)


@pytest.mark.parametrize(
    ("keys", "size", "most"),
    [((), 2, 151), ((), 1000, 133), ((Key("k", 9999),), 2, 66)],
    ids=["plain", "with a payload and a result apart", "not plain"],
)
async def test_a_script_forgets_the_fewer_jobs_the_more_each_takes(
    partition: RedisPartition, clock: ManualClock, keys: tuple[Key, ...], size: int, most: int
) -> None:
    await partition.storage.tune(
        Target("queue", QUEUE), Settings(retention=RetentionRules(completed=KeepRule(DAY * SECOND, 3000)))
    )

    async def complete(first: int, jobs: int) -> None:
        for at in range(first, first + jobs, 100):
            some = range(at, min(at + 100, first + jobs))
            await enqueue(partition.storage, *(new_job(f"{n:05}", keys=keys, payload=b"x" * size) for n in some))
            leases = await claim(partition.storage)
            clock.advance(1)
            await partition.storage.exchange(ALICE, [settled(lease, Returned(b"y" * size)) for lease in leases])

    def left(kind: str) -> int:
        return len(partition.client.keys(partition.key(kind, "*")))

    await complete(0, 3300)
    full = left("job")
    await complete(3300, 1)

    assert full == 3300
    assert left("job") == 3301 - most
    assert {left("load"), left("result")} <= {0, left("job")}


async def test_a_sweep_forgets_all_jobs_that_are_not_plain_in_short_scripts(
    partition: RedisPartition, clock: ManualClock
) -> None:
    for at in range(0, 600, 100):
        await enqueue(partition.storage, *(new_job(f"{n:05}", keys=(Key("k", 9999),)) for n in range(at, at + 100)))
        await partition.storage.exchange(ALICE, [settled(lease) for lease in await claim(partition.storage)])
    clock.advance(3601)
    partition.client.config_resetstat()
    swept = [(await partition.storage.sweep(bid())).did["trimmed"] for _ in range(2)]
    scripts = int(partition.client.info("commandstats")["cmdstat_evalsha"]["calls"])

    assert swept == [500, 100]
    assert scripts >= 5
