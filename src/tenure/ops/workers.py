"""Finds workers, and the stacks of the runs that they are in."""

from collections.abc import Callable, Collection
from datetime import datetime

from msgspec import Struct, structs

from tenure.clock import SECOND
from tenure.core.duration import moment
from tenure.core.job import JobDetail, JobRecord, Owner
from tenure.core.lifecycle import State
from tenure.core.suggestion import did_you_mean
from tenure.errors import UsageError
from tenure.health.assessment import state_of
from tenure.ops.names import known_names
from tenure.options import Timing
from tenure.storage.protocol import Query, Settings, Storage, Survey, Target, WorkerSurvey

SHOWN = 10
"""How many matches an error message lists if a name is ambiguous."""

PAGE = 200
"""How many active jobs one call reads."""

MOST = 20_000
"""How many active jobs are searched for those of one worker."""

DETAILS = 50
"""How many jobs one call reads with their runs and logs."""


class UnknownWorkerError(UsageError):
    """No worker has this owner id, name, host:pid or process id."""


class ListedWorker(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker. `state`: alive, quiet, stopping, stale, died. `lag` in seconds, `memory` in bytes, 0 if unknown.

    `why`: the reason if it has stopped claiming by itself, else empty.
    """

    owner: str
    name: str
    host: str
    pid: int
    queues: tuple[str, ...]
    concurrency: int
    active: int
    started: datetime
    seen_ago: float
    turned_ago: float
    state: str
    lag: float
    memory: int
    why: str = ""


class OrderedView(Struct, frozen=True, kw_only=True):
    """A worker, and the orders that apply to it. `concurrency`: None if it is the worker's own."""

    owner: str
    name: str
    quiet: bool
    stop: bool
    concurrency: int | None


class StackView(Struct, frozen=True, kw_only=True):
    """A run of a worker. `trace`: the stack of its handler `seen_ago` seconds ago; None if it was not recorded yet."""

    worker: str
    owner: str
    queue: str
    id: str
    task: str
    run: int
    fence: int
    started: datetime | None
    ran: float | None
    seen_ago: float
    trace: str | None


async def give_order(storage: Storage, owner: Owner, order: Settings, *, by: str) -> OrderedView:
    """Give an order to a worker: to claim no more jobs, to claim again, to stop, or to run another number of jobs.

    Raises:
        StorageError: the order may or may not have been given; it is safe to call again.
    """
    now = await storage.tune(Target("worker", owner.id), order, by=by)
    return OrderedView(
        owner=owner.id,
        name=owner.name,
        quiet=bool(now.quiet),
        stop=bool(now.stop),
        concurrency=now.concurrency or None,
    )


def listed_worker(worker: WorkerSurvey, timing: Timing) -> ListedWorker:
    """Return the view of a worker."""
    return ListedWorker(
        owner=worker.owner.id,
        name=worker.owner.name,
        host=worker.owner.host,
        pid=worker.owner.pid,
        queues=worker.queues,
        concurrency=worker.concurrency,
        active=worker.active,
        started=moment(worker.started),
        seen_ago=worker.seen_ago / SECOND,
        turned_ago=worker.turned_ago / SECOND,
        state="died" if worker.died else state_of(worker, timing),
        lag=worker.lag / SECOND,
        memory=worker.memory,
        why=worker.why,
    )


def find_worker(survey: Survey, name: str) -> WorkerSurvey:
    """Return the only worker with this owner id (or its beginning), name, host:pid, or process id.

    Raises:
        UnknownWorkerError: the worker does not exist.
        UsageError: several workers match.
    """
    ways: list[Callable[[WorkerSurvey], bool]] = [
        lambda worker: worker.owner.id == name,
        lambda worker: worker.owner.name == name,
        lambda worker: f"{worker.owner.host}:{worker.owner.pid}" == name,
        lambda worker: str(worker.owner.pid) == name,
        lambda worker: worker.owner.id.startswith(name),
    ]
    for is_meant in ways:
        found = [worker for worker in survey.workers if is_meant(worker)]
        # A restarted process may have the name and the process id of the one before it.
        living = [worker for worker in found if not worker.died]
        if len(found) > 1 and len(living) != 1:
            names = ", ".join(sorted(f"{match.owner.id} ({match.owner.name})" for match in found[:SHOWN]))
            raise UsageError(f"{name!r} is the name of several workers ({names}); name one by its owner id")
        if found:
            return (living or found)[0]
    meant = did_you_mean(name, sorted(known_names(survey, {}).workers))
    raise UnknownWorkerError(f"no worker {name!r} exists{f'{meant} See' if meant else '; see'} tenure workers list")


async def stacks(
    storage: Storage,
    survey: Survey,
    owners: Collection[str] | None,
    *,
    limit: int,
    shown: Callable[[JobRecord], bool] = lambda job: True,
) -> list[StackView]:
    """Return the runs of workers with the stacks of their handlers, the longest runs first, at most `limit`.

    `owners`: the ids of the workers; None: all. `shown`: which jobs are included.
    """
    jobs = [job for job in await active_jobs(storage, owners) if shown(job)]
    # The longest runs are the most interesting ones.
    jobs.sort(key=lambda job: (job.started or 0, job.id))
    found: list[StackView] = []
    for start in range(0, min(len(jobs), limit), DETAILS):
        some = jobs[start : min(start + DETAILS, limit)]
        details = await storage.get([job.ref for job in some])
        found += [
            _stack(detail, survey)
            for detail in details
            if detail is not None
            and detail.job.state is State.ACTIVE
            and (owners is None or detail.job.owner in owners)
        ]
    return found


async def active_jobs(storage: Storage, owners: Collection[str] | None = None, *, most: int = MOST) -> list[JobRecord]:
    """Return the active jobs of these owners, or of all owners if None, without their arguments.

    `most`: about how many active jobs are looked at, those that were enqueued last.
    """
    found: list[JobRecord] = []
    only = next(iter(owners)) if owners is not None and len(owners) == 1 else None
    count, after = 0, None
    while count < most:
        page = await storage.find(Query(states=(State.ACTIVE,), owner=only, limit=PAGE, after=after))
        # The arguments of all active jobs may take too much memory.
        found += [structs.replace(job, payload=b"") for job in page.jobs if owners is None or job.owner in owners]
        count, after = count + len(page.jobs), page.next
        if after is None:
            break
    return found


def _stack(detail: JobDetail, survey: Survey) -> StackView:
    job = detail.job
    worker = next((candidate for candidate in survey.workers if candidate.owner.id == job.owner), None)
    run = next((candidate for candidate in reversed(detail.runs) if candidate.fence == job.fence), None)
    return StackView(
        worker=run.worker if worker is None and run is not None else worker.owner.name if worker is not None else "",
        owner=job.owner or "",
        queue=job.queue,
        id=job.id,
        task=job.task,
        run=job.starts,
        fence=job.fence,
        started=None if run is None else moment(run.start),
        ran=None if run is None else max(0, survey.now - run.start) / SECOND,
        seen_ago=0.0 if worker is None else worker.seen_ago / SECOND,
        trace=None if run is None else run.trace,
    )
