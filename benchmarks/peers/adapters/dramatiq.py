"""dramatiq on Redis, its worker in this process."""

import threading
import time
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.peers.adapter import SyncPeer, main
from benchmarks.peers.order import About


class Dramatiq(SyncPeer):
    """Actors, and a worker with this many threads."""

    about = About(
        title="dramatiq",
        settings={
            "worker_threads": "as ordered",
            "processes": "1, where the command line would start one a core",
            "results": "none, but where they are read back",
            "heartbeat_timeout": "60 s (default)",
            "maintenance_chance": "0.1 % of commands (default)",
        },
        tight={"heartbeat_timeout": "1 s", "maintenance_chance": "every command"},
        recovery="heartbeat_timeout 60 s, and then by chance: 0.1 % of commands look",
        rate=2_400,
        packages=("dramatiq", "redis", "hiredis"),
    )

    def open(self) -> None:
        tally = self.tally
        tight: dict[str, Any] = {"heartbeat_timeout": 1_000, "maintenance_chance": 1_000_000}
        broker: Any = RedisBroker(url=self.order.url, **(tight if self.order.tight else {}))
        options: dict[str, Any] = {}
        if self.order.results:
            self._backend = RedisBackend(url=self.order.url)
            broker.add_middleware(Results(backend=self._backend))
            options["store_results"] = True
        dramatiq.set_broker(broker)
        self._broker = broker

        @dramatiq.actor(actor_name="noop")
        def noop(number: int) -> None:
            tally.started(number)

        @dramatiq.actor(actor_name="echo", **options)
        def echo(number: int, text: str) -> str:
            tally.started(number)
            return text

        @dramatiq.actor(actor_name="hold")
        def hold(number: int, seconds: float) -> None:
            tally.started(number)
            time.sleep(seconds)
            tally.finished(number)

        self._actors: dict[str, Any] = {"noop": noop, "echo": echo, "hold": hold}

    def enqueue(self, task: str, *row: Any) -> object:
        return self._actors[task].send(*row)

    def result(self, handle: Any) -> object:
        return handle.get_result(backend=self._backend, block=True, timeout=10_000)

    def work(self) -> None:
        dramatiq.Worker(self._broker, worker_threads=self.order.concurrency).start()
        threading.Event().wait()


if __name__ == "__main__":
    main(Dramatiq)
