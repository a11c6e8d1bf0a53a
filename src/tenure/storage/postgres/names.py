"""Checks the names of new jobs: PostgreSQL holds no text with a NUL."""

from collections.abc import Iterator

from tenure.core.check import shown
from tenure.core.job import JobRecord, NewJob
from tenure.errors import UsageError


def require_storable(job: NewJob | JobRecord) -> None:
    """Check all names of a job.

    Raises:
        UsageError: one of them contains NUL.
    """
    for field, name in _names(job):
        if name is not None and "\0" in name:
            raise UsageError(f"{field} = {shown(name)} contains NUL, which PostgreSQL cannot hold; use another name")


def _names(job: NewJob | JobRecord) -> Iterator[tuple[str, str | None]]:
    yield "queue", job.queue
    yield "id", job.id
    yield "task", job.task
    yield "fair_key", job.fair_key
    yield "schedule", job.schedule
    yield "parent", job.parent
    yield "throttle", job.throttle.key if isinstance(job, NewJob) and job.throttle is not None else None
    yield "merge", None if job.merge is None else job.merge.key
    for tag in job.tags:
        yield "tags", tag
    for key in job.keys:
        yield "concurrency_key", key.name
    for rate in job.rates:
        yield "rate", rate.name
