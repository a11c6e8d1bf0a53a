"""The measurements. One round makes each of them once, the columns of a row right after one another."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from statistics import median
from typing import Literal

from msgspec import Struct

from benchmarks.child import Beat, Drain, Idle, Load, Log, Report, Stamp, Steady, started
from benchmarks.floors import calls_a_second, inserts_a_second
from benchmarks.work import Work
from benchmarks.working import Drained, Pair, Turn, cpu_seconds, drain
from tenure.testing import JobTester
from tests.postgres_servers import PostgresServer

Column = Literal["memory", "sqlite", "sqlite_floor", "redis", "redis_floor", "postgres"]

CALLERS = 50
TRIP = 256
"""How many calls one `enqueue_many` has here; as many operations as SQLite commits at once."""


BURST = 1_000
REPORTERS, REPORTING_BURST = 10_000, 8_000
BEATING, BEATS = 10_000, 30.0
"""How many active jobs' heartbeats are measured, and for how many seconds."""

FRESH, TURNS = 3, 6
"""How many fresh storages are measured in comparison with one in steady state, and how often each."""


class Sample(Struct, frozen=True):
    """The result of one round for one place in the table: one figure, or one for each job."""

    row: str
    column: Column
    values: list[float]


class Places(Struct, frozen=True):
    """Where a round stores its jobs: an empty folder for files, and the available servers."""

    folder: Path
    server: str | None = None
    postgres: PostgresServer | None = None

    def file(self, name: str) -> str:
        """Return the address of a SQLite file."""
        return f"sqlite:///{self.folder / name}.db"

    def shared(self, name: str) -> dict[Column, str]:
        """Return the addresses of the storages that other processes can see, each empty."""
        urls: dict[Column, str] = {"sqlite": self.file(name)}
        if self.server is not None:
            urls["redis"] = f"{self.server}?namespace={name}-{self.folder.name}"
        if self.postgres is not None:
            schema = f"{name}_{self.folder.name}".lower().replace("-", "_")
            urls["postgres"] = f"{self.postgres.url}?schema={schema}"
        return urls

    def every(self, name: str) -> dict[Column, str]:
        """Return the addresses of all storages, each empty."""
        return {"memory": "memory://", **self.shared(name)}


async def one_round(places: Places) -> AsyncGenerator[Sample]:
    """Measure everything once."""
    for part in (_enqueueing, _processing, _steadily, _loaded, _waiting, _idling, _beating, _under_snapshot, _testing):
        async for sample in part(places):
            yield sample


async def _enqueueing(places: Places) -> AsyncGenerator[Sample]:
    for row, jobs, callers, trip in (
        ("enqueue_one", 1_500, 1, 1),
        ("enqueue_callers", 5_000, CALLERS, 1),
        ("enqueue_many", 20 * TRIP, 1, TRIP),
    ):
        for column, url in places.every(row).items():
            yield Sample(row, column, [await _enqueue(url, jobs, callers, trip)])
        async for sample in _floors(places, row, jobs=jobs, batch=max(callers, trip)):
            yield sample


