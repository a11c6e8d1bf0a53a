"""Moves jobs in a process that kills itself after a step: `python -m tests.system.move_script FROM TO STEP TIMES`."""

import asyncio
import os
import signal
import sys

from tenure.ops.move import Move
from tenure.storage.urls import locate


async def main(source: str, target: str, step: str, times: int) -> None:
    """Move until a step was reached this many times, and die there."""
    left = times

    def on_step(reached: str) -> None:
        nonlocal left
        left -= reached == step
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    leaves, arrives = locate(source), locate(target)
    await leaves.open()
    await arrives.open()
    await Move(leaves, arrives, on_step=on_step).run()


if __name__ == "__main__":
    _, SOURCE, TARGET, STEP, TIMES = sys.argv
    asyncio.run(main(SOURCE, TARGET, STEP, int(TIMES)))
