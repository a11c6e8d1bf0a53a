"""Finds a job by its id alone: a handle and the command line may know the id and not the queue."""

from tenure.core.job import JobRecord, Ref
from tenure.errors import AmbiguousJobError, JobNotFoundError
from tenure.storage.protocol import Query, Storage

QUEUES_NAMED = 10
"""How many queues an `AmbiguousJobError` names."""


async def find_record(storage: Storage, job_id: str, queue: str | None = None) -> JobRecord:
    """Return the only job with this id; without a queue, all queues are searched, in one call per partition.

    The id of a call that was merged into another job finds that job.

    Raises:
        JobNotFoundError: no queue has a job with this id.
        AmbiguousJobError: several queues have one, and no queue is given.
        StorageError: the storage cannot be reached.
    """
    queues = () if queue is None else (queue,)
    found = list((await storage.find(Query(id=job_id, queues=queues, limit=QUEUES_NAMED))).jobs)
    if not found:
        found = await _merged(storage, job_id, queues)
    if not found:
        place = "any queue" if queue is None else f"queue {queue!r}"
        raise JobNotFoundError(
            job_id, f"no job {job_id!r} in {place}: never enqueued there, deleted, or past its retention"
        )
    if len(found) > 1:
        raise AmbiguousJobError(job_id, tuple(sorted(job.queue for job in found)))
    return found[0]


async def _merged(storage: Storage, job_id: str, queues: tuple[str, ...]) -> list[JobRecord]:
    """Return the jobs into which calls with this id were merged. Only `get` knows such ids, and it needs the queue."""
    names = queues or tuple(queue.queue for queue in (await storage.survey()).queues)
    details = await storage.get([Ref(name, job_id) for name in names])
    return [detail.job for detail in details if detail is not None]
