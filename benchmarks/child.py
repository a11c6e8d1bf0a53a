"""A worker in a fresh process: it gets one JSON argument, and answers with lines of JSON."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar, assert_never

import msgspec
from msgspec import Struct

from benchmarks.work import Work
from benchmarks.working import at_full_load, beating, drain, idle, in_steady_state, while_logging, while_reporting

T = TypeVar("T")


class Drain(Struct, frozen=True, tag=True):
    """Complete the waiting jobs; answers with a `Drained`."""

    url: str
    concurrency: int
    jobs: int


class Steady(Struct, frozen=True, tag=True):
    """Have a worker of a full storage and one of each fresh one complete jobs in turn; answers with all `Turn`s."""

    full: str
    fresh: list[str]
    concurrency: int
    jobs: int
    turns: int


class Idle(Struct, frozen=True, tag=True):
    """Be idle; answers with the share of a core that this took."""

    url: str
    seconds: float


class Stamp(Struct, frozen=True, tag=True):
    """Wait for this many stamped jobs; answers true when it is ready, then with the nanoseconds each of them waited."""

    url: str
    jobs: int


class Report(Struct, frozen=True, tag=True):
    """Complete jobs, in every other turn with runs that report their progress; answers with all `Pair`s."""

    url: str
    reporters: int
    jobs: int
    turns: int


class Log(Struct, frozen=True, tag=True):
    """Complete jobs, in every other turn with their log records; answers with all `Pair`s."""

    url: str
    jobs: int
    turns: int


class Beat(Struct, frozen=True, tag=True):
    """Hold this many runs; answers true when all have begun, then with the share of a core that this took."""

    url: str
    runs: int
    seconds: float


class Load(Struct, frozen=True, tag=True):
    """Complete bursts of this many jobs without a pause; answers after each of these times with jobs a second."""

    url: str
    jobs: int
    seconds: list[float]


Order = Beat | Load | Drain | Steady | Idle | Stamp | Report | Log


class Child:
    """A started process whose output is read."""

    def __init__(self, lines: asyncio.StreamReader) -> None:
        self._lines = lines

    async def answer(self, kind: type[T]) -> T:
        """Return its next answer.

        Raises:
                RuntimeError: it ended without one.
        """
        line = await self._lines.readline()
        if not line:
            raise RuntimeError("a worker process ended without an answer; its own words stand above")
        return msgspec.json.decode(line, type=kind)


@asynccontextmanager
async def started(order: Order) -> AsyncGenerator[Child]:
    """Start a process with an order, and kill it at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.child",
        msgspec.json.encode(order),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    )
    try:
        assert process.stdout is not None
        yield Child(process.stdout)
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def obey(order: Order) -> None:
    """Obey the order."""
    match order:
        case Drain():
            work = Work(order.url)
            async with work.app:
                _answer(await drain(work, concurrency=order.concurrency, jobs=order.jobs))
        case Steady():
            full, fresh = Work(order.full), [Work(url) for url in order.fresh]
            async with full.app:
                _answer(await in_steady_state(full, fresh, order.concurrency, jobs=order.jobs, turns=order.turns))
        case Idle():
            work = Work(order.url)
            async with work.app:
                _answer(await idle(work, seconds=order.seconds))
        case Report():
            work = Work(order.url)
            async with work.app:
                _answer(await while_reporting(work, reporters=order.reporters, jobs=order.jobs, turns=order.turns))
        case Beat():
            work = Work(order.url)
            async with work.app:
                async for answer in beating(work, runs=order.runs, seconds=order.seconds):
                    _answer(answer)
        case Load():
            work = Work(order.url)
            async with work.app:
                async for answer in at_full_load(work, jobs=order.jobs, seconds=order.seconds):
                    _answer(answer)
        case Log():
            work = Work(order.url)
            async with work.app:
                _answer(await while_logging(work, jobs=order.jobs, turns=order.turns))
        case Stamp():
            work = Work(order.url)
            async with work.app, work.app.worker():
                _answer(True)
                await work.until_ran(order.jobs)
                _answer(work.waited_ns)
        case _:
            assert_never(order)


def _answer(answer: object) -> None:
    print(msgspec.json.encode(answer).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(obey(msgspec.json.decode(sys.argv[1], type=Order)))
