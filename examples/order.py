"""A durable handler: an order is charged, waits for days for an approval, and is shipped. The days are virtual.

Run it: python examples/order.py
"""

import asyncio
from collections import Counter
from dataclasses import dataclass

from tenure import Cancel, Job, Retry, State, Tenure, WaitTimeoutError, current_job, current_step
from tenure.testing import JobTester

app = Tenure("memory://")

bank: Counter[str] = Counter()
"""How often the bank was called with each key. It carries out the first call of a key."""


@dataclass
class Approval:
    by: str


async def charge(order: str) -> str:
    bank[current_step().idempotency_key] += 1
    return f"payment for {order}"


async def ship(order: str) -> str:
    return f"shipment for {order}"


@app.task(name="order")
async def handle(order: str) -> str:
    job = current_job()
    payment = await job.options(retry=Retry(3, base="1m")).step("charge", charge, order)
    try:
        approval = await job.wait_signal("approved", Approval, timeout="7d")
    except WaitTimeoutError:
        raise Cancel("not approved within 7 days") from None
    await job.sleep("cooling", "1d")
    shipment = await job.step("ship", ship, order)
    return f"{payment}, approved by {approval.by}, {shipment}"


async def steps(job: Job[str]) -> list[str]:
    (detail,) = await app.storage.get([await job.locate()])
    return [] if detail is None else [step.name for step in detail.steps]


async def main() -> None:
    with JobTester(app) as jobs:
        # The worker dies after the bank was called, and before that is recorded.
        jobs.crash_worker(handle, step="charge")
        approved = await handle.enqueue("order 1")
        await jobs.drain()
        forgotten = await handle.enqueue("order 2")

        await jobs.travel("3d")
        print(f"after 3 days: {await approved.state()}, and no worker holds it")
        assert await approved.state() is State.SUSPENDED

        await app.signal(approved.id, "approved", Approval("ann"))
        runs = await jobs.travel("1d")
        print(f"after 4 days: {await approved.result()} ({', '.join(await steps(approved))})")
        assert await steps(approved) == ["charge", "approved", "cooling", "ship"]
        assert runs == 2

        await jobs.travel("3d")
        print(f"after 7 days: the other order is {await forgotten.state()}")
        assert await forgotten.state() is State.CANCELLED

    print(f"the bank was called {sum(bank.values())} times, with {len(bank)} keys")
    assert sorted(bank.values()) == [1, 2]


asyncio.run(main())
