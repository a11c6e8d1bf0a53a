"""Places orders at the running shop while it kills and pauses the workers, then compares orders and charges.

Exit status 1 if an acknowledged order has not exactly one charge, or an order that was not stored has one.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from http.client import HTTPConnection
from json import dumps
from random import Random, random
from uuid import UUID, uuid4

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from examples.shop.shop import LIMIT, Charge, Order, app, engine
from tenure import JobFilter, State, StorageUnavailableError
from tenure.core.job import Owner

PAUSE = 5.0
"""Seconds that a worker is paused: longer than its lease, so that its jobs run again while it is paused."""

LEAVE = 0.02
"""Seconds after which a client that does not wait for the answer has left: about as long as an answer takes."""

RECENTLY = 2_000_000
"""Microseconds: four beats of a worker."""

PATIENCE = 120.0
UNFINISHED = JobFilter(states=(State.WAITING, State.DELAYED, State.ACTIVE))
ACTIVE = JobFilter(states=(State.ACTIVE,))


@dataclass
class Sent:
    """The ids of the orders that were sent, by how the request ended."""

    acknowledged: list[UUID] = field(default_factory=list[UUID])
    refused: list[UUID] = field(default_factory=list[UUID])
    cut_off: list[UUID] = field(default_factory=list[UUID])


# --- orders ----------------------------------------------------------------------------------------


def post(port: int, order_id: UUID, cents: int, *, cut_off: bool = False) -> int:
    """Post an order and return the status. `cut_off`: do not read the answer but leave soon, and return 0."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with contextlib.closing(connection):
        body = dumps({"id": str(order_id), "cents": cents})
        connection.request("POST", "/orders", body, {"Content-Type": "application/json"})
        if not cut_off:
            return connection.getresponse().status
        time.sleep(random() * LEAVE)
        return 0


async def place(port: int, number: int, sent: Sent) -> None:
    """Place an order; with each tenth one, also an order above the limit, and one whose client leaves."""
    order_id = uuid4()
    status = await asyncio.to_thread(post, port, order_id, 1 + number)
    if status != 201:
        raise SystemExit(f"the shop answered {status} to an order, not 201")
    sent.acknowledged.append(order_id)
    if number % 10 == 0:
        sent.refused.append(uuid4())
        if (status := await asyncio.to_thread(post, port, sent.refused[-1], LIMIT + 1)) != 402:
            raise SystemExit(f"the shop answered {status} to an order above the limit, not 402")
        sent.cut_off.append(uuid4())
        await asyncio.to_thread(post, port, sent.cut_off[-1], 1 + number, cut_off=True)


# --- faults ----------------------------------------------------------------------------------------


