"""Finds runs that take far longer than is usual for their task, with a few bounded reads of the storage."""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from tenure.clock import SECOND, SystemClock
from tenure.core.job import JobRecord
from tenure.core.lifecycle import State
from tenure.core.typical_duration import SAMPLE, SHORT, is_unusually_long, typical_duration
from tenure.storage.protocol import Query, Storage, Survey

MOST = 200
"""How many active jobs are read at most. Jobs that were enqueued more than `OLD` microseconds ago are read first."""

OLD = 3_600 * SECOND

TASKS = 20
"""For how many tasks the usual duration is looked up at most; tasks with the longest current runs come first."""

BUDGET = 1.0
"""Seconds that one look-up may take in all; slow runs not found by then are left out."""

LASTS = 60.0
"""Seconds for which a usual duration is cached."""

Line = tuple[str, str]
"""A task and a queue."""


class SlowView(Struct, frozen=True, kw_only=True):
    """A run that takes far longer than usual; `usual`: the 95th percentile of its task's durations, in seconds."""

    queue: str
    id: str
    task: str
    run: int
    owner: str
    ran: float
    usual: float


class SlowRuns(Struct, frozen=True):
    """The slow runs that were found, the longest first. `capped`: True if there may be more: not all active jobs
    that may be slow were looked at, or not all of their tasks, or the time was over.
    """

    runs: Sequence[SlowView] = ()
    capped: bool = False


NO_SLOW_RUNS = SlowRuns()


class Slow:
    """Finds slow runs; it caches usual durations for callers that look repeatedly."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._usual: dict[Line, tuple[float, int | None]] = {}

    async def look(self, storage: Storage, survey: Survey) -> SlowRuns:
        """Look for slow runs."""
        active = sum(queue.counts.get(State.ACTIVE, 0) for queue in survey.queues)
        if not active:
            return NO_SLOW_RUNS
        long: list[JobRecord] = []
        capped = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BUDGET):
                long, more = await self._long(storage, survey.now)
                await self._learn(storage, long)
                capped = more or len(_pairs(long)) > TASKS
        found = ((job, survey.now - (job.started or survey.now), self._known(job)) for job in long)
        slow = [
            SlowView(
                queue=job.queue,
                id=job.id,
                task=job.task,
                run=job.starts,
                owner=job.owner or "",
                ran=ran / SECOND,
                usual=usually / SECOND,
            )
            for job, ran, usually in found
            if usually is not None and is_unusually_long(ran, usually)
        ]
        return SlowRuns(slow, capped=capped)

    async def _long(self, storage: Storage, now: int) -> tuple[list[JobRecord], bool]:
        """Return the active jobs whose runs are no longer short, the longest first, and whether some were not read."""
        # A run is not longer than its job is old.
        query = Query(states=(State.ACTIVE,), created_before=now - SHORT + 1, limit=MOST)
        page = await storage.find(query)
        found = page.jobs
        if page.next is not None:
            old = await storage.find(structs.replace(query, created_before=now - OLD))
            found = tuple({job.ref: job for job in (*old.jobs, *found)}.values())[:MOST]
        long = [job for job in found if job.started is not None and now - job.started >= SHORT]
        return sorted(long, key=lambda job: (job.started or 0, job.id)), page.next is not None

    async def _learn(self, storage: Storage, jobs: Iterable[JobRecord]) -> None:
        """Look up the usual durations of these jobs' tasks."""
        now = self._clock.uptime()
        for pair in _pairs(jobs)[:TASKS]:
            if pair in self._usual and now - self._usual[pair][0] < LASTS:
                continue
            task, queue = pair
            query = Query(queues=(queue,), states=(State.COMPLETED,), tasks=(task,), limit=SAMPLE)
            done = (await storage.find(query)).jobs
            lengths = [
                job.finished - job.started for job in done if job.started is not None and job.finished is not None
            ]
            self._usual[pair] = now, typical_duration(lengths)

    def _known(self, job: JobRecord) -> int | None:
        return self._usual.get((job.task, job.queue), (0.0, None))[1]


def _pairs(jobs: Iterable[JobRecord]) -> list[Line]:
    return list(dict.fromkeys((job.task, job.queue) for job in jobs))
