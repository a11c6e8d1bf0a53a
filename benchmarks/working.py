"""The measurements of a worker, in any process."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from benchmarks.work import REPORTS, Work
from tenure.core.lifecycle import State
from tenure.core.retention import KEPT

SETTLING = 2.0
SETTLED_TRIP = 256


class Drained(Struct, frozen=True):
    """How long a worker took for its waiting jobs, and the processor time of its process for that."""

    jobs: int
    seconds: float
    cpu_seconds: float


class Turn(Struct, frozen=True):
    """The times of equally many jobs in a storage that deletes a job for each one it completes, and in a fresh one."""

    steady: Drained
    fresh: Drained


class Pair(Struct, frozen=True):
    """The time for the same jobs without and with a load on the worker."""

    without: Drained
    loaded: Drained


async def drain(work: Work, *, concurrency: int, jobs: int) -> Drained:
    """Start a worker with waiting jobs, and measure until the storage knows the last of them as completed."""
    await work.app.opened()
    began, cpu_began = time.perf_counter(), time.process_time()
    async with work.app.worker(concurrency=concurrency):
        await work.until_completed(jobs)
        return Drained(jobs, time.perf_counter() - began, time.process_time() - cpu_began)


async def in_steady_state(
    steady: Work, fresh: Sequence[Work], concurrency: int, *, jobs: int, turns: int
) -> list[Turn]:
    """Have a worker of a storage that keeps its maximum of completed jobs, and one of each fresh storage in turn, do
    this many jobs, this many times each; other load on the machine affects both.

    Raises:
        RuntimeError: the first storage keeps more completed jobs than it may.
    """
    found: list[Turn] = []
    most = KEPT[State.COMPLETED].count or 0
    async with steady.app.worker(concurrency=concurrency):
        while steady.ran < 1.2 * most:
            await _burst(steady, jobs)
        for work in fresh:
            async with work.app, work.app.worker(concurrency=concurrency):
                await asyncio.sleep(SETTLING)
                await _burst(work, jobs)
                for number in range(turns):
                    sooner, later = (work, steady) if number % 2 else (steady, work)
                    took = {item: await _burst(item, jobs) for item in (sooner, later)}
                    found.append(Turn(took[steady], took[work]))
        if not most <= (kept := await steady.completed()) <= 1.2 * most:
            raise RuntimeError(f"{kept} completed jobs are kept of {steady.ran}, and {most} may be")
    return found


async def beating(work: Work, *, runs: int, seconds: float) -> AsyncGenerator[bool | float]:
    """Hold this many runs that do nothing. Yield True when all have begun, then the processor time of a second."""
    await work.app.enqueue_many(work.reporter.call() for _ in range(runs))
    async with work.app.worker(queues=[REPORTS], concurrency=runs):
        while work.reporters < runs:  # noqa: ASYNC110 - nothing notifies
            await asyncio.sleep(0.1)
        # The runs sleep a second at a time, which costs as much as everything else here.
        work.reporters_rest = True
        await asyncio.sleep(SETTLING)
        yield True
        began, cpu_began = time.perf_counter(), _with_children()
        await asyncio.sleep(seconds)
        yield (_with_children() - cpu_began) / (time.perf_counter() - began)
        work.reporters_end.set()


async def at_full_load(work: Work, *, jobs: int, seconds: Sequence[float]) -> AsyncGenerator[float]:
    """Do bursts of no-op jobs, the next one enqueued while one runs. Yield jobs a second for each number of seconds."""
    async with work.app.worker(concurrency=100):
        await work.fill(jobs, trip=SETTLED_TRIP)
        wanted = 0
        for length in seconds:
            began, before = time.perf_counter(), work.ran
            while time.perf_counter() - began < length:
                wanted += jobs
                await asyncio.gather(work.fill(jobs, trip=SETTLED_TRIP), work.until_ran(wanted))
            yield (work.ran - before) / (time.perf_counter() - began)


async def while_reporting(work: Work, *, reporters: int, jobs: int, turns: int) -> list[Pair]:
    """Let a worker complete no-op jobs, in every other turn with long runs that report progress each second."""

    def report(on: bool) -> None:
        work.reporting = on

    await work.app.enqueue_many(work.reporter.call() for _ in range(reporters))
    async with work.app.worker(queues=["default", REPORTS], concurrency=reporters + 100):
        while work.reporters < reporters:  # noqa: ASYNC110 - nothing notifies
            await asyncio.sleep(0.1)
        found = await _pairs(work, report, jobs=jobs, turns=turns, settling=SETTLING)
        work.reporters_end.set()
        return found


async def while_logging(work: Work, *, jobs: int, turns: int) -> list[Pair]:
    """Let a worker complete no-op jobs, in every other turn with log records of their starts and ends."""
    logger = logging.getLogger("tenure.jobs")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    async with work.app.worker(concurrency=100):
        return await _pairs(
            work,
            lambda on: logger.setLevel(logging.INFO if on else logging.WARNING),
            jobs=jobs,
            turns=turns,
            settling=0.1,
        )


async def _pairs(work: Work, switch: Callable[[bool], None], *, jobs: int, turns: int, settling: float) -> list[Pair]:
    """Measure bursts with the load off and on, in an order that changes with each turn."""
    found: list[Pair] = []
    await _alone(work, jobs)
    for number in range(turns):
        took: dict[bool, Drained] = {}
        for on in (False, True) if number % 2 else (True, False):
            switch(on)
            await asyncio.sleep(settling)
            took[on] = await _alone(work, jobs)
        found.append(Pair(took[False], took[True]))
    return found


async def _alone(work: Work, jobs: int) -> Drained:
    """Measure a worker at no-op jobs that begin to wait at once, with its other runs."""
    queue, after = work.app.queue("default"), work.ran + jobs
    await queue.pause()
    await work.fill(jobs, trip=SETTLED_TRIP)
    began, cpu_began = time.perf_counter(), time.process_time()
    await queue.resume()
    await work.until_ran(after)
    return Drained(jobs, time.perf_counter() - began, time.process_time() - cpu_began)


async def _burst(work: Work, jobs: int) -> Drained:
    """Measure a worker at this many jobs that begin to wait all at once."""
    queue, after = work.app.queue("default"), work.ran + jobs
    await queue.pause()
    await work.fill(jobs, trip=SETTLED_TRIP)
    began, cpu_began = time.perf_counter(), _with_children()
    await queue.resume()
    await work.until_none_left(after)
    return Drained(jobs, time.perf_counter() - began, _with_children() - cpu_began)


def _with_children() -> float:
    """Return the processor time of this process and of its live children."""
    seconds = time.process_time()
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            # The first figure of each thread: nanoseconds on a processor.
            threads = Path(f"/proc/{child}/task").glob("*/schedstat")
            seconds += sum(int(thread.read_text().split()[0]) for thread in threads) / 1_000_000_000
    return seconds


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and its children, also of those that have ended."""
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()
    ]
    ticks = 0
    for process, fields in ((pid, slice(11, 15)), *((child, slice(11, 13)) for child in children)):
        with suppress(OSError):
            stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, stat[fields]))
    return ticks / os.sysconf("SC_CLK_TCK")


async def idle(work: Work, *, seconds: float) -> float:
    """Return how many seconds of processor time an idle worker takes in one second."""
    async with work.app.worker():
        # The cost of a start is not part of it.
        await asyncio.sleep(0.5)
        began, cpu_began = time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        return (time.process_time() - cpu_began) / (time.perf_counter() - began)
