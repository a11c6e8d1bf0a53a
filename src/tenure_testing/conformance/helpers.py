"""Helpers for the tests of a storage: sample jobs, owners and outcomes, and the steps with which most tests begin."""

from collections.abc import Iterable, Sequence
from random import Random
from typing import TypeVar

import pytest

from tenure.clock import SECOND
from tenure.core.events import AnyEvent, Event
from tenure.core.job import (
    JobDetail,
    JobRecord,
    Key,
    MergeKey,
    NewJob,
    Owner,
    Policy,
    RateKey,
    RecordedError,
    Ref,
    StallTerms,
    ThrottleKey,
)
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.outcome import Outcome, Raised, Returned, Stalled
from tenure.core.retry import Backoff
from tenure.core.settlement import Settlement, settlement
from tenure.storage.protocol import (
    ClaimRequest,
    ExchangeResult,
    LeaseRenewal,
    Query,
    QueueSurvey,
    RenewRequest,
    RenewResult,
    SettleVerdict,
    StalledLease,
    Storage,
    SweepRequest,
)
from tenure.testing.clock import ManualClock

E = TypeVar("E", bound=Event)

MS = SECOND // 1000
LEASE = StallTerms().lease
QUEUE = "default"

ALICE = Owner("00000000000a11ce", "alice", "host-1", 101)
BOB = Owner("0000000000000b0b", "bob", "host-2", 102)
REAPER = Owner("000000000000cafe", "reaper", "host-1", 201)
DEPUTY = Owner("000000000000beef", "deputy", "host-2", 202)

RETURNED = Returned(b"3")
ERROR = RecordedError("ValueError", "no good", "Traceback (most recent call last): ...")
RAISED = Raised(ERROR)

ONCE = Policy(retry=Backoff(max_attempts=1))
"""Policy with one attempt: the first failure is final."""

PLAIN = Policy(retry=Backoff(max_attempts=3, kind="fixed", base=1 * SECOND, jitter=0.0))
"""Policy with three attempts, one second apart, without jitter."""


