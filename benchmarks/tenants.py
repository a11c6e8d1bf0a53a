"""Measures what tenants cost a claim on SQLite: `python -m benchmarks.tenants`.

Three files hold as many waiting jobs: in one of them nobody has a fair key, in the next all are one tenant's, in the
last they are those of many. Exchanges that settle ten and claim ten are made in all three by turns, and between them
ten more jobs are enqueued in each, so whatever disturbs one disturbs the others.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median

from msgspec import Struct

from benchmarks.cells import TRIP
from benchmarks.report import machine
from holdfast.core.job import NewJob, Owner
from holdfast.core.lease import Lease
from holdfast.core.outcome import Returned
from holdfast.core.settlement import settlement
from holdfast.storage.protocol import Order
from holdfast.storage.sqlite import SQLiteStorage

QUEUE = "bench"
ROOM = 10
BOUND = 2.0
"""How many times as long a claim may take among many tenants as with one."""


class Found(Struct, frozen=True):
    """Milliseconds of each exchange, and of each enqueue of ten."""

    exchanges: list[float]
    enqueues: list[float]


class Line:
    """A queue in a file of its own, worked off by one owner, whose jobs are those of so many tenants (0: nobody's)."""

    def __init__(self, path: Path, tenants: int) -> None:
        self.tenants = tenants
        self.found = Found([], [])
        # Without waiting for the disk, which would hide what the work itself costs.
        self._storage = SQLiteStorage(path, durability="fast")
        self._owner = Owner(path.stem)
        self._dice = Random(0)
        self._made = 0
        self._held: tuple[Lease, ...] = ()

    async def fill(self, jobs: int) -> None:
        """Enqueue so many jobs, of each tenant by turns."""
        for start in range(0, jobs, TRIP):
            await self._storage.enqueue([self._job() for _ in range(start, min(start + TRIP, jobs))])

    async def turn(self) -> None:
        """Settle ten of the runs that are held and claim ten, then enqueue as many."""
        settlements = [settlement(lease, Returned(b"null"), self._dice) for lease in self._held]
        began = time.perf_counter()
        answer = await self._storage.exchange(self._owner, settlements, Order((QUEUE,), ROOM))
        claimed = time.perf_counter()
        await self._storage.enqueue([self._job() for _ in range(ROOM)])
        enqueued = time.perf_counter()
        self._held = answer.leases
        if len(self._held) != ROOM:
            raise RuntimeError(f"{ROOM} jobs were to be won, but it were {len(self._held)}")
        self.found.exchanges.append(1000 * (claimed - began))
        self.found.enqueues.append(1000 * (enqueued - claimed))

    async def close(self) -> None:
        """Close the file."""
        await self._storage.close()

    def _job(self) -> NewJob:
        self._made += 1
        tenant = f"tenant-{self._made % self.tenants}" if self.tenants else None
        return NewJob(queue=QUEUE, id=f"{self._made:08}", task="noop", payload=b"[]", fair_key=tenant)


async def measured(folder: Path, *, jobs: int, tenants: int, exchanges: int) -> list[Found]:
    """Return the times of so many exchanges: without tenants, with one, and with many."""
    lines = [Line(folder / f"{count}.db", count) for count in (0, 1, tenants)]
    for line in lines:
        await line.fill(jobs)
    for _ in range(exchanges):
        for line in lines:
            await line.turn()
    for line in lines:
        await line.close()
    return [line.found for line in lines]


def told(found: list[Found], *, jobs: int, tenants: int) -> Iterator[str]:
    """Yield what was found, line by line."""
    on = machine()
    yield f"{on.python}, SQLite {on.sqlite}, {on.system}, {on.cores} cores, load {on.load:g}"
    yield f"exchanges that settle {ROOM} and claim {ROOM} of {jobs:,} waiting jobs, and enqueues of {ROOM}; medians"
    yield ""
    plain, one, many = found
    for title, these in (("no tenants", plain), ("one tenant", one), (f"{tenants:,} tenants", many)):
        exchange, enqueue = median(these.exchanges), median(these.enqueues)
        yield (
            f"{title:20} exchange {exchange:6.2f} ms  {exchange / median(plain.exchanges):5.2f} times   "
            f"enqueue {enqueue:6.2f} ms  {enqueue / median(plain.enqueues):5.2f} times"
        )
    yield f"{tenants:,} tenants against one: {flatness(found):.2f} times a claim (the bound: {BOUND:g})"


def flatness(found: list[Found]) -> float:
    """Return how many times as long an exchange takes among many tenants as with one."""
    return median(found[2].exchanges) / median(found[1].exchanges)


def main() -> None:
    """Measure and print; exit with 1 where a claim is not flat."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tenants", description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000, help="how many jobs wait (50,000)")
    parser.add_argument("--tenants", type=int, default=10_000, help="how many tenants there are (10,000)")
    parser.add_argument("--exchanges", type=int, default=300, help="how many of each kind are measured (300)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        found = asyncio.run(measured(Path(folder), jobs=asked.jobs, tenants=asked.tenants, exchanges=asked.exchanges))
    print("\n".join(told(found, jobs=asked.jobs, tenants=asked.tenants)))
    raise SystemExit(flatness(found) >= BOUND)


if __name__ == "__main__":
    main()
