"""The floor on Redis with one task a job, which handlers that wait need; otherwise like the bare scripts."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from benchmarks.peers.adapter import main
from benchmarks.peers.bare import Bare


class Loop(Bare):
    """Each handler in its own task, and a batch settled when all of them are done."""

    about = replace(
        Bare.about,
        title="floor: bare loop, a task a job",
        settings={**Bare.about.settings, "process": "the same, each handler in a task of its own"},
    )

    async def run(self, handler: Callable[[Bare, int], Awaitable[None]], jobs: list[list[int]]) -> None:
        """Run the handlers of the claimed jobs."""

        async def started(number: int) -> None:
            await handler(self, number)

        async with asyncio.TaskGroup() as group:
            for (number,) in jobs:
                group.create_task(started(number))


if __name__ == "__main__":
    main(Loop)
