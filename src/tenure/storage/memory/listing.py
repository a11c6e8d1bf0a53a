"""Which jobs a listing contains, and which faults the failed jobs have."""

from collections import defaultdict
from collections.abc import Collection, Iterable

from tenure.core.deduplication import merge_name
from tenure.core.fingerprint import NEWEST, FaultSurvey, by_frequency, shown_error
from tenure.core.internal import is_internal
from tenure.core.job import JobRecord
from tenure.core.lifecycle import TERMINAL
from tenure.storage.cursors import due_place
from tenure.storage.protocol import Page, Query, due_place_of, page_of_due


def faults_of(jobs: Iterable[JobRecord], queues: Collection[str], limit: int) -> tuple[FaultSurvey, ...]:
    """Return the faults of some queues with the most failed jobs."""
    failed: defaultdict[tuple[str, str], list[tuple[int, str, JobRecord]]] = defaultdict(list)
    for job in jobs:
        if job.fault is not None and job.finished is not None and job.queue in queues:
            failed[job.queue, job.fault].append((job.finished, job.id, job))
    faults = [
        FaultSurvey(
            queue=queue,
            fault=name,
            count=len(same),
            first=min(same)[0],
            last=(newest := sorted(same, reverse=True)[:NEWEST])[0][0],
            newest=tuple((at, id_) for at, id_, _ in newest),
            task=newest[0][2].task,
            reason=newest[0][2].reason,
            error=shown_error(newest[0][2].error),
        )
        for (queue, name), same in failed.items()
    ]
    return tuple(sorted(faults, key=by_frequency)[:limit])


def matches(job: JobRecord, query: Query) -> bool:
    """Return True if a listing contains a job."""
    return (
        (job.queue in query.queues if query.queues else not is_internal(job.queue))
        and (not query.states or job.state in query.states)
        and (not query.tasks or job.task in query.tasks)
        and (not query.reasons or job.reason in query.reasons)
        and set(query.tags) <= set(job.tags)
        and (query.owner is None or job.owner == query.owner)
        and (query.key is None or any(key.name == query.key for key in job.keys))
        and (query.schedule is None or job.schedule == query.schedule)
        and (query.fault is None or job.fault == query.fault)
        and (query.created_after is None or job.created >= query.created_after)
        and (query.created_before is None or job.created < query.created_before)
        and (query.ended_after is None or (job.finished is not None and job.finished >= query.ended_after))
        and (query.ended_before is None or (job.finished is not None and job.finished < query.ended_before))
        and (query.id is None or job.id == query.id)
        and (query.merge is None or _holds_key(job, query.merge))
    )


def due_page(jobs: Iterable[JobRecord], query: Query) -> Page:
    """Return one page of delayed jobs, the one that falls due first at the front."""
    begin = due_place(query.after)
    waiting = sorted(
        (due_place_of(job), job) for job in jobs if matches(job, Query(queues=query.queues, states=query.states))
    )
    left = [(place, job) for place, job in waiting if place > begin]
    found = [(place, job) for place, job in left[: query.looks] if matches(job, query)]
    bound = left[query.looks - 1][0] if query.looks is not None and len(left) > query.looks else None
    return page_of_due(found, query.limit, bound)


def _holds_key(job: JobRecord, name: str) -> bool:
    return job.merge is not None and job.state not in TERMINAL and merge_name(job.merge) == name
