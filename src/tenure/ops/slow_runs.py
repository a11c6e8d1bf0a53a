"""Which runs go on far beyond what is usual for their task: looked up in a few bounded reads, not in every job."""

import asyncio
import contextlib
from collections.abc import Iterable

from msgspec import Struct

from tenure.clock import SECOND, SystemClock
from tenure.core.job import JobRecord
from tenure.core.lifecycle import State
from tenure.core.typical_duration import SAMPLE, SHORT, is_far_beyond, usual
from tenure.storage.protocol import Query, Storage, Survey

PAGE = 200
MOST = 2_000
"""So many of the jobs that are active are looked at, the newest first."""

TASKS = 20
"""Of so many tasks it is found out what is usual, of those first that have runs going on for the longest."""

BUDGET = 1.0
"""Seconds that all of this may take; what is not known by then is not told."""

LASTS = 60.0
"""Seconds for which what is usual is not asked again."""

Line = tuple[str, str]
"""A task, and the queue that its job is in."""


class SlowView(Struct, frozen=True, kw_only=True):
    """A run that goes on far beyond its task's usual time; nineteen in twenty take no longer than `usual` seconds."""

    queue: str
    id: str
    task: str
    run: int
    owner: str
    ran: float
    usual: float


class Slow:
    """Looks for such runs; it remembers what is usual, for whoever looks again and again."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._usual: dict[Line, tuple[float, int | None]] = {}

    async def look(self, storage: Storage, survey: Survey) -> list[SlowView]:
        """Return them, the longest first."""
        if not any(queue.counts.get(State.ACTIVE) for queue in survey.queues):
            return []
        long: list[JobRecord] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BUDGET):
                long = await self._long(storage, survey.now)
                await self._learn(storage, long)
        found = ((job, survey.now - (job.started or survey.now), self._known(job)) for job in long)
        return [
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
            if usually is not None and is_far_beyond(ran, usually)
        ]

    async def _long(self, storage: Storage, now: int) -> list[JobRecord]:
        """Return the jobs whose runs are not short any more, the longest first."""
        found: list[JobRecord] = []
        looked, after = 0, None
        while looked < MOST:
            page = await storage.find(Query(states=(State.ACTIVE,), limit=PAGE, after=after))
            found += [job for job in page.jobs if job.started is not None and now - job.started >= SHORT]
            looked, after = looked + len(page.jobs), page.next
            if after is None:
                break
        return sorted(found, key=lambda job: (job.started or 0, job.id))

    async def _learn(self, storage: Storage, jobs: Iterable[JobRecord]) -> None:
        """Find out what is usual for these."""
        now = self._clock.uptime()
        for line in list(dict.fromkeys((job.task, job.queue) for job in jobs))[:TASKS]:
            if line in self._usual and now - self._usual[line][0] < LASTS:
                continue
            task, queue = line
            asked = Query(queues=(queue,), states=(State.COMPLETED,), tasks=(task,), limit=SAMPLE)
            done = (await storage.find(asked)).jobs
            lengths = [
                job.finished - job.started for job in done if job.started is not None and job.finished is not None
            ]
            self._usual[line] = now, usual(lengths)

    def _known(self, job: JobRecord) -> int | None:
        return self._usual.get((job.task, job.queue), (0.0, None))[1]
