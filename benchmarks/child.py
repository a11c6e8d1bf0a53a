"""A worker in a fresh process: ordered by one JSON argument, it answers with lines of JSON."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar, assert_never

import msgspec
from msgspec import Struct

from benchmarks.work import Work
from benchmarks.working import at_work, drain, idle

T = TypeVar("T")


class Drain(Struct, frozen=True, tag=True):
    """Work off the jobs that wait; answers with a `Drained`."""

    url: str
    concurrency: int
    jobs: int


class Busy(Struct, frozen=True, tag=True):
    """Settle, and answer true; then do so many jobs for each line, and answer each with a `Drained`."""

    url: str
    concurrency: int
    jobs: int
    watched: bool


class Idle(Struct, frozen=True, tag=True):
    """Have nothing to do; answers with the share of a core that this took."""

    url: str
    seconds: float


class Stamp(Struct, frozen=True, tag=True):
    """Wait for so many stamped jobs; answers true when it is ready, then with the nanoseconds each of them waited."""

    url: str
    jobs: int


Order = Drain | Busy | Idle | Stamp


class Child:
    """A started process, to be asked and listened to."""

    def __init__(self, asks: asyncio.StreamWriter, lines: asyncio.StreamReader) -> None:
        self._asks = asks
        self._lines = lines

    async def ask(self) -> None:
        """Write it a line."""
        self._asks.write(b"\n")
        await self._asks.drain()

    def leave(self) -> None:
        """Tell it that there is nothing more to do."""
        self._asks.close()

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
    """Start a process on an order, and see it off."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.child",
        msgspec.json.encode(order),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        child = Child(process.stdin, process.stdout)
        yield child
        child.leave()
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def obey(order: Order) -> None:
    """Do what was ordered."""
    work = Work(order.url)
    match order:
        case Drain():
            _answer(await drain(work, concurrency=order.concurrency, jobs=order.jobs))
        case Busy():
            async with at_work(work, concurrency=order.concurrency, watched=order.watched) as burst:
                _answer(True)
                while await asyncio.to_thread(sys.stdin.readline):
                    _answer(await burst(order.jobs))
        case Idle():
            _answer(await idle(work, seconds=order.seconds))
        case Stamp():
            async with work.app.worker():
                _answer(True)
                await work.until_ran(order.jobs)
                _answer(work.waited_ns)
        case _:
            assert_never(order)
    await work.app.close()


def _answer(answer: object) -> None:
    print(msgspec.json.encode(answer).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(obey(msgspec.json.decode(sys.argv[1], type=Order)))
