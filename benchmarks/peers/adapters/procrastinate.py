"""procrastinate on PostgreSQL."""

import asyncio
from collections.abc import Sequence
from typing import Any

from procrastinate import App, PsycopgConnector

from benchmarks.peers.adapter import AsyncPeer, Row, main
from benchmarks.peers.order import About

SILENT = 1.0
"""Seconds without a heartbeat after which a worker counts as dead, where that is to be soon."""

NAMES = ("number", "extra")


class Procrastinate(AsyncPeer):
    """One queue, one worker with this many sub-workers on one loop."""

    about = About(
        title="procrastinate",
        settings={
            "concurrency": "as ordered",
            "delete_jobs": "never (default)",
            "listen_notify": "on (default), fetch_job_polling_interval 5 s (default)",
            "max_size": "20 connections in the pool, for its default of 4 would hold it back",
        },
        tight={
            "update_heartbeat_interval": "0.25 s",
            "recovery": "the recipe of its documentation, each second: retry what get_stalled_jobs(1 s) finds",
        },
        recovery="never by itself: the user adds a periodic task that retries stalled jobs",
        rate=600,
        bulk=True,
        results=False,
        packages=("procrastinate", "psycopg", "psycopg-binary", "psycopg-pool", "uvloop"),
    )

    async def open(self) -> None:
        """Define the tasks, connect, and install its tables if they do not exist."""
        tally = self.tally
        self._app = app = App(connector=PsycopgConnector(conninfo=self.order.url, max_size=20))

        @app.task(name="noop")
        async def noop(number: int) -> None:
            tally.started(number)

        @app.task(name="echo")
        async def echo(number: int, extra: str) -> None:
            tally.started(number)

        @app.task(name="hold")
        async def hold(number: int, extra: float) -> None:
            tally.started(number)
            await asyncio.sleep(extra)
            tally.finished(number)

        self._tasks: dict[str, Any] = {"noop": noop, "echo": echo, "hold": hold}
        await app.open_async()
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()

    async def enqueue(self, task: str, *row: Any) -> object:
        """Enqueue one job."""
        return await self._tasks[task].defer_async(**_named(row))

    async def enqueue_many(self, task: str, rows: Sequence[Row]) -> Sequence[object]:
        """Enqueue many jobs in one call."""
        made: Sequence[object] = await self._tasks[task].batch_defer_async(*map(_named, rows))
        return made

    async def work(self) -> None:
        """Run a worker, and a recovery of the jobs of dead workers if that is to be soon."""
        if not self.order.tight:
            await self._app.run_worker_async(concurrency=self.order.concurrency)
            return
        recovering = asyncio.create_task(self._recover())
        try:
            await self._app.run_worker_async(concurrency=self.order.concurrency, update_heartbeat_interval=SILENT / 4)
        finally:
            recovering.cancel()

    async def _recover(self) -> None:
        manager = self._app.job_manager
        while True:
            for job in await manager.get_stalled_jobs(seconds_since_heartbeat=SILENT):
                await manager.retry_job(job)
            await asyncio.sleep(1)


def _named(row: Row) -> dict[str, Any]:
    return dict(zip(NAMES, row, strict=False))


if __name__ == "__main__":
    main(Procrastinate)
