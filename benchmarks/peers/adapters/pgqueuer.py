"""pgqueuer on PostgreSQL: at most as many jobs at once as ordered, in batches of half as many."""

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

from benchmarks.peers.adapter import AsyncPeer, Row, main
from benchmarks.peers.order import About


class PgQueuerPeer(AsyncPeer):
    """One entrypoint a task; the worker claims and settles in batches over one connection."""

    about = About(
        title="pgqueuer",
        settings={
            "max_concurrent_tasks": "as ordered",
            "batch_size": "half of it, the most that it allows (10 by default)",
            "dequeue_timeout": "30 s (default): LISTEN wakes it before",
            "durability": "durable (default): all its tables are logged",
            "autovacuum": "as `pgq autovac` sets it, which its documentation advises after the installation",
            "connections": "one of asyncpg in the worker, a pool of 10 in the producer, as its documentation advises",
        },
        tight={"heartbeat_timeout": "1 s"},
        recovery="heartbeat_timeout 30 s",
        rate=6_000,
        bulk=True,
        results=False,
        packages=("pgqueuer", "asyncpg", "uvloop"),
    )
    capped: ClassVar[bool] = True
    """Whether no more jobs are claimed than the concurrency that is ordered."""

    async def open(self) -> None:
        """Connect, and install its tables if they do not exist."""
        if self.order.do == "work":
            self._connection = await asyncpg.connect(self.order.url)
            self._queries = Queries(AsyncpgDriver(self._connection))
        else:
            pool = await asyncpg.create_pool(self.order.url, min_size=10, max_size=10)
            self._queries = Queries(AsyncpgPoolDriver(pool))
        if not await self._queries.has_table("pgqueuer"):
            await self._queries.install()
            await self._queries.optimize_autovacuum()

    async def enqueue(self, task: str, *row: Any) -> object:
        """Enqueue one job."""
        return await self._queries.enqueue(task, json.dumps(row).encode())

    async def enqueue_many(self, task: str, rows: Sequence[Row]) -> Sequence[object]:
        """Enqueue many jobs in one call."""
        payloads: list[bytes | None] = [json.dumps(row).encode() for row in rows]
        return await self._queries.enqueue([task] * len(rows), payloads, [0] * len(rows))

    async def work(self) -> None:
        """Run a worker."""
        tally = self.tally
        worker = PgQueuer.from_asyncpg_connection(self._connection)

        @worker.entrypoint("noop")
        async def noop(job: Any) -> None:
            (number,) = json.loads(job.payload)
            tally.started(number)

        @worker.entrypoint("echo")
        async def echo(job: Any) -> None:
            number, _ = json.loads(job.payload)
            tally.started(number)

        @worker.entrypoint("hold")
        async def hold(job: Any) -> None:
            number, seconds = json.loads(job.payload)
            tally.started(number)
            await asyncio.sleep(seconds)
            tally.finished(number)

        tight = {"heartbeat_timeout": timedelta(seconds=1)} if self.order.tight else {}
        concurrency = self.order.concurrency
        if self.capped:
            await worker.run(batch_size=max(1, concurrency // 2), max_concurrent_tasks=concurrency, **tight)
        else:
            await worker.run(batch_size=concurrency, **tight)


if __name__ == "__main__":
    main(PgQueuerPeer)
