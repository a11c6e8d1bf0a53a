"""From the id of a job to the job, and from what people call a worker to the worker."""

import getpass
import socket
from collections.abc import Callable, Sequence

from tenure.cli.exits import NotFound
from tenure.core.job import JobRecord
from tenure.core.text import storable
from tenure.errors import JobNotFoundError, UsageError
from tenure.storage.protocol import Query, Storage, Survey, WorkerSurvey

SHOWN = 10
"""So many queues are named when an id is in several."""


async def find_job(storage: Storage, job_id: str, queue: str | None) -> JobRecord:
    """Return the one job of this id; by that alone all queues are asked.

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


def find_worker(survey: Survey, told: str) -> WorkerSurvey:
    """Return the one worker of this owner id, or of the beginning of it, of this name, or of this process id.

    Raises:
        Unknown: there is none.
        UsageError: there are several.
    """
    ways: list[Callable[[WorkerSurvey], bool]] = [
        lambda worker: worker.owner.id == told,
        lambda worker: worker.owner.name == told,
        lambda worker: f"{worker.owner.host}:{worker.owner.pid}" == told,
        lambda worker: str(worker.owner.pid) == told,
        lambda worker: worker.owner.id.startswith(told),
    ]
    for is_meant in ways:
        found = [worker for worker in survey.workers if is_meant(worker)]
        # A process that is started again may have the name and the number of the one before it.
        living = [worker for worker in found if not worker.died]
        if len(found) > 1 and len(living) != 1:
            names = ", ".join(sorted(f"{one.owner.id} ({one.owner.name})" for one in found[:SHOWN]))
            raise UsageError(f"{told!r} is the name of several workers ({names}); name one by its owner id")
        if found:
            return (living or found)[0]
    raise NotFound(f"there is no worker {told!r}; see tenure workers list")


def who() -> str:
    """Return who gives this order, for the record."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        # A container may run as a user without a name.
        user = "someone"
    return storable(f"{user}@{socket.gethostname()}")
