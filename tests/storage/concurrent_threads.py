"""Runs eight threads on the same jobs, each with its own storage and the real clock, and checks the invariants."""

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

from tenure.core.events import JobCancelled, JobCompleted, JobEvent, JobFailed, JobReleased, JobRetried, JobStalled
from tenure.core.job import Key, Owner, Policy, RecordedError, Ref, StallTerms
from tenure.core.lease import Lease
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.outcome import Interrupted, Outcome, Raised, Rejected, Returned, Snoozed, Stalled
from tenure.core.retry import Backoff
from tenure.core.settlement import settlement
from tenure.storage.protocol import (
    CancelJob,
    ClaimRequest,
    LeaseRenewal,
    Query,
    RenewRequest,
    RescheduleJob,
    Settings,
    StalledLease,
    Storage,
    SweepRequest,
    Target,
)
from tests.storage.helpers import job, owner

THREADS = 8
TURNS = 150
LIMITS = {"k": 3, "l": 1}
KEYS = ((), (Key("k", 3),), (Key("l", 1),), (Key("l", 1), Key("k", 3)))
ERROR = RecordedError("ValueError", "no good")
PATIENT = Policy(retry=Backoff(max_attempts=4, kind="fixed", base=1000))
LASTING = StallTerms(lease=600_000_000, max_stalls=1000)
OUTCOMES: tuple[Outcome, ...] = (
    Returned(b"1"),
    Returned(b"1"),
    Raised(ERROR, after=0),
    Raised(ERROR, after=5000),
    Rejected(ERROR),
    Interrupted("shutdown"),
    Snoozed(2000),
)


