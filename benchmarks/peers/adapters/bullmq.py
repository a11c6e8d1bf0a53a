"""BullMQ's Python port on Redis."""

import asyncio
from typing import Any

from bullmq import Job, Queue, Worker

from benchmarks.peers.adapter import AsyncPeer, main
from benchmarks.peers.order import About


class Bullmq(AsyncPeer):
    """A queue, and a worker whose processor knows three names."""

    about = About(
        title="BullMQ, Python port",
        settings={
            "concurrency": "as ordered",
            "removeOnComplete": "true, as its documentation advises for production; not where results are read back",
            "lockDuration, stalledInterval": "30 s (default)",
        },
        tight={"lockDuration": "1 s", "stalledInterval": "1 s"},
        recovery="60 s at most: lockDuration 30 s, stalledInterval 30 s",
        rate=4_000,
        bulk=True,
        packages=("bullmq", "redis", "hiredis", "uvloop"),
    )

    async def open(self) -> None:
        self._queue: Any = Queue("default", {"connection": self.order.url})
        self._options: dict[str, Any] = {} if self.order.results else {"removeOnComplete": True}

    async def enqueue(self, task: str, *row: Any) -> object:
        return (await self._queue.add(task, list(row), self._options)).id

    async def enqueue_many(self, task: str, rows: Any) -> Any:
        jobs = [{"name": task, "data": list(row), "opts": self._options} for row in rows]
        return [job.id for job in await self._queue.addBulk(jobs)]

    async def result(self, handle: Any) -> object:
        for _ in range(200):
            job: Any = await Job.fromId(self._queue, handle)
            if job is not None and job.returnvalue is not None:
                return job.returnvalue
            await asyncio.sleep(0.05)
        return None

    async def work(self) -> None:
        tally = self.tally

        async def process(job: Any, token: str) -> object:
            tally.started(job.data[0])
            if job.name == "hold":
                await asyncio.sleep(job.data[1])
                tally.finished(job.data[0])
            return job.data[1] if job.name == "echo" else None

        tight = {"lockDuration": 1_000, "stalledInterval": 1_000} if self.order.tight else {}
        self._worker = Worker(
            "default", process, {"connection": self.order.url, "concurrency": self.order.concurrency, **tight}
        )
        await asyncio.Event().wait()


if __name__ == "__main__":
    main(Bullmq)
