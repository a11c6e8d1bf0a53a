"""Compares a storage with the model: both get the same random calls and one clock, and must give the same answers."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, get_args

from msgspec import structs

from tenure.clock import SECOND
from tenure.core.events import AnyEvent, OnRequest, WorkerStarted
from tenure.core.job import (
    TRACE_KEPT,
    CollectKey,
    DebounceKey,
    JobRecord,
    Key,
    MergeKey,
    NewJob,
    Policy,
    RateKey,
    RecordedError,
    Redriving,
    Ref,
    StallSetting,
    StallTerms,
    ThrottleKey,
    UniqueKey,
)
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
from tenure.core.schedule import Schedule
from tenure.core.settlement import settlement
from tenure.storage.memory.model import Model
from tenure.storage.protocol import (
    EVENTS_END,
    CancelJob,
    Change,
    ClaimRequest,
    DeleteJob,
    EventReader,
    LeaseRenewal,
    NewLogLine,
    PauseSchedule,
    PutSchedule,
    Query,
    RedriveJob,
    RemoveSchedule,
    RenewRequest,
    RescheduleJob,
    RetainJob,
    Revision,
    Settings,
    Storage,
    SweepRequest,
    Target,
    Tick,
    WorkerInfo,
)
from tenure.testing import ManualClock
from tests.storage.helpers import job, owner

QUEUES = ("a", "b", "ü:/.", "seldom")
UNUSED = ("unused", "unused too", "c")
TASKS = ("t", "u", "paused:t")
KEYS = ("k", "l", "m", "paused:u")
RATES = ("task:t", "task/9:t", "task:u", "queue", "r", "s")
INTERVALS = (0, 1, SECOND // 2, SECOND, 3 * SECOND)
STEPS = 400


class ModelComparison:
    """A model and a storage that get the same calls.

    `in_turn`: make one call at a time, because the storage may execute concurrent calls in any order.
    """

    def __init__(self, make: Callable[[ManualClock], Storage], seed: int, *, in_turn: bool = False) -> None:
        self.dice = Random(seed)
        self.others = Random(seed)
        self.clock = ManualClock()
        self.model = Model(self.clock)
        self.storage = make(self.clock)
        self.in_turn = in_turn
        self.owners = [owner(self.dice, name=f"w{n}", host="h", pid=n) for n in range(4)]
        self.leases: list[Lease] = []
        self.terms: list[Term] = []
        self.made = 0
        self.cursors: dict[EventReader, str] = {}
        self.met: Counter[str] = Counter()

    async def ask(self, verb: str, *args: Any) -> Any:
        expected = getattr(self.model, verb)(*args)
        if verb in ("tune", "events"):
            words = {"tune": ("by", "expected"), "events": ("limit", "reader", "ref")}[verb]
            split = len(args) - len(words)
            answer = await getattr(self.storage, verb)(*args[:split], **dict(zip(words, args[split:], strict=True)))
        else:
            answer = await getattr(self.storage, verb)(*args)

        assert answer == expected, verb
        return expected

    async def step(self) -> None:
        verb = self.dice.choice(
            ["enqueue"] * 4
            + ["exchange"] * 8
            + ["renew"] * 3
            + ["sweep"] * 4
            + ["revise"] * 3
            + ["plan"] * 2
            + [
                "concurrent_calls",
                "concurrent_calls",
                "tune",
                "tune",
                "reclaim",
                "resign",
                "read_events",
                "wait",
                "wait",
                "wait",
            ]
        )
        await getattr(self, verb)()

    async def enqueue(self) -> None:
        await self.ask("enqueue", [self.new_job() for _ in range(self.dice.choice((0, 1, 1, 2, 7)))])

    def new_job(self) -> NewJob:
        dice = self.dice
        self.made += 1
        maybe = [None, None, dice.randrange(30 * SECOND)]
        queue = dice.choices(QUEUES, (9, 9, 9, 1))[0]
        name = f"j{dice.randrange(self.made) if dice.random() < 0.1 else self.made}"
        kept = [job.ref for job in self.model.records.values() if job.kept_until is not None]
        if kept and dice.random() < 0.2:
            queue, name = (ref := dice.choice(kept)).queue, ref.id
        return NewJob(
            queue=queue,
            id=name,
            task=dice.choice(TASKS),
            payload=dice.randbytes(dice.choice((0, 3, 9000))),
            headers=dice.choice(({}, {"k": "v"})),
            tags=dice.choice(((), ("x", "y"), ("x",))),
            delay=dice.choice((0, 0, dice.randrange(20 * SECOND))),
            run_at=dice.choice((None, None, self.clock.now() + dice.randrange(-SECOND, SECOND))),
            priority=(priority := dice.choice((0, 0, 5, -3))),
            boost=priority * 60 * SECOND,
            lifo=dice.random() < 0.15,
            fair_key=dice.choice((None, None, "one", "two", "three")),
            weight=dice.choice((1, 1, 3, 1000)),
            ttl=dice.choice((*[None] * (0 if queue == "seldom" else 6), *map(dice.randrange, (30 * SECOND, SECOND)))),
            timeout=dice.choice(maybe),
            deadline=dice.choice((None, None, self.clock.now() + dice.randrange(60 * SECOND))),
            heartbeat_timeout=dice.choice(maybe),
            keys=self.keys(),
            rates=self.rates(),
            merge=self.merge_key(),
            throttle=dice.choice((None, None, None, ThrottleKey(dice.choice("kl"), dice.choice((1, 2)), 9 * SECOND))),
            stall=dice.choice(
                (
                    StallTerms(),
                    StallTerms(lease=8 * SECOND, max_stalls=5, renewed=False),
                    StallTerms(start_grace=15 * SECOND, pinned=("start_grace", "lease")),
                )
            ),
            policy=Policy(
                retry=dice.choice((Backoff(), Backoff(max_attempts=1), Backoff(max_attempts=9, kind="fixed"))),
                on_worker_lost=dice.choice(("retry", "retry", "fail")),
                on_expire=dice.choice(("fail", "discard")),
                result_ttl=dice.choice((None, None, 0, dice.randrange(20 * SECOND))),
                redrive=dice.choice((None, Redriving(dice.randrange(1, 2 * SECOND), 3))),
                version=3,
            ),
            schedule=dice.choice((None, "s")),
            parent=dice.choice((None, "p")),
        )

    def keys(self) -> tuple[Key, ...]:
        dice = self.dice
        if dice.random() < 0.35:
            return ()
        if dice.random() < 0.3:
            return (Key("singleton"),)
        return tuple(Key(name, dice.choice((1, 1, 2, 4, 0))) for name in dice.choices(KEYS, k=dice.randrange(1, 4)))

    def merge_key(self) -> MergeKey | None:
        dice = self.dice
        name = dice.choice(("k", "k", "l", str(self.made)))
        delay, max_wait = dice.choice((0, SECOND, 3 * SECOND)), dice.choice((None, SECOND, 6 * SECOND))
        return dice.choice(
            (
                None,
                None,
                None,
                UniqueKey(name),
                UniqueKey(name, "queued"),
                UniqueKey(name, window=dice.choice((7, 5 * SECOND, 30 * SECOND))),
                DebounceKey(name, delay, max_wait),
                DebounceKey(name, delay, max_wait),
                CollectKey(name, delay, dice.choice((1, 2, 3, 9)), max_wait),
                CollectKey(name, delay, 4, max_wait),
            )
        )

    def rates(self) -> tuple[RateKey, ...]:
        dice = self.dice
        if dice.random() < 0.6:
            return ()
        names = dice.sample(RATES, dice.choice((1, 1, 2)))
        return tuple(RateKey(name, dice.choice(INTERVALS), dice.choice((1, 1, 3))) for name in names)

    async def exchange(self) -> None:
        dice = self.dice
        by = dice.choice(self.owners)
        held = [lease for lease in self.leases if lease.job.owner == by.id or dice.random() < 0.1]
        chosen = dice.sample(held, min(len(held), dice.randrange(5)))
        if chosen and dice.random() < 0.1:
            chosen.append(chosen[0])
        settled = [settlement(lease, self.outcome(), dice, took=dice.random()) for lease in chosen]
        order = None
        if dice.random() < 0.8:
            order = ClaimRequest(
                _with_unused(dice.sample(QUEUES, dice.randrange(1, 5))), dice.choice((0, 1, 3, 10)), tasks=self.known()
            )
        answer = await self.ask("exchange", by, settled, order)
        self.leases = [lease for lease in self.leases if dice.random() < 0.3 or lease not in chosen]
        self.leases += answer.leases

    async def concurrent_calls(self) -> None:
        """Make several calls at once. The storage may execute them in one transaction, or in several."""
        dice = self.dice
        made: list[tuple[str, tuple[Any, ...]]] = []
        for _ in range(dice.randrange(2, 6) if self.leases else 0):
            if dice.random() < 0.5:
                made.append(("enqueue", ([self.new_job() for _ in range(dice.randrange(1, 4))],)))
            else:
                # A claim without a settlement might be answered before the other calls.
                lease = dice.choice(self.leases)
                by = next(by for by in self.owners if by.id == lease.job.owner)
                order = ClaimRequest(_with_unused(dice.sample(QUEUES, 3)), dice.choice((1, 3, 10)), tasks=self.known())
                made.append(("exchange", (by, [settlement(lease, self.outcome(), dice, took=dice.random())], order)))
        expected = [getattr(self.model, verb)(*args) for verb, args in made]
        calls = [getattr(self.storage, verb)(*args) for verb, args in made]
        answers = [await call for call in calls] if self.in_turn else await asyncio.gather(*calls)

        assert answers == expected

        self.leases += [
            lease for (verb, _), met in zip(made, expected, strict=True) if verb == "exchange" for lease in met.leases
        ]

    def known(self) -> dict[str, int] | None:
        """Return the tasks that the caller of a claim knows. Each task has payloads of version 3."""
        return self.others.choice((None, {}, {"t": 3}, {"t": 2, "u": 3}, {"t": 4, "u": 3, "paused:t": 3}))

    def outcome(self) -> Outcome:
        if self.others.random() < 0.15:
            return Unknown(self.others.choice(("unknown_task", "newer_payload")))
        error = RecordedError("ValueError", "no ☃", "trace")
        return self.dice.choice(
            (
                Returned(b"\x00\xff"),
                Returned(b"x" * 5000),
                Raised(error),
                Raised(error, after=0),
                TimedOut(error),
                Rejected(error),
                Snoozed(3 * SECOND),
                RateLimitHit(3 * SECOND),
                Interrupted("shutdown"),
                Cancelled("why", "me"),
                Stalled("process_died", 12, "owner", "signal 9"),
            )
        )

    async def renew(self) -> None:
        dice = self.dice
        by = dice.choice(self.owners)
        held = [lease for lease in self.leases if lease.job.owner == by.id or dice.random() < 0.1]
        events: tuple[AnyEvent, ...] = ()
        if dice.random() < 0.2:
            events = (WorkerStarted(owner=by.id, host="h", pid=1, queues=QUEUES, concurrency=3),)
        line = NewLogLine("info", "done", {"n": "1"}, ago=5)
        await self.ask(
            "renew",
            RenewRequest(
                by,
                tuple(
                    LeaseRenewal(
                        lease.ref,
                        lease.fence,
                        sign=dice.random() < 0.5,
                        progress=dice.choice((None, 0.5, '{"page":1}')),
                        data=dice.choice((None, b"{}", b'{"at":1}')),
                        data_number=dice.randrange(4),
                        note=dice.choice((None, "half")),
                        log=(line,) * dice.choice((0, 0, 1, 300)),
                        trace=dice.choice((None, "here ☃", "there", "x" * TRACE_KEPT)),
                    )
                    for lease in dice.sample(held, min(len(held), dice.randrange(6)))
                ),
                dice.choice(
                    (None, WorkerInfo(QUEUES, 10, 2, dice.randrange(SECOND), True, 7, dice.randrange(1 << 40)))
                ),
                events,
                last=dice.random() < 0.1,
            ),
        )

    async def sweep(self) -> None:
        dice = self.dice
        swept = await self.ask(
            "sweep",
            SweepRequest(dice.choice(self.owners), dice.choice((None, None, None, 4 * SECOND)), grace=3 * SECOND),
        )
        self.met.update(swept.did)
        self.terms += swept.terms
        self.leases += [stalled.lease for stalled in swept.stalled]

    async def reclaim(self) -> None:
        dead, by = self.dice.sample(self.owners, 2)
        taken = await self.ask("reclaim", dead.id, by)
        self.leases += [stalled.lease for stalled in taken.stalled]

    async def revise(self) -> None:
        dice = self.dice
        revisions: list[Revision] = []
        for _ in range(dice.randrange(1, 4)):
            ref = Ref(dice.choice(QUEUES), f"j{dice.randrange(self.made + 1)}")
            living = [job.ref for job in self.model.records.values() if job.state not in TERMINAL]
            keyed = [job.ref for job in self.model.records.values() if job.state in TERMINAL and job.merge]
            if living and dice.random() < 0.4:
                ref = dice.choice(living)
            elif keyed and dice.random() < 0.4:
                ref = dice.choice(keyed)
            revisions.append(
                dice.choice(
                    (
                        CancelJob(ref, "enough", "me", ended=self.end(ref)),
                        RedriveJob(ref, "me", delay=dice.choice((0, 0, 3 * SECOND)), ended=self.end(ref)),
                        RetainJob(ref, dice.choice((0, SECOND, 30 * SECOND)), ended=self.end(ref)),
                        DeleteJob(ref, ended=self.end(ref)),
                        RescheduleJob(ref, delay=dice.choice((None, 0, 5 * SECOND)), boost=dice.choice((None, 9))),
                        RescheduleJob(ref, priority=2, ended=dice.choice((None, 0, self.clock.now()))),
                    )
                )
            )
        await self.ask("revise", revisions)

    async def plan(self) -> None:
        dice = self.dice
        changes: list[Change] = []
        for _ in range(dice.randrange(1, 4)):
            name, now = dice.choice(("s", "daily ü", "none")), self.clock.now()
            known = self.model.survey().schedules
            last = next((schedule.last_tick for schedule in known if schedule.name == name), 0)
            next_tick = dice.choice((None, now - SECOND, now, now + dice.randrange(9 * SECOND)))
            changes.append(
                dice.choice(
                    (
                        PutSchedule(
                            Schedule(
                                name=name,
                                job=self.new_job(),
                                every=dice.choice((SECOND, 5 * SECOND)),
                                missed=dice.choice(("skip", "latest", "all")),
                                most=dice.choice((None, 3)),
                                overlap=dice.choice(("skip", "queue_one", "allow")),
                                created=now,
                                last_tick=now - SECOND,
                                next_tick=next_tick,
                            )
                        ),
                        PauseSchedule(name, dice.random() < 0.4, next_tick),
                        *[
                            Tick(
                                name,
                                last if dice.random() < 0.9 else last - 1,
                                now,
                                next_tick,
                                dice.choice((None, structs.replace(self.new_job(), schedule=name, tick=now))),
                                dice.choice((0, 0, 2)),
                            )
                            for _ in range(3)
                        ],
                        RemoveSchedule(name) if dice.random() < 0.2 else PauseSchedule(name, False, next_tick),
                    )
                )
            )
        await self.ask("plan", changes)

    def end(self, ref: Ref) -> int | None:
        """Return when a job ended, or another instant, or nothing."""
        job = self.model.records.get(ref)
        return self.dice.choice((None, None if job is None else job.finished, self.clock.now()))

    async def tune(self) -> None:
        dice = self.dice
        target, settings = dice.choice(
            (
                (Target("queue", dice.choice(QUEUES)), Settings(paused=dice.random() < 0.2)),
                (Target("queue", dice.choice(QUEUES)), Settings(lift=dice.choice(("*", "r", "queue")))),
                (
                    Target("queue", dice.choice(QUEUES)),
                    Settings(stall=StallSetting(lease=5 * SECOND, max_stalls=dice.choice((None, 3)))),
                ),
                (
                    Target("queue", dice.choice(QUEUES)),
                    Settings(rate=RateKey("queue", dice.choice((0, *INTERVALS)), dice.choice((1, 2)))),
                ),
                (
                    Target("task", (task := dice.choice(TASKS))),
                    Settings(rate=RateKey(f"task:{task}", dice.choice(INTERVALS), dice.choice((1, 2)))),
                ),
                (Target("worker", dice.choice(self.owners).id), Settings(quiet=dice.random() < 0.5)),
                (Target("task", dice.choice(TASKS)), Settings(paused=dice.random() < 0.4)),
                (Target("task", dice.choice(TASKS)), Settings(paused=dice.random() < 0.4)),
                (
                    Target("queue", dice.choice(QUEUES)),
                    Settings(
                        retention=RetentionRules(
                            *(dice.choice((None, self.keep())) for _ in range(4)),
                        )
                    ),
                ),
                (
                    Target("queue", dice.choice(QUEUES)),
                    Settings(record=tuple(event for event in get_args(OnRequest) if dice.random() < 0.7)),
                ),
            )
        )
        read = self.model.tune(target, Settings())
        seen = dice.choice((None, read, Settings(paused=not read.paused)))
        await self.ask("tune", target, settings, "me", seen)

    def keep(self) -> KeepRule:
        dice = self.dice
        return KeepRule(dice.choice((SECOND, 9 * SECOND, 60 * SECOND, 3600 * SECOND)), dice.choice((None, 0, 1, 3, 9)))

    async def resign(self) -> None:
        if self.terms:
            await self.ask("resign", self.dice.choice(self.terms))

    async def read_events(self) -> None:
        dice = self.dice
        reader = EventReader(dice.choice(("r", "s")), dice.choice(("p", "q")))
        page = await self.ask(
            "events", dice.choice((None, EVENTS_END, self.cursors.get(reader))), dice.choice((3, 100)), reader, None
        )
        self.cursors[reader] = page.next

    async def wait(self) -> None:
        passes = (1, 100_000, SECOND, 5 * SECOND, 9 * SECOND, 700 * SECOND, -SECOND, -40 * SECOND)
        self.clock.step_wall(self.dice.choices(passes, (4, 4, 4, 3, 2, 0.1, 1, 0.5))[0] / SECOND)

    async def compare(self) -> None:
        dice = self.dice
        await self.ask("get", [Ref(queue, f"j{n}") for queue in QUEUES for n in dice.sample(range(self.made + 2), 2)])
        await self.ask("survey", dice.choice(((), ("a", "z"))))
        found = await self.ask("events", str(dice.randrange(1 + 3 * self.made)), 50, None, None)
        self.met.update(type(event).__name__ for event in found.events)
        cursor = dice.choice((None, EVENTS_END, str(dice.randrange(1 + 3 * self.made))))
        ref = Ref(dice.choice(QUEUES), f"j{dice.randrange(self.made + 1)}")
        await self.ask("events", cursor, dice.choice((0, 1, 2, 50)), None, ref)
        query = Query(
            queues=dice.choice(((), ("a",), ("a", "b"))),
            states=dice.choice(
                ((), (State.WAITING,), (State.FAILED, State.COMPLETED, State.ACTIVE), (State.DELAYED, State.EXPIRED))
            ),
            tasks=dice.choice(((), ("u",))),
            reasons=dice.choice(((), ("exhausted", "enough"))),
            tags=dice.choice(((), ("x",), ("x", "y"), ("y", "z"))),
            created_after=dice.choice((None, None, self.clock.now() - dice.randrange(60 * SECOND))),
            created_before=dice.choice((None, None, self.clock.now() - dice.randrange(60 * SECOND))),
            ended_after=dice.choice((None, None, self.clock.now() - dice.randrange(60 * SECOND))),
            ended_before=dice.choice((None, None, self.clock.now() - dice.randrange(60 * SECOND))),
            id=dice.choice((None, None, f"j{dice.randrange(self.made + 1)}")),
            merge=dice.choice((None, None, None, "unique:k", "debounce:k", "collect:l")),
            limit=dice.choice((1, 2, 50)),
        )
        expected = self.model.find(query)
        answer = await self.storage.find(query)

        assert answer.jobs == expected.jobs
        assert (answer.next is None) == (expected.next is None)

    async def run(self, steps: int) -> None:
        """Make this many random calls, compare some reads after each, and compare everything at the end."""
        for queue in QUEUES:
            first = Settings(retention=RetentionRules(*(self.keep() for _ in range(4))), record=get_args(OnRequest))
            await self.ask("tune", Target("queue", queue), first, "me", None)
        for _ in range(steps):
            await self.step()
            await self.compare()
        whole = [Ref(queue, f"j{n}") for queue in QUEUES for n in range(self.made + 1)]
        await self.ask("get", whole)
        await self.ask("events", None, 100_000, None, None)
        found: list[JobRecord] = []
        page = await self.storage.find(Query(limit=7))
        while page.next is not None:
            found += page.jobs
            page = await self.storage.find(Query(limit=7, after=page.next))
        found += page.jobs
        findings = await self.storage.examine()

        assert tuple(found) == self.model.find(Query(limit=100_000)).jobs
        assert not [finding for finding in findings if finding.level == "error"]


LIMITS = {
    "PROMOTE_LIMIT": 2,
    "EXPIRE_LIMIT": 3,
    "TRIM_LIMIT": 4,
    "SCAN_LIMIT": 6,
    "LOOK_LIMIT": 2,
    "WINDOW_LIMIT": 1,
    "DUE_LIMIT": 1,
    "PASSED_LIMIT": 1,
    "SORTED_MOST": 2,
}
"""Limits that are so low that nearly every call reaches them."""


def _with_unused(queues: Sequence[str]) -> tuple[str, ...]:
    """Return these queues, each after some that have no jobs, in which a claim must find nothing."""
    return tuple(name for queue in queues for name in (*UNUSED, queue))


def event_retention(seed: int) -> KeepRule:
    """Return the retention of events for a seed."""
    return Random(seed).choice(
        (KeepRule(7 * 86_400 * SECOND, 100_000), KeepRule(30 * SECOND, 200), KeepRule(3600 * SECOND, 90))
    )


async def check_trimming_by_age_and_count(comparison: ModelComparison) -> None:
    """Check that a sweep deletes both the jobs over the maximum age and those over the maximum count."""
    await comparison.ask(
        "tune", Target("queue", "q"), Settings(retention=RetentionRules(KeepRule(9 * SECOND, 1))), None, None
    )
    for names in (("1",), ("2", "10", "3")):
        comparison.clock.advance(10)
        await comparison.ask("enqueue", [job(name) for name in names])
        leases = (await comparison.ask("exchange", comparison.owners[0], [], ClaimRequest(("q",), 10))).leases
        settled = [settlement(lease, Returned(b""), comparison.dice) for lease in leases]
        await comparison.ask("exchange", comparison.owners[0], settled, None)
    swept = await comparison.ask("sweep", SweepRequest(comparison.owners[0], None))
    left = await comparison.ask("find", Query())

    assert swept.did["trimmed"] == 3
    assert [record.id for record in left.jobs] == ["3"]
