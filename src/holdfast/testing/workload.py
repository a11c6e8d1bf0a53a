"""The jobs of a simulated world: handlers of every temper, and the journal of what they really did."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from random import Random

from holdfast.app import Holdfast
from holdfast.context import current_job
from holdfast.control import Reject, Snooze
from holdfast.core.job import Ref
from holdfast.options import TTL, AutoRedrive, CallOptions, Retry, Stall
from holdfast.task import Call

OTHER = "other"
"""The second queue."""

OVERRUNS = frozenset({"stubborn"})
"""Tasks whose handlers go on beyond their limits for a while."""

LONGEST_RUN = 40.0
"""No handler takes longer than so many seconds, its own limits included."""


class Misfortune(Exception):
    """What handlers raise that fail."""


@dataclass(eq=False)
class Entry:
    """One handler at work: which run, of which owner, from when to when (virtual seconds)."""

    ref: Ref
    task: str
    run: int
    fence: int
    owner: str
    began: float
    ended: float = inf


class Journal:
    """What handlers did, written by themselves: it knows nothing of the queue."""

    def __init__(self, time: Callable[[], float], note: Callable[..., None]) -> None:
        self.entries: list[Entry] = []
        self._time = time
        self._note = note

    def begin(self, owner: str) -> Entry:
        """Write down that a handler begins."""
        job = current_job()
        entry = Entry(Ref(job.queue, job.id), job.task, job.run, job.fence, owner, self._time())
        self.entries.append(entry)
        self._note("began", job.id, job.run)
        return entry

    def end(self, entry: Entry) -> None:
        """Write down that it ended."""
        if entry.ended == inf:
            entry.ended = self._time()
            self._note("ended", entry.ref.id, entry.run)

    def died(self, owner: str) -> None:
        """Write down that a process died, and all its handlers with it."""
        for entry in self.entries:
            if entry.owner == owner and entry.ended == inf:
                entry.ended = self._time()


def define(app: Holdfast, journal: Journal, rng: Random, here: Callable[[], str]) -> None:
    """Define the tasks. `here` says on which owner's process the caller runs."""

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
        raise Misfortune("as always")

    @task(retry=few, queue=OTHER)
    async def flaky(n: int) -> None:
        if current_job().attempt < 3:
            raise Misfortune("not yet")

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
        raise Misfortune("as always, and once more by a rule")

    @task(retry=few)
    async def choosy(n: int) -> None:
        if n % 2:
            raise Reject("never")
        if current_job().run == 1:
            raise Snooze(2)


def drawn(app: Holdfast, rng: Random, number: int) -> Call[object]:
    """Return a call of any task, with options drawn from the dice."""
    task = app.tasks[rng.choice(list(app.tasks))]
    options = CallOptions(id=f"{number:02d}")
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
