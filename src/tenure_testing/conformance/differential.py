"""Compares a storage with the model: both get the same random calls and must give the same answers."""

from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any

import pytest
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.events import AnyEvent, LeadershipAcquired, LeadershipLost
from tenure.core.job import JobRecord, Key, Owner, Policy, Redriving, Ref, StallSetting, StallTerms
from tenure.core.leadership import Term
from tenure.core.lease import Lease
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.outcome import (
    Cancelled,
    Interrupted,
    Outcome,
    Raised,
    RateLimitHit,
    Rejected,
    Returned,
    Snoozed,
    Stalled,
    TimedOut,
    Unknown,
)
from tenure.core.retention import KeepRule, RetentionRules
from tenure.core.retry import Backoff
from tenure.core.settlement import Settlement
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import (
    CancelJob,
    ClaimRequest,
    DeleteJob,
    LeaseRenewal,
    NewLogLine,
    Query,
    RedriveJob,
    RenewRequest,
    RescheduleJob,
    RetainJob,
    Revision,
    Settings,
    StalledLease,
    Storage,
    Target,
)
from tenure.testing.clock import START, ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    DEPUTY,
    ERROR,
    REAPER,
    Conformance,
    all_events,
    bid,
    new_job,
    settled,
    stalled,
)

STEPS = 150
QUEUES = ("default", "mail")
TASKS = ("add", "send")
NAMES = tuple(f"job-{number}" for number in range(12))
ONE, TWO = Key("one"), Key("two", 2)
KEYS: tuple[tuple[Key, ...], ...] = ((), (), (ONE,), (TWO,), (Key("two", 1),), (ONE, TWO), (TWO, ONE))
RETENTIONS = (
    None,
    None,
    RetentionRules(completed=KeepRule(30 * SECOND, 2)),
    RetentionRules(failed=KeepRule(3 * SECOND), cancelled=KeepRule(1)),
)
WORKERS = (ALICE, BOB)
REAPERS = (REAPER, DEPUTY)


class DifferentialConformance(Conformance):
    """A random history that runs on the storage and on the model side by side.

    `one_log`: events of several queues have one order. Set it to False for a storage that keeps queues on several
    servers.
    """

    one_log = True

    @pytest.mark.parametrize("seed", range(20))
    async def test_any_history_equals_that_of_the_model(self, storage: Storage, clock: ManualClock, seed: int) -> None:
        history = History(storage, clock, Random(seed), one_log=self.one_log)
        for _ in range(STEPS):
            await history.step()
        await history.compare_all()
        await history.keeps_its_promises()


