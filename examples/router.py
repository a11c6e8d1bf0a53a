"""A large app in parts: each part is a router that does not import the app, and the app includes the routers.

Run it: python examples/router.py
"""

import asyncio

from tenure import JobCompleted, Router, TaskOptions, Tenure

# ── shop/billing.py ──
billing = Router(prefix="billing.", defaults=TaskOptions(queue="billing", timeout="1m"))
cards = Router(prefix="cards.", defaults=TaskOptions(priority=5))
billing.include(cards)


@cards.task
async def charge(account: int, cents: int) -> str:
    return f"charged {cents} cents to account {account}"


@billing.task(name="remind")
async def send_reminder(account: int) -> str:
    return f"reminded account {account}"


@charge.on(JobCompleted)
async def count(event: JobCompleted) -> None:
    completed.append(event.task)
    heard.set()


# ── shop/app.py ──
app = Tenure("memory://", defaults=TaskOptions(queue="shop"))
completed: list[str] = []
heard = asyncio.Event()


@app.task(name="sweep")
async def sweep() -> str:
    return "swept"


async def main() -> None:
    app.include(billing)
    for task in app.tasks.values():
        print(f"{task.name:22} goes to the queue {task.queue!r}, priority {task.settings.priority or 0}")
    async with app, app.worker():
        for job in (await charge.enqueue(7, 100), await send_reminder.enqueue(7), await sweep.enqueue()):
            print(await job.result())
        await asyncio.wait_for(heard.wait(), 10)
    print("events of:", *completed)

    assert sorted(app.tasks) == ["billing.cards.charge", "billing.remind", "sweep"]
    assert [charge.queue, send_reminder.queue, sweep.queue] == ["billing", "billing", "shop"]
    assert completed == ["billing.cards.charge"]


asyncio.run(main())
