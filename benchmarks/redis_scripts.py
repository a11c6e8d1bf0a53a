"""Measures how long the scripts of Redis occupy their server: `python -m benchmarks.redis_scripts`.

A server runs one script at a time, so none may take long: 5 ms at its limits, independently of the other contents. A
million jobs wait and ten thousand are active while each verb is called with as much as one call may do. The times are
the server's own (SLOWLOG) of each script: the least, the median and the worst of all; and the longest: costs limit
what a script does, so the first of one call does what the first of another does, and the longest is the one of them
with the highest median of its repeats. The table also shows how many scripts a call is, and its least processor time.

The worst depends on the machine, too: it may stop a server within a script. So the server has the highest priority if
this process may request that (as root). Above and below are two scripts that always do the same: their times beyond
their least come from the machine: while other processes are busy, every access to memory takes longer.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import count, cycle, zip_longest
from random import Random
from statistics import median
from typing import Any

from msgspec import Struct
from redis import Redis

from benchmarks.report import machine
from benchmarks.server import a_server
from tenure.clock import SECOND
from tenure.core.job import (
    Key,
    NewJob,
    Owner,
    Policy,
    RateKey,
    RecordedError,
    Redriving,
    Ref,
    StallTerms,
    ThrottleKey,
)
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.outcome import Outcome, Raised, Returned, Unknown
from tenure.core.retry import Backoff
from tenure.core.schedule import Schedule
from tenure.core.settlement import settlement
from tenure.core.ticks import begun
from tenure.storage.protocol import (
    CLAIM_LIMIT,
    DUE_LIMIT,
    EXPIRE_LIMIT,
    PROMOTE_LIMIT,
    RENEW_LIMIT,
    SCAN_LIMIT,
    SETTLE_LIMIT,
    SWEEP_LIMIT,
    TRIM_LIMIT,
    WINDOW_LIMIT,
    CancelJob,
    ClaimRequest,
    LeaseRenewal,
    NewLogLine,
    PutSchedule,
    Query,
    RenewRequest,
    RescheduleJob,
    Settings,
    SweepRequest,
    Target,
    Tick,
    WorkerInfo,
)
from tenure.storage.redis.address import read
from tenure.storage.redis.storage import RedisStorage
from tenure.testing import ManualClock

BASE = "base"
PAYLOAD = b"x" * 200
TRIP = 500
REAPER = Owner("reaper")
ERROR = RecordedError("ValueError", "no good", "Traceback (most recent call last): ...")
BEAT = 5.0
"""Seconds between two beats."""

LOGGED = 100
"""Microseconds from which a script is logged; with less, its commands would be, too, and that takes time."""

NOTED = 1000
"""How many slow commands the server keeps."""

UNKNOWN_TASKS = 600
"""Under how many unknown tasks jobs are parked."""

LONG = StallTerms(lease=365 * 86_400 * SECOND)
"""The lease of jobs that are always active, so that only the cases' own jobs become silent."""


COUNTING = "local sum = 0 for number = 1, 250000 do sum = sum + number % 7 end return 0"
LOOKING = "for number = 1, 800 do redis.call('RANDOMKEY') end return 0"
"""Scripts that always do the same: one touches no memory, the other touches memory that was not used lately."""


class Found(Struct, frozen=True):
    """A case: milliseconds that the server spent in each script of each call, and of processor time in each call."""

    title: str
    calls: tuple[tuple[float, ...], ...]
    costs: tuple[float, ...]

    @property
    def times(self) -> list[float]:
        """The times of all scripts."""
        return [time for call in self.calls for time in call]

    @property
    def longest(self) -> float:
        """The median time of the first scripts of the calls, of the second, and so on: the longest of these."""
        nth = zip_longest(*self.calls)
        return max(median(time for time in times if time is not None) for times in nth)


