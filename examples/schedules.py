"""Schedules: an interval, a cron text, a schedule made at run time, a pause, a trigger, and ticks missed in an outage.

Run it: python examples/schedules.py
"""

import asyncio
import sys
from datetime import datetime
from itertools import pairwise

from tenure import All, ScheduleMissed, Tenure, current_job

app = Tenure("memory://")
ran: list[tuple[str, datetime | None]] = []


@app.every("1s", name="second", missed=All(max=1), overlap="allow", grace="1s", args=["each second"])
@app.cron("0 4 * * mon-fri", tz="Europe/Vienna", name="workdays", args=["at four"])
@app.task(name="report")
async def report(what: str) -> None:
    ran.append((what, current_job().scheduled_for))
    print(f"  report {what}, scheduled for {current_job().scheduled_for}")


async def main() -> None:
    print("one tick, one job:")
    async with app.worker():
        await asyncio.sleep(2.2)
        ticks = [tick for what, tick in ran if what == "each second" and tick is not None]

        print("a schedule made at run time, and triggered:")
        await app.schedules.put("now and then", report.call("by hand"), every="1h")
        await (await app.schedules.trigger("now and then")).result(timeout=10)

        print("a paused schedule:")
        paused = await app.schedules.pause("second")
        before = len(ran)
        await asyncio.sleep(1.2)
        quiet = len(ran) - before
        await app.schedules.resume("second")

    print("no worker for 4 s; of the missed ticks, only the newest one gets a job:")
    await asyncio.sleep(4)
    before = len(ran)
    async with app.worker():
        await asyncio.sleep(0.3)
    storage = await app.opened()
    missed = [event for event in (await storage.events(limit=1000)).events if isinstance(event, ScheduleMissed)]
    print(f"  ticks without a job: {sum(event.ticks for event in missed)}")

    print("the next days at four:")
    for tick in await app.schedules.next("workdays", 3):
        print(f"  {tick}")

    held = (
        len(ticks) >= 2
        and all((late - early).total_seconds() == 1 for early, late in pairwise(ticks))
        and ran.count(("by hand", None)) == 1
        and paused.paused
        and quiet == 0
        and len(ran) - before >= 1
        and missed
    )
    await app.close()
    sys.exit(0 if held else "the schedules did not do what this example shows")


if __name__ == "__main__":
    asyncio.run(main())
