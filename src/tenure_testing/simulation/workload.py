"""The jobs of a simulated world: handlers that behave in many ways, and the journal of what they did."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any

from msgspec import structs

from tenure.app import Tenure
from tenure.client.job_template import EncodedCall
from tenure.clock import SECOND
from tenure.core.job import CollectKey, DebounceKey, MergeKey, NewJob, RateKey, Ref, ThrottleKey, UniqueKey
from tenure.core.schedule import Missed, Schedule
from tenure.handlers.context import current_job
from tenure.handlers.control import RateLimited, Reject, Snooze
from tenure.options import TTL, AutoRedrive, CallOptions, Collect, Retry, Stall

OTHER = "other"
"""The second queue."""

OVERRUNS = frozenset({"stubborn"})
"""Tasks whose handlers run beyond their limits for some time."""

BATCH = "batch"
"""The task whose handler gets the collected arguments of many calls."""

LONGEST_RUN = 40.0
"""The longest time in seconds that a handler takes, including its own limits."""

UNIQUE = (
    UniqueKey("u1"),
    UniqueKey("u2"),
    UniqueKey("q1", "queued"),
)
WINDOW = (UniqueKey("w1", window=3 * SECOND), UniqueKey("w2", window=15 * SECOND))
DEBOUNCE = (DebounceKey("d1", 4 * SECOND, 9 * SECOND), DebounceKey("d2", 2 * SECOND))
COLLECT = (CollectKey("c1", 4 * SECOND, 3), CollectKey("c2", 3 * SECOND, 20, 7 * SECOND))
MERGING: dict[str, Sequence[MergeKey]] = {
    "unique": UNIQUE,
    "window": WINDOW,
    "debounce": DEBOUNCE,
    "collect": COLLECT,
}
THROTTLE = (ThrottleKey("t1", 2, 10 * SECOND), ThrottleKey("t2", 1, 4 * SECOND))
RATES = (RateKey("r1", 2 * SECOND), RateKey("r2", SECOND, 3))
TENANTS = {"a": 1, "b": 3, "c": 1}
"""The options that calls use. There are few of each kind, so that calls share them. Each tenant has a weight."""

LONGEST_QUIET = 20.0
"""The longest time in seconds by which one call puts off another."""

LONGEST_GAP = 2.0
"""The seconds between two starts under the slowest of the rates."""


class PlannedFailure(Exception):
    """Raised by handlers that fail."""


@dataclass(eq=False)
class Entry:
    """One run of a handler: its job, its owner, its start and its end (virtual seconds)."""

    ref: Ref
    task: str
    run: int
    fence: int
    owner: str
    began: float
    ended: float = inf
    items: tuple[int, ...] | None = None
    """The collected arguments of the run, if its job collects calls."""


class HandlerJournal:
    """What handlers did, as they recorded it. It does not depend on the queue."""

    def __init__(self, time: Callable[[], float], note: Callable[..., None]) -> None:
        self.entries: list[Entry] = []
        self._time = time
        self._note = note

    def begin(self, owner: str, items: Sequence[int] | None = None) -> Entry:
        """Record that a handler begins. `items`: the arguments, if they were collected."""
        job = current_job()
        entry = Entry(Ref(job.queue, job.id), job.task, job.run, job.fence, owner, self._time())
        entry.items = None if items is None else tuple(items)
        self.entries.append(entry)
        self._note("began", job.id, job.run)
        return entry

    def end(self, entry: Entry) -> None:
        """Record that a handler ended."""
        if entry.ended == inf:
            entry.ended = self._time()
            self._note("ended", entry.ref.id, entry.run)

    def died(self, owner: str) -> None:
        """Record that a process died, and all its handlers with it."""
        for entry in self.entries:
            if entry.owner == owner and entry.ended == inf:
                entry.ended = self._time()


def define(app: Tenure, journal: HandlerJournal, rng: Random, here: Callable[[], str]) -> None:
    """Define the tasks. `here` returns the owner of the process that the caller runs on."""

    def task(**options: object) -> Callable[[Callable[[int], object]], None]:
        def make(handler: Callable[[int], object]) -> None:
            async def journaled(n: int) -> int:
                entry = journal.begin(here())
                try:
                    await handler(n)  # type: ignore[misc]
                finally:
                    journal.end(entry)
                return n

            app.task(name=handler.__name__, **options)(journaled)  # type: ignore[call-overload]

        return make

    few = Retry(max_attempts=3, base="1s", cap="8s")

    @task(retry=few)
    async def quick(n: int) -> None:
        await asyncio.sleep(rng.random() / 2)

    @task(retry=few, queue=OTHER)
    async def steady(n: int) -> None:
        await asyncio.sleep(rng.uniform(1, 8))

    @task(retry=few, on_worker_lost="fail")
    async def careful(n: int) -> None:
        await asyncio.sleep(rng.uniform(1, 8))

    @task(retry=few, stall=Stall(max_count=3))
    async def slow(n: int) -> None:
        await asyncio.sleep(rng.uniform(20, 35))

    @task(retry=few, stall=Stall(max_count=2), on_unreachable="stop")
    async def exclusive(n: int) -> None:
        await asyncio.sleep(rng.uniform(5, 25))

    @task(retry=Retry(max_attempts=2, base="1s"))
    async def broken(n: int) -> None:
        await asyncio.sleep(rng.random())
        raise PlannedFailure("as always")

    @task(retry=few, queue=OTHER)
    async def flaky(n: int) -> None:
        if current_job().attempt < 3:
            raise PlannedFailure("not yet")

    @task(retry=Retry(max_attempts=3, base="1s"), timeout="6s")
    async def stubborn(n: int) -> None:
        until = asyncio.get_running_loop().time() + rng.uniform(4, 18)
        while (left := until - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                if rng.random() < 0.3:
                    raise

    @task(retry=few, timeout="5s")
    async def hung(n: int) -> None:
        if current_job().attempt == 1:
            await asyncio.sleep(LONGEST_RUN)

    @task(retry=few, heartbeat_timeout="6s", stall=Stall(max_count=2))
    async def silent(n: int) -> None:
        await asyncio.sleep(LONGEST_RUN if current_job().run == 1 else 1)

    @task(retry=few, heartbeat_timeout="6s")
    async def chatty(n: int) -> None:
        for part in range(8):
            current_job().progress(part / 8, "on the way")
            current_job().log.info("part", number=part)
            await asyncio.sleep(2)

    @task(retry=few, singleton=True)
    async def lonely(n: int) -> None:
        await asyncio.sleep(rng.uniform(0, 4))

    @task(retry=Retry(max_attempts=2, base="1s"), auto_redrive=AutoRedrive("5s", times=1))
    async def ruled(n: int) -> None:
        raise PlannedFailure("as always, and once more by a rule")

    @task(retry=few)
    async def choosy(n: int) -> None:
        if n % 2:
            raise Reject("never")
        if current_job().run == 1:
            raise RateLimited(2) if n % 4 else Snooze(2)

    @app.task(name=BATCH, retry=few, collect=Collect(delay="4s", max_size=3))
    async def batch(items: list[int]) -> None:
        entry = journal.begin(here(), items)
        try:
            await asyncio.sleep(rng.random())
            if current_job().attempt == 1 and len(items) % 2:
                raise PlannedFailure("once, with all of them")
        finally:
            journal.end(entry)


def drawn(app: Tenure, rng: Random, number: int, *, plain: bool = False) -> EncodedCall[object]:
    """Return a call of a random task with random options, or without options if `plain`."""
    task = app.tasks[rng.choice([name for name in app.tasks if name != BATCH])]
    options = CallOptions(id=f"{number:02d}")
    if plain:
        return task.options(**options).call(number)
    delay = rng.uniform(1, 30) if rng.random() < 0.2 else 0.0
    if delay:
        options["delay"] = delay
    if rng.random() < 0.2:
        options["priority"] = rng.randint(-3, 3)
    if rng.random() < 0.15:
        options["stall"] = Stall(max_count=rng.randint(0, 3))
    if rng.random() < 0.15:
        options["ttl"] = TTL(delay + rng.randint(1, 60), on_expire=rng.choice(("fail", "discard")))
    if rng.random() < 0.25:
        options["concurrency_key"] = rng.choice(("red", "green"))
        options["concurrency_limit"] = rng.randint(1, 2)
    if rng.random() < 0.1:
        options["result_ttl"] = rng.uniform(1, 20)
    return task.options(**options).call(number)


def featured(
    app: Tenure, call: EncodedCall[Any], features: Sequence[str], number: int, rng: Random
) -> EncodedCall[Any]:
    """Return a call that uses some of the features as well. A collected call becomes a call of the task `BATCH`."""
    asked = [feature for feature in features if feature in MERGING]
    if asked and rng.random() < 0.7:
        key = rng.choice(MERGING[rng.choice(asked)])
        if isinstance(key, CollectKey):
            call = EncodedCall(
                app.tasks[BATCH].signature, structs.replace(app.tasks[BATCH].call(number).job, id=call.job.id)
            )
        call = EncodedCall(call.signature, structs.replace(call.job, merge=key))
        if isinstance(key, DebounceKey):
            # The key decides when the job starts.
            call = EncodedCall(call.signature, structs.replace(call.job, delay=0))
    return EncodedCall(call.signature, _ordered(call.job, features, rng))


def _ordered(new: NewJob, features: Sequence[str], rng: Random) -> NewJob:
    """Return a new job that perhaps has a throttle, rates, a fair key, or newest first."""
    if "throttle" in features and rng.random() < 0.3:
        new = structs.replace(new, throttle=rng.choice(THROTTLE))
    if "rates" in features and rng.random() < 0.6:
        new = structs.replace(new, rates=tuple(rate for rate in RATES if rng.random() < 0.6))
    if "fair" in features and rng.random() < 0.8:
        tenant = rng.choice(list(TENANTS))
        new = structs.replace(new, fair_key=tenant, weight=TENANTS[tenant])
    if "lifo" in features and rng.random() < 0.3:
        new = structs.replace(new, lifo=True)
    return new


def scheduled(app: Tenure, rng: Random, number: int, now: int, *, exact: bool) -> Schedule:
    """Return a schedule of a random task. `exact`: it may catch up every missed tick."""
    tasks = [name for name in app.tasks if name in ("quick", "steady", "flaky", "broken", "careful")]
    call = app.tasks[rng.choice(tasks or list(app.tasks))].call(1_000 + number)
    every = rng.choice((5, 8, 13)) * SECOND
    missed: Missed = rng.choice(("skip", "latest", "all", "all"))
    most = None if missed != "all" or exact else rng.randint(1, 3)
    return Schedule(
        name=f"s{number}",
        job=structs.replace(call.job, id=""),
        every=every,
        missed=missed,
        most=most,
        overlap=rng.choice(("skip", "queue_one", "allow", "allow")),
        grace=rng.choice((3, 10)) * SECOND,
        created=now,
        last_tick=now,
        next_tick=now - now % every + every,
    )
