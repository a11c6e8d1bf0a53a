"""Order: tenants that take turns, a weight of three, the newest job first, and a job of a higher priority.

Run it: python examples/fairness.py
"""

import asyncio
from collections import Counter

from tenure import Tenure

app = Tenure("memory://")
ran: list[str] = []


@app.task(queue="fair", fair_key="tenant:{tenant}")
async def convert(tenant: str, number: int = 0) -> None:
    ran.append(tenant)


def weight(plan: str) -> int:
    return 3 if plan == "paid" else 1


@app.task(queue="weighed", fair_key="{plan}", fair_weight=weight)
async def render(plan: str) -> None:
    ran.append(plan)


@app.task(queue="news", lifo=True)
async def show(headline: str) -> None:
    ran.append(headline)


@app.task(queue="strict", strict=True)
async def work(what: str) -> None:
    ran.append(what)


async def in_order(queue: str) -> list[str]:
    """Run all jobs of a queue with one worker and one slot; return the jobs in the order of their runs."""
    ran.clear()
    await app.worker(queues=[queue], concurrency=1, burst=True).run()
    return list(ran)


async def main() -> None:
    async with app:
        # A big tenant comes first, with a thousand jobs; a small one with three.
        await app.enqueue_many(convert.call("big", number) for number in range(1000))
        await app.enqueue_many(convert.call("small", number) for number in range(3))
        order = await in_order("fair")
        last = max(place for place, tenant in enumerate(order, 1) if tenant == "small")
        print(f"the small tenant's third job was number {last} of {len(order)}")
        assert last <= 8

        for _ in range(100):
            await app.enqueue_many([render.call("free"), render.call("paid")])
        first = Counter((await in_order("weighed"))[:80])
        print(f"of the first 80, {first['paid']} were paid for and {first['free']} were free")
        assert 58 <= first["paid"] <= 62

        for headline in ("yesterday", "this morning", "now"):
            await show.enqueue(headline)
        newest = await in_order("news")
        print(f"the newest first: {', '.join(newest)}")
        assert newest == ["now", "this morning", "yesterday"]

        await app.enqueue_many(work.call("as usual") for _ in range(1000))
        await work.options(priority=1).enqueue("at once")
        assert (await in_order("strict"))[0] == "at once"
        print("the job of a higher priority ran before a thousand older jobs")


asyncio.run(main())
