"""arq on Redis: its worker polls every half second by default."""

import asyncio
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func

from benchmarks.peers.adapter import AsyncPeer, main
from benchmarks.peers.order import About


class Arq(AsyncPeer):
    """A pool that enqueues, a worker that polls."""

    about = About(
        title="arq",
        settings={
            "max_jobs": "as ordered",
            "poll_delay": "0.5 s (default)",
            "keep_result": "3,600 s (default): results are always kept",
            "logging": "not configured; the command line would log two lines a job",
        },
        tight={"job_timeout": "3 s, which also bounds the jobs", "poll_delay": "0.01 s"},
        recovery="310 s: job_timeout 300 s and 10 s",
        rate=1_200,
        packages=("arq", "redis", "hiredis", "uvloop"),
        notes=("Its poll decides: at most max_jobs jobs every poll_delay; arq-polling polls more often.",),
    )
    poll_delay = 0.5

    async def open(self) -> None:
        self._settings = RedisSettings.from_dsn(self.order.url)
        self._pool = await create_pool(self._settings)

    async def enqueue(self, task: str, *row: Any) -> object:
        return await self._pool.enqueue_job(task, *row)

    async def result(self, handle: Any) -> object:
        return await handle.result(timeout=10, poll_delay=0.05)

    async def work(self) -> None:
        tally = self.tally

        async def noop(context: Any, number: int) -> None:
            tally.started(number)

        async def echo(context: Any, number: int, text: str) -> str:
            tally.started(number)
            return text

        async def hold(context: Any, number: int, seconds: float) -> None:
            tally.started(number)
            await asyncio.sleep(seconds)
            tally.finished(number)

        worker = Worker(
            functions=[func(noop, name="noop"), func(echo, name="echo"), func(hold, name="hold")],
            redis_settings=self._settings,
            max_jobs=self.order.concurrency,
            poll_delay=0.01 if self.order.tight else self.poll_delay,
            job_timeout=3 if self.order.tight else 300,
        )
        await worker.async_run()


if __name__ == "__main__":
    main(Arq)
