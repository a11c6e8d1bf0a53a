"""Measures how the cost of a job grows with the other contents of a storage: `make bench-growth`.

Along each axis several places, each a SQLite file or a Redis of its own, hold more and more: waiting jobs, keys or
tenants among them, queues. Exchanges that settle ten runs and claim ten are made in all of them by turns, then as many
jobs are enqueued as were settled, so a disturbance of one place disturbs the others, and none of them shrinks. The
result is the processor time of this process and of the server together, for a job. A cost is flat if it stays within
1.5 times that of the first place of its axis.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count, cycle
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Literal

import msgspec
from msgspec import Struct
from redis import Redis

from benchmarks.redis_scripts import settle_down
from benchmarks.report import Machine, machine
from benchmarks.server import a_server
from tenure.core.job import Key, NewJob, Owner
from tenure.core.lease import Lease
from tenure.core.outcome import Returned
from tenure.core.settlement import settlement
from tenure.storage.protocol import ClaimRequest
from tenure.storage.urls import locate

ROOM = 10
BLOCK = 20
"""This many exchanges are made in one place before the next one's turn."""

TRIP = 256
KEY_LIMIT = 100
"""How many may run under a key: more than are held, so that no key is ever full."""

BOUND = 1.5
SMALL = 20_000
"""How many jobs wait along the axes that do not vary them."""

Medium = Literal["sqlite", "redis"]
MEDIA: tuple[Medium, ...] = ("redis", "sqlite")


class Shape(Struct, frozen=True):
    """The contents of a place; with `filled` only the first queues hold any of it, otherwise all do."""

    title: str
    jobs: int = SMALL
    keys: int = 0
    tenants: int = 0
    queues: int = 1
    filled: int | None = None


AXES: dict[str, tuple[Shape, ...]] = {
    "jobs that wait": tuple(Shape(f"{jobs:,}", jobs=jobs) for jobs in (1_000, 10_000, 100_000, 1_000_000)),
    "concurrency keys": tuple(Shape(f"{keys:,}", keys=keys) for keys in (1, 100, 10_000)),
    "tenants (fair keys)": tuple(Shape(f"{tenants:,}", tenants=tenants) for tenants in (1, 100, 10_000)),
    "queues, all with jobs": tuple(Shape(f"{queues:,}", queues=queues) for queues in (1, 20, 200)),
    "queues, one with jobs": tuple(Shape(f"{queues:,}", queues=queues, filled=1) for queues in (1, 20, 200)),
}


class Spent(Struct, frozen=True):
    """Microseconds for each job of a block: of the worker's processor, of the server's, and by the wall clock.

    `enqueued`: of both processors, for each job that was enqueued.
    """

    worker: float
    server: float
    wall: float
    enqueued: float

    @property
    def both(self) -> float:
        """The cost of settling and claiming a job."""
        return self.worker + self.server


class Point(Struct, frozen=True):
    """The result in a place: medians of the blocks, and their ratio to the first place of the axis.

    `least`, `most`: of these ratios, block by block.
    """

    axis: str
    medium: Medium
    shape: Shape
    worker_us: float
    server_us: float
    wall_us: float
    enqueue_us: float
    times: float
    least: float
    most: float
    enqueue_times: float


class Growth(Struct, frozen=True):
    """The printed report."""

    machine: Machine
    blocks: int
    jobs_a_block: int
    bound: float
    points: list[Point]


class Place:
    """A separate storage that is filled, and processed by one owner."""

    def __init__(self, url: str, shape: Shape, client: Any = None) -> None:
        self.shape = shape
        self.spent: list[Spent] = []
        self._storage = locate(url)
        self._client = client
        self._owner = Owner("worker")
        self._dice = Random(0)
        self._ids = count()
        self._queues = tuple(f"queue-{number}" for number in range(shape.queues))
        self._held: tuple[Lease, ...] = ()

    async def fill(self) -> None:
        """Enqueue the waiting jobs, and claim the first."""
        await self._storage.open()
        filled = self._queues[: self.shape.filled]
        turns = cycle(filled)
        for start in range(0, self.shape.jobs, TRIP):
            few = Counter(next(turns) for _ in range(start, min(start + TRIP, self.shape.jobs)))
            await self._enqueue(few)
        self._held = (await self._storage.exchange(self._owner, (), ClaimRequest(filled, ROOM))).leases
        if self._client is not None:
            settle_down(self._client)

    async def block(self) -> None:
        """Settle and claim this many times, measure that, and enqueue as many jobs as were settled."""
        gone: Counter[str] = Counter()
        began, cpu, served = time.perf_counter(), time.process_time(), self._served()
        for _ in range(BLOCK):
            gone.update(lease.ref.queue for lease in self._held)
            await self._exchange()
        wall, cpu, served = time.perf_counter() - began, time.process_time() - cpu, self._served() - served
        again, served_again = time.process_time(), self._served()
        await self._enqueue(gone)
        enqueued = time.process_time() - again + self._served() - served_again
        each = 1_000_000 / gone.total()
        self.spent.append(Spent(each * cpu, each * served, each * wall, each * enqueued))

    async def close(self) -> None:
        """Close the storage."""
        await self._storage.close()

    async def _exchange(self) -> None:
        settlements = [settlement(lease, Returned(b"null"), self._dice) for lease in self._held]
        answer = await self._storage.exchange(self._owner, settlements, ClaimRequest(self._queues, ROOM))
        # As a worker does, so that each queue is the first in its turn.
        self._queues = self._queues[1:] + self._queues[:1]
        self._held = answer.leases
        if len(self._held) != ROOM or any(verdict.verdict != "done" for verdict in answer.verdicts):
            raise RuntimeError(f"{ROOM} jobs were to be won and as many to be settled, but it was {answer}")

    async def _enqueue(self, jobs: Counter[str]) -> None:
        await self._storage.enqueue([self._job(queue) for queue in jobs.elements()])

    def _job(self, queue: str) -> NewJob:
        number = next(self._ids)
        keys, tenants = self.shape.keys, self.shape.tenants
        return NewJob(
            queue=queue,
            id=f"{number:036}",  # as long as ours are
            task="noop",
            payload=bytes(200),
            keys=(Key(f"key-{number % keys}", KEY_LIMIT),) if keys else (),
            fair_key=f"tenant-{number % tenants}" if tenants else None,
        )

    def _served(self) -> float:
        if self._client is None:
            return 0.0
        info: dict[str, float] = self._client.info("cpu")
        return info["used_cpu_user_main_thread"] + info["used_cpu_sys_main_thread"]