class Ledger:
    """The answers that all threads got, together."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made: set[Ref] = set()
        self.holding: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.fences: defaultdict[Ref, list[int]] = defaultdict(list)
        self.settled: Counter[tuple[Ref, int]] = Counter()
        self.dead: list[str] = []

    def add_leases(self, leases: tuple[Lease, ...]) -> None:
        """Record leases after their claim was answered: from here on their slots are held for certain."""
        with self.lock:
            for lease in leases:
                self.fences[lease.ref].append(lease.fence)
                self.holding.update(key.name for key in lease.job.keys)
            self.most |= self.holding

    def remove_leases(self, leases: list[Lease]) -> None:
        """Remove leases before they are settled or abandoned: up to here their slots are held for certain."""
        with self.lock:
            for lease in leases:
                self.holding.subtract(key.name for key in lease.job.keys)


class WorkerThread:
    """One thread: its storage, owner, random generator, and leases."""

    def __init__(self, make: Callable[[], Storage], number: int, ledger: Ledger) -> None:
        self.number = number
        self.dice = Random(number)
        self.ledger = ledger
        self.storage = make()
        self.owner: Owner = owner(self.dice, name=f"w{number}")
        self.held: list[Lease] = []
        self.spent: list[Lease] = []

    async def work(self) -> None:
        async with asyncio.timeout(100):
            for turn in range(TURNS):
                await self.turn(turn)
            await self.settle(self.held)
        await self.storage.close()

    async def turn(self, turn: int) -> None:
        dice = self.dice
        match dice.randrange(20):
            case 0 | 1 | 2 | 3 | 4:
                enqueued_calls = [
                    job(
                        f"{self.number}-{turn}-{n}",
                        keys=dice.choice(KEYS),
                        delay=dice.choice((0, 0, 3000)),
                        policy=PATIENT,
                        stall=LASTING,
                    )
                    for n in range(dice.randrange(1, 6))
                ]
                await self.storage.enqueue(enqueued_calls)
                with self.ledger.lock:
                    self.ledger.made.update(call.ref for call in enqueued_calls)
            case 5 | 6 | 7 | 8 | 9 | 10 | 11 | 12:
                chosen = dice.sample(self.held, dice.randrange(len(self.held) + 1))
                await self.settle(chosen, ClaimRequest(("q",), dice.choice((0, 1, 4))))
            case 13 | 14:
                renewals = tuple(LeaseRenewal(run.ref, run.fence, progress=0.5) for run in self.held + self.spent[-3:])
                pulse = await self.storage.renew(RenewRequest(self.owner, renewals))
                assert not {(item.ref, item.fence) for item in self.held} & set(pulse.lost)
            case 15 | 16:
                await self.recover(
                    (await self.storage.sweep(SweepRequest(self.owner, dice.choice((None, 4_000_000))))).stalled
                )
            case 17:
                with self.ledger.lock:
                    ref = dice.choice(sorted(self.ledger.made)) if self.ledger.made else Ref("q", "none")
                await self.storage.revise([dice.choice((CancelJob(ref), RescheduleJob(ref, boost=9)))])
                await self.storage.tune(Target("task", "t"), Settings(paused=dice.random() < 0.1))
            case 18:
                await self.die()
            case _:
                await asyncio.sleep(dice.random() / 50)

    async def settle(self, leases: list[Lease], order: ClaimRequest | None = None) -> None:
        """Settle leases, and some earlier ones a second time."""
        again = self.dice.sample(self.spent, min(len(self.spent), 2))
        sent = [settlement(lease, self.dice.choice(OUTCOMES), self.dice) for lease in (*leases, *again)]
        self.held = [run for run in self.held if run not in leases]
        self.ledger.remove_leases(leases)
        answer = await self.storage.exchange(self.owner, sent, order)
        self.ledger.add_leases(answer.leases)
        with self.ledger.lock:
            for verdict in answer.verdicts:
                self.ledger.settled[verdict.ref, verdict.fence] += verdict.verdict == "done"
        assert [verdict.verdict for verdict in answer.verdicts[: len(leases)]] == ["done"] * len(leases)
        assert "done" not in [verdict.verdict for verdict in answer.verdicts[len(leases) :]]
        self.spent += leases
        self.held += answer.leases

    async def die(self) -> None:
        """Continue as a new owner, and reclaim the jobs of a dead owner, possibly of its own earlier one."""
        self.ledger.remove_leases(self.held)
        self.spent += self.held
        self.held = []
        with self.ledger.lock:
            self.ledger.dead.append(self.owner.id)
            dead = self.dice.choice(self.ledger.dead)
        self.owner = owner(self.dice, name=f"w{self.number}")
        await self.recover((await self.storage.reclaim(dead, self.owner)).stalled)

    async def recover(self, taken: Sequence[StalledLease]) -> None:
        """Settle the runs that were reclaimed from dead owners; no other owner has them."""
        sent = [settlement(lease.lease, Stalled(lease.reason, owner=lease.owner), self.dice) for lease in taken]
        with self.ledger.lock:
            for item in taken:
                self.ledger.fences[item.lease.ref].append(item.lease.fence)
        answer = await self.storage.exchange(self.owner, sent)
        assert {verdict.verdict for verdict in answer.verdicts} <= {"done"}


def run_threads(make: Callable[[], Storage]) -> None:
    """Run all threads, and check that every invariant holds."""
    ledger = Ledger()
    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(asyncio.run, WorkerThread(make, number, ledger).work()) for number in range(THREADS)]:
            done.result()
    asyncio.run(finish(make(), ledger))

    assert sum(ledger.settled.values()) > 100
    assert all(ledger.most[key] <= limit for key, limit in LIMITS.items()), ledger.most
    assert max(ledger.settled.values()) == 1
    for ref, fences in ledger.fences.items():
        assert len(set(fences)) == len(fences), ref


async def finish(storage: Storage, ledger: Ledger) -> None:
    """Run the remaining jobs, and compare the counters with the records, and the records with the events."""
    last = owner(Random(99))
    await storage.tune(Target("task", "t"), Settings(paused=False))
    for dead in ledger.dead:
        taken = await storage.reclaim(dead, last)
        await storage.exchange(last, [settlement(stall.lease, Returned(b""), Random(1)) for stall in taken.stalled])
    for _ in range(1000):
        answer = await storage.exchange(last, (), ClaimRequest(("q",), 128))
        swept = await storage.sweep(SweepRequest(last, None))
        leases = [*answer.leases, *(stall.lease for stall in swept.stalled)]
        await storage.exchange(last, [settlement(lease, Returned(b""), Random(1)) for lease in leases])
        if not leases and answer.next_due is None:
            break
        await asyncio.sleep(0.002)
    jobs = (await storage.find(Query(limit=100_000))).jobs
    details = await storage.get([job.ref for job in jobs])
    (survey,) = (await storage.survey(["q"])).queues
    events = (await storage.events(limit=1_000_000)).events
    findings = await storage.examine()
    await storage.close()

    assert {item.ref for item in jobs} == ledger.made
    assert {job.state for job in jobs} <= TERMINAL
    assert {state: count for state, count in survey.counts.items() if count} == Counter(job.state for job in jobs)
    assert survey.parked == 0
    assert not [finding for finding in findings if finding.level == "error"]
    outcomes = Counter(
        (event.id, event.run)
        for event in events
        if isinstance(event, JobCompleted | JobFailed | JobRetried | JobReleased)
        or (isinstance(event, JobCancelled) and event.was == State.ACTIVE)
        or (isinstance(event, JobStalled) and event.action == "recovered")
    )
    ends = Counter(
        event.id
        for event in events
        if isinstance(event, JobEvent) and isinstance(event, JobCompleted | JobFailed | JobCancelled)
    )
    assert ends == dict.fromkeys((job.id for job in jobs), 1)
    for detail in details:
        assert detail is not None
        fences = [run.fence for run in detail.runs]
        assert fences == sorted(set(fences))
        assert all(run.ended for run in detail.runs)
        assert all(outcomes[detail.job.id, run.number] == 1 for run in detail.runs), detail.job
