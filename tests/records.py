"""Reads the stored record of a job, with the fields that users do not see."""

from typing import Any

from tenure import Job
from tenure.core.job import JobDetail, JobRecord
from tenure.storage.protocol import Storage


async def detail_of(job: Job[Any]) -> JobDetail:
    """Return the stored job with its runs and its log."""
    handle: Any = job
    storage: Storage = await handle._access.storage()
    (detail,) = await storage.get([await job.locate()])
    assert detail is not None
    return detail


async def record_of(job: Job[Any]) -> JobRecord:
    """Return the stored record of a job."""
    return (await detail_of(job)).job