async def along(axis: str, medium: Medium, places: Sequence[Place], blocks: int) -> list[Point]:
    """Fill the places, and measure them by turns."""
    for place in places:
        print(f"{medium}, {axis}: filling a place with {place.shape.title}", file=sys.stderr)
        await place.fill()
        # The first one warms it up.
        await place.block()
        place.spent.clear()
    for _ in range(blocks):
        for place in places:
            await place.block()
    for place in places:
        await place.close()
    return [_point(axis, medium, place, places[0]) for place in places]


def _point(axis: str, medium: Medium, place: Place, first: Place) -> Point:
    pairs = list(zip(place.spent, first.spent, strict=True))
    times = [here.both / there.both for here, there in pairs]
    return Point(
        axis,
        medium,
        place.shape,
        worker_us=median(spent.worker for spent in place.spent),
        server_us=median(spent.server for spent in place.spent),
        wall_us=median(spent.wall for spent in place.spent),
        enqueue_us=median(spent.enqueued for spent in place.spent),
        times=median(times),
        least=min(times),
        most=max(times),
        enqueue_times=median(here.enqueued / there.enqueued for here, there in pairs),
    )


async def measured(axes: Sequence[str], media: Sequence[Medium], *, blocks: int, most: int) -> list[Point]:
    """Return the results along these axes; `most`: places with more jobs than that are left out."""
    points: list[Point] = []
    for medium in media:
        for axis in axes:
            shapes = [shape for shape in AXES[axis] if shape.jobs <= most]
            with ExitStack() as stack:
                places = [_place(medium, shape, stack) for shape in shapes]
                points += await along(axis, medium, places, blocks)
    return points


def _place(medium: Medium, shape: Shape, stack: ExitStack) -> Place:
    if medium == "sqlite":
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tenure-bench-")))
        return Place(f"sqlite:///{folder / 'growth.db'}", shape)
    server = stack.enter_context(a_server())
    assert server is not None
    # What it returns depends on how it was made, which its types do not say.
    untyped: Any = Redis
    return Place(server.url, shape, stack.enter_context(untyped.from_url(server.url)))


def lines_of(growth: Growth) -> Iterator[str]:
    """Yield the results, line by line."""
    on = growth.machine
    redis = f"Redis {on.redis}" if on.redis else "no Redis"
    yield f"{on.python}, SQLite {on.sqlite}, {redis}, {on.system}, {on.cores} cores, load {on.load:g} at the start"
    yield f"exchanges that settle {ROOM} and claim {ROOM}; medians of {growth.blocks} blocks of {growth.jobs_a_block}"
    yield f"jobs; µs of processor time for a job, and of the first line of its axis; flat within {growth.bound:g} times"
    axis = None
    for point in growth.points:
        if axis != (axis := (point.medium, point.axis)):
            yield ""
            title = f"{point.medium}, {point.axis}"
            yield f"{title:30} worker  server    both   times   (least to most)   enqueue  times"
        both = point.worker_us + point.server_us
        yield (
            f"{point.shape.title:>30} {point.worker_us:6.1f}  {point.server_us:6.1f}  {both:6.1f}  {point.times:6.2f}"
            f"    {point.least:5.2f} to {point.most:5.2f}    {point.enqueue_us:6.1f}  {point.enqueue_times:5.2f}"
        )
    steep = [point for point in growth.points if point.times > growth.bound]
    yield ""
    yield f"{len(steep)} of {len(growth.points)} cost more than {growth.bound:g} times the first of their axis"


def main() -> None:
    """Measure and print; exit with 1 if a cost is not flat."""
    parser = argparse.ArgumentParser(prog="make bench-growth", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--axis", action="append", choices=tuple(AXES), help="which axes (all)")
    parser.add_argument("--storage", action="append", choices=MEDIA, help="which storages (both)")
    parser.add_argument("--blocks", type=int, default=25, help="how many blocks are measured in each place (25)")
    parser.add_argument("--most", type=int, default=1_000_000, help="leave out what holds more jobs than that")
    args = parser.parse_args()
    with a_server() as server:
        version = server.version if server else None
    media: list[Medium] = args.storage or [medium for medium in MEDIA if medium != "redis" or version]
    on = machine(version)
    points = asyncio.run(measured(args.axis or list(AXES), media, blocks=args.blocks, most=args.most))
    growth = Growth(on, args.blocks, BLOCK * ROOM, BOUND, points)
    if args.output == "json":
        print(msgspec.json.format(msgspec.json.encode(growth)).decode())
    else:
        print("\n".join(lines_of(growth)))
    raise SystemExit(any(point.times > BOUND for point in points))


if __name__ == "__main__":
    main()
