"""A rolling deploy: jobs of three versions, and workers of the old code and the new one, on one storage.

Run it: python examples/versions.py
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from tenure import JobFailedError, JobReleased, Tenure


def yesterday(url: str) -> Tenure:
    app = Tenure(url)

    @app.task(name="charge")
    async def charge(euros: str) -> str:
        return f"old code: {euros} euros"

    return app


def today(url: str) -> Tenure:
    app = Tenure(url)

    @app.task(name="charge", version=3)
    async def charge(cents: int, currency: str) -> str:
        return f"new code: {cents} cents, {currency}"

    @charge.migrate(from_version=1)
    def count_cents(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"cents": round(float(arguments["euros"]) * 100)}

    @charge.migrate(from_version=2)
    def name_currency(arguments: dict[str, Any]) -> dict[str, Any]:
        return {**arguments, "currency": "EUR"}

    return app


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'jobs.db'}"
        async with yesterday(url) as old, today(url) as new:
            older = await old.find_task("charge").enqueue("1.50")
            broken = await old.find_task("charge").enqueue("a lot")
            async with new.worker(reaper=False):
                upgraded = await older.result()
                print(f"enqueued by the old code, {upgraded}")
                failure: Any = (await asyncio.gather(broken.result(), return_exceptions=True))[0]
                print(f"cannot be upgraded: {failure}")

            newer = await new.find_task("charge").enqueue(250, "USD")
            released = asyncio.Event()

            @old.on(JobReleased)
            async def left(event: JobReleased) -> None:
                print(f"the old worker puts {event.task!r} back for {event.delay:g} s: {event.reason}")
                released.set()

            async with old.worker(reaper=False):
                await asyncio.wait_for(released.wait(), 10)
            record = (await newer.info()).job
            print(f"it is {record.state}, after {record.starts} start and {record.failures} failures")

            assert upgraded == "new code: 150 cents, EUR"
            assert isinstance(failure, JobFailedError)
            assert failure.reason == "undecodable"
            assert (record.state, record.starts, record.failures) == ("waiting", 1, 0)


asyncio.run(main())
