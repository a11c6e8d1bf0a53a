"""A producer: enqueues jobs until it is asked to stop, and records each request and each answer in a file."""

import asyncio
import os
import signal
from random import Random

from tenure.client.job_template import EncodedCall
from tenure.clock import Clock, SystemClock
from tenure.errors import StorageError
from tenure_testing.chaos import tasks
from tenure_testing.chaos.records import Answer, EnqueuedCall, uptime
from tenure_testing.demo.handler_log import note

NAME_VARIABLE = "TENURE_CHAOS_RUN_PRODUCER"
SEED_VARIABLE = "TENURE_CHAOS_RUN_SEED"
CALLS_VARIABLE = "TENURE_CHAOS_RUN_CALLS"

PAUSE = 0.2
"""Seconds on average between two calls. Each call has one to three jobs."""

REPEATS = 5
"""How often a refused call is repeated with the same ids. Some calls are given up at once, as real clients do."""

LENGTHS = (0.6, 0.9)
"""The share of jobs that take up to 0.1 s, and of those that take up to 2 s. The others take 4 to 10 s."""


class Producer:
    """Draws jobs, enqueues them, and records the answers."""

    def __init__(self, name: str, rng: Random, clock: Clock, enqueued_calls: str) -> None:
        self._name = name
        self._rng = rng
        self._clock = clock
        self._enqueued_calls = enqueued_calls
        self._made = 0

    async def run(self, leaving: asyncio.Event) -> None:
        """Enqueue jobs until asked to stop."""
        while not leaving.is_set():
            await self._enqueue(leaving)
            await asyncio.sleep(self._rng.expovariate(1 / PAUSE))
        await tasks.app.close()

    async def _enqueue(self, leaving: asyncio.Event) -> None:
        calls = [self._call() for _ in range(self._rng.choice((1, 1, 1, 2, 3)))]
        ids = [call.job.id for call in calls]
        self._note(ids, "asked")
        for _ in range(self._rng.choice((1, REPEATS))):
            try:
                await tasks.app.enqueue_many(calls)
            except StorageError as error:
                self._note(ids, "refused", type(error).__name__)
                if leaving.is_set():
                    return
                await asyncio.sleep(self._rng.random())
            else:
                self._note(ids, "acked")
                return

    def _call(self) -> EncodedCall[list[int]]:
        self._made += 1
        seconds = self._seconds()
        task = self._rng.choice((tasks.walk, tasks.walk, tasks.plod))
        falls = self._rng.choice((0, 0, 0, 0, 0, 0, 0, 0, 1, 2))
        delay = self._rng.choice((0, 0, 0, 0, 0, 1.5))
        return task.options(id=f"{self._name}-{self._made}", delay=delay).call(seconds, falls)

    def _seconds(self) -> float:
        short, middling = LENGTHS
        share = self._rng.random()
        if share < short:
            return self._rng.uniform(0, 0.1)
        return self._rng.uniform(0.2, 2) if share < middling else self._rng.uniform(4, 10)

    def _note(self, ids: list[str], what: Answer, why: str = "") -> None:
        for job in ids:
            note(self._enqueued_calls, EnqueuedCall(job, what, uptime(self._clock), why))


async def _run() -> None:
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
    name = os.environ[NAME_VARIABLE]
    rng = Random(f"{os.environ[SEED_VARIABLE]} {name}")
    await Producer(name, rng, SystemClock(), os.environ[CALLS_VARIABLE]).run(leaving)


if __name__ == "__main__":
    asyncio.run(_run())
