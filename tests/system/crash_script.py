"""The calls of the process that is killed: one storage call after the other, the same each time, on its own clock.

The script runs on any storage, so the model can say what must be there after each call.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tenure.clock import SECOND
from tenure.core.events import WorkerStarted
from tenure.core.job import (
    CollectKey,
    DebounceKey,
    Key,
    MergeKey,
    NewJob,
    Owner,
    Policy,
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
from tenure.core.outcome import (
    Cancelled,
    Interrupted,
    Outcome,
    Raised,
    Rejected,
    Returned,
    Snoozed,
    Stalled,
    TimedOut,
    Unknown,
    Unreadable,
)
from tenure.core.retention import KeepRule, RetentionRules
from tenure.core.retry import Backoff
from tenure.core.schedule import Schedule
from tenure.core.settlement import settlement
from tenure.storage.protocol import (
    CancelJob,
    Change,
    ClaimRequest,
    DeleteJob,
    EventReader,
    LeaseRenewal,
    NewLogLine,
    PauseSchedule,
    PutSchedule,
    RedriveJob,
    RemoveSchedule,
    RenewRequest,
    RescheduleJob,
    RetainJob,
    Revision,
    Settings,
    StalledLease,
    Storage,
    SweepRequest,
    Target,
    Tick,
    WorkerInfo,
)
from tenure.testing import ManualClock

QUEUES = ("main", "keyed", "aged", "brief", "merged")
ALICE = Owner("00000000000a11ce", "alice", "h", 1)
BOB = Owner("0000000000000b0b", "bob", "h", 2)
REAPER = Owner("000000000000cafe", "reaper", "h", 3)
ERROR = RecordedError("ValueError", "no good", "Traceback ...")
QUICK = StallTerms(lease=4 * SECOND, max_stalls=3)


@dataclass
class Play:
    """A storage that the script runs on, and the leases that it got there."""

    storage: Storage
    clock: ManualClock
    held: dict[str, Lease] = field(default_factory=dict[str, Lease])
    spent: list[Lease] = field(default_factory=list[Lease])
    stalled: list[StalledLease] = field(default_factory=list[StalledLease])
    terms: list[Term] = field(default_factory=list[Term])
    ticks: dict[str, int] = field(default_factory=dict[str, int])
    """The last tick of each schedule."""


@dataclass(frozen=True)
class Act:
    """One storage call: its name, the seconds that pass before it, and how it is made."""

    name: str
    rest: float
    call: Callable[[Play], Awaitable[Any]]


def job(id_: str, queue: str = "main", **fields: Any) -> NewJob:
    fields = {"stall": QUICK, "task": "t", **fields}
    return NewJob(queue=queue, id=id_, payload=fields.pop("payload", b"{}"), **fields)


def call(id_: str, merge: MergeKey | None = None, **fields: Any) -> NewJob:
    return job(id_, "merged", merge=merge, **fields)


def mail(number: int) -> NewJob:
    """Return one of the calls that are collected."""
    return call(f"mail-{number}", COLLECTED, task="gather", payload=b'{"numbers":[%d]}' % number)


def enqueue(*jobs: NewJob) -> Callable[[Play], Awaitable[Any]]:
    return lambda play: play.storage.enqueue(jobs)


def exchange(
    owner: Owner, outcomes: dict[str, Outcome] | None = None, order: ClaimRequest | None = None
) -> Callable[[Play], Awaitable[Any]]:
    """Settle the leases with these ids, and claim."""

    async def call(play: Play) -> None:
        leases = [(play.held.pop(id_), outcome) for id_, outcome in (outcomes or {}).items()]
        play.spent += [lease for lease, _ in leases]
        sent = [settlement(lease, outcome, Random(7), took=0.5) for lease, outcome in leases]
        answer = await play.storage.exchange(owner, sent, order)
        play.held.update({lease.ref.id: lease for lease in answer.leases})

    return call


def replay(owner: Owner) -> Callable[[Play], Awaitable[Any]]:
    return lambda play: play.storage.exchange(
        owner, [settlement(lease, Returned(b"late"), Random(7)) for lease in play.spent[:3]]
    )


def settle_stalled() -> Callable[[Play], Awaitable[Any]]:
    async def call(play: Play) -> None:
        taken, play.stalled = play.stalled, []
        asked = [
            settlement(lease.lease, Stalled(lease.reason, silent_for=lease.silent_for, owner=lease.owner), Random(7))
            for lease in taken
        ]
        await play.storage.exchange(REAPER, asked)

    return call


def renew(owner: Owner, *ids: str, **fields: Any) -> Callable[[Play], Awaitable[Any]]:
    async def call(play: Play) -> None:
        found_fields = {name: fields.pop(name) for name in ("worker", "events", "last") if name in fields}
        renewals = tuple(LeaseRenewal(play.held[id_].ref, play.held[id_].fence, **fields) for id_ in ids)
        await play.storage.renew(RenewRequest(owner, renewals, **found_fields))

    def fresh(play: Play) -> Awaitable[Any]:
        nonlocal fields
        fields = dict(given)
        return call(play)

    given = dict(fields)
    return fresh


def sweep(term: int | None = None) -> Callable[[Play], Awaitable[Any]]:
    async def call(play: Play) -> None:
        swept = await play.storage.sweep(SweepRequest(REAPER, term, grace=1 * SECOND))
        play.stalled += swept.stalled
        play.terms += swept.terms

    return call


def reclaim(dead: Owner) -> Callable[[Play], Awaitable[Any]]:
    async def call(play: Play) -> None:
        play.stalled += (await play.storage.reclaim(dead.id, REAPER)).stalled

    return call


def revise(*asked: Revision) -> Callable[[Play], Awaitable[Any]]:
    return lambda play: play.storage.revise(asked)


def tune(kind: Any, name: str, **settings: Any) -> Callable[[Play], Awaitable[Any]]:
    return lambda play: play.storage.tune(Target(kind, name), Settings(**settings), by="me")


def put(name: str, **fields: Any) -> Callable[[Play], Awaitable[Any]]:
    async def call(play: Play) -> None:
        now = play.clock.now()
        play.ticks.setdefault(name, now)
        schedule = Schedule(name=name, job=job("", "merged"), created=now, last_tick=now, next_tick=now + DAY, **fields)
        await play.storage.plan([PutSchedule(schedule)])

    return call


def tick(
    name: str, id_: str | None, *, expected: int | None = None, missed: int = 0
) -> Callable[[Play], Awaitable[Any]]:
    """Move a schedule on to now, with a job or without."""

    async def call(play: Play) -> None:
        now, last = play.clock.now(), play.ticks[name] if expected is None else expected
        made = None if id_ is None else job(id_, "merged", schedule=name, tick=now)
        (planned,) = await play.storage.plan([Tick(name, last, now, now + DAY, made, missed)])
        if planned.verdict == "done":
            play.ticks[name] = now

    return call


def plan(*changes: Change) -> Callable[[Play], Awaitable[Any]]:
    return lambda play: play.storage.plan(changes)


async def resign(play: Play) -> None:
    await play.storage.resign(play.terms[-1])


async def lend(play: Play) -> None:
    await play.storage.events(None, limit=5, reader=EventReader("r", "p"))


def ref(id_: str, queue: str = "main") -> Ref:
    return Ref(queue, id_)


RULE = Policy(retry=Backoff(max_attempts=1), redrive=Redriving(after=2 * SECOND))
LOST = Policy(on_worker_lost="fail")
BRIEF = Policy(result_ttl=3 * SECOND)
KEYED = (Key("k"), Key("l", 2))
DAY = 86_400 * SECOND
UNIQUE = UniqueKey("unique")
QUEUED = UniqueKey("queued", "queued")
TIMED = UniqueKey("timed", window=60 * SECOND)
PASSING = UniqueKey("passing", window=SECOND)
MORTAL = UniqueKey("mortal")
RULED = UniqueKey("ruled")
DEBOUNCED = DebounceKey("debounced", SECOND, 5 * SECOND)
COLLECTED = CollectKey("collected", SECOND, 4, 5 * SECOND)
THROTTLE = ThrottleKey("throttled", 2, 60 * SECOND)

# One job for each way in which a run can be settled.
SETTLED: Sequence[tuple[str, Outcome]] = (
    ("completed", Returned(b"3")),
    ("large", Returned(b"x" * 6000)),
    ("rejected", Rejected(ERROR)),
    ("unreadable", Unreadable(ERROR)),
    ("exhausted", Raised(ERROR)),
    ("final", TimedOut(ERROR, final=True)),
    ("cancelled", Cancelled("why", "me")),
    ("now", Raised(ERROR, after=0)),
    ("later", Raised(ERROR, after=2 * SECOND)),
    ("overrun", TimedOut(ERROR)),
    ("snoozed", Snoozed(SECOND)),
    ("released", Interrupted("shutdown")),
    ("unknown", Unknown()),
    ("stalled", Stalled("process_died", 5, "gone")),
    ("lost", Stalled("process_died", 5, "gone")),
)
POLICIES = {"exhausted": RULE, "lost": LOST}

ACTS: Sequence[Act] = (
    Act("enqueue one", 0, enqueue(job("one"))),
    Act("enqueue a duplicate", 0, enqueue(job("one"))),
    Act("enqueue several", 0, enqueue(*(job(f"many{n}", priority=n % 3, boost=n % 3 * SECOND) for n in range(6)))),
    Act("enqueue delayed", 0, enqueue(job("delayed", delay=2 * SECOND), job("delayed-more", delay=20 * SECOND))),
    Act("enqueue keyed", 0.1, enqueue(*(job(f"key{n}", "keyed", keys=KEYED) for n in range(4)))),
    Act("enqueue with a higher limit", 0, enqueue(job("key4", "keyed", keys=(Key("k", 2),)))),
    Act("enqueue with a time to live", 0, enqueue(job("ttl", "aged", ttl=5 * SECOND))),
    Act(
        "enqueue, to be discarded",
        0,
        enqueue(
            job("ttl-discard", "aged", ttl=5 * SECOND, policy=Policy(on_expire="discard")),
            job("ttl-claim", "brief", ttl=SECOND, policy=Policy(on_expire="discard")),
        ),
    ),
    Act("tune what is recorded", 0, tune("queue", "keyed", record=("enqueued", "started", "suspected", "progressed"))),
    Act(
        "enqueue for retention", 0, enqueue(*(job(f"b{n}", "brief", policy=BRIEF if n else Policy()) for n in range(4)))
    ),
    Act(
        "tune retention",
        0,
        tune("queue", "brief", retention=RetentionRules(completed=KeepRule(2 * SECOND), failed=KeepRule(60, 1))),
    ),
    Act("beat for the first time", 0, renew(ALICE, worker=WorkerInfo(("main",), 9, 1))),
    Act("claim", 0, exchange(ALICE, order=ClaimRequest(("main",), 7))),
    Act("claim under keys", 0, exchange(BOB, order=ClaimRequest(("keyed",), 9))),
    Act("claim what is too old", 1.5, exchange(BOB, order=ClaimRequest(("brief",), 2))),
    Act("renew", 0.5, renew(ALICE, "many0", "many1")),
    Act(
        "renew with progress and log",
        0.1,
        renew(BOB, "key0", sign=True, progress=0.5, note="half", log=(NewLogLine("info", "so far", {"n": "1"}),) * 3),
    ),
    Act(
        "renew with events",
        0,
        renew(
            ALICE,
            "one",
            worker=WorkerInfo(("main",), 9, 7),
            events=(WorkerStarted(owner=ALICE.id, host="h", pid=1, queues=("main",), concurrency=9),),
        ),
    ),
    Act("ask an active job to stop", 0, revise(CancelJob(ref("many0"), "enough", "me"))),
    Act("settle what was asked to stop", 0.1, exchange(ALICE, {"many0": Interrupted("shutdown")})),
    Act(
        "cancel, reschedule, delete",
        0,
        revise(CancelJob(ref("delayed")), RescheduleJob(ref("delayed-more"), delay=SECOND)),
    ),
    Act("complete", 0, exchange(ALICE, {"one": Returned(b"1")})),
    Act(
        "complete and claim in the same call", 0, exchange(ALICE, {"many1": Returned(b"1")}, ClaimRequest(("main",), 2))
    ),
    Act("free a slot", 0.1, exchange(BOB, {"key0": Returned(b"1")})),
    Act("free a slot and take it", 0, exchange(BOB, {"key4": Raised(ERROR, after=0)}, ClaimRequest(("keyed",), 9))),
    Act(
        "enqueue one for each end", 0, enqueue(*(job(name, policy=POLICIES.get(name, Policy())) for name, _ in SETTLED))
    ),
    Act("claim one for each end", 0, exchange(BOB, order=ClaimRequest(("main",), 20))),
    *(Act(f"settle: {name}", 0.01, exchange(BOB, {name: outcome})) for name, outcome in SETTLED),
    Act("replay what was settled", 0, replay(BOB)),
    Act("claim what was put back", 2.5, exchange(ALICE, order=ClaimRequest(("main",), 30))),
    Act(
        "settle several ways at once, and claim",
        0,
        exchange(
            ALICE,
            {"now": Returned(b""), "later": Rejected(ERROR), "snoozed": Raised(ERROR)},
            ClaimRequest(("main",), 5),
        ),
    ),
    Act(
        "redrive, one at once and one later",
        0,
        revise(RedriveJob(ref("rejected"), "me"), RedriveJob(ref("final"), delay=SECOND)),
    ),
    Act("delete what is over", 0, revise(DeleteJob(ref("completed"), "me"), DeleteJob(ref("unreadable")))),
    Act("retain a result", 0, revise(RetainJob(ref("large"), 86_400 * SECOND))),
    Act("cancel what waits under a key", 0, revise(CancelJob(ref("key3", "keyed"), "enough"))),
    Act("pause a queue", 0, tune("queue", "main", paused=True)),
    Act("pause a task", 0, tune("task", "t", paused=True)),
    Act("enqueue for a paused task", 0, enqueue(job("paused", "keyed"), job("paused-ttl", "keyed", ttl=60 * SECOND))),
    Act("claim of a paused task", 0, exchange(BOB, order=ClaimRequest(("keyed", "main"), 5))),
    Act("resume a task", 0, tune("task", "t", paused=False)),
    Act("resume a queue", 0, tune("queue", "main", paused=False)),
    Act("tune stalls", 0, tune("queue", "main", stall=StallSetting(max_stalls=2))),
    Act(
        "settle for retention",
        0,
        exchange(BOB, {"b0": Returned(b"0"), "b1": Returned(b"1")}, ClaimRequest(("brief",), 1)),
    ),
    Act("lend events", 0, lend),
    Act("sweep as leader: expire, promote, redrive", 3, sweep(4 * SECOND)),
    Act("sweep: suspect", 3, sweep()),
    Act("renew a suspect", 0.2, renew(ALICE, "many2")),
    Act("sweep: reclaim", 1.5, sweep()),
    Act("settle what stalled", 0.1, settle_stalled()),
    Act("sweep: trim and suspect", 4, sweep(4 * SECOND)),
    Act("enqueue over a result whose time is over", 0, enqueue(job("b1", "brief", policy=BRIEF))),
    Act("resign", 0, resign),
    Act("claim again", 0, exchange(BOB, order=ClaimRequest(("keyed", "main", "brief"), 6))),
    Act("beat of the second", 0, renew(BOB, worker=WorkerInfo(QUEUES, 9, 6))),
    Act("reclaim of a dead owner", 0.1, reclaim(BOB)),
    Act("sweep once more: redrive by rule", 2, sweep()),
    Act("settle what was reclaimed", 0, settle_stalled()),
    Act(
        "tune which merged calls are recorded",
        0,
        tune("queue", "merged", record=("deduplicated", "debounced", "collected", "throttled")),
    ),
    Act("enqueue under unique keys", 0, enqueue(call("unique", UNIQUE), call("queued", QUEUED), call("timed", TIMED))),
    Act("enqueue under keys that are held", 0, enqueue(call("unique-2", UNIQUE), call("timed-2", TIMED))),
    Act(
        "enqueue with a rule, and under a key for a short time",
        0,
        enqueue(call("ruled", RULED, policy=RULE), call("passing", PASSING)),
    ),
    Act("claim under unique keys", 0, exchange(BOB, order=ClaimRequest(("merged",), 9))),
    Act("debounce", 0, enqueue(call("debounced", DEBOUNCED, payload=b"[]", keys=KEYED))),
    Act("debounce again", 0.1, enqueue(call("debounced-2", DEBOUNCED), call("debounced-3", DEBOUNCED, keys=KEYED[:1]))),
    Act("collect", 0, enqueue(mail(0))),
    Act("collect more", 0.1, enqueue(mail(1), mail(2))),
    Act("collect what was collected", 0, enqueue(mail(1), mail(0))),
    Act("collect as many as there may be, and another", 0.1, enqueue(mail(3), mail(4))),
    Act("throttle", 0, enqueue(*(call(f"throttled-{n}", throttle=THROTTLE) for n in range(3)))),
    Act("enqueue with a queued one active", 0, enqueue(call("queued-2", QUEUED))),
    Act("put a queued one back with another waiting", 0, exchange(BOB, {"queued": Interrupted("shutdown")})),
    Act("free unique keys", 0, exchange(BOB, {"unique": Rejected(ERROR), "ruled": Raised(ERROR)})),
    Act("take keys that are free", 0, enqueue(call("unique-3", UNIQUE), call("ruled-2", RULED))),
    Act("redrive while another holds the key", 0, revise(RedriveJob(ref("unique", "merged"), "me"))),
    Act("delete what is debounced", 0, revise(DeleteJob(ref("debounced", "merged"), "me"))),
    Act("debounce again", 0, enqueue(call("debounced-2", DEBOUNCED), call("debounced-4", DEBOUNCED))),
    Act("end a job under a key for a time", 0, exchange(BOB, {"timed": Returned(b"")})),
    Act("give a key for a time back", 0, revise(DeleteJob(ref("timed", "merged"), "me"))),
    Act("take a key for a time", 0, enqueue(call("timed-3", TIMED), call("mortal", MORTAL, ttl=SECOND))),
    Act("expire the holder of a key", 1.5, enqueue(call("mortal-2", MORTAL))),
    Act("put schedules", 0, put("daily", every=DAY)),
    Act("put another schedule", 0, put("hourly ü", cron="0 * * * *", overlap="allow")),
    Act("tick", 0.1, tick("daily", "tick-1")),
    Act("tick as another does", 0, tick("daily", "tick-2", expected=1)),
    Act("tick over an unfinished job", 0.1, tick("daily", "tick-3")),
    Act("tick, others given up before it", 0.1, tick("hourly ü", "tick-4", missed=2)),
    Act("tick without a job", 0.1, tick("hourly ü", None, missed=1)),
    Act("put a schedule again", 0, put("daily", every=60 * SECOND, overlap="queue_one")),
    Act("pause a schedule, remove another", 0, plan(PauseSchedule("daily", paused=True), RemoveSchedule("hourly ü"))),
    Act("let a schedule go on", 0, plan(PauseSchedule("daily", paused=False, next_tick=None))),
    Act("sweep: a rule gives up, a window is over", 2.5, sweep()),
    Act("settle what stalled meanwhile", 0, settle_stalled()),
    Act("take a key whose time is over", 0, enqueue(call("passing-2", PASSING))),
    Act("claim what was collected", 0, exchange(ALICE, order=ClaimRequest(("merged",), 4))),
    Act("collect with a batch active", 0, enqueue(mail(5))),
    Act("leave", 0, renew(ALICE, last=True)),
)
"""Every verb that writes, and every kind of decision."""

MERGE_KEYS: Sequence[MergeKey] = (UNIQUE, QUEUED, TIMED, PASSING, MORTAL, RULED, DEBOUNCED, COLLECTED)
CALLS = [ref(name, "merged") for name in (*(f"mail-{n}" for n in range(7)), *(f"debounced-{n}" for n in range(2, 5)))]
"""Calls that a job may have merged."""

MAY_VANISH = frozenset(
    {*(Ref("brief", f"b{n}") for n in range(4)), ref("ttl-discard", "aged"), ref("ttl-claim", "brief")}
)
"""What retention deletes, or a time to live that leaves no record."""
