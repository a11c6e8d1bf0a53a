"""SAQ on Redis or PostgreSQL, run in its own worker on one loop."""

import asyncio
from dataclasses import replace
from typing import Any

from saq import Queue, Worker

from benchmarks.peers.adapter import AsyncPeer, main
from benchmarks.peers.order import About

BEAT = 0.5


class Saq(AsyncPeer):
    """One queue of jobs; the worker's own coroutines fetch, run and finish them."""

    about = About(
        title="SAQ",
        settings={
            "concurrency": "as ordered",
            "dequeue_timeout": "0 (default): a blocking pop",
            "retries": "1 (default): a swept job is aborted, not run again",
            "timeout": "10 s (default)",
            "ttl": "600 s (default): results are always kept",
        },
        tight={"heartbeat": "1 s, and the handler beats every 0.5 s", "retries": "3", "timers.sweep": "1 s"},
        recovery="timeout 10 s, sweep every 60 s; with the default of one try the job is then aborted",
        rate=3_500,
        packages=("saq", "redis", "hiredis", "uvloop"),
    )

    @classmethod
    def describe(cls, url: str) -> About:
        """Return the facts that depend on the storage of the URL."""
        if not url.startswith("postgresql"):
            return cls.about
        settings = {
            **cls.about.settings,
            "dequeue_timeout": "0 (default): LISTEN wakes it",
            "poll_interval": "0 (default): it does not poll",
            "pool": "4 to 20 connections of psycopg (default), each checked when it is lent (default)",
        }
        return replace(
            cls.about,
            title="SAQ on PostgreSQL",
            settings=settings,
            rate=1_000,
            packages=("saq", "psycopg", "psycopg-binary", "psycopg-pool", "uvloop"),
        )

    async def open(self) -> None:
        self._queue = Queue.from_url(self.order.url)
        self._options: dict[str, Any] = {"heartbeat": 1, "retries": 3} if self.order.tight else {}
        await self._queue.connect()

    async def enqueue(self, task: str, *row: Any) -> object:
        names = ("number", "extra")
        return await self._queue.enqueue(task, **dict(zip(names, row, strict=False)), **self._options)

    async def result(self, handle: Any) -> object:
        await handle.refresh(until_complete=10)
        return handle.result

    async def work(self) -> None:
        tally = self.tally

        async def noop(context: Any, *, number: int) -> None:
            tally.started(number)

        async def echo(context: Any, *, number: int, extra: str) -> str:
            tally.started(number)
            return extra

        async def hold(context: Any, *, number: int, extra: float) -> None:
            tally.started(number)
            await self._held(context["job"], extra)
            tally.finished(number)

        worker = Worker(
            self._queue,
            functions=[("noop", noop), ("echo", echo), ("hold", hold)],
            concurrency=self.order.concurrency,
            timers={"sweep": 1} if self.order.tight else None,
        )
        await worker.start()

    async def _held(self, job: Any, seconds: float) -> None:
        if not self.order.tight:
            await asyncio.sleep(seconds)
            return
        # A handler has to send heartbeats itself, otherwise the sweep takes it for dead.
        for _ in range(int(seconds / BEAT)):
            await asyncio.sleep(BEAT)
            await job.update()


if __name__ == "__main__":
    main(Saq)
