"""Lists the jobs that a filter selects, with a bound on how many jobs one page looks at.

A storage answers most conditions by itself. The others are checked here, page by page.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec import Struct, structs

from tenure.client.dead_letters import fault
from tenure.core.check import shown
from tenure.core.document import Progress
from tenure.core.duration import moment
from tenure.core.filter_text import JobConditions, Patterns, exact_names
from tenure.core.job import JobRecord
from tenure.core.lifecycle import State
from tenure.errors import UsageError
from tenure.storage.protocol import ListOrder, Query, Storage, Survey

PAGE = 200
"""How many jobs one call of the storage returns if some of them are left out here."""

MESSAGE_SHOWN = 200
"""How many characters of an error's message a row shows."""


class RowErrorView(Struct, frozen=True):
    """The class and the beginning of the message of the exception that the last run raised."""

    type: str
    message: str


class JobRowView(Struct, frozen=True, kw_only=True):
    """A job in a list, without its arguments, result and traceback. `fault`: its fingerprint, if it has failed."""

    queue: str
    id: str
    task: str
    state: State
    reason: str | None
    tags: tuple[str, ...]
    priority: int
    created: datetime
    run_at: datetime
    started: datetime | None
    finished: datetime | None
    starts: int
    attempt: int
    max_attempts: int
    failures: int
    stalls: int
    fence: int
    owner: str | None
    lease_until: datetime | None
    cancel_asked: datetime | None
    progress: Progress | None
    progress_note: str | None
    schedule: str | None
    fault: str | None
    error: RowErrorView | None


class Selection(Struct, frozen=True):
    """A filter for one storage: the query, and a function that checks what the query cannot. No query: no job matches.

    `sifts`: None if the query checks everything.
    """

    query: Query | None
    sifts: Callable[[JobRecord], bool] | None = None


class JobsFound(Struct, frozen=True):
    """One page of jobs, and the cursor of the next page (None: this was the last page).

    `short`: the page has fewer jobs than it could hold because the bound was reached; more may match.
    """

    jobs: Sequence[JobRecord]
    next: str | None
    short: bool = False


def selection(
    where: JobConditions,
    survey: Survey,
    *,
    sees: Callable[[str], bool] | None = None,
    order: ListOrder = "newest",
) -> Selection:
    """Return the selection of a filter. `survey`: of the storage. `sees`: which queues the caller may read.

    Raises:
        UsageError: the jobs that the filter selects have no such order.
    """
    queues: tuple[str, ...] = tuple(pattern.text for pattern in where.queues)
    if sees is not None or any(pattern.glob for pattern in where.queues):
        known = dict.fromkeys([*exact_names(where.queues), *(queue.queue for queue in survey.queues)])
        queues = tuple(
            queue
            for queue in known
            if (sees is None or sees(queue))
            and (not where.queues or any(pattern.matches(queue) for pattern in where.queues))
        )
        if not queues:
            return Selection(None)
    states = where.states
    if where.owners:
        # A job has an owner only while it runs.
        if states and State.ACTIVE not in states:
            return Selection(None)
        states = (State.ACTIVE,)
    owner = _owner(_only(where.owners), survey)
    exact_tasks = not any(pattern.glob for pattern in where.tasks)
    fault_name = where.faults[0] if len(where.faults) == 1 else None
    key, schedule = _only(where.keys), _only(where.schedules)
    now = survey.now

    def ago(span: int | None) -> int | None:
        return None if span is None else now - span

    query = Query(
        queues=queues,
        states=states,
        tasks=tuple(pattern.text for pattern in where.tasks) if exact_tasks else (),
        reasons=where.reasons,
        tags=where.tags,
        fault=fault_name,
        owner=owner,
        key=key,
        schedule=schedule,
        id=where.id,
        created_before=ago(where.older),
        created_after=ago(where.younger),
        ended_before=ago(where.ended_before),
        ended_after=ago(where.ended_within),
        order=order,
    )
    rest = structs.replace(
        where,
        tasks=() if exact_tasks else where.tasks,
        faults=where.faults if fault_name is None else (),
        owners=where.owners if owner is None else (),
        keys=where.keys if key is None else (),
        schedules=where.schedules if schedule is None else (),
    )
    return Selection(query, _sieve(rest, survey))


