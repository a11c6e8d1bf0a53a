"""RQ on Redis: one job at a time."""

import time
from typing import Any

from redis import Redis
from rq import Queue, Retry, SimpleWorker, Worker

from benchmarks.peers.adapter import SyncPeer, main
from benchmarks.peers.order import About
from benchmarks.peers.tally import Tally

HERE = "benchmarks.peers.adapters.rq"
"""Where workers find the tasks: RQ accepts none from the module that is run as a program."""


class Box:
    """Holds the tally of this process for the tasks, which RQ finds by their names."""

    tally: Tally


def noop(number: int) -> None:
    Box.tally.started(number)


def echo(number: int, text: str) -> str:
    Box.tally.started(number)
    return text


def hold(number: int, seconds: float) -> None:
    Box.tally.started(number)
    time.sleep(seconds)
    Box.tally.finished(number)


class Rq(SyncPeer):
    """A queue; SimpleWorker to measure speed, Worker, which forks for each job, to measure a crash."""

    about = About(
        title="RQ",
        settings={
            "worker": "SimpleWorker, the fastest it has; for the crash Worker (default), which forks for each job",
            "result_ttl": "500 s (default): results are always kept",
            "logging": "warnings; its default logs three lines a job",
        },
        tight={"job_monitoring_interval": "1 s", "maintenance_interval": "1 s", "retry": "3"},
        recovery="its registries are cleaned every 600 s, and an abandoned job fails unless it has a retry",
        rate=600,
        bulk=True,
        at_once=1,
        packages=("rq", "redis", "hiredis"),
        notes=("One job at a time at any concurrency; more needs more processes.",),
    )

    def open(self) -> None:
        self._redis = Redis.from_url(self.order.url)
        self._queue = Queue("default", connection=self._redis)
        self._options: dict[str, Any] = {"retry": Retry(max=3)} if self.order.tight else {}

    def enqueue(self, task: str, *row: Any) -> object:
        return self._queue.enqueue(f"{HERE}.{task}", *row, **self._options)

    def enqueue_many(self, task: str, rows: Any) -> Any:
        datas = [Queue.prepare_data(f"{HERE}.{task}", args=row, **self._options) for row in rows]
        return self._queue.enqueue_many(datas)

    def result(self, handle: Any) -> object:
        for _ in range(200):
            if (value := handle.return_value(refresh=True)) is not None:
                return value
            time.sleep(0.05)
        return None

    def work(self) -> None:
        from benchmarks.peers.adapters import rq as imported

        imported.Box.tally = self.tally
        kind = Worker if self.order.task == "hold" else SimpleWorker
        tight: dict[str, Any] = {"job_monitoring_interval": 1, "maintenance_interval": 1} if self.order.tight else {}
        kind([self._queue], connection=self._redis, **tight).work(logging_level="WARNING")


if __name__ == "__main__":
    main(Rq)
