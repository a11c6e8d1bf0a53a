"""A worker whose handlers write one row in the transaction that completes their job; run by test_exactly_once.py.

python exactly_once_worker.py URL INSERT FOLDER

The first run of a job waits until another run of it has begun, so that both run at the same time.
"""

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from tenure import LeaseLostError, Retry, Stall, Task, Tenure, Timing, current_job

PATIENCE = 10.0
AGAIN = Retry(max_attempts=1_000, base="10ms", cap="20ms")
STALL = Stall("6s", max_count=1_000)


def build(url: str, insert: str, folder: Path) -> tuple[Tenure, list[Task[[], Any]]]:
    """Return the app and its tasks. `insert`: the statement that writes a row. `folder`: where the runs leave notes."""
    app = Tenure(url, name="exactly-once", timing=Timing(lease="6s", sweep="500ms", grace="500ms"))
    rng = Random()

    def note(kind: str) -> None:
        """Note a fact in a file that all processes append to."""
        job = current_job()
        descriptor = os.open(folder / kind, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(descriptor, f"{job.id} {job.run}\n".encode())
        os.close(descriptor)

    def overlaps() -> bool:
        """Return True once a later run of this job has begun, in this process or another."""
        job = current_job()
        if job.run > 1:
            (folder / "begun" / job.id).touch()
        return (folder / "begun" / job.id).exists()

    @app.task(name="charge", retry=AGAIN, stall=STALL)
    async def charge() -> None:
        """Write a row in a coroutine."""
        until = time.monotonic() + PATIENCE
        while not overlaps() and time.monotonic() < until:  # noqa: ASYNC110 - other processes are what it waits for
            await asyncio.sleep(0.01)
        try:
            async with current_job().transaction() as tx:
                written = tx.connection.execute(insert, (current_job().id, current_job().run))
                if asyncio.iscoroutine(written):
                    await written
                await asyncio.sleep(rng.random() / 100)
        except LeaseLostError:
            note("refused")
            raise
        note("committed")

    @app.task(name="charge-plainly", retry=AGAIN, stall=STALL)
    def charge_plainly() -> None:
        """Write a row in a plain function."""
        until = time.monotonic() + PATIENCE
        while not overlaps() and time.monotonic() < until and not current_job().cancelled:
            time.sleep(0.01)
        try:
            with current_job().transaction() as tx:
                tx.connection.execute(insert, (current_job().id, current_job().run))
                time.sleep(rng.random() / 100)
        except LeaseLostError:
            note("refused")
            raise
        note("committed")

    return app, [charge, charge, charge, charge_plainly]


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(build(sys.argv[1], sys.argv[2], Path(sys.argv[3]))[0].worker(concurrency=60).run())