def _only(patterns: Patterns) -> str | None:
    """Return the name that a condition asks for, if it is a single one."""
    return patterns[0].text if len(patterns) == 1 and not patterns[0].glob else None


def _owner(name: str | None, survey: Survey) -> str | None:
    """Return the id of the one owner that has this name or id; None if there are several."""
    if name is None:
        return None
    ids = [worker.owner.id for worker in survey.workers if worker.owner.name == name] or [name]
    return ids[0] if len(ids) == 1 else None


def _sieve(where: JobConditions, survey: Survey) -> Callable[[JobRecord], bool] | None:
    """Return a function that checks the conditions that no query has; None if there are none."""
    checks: list[Callable[[JobRecord], bool]] = []
    if where.tasks:
        checks.append(lambda job: _any(where.tasks, job.task))
    if where.errors:
        checks.append(lambda job: job.error is not None and _any(where.errors, job.error.type))
    if where.faults:
        checks.append(lambda job: job.state is State.FAILED and fault(job) in where.faults)
    if where.owners:
        owners = {worker.owner.id for worker in survey.workers if _any(where.owners, worker.owner.name)}
        checks.append(lambda job: job.owner is not None and (job.owner in owners or _any(where.owners, job.owner)))
    if where.keys:
        checks.append(lambda job: any(_any(where.keys, key.name) for key in job.keys))
    if where.schedules:
        checks.append(lambda job: job.schedule is not None and _any(where.schedules, job.schedule))
    return (lambda job: all(check(job) for check in checks)) if checks else None


def _any(patterns: Patterns, name: str) -> bool:
    return any(pattern.matches(name) for pattern in patterns)


async def selected_jobs(
    storage: Storage, selected: Selection, *, limit: int, after: str | None, looks: int | None = None
) -> JobsFound:
    """Return the next `limit` jobs of a selection. `looks`: about how many jobs are looked at; None: no bound.

    Raises:
        UsageError: `after` is not a cursor.
    """
    if selected.query is None:
        return JobsFound((), None)
    try:
        return await _matching(storage, structs.replace(selected.query, looks=looks), selected.sifts, limit, after)
    except ValueError as error:
        raise UsageError(
            f"after = {shown(after)} is not a cursor; use the one at the end of the previous page"
        ) from error


async def _matching(
    storage: Storage,
    query: Query,
    matches: Callable[[JobRecord], bool] | None,
    limit: int,
    after: str | None,
) -> JobsFound:
    found: list[JobRecord] = []
    looked = 0
    while True:
        room = limit - len(found)
        asked = room if matches is None else max(PAGE, room)
        page = await storage.find(structs.replace(query, after=after, limit=asked))
        looked += len(page.jobs)
        # The storage itself has reached its bound if it returns a short page with a cursor.
        spent = query.looks is not None and (looked >= query.looks or len(page.jobs) < asked)
        places = [index for index, job in enumerate(page.jobs) if matches is None or matches(job)]
        if len(places) > room:
            # Only the end of a page has a cursor: read the page that ends with the last wanted job.
            page = await storage.find(structs.replace(query, after=after, limit=places[room - 1] + 1))
        found += [job for job in page.jobs if matches is None or matches(job)]
        after = page.next
        if after is None or len(found) >= limit or spent:
            return JobsFound(found, after, short=after is not None and len(found) < limit)


def job_row(job: JobRecord) -> JobRowView:
    """Return the row of a job."""
    return JobRowView(
        queue=job.queue,
        id=job.id,
        task=job.task,
        state=job.state,
        reason=job.reason,
        tags=job.tags,
        priority=job.priority,
        created=moment(job.created),
        run_at=moment(job.run_at),
        started=_moment(job.started),
        finished=_moment(job.finished),
        starts=job.starts,
        attempt=job.attempt,
        max_attempts=job.policy.retry.max_attempts,
        failures=job.failures,
        stalls=job.stalls,
        fence=job.fence,
        owner=job.owner,
        lease_until=_moment(job.lease_until),
        cancel_asked=_moment(job.cancel_at),
        progress=job.progress,
        progress_note=job.progress_note,
        schedule=job.schedule,
        fault=fault(job) if job.state is State.FAILED else None,
        error=None if job.error is None else RowErrorView(job.error.type, job.error.message[:MESSAGE_SHOWN]),
    )


def _moment(at: int | None) -> datetime | None:
    return None if at is None else moment(at)