@pytest.mark.asyncio
class Conformance:
    """Base class of all parts of the suite: it defines the clock that the storage under test reads."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """Return a clock that moves only when the test moves it."""
        return ManualClock()


def new_job(
    id: str = "job",  # noqa: A002 - the field's own name
    *,
    queue: str = QUEUE,
    task: str = "add",
    payload: bytes = b"[1,2]",
    tags: tuple[str, ...] = (),
    delay: int = 0,
    run_at: int | None = None,
    priority: int = 0,
    boost: int = 0,
    lifo: bool = False,
    fair_key: str | None = None,
    weight: int = 1,
    ttl: int | None = None,
    timeout: int | None = None,
    deadline: int | None = None,
    heartbeat_timeout: int | None = None,
    keys: tuple[Key, ...] = (),
    merge: MergeKey | None = None,
    throttle: ThrottleKey | None = None,
    rates: tuple[RateKey, ...] = (),
    stall: StallTerms | None = None,
    policy: Policy = PLAIN,
    schedule: str | None = None,
) -> NewJob:
    """Return a new job. All durations are in microseconds."""
    return NewJob(
        queue=queue,
        id=id,
        task=task,
        payload=payload,
        tags=tags,
        delay=delay,
        run_at=run_at,
        priority=priority,
        boost=boost,
        lifo=lifo,
        fair_key=fair_key,
        weight=weight,
        ttl=ttl,
        timeout=timeout,
        deadline=deadline,
        heartbeat_timeout=heartbeat_timeout,
        keys=keys,
        merge=merge,
        throttle=throttle,
        rates=rates,
        stall=stall or StallTerms(),
        policy=policy,
        schedule=schedule,
    )


def new_jobs(count: int, *, queue: str = QUEUE) -> list[NewJob]:
    """Return `count` new jobs."""
    return [new_job(f"job-{number:04}", queue=queue) for number in range(count)]


def settled(lease: Lease, outcome: Outcome = RETURNED) -> Settlement:
    """Return the settlement that the core derives from an outcome."""
    return settlement(lease, outcome, Random(7), took=0.5)


def stalled(lease: StalledLease) -> Settlement:
    """Return the settlement that a reaper derives from a lease that it reclaimed."""
    outcome = Stalled(lease.reason, silent_for=lease.silent_for, owner=lease.owner)
    return settlement(lease.lease, outcome, Random(7))


def bid(owner: Owner = REAPER, *, term: int | None = None) -> SweepRequest:
    """Return a sweep request with the default durations. Without `term` it takes no part in leader election."""
    return SweepRequest(owner, term=term)


async def enqueue(storage: Storage, *jobs: NewJob) -> list[Ref]:
    """Enqueue jobs and check that each one is new."""
    receipts = await storage.enqueue(jobs)
    assert [receipt.action for receipt in receipts] == ["created"] * len(jobs)
    return [receipt.ref for receipt in receipts]


async def order(storage: Storage, owner: Owner, *queues: str, room: int) -> ExchangeResult:
    """Claim jobs and return the whole answer."""
    return await storage.exchange(owner, order=ClaimRequest(queues or (QUEUE,), room))


async def claim(storage: Storage, owner: Owner = ALICE, *, room: int = 128, queue: str = QUEUE) -> list[Lease]:
    """Claim up to `room` jobs of a queue."""
    return list((await order(storage, owner, queue, room=room)).leases)


async def claim_one(storage: Storage, owner: Owner = ALICE, *, queue: str = QUEUE) -> Lease:
    """Claim the next job of a queue and check that there is one."""
    leases = await claim(storage, owner, room=1, queue=queue)
    assert len(leases) == 1
    return leases[0]


async def start(storage: Storage, job: NewJob | None = None, owner: Owner = ALICE) -> Lease:
    """Enqueue a job and claim it."""
    job = job or new_job()
    await enqueue(storage, job)
    lease = await claim_one(storage, owner, queue=job.queue)
    assert lease.ref == job.ref
    return lease


async def settle(storage: Storage, owner: Owner, lease: Lease, outcome: Outcome = RETURNED) -> SettleVerdict:
    """Settle one lease and return the verdict."""
    return await apply(storage, owner, settled(lease, outcome))


async def apply(storage: Storage, owner: Owner, asked: Settlement) -> SettleVerdict:
    """Send one settlement and return the verdict."""
    verdicts = (await storage.exchange(owner, [asked])).verdicts
    assert [(verdict.ref, verdict.fence) for verdict in verdicts] == [(asked.ref, asked.fence)]
    return verdicts[0].verdict


async def beat(
    storage: Storage, owner: Owner, leases: Iterable[Lease], *, sign: bool = False, exclusive: bool = False
) -> RenewResult:
    """Renew leases."""
    renewals = tuple(LeaseRenewal(lease.ref, lease.fence, sign=sign, exclusive=exclusive) for lease in leases)
    return await storage.renew(RenewRequest(owner, renewals))


async def watch(
    storage: Storage,
    clock: ManualClock,
    seconds: int,
    *,
    reaper: Owner = REAPER,
    beating: Sequence[Lease] = (),
    owner: Owner = ALICE,
    sign: bool = False,
    exclusive: bool = False,
    settling: bool = False,
) -> list[StalledLease]:
    """Let `seconds` pass as they do in production, and return the leases that were reclaimed.

    A reaper sweeps at the start and then every two seconds. If `settling`, it also settles the leases that it reclaims.
    The leases in `beating` are renewed at the start and then every five seconds.
    """
    reclaimed: list[StalledLease] = []
    for second in range(seconds + 1):
        if second:
            clock.advance(1)
        if second % 5 == 0 and beating:
            await beat(storage, owner, beating, sign=sign, exclusive=exclusive)
        if second % 2 == 0:
            taken = await sweep_all(storage, reaper)
            if settling:
                for lease in taken:
                    assert await apply(storage, reaper, stalled(lease)) == "done"
            reclaimed += taken
    return reclaimed


async def sweep_all(storage: Storage, reaper: Owner = REAPER) -> list[StalledLease]:
    """Sweep until the storage reports that nothing is left to do, and return the leases that were reclaimed."""
    reclaimed: list[StalledLease] = []
    for _ in range(100):
        swept = await storage.sweep(bid(reaper))
        reclaimed += swept.stalled
        if not swept.more:
            return reclaimed
    raise AssertionError("a hundred sweeps, and still there is more to do")


async def recover(
    storage: Storage, clock: ManualClock, *, reaper: Owner = REAPER, seconds: int = 26
) -> list[StalledLease]:
    """Let the leases that are not renewed expire, and settle them as stalled. Return the leases that were reclaimed."""
    return await watch(storage, clock, seconds, reaper=reaper, settling=True)


async def look(storage: Storage, ref: Ref) -> JobDetail:
    """Return a job that must exist, with its runs and log."""
    found = (await storage.get([ref]))[0]
    assert found is not None
    return found


async def record(storage: Storage, ref: Ref) -> JobRecord:
    """Return the record of a job that must exist."""
    return (await look(storage, ref)).job


async def states(storage: Storage, *queues: str) -> dict[str, State]:
    """Return the state of each job by the job's id."""
    return {job.id: job.state for job in (await storage.find(Query(queues=queues or (QUEUE,), limit=10_000))).jobs}


async def glance(storage: Storage, queue: str = QUEUE) -> QueueSurvey:
    """Return the survey of one queue."""
    return (await storage.survey([queue])).queues[0]


async def counted(storage: Storage, queue: str = QUEUE) -> dict[State, int]:
    """Return how many jobs of a queue are in each state. States without jobs are left out."""
    return {state: count for state, count in (await glance(storage, queue)).counts.items() if count}


async def all_events(storage: Storage) -> list[AnyEvent]:
    """Return all events since the storage was created."""
    events: list[AnyEvent] = []
    cursor: str | None = None
    while True:
        page = await storage.events(cursor, limit=100)
        if not page.events:
            return events
        events += page.events
        cursor = page.next


async def events_of(storage: Storage, kind: type[E]) -> list[E]:
    """Return all events of one class since the storage was created."""
    return [event for event in await all_events(storage) if isinstance(event, kind)]
