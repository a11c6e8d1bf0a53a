"""Statistics of queues from the jobs that ended recently."""

from datetime import timedelta

from msgspec import structs

from tenure.core.duration import micros
from tenure.core.job import JobRecord
from tenure.core.lifecycle import TERMINAL
from tenure.ops.views import QueueStatsView, queue_stats_view
from tenure.storage.protocol import Query, QueueSurvey, Storage

PAGE = 200
"""How many ended jobs one call reads."""


async def queue_stats(
    storage: Storage, queue: QueueSurvey, *, now: int, window: timedelta, most: int
) -> QueueStatsView:
    """Return a queue with statistics of the jobs that ended within the window before `now`, the newest `most` jobs."""
    ended, capped = await _ended(storage, queue.queue, now - micros(window), most)
    return queue_stats_view(queue, ended, window=window.total_seconds(), capped=capped)


async def _ended(storage: Storage, queue: str, since: int, most: int) -> tuple[list[JobRecord], bool]:
    """Return the newest jobs that ended since then, without payloads, and whether there are more."""
    ended: list[JobRecord] = []
    after: str | None = None
    while True:
        page = await storage.find(
            Query(
                queues=(queue,),
                states=tuple(sorted(TERMINAL)),
                ended_after=since,
                limit=min(PAGE, most - len(ended)),
                after=after,
            )
        )
        ended += [structs.replace(job, payload=b"", result=None, error=None) for job in page.jobs]
        after = page.next
        if after is None or len(ended) >= most:
            return ended, after is not None
