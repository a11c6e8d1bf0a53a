"""Lists the leases: which runs end soonest unless their workers renew them, as records without a screen."""

from collections.abc import Sequence
from datetime import datetime
from heapq import nsmallest

from msgspec import Struct, structs

from tenure.clock import SECOND
from tenure.core.duration import moment
from tenure.core.job import JobRecord
from tenure.core.lifecycle import State
from tenure.health.assessment import state_of
from tenure.options import Timing
from tenure.storage.protocol import Query, Storage, Survey, WorkerSurvey

PAGE = 200
"""How many active jobs one call reads."""


class LeaseView(Struct, frozen=True, kw_only=True):
    """The lease of a run. Durations are in seconds.

    `left`: until the lease is out; negative if it is. `suspect_until`: the lease is out, and the run counts as stalled
    at this instant unless its worker renews it; None before. `last_sign`: since its worker last reported the run, by
    the claim or a beat; None if unknown. `worker`: the name of its worker, `worker_state` and `lag` (how late its event
    loop is) as of its last beat; empty and None if the storage does not know the worker any more.
    """

    queue: str
    id: str
    task: str
    run: int
    fence: int
    owner: str
    started: datetime | None
    ran: float | None
    lease_until: datetime
    left: float
    suspect_until: datetime | None
    last_sign: float | None
    cancel_asked: datetime | None
    worker: str
    worker_state: str | None
    lag: float | None


class LeasesView(Struct, frozen=True, kw_only=True):
    """The leases, the one with the least time left first, at most `limit`.

    `looks`: about how many active jobs the request looked at most, those that were enqueued last. `short`: it reached
    this bound, so a lease with less time left may be missing. `active`: how many active jobs it looked at.
    """

    leases: list[LeaseView]
    active: int
    looks: int
    short: bool


async def leases_view(
    storage: Storage, survey: Survey, timing: Timing, *, queues: Sequence[str], limit: int, looks: int
) -> LeasesView:
    """Return the leases of the active jobs of some queues. `looks`: about how many active jobs are looked at."""
    found: list[JobRecord] = []
    looked, after = 0, None
    # Without names, a query is one of all queues.
    while queues and looked < looks:
        room = min(PAGE, looks - looked)
        page = await storage.find(Query(queues=tuple(queues), states=(State.ACTIVE,), limit=room, after=after))
        looked, after = looked + len(page.jobs), page.next
        # The arguments of all active jobs may take too much memory.
        found += [structs.replace(job, payload=b"") for job in page.jobs if job.lease_until is not None]
        found = nsmallest(limit, found, key=lambda job: (job.lease_until or 0, job.queue, job.id))
        if after is None:
            break
    workers = {worker.owner.id: worker for worker in survey.workers}
    rows = [_lease(job, survey.now, workers.get(job.owner or ""), timing) for job in found]
    return LeasesView(leases=rows, active=looked, looks=looks, short=after is not None)


def _lease(job: JobRecord, now: int, worker: WorkerSurvey | None, timing: Timing) -> LeaseView:
    until = job.lease_until or now
    state = None if worker is None else "died" if worker.died else state_of(worker, timing)
    return LeaseView(
        queue=job.queue,
        id=job.id,
        task=job.task,
        run=job.starts,
        fence=job.fence,
        owner=job.owner or "",
        started=None if job.started is None else moment(job.started),
        ran=None if job.started is None else max(0, now - job.started) / SECOND,
        lease_until=moment(until),
        left=(until - now) / SECOND,
        suspect_until=None if job.suspect_until is None else moment(job.suspect_until),
        last_sign=None if job.heard_at is None else max(0, now - job.heard_at) / SECOND,
        cancel_asked=None if job.cancel_at is None else moment(job.cancel_at),
        worker="" if worker is None else worker.owner.name,
        worker_state=state,
        lag=None if worker is None else worker.lag / SECOND,
    )
