"""taskiq on Redis streams, with the broker of taskiq-redis."""

import asyncio
from typing import Any

from taskiq.api import run_receiver_task
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.peers.adapter import AsyncPeer, main
from benchmarks.peers.order import About


class Taskiq(AsyncPeer):
    """A broker with three tasks, and its receiver on one loop."""

    about = About(
        title="taskiq with Redis streams",
        settings={
            "max_async_tasks": "as ordered",
            "ack_type": "when saved (default): after the work",
            "result backend": "none, but where results are read back",
            "maxlen": "none (default): the stream is never trimmed and grows",
            "xread_count": "100 (default)",
            "idle_timeout": "600 s (default)",
        },
        tight={"idle_timeout": "1 s", "unacknowledged_lock_timeout": "1 s", "xread_block": "500 ms"},
        recovery="idle_timeout 600 s; and only after a read that brought something new",
        rate=5_600,
        packages=("taskiq", "taskiq-redis", "redis", "hiredis", "uvloop"),
    )

    async def open(self) -> None:
        tally = self.tally
        tight: dict[str, Any] = {"idle_timeout": 1_000, "unacknowledged_lock_timeout": 1, "xread_block": 500}
        broker: Any = RedisStreamBroker(self.order.url, **(tight if self.order.tight else {}))
        if self.order.results:
            broker = broker.with_result_backend(RedisAsyncResultBackend(self.order.url, result_ex_time=600))
        self._broker = broker

        @broker.task(task_name="noop")
        async def noop(number: int) -> None:
            tally.started(number)

        @broker.task(task_name="echo")
        async def echo(number: int, text: str) -> str:
            tally.started(number)
            return text

        @broker.task(task_name="hold")
        async def hold(number: int, seconds: float) -> None:
            tally.started(number)
            await asyncio.sleep(seconds)
            tally.finished(number)

        self._tasks = {"noop": noop, "echo": echo, "hold": hold}
        broker.is_worker_process = self.order.do == "work"
        await broker.startup()

    async def enqueue(self, task: str, *row: Any) -> object:
        return await self._tasks[task].kiq(*row)

    async def result(self, handle: Any) -> object:
        return (await handle.wait_result(check_interval=0.05, timeout=10)).return_value

    async def work(self) -> None:
        await run_receiver_task(self._broker, max_async_tasks=self.order.concurrency)


if __name__ == "__main__":
    main(Taskiq)
