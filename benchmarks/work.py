"""The app that is measured: a task that does nothing, and one that reports how long it waited."""

import asyncio
import random
import time
from collections import Counter

from tenure import Tenure, current_job
from tenure.core.lifecycle import TERMINAL, State

PATIENCE = 60.0
"""Seconds after which jobs that are not done yet count as lost."""


REPORTS = "reports"
"""The queue of the jobs that report their progress."""


class Work:
    """An app on one storage, and what its handlers noted in this process."""

    def __init__(self, url: str) -> None:
        self.app = Tenure(url, name="bench")
        self.waited_ns: list[int] = []
        self.ran = 0
        """How many handlers have run in this process."""
        self._awaited = 0
        self._all_ran = asyncio.Event()

        @self.app.task(name="noop")
        async def noop(number: int) -> None:
            self._count()

        @self.app.task(name="stamp")
        async def stamp(sent_ns: int) -> None:
            # The monotonic clock is one for all processes of a machine.
            self.waited_ns.append(time.monotonic_ns() - sent_ns)
            self._count()

        @self.app.task(name="reporter", queue=REPORTS)
        async def reporter() -> None:
            self.reporters += 1
            number = 0
            # Spread them over the second.
            await asyncio.sleep(random.random())
            while not self.reporters_end.is_set():
                if self.reporting:
                    current_job().progress(number)
                    number += 1
                if self.reporters_rest:
                    await self.reporters_end.wait()
                await asyncio.sleep(1)

        self.reporter = reporter
        self.reporters = 0
        """How many reporters have started."""
        self.reporting = False
        """True if each reporter reports its progress once a second."""
        self.reporters_rest = False
        """True if the reporters wait for their end, and do nothing else."""
        self.reporters_end = asyncio.Event()
        self.noop = noop
        self.stamp = stamp

    async def fill(self, jobs: int, *, trip: int) -> None:
        """Enqueue this many no-op jobs, `trip` of them at a time."""
        for start in range(0, jobs, trip):
            numbers = range(start, min(start + trip, jobs))
            await self.app.enqueue_many(self.noop.call(number) for number in numbers)

    async def until_ran(self, jobs: int) -> None:
        """Wait until this many handlers have run in this process."""
        self._awaited = jobs
        if self.ran < jobs:
            self._all_ran.clear()
            await self._all_ran.wait()

    async def until_completed(self, jobs: int) -> None:
        """Wait until this many handlers have run in this process and the storage counts as many completed jobs.

        Raises:
            RuntimeError: some handler ran twice.
        """
        await self.until_ran(jobs)
        while (completed := (await self._counts())[State.COMPLETED]) < jobs:  # noqa: ASYNC110 - no notification for that
            await asyncio.sleep(0.001)
        if not self.ran == completed == jobs:
            raise RuntimeError(f"{jobs} jobs, but {self.ran} runs and {completed} completed")

    async def until_none_left(self, jobs: int) -> None:
        """Wait until this many handlers have run in this process and the storage has no job left to do.

        If more jobs were done than a queue keeps of the completed ones, their count says nothing.

        Raises:
                RuntimeError: some handler ran twice, or not at all, or a job did not complete.
        """
        try:
            async with asyncio.timeout(PATIENCE):
                await self.until_ran(jobs)
                while (counts := await self._counts()).keys() - TERMINAL:  # noqa: ASYNC110 - the same
                    await asyncio.sleep(0.002)
        except TimeoutError as error:
            counts = await self._counts()
            raise RuntimeError(f"{jobs} jobs, but after {PATIENCE} s {self.ran} runs, and {dict(counts)}") from error
        if self.ran != jobs or counts.keys() - {State.COMPLETED}:
            raise RuntimeError(f"{jobs} jobs, but {self.ran} runs, and {dict(counts)}")

    async def completed(self) -> int:
        """Return how many completed jobs the storage keeps."""
        return (await self._counts())[State.COMPLETED]

    async def _counts(self) -> Counter[State]:
        storage = await self.app.opened()
        survey = await storage.survey()
        return sum((Counter(queue.counts) for queue in survey.queues), Counter[State]())

    def _count(self) -> None:
        self.ran += 1
        if self.ran == self._awaited:
            self._all_ran.set()
