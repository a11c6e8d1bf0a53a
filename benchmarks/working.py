"""What a worker is measured at, in whatever process it lives."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from benchmarks.work import Work
from tenure.core.lifecycle import State
from tenure.core.retention import KEPT

SETTLING = 2.0
SETTLED_TRIP = 256


class Drained(Struct, frozen=True):
    """How long a worker took for the jobs that waited for it, and the processor time of its process for that."""

    jobs: int
    seconds: float
    cpu_seconds: float


class Turn(Struct, frozen=True):
    """What as many jobs took in a storage that forgets a job for each one it completes, and in a fresh one."""

    steady: Drained
    fresh: Drained


async def drain(work: Work, *, concurrency: int, jobs: int) -> Drained:
    """Start a worker on jobs that wait, and measure until the storage knows the last of them as completed."""
    await work.app.opened()
    began, cpu_began = time.perf_counter(), time.process_time()
    async with work.app.worker(concurrency=concurrency):
        await work.until_completed(jobs)
        return Drained(jobs, time.perf_counter() - began, time.process_time() - cpu_began)


async def in_steady_state(
    steady: Work, fresh: Sequence[Work], concurrency: int, *, jobs: int, turns: int
) -> list[Turn]:
    """Have a worker of a storage that keeps as many completed jobs as it may, and one of each fresh storage in turn, do
    so many jobs, so many times each; whatever else goes on here meets both.

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
                    took = {one: await _burst(one, jobs) for one in (sooner, later)}
                    found.append(Turn(took[steady], took[work]))
        if not most <= (kept := await steady.completed()) <= 1.2 * most:
            raise RuntimeError(f"{kept} completed jobs are kept of {steady.ran}, and {most} may be")
    return found


async def _burst(work: Work, jobs: int) -> Drained:
    """Measure a worker at so many jobs that begin to wait all at once."""
    queue, after = work.app.queue("default"), work.ran + jobs
    await queue.pause()
    await work.fill(jobs, trip=SETTLED_TRIP)
    began, cpu_began = time.perf_counter(), _with_children()
    await queue.resume()
    await work.until_none_left(after)
    return Drained(jobs, time.perf_counter() - began, _with_children() - cpu_began)


def _with_children() -> float:
    """Return the processor time of this process and of those children that live."""
    seconds = time.process_time()
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            # The first figure of each thread: nanoseconds on a processor.
            threads = Path(f"/proc/{child}/task").glob("*/schedstat")
            seconds += sum(int(thread.read_text().split()[0]) for thread in threads) / 1_000_000_000
    return seconds


async def idle(work: Work, *, seconds: float) -> float:
    """Return how many seconds of processor time an idle worker takes in one second."""
    async with work.app.worker():
        # What a start costs is no part of it.
        await asyncio.sleep(0.5)
        began, cpu_began = time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        return (time.process_time() - cpu_began) / (time.perf_counter() - began)
