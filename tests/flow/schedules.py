"""Helpers for the tests of schedules: an app with one scheduled task, a reaper, and a list of the jobs created."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

from tenure import Reaper, Tenure, Timing
from tenure.client.schedules import ScheduleDecorator
from tenure.core.duration import moment
from tenure.core.job import JobRecord
from tenure.storage.protocol import Query, Storage
from tenure_testing.simulation.event_loop import EPOCH
from tests.flow.conftest import FAST, Harness

START = moment(EPOCH)
"""08:00 UTC on 15 January 2027."""

SLOW = Timing(lease="1h", sweep="10m", grace="10m")
"""The timing for scenarios of days: only ticks wake the reaper."""


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def set_to(harness: Harness, at: datetime) -> None:
    harness.clock.step((at - moment(harness.clock.now())).total_seconds())


async def jobs_of(storage: Storage, name: str) -> list[JobRecord]:
    """Return all jobs of a schedule, the oldest tick first."""
    found, cursor = list[JobRecord](), None
    while True:
        page = await storage.find(Query(limit=1000, after=cursor))
        found += [job for job in page.jobs if job.schedule == name]
        cursor = page.next
        if cursor is None:
            return sorted(found, key=lambda job: (job.tick or 0, job.created))


async def ticks_of(harness: Harness, name: str) -> list[datetime]:
    return [moment(job.tick) for job in await jobs_of(harness.storage, name) if job.tick is not None]


def scheduled(harness: Harness, declare: Callable[[Tenure], ScheduleDecorator], **options: Any) -> Tenure:
    """Return an app with a task "work" that has this schedule."""
    app = harness.app(**{"timing": FAST, **options})

    @declare(app)
    @app.task(name="work")
    async def work() -> None: ...

    return app


@asynccontextmanager
async def sweeping(app: Tenure) -> AsyncGenerator[Reaper]:
    """Let a reaper of this app sweep."""
    reaper = Reaper(app)
    await reaper.start()
    try:
        yield reaper
    finally:
        await reaper.stop()
