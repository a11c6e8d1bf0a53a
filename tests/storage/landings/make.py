"""Makes the databases that are saved with the landings: jobs in every state, and all that belongs to them.

    python -m tests.storage.landings.make

saves those that are missing. One that is there is never made again: what it shows is what the code of its day wrote.
What went into it is told here by public verbs, so that any storage can be told the same.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

from msgspec import structs

from holdfast.clock import SECOND
from holdfast.core.decision import Finish, PutBack
from holdfast.core.events import JobFailed, WorkerHung, WorkerStarted
from holdfast.core.job import (
    FOREVER,
    CollectKey,
    DebounceKey,
    Key,
    NewJob,
    Owner,
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
from holdfast.core.lease import Lease
from holdfast.core.outcome import (
    Cancelled,
    Interrupted,
    Outcome,
    Raised,
    Rejected,
    Returned,
    Snoozed,
    Stalled,
    TimedOut,
)
from holdfast.core.retention import Keep, Retention
from holdfast.core.retry import Backoff
from holdfast.core.schedule import Schedule
from holdfast.core.settlement import Settlement, settlement
from holdfast.storage.protocol import (
    Beat,
    Bid,
    Cancel,
    Delete,
    NewLogLine,
    Order,
    PauseSchedule,
    PutSchedule,
    Reader,
    Redrive,
    Renewal,
    Reschedule,
    Retain,
    Settings,
    Storage,
    Target,
    Tick,
    WorkerInfo,
)
from holdfast.storage.sqlite import SQLiteStorage
from holdfast.testing import ManualClock

HERE = Path(__file__).parent

WORKER = Owner("00000000000000a1", "first", "host-1", 101)
MORTAL = Owner("00000000000000b2", "mortal", "host-1", 102)
LEADER = Owner("00000000000000c3", "leader", "host-2", 201)
READER = Reader("app:landing", "00000000000000a1")

PAUSED = "paused ü:/."
STRICT = "strict"
IDLE = "idle"
DOOMED = "doomed"
WRECKED = "wrecked"
KEYED = "keyed"
DUSTY = "dusty"
FAIR = "fair"
RATED = "rated"
STEADY = "steady"
MERGED = "merged"

ONCE = UniqueKey("once")
TIMED = UniqueKey("for a time", window=3600 * SECOND)
REST = DebounceKey("rest", 60 * SECOND, 3600 * SECOND)
GATHER = CollectKey("gather", 60 * SECOND, 3, 3600 * SECOND)
SELDOM = ThrottleKey("seldom", 1, 3600 * SECOND)

ERROR = RecordedError("ValueError", "not ☃", "Traceback (most recent call last): ...")


def wish(name: str, queue: str = "default", task: str = "add", **fields: object) -> NewJob:
    """Return a wish for a job of a task that adds two numbers."""
    return NewJob(queue=queue, id=name, task=task, payload=b'{"a":1,"b":2}', **fields)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def in_words_of_then(settled: Settlement) -> Settlement:
    """Return a settlement as it was worded when the first databases were saved: with less to tell."""
    if settled.ended.ended == "timed_out":
        message = (settled.ended.detail or "").partition("\nTraceback")[0]
        return structs.replace(settled, ended=structs.replace(settled.ended, detail=message))
    if settled.ended.ended != "stalled" or not isinstance(settled.decision, Finish) or not settled.decision.error:
        return settled
    error = structs.replace(
        settled.decision.error, message="the job stalled 1 times, more than its max_count of 0", traceback=""
    )
    return structs.replace(
        settled,
        decision=structs.replace(settled.decision, error=error),
        events=tuple(
            structs.replace(event, error=error) if isinstance(event, JobFailed) else event for event in settled.events
        ),
    )


async def first(storage: Storage, clock: ManualClock) -> None:
    """Tell a storage all that it could remember at the first landing."""
    dice = Random(1)
    leases: dict[str, Lease] = {}

    async def claim(owner: Owner, *queues: str) -> None:
        answer = await storage.exchange(owner, (), Order(queues, 100))
        leases.update({lease.job.id: lease for lease in answer.leases})

    async def settle(owner: Owner, outcomes: dict[str, Outcome]) -> None:
        await storage.exchange(
            owner,
            [
                in_words_of_then(settlement(leases[name], outcome, dice, took=0.25))
                for name, outcome in outcomes.items()
            ],
        )

    await storage.events(limit=0, reader=READER)
    started = WorkerStarted(owner=WORKER.id, host="host-1", pid=101, queues=("default", STRICT), concurrency=10)
    info = WorkerInfo(("default", STRICT), 10, 3, 1500)
    await storage.renew(Beat(WORKER, worker=info, events=(started,)))
    await storage.tune(Target("queue", STRICT), Settings(stall=StallSetting(lease=5 * SECOND, max_stalls=4)), by="ann")

    patient = Policy(
        retry=Backoff(max_attempts=9, kind="linear", base=2 * SECOND, cap=60 * SECOND, jitter=0.1),
        on_worker_lost="fail",
        on_expire="discard",
        result_ttl=3600 * SECOND,
        version=3,
    )
    once = Policy(retry=Backoff(max_attempts=1))
    again = Policy(retry=Backoff(max_attempts=1), redrive=Redriving(FOREVER // 10, 2))
    await storage.enqueue(
        [
            wish("completed", headers={"trace": "1-2-3"}, tags=("x", "ü")),
            wish("completed-large"),
            wish("completed-kept", policy=Policy(result_ttl=FOREVER)),
            wish("completed-retained"),
            wish("failed-rejected"),
            wish("failed-exhausted", policy=once),
            wish("failed-redrivable", policy=again),
            wish("failed-timeout", policy=once, timeout=30 * SECOND),
            wish("cancelled-by-itself"),
            wish("retrying", policy=patient),
            wish("snoozed"),
            wish("released", IDLE),
            wish("redriven", IDLE, policy=once),
            wish("deleted"),
        ]
    )
    await claim(WORKER, "default", IDLE)
    clock.advance(1)
    line = NewLogLine("info", "half of it", {"part": "1"}, ago=400_000)
    await storage.renew(
        Beat(
            WORKER,
            (
                Renewal(
                    leases["completed"].ref, leases["completed"].fence, sign=True, progress=0.5, note="½", log=(line,)
                ),
                Renewal(leases["retrying"].ref, leases["retrying"].fence, log=(line, line)),
            ),
            info,
        )
    )
    await settle(
        WORKER,
        {
            "completed": Returned(b"3"),
            "completed-large": Returned(b'"' + b"x" * 9000 + b'"'),
            "completed-kept": Returned(b"3"),
            "completed-retained": Returned(b"3"),
            "failed-redrivable": Raised(ERROR),
            "failed-rejected": Rejected(ERROR),
            "failed-exhausted": Raised(ERROR),
            "failed-timeout": TimedOut(ERROR),
            "cancelled-by-itself": Cancelled("enough", None),
            "retrying": Raised(ERROR),
            "snoozed": Snoozed(3600 * SECOND),
            "released": Interrupted("shutdown"),
            "redriven": Raised(ERROR),
            "deleted": Returned(b"3"),
        },
    )
    await storage.revise([Redrive(Ref(IDLE, "redriven"), "ann"), Delete(Ref("default", "deleted"), "ann")])
    await storage.revise([Retain(Ref("default", "completed-retained"), FOREVER)])

    await storage.enqueue(
        [wish("crashed-once", DOOMED), wish("crashed-for-good", DOOMED, stall=StallTerms(max_stalls=0))]
    )
    await claim(MORTAL, DOOMED)
    taken = await storage.reclaim(MORTAL.id, LEADER)
    await storage.exchange(
        LEADER,
        [
            in_words_of_then(
                settlement(one.lease, Stalled(one.reason, one.silent_for, one.owner, "signal 9 (SIGKILL)"), dice)
            )
            for one in taken.stalled
        ],
    )

    two, single = Key("k", 2), Key("single")
    await storage.enqueue(
        [
            *(wish(f"two-{n}", KEYED, keys=(two,)) for n in range(4)),
            *(wish(f"single-{n}", KEYED, keys=(Key("free", 9), single)) for n in range(3)),
            wish("halted", KEYED, task="halted", keys=(two,)),
            wish("expired", KEYED, ttl=SECOND, delay=60 * SECOND),
            wish("discarded", KEYED, ttl=SECOND, delay=60 * SECOND, policy=patient),
        ]
    )
    await storage.tune(Target("task", "halted"), Settings(paused=True), by="ann")
    await claim(WORKER, KEYED)
    await storage.tune(
        Target("queue", DUSTY), Settings(retention=Retention(Keep(0), Keep(FOREVER, 1)), record=("enqueued", "started"))
    )
    await storage.enqueue([wish(f"dusty-{n}", DUSTY) for n in range(3)])
    await claim(WORKER, DUSTY)
    await settle(WORKER, {"dusty-0": Returned(b"3"), "dusty-1": Rejected(ERROR), "dusty-2": Rejected(ERROR)})

    clock.advance(1)
    await storage.enqueue(
        [
            wish("active"),
            wish("active-cancelling"),
            wish("active-suspect", stall=StallTerms(lease=6 * SECOND, max_stalls=5, renewed=False, pinned=("lease",))),
            wish("active-strict", STRICT, heartbeat_timeout=30 * SECOND, stall=StallTerms(start_grace=2 * SECOND)),
        ]
    )
    await claim(WORKER, "default", STRICT)
    await storage.revise([Cancel(Ref("default", "active-cancelling"), "no longer needed", "ann")])
    clock.advance(7)
    await storage.renew(
        Beat(WORKER, (Renewal(leases["active"].ref, leases["active"].fence, sign=True, progress=0.25),), info)
    )

    await storage.enqueue(
        [
            wish("delayed", delay=3600 * SECOND),
            wish("delayed-cancelled", delay=3600 * SECOND),
            wish("rescheduled", delay=60 * SECOND),
            wish("waiting", priority=5, boost=300 * SECOND),
            wish("waiting-with-everything", STRICT, ttl=3_000_000_000 * SECOND,
                 keys=(Key("k", 2), Key("l")), merge=UniqueKey("u", window=7 * SECOND), schedule="s", parent="p",
                 policy=patient),
            wish("waiting-paused", PAUSED),
            wish("id: of, any/kind ☃", PAUSED),
        ]
    )  # fmt: skip
    await storage.revise(
        [
            Cancel(Ref("default", "delayed-cancelled"), "no longer needed", "ann"),
            Reschedule(Ref("default", "rescheduled"), delay=7200 * SECOND, priority=2, by="ann"),
        ]
    )
    await storage.tune(Target("queue", PAUSED), Settings(paused=True), by="ann")
    # What one reader has read and acknowledged, and what it was lent and has not.
    page = await storage.events(limit=5, reader=READER)
    await storage.events(page.next, limit=3, reader=READER)
    # Without having stalled: the lease that nobody renewed is a mere suspect.
    await storage.sweep(Bid(LEADER))


async def second(storage: Storage, clock: ManualClock) -> None:
    """Tell a storage all that it could remember at the second landing: order, merged calls, rates, schedules."""
    await first(storage, clock)
    await storage.tune(
        Target("queue", MERGED), Settings(record=("deduplicated", "debounced", "collected", "throttled")), by="ann"
    )
    await storage.tune(Target("queue", STEADY), Settings(rate=RateKey("queue", SECOND // 20, 3)), by="ann")
    await storage.tune(Target("task", "paced"), Settings(rate=RateKey("task:paced", SECOND // 4)), by="ann")

    await storage.enqueue(
        [
            *(wish(f"fair-{n}", FAIR, fair_key="many", weight=3) for n in range(5)),
            *(wish(f"fair-other-{n}", FAIR, fair_key="few") for n in range(3)),
            wish("fair-none", FAIR),
            wish("fair-high", FAIR, fair_key="few", priority=2, boost=120 * SECOND),
            wish("fair-last", FAIR, lifo=True),
            wish("fair-delayed", FAIR, fair_key="many", delay=SECOND),
        ]
    )
    await storage.exchange(WORKER, (), Order((FAIR,), 5))
    await storage.enqueue([wish("fair-late", FAIR, fair_key="few"), wish("fair-new", FAIR, fair_key="new")])

    often = RateKey("often", SECOND // 10)
    await storage.enqueue(
        [
            *(wish(f"often-{n}", RATED, rates=(often,)) for n in range(4)),
            *(wish(f"paced-{n}", RATED, task="paced", rates=(RateKey("task:paced", SECOND),)) for n in range(2)),
            *(wish(f"steady-{n}", STEADY) for n in range(5)),
        ]
    )
    await storage.exchange(WORKER, (), Order((RATED, STEADY), 100))

    await storage.enqueue(
        [
            wish("unique", MERGED, merge=ONCE),
            wish("unique-2", MERGED, merge=ONCE),
            wish("debounced", MERGED, merge=REST),
            wish("debounced-2", MERGED, merge=REST, tags=("later",), keys=(Key("k", 2),)),
            wish("timed", MERGED, merge=TIMED),
            wish("throttled", MERGED, throttle=SELDOM),
            wish("throttled-2", MERGED, throttle=SELDOM),
            *(gathering(n) for n in range(5)),
        ]
    )
    await storage.exchange(WORKER, (), Order((MERGED,), 2))

    made = clock.now()
    nightly = Schedule(
        name="nightly",
        job=wish("", MERGED, merge=ONCE, tags=("ü",)),
        cron="0 4 * * *",
        tz="Europe/Berlin",
        missed="all",
        most=3,
        made=made,
        last_tick=made,
        next_tick=made + FOREVER,
    )
    often_put = structs.replace(nightly, name="often ü/.", cron=None, tz="UTC", every=30 * SECOND, overlap="allow")
    await storage.plan(
        [PutSchedule(nightly), PutSchedule(often_put), PutSchedule(structs.replace(nightly, name="off"))]
    )
    clock.advance(31)
    now = clock.now()
    ticked = structs.replace(wish("cron:often:1", MERGED), schedule="often ü/.", tick=now)
    await storage.plan(
        [
            Tick("often ü/.", made, now, made + FOREVER, ticked, missed=2),
            PauseSchedule("off", paused=True),
        ]
    )


async def third(storage: Storage, clock: ManualClock) -> None:
    """Tell a storage all that it could remember at the third landing: what crashes leave behind."""
    await second(storage, clock)
    await storage.enqueue([wish("crashed-later", WRECKED), wish("traced", WRECKED)])
    dice = Random(3)
    leases = (await storage.exchange(MORTAL, (), Order((WRECKED,), 100))).leases
    trace = 'File "größe.py", line 7, in größe ☃'
    info = WorkerInfo((WRECKED,), 10, len(leases), 1500, lag=250_000, memory=9 << 30)
    await storage.renew(Beat(MORTAL, tuple(Renewal(lease.ref, lease.fence, trace=trace) for lease in leases), info))
    hung = WorkerHung(owner=MORTAL.id, blocked_for=600.5, stack=trace)
    await storage.renew(Beat(MORTAL, events=(hung,)))
    await storage.tune(Target("worker", MORTAL.id), Settings(quiet=True), by="ann")
    # One is put back for later, the other is still held by whoever is to judge them.
    taken = await storage.reclaim(MORTAL.id, LEADER)
    [late] = [one for one in taken.stalled if one.lease.job.id == "crashed-later"]
    marked = PutBack(charge="stalls", after=SECOND, reason="process_died", quarantine=True)
    settled = settlement(late.lease, Stalled(late.reason, late.silent_for, late.owner, "signal 11"), dice)
    await storage.exchange(LEADER, [structs.replace(settled, decision=marked)])


def gathering(number: int) -> NewJob:
    """Return one of the calls that are gathered, as many as three in one job."""
    return structs.replace(
        wish(f"gathered-{number}", MERGED, task="total", merge=GATHER), payload=b'{"numbers":[%d]}' % number
    )


LANDINGS: dict[str, Callable[[Storage, ManualClock], Awaitable[None]]] = {
    "0001": first,
    "0002": second,
    "0003": third,
    "0004": third,
}


async def save(landing: str) -> None:
    """Make and save the database of a landing."""
    path = HERE / f"{landing}.db"
    clock = ManualClock()
    storage = SQLiteStorage(path, clock=clock)
    await LANDINGS[landing](storage, clock)
    await storage.close()
    # Owners live through it that will never leave; the file is whole all the same, and nobody meets beside it.
    os.unlink(f"{path}.lock")


if __name__ == "__main__":
    for name in LANDINGS:
        if not (HERE / f"{name}.db").exists():
            asyncio.run(save(name))
