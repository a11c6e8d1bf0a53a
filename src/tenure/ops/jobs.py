"""Reads of single jobs: the record with its history, and why it does not run."""

from tenure.core.job import JobDetail, Ref
from tenure.core.lifecycle import State
from tenure.errors import JobNotFoundError
from tenure.ops.access import StorageAccess
from tenure.ops.run_history import why_again
from tenure.ops.views import DetailView, ReasonView, detail_view, reason_view
from tenure.ops.why import WhyInput, explain
from tenure.storage.protocol import Query, Storage

LOOKED_AT = 500
"""How many active jobs of the queue are read, to find the one that holds a key or has run longest."""


async def job_view_of(access: StorageAccess, ref: Ref) -> DetailView:
    """Return a job with its history.

    Raises:
        JobNotFoundError: the job does not exist.
    """
    detail = await detail_of(access.storage, ref)
    return detail_view(detail, access.decode, why=why_again(detail.job, detail.runs))


async def reasons_of(access: StorageAccess, ref: Ref) -> list[ReasonView]:
    """Return why a job does not run now, or how it ended; the first cause decides.

    Raises:
        JobNotFoundError: the job does not exist.
    """
    storage = access.storage
    # The survey comes last: its clock is then not behind an instant of the job.
    detail = await detail_of(storage, ref)
    page = await storage.find(Query(queues=(detail.job.queue,), states=(State.ACTIVE,), limit=LOOKED_AT))
    survey = await storage.survey()
    evidence = WhyInput(detail=detail, survey=survey, active=page.jobs, complete=page.next is None)
    return [reason_view(reason) for reason in explain(evidence, access.timing)]


async def detail_of(storage: Storage, ref: Ref) -> JobDetail:
    """Return the record of a job with its runs and its log.

    Raises:
        JobNotFoundError: the job does not exist.
    """
    [detail] = await storage.get([ref])
    if detail is None:
        place = f"no job {ref.id!r} in queue {ref.queue!r}"
        raise JobNotFoundError(ref.id, f"{place}: never enqueued there, deleted, or past its retention")
    return detail
