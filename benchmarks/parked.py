"""Measures the cost of jobs parked under concurrency keys to a claim on SQLite: `python -m benchmarks.parked`.

Three files hold equally many waiting jobs. In one of them no job has a key; in the others half of them are parked,
under many keys all of whose slots are taken. Exchanges that settle ten and claim ten are made in all three by turns,
so a disturbance of one disturbs the others.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median

from msgspec import Struct

from benchmarks.cells import TRIP
from benchmarks.report import machine
from tenure.core.job import Key, NewJob, Owner
from tenure.core.lease import Lease
from tenure.core.outcome import Returned
from tenure.core.settlement import settlement
from tenure.storage.protocol import CLAIM_LIMIT, ClaimRequest
from tenure.storage.sqlite import SQLiteStorage

QUEUE = "bench"
ROOM = 10


class Found(Struct, frozen=True):
    """Milliseconds of each exchange: without keys, with parked jobs, and with each settlement releasing one of them.

    `parking`: of the exchanges that first looked at jobs without a slot, and parked them.
    """

    unkeyed: list[float]
    half_parked: list[float]
    freeing: list[float]
    parking: list[float]


class Line:
    """A queue in a separate file, processed by one owner."""

    def __init__(self, path: Path) -> None:
        self._storage = SQLiteStorage(path)
        self._owner = Owner(path.stem)
        self._dice = Random(0)
        self._made = 0
        self._held: list[Lease] = []

    async def fill(self, jobs: int, *, keys: int = 0) -> None:
        """Enqueue this many jobs, under this many keys by turns."""
        for start in range(0, jobs, TRIP):
            await self._storage.enqueue([self._job(n, keys) for n in range(start, min(start + TRIP, jobs))])

    async def park(self, jobs: int, *, keys: int) -> list[float]:
        """Enqueue this many jobs that must wait for slots, and look at them; return how long each look took."""
        await self.fill(keys, keys=keys)
        while (await self.claim(CLAIM_LIMIT))[0]:
            pass
        await self.fill(jobs, keys=keys)
        looks: list[float] = []
        while await self._parked() < jobs:
            looks.append((await self.claim(CLAIM_LIMIT))[1])
        return looks

    async def exchange(self) -> float:
        """Settle ten of the held runs, claim ten; return how long that took."""
        won, took = await self.claim(ROOM, settled=ROOM)
        if won != ROOM:
            raise RuntimeError(f"{ROOM} jobs were to be won, but it were {won}")
        return took

    async def claim(self, room: int, *, settled: int = 0) -> tuple[int, float]:
        """Claim up to this many; return how many were claimed, and the milliseconds that took."""
        ending, self._held = self._held[:settled], self._held[settled:]
        settlements = [settlement(lease, Returned(b"null"), self._dice) for lease in ending]
        began = time.perf_counter()
        answer = await self._storage.exchange(self._owner, settlements, ClaimRequest((QUEUE,), room))
        took = 1000 * (time.perf_counter() - began)
        self._held += answer.leases
        return len(answer.leases), took

    def drop_held(self) -> None:
        """Keep the slots of the held runs, and settle none of them."""
        self._held = []

    async def close(self) -> None:
        """Close the file."""
        await self._storage.close()

    async def _parked(self) -> int:
        return (await self._storage.survey()).queues[0].parked

    def _job(self, number: int, keys: int) -> NewJob:
        self._made += 1
        held = (Key(f"key-{number % keys}"),) if keys else ()
        return NewJob(queue=QUEUE, id=f"{self._made:08}", task="noop", payload=b"[]", keys=held)


async def measured(folder: Path, *, jobs: int, keys: int, exchanges: int) -> Found:
    """Return the times of this many exchanges of each kind, among this many waiting jobs."""
    unkeyed, half_parked, freeing = lines = [
        Line(folder / f"{name}.db") for name in ("unkeyed", "half_parked", "freeing")
    ]
    print(f"filling three files with {jobs:,} jobs each", file=sys.stderr)
    await unkeyed.fill(jobs)
    parking: list[float] = []
    for line in (half_parked, freeing):
        parking += await line.park(jobs // 2, keys=keys)
        await line.fill(jobs - jobs // 2)
    half_parked.drop_held()
    for line in (unkeyed, half_parked):
        await line.claim(ROOM)
    found = Found([], [], [], parking)
    for _ in range(exchanges):
        for line, times in ((unkeyed, found.unkeyed), (half_parked, found.half_parked), (freeing, found.freeing)):
            times.append(await line.exchange())
    for line in lines:
        await line.close()
    return found


def lines_of(found: Found, *, jobs: int, keys: int) -> Iterator[str]:
    """Yield the results, line by line."""
    on = machine()
    yield f"{on.python}, SQLite {on.sqlite}, {on.system}, {on.cores} cores, load {on.load:g}"
    yield f"exchanges that settle {ROOM} and claim {ROOM} of {jobs:,} waiting jobs; medians"
    yield ""
    usual = median(found.unkeyed)
    for title, times in (
        ("no job has a key", found.unkeyed),
        (f"half of them are parked under {keys:,} keys", found.half_parked),
        ("the same, and each one settled lets one of those in", found.freeing),
    ):
        yield f"{title:55} {median(times):6.2f} ms  {median(times) / usual:5.2f} times"
    yield f"{'the first look at 500 that find no slot':55} {median(found.parking):6.2f} ms"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parked", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000, help="how many jobs wait (100,000)")
    parser.add_argument("--keys", type=int, default=1_000, help="under how many keys half of them are parked (1,000)")
    parser.add_argument("--exchanges", type=int, default=300, help="how many of each kind are measured (300)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder:
        found = asyncio.run(measured(Path(folder), jobs=args.jobs, keys=args.keys, exchanges=args.exchanges))
    print("\n".join(lines_of(found, jobs=args.jobs, keys=args.keys)))


if __name__ == "__main__":
    main()