class Probe:
    """A storage on its own server, whose calls are timed."""

    def __init__(self, url: str, *, calls: int) -> None:
        self.clock = ManualClock(time.time_ns() // 1000)
        self.storage = RedisStorage(read(url), clock=self.clock)
        # What it returns depends on how it was created, which its types do not say.
        untyped: Any = Redis
        self.client = untyped.from_url(url)
        self.client.config_set("slowlog-max-len", NOTED)
        self.found: list[Found] = []
        self._calls = calls
        self._ids = count()
        self._dice = Random(0)

    async def case(
        self, title: str, call: Callable[[], Awaitable[object]], before: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        """Time a call this many times, each after its preparation."""
        calls: list[tuple[float, ...]] = []
        costs: list[float] = []
        for _ in range(self._calls):
            if before is not None:
                await before()
            self.client.slowlog_reset()
            self.client.config_resetstat()
            self.client.config_set("slowlog-log-slower-than", LOGGED)
            spent = self._spent()
            await call()
            costs.append(self._spent() - spent)
            self.client.config_set("slowlog-log-slower-than", -1)
            calls.append(tuple(self._scripts()))
        self.found.append(Found(title, tuple(calls), tuple(costs)))
        print(line(self.found[-1]), file=sys.stderr)

    def jobs(self, number: int, queue: str, **fields: Any) -> list[NewJob]:
        """Return new jobs."""
        ids = (f"{next(self._ids):09}" for _ in range(number))
        return [NewJob(queue=queue, id=id_, task="noop", payload=PAYLOAD, **fields) for id_ in ids]

    async def enqueue(self, number: int, queue: str, **fields: Any) -> list[Ref]:
        """Enqueue this many jobs, in calls of a limited size."""
        refs: list[Ref] = []
        for start in range(0, number, TRIP):
            receipts = await self.storage.enqueue(self.jobs(min(TRIP, number - start), queue, **fields))
            refs += [receipt.ref for receipt in receipts]
        return refs

    async def start(self, number: int, queue: str, owner: Owner, **fields: Any) -> list[Lease]:
        """Enqueue this many jobs and claim them."""
        await self.enqueue(number, queue, **fields)
        return await self.claim(number, queue, owner)

    async def claim(self, number: int, queue: str, owner: Owner) -> list[Lease]:
        """Claim this many jobs of a queue."""
        leases: list[Lease] = []
        while len(leases) < number:
            room = min(CLAIM_LIMIT, number - len(leases))
            won = (await self.storage.exchange(owner, (), ClaimRequest((queue,), room))).leases
            if not won:
                raise RuntimeError(f"{number} jobs of {queue} were to be won, but it were {len(leases)}")
            leases += won
        return leases

    async def settle(
        self, owner: Owner, leases: Sequence[Lease], outcome: Outcome, order: ClaimRequest | None = None
    ) -> None:
        """Settle leases, all in one call."""
        settlements = [settlement(lease, outcome, self._dice) for lease in leases]
        answer = await self.storage.exchange(owner, settlements, order)
        if any(verdict.verdict != "done" for verdict in answer.verdicts):
            raise RuntimeError("a settlement was refused")

    async def sweep(self, **expected: int) -> None:
        """Sweep once, and check that it did what the case is about."""
        swept = await self.storage.sweep(SweepRequest(REAPER, term=None))
        if swept.troubles or any(swept.did[chore] < did for chore, did in expected.items()):
            raise RuntimeError(f"it was to do {expected}, but did {swept.did}, {swept.troubles}")

    async def sweep_all(self) -> None:
        """Sweep until nothing is left to do, and release what was reclaimed."""
        while True:
            swept = await self.storage.sweep(SweepRequest(REAPER, term=None))
            leases = [stalled.lease for stalled in swept.stalled]
            for start in range(0, len(leases), SETTLE_LIMIT):
                await self.settle(REAPER, leases[start : start + SETTLE_LIMIT], Returned(b"null"))
            if not swept.more:
                return

    def _spent(self) -> float:
        info: dict[str, float] = self.client.info("cpu")
        return 1000 * (info["used_cpu_user_main_thread"] + info["used_cpu_sys_main_thread"])

    def _scripts(self) -> list[float]:
        entries: list[dict[str, Any]] = self.client.slowlog_get(NOTED)
        logged = [entry["duration"] / 1000 for entry in entries if entry["command"].startswith(b"EVALSHA")][::-1]
        total = self.client.info("commandstats")["cmdstat_evalsha"]
        short = total["calls"] - len(logged)
        return logged + [max(0, total["usec"] / 1000 - sum(logged)) / short] * short if short else logged


async def filled(probe: Probe, *, waiting: int, active: int) -> tuple[float, list[tuple[Owner, list[Lease]]]]:
    """Fill the server; return the bytes of a waiting job, and the leases by holder."""
    await probe.storage.open()
    print(f"filling a server with {waiting:,} jobs that wait and {active:,} that are active", file=sys.stderr)
    before = probe.client.info("memory")["used_memory"]
    await probe.enqueue(waiting, BASE, stall=LONG)
    per_job = (probe.client.info("memory")["used_memory"] - before) / waiting
    owners = [Owner(f"holder-{number}") for number in range(max(1, active // RENEW_LIMIT))]
    held = [(owner, await probe.start(active // len(owners), "held", owner, stall=LONG)) for owner in owners]
    return per_job, held


async def standing_still(probe: Probe) -> None:
    """Measure the machine's effect on a script that always takes the same time."""
    for title, script in (("(a script that only counts)", COUNTING), ("(a script that looks at random keys)", LOOKING)):
        digest = probe.client.script_load(script)

        async def some(digest: str = digest) -> None:
            for _ in range(20):
                probe.client.evalsha(digest, 0)

        await probe.case(title, some)


def settle_down(client: Any) -> None:
    """Wait until the server has rewritten its log, as it does once that has doubled; and prevent another rewrite.

    Meanwhile the first script that touches a page has it copied.
    """
    client.config_set("auto-aof-rewrite-percentage", 0)
    while client.info("persistence")["aof_rewrite_in_progress"]:
        time.sleep(0.1)


def before_all_others(client: Any) -> bool:
    """Request the highest priority for the server; return whether it has it."""
    try:
        os.sched_setscheduler(client.info("server")["process_id"], os.SCHED_FIFO, os.sched_param(1))
    except (AttributeError, OSError):
        return False
    return True


async def flow(probe: Probe) -> None:
    """Measure enqueue and exchange."""
    storage, alice = probe.storage, Owner("alice")
    await probe.case("enqueue, 1 job", lambda: storage.enqueue(probe.jobs(1, BASE)))
    await probe.case("enqueue, 100 jobs", lambda: storage.enqueue(probe.jobs(100, BASE)))
    keyed = {"keys": (Key("k", 1000),), "rates": (RateKey("r", 1, 1000),), "fair_key": "tenant", "ttl": 3600 * SECOND}
    await probe.case(
        "enqueue, 100 jobs with keys, rates, tenants", lambda: storage.enqueue(probe.jobs(100, "k", **keyed))
    )
    leases: list[Lease] = []

    async def hold() -> None:
        leases[:] = await probe.claim(SETTLE_LIMIT, BASE, alice)

    async def drop() -> None:
        await probe.settle(alice, leases, Returned(b"null"))

    claims = ClaimRequest((BASE,), CLAIM_LIMIT)
    await probe.case(f"exchange, {CLAIM_LIMIT} claims", lambda: storage.exchange(alice, (), claims))
    await probe.case(f"exchange, {SETTLE_LIMIT} settlements", drop, hold)
    await probe.case(
        f"exchange, {SETTLE_LIMIT} settlements and {CLAIM_LIMIT} claims",
        lambda: probe.settle(alice, leases, Returned(b"null"), claims),
        hold,
    )
    await probe.case(
        f"exchange, {SETTLE_LIMIT} settlements that retry",
        lambda: probe.settle(alice, leases, Raised(ERROR)),
        hold,
    )

    async def ten() -> None:
        leases[:] = await probe.claim(10, BASE, alice)

    await probe.case(
        "exchange, 10 settlements and 10 claims",
        lambda: probe.settle(alice, leases, Returned(b"null"), ClaimRequest((BASE,), 10)),
        ten,
    )
    numbers = count()

    async def block() -> None:
        queue = f"blocked-{next(numbers)}"
        one = (Key("one"),)
        await probe.start(1, queue, alice, keys=one, stall=LONG)
        await probe.enqueue(SCAN_LIMIT, queue, keys=one)

    await probe.case(
        f"exchange, {SCAN_LIMIT} looks at jobs without a slot",
        lambda: storage.exchange(alice, (), ClaimRequest((f"blocked-{next(numbers) - 1}",), 1)),
        block,
    )


async def beats(probe: Probe, held: Sequence[tuple[Owner, list[Lease]]]) -> None:
    """Measure renew and reclaim."""
    storage = probe.storage
    owners = cycle(held)

    async def beat(**fields: Any) -> None:
        owner, leases = next(owners)
        renewals = tuple(LeaseRenewal(lease.ref, lease.fence, ran=SECOND, silent=SECOND, **fields) for lease in leases)
        pulse = await storage.renew(RenewRequest(owner, renewals, WorkerInfo(queues=("held",), concurrency=500)))
        if pulse.lost:
            raise RuntimeError("a renewal was refused")

    for owner, leases in held:
        await storage.renew(RenewRequest(owner, tuple(LeaseRenewal(lease.ref, lease.fence) for lease in leases)))
    await probe.case(f"renew, {RENEW_LIMIT} leases", beat)
    line = (NewLogLine("info", "a line of a log", {"k": "v"}),)
    await probe.case(f"renew, {RENEW_LIMIT} leases with progress", lambda: beat(sign=True, progress=0.5))
    await probe.case(f"renew, {RENEW_LIMIT} leases with a line each", lambda: beat(log=line))
    dead = Owner("dead")
    taken: list[Lease] = []

    async def hold() -> None:
        if taken:
            await probe.settle(REAPER, taken, Returned(b"null"))
        await probe.start(SWEEP_LIMIT, "dead", dead)

    async def reclaim() -> None:
        taken[:] = [stalled.lease for stalled in (await storage.reclaim(dead.id, REAPER)).stalled]
        if len(taken) != SWEEP_LIMIT:
            raise RuntimeError("there was to be more to reclaim")

    await probe.case(f"reclaim, {SWEEP_LIMIT} leases", reclaim, hold)


async def sweeps(probe: Probe) -> None:
    """Measure the sweep: with nothing to do, at the limit of each step, and of all of them."""
    storage, alice = probe.storage, Owner("alice")
    once = Policy(retry=Backoff(max_attempts=1), redrive=Redriving(3600 * SECOND))

    numbers = count()

    async def silent() -> None:
        await probe.sweep_all()
        await probe.start(SWEEP_LIMIT, "silent", alice)

    async def suspects() -> None:
        await silent()
        probe.clock.advance(25)
        await probe.sweep(suspected=SWEEP_LIMIT)
        probe.clock.advance(60)

    async def aged() -> None:
        await probe.enqueue(EXPIRE_LIMIT, "aged", ttl=SECOND)
        probe.clock.advance(2)

    async def later() -> None:
        await probe.enqueue(PROMOTE_LIMIT, "later", delay=SECOND)
        probe.clock.advance(2)

    async def halted() -> None:
        await storage.tune(Target("task", "noop"), Settings(paused=False))
        await probe.enqueue(2 * PROMOTE_LIMIT, "halted")
        await storage.tune(Target("task", "noop"), Settings(paused=True))
        while (await storage.survey(["halted"])).queues[0].parked < 2 * PROMOTE_LIMIT:
            await storage.exchange(alice, (), ClaimRequest(("halted",), 100))
        await storage.tune(Target("task", "noop"), Settings(paused=False))

    async def failed() -> None:
        queue = f"failed-{next(numbers)}"
        for _ in range(2):
            lost = await probe.start(SWEEP_LIMIT // 2, queue, alice, policy=once)
            await probe.settle(alice, lost, Raised(ERROR))
        probe.clock.advance(3601)

    async def kept() -> None:
        for _ in range(2):
            done = await probe.start(TRIM_LIMIT // 2, "kept", alice, policy=Policy(result_ttl=SECOND))
            await probe.settle(alice, done, Returned(b"null"))
        probe.clock.advance(2)

    async def held_for_a_time() -> None:
        throttles = (ThrottleKey(f"key-{number}", 1, SECOND) for number in range(WINDOW_LIMIT))
        for _ in range(WINDOW_LIMIT // TRIP):
            jobs = [job for _ in range(TRIP) for job in probe.jobs(1, "windows", throttle=next(throttles))]
            await storage.enqueue(jobs)
        probe.clock.advance(2)

    await probe.sweep_all()
    await probe.case("sweep, nothing to do", probe.sweep)
    await probe.case(
        f"sweep, {SWEEP_LIMIT} suspects",
        lambda: probe.sweep(suspected=SWEEP_LIMIT),
        lambda: _all(silent, lambda: _advance(probe, 25)),
    )
    await probe.case(
        f"sweep, {SWEEP_LIMIT} reclaimed",
        lambda: probe.sweep(reclaimed=SWEEP_LIMIT),
        suspects,
    )
    await probe.sweep_all()
    await probe.case(f"sweep, {EXPIRE_LIMIT} expired", lambda: probe.sweep(expired=EXPIRE_LIMIT), aged)
    await probe.case(f"sweep, {PROMOTE_LIMIT} promoted", lambda: probe.sweep(promoted=PROMOTE_LIMIT), later)
    await probe.case(f"sweep, {PROMOTE_LIMIT} unparked", lambda: probe.sweep(unparked=PROMOTE_LIMIT), halted)
    await probe.case(
        f"sweep, {SWEEP_LIMIT} redriven",
        lambda: probe.sweep(redriven=SWEEP_LIMIT),
        failed,
    )
    await probe.sweep_all()
    await probe.case(f"sweep, {TRIM_LIMIT} trimmed", lambda: probe.sweep(trimmed=TRIM_LIMIT), kept)
    await probe.sweep_all()
    await probe.case(f"sweep, {WINDOW_LIMIT} windows", probe.sweep, held_for_a_time)
    await probe.sweep_all()
    everything = (suspects, failed, kept, held_for_a_time, halted, aged, later)
    await probe.case("sweep, all of that at once", probe.sweep, lambda: _all(*everything))
    await probe.sweep_all()

    async def old_events() -> None:
        probe.clock.advance(8 * 86_400)

    await probe.case(f"sweep, {TRIM_LIMIT} events", lambda: probe.sweep(forgotten=TRIM_LIMIT), old_events)


async def hand(probe: Probe) -> None:
    """Measure revise, plan and tune."""
    storage = probe.storage
    refs: list[Ref] = []

    async def some() -> None:
        refs[:] = await probe.enqueue(100, "revised")

    await probe.case("revise, 100 cancelled", lambda: storage.revise([CancelJob(ref) for ref in refs]), some)
    await probe.case(
        "revise, 100 rescheduled", lambda: storage.revise([RescheduleJob(ref, delay=SECOND) for ref in refs]), some
    )
    schedules: list[Schedule] = []

    async def due() -> None:
        if not schedules:
            job = NewJob(queue="ticked", id="", task="noop", payload=PAYLOAD)
            schedules.extend(
                begun(Schedule(name=f"s-{number}", job=job, every=60 * SECOND, overlap="allow"), probe.clock.now())
                for number in range(DUE_LIMIT)
            )
            await storage.plan([PutSchedule(schedule) for schedule in schedules])
        probe.clock.advance(60)

    async def tick() -> None:
        [*now] = (await storage.survey()).schedules
        jobs = probe.jobs(len(now), "ticked")
        probe.client.slowlog_reset()
        planned = await storage.plan(
            [
                Tick(item.name, item.last_tick, item.next_tick or 0, (item.next_tick or 0) + 60 * SECOND, job)
                for item, job in zip(now, jobs, strict=True)
            ]
        )
        if any(result.verdict != "done" for result in planned):
            raise RuntimeError("a tick was refused")

    await probe.case(f"plan, {DUE_LIMIT} ticks with a job each", tick, due)
    pace = count(1)
    task = Target("task", "noop")
    await probe.case(
        "tune, the rate of a task", lambda: storage.tune(task, Settings(rate=RateKey("task:noop", next(pace))))
    )
    await storage.tune(task, Settings(rate=RateKey("task:noop", 0)))


async def reading(probe: Probe) -> None:
    """Measure get, find, survey and events."""
    storage = probe.storage
    refs = await probe.enqueue(100, "read")
    await probe.case("get, 100 jobs", lambda: storage.get(refs))
    await probe.case("find, 50 of all", lambda: storage.find(Query()))
    await probe.case("find, 50 that wait", lambda: storage.find(Query(queues=(BASE,), states=(State.WAITING,))))
    await probe.case("find, by a tag that none has", lambda: storage.find(Query(queues=("held",), tags=("no",))))
    await probe.case("survey", storage.survey)
    await probe.case("events, 100", lambda: storage.events(limit=100))


async def deploys(probe: Probe) -> None:
    """Measure claims in a queue where jobs of many tasks are parked until a worker knows these."""
    storage, old, new = probe.storage, Owner("old"), Owner("new")
    tasks = {f"package.module.task_{number}": 1 for number in range(1000)}
    others = {f"package.module.other_{number}": 1 for number in range(1000)}
    jobs = [
        NewJob(queue="deployed", id=f"{number}-{task}", task=task, payload=PAYLOAD)
        for number in range(3)
        for task in [*tasks][:UNKNOWN_TASKS]
    ]
    for start in range(0, len(jobs), TRIP):
        await storage.enqueue(jobs[start : start + TRIP])
    leases = await probe.claim(len(jobs), "deployed", old)
    for start in range(0, len(leases), SETTLE_LIMIT):
        await probe.settle(old, leases[start : start + SETTLE_LIMIT], Unknown())
    for title, known in (("none", others), ("all", tasks)):
        await probe.case(
            f"exchange, {UNKNOWN_TASKS} tasks parked, {title} known",
            partial(storage.exchange, new, (), ClaimRequest(("deployed",), CLAIM_LIMIT, tasks=known)),
        )


async def _all(*steps: Callable[[], Awaitable[object]]) -> None:
    for step in steps:
        await step()


async def _advance(probe: Probe, seconds: float) -> None:
    probe.clock.advance(seconds)


async def measured(url: str, *, waiting: int, active: int, calls: int) -> tuple[float, bool, list[Found]]:
    """Return the bytes of a waiting job, whether the server had the highest priority, and the times of each case."""
    probe = Probe(url, calls=calls)
    per_job, held = await filled(probe, waiting=waiting, active=active)
    settle_down(probe.client)
    alone = before_all_others(probe.client)
    await standing_still(probe)
    await flow(probe)
    await beats(probe, held)
    await hand(probe)
    await reading(probe)
    await sweeps(probe)
    await deploys(probe)
    await standing_still(probe)
    await probe.storage.close()
    return per_job, alone, probe.found


def lines_of(
    version: str, per_job: float, found: Sequence[Found], *, waiting: int, active: int, alone: bool
) -> Iterator[str]:
    """Yield the results, line by line."""
    on = machine()
    yield f"{on.python}, Redis {version}, {on.system}, {on.cores} cores, load {on.load:g}"
    yield f"{waiting:,} jobs of {len(PAYLOAD)} bytes wait, {active:,} are active; milliseconds on the server"
    yield "the server ran before all others" if alone else "the server ran among others: they are in the worst"
    yield ""
    yield f"{'':50} {'least':>8} {'middle':>8} {'longest':>8} {'worst':>8} {'scripts':>8} {'CPU':>8}"
    yield from map(line, found)
    yield ""
    beats = next(case for case in found if case.title.startswith("renew"))
    share = min(beats.costs) * active / RENEW_LIMIT / (BEAT * 1000)
    yield f"{'beats of the active, of one core':50} {100 * share:8.2f} %"
    yield f"{'memory of a waiting job':50} {per_job:8.0f} bytes"


def line(case: Found) -> str:
    """Return the row of a case."""
    all_ = case.times
    of_each = len(all_) / len(case.costs)
    times = f"{min(all_):8.2f} {median(all_):8.2f} {case.longest:8.2f} {max(all_):8.2f}"
    return f"{case.title:50} {times} {of_each:8.1f} {min(case.costs):8.2f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.redis_scripts", description=__doc__)
    parser.add_argument("--waiting", type=int, default=1_000_000, help="how many jobs wait (1,000,000)")
    parser.add_argument("--active", type=int, default=10_000, help="how many are active (10,000)")
    parser.add_argument("--calls", type=int, default=9, help="how many calls of each kind are timed (9)")
    args = parser.parse_args()
    with a_server() as server:
        if server is None:
            parser.exit(1, "redis-server is not on the PATH\n")
        per_job, alone, found = asyncio.run(
            measured(server.url, waiting=args.waiting, active=args.active, calls=args.calls)
        )
    print("\n".join(lines_of(server.version, per_job, found, waiting=args.waiting, active=args.active, alone=alone)))


if __name__ == "__main__":
    main()