class History:
    """Makes random calls to both the storage and the model, and checks that the answers agree.

    It keeps all leases, so that it tries old fences again and again.
    """

    def __init__(self, storage: Storage, clock: ManualClock, dice: Random, *, one_log: bool) -> None:
        self._storage = storage
        self._one_log = one_log
        self._model = MemoryStorage(clock=clock)
        self._clock = clock
        self._dice = dice
        self._leases: list[tuple[Owner, Lease]] = []
        self._stalled: list[tuple[Owner, StalledLease]] = []
        self._sent: list[tuple[Owner, Settlement]] = []
        self._terms: list[tuple[tuple[Term, ...], tuple[Term, ...]]] = []
        self._trail: list[str] = []
        self._moves: tuple[tuple[int, Callable[[], Coroutine[Any, Any, None]]], ...] = (
            (6, self._enqueue),
            (8, self._exchange),
            (5, self._renew),
            (6, self._sweep),
            (3, self._judge),
            (1, self._reclaim),
            (3, self._revise),
            (1, self._tune),
            (1, self._resign),
            (8, self._wait),
        )

    async def step(self) -> None:
        """Make one call."""
        move = self._dice.choices([move for _, move in self._moves], [weight for weight, _ in self._moves])[0]
        await move()

    async def compare_all(self) -> None:
        """Compare everything that can be read with the model."""
        mine = {job.ref: job for job in (await self._storage.find(Query(limit=1000))).jobs}
        theirs = {job.ref: job for job in (await self._model.find(Query(limit=1000))).jobs}
        assert mine == theirs, self._trail
        refs = list(mine)
        self._agree(await self._storage.get(refs), await self._model.get(refs))
        self._agree(await self._counts(self._storage), await self._counts(self._model))
        for query in (
            Query(queues=QUEUES[:1], tags=("eu",), limit=5),
            Query(tasks=TASKS[:1], reasons=("exhausted", "stalled")),
            Query(created_after=START + 20 * SECOND, created_before=self._clock.now() - 20 * SECOND),
            Query(ended_after=START + 20 * SECOND, ended_before=self._clock.now() - 20 * SECOND),
        ):
            mine_found, theirs_found = await self._storage.find(query), await self._model.find(query)
            self._agree(self._ordered(mine_found.jobs), self._ordered(theirs_found.jobs))
        ref = Ref(QUEUES[0], NAMES[0])
        self._agree(
            [_unnumbered(event) for event in (await self._storage.events(ref=ref)).events],
            [_unnumbered(event) for event in (await self._model.events(ref=ref)).events],
        )
        self._agree(self._logged(await all_events(self._storage)), self._logged(await all_events(self._model)))

    def _ordered(self, jobs: Sequence[JobRecord]) -> list[JobRecord]:
        """Return a listing in its order if the storage defines one, else sorted by job."""
        return list(jobs) if self._one_log else sorted(jobs, key=lambda job: job.ref)

    def _logged(self, events: Sequence[AnyEvent]) -> list[AnyEvent]:
        """Return the log in its order if the storage defines one, else by queue.

        Events of leadership are left out in the second case, because each part of the storage records its own.
        """
        logged = [_unnumbered(event) for event in events]
        if self._one_log:
            return logged
        return sorted(
            (event for event in logged if not isinstance(event, LeadershipAcquired | LeadershipLost)),
            key=lambda event: getattr(event, "queue", ""),
        )

    async def keeps_its_promises(self) -> None:
        """Check each job against the invariants that hold for every job after any history."""
        for job in (await self._storage.find(Query(limit=1000))).jobs:
            detail = (await self._storage.get([job.ref]))[0]
            assert detail is not None
            fences = [run.fence for run in detail.runs]
            assert fences == sorted(set(fences))
            assert [run.number for run in detail.runs] == list(range(1, job.starts + 1))
            assert all(run.ended is not None for run in detail.runs[:-1])
            assert (job.state is State.ACTIVE) == (job.owner is not None) == (job.lease_until is not None)
            assert (job.state in TERMINAL) == (job.finished is not None)
            assert job.failures <= job.policy.retry.max_attempts
            assert job.failures + job.stalls + job.releases <= job.starts
            assert job.parked_under is None or job.state is State.WAITING
            assert (job.kept_until is None) or job.state is State.COMPLETED
            assert (job.redrive_at is None) or job.state is State.FAILED

    async def _enqueue(self) -> None:
        # The jobs of one call are a microsecond apart, in each part of the storage.
        queues = QUEUES if self._one_log else (self._dice.choice(QUEUES),)
        jobs = [
            new_job(
                self._dice.choice(NAMES),
                queue=self._dice.choice(queues),
                task=self._dice.choice(TASKS),
                tags=self._dice.choice(((), ("eu",), ("eu", "nightly"))),
                delay=self._dice.choice((0, 0, 0, 3 * SECOND, 30 * SECOND)),
                boost=self._dice.choice((0, 0, 60 * SECOND, -60 * SECOND)),
                ttl=self._dice.choice((None, None, 3 * SECOND, 20 * SECOND)),
                timeout=self._dice.choice((None, None, 10 * SECOND)),
                heartbeat_timeout=self._dice.choice((None, None, 6 * SECOND)),
                keys=self._dice.choice(KEYS),
                stall=StallTerms(
                    lease=self._dice.choice((20, 8)) * SECOND,
                    max_stalls=self._dice.choice((0, 1, 3)),
                    start_grace=self._dice.choice((0, 0, 30)) * SECOND,
                    pinned=self._dice.choice(((), ("lease",))),
                ),
                policy=Policy(
                    retry=Backoff(max_attempts=self._dice.choice((1, 3)), base=SECOND),
                    on_worker_lost=self._dice.choice(("retry", "retry", "fail")),
                    on_expire=self._dice.choice(("fail", "discard")),
                    result_ttl=self._dice.choice((None, None, 5 * SECOND)),
                    redrive=self._dice.choice((None, Redriving(after=5 * SECOND, times=2))),
                ),
            )
            for _ in range(self._dice.randint(1, 4))
        ]
        self._note("enqueue", [job.ref for job in jobs])
        self._agree(await self._storage.enqueue(jobs), await self._model.enqueue(jobs))

    async def _exchange(self) -> None:
        owner = self._dice.choice(WORKERS)
        sent = [settled(lease, self._outcome()) for _, lease in self._leases[-8:] if self._dice.random() < 0.3]
        if self._sent and self._dice.random() < 0.3:
            owner, again = self._dice.choice(self._sent)
            sent.append(again)
        self._sent += [(owner, settlement) for settlement in sent]
        queues = tuple(self._dice.sample(QUEUES, self._dice.randint(1, 2)))
        known = self._dice.choice((None, None, {"add": 1}, {"send": 2, "mail": 1}, {}))
        request = ClaimRequest(queues, self._dice.randint(0, 4), tasks=known) if self._dice.random() < 0.8 else None
        self._note("exchange", owner.name, sent, request)
        mine = await self._storage.exchange(owner, sent, request)
        self._agree(mine, await self._model.exchange(owner, sent, request))
        self._leases += [(owner, lease) for lease in mine.leases]

    def _outcome(self) -> Outcome:
        outcomes: tuple[Outcome, ...] = (
            Returned(b"3"),
            Raised(ERROR),
            Raised(ERROR, after=0),
            Raised(ERROR, final=True),
            TimedOut(ERROR),
            Rejected(ERROR),
            Snoozed(2 * SECOND),
            RateLimitHit(2 * SECOND),
            Interrupted("shutdown"),
            Unknown(),
            Unknown("newer_payload"),
            Cancelled("itself"),
            Stalled("loop_blocked"),
        )
        return self._dice.choice(outcomes)

    async def _renew(self) -> None:
        owner = self._dice.choice(WORKERS)
        renewals = tuple(
            LeaseRenewal(
                lease.ref,
                lease.fence,
                sign=self._dice.random() < 0.5,
                progress=self._dice.choice((None, 0.5, '{"page":1}')),
                data=self._dice.choice((None, None, b'{"at":1}')),
                data_number=self._dice.randrange(1, 4),
                note=self._dice.choice((None, "half")),
                log=self._dice.choice(((), (NewLogLine("info", "line", {"k": "v"}, ago=7),))),
            )
            for held, lease in self._leases[-8:]
            if held == owner or self._dice.random() < 0.2
        )
        self._note("renew", owner.name, [(renewal.ref, renewal.fence) for renewal in renewals])
        beat = RenewRequest(owner, renewals)
        self._agree(await self._storage.renew(beat), await self._model.renew(beat))

    async def _sweep(self) -> None:
        reaper = self._dice.choice(REAPERS)
        asked = bid(reaper, term=self._dice.choice((None, 4 * SECOND)))
        self._note("sweep", reaper.name, asked.term)
        mine, theirs = await self._storage.sweep(asked), await self._model.sweep(asked)
        self._agree(_by_ref(mine.stalled), _by_ref(theirs.stalled))
        self._agree((mine.retry_in, mine.more), (theirs.retry_in, theirs.more))
        self._agree({term.owner for term in mine.terms}, {term.owner for term in theirs.terms})
        if theirs.terms:
            self._terms.append((mine.terms, theirs.terms))
        self._stalled += [(reaper, lease) for lease in mine.stalled]

    async def _judge(self) -> None:
        if not self._stalled:
            return
        owner, lease = self._dice.choice(self._stalled[-5:])
        self._note("judge", owner.name, lease.lease.ref, lease.lease.fence)
        sent = [stalled(lease)]
        self._agree(await self._storage.exchange(owner, sent), await self._model.exchange(owner, sent))

    async def _reclaim(self) -> None:
        dead, reaper = self._dice.choice(WORKERS + REAPERS), self._dice.choice(REAPERS)
        self._note("reclaim", dead.name, reaper.name)
        mine, theirs = await self._storage.reclaim(dead.id, reaper), await self._model.reclaim(dead.id, reaper)
        self._agree((_by_ref(mine.stalled), mine.more), (_by_ref(theirs.stalled), theirs.more))
        self._stalled += [(reaper, lease) for lease in mine.stalled]

    async def _revise(self) -> None:
        ref = Ref(self._dice.choice(QUEUES), self._dice.choice(NAMES))
        revisions: tuple[Revision, ...] = (
            CancelJob(ref, "enough", "ops"),
            RedriveJob(ref, "ops", delay=self._dice.choice((0, 0, 5 * SECOND))),
            DeleteJob(ref),
            RescheduleJob(ref, delay=self._dice.choice((0, 5 * SECOND))),
            RescheduleJob(ref, priority=1, boost=60 * SECOND),
            RetainJob(ref, self._dice.choice((SECOND, 60 * SECOND))),
        )
        requests = self._dice.sample(revisions, self._dice.randint(1, 2))
        self._note("revise", requests)
        self._agree(await self._storage.revise(requests), await self._model.revise(requests))

    async def _tune(self) -> None:
        target = self._dice.choice(
            (Target("queue", self._dice.choice(QUEUES)), Target("task", self._dice.choice(TASKS)))
        )
        settings = Settings(
            paused=self._dice.choice((None, False, False, True)),
            stall=self._dice.choice((None, StallSetting(lease=8 * SECOND), StallSetting(max_stalls=2))),
            retention=self._dice.choice(RETENTIONS),
            record=self._dice.choice((None, (), ("started", "suspected"), ("enqueued", "progressed", "queue_drained"))),
        )
        self._note("tune", target, settings)
        self._agree(await self._storage.tune(target, settings), await self._model.tune(target, settings))

    async def _resign(self) -> None:
        if not self._terms:
            return
        mine, theirs = self._dice.choice(self._terms[-3:])
        self._note("resign", mine[0].owner)
        for term in mine:
            await self._storage.resign(term)
        for term in theirs:
            await self._model.resign(term)

    async def _wait(self) -> None:
        seconds = self._dice.choice((0.000_001, 0.5, 2.0, 2.0, 2.0, 3.0, 5.0, 11.0, 40.0))
        step = self._dice.choice((0.0,) * 8 + (-1.5, -600.0, 600.0))
        self._note("wait", seconds, step)
        self._clock.advance(seconds)
        self._clock.step_wall(step)

    async def _counts(self, storage: Storage) -> tuple[list[tuple[object, ...]], tuple[str, ...]]:
        survey = await storage.survey(QUEUES)
        queues: list[tuple[object, ...]] = [
            (
                queue.queue,
                queue.paused,
                queue.parked,
                queue.discarded,
                queue.oldest_waiting,
                {state: count for state, count in queue.counts.items() if count},
            )
            for queue in sorted(survey.queues, key=lambda queue: queue.queue)
        ]
        return queues, survey.paused_tasks

    def _note(self, *what: object) -> None:
        self._trail.append(" ".join(str(part) for part in what))

    def _agree(self, mine: object, theirs: object) -> None:
        if mine != theirs:
            trail = "\n".join(self._trail)
            raise AssertionError(f"the storage and the model disagree after\n{trail}\n\n{mine}\n\nand\n\n{theirs}")


def _by_ref(leases: tuple[StalledLease, ...]) -> list[StalledLease]:
    return sorted(leases, key=lambda taken: taken.lease.ref)


def _unnumbered(event: AnyEvent) -> AnyEvent:
    """Return an event without what each storage numbers in its own way: its cursor, and the epochs of terms."""
    event = structs.replace(event, cursor="")
    return structs.replace(event, epoch=0) if hasattr(event, "epoch") else event
