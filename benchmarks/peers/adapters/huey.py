"""huey on Redis and on SQLite, its consumer run by threads of one process."""

import time
from dataclasses import replace
from typing import Any

from huey import Huey, RedisHuey, SqliteHuey

from benchmarks.peers.adapter import SyncPeer, main
from benchmarks.peers.order import About

ABOUT = About(
    title="huey",
    acknowledges="before",
    settings={
        "workers": "as ordered, of the type thread (default): one thread a job",
        "periodic": "off: no tasks by the clock",
        "results": "on (default): what is not None is kept until it is read",
        "read_timeout": "1 s (default): a blocking pop",
    },
    recovery="never: a job is popped before its work, and what was running is lost",
    notes=("A job is out of the store before its work begins: what it saves by that is what a crash loses.",),
    rate=5_000,
    packages=("huey", "redis", "hiredis"),
)
ON_SQLITE = replace(
    ABOUT,
    title="huey on SQLite",
    settings={
        **{name: value for name, value in ABOUT.settings.items() if name != "read_timeout"},
        "journal_mode": "wal (default)",
        "fsync": "True: synchronous=FULL, as SQLite has it by default",
        "delay, backoff, max_delay": "0.1 s, 1.15, 10 s (defaults): threads that find nothing look ever more seldom",
    },
)


class HueyPeer(SyncPeer):
    """One queue; each thread of the consumer pops, runs and pops again."""

    @classmethod
    def describe(cls, url: str) -> About:
        """Return the facts that depend on the storage of the URL."""
        return ON_SQLITE if url.startswith("sqlite") else ABOUT

    def open(self) -> None:
        """Define the tasks; huey connects by itself."""
        tally = self.tally
        self._huey = huey = _huey(self.order.url)

        @huey.task(name="noop")
        def noop(number: int) -> None:
            tally.started(number)

        @huey.task(name="echo")
        def echo(number: int, text: str) -> str:
            tally.started(number)
            return text

        @huey.task(name="hold")
        def hold(number: int, seconds: float) -> None:
            tally.started(number)
            time.sleep(seconds)
            tally.finished(number)

        self._tasks: dict[str, Any] = {"noop": noop, "echo": echo, "hold": hold}

    def enqueue(self, task: str, *row: Any) -> object:
        """Enqueue one job."""
        return self._tasks[task](*row)

    def result(self, handle: Any) -> object:
        """Return the result of a job."""
        return handle.get(blocking=True, timeout=10)

    def work(self) -> None:
        """Run the consumer."""
        self._huey.create_consumer(workers=self.order.concurrency, periodic=False).run()


def _huey(url: str) -> Huey:
    if not url.startswith("sqlite"):
        return RedisHuey("peers", url=url)
    return SqliteHuey("peers", filename=url.removeprefix("sqlite:///"), fsync=True)


if __name__ == "__main__":
    main(HueyPeer)
