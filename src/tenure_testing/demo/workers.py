"""The demo's workers: a supervisor, started by the usual command, and its children."""

import asyncio
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from tenure_testing.demo.processes import alive
from tenure_testing.demo.tasks import HANDLER_LOG_VARIABLE, QUEUE_VARIABLE

WORKERS = 3
CONCURRENCY = 2

LEAVE = 15.0
"""Seconds within which the supervisor must stop gracefully."""

VANISH = 5.0
"""Seconds within which the children of a killed supervisor must end, too."""

_LOOK = 0.05


class DemoWorkers:
    """The supervisor's process, and the children that have been seen."""

    def __init__(self, url: str, *, queue: str, handler_log: Path, log: Path) -> None:
        self._url = url
        self._queue = queue
        self._handler_log = handler_log
        self._log = log
        self._process: Process | None = None
        self._children: set[int] = set()

    async def start(self) -> None:
        """Start the supervisor in a separate session, so that only the demo receives Ctrl-C."""
        with self._log.open("wb") as log:
            self._process = await self._started(log)

    async def _started(self, log: IO[bytes]) -> Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tenure", "worker", "tenure_testing.demo.tasks:app"),
            *("--processes", str(WORKERS), "-c", str(CONCURRENCY), "--log-level", "warning"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={
                # Leave out variables that the user has set for other Tenure processes.
                **{name: value for name, value in os.environ.items() if not name.startswith("TENURE_")},
                "TENURE_URL": self._url,
                QUEUE_VARIABLE: self._queue,
                HANDLER_LOG_VARIABLE: str(self._handler_log),
            },
            start_new_session=True,
        )

    def saw(self, pids: Iterable[int]) -> None:
        """Remember these children."""
        self._children.update(pids)

    def lost(self, pid: int) -> None:
        """Forget a dead child, because the system may reuse its process id."""
        self._children.discard(pid)

    @property
    def status(self) -> int | None:
        """The supervisor's exit status, None while it runs."""
        return self._process.returncode if self._process is not None else None

    async def leave(self) -> int:
        """Ask all to stop, and return the supervisor's exit status."""
        process = self._process
        if process is None:
            return 0
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(LEAVE):
                    await process.wait()
            except TimeoutError:
                await self.abort()
        return process.returncode or 0

    async def abort(self) -> None:
        """Kill the supervisor, and wait until its children have ended. Idempotent."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.kill()
            await process.wait()
        for _ in range(round(VANISH / _LOOK)):
            if not any(alive(pid) for pid in self._children):
                return
            await asyncio.sleep(_LOOK)

    def last_words(self, lines: int = 40) -> list[str]:
        """Return the end of the stderr output of the supervisor and its workers."""
        return self._log.read_text(errors="replace").splitlines()[-lines:] if self._log.exists() else []