class Faults:
    """Kills and pauses worker processes."""

    def __init__(self) -> None:
        self.killed = 0
        self.paused = 0
        self._hit: set[str] = set()
        """The workers that were killed or are paused."""
        self._pauses: list[asyncio.Task[None]] = []

    async def kill(self) -> None:
        """Kill a worker process with SIGKILL; its supervisor starts another one."""
        os.kill((await self._next_worker()).pid, signal.SIGKILL)
        self.killed += 1

    async def pause(self) -> None:
        """Stop a worker process and its supervisor with SIGSTOP, as if their host hung, and return."""
        worker = await self._next_worker()
        self._pauses.append(asyncio.create_task(self._sleep(worker, await parent_of(worker.pid))))
        self.paused += 1

    async def _sleep(self, worker: Owner, supervisor: int) -> None:
        pids = (supervisor, worker.pid)
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(PAUSE)
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            self._hit.remove(worker.id)

    async def end(self) -> None:
        """Wait until all paused processes go on."""
        await asyncio.gather(*self._pauses)

    async def _next_worker(self) -> Owner:
        """Wait for a live worker that is not paused; return the one that runs the most jobs."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            runs = Counter([job.owner async for job in app.jobs.list(ACTIVE)])
            workers = [worker for worker in (await app.storage.survey()).workers if worker.seen_ago < RECENTLY]
            alive = [worker.owner for worker in workers if not worker.died and worker.owner.id not in self._hit]
            if alive:
                found = max(alive, key=lambda owner: runs[owner.id])
                self._hit.add(found.id)
                return found
            await asyncio.sleep(0.05)
        raise SystemExit("no worker is alive")


async def parent_of(pid: int) -> int:
    """Return the process that started a process."""
    command = ("ps", "-o", "ppid=", "-p", str(pid))
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    return int((await process.communicate())[0])


# --- the comparison --------------------------------------------------------------------------------


async def stored() -> dict[UUID, list[int]]:
    """Return the runs that charged each order: also orders without a charge, and charges without an order."""
    async with AsyncSession(engine) as session:
        runs: dict[UUID, list[int]] = {order_id: [] for order_id in await session.scalars(select(Order.id))}
        for order_id, run in await session.execute(select(Charge.order_id, Charge.run)):
            runs.setdefault(order_id, []).append(run)
    return runs


async def settled() -> dict[UUID, list[int]]:
    """Wait until each order has a charge and no job is unfinished, but not for ever; return the runs of each order."""
    deadline = time.monotonic() + PATIENCE
    while True:
        unfinished = await app.jobs.count(UNFINISHED)
        runs = await stored()
        if (all(runs.values()) and not unfinished) or time.monotonic() > deadline:
            return runs
        await asyncio.sleep(0.2)


def compare(sent: Sent, runs: dict[UUID, list[int]]) -> bool:
    """Print a table of the orders and their charges. Return True if each has as many charges as it should."""
    print(f"\n{'orders':<14}{'sent':>6}{'stored':>8}{'no charge':>11}{'1 charge':>10}{'more':>6}  right")
    holds = True
    for name, ids, counts in (
        ("acknowledged", sent.acknowledged, {1}),
        ("refused", sent.refused, {None}),
        # The client does not know whether the shop stored the order before it saw that the client had left.
        ("cut off", sent.cut_off, {None, 1}),
    ):
        found = [len(runs[order_id]) if order_id in runs else None for order_id in ids]
        right = {*found} <= counts
        holds = holds and right
        kept = [count for count in found if count is not None]
        more = sum(count > 1 for count in kept)
        figures = f"{len(ids):>6}{len(kept):>8}{len(ids) - sum(map(bool, kept)):>11}{kept.count(1):>10}{more:>6}"
        print(f"{name:<14}{figures}  {'yes' if right else 'NO'}")
    return holds


async def storm(port: int, orders: int, kills: int, pauses: int) -> bool:
    faults, sent = Faults(), Sent()
    planned = [*[faults.kill] * kills, *[faults.pause] * pauses]
    Random(18).shuffle(planned)
    due = {(index + 1) * orders // (len(planned) + 1): fault for index, fault in enumerate(planned)}
    print(f"Placing {orders} orders (workers to kill: {kills}, to pause: {pauses}) ...", flush=True)
    async with app:
        for number in range(orders):
            if number in due:
                await due[number]()
            await place(port, number, sent)
        await faults.end()
        runs = await settled()
    await engine.dispose()
    holds = compare(sent, runs)
    again = sum(run > 1 for order_runs in runs.values() for run in order_runs)
    print(f"\nworkers killed: {faults.killed}, paused: {faults.paused}; charges written by a later run: {again}")
    print("Each stored order is charged once." if holds else "NOT every stored order is charged once.")
    return holds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.shop.storm", description=__doc__)
    parser.add_argument("--orders", type=int, default=300, help="how many orders to place")
    parser.add_argument("--kills", type=int, default=4, help="how many workers to kill")
    parser.add_argument("--pauses", type=int, default=2, help="how many workers to pause")
    parser.add_argument("--port", type=int, default=8000, help="of the shop's web application")
    given = parser.parse_args()
    if not 0 <= given.kills + given.pauses < given.orders:
        parser.error("--orders must be more than --kills and --pauses together")
    try:
        sys.exit(0 if asyncio.run(storm(given.port, given.orders, given.kills, given.pauses)) else 1)
    except ConnectionRefusedError:
        sys.exit(f"no shop at port {given.port}: start it with python -m examples.shop")
    except StorageUnavailableError as error:
        sys.exit(str(error))