async def _enqueue(url: str, jobs: int, callers: int, trip: int) -> float:
    work = Work(url)
    async with work.app:
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(work.fill(jobs // callers, trip=trip))
        return jobs / (time.perf_counter() - began)


async def _processing(places: Places) -> AsyncGenerator[Sample]:
    for concurrency, jobs in ((10, 4_000), (100, 6_000)):
        for sample in _drained("memory", concurrency, await _drain_here(concurrency, jobs)):
            yield sample
        for column, url in places.shared(f"process_{concurrency}").items():
            for sample in _drained(column, concurrency, await _drain_there(url, concurrency, jobs)):
                yield sample
        async for sample in _floors(places, f"process_{concurrency}", jobs=jobs, batch=concurrency):
            yield sample


def _drained(column: Column, concurrency: int, drained: Drained) -> list[Sample]:
    return [
        Sample(f"process_{concurrency}", column, [drained.jobs / drained.seconds]),
        Sample(f"cpu_{concurrency}", column, [1000 * drained.cpu_seconds / drained.jobs]),
    ]


async def _drain_here(concurrency: int, jobs: int) -> Drained:
    work = Work("memory://")
    await work.fill(jobs, trip=TRIP)
    return await drain(work, concurrency=concurrency, jobs=jobs)


async def _drain_there(url: str, concurrency: int, jobs: int) -> Drained:
    work = Work(url)
    async with work.app:
        await work.fill(jobs, trip=TRIP)
    async with started(Drain(url, concurrency, jobs)) as child:
        return await child.answer(Drained)


async def _steadily(places: Places) -> AsyncGenerator[Sample]:
    """Measure a storage that keeps its maximum of completed jobs, so that each new one deletes one, and fresh ones."""
    fresh = [places.shared(f"fresh-{number}") for number in range(FRESH)]
    for column, full in places.shared("steady").items():
        order = Steady(full, [urls[column] for urls in fresh], 100, BURST, TURNS)
        async with started(order) as child:
            turns = await child.answer(list[Turn])
        yield Sample("steady", column, [100 * median(turn.fresh.seconds / turn.steady.seconds for turn in turns)])
        cpu = median(turn.steady.cpu_seconds / turn.fresh.cpu_seconds for turn in turns)
        yield Sample("steady_cpu", column, [100 * cpu])


async def _loaded(places: Places) -> AsyncGenerator[Sample]:
    """Measure no-op jobs with and without runs that report their progress, and with and without their log records."""
    for column, url in places.every("reporting").items():
        async with started(Report(url, REPORTERS, REPORTING_BURST, TURNS)) as child:
            yield Sample("reporting", column, [_share(await child.answer(list[Pair]))])
    for column, url in places.every("logging").items():
        async with started(Log(url, 2 * BURST, TURNS)) as child:
            yield Sample("logging", column, [_share(await child.answer(list[Pair]))])


def _share(pairs: list[Pair]) -> float:
    return 100 * median(pair.without.seconds / pair.loaded.seconds for pair in pairs)


async def _waiting(places: Places) -> AsyncGenerator[Sample]:
    for column, url in places.every("wait_here").items():
        yield Sample("wait_here", column, await _wait_here(url, 200))
    # Enqueue and claim are a commit, or a round trip, each, one after the other.
    async for floor in _floors(places, "wait_here", jobs=400, batch=1):
        yield Sample("wait_here", floor.column, [2000 / floor.values[0]])
    # So soon after the last job a worker on SQLite still polls often; after half a second as rarely as it ever does.
    for row, jobs, rest in (("wait_there", 100, 0.02), ("wait_quiet", 12, 0.5)):
        for column, url in places.shared(row).items():
            yield Sample(row, column, await _wait_there(url, jobs, rest=rest))


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


async def _idling(places: Places) -> AsyncGenerator[Sample]:
    urls = places.every("idle")
    # Each counts its own processor time, so they may be idle at the same time.
    shares = await asyncio.gather(*map(_idle, urls.values()))
    for column, share in zip(urls, shares, strict=True):
        yield Sample("idle", column, [100 * share])


async def _idle(url: str) -> float:
    async with started(Idle(url, seconds=5.0)) as child:
        return await child.answer(float)


async def _beating(places: Places) -> AsyncGenerator[Sample]:
    """Measure the cost of the heartbeats of active jobs to a PostgreSQL and to its client, separately."""
    server = places.postgres
    if server is None:
        return
    async with started(Beat(places.shared("beating")["postgres"], BEATING, BEATS)) as child:
        await child.answer(bool)
        began, cpu_began = time.perf_counter(), cpu_seconds(server.pid)
        share = await child.answer(float)
        used = (cpu_seconds(server.pid) - cpu_began) / (time.perf_counter() - began)
    yield Sample("beats_client", "postgres", [100 * share])
    yield Sample("beats_server", "postgres", [100 * used])


async def _under_snapshot(places: Places) -> AsyncGenerator[Sample]:
    """Measure no-op jobs before a snapshot is held, and again when it has been held for a minute at full load."""
    server = places.postgres
    if server is None:
        return
    async with started(Load(places.shared("snapshot")["postgres"], BURST, [10.0, 20.0, 60.0, 20.0])) as child:
        _, before = [await child.answer(float) for _ in range(2)]
        with server.connect() as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT txid_current_snapshot()")
            _, held = [await child.answer(float) for _ in range(2)]
    yield Sample("snapshot", "postgres", [100 * held / before])


async def _testing(places: Places) -> AsyncGenerator[Sample]:
    """Measure the testing kit, which has its own storage in memory."""
    work = Work(places.file("never-opened"))
    with JobTester(work.app) as jobs:
        began = time.perf_counter()
        await work.fill(1_000, trip=1)
        await jobs.drain()
        yield Sample("kit_drain", "memory", [time.perf_counter() - began])
    work.app.cron("* * * * *", name="minutely")(_tick)
    with JobTester(work.app) as jobs:
        began = time.perf_counter()
        await jobs.travel("30d")
        yield Sample("kit_cron", "memory", [time.perf_counter() - began])


async def _tick() -> None:
    """Do nothing, once a minute."""


async def _floors(places: Places, row: str, *, jobs: int, batch: int) -> AsyncGenerator[Sample]:
    file = places.folder / f"{row}-floor.db"
    yield Sample(row, "sqlite_floor", [inserts_a_second(file, rows=jobs, batch=batch)])
    if places.server is not None:
        yield Sample(row, "redis_floor", [await calls_a_second(places.server, calls=jobs, batch=batch)])


async def _rest(seconds: float) -> None:
    # A random length, so as not to keep step with the polling of a worker.
    await asyncio.sleep(seconds * random.uniform(0.7, 1.3))


def _milliseconds(waited_ns: list[int]) -> list[float]:
    return [waited / 1_000_000 for waited in waited_ns]
