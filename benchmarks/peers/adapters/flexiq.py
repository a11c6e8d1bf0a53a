"""FlexiQ (formerly taskito) on SQLite, run by its pool of threads in one process."""

import time
from collections.abc import Sequence
from typing import Any

from flexiq import Queue

from benchmarks.peers.adapter import Row, SyncPeer, main
from benchmarks.peers.order import About

TIMEOUT = 3
"""Seconds that a job may take, where a dead worker's jobs are to be recovered soon."""


class FlexiQ(SyncPeer):
    """One queue; its own scheduler hands the jobs to threads."""

    about = About(
        title="FlexiQ on SQLite",
        settings={
            "workers": "as ordered: one thread a job (pool thread, default)",
            "scheduler_batch_size": "100: in a trial half as fast again as with the default of 1",
            "scheduler_poll_interval_ms": "50 (default)",
            "push_dispatch": "off (default on SQLite): in a trial it did a tenth as many jobs",
            "journal_mode, synchronous": "WAL, NORMAL (its own, nothing to set): a commit is not on the disk yet",
            "results": "always kept",
        },
        tight={
            "timeout": "3 s: a job that runs for longer is run again, dead or alive",
            "scheduler_reap_interval": "1 poll (100 by default)",
        },
        recovery="some 40 s in a trial, by the heartbeats of its workers; or a job's own time-out of 300 s",
        notes=("Its commits do not wait for the disk (synchronous=NORMAL), those of the others do.",),
        rate=500,
        bulk=True,
        packages=("flexiq",),
    )

    def open(self) -> None:
        """Open the file and define the tasks."""
        tally = self.tally
        tight = {"scheduler_reap_interval": 1} if self.order.tight else {}
        self._queue = Queue(
            self.order.url.removeprefix("sqlite:///"),
            workers=self.order.concurrency,
            scheduler_batch_size=100,
            **tight,
        )

        @self._queue.task(name="noop")
        def noop(number: int) -> None:
            tally.started(number)

        @self._queue.task(name="echo")
        def echo(number: int, text: str) -> str:
            tally.started(number)
            return text

        @self._queue.task(name="hold", timeout=TIMEOUT if self.order.tight else 300)
        def hold(number: int, seconds: float) -> None:
            tally.started(number)
            time.sleep(seconds)
            tally.finished(number)

        self._tasks: dict[str, Any] = {"noop": noop, "echo": echo, "hold": hold}

    def enqueue(self, task: str, *row: Any) -> object:
        """Enqueue one job."""
        return self._tasks[task].delay(*row)

    def enqueue_many(self, task: str, rows: Sequence[Row]) -> Sequence[object]:
        """Enqueue many jobs in one call."""
        return self._queue.enqueue_many(task, list(rows))

    def result(self, handle: Any) -> object:
        """Return the result of a job."""
        return handle.result(timeout=10)

    def work(self) -> None:
        """Run the worker."""
        self._queue.run_worker()


if __name__ == "__main__":
    main(FlexiQ)
