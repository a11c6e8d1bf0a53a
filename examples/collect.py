"""Collect: many calls, one job. The collected calls outlive a crash, because they are stored like any other job.

Run it: python examples/collect.py
"""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tenure import Collect, CollectTask, Tenure


@dataclass
class Doc:
    index: str
    text: str


batches: list[list[Doc]] = []


def search(url: str) -> tuple[Tenure, CollectTask[Doc, int]]:
    app = Tenure(url)

    @app.task(name="index", collect=Collect("{item.index}", delay="500ms", max_size=50, max_wait="5s"))
    async def index(docs: list[Doc]) -> int:
        batches.append(docs)
        return len(docs)

    return app, index


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'queue.db'}"

        app, index = search(url)
        async with app:
            # A call brings one item.
            jobs = [await index.enqueue(Doc("books", f"book {number}")) for number in range(20)]
            jobs.append(await index.enqueue(Doc("films", "a film")))
            collected = await index.collected("books")
            assert collected is not None
            print(f"{collected.count} books are collected, {collected.items[0].text!r} first; {jobs[1].action=}")
            assert collected.count == 20
        refs = [(job.id, job.queue) for job in jobs]

        # The producer has ended. Another process knows its job ids and runs a worker.
        app, index = search(url)
        async with app, app.worker():
            results = [await index.job(job_id, queue=queue).result() for job_id, queue in refs]
            print(f"{len(batches)} jobs for {len(results)} calls; the first call's result is {results[0]}")
            assert results == [20] * 20 + [1]
            assert sorted(len(docs) for docs in batches) == [1, 20]

            # A full batch does not wait for its delay.
            jobs = await app.enqueue_many(index.call(Doc("songs", f"song {number}")) for number in range(50))
            assert await jobs[49].result(timeout="5s") == 50
            print("fifty songs ran at once")


asyncio.run(main())
