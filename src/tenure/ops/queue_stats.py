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
    storage: Storage, queue: QueueSurvey, *, now: int, window: timedelta, most: int, looks: int | None = None
) -> QueueStatsView:
    """Return a queue with statistics of the jobs that ended within the window before `now`, the newest `most` jobs.

    `looks`: about how many jobs one call of the storage looks at; None: no bound.
    """
    ended, capped = await _ended(storage, queue.queue, now - micros(window), most, looks)
    return queue_stats_view(queue, ended, window=window.total_seconds(), capped=capped)


async def _ended(
    storage: Storage, queue: str, since: int, most: int, looks: int | None
) -> tuple[list[JobRecord], bool]:
    """Return the newest jobs that ended since then, without payloads, and whether there may be more."""
    ended: list[JobRecord] = []
    after: str | None = None
    while True:
        asked = min(PAGE, most - len(ended))
        page = await storage.find(
            Query(
                queues=(queue,),
                states=tuple(sorted(TERMINAL)),
                ended_after=since,
                limit=asked,
                after=after,
                looks=looks,
            )
        )
        ended += [structs.replace(job, payload=b"", result=None, error=None) for job in page.jobs]
        after = page.next
        # The storage has reached its bound if it returns a short page with a cursor.
        if after is None or len(ended) >= most or len(page.jobs) < asked:
            return ended, after is not None
