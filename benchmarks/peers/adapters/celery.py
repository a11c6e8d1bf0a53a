"""Celery on Redis, by its own command line, with threads."""

import time
from typing import Any

from celery import Celery

from benchmarks.peers.adapter import SyncPeer, main
from benchmarks.peers.order import About


class CeleryPeer(SyncPeer):
    """An app with three tasks, acknowledged late."""

    about = About(
        title="Celery",
        settings={
            "pool": "threads, as many as ordered; its default of processes is slower for such jobs (peers.md)",
            "task_acks_late": "true: after the work",
            "worker_prefetch_multiplier": "4 (default)",
            "results": "ignored, but where they are read back",
            "visibility_timeout": "3,600 s (default)",
            "loglevel": "error; its default logs two lines a job",
        },
        tight={"visibility_timeout": "1 s"},
        recovery="visibility_timeout 3,600 s",
        rate=1_700,
        packages=("celery", "kombu", "redis", "hiredis"),
    )

    def open(self) -> None:
        tally = self.tally
        self._app: Any = Celery("peers", broker=self.order.url, backend=self.order.url if self.order.results else None)
        self._app.conf.update(
            task_acks_late=True,
            task_ignore_result=not self.order.results,
            broker_connection_retry_on_startup=True,
        )
        if self.order.tight:
            self._app.conf.broker_transport_options = {"visibility_timeout": 1}

        @self._app.task(name="noop")
        def noop(number: int) -> None:
            tally.started(number)

        @self._app.task(name="echo")
        def echo(number: int, text: str) -> str:
            tally.started(number)
            return text

        @self._app.task(name="hold")
        def hold(number: int, seconds: float) -> None:
            tally.started(number)
            time.sleep(seconds)
            tally.finished(number)

        self._tasks: dict[str, Any] = {"noop": noop, "echo": echo, "hold": hold}

    def enqueue(self, task: str, *row: Any) -> object:
        return self._tasks[task].delay(*row)

    def result(self, handle: Any) -> object:
        return handle.get(timeout=10)

    def work(self) -> None:
        pool = ("--pool=threads", f"--concurrency={self.order.concurrency}")
        self._app.worker_main(["worker", *pool, "--loglevel=ERROR"])


if __name__ == "__main__":
    main(CeleryPeer)
