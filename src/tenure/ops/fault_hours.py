"""Counts when the jobs of a fault failed: by hour, within two days, from a bounded look at the jobs themselves."""

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from tenure.core.duration import moment
from tenure.core.figures import HOUR
from tenure.core.lifecycle import State
from tenure.storage.protocol import Query, Storage

HOURS = 48
"""How many hours are counted."""

PAGE = 200
"""How many jobs one call reads."""


class FaultHoursView(Struct, frozen=True, kw_only=True):
    """How many of a fault's dead letters failed in each hour from `since` on. A redriven job counts no more.

    `looks`: about how many of them the request looked at most, those that were enqueued last. `short`: it reached this
    bound, so there were more.
    """

    since: datetime
    hours: list[int]
    looks: int
    short: bool


async def fault_hours_view(
    storage: Storage, queues: Sequence[str], fault: str, *, now: int, looks: int
) -> FaultHoursView:
    """Return when the dead letters of a fault failed. `now`: the time of the storage's clock."""
    since = now - HOURS * HOUR
    hours = [0] * HOURS
    looked, after = 0, None
    # Without names, a query is one of all queues.
    while queues and looked < looks:
        asked = min(PAGE, looks - looked)
        page = await storage.find(
            Query(
                queues=tuple(queues),
                states=(State.FAILED,),
                fault=fault,
                ended_after=since,
                limit=asked,
                after=after,
                looks=looks,
            )
        )
        for job in page.jobs:
            if job.finished is not None:
                # A job may have failed after the survey.
                hours[min(HOURS - 1, (job.finished - since) // HOUR)] += 1
        looked, after = looked + len(page.jobs), page.next
        if len(page.jobs) < asked:
            # The last page, or the storage has looked at as many other jobs as it may.
            break
    return FaultHoursView(since=moment(since), hours=hours, looks=looks, short=after is not None)
