"""From the id of a job to the job: a look-up by id alone asks all queues."""

import getpass
import socket
from collections.abc import Sequence

from holdfast.core.job import JobRecord
from holdfast.errors import JobNotFoundError, UsageError
from holdfast.storage.protocol import Query, Storage

SHOWN = 10
"""So many queues are named when an id is in several."""


async def find_job(storage: Storage, job_id: str, queue: str | None) -> JobRecord:
    """Return the one job of this id.

    Raises:
        JobNotFoundError: there is none.
        UsageError: there are several, and no queue was named.
    """
    queues = () if queue is None else (queue,)
    found = (await storage.find(Query(id=job_id, queues=queues, limit=SHOWN))).jobs
    if not found:
        where = "any queue" if queue is None else f"queue {queue!r}"
        raise JobNotFoundError(
            job_id, f"no job {job_id!r} in {where}: never enqueued there, deleted, or past its retention"
        )
    first, *others = found
    if others:
        names = ", ".join(sorted(job.queue for job in found))
        raise UsageError(f"the id {job_id!r} is in several queues ({names}); name one with --queue")
    return first


async def find_jobs(storage: Storage, ids: Sequence[str], queue: str | None) -> list[JobRecord]:
    """Return the jobs of these ids, or refuse all of them.

    Raises:
        JobNotFoundError: one of them is unknown.
        UsageError: one of them is in several queues, and none was named.
    """
    return [await find_job(storage, job_id, queue) for job_id in dict.fromkeys(ids)]


def who() -> str:
    """Return who gives this order, for the record."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        # A container may run as a user without a name.
        return f"someone@{socket.gethostname()}"
