"""Measures the cost of holding jobs to a Redis: `python -m benchmarks.redis_cost`.

Ten workers hold a thousand jobs each and renew them every five seconds, as keepers do. The share of a core comes from
the server's own account (`used_cpu_user` and `used_cpu_sys`) over some beats, less the share of an idle server.
"""

import argparse
import asyncio
import sys
import time
from typing import Any

from redis import Redis

from benchmarks.report import machine
from benchmarks.server import a_server
from tenure.core.job import NewJob, Owner
from tenure.core.lease import Lease
from tenure.storage.protocol import (
    CLAIM_LIMIT,
    RENEW_LIMIT,
    ClaimRequest,
    LeaseRenewal,
    RenewRequest,
    Storage,
    WorkerInfo,
)
from tenure.storage.redis.address import read
from tenure.storage.urls import locate

BEAT = 5.0
TRIP = 1_000
WORKER = WorkerInfo(queues=("default",), concurrency=1_000)


class Holder:
    """A worker as its keeper shows it to the storage."""

    def __init__(self, storage: Storage, number: int) -> None:
        self.owner = Owner(f"{number:016x}", f"worker-{number}", "here", number)
        self.leases: list[Lease] = []
        self._storage = storage

    async def claim(self, jobs: int) -> None:
        """Claim this many jobs."""
        while left := jobs - len(self.leases):
            order = ClaimRequest(("default",), min(left, CLAIM_LIMIT))
            self.leases += (await self._storage.exchange(self.owner, order=order)).leases

    async def beat(self) -> None:
        """Renew all leases."""
        for start in range(0, len(self.leases), RENEW_LIMIT):
            due = [LeaseRenewal(lease.ref, lease.fence) for lease in self.leases[start : start + RENEW_LIMIT]]
            pulse = await self._storage.renew(RenewRequest(self.owner, tuple(due), WORKER))
            assert not pulse.lost


def used(client: Redis) -> float:
    """Return the seconds of a core that the server has used so far."""
    untyped: Any = client
    info: dict[str, float] = untyped.info("cpu")
    return info["used_cpu_user"] + info["used_cpu_sys"]


async def share(client: Redis, holders: list[Holder], beats: int) -> tuple[float, float]:
    """Return the share of a core that some beats take, and what it would be if all were like the cheapest."""
    loop = asyncio.get_running_loop()
    costs: list[float] = []
    before, began = used(client), time.perf_counter()
    for number in range(beats):
        await asyncio.sleep(began + number * BEAT - time.perf_counter())
        at = await loop.run_in_executor(None, used, client)
        for holder in holders:
            await holder.beat()
        costs.append(await loop.run_in_executor(None, used, client) - at)
    await asyncio.sleep(began + beats * BEAT - time.perf_counter())
    spent = await loop.run_in_executor(None, used, client) - before
    return spent / (time.perf_counter() - began), min(costs) / BEAT


async def measure(url: str, jobs: int, workers: int, beats: int) -> tuple[float, float, float]:
    """Return the share of a core for these jobs, that of the cheapest beat, and that of an idle server."""
    storage = locate(url)
    try:
        for start in range(0, jobs, TRIP):
            await storage.enqueue(
                [
                    NewJob(queue="default", id=f"job-{number}", task="work", payload=bytes(200))
                    for number in range(start, min(start + TRIP, jobs))
                ]
            )
        holders = [Holder(storage, number) for number in range(workers)]
        for holder in holders:
            await holder.claim(jobs // workers)
        with Redis(port=read(url).places[0].port) as client:
            return *await share(client, holders, beats), (await share(client, [], 2))[0]
    finally:
        await storage.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--beats", type=int, default=6, help="how many beats the stretch has")
    args = parser.parse_args()
    with a_server() as server:
        if server is None:
            sys.exit("redis-server is not on the PATH; make servers installs one")
        busy, least, idle = asyncio.run(measure(server.url, args.jobs, args.workers, args.beats))
        about = machine(server.version)
        print(f"Redis {about.redis}, {about.system}, {about.cores} cores, load {about.load}")
        print(f"{args.jobs:,} jobs held by {args.workers} workers, renewed each {BEAT:g} s, {args.beats} times")
        print(f"of one core of the server: {100 * busy:.2f} %, of which {100 * idle:.2f} % in peace")
        print(f"the cheapest beat: {100 * least:.2f} %; on a machine that is busy with other things it says the most")


if __name__ == "__main__":
    main()
