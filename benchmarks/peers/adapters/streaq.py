"""streaQ on Redis streams."""

import asyncio
from typing import Any

from streaq import Worker

from benchmarks.peers.adapter import AsyncPeer, main
from benchmarks.peers.order import About


class Streaq(AsyncPeer):
    """One worker object enqueues or works."""

    about = About(
        title="streaQ",
        settings={
            "concurrency": "as ordered",
            "prefetch": "as many again (default)",
            "idle_timeout": "60 s (default)",
            "ttl": "300 s (default): results are always kept",
            "logging": "not configured; the command line would log two lines a job",
        },
        tight={"idle_timeout": "1 s"},
        recovery="idle_timeout 60 s",
        rate=2_000,
        bulk=True,
        packages=("streaq", "coredis", "anyio", "uvloop"),
    )

    async def open(self) -> None:
        tally = self.tally
        self._worker: Any = Worker(
            redis_url=self.order.url,
            concurrency=self.order.concurrency,
            **({"idle_timeout": 1} if self.order.tight else {}),
        )

        @self._worker.task(name="noop")
        async def noop(number: int) -> None:
            tally.started(number)

        @self._worker.task(name="echo")
        async def echo(number: int, text: str) -> str:
            tally.started(number)
            return text

        @self._worker.task(name="hold")
        async def hold(number: int, seconds: float) -> None:
            tally.started(number)
            await asyncio.sleep(seconds)
            tally.finished(number)

        self._tasks = {"noop": noop, "echo": echo, "hold": hold}
        if self.order.do != "work":
            await self._worker.__aenter__()

    async def enqueue(self, task: str, *row: Any) -> object:
        return await self._tasks[task].enqueue(*row)

    async def enqueue_many(self, task: str, rows: Any) -> Any:
        tasks = [self._tasks[task].enqueue(*row) for row in rows]
        await self._worker.enqueue_many(tasks)
        return tasks

    async def result(self, handle: Any) -> object:
        return (await handle.result(timeout=10)).result

    async def work(self) -> None:
        await self._worker.run_async()


if __name__ == "__main__":
    main(Streaq)
