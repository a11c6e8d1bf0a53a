"""What is measured. One round takes each cell once, the columns of a row right after one another."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Literal

from msgspec import Struct

from benchmarks.child import Drain, Idle, Stamp, started
from benchmarks.floors import inserts_a_second
from benchmarks.work import Work
from benchmarks.working import Drained, drain

Column = Literal["memory", "sqlite", "floor"]

CALLERS = 50
TRIP = 256
"""How many calls one `enqueue_many` takes here; as many operations as SQLite commits at once."""


class Sample(Struct, frozen=True):
    """What one round found for one place in the table: one figure, or one for each job."""

    row: str
    column: Column
    values: list[float]


async def one_round(folder: Path) -> AsyncGenerator[Sample]:
    """Measure everything once; the folder is empty and takes the files."""
    async for sample in _enqueueing(folder):
        yield sample
    async for sample in _processing(folder):
        yield sample
    async for sample in _waiting(folder):
        yield sample
    async for sample in _idling(folder):
        yield sample


async def _enqueueing(folder: Path) -> AsyncGenerator[Sample]:
    for row, jobs, callers, trip in (
        ("enqueue_one", 1_500, 1, 1),
        ("enqueue_callers", 5_000, CALLERS, 1),
        ("enqueue_many", 20 * TRIP, 1, TRIP),
    ):
        yield Sample(row, "memory", [await _enqueue("memory://", jobs, callers, trip)])
        yield Sample(row, "sqlite", [await _enqueue(_file(folder, row), jobs, callers, trip)])
        yield _floor(folder, row, rows=jobs, batch=max(callers, trip))


async def _enqueue(url: str, jobs: int, callers: int, trip: int) -> float:
    work = Work(url)
    async with work.app:
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(work.fill(jobs // callers, trip=trip))
        return jobs / (time.perf_counter() - began)


async def _processing(folder: Path) -> AsyncGenerator[Sample]:
    for concurrency, jobs in ((10, 4_000), (100, 6_000)):
        for sample in _drained("memory", concurrency, await _drain_here(concurrency, jobs)):
            yield sample
        for sample in _drained("sqlite", concurrency, await _drain_there(folder, concurrency, jobs)):
            yield sample
        yield _floor(folder, f"process_{concurrency}", rows=jobs, batch=concurrency)


def _drained(column: Column, concurrency: int, drained: Drained) -> list[Sample]:
    return [
        Sample(f"process_{concurrency}", column, [drained.jobs / drained.seconds]),
        Sample(f"cpu_{concurrency}", column, [1000 * drained.cpu_seconds / drained.jobs]),
    ]


async def _drain_here(concurrency: int, jobs: int) -> Drained:
    work = Work("memory://")
    await work.fill(jobs, trip=TRIP)
    return await drain(work, concurrency=concurrency, jobs=jobs)


async def _drain_there(folder: Path, concurrency: int, jobs: int) -> Drained:
    url = _file(folder, f"process_{concurrency}")
    work = Work(url)
    async with work.app:
        await work.fill(jobs, trip=TRIP)
    async with started(Drain(url, concurrency, jobs)) as child:
        return await child.answer(Drained)


async def _waiting(folder: Path) -> AsyncGenerator[Sample]:
    yield Sample("wait_here", "memory", await _wait_here("memory://", 200))
    yield Sample("wait_here", "sqlite", await _wait_here(_file(folder, "wait_here"), 200))
    floor = inserts_a_second(folder / "wait_here-floor.db", rows=400, batch=1)
    # Enqueue and claim are a commit each, one after the other.
    yield Sample("wait_here", "floor", [2000 / floor])
    # So soon after the last job the worker still looks often; after half a second it looks as seldom as it ever does.
    yield Sample("wait_there", "sqlite", await _wait_there(_file(folder, "wait_there"), 100, rest=0.02))
    yield Sample("wait_quiet", "sqlite", await _wait_there(_file(folder, "wait_quiet"), 12, rest=0.5))


async def _wait_here(url: str, jobs: int) -> list[float]:
    work = Work(url)
    async with work.app, work.app.worker():
        for number in range(jobs):
            await _rest(0.004)
            await work.stamp.enqueue(time.monotonic_ns())
            await work.until_ran(number + 1)
    return _milliseconds(work.waited_ns)


async def _wait_there(url: str, jobs: int, *, rest: float) -> list[float]:
    work = Work(url)
    async with work.app, started(Stamp(url, jobs)) as child:
        await child.answer(bool)
        for _ in range(jobs):
            await _rest(rest)
            await work.stamp.enqueue(time.monotonic_ns())
        return _milliseconds(await child.answer(list[int]))


async def _idling(folder: Path) -> AsyncGenerator[Sample]:
    urls: dict[Column, str] = {"memory": "memory://", "sqlite": _file(folder, "idle")}
    # Each counts its own processor time, so they may be idle together.
    shares = await asyncio.gather(*map(_idle, urls.values()))
    for column, share in zip(urls, shares, strict=True):
        yield Sample("idle", column, [100 * share])


async def _idle(url: str) -> float:
    async with started(Idle(url, seconds=5.0)) as child:
        return await child.answer(float)


def _floor(folder: Path, row: str, *, rows: int, batch: int) -> Sample:
    return Sample(row, "floor", [inserts_a_second(folder / f"{row}-floor.db", rows=rows, batch=batch)])


def _file(folder: Path, name: str) -> str:
    return f"sqlite:///{folder / name}.db"


async def _rest(seconds: float) -> None:
    # A random length, so as not to keep step with anybody's polling.
    await asyncio.sleep(seconds * random.uniform(0.7, 1.3))


def _milliseconds(waited_ns: list[int]) -> list[float]:
    return [waited / 1_000_000 for waited in waited_ns]
