"""Relays in a process that kills itself after a step: `python -m tests.system.relay_script URL OUTBOX [STEP TIMES]`."""

import asyncio
import os
import signal
import sys

from tenure import Tenure
from tenure.maintenance.relay import Relay


async def main(url: str, outbox: str, step: str, times: int) -> None:
    """Relay until a step was reached this many times, and die there."""
    left = times

    def on_step(reached: str) -> None:
        nonlocal left
        left -= reached == step
        if step and not left:
            os.kill(os.getpid(), signal.SIGKILL)

    await Relay(Tenure(url, outbox=outbox).runtime(), on_step=on_step).run()


if __name__ == "__main__":
    _, URL, OUTBOX, *REST = sys.argv
    asyncio.run(main(URL, OUTBOX, *((REST[0], int(REST[1])) if REST else ("", 0))))
