"""What a worker is measured at, in whatever process it lives."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from benchmarks.work import Work

SETTLING = 2.0
SETTLED_TRIP = 256


class Drained(Struct, frozen=True):
    """How long a worker took for the jobs that waited for it, and the processor time of its process for that."""

    jobs: int
    seconds: float
    cpu_seconds: float


async def drain(work: Work, *, concurrency: int, jobs: int) -> Drained:
    """Start a worker on jobs that wait, and measure until the storage knows the last of them as completed."""
    await work.app.opened()
    began, cpu_began = time.perf_counter(), time.process_time()
    async with work.app.worker(concurrency=concurrency):
        await work.until_completed(jobs)
        return Drained(jobs, time.perf_counter() - began, time.process_time() - cpu_began)


@asynccontextmanager
async def at_work(
    work: Work, *, concurrency: int, watched: bool
) -> AsyncGenerator[Callable[[int], Awaitable[Drained]]]:
    """Start a worker, let it settle, and yield what measures it at so many jobs that begin to wait all at once.

    `watched`: by a process of its own, that reads what the worker writes down and renews what it cannot renew itself.
    What that process takes is counted, where the system tells.
    """
    queue = work.app.queue("default")
    done = 0

    async def burst(jobs: int) -> Drained:
        nonlocal done
        await queue.pause()
        await work.fill(jobs, trip=SETTLED_TRIP)
        done += jobs
        began, cpu_began = time.perf_counter(), _with_children()
        await queue.resume()
        await work.until_none_left(done)
        return Drained(jobs, time.perf_counter() - began, _with_children() - cpu_began)

    async with work.app.worker(concurrency=concurrency, keeper="process" if watched else "thread"):
        # What a start costs, here and in the process beside, is no part of it.
        await asyncio.sleep(SETTLING)
        yield burst


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
