"""The figures of `tenure top`: totals, queues, workers, the longest runs and the newest faults."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct, structs

from tenure.clock import SECOND
from tenure.core.duration import moment
from tenure.core.fingerprint import FaultSurvey
from tenure.core.job import JobRecord
from tenure.core.lifecycle import State
from tenure.ops.access import StorageAccess
from tenure.ops.throughput import Throughput, ThroughputRates
from tenure.ops.views import DeadGroupView, LeaderView, QueueView, RefView, info_view
from tenure.ops.workers import ListedWorker, active_jobs, listed_worker
from tenure.options import Timing
from tenure.storage.protocol import Survey

ACTIVE_READ = 2_000
"""How many active jobs one look reads at most, those that were enqueued last."""

RUNS = 50
"""How many runs are shown at most."""

FAULTS = 50
"""How many faults one look reads, those with the most failed jobs."""

_WORKER_STATES = ("stale", "stopping", "quiet", "alive", "died")
"""The order of workers: those that need attention first, those that ended last."""


class TopQueue(QueueView, frozen=True, kw_only=True):
    """A queue in brief, with the numbers of jobs that complete and fail per second; None: unknown."""

    completed_per_second: float | None
    failed_per_second: float | None


class ActiveRunView(Struct, frozen=True, kw_only=True):
    """A run that goes on, for `ran` seconds. `worker`: the name of its worker, or its owner id if that is unknown."""

    queue: str
    id: str
    task: str
    run: int
    ran: float
    owner: str
    worker: str


class TopView(Struct, frozen=True, kw_only=True):
    """The figures of a storage at one instant.

    `measured`: the seconds over which the rates were measured, None if they are unknown. `counts`: the jobs of all
    queues by state. `queues`: the one with the most active and waiting jobs first. `running`: the longest first.
    `faults`: the one that occurred last first.
    """

    url: str
    now: datetime
    leaders: list[LeaderView]
    swept_ago: float | None
    completed_per_second: float | None
    failed_per_second: float | None
    measured: float | None
    counts: dict[str, int]
    oldest_waiting: float | None
    queues: list[TopQueue]
    workers: list[ListedWorker]
    running: list[ActiveRunView]
    faults: list[DeadGroupView]
    complaints: list[str]


class Top:
    """Reads the figures of a storage again and again."""

    def __init__(self, access: StorageAccess) -> None:
        self._access = access
        self._throughput = Throughput()

    async def look(self) -> TopView:
        """Return the figures of now.

        Raises:
            StorageError: the storage is unreachable.
        """
        storage = self._access.storage
        survey = await storage.survey(faults=FAULTS)
        rates = await self._throughput.measure(storage, survey.now)
        runs = any(queue.counts.get(State.ACTIVE) for queue in survey.queues)
        active = await active_jobs(storage, most=ACTIVE_READ) if runs else []
        return top_view(survey, rates, active, url=storage.url, timing=self._access.timing)


def top_view(
    survey: Survey, rates: ThroughputRates, active: Iterable[JobRecord], *, url: str, timing: Timing
) -> TopView:
    """Return the figures of a survey. `active`: the active jobs."""
    info = info_view(survey, url=url, timing=timing)
    totals = Counter[str]()
    for queue in info.queues:
        totals.update(queue.counts)
    return TopView(
        url=url,
        now=info.now,
        leaders=info.leaders,
        swept_ago=info.swept_ago,
        completed_per_second=rates.per_second(rates.completed.total()),
        failed_per_second=rates.per_second(rates.failed.total()),
        measured=rates.measured,
        counts={state.value: totals[state.value] for state in State},
        oldest_waiting=max((q.oldest_waiting for q in info.queues if q.oldest_waiting is not None), default=None),
        queues=sorted((_queue(queue, rates) for queue in info.queues), key=_busy),
        workers=sorted(
            (listed_worker(worker, timing) for worker in survey.workers),
            key=lambda worker: (_WORKER_STATES.index(worker.state), worker.name, worker.owner),
        ),
        running=_longest(active, survey),
        faults=[_fault(fault) for fault in sorted(survey.faults, key=lambda fault: -fault.last)],
        complaints=info.complaints,
    )


def _queue(queue: QueueView, rates: ThroughputRates) -> TopQueue:
    return TopQueue(
        **structs.asdict(queue),
        completed_per_second=rates.per_second(rates.completed[queue.queue]),
        failed_per_second=rates.per_second(rates.failed[queue.queue]),
    )


def _busy(queue: TopQueue) -> tuple[float, ...]:
    """Return a sort key: the busiest queue first."""
    counts = queue.counts
    return -counts[State.ACTIVE] - counts[State.WAITING], -(queue.completed_per_second or 0), -counts[State.DELAYED]


def _longest(active: Iterable[JobRecord], survey: Survey) -> list[ActiveRunView]:
    """Return the runs of active jobs, the longest first."""
    names = {worker.owner.id: worker.owner.name for worker in survey.workers}
    started = [(job.started, job) for job in active if job.started is not None]
    started.sort(key=lambda entry: (entry[0], entry[1].id))
    return [
        ActiveRunView(
            queue=job.queue,
            id=job.id,
            task=job.task,
            run=job.starts,
            ran=max(0, survey.now - since) / SECOND,
            owner=job.owner or "",
            worker=names.get(job.owner or "", job.owner or ""),
        )
        for since, job in started[:RUNS]
    ]


def _fault(fault: FaultSurvey) -> DeadGroupView:
    return DeadGroupView(
        fault=fault.fault,
        task=fault.task,
        reason=fault.reason or "",
        error=None if fault.error is None else fault.error.type,
        message="" if fault.error is None else fault.error.message,
        count=fault.count,
        first=moment(fault.first),
        last=moment(fault.last),
        newest=[RefView(queue=fault.queue, id=job) for _, job in fault.newest],
    )
