"""Tenure, on Redis, SQLite and PostgreSQL: its public API, every setting at its default."""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from benchmarks.peers.adapter import AsyncPeer, Row, main
from benchmarks.peers.order import About, Order
from benchmarks.peers.tally import Tally
from tenure import Job, Task, Tenure, Timing, __version__
from tenure.worker.prefetch import MOST_HELD

TIGHT = Timing(lease="1s", beat="0.25s", grace="0.25s", sweep="0.25s")

ABOUT = About(
    title="Tenure",
    role="ours",
    settings={
        "all": "defaults: leases, fencing, history and events are on; completed jobs and results are kept for an hour, "
        "the newest 10,000",
        "worker": "one process, no supervisor, so its death is noticed only by its missing beats",
        "prefetch": "100 less the concurrency at most, which `tenure worker` has by default; a worker that has no "
        "supervisor needs the option",
    },
    tight={"Timing": "lease 1 s, beat 0.25 s, grace 0.25 s, sweep 0.25 s"},
    recovery="27 s at most: lease 20 s, grace 3 s, two sweeps of 2 s (docs/howto/operate.md)",
    rate=20_000,
    bulk=True,
    supervised=True,
    versions={"tenure": __version__},
    packages=("msgspec", "redis", "hiredis", "uvloop"),
)


ORDER = "TENURE_PEERS_ORDER"
"""The environment variable with the order, for processes that the supervisor starts."""

SUPERVISED = "benchmarks.peers.supervised"


def app_of(order: Order, tally: Tally) -> tuple[Tenure, dict[str, Task[..., Any]]]:
    """Return an app with three tasks, and the tasks by their names."""
    app = Tenure(order.url, name="peers", timing=TIGHT) if order.tight else Tenure(order.url, name="peers")

    @app.task(name="noop")
    async def noop(number: int) -> None:
        tally.started(number)

    @app.task(name="echo")
    async def echo(number: int, text: str) -> str:
        tally.started(number)
        return text

    @app.task(name="hold")
    async def hold(number: int, seconds: float) -> None:
        tally.started(number)
        await asyncio.sleep(seconds)
        tally.finished(number)

    return app, {"noop": noop, "echo": echo, "hold": hold}


class Ours(AsyncPeer):
    """An app with three tasks."""

    @classmethod
    def describe(cls, url: str) -> About:
        """Return the facts that depend on the storage of the URL."""
        if url.startswith("postgresql"):
            packages = ("msgspec", "psycopg", "psycopg-binary", "uvloop")
            return replace(ABOUT, title="Tenure on PostgreSQL", rate=10_000, packages=packages)
        if not url.startswith("sqlite"):
            return ABOUT
        settings = {**ABOUT.settings, "durability": "full (default): WAL, synchronous=FULL"}
        return replace(ABOUT, title="Tenure on SQLite", settings=settings, rate=4_000)

    async def open(self) -> None:
        """Define the tasks and connect."""
        self._app, self._tasks = app_of(self.order, self.tally)
        await self._app.opened()

    async def enqueue(self, task: str, *row: Any) -> Job[Any]:
        """Enqueue one job."""
        return await self._tasks[task].enqueue(*row)

    async def enqueue_many(self, task: str, rows: Sequence[Row]) -> Sequence[Job[Any]]:
        """Enqueue many jobs in one call."""
        call = self._tasks[task].call
        return await self._app.enqueue_many(call(*row) for row in rows)

    async def result(self, handle: object) -> object:
        """Return the result of a job."""
        return await cast("Job[object]", handle).result(timeout=10)

    async def work(self) -> None:
        """Run a worker of this process, or become the supervisor of two."""
        concurrency = self.order.concurrency
        if self.order.supervised:
            await self._app.close()
            words = ["tenure", "worker", f"{SUPERVISED}:app", "--processes", "2", "--concurrency", str(concurrency)]
            os.environ[ORDER] = self.order.as_json()
            os.execv(sys.executable, [sys.executable, "-m", *words, "--log-level", "warning"])
        await self._app.worker(concurrency=concurrency, prefetch=max(0, MOST_HELD - concurrency)).run()


if __name__ == "__main__":
    main(Ours)
