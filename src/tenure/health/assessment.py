"""Assesses a survey of the storage; the result is the records that HTTP and the command line show.

    unreachable   the storage gave no answer
    unhealthy     a backlog stayed above its threshold for longer than its time
    degraded      jobs wait in a queue that no live worker serves, or for a worker that knows their task (`no_handler`);
                  or a requested queue does not exist; or a worker found the storage replaced or rewound
    ok            none of these

Instants are aware datetimes in UTC, durations are seconds. This module neither waits nor reads a clock.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct

from tenure.clock import SECOND
from tenure.core.backlog import Backlog, Thresholds
from tenure.core.duration import moment
from tenure.core.lifecycle import State
from tenure.options import Timing
from tenure.storage.protocol import QueueSurvey, Survey, WorkerSurvey, knows

Status = Literal["ok", "degraded", "unhealthy", "unreachable"]
WorkerState = Literal["alive", "quiet", "stopping", "stale"]

LONGEST_REST = 5.0
"""Seconds within which a healthy claim loop turns, even if there is nothing to do (`worker.loop.POLL`)."""


NO_HANDLER = 600 * SECOND
"""How long a task must be unknown to all live workers until it is reported, in microseconds."""


class NoHandler(Struct, frozen=True, kw_only=True):
    """A task and payload version of jobs that wait in a queue, but that no live worker knows.

    `waited`: the seconds that one of these jobs has waited.
    """

    task: str
    version: int
    waited: float


class QueueHealth(Struct, frozen=True, kw_only=True):
    """A queue. `served`: a live worker claims from it. `above_for`: seconds that its backlog exceeded the threshold.

    `known`: it is in the storage, a task of the app uses it, or a worker serves it. `no_handler`: tasks of its jobs
    that none of its live workers has known for 10 min.
    """

    status: Status
    known: bool
    waiting: int
    active: int
    delayed: int
    failed: int
    completed: int
    oldest_waiting: float | None
    paused: bool
    served: bool
    threshold: int | None
    above_for: float | None
    no_handler: tuple[NoHandler, ...] = ()
    suspended: int = 0

    @property
    def stranded(self) -> bool:
        """Return True if jobs wait in it, no live worker serves it, and it is not paused."""
        return self.waiting > 0 and not self.served and not self.paused


class WorkerHealth(Struct, frozen=True, kw_only=True):
    """A worker. `seen_ago`: since its last beat; `turned_ago`: since its claim loop turned; `age`: the longer one.

    `died`: its process is known to be dead, so the worker is stale.
    """

    id: str
    name: str
    host: str
    pid: int
    queues: tuple[str, ...]
    concurrency: int
    active: int
    started: datetime
    state: WorkerState
    age: float
    seen_ago: float
    turned_ago: float
    died: bool = False


class ReaperHealth(Struct, frozen=True, kw_only=True):
    """The sweeps. `age`: since the last sweep, None for never; `late`: active jobs may not be recovered in time."""

    age: float | None
    late: bool


class Health(Struct, frozen=True, kw_only=True):
    """The whole assessment; `complaints` are for people, the other fields for programs."""

    status: Status
    now: datetime | None
    queues: dict[str, QueueHealth]
    workers: list[WorkerHealth]
    reaper: ReaperHealth
    complaints: list[str]


def judged(
    survey: Survey,
    *,
    timing: Timing,
    defined: Iterable[str] = (),
    only: Iterable[str] = (),
    thresholds: Thresholds,
    backlog: Backlog,
    now: float,
) -> Health:
    """Return the assessment of a survey; `now` is the uptime at which the backlog is measured.

    `defined`: queues that exist even if the storage does not know them. `only`: the queues to assess, if not all.
    """
    workers = [_worker(worker, timing) for worker in survey.workers]
    serving = [worker for worker in workers if worker.state == "alive"]
    known = {queue.queue: queue for queue in survey.queues}
    listed = {*known, *defined, *(queue for worker in serving for queue in worker.queues)}
    heard_of = {*listed, *(queue for worker in workers for queue in worker.queues)}
    names = set(only) or listed
    queues = {
        name: _queue(
            known.get(name, QueueSurvey(queue=name)),
            known=name in heard_of,
            served=any(name in worker.queues for worker in serving),
            threshold=thresholds.of(name),
            above_for=backlog.seconds_above(name, now=now),
            overdue=backlog.overdue(name, thresholds, now=now),
            workers=survey.workers,
        )
        for name in sorted(names)
    }
    active = sum(queue.counts.get(State.ACTIVE, 0) for queue in survey.queues)
    reaper = _reaper(survey.swept_ago, active, timing)
    alarms = alarms_of(survey)
    statuses: list[Status] = [queue.status for queue in queues.values()]
    return Health(
        status=_worst([*statuses, "degraded"] if alarms else statuses),
        now=moment(survey.now),
        queues=queues,
        workers=workers,
        reaper=reaper,
        complaints=[*alarms, *_complaints(queues, workers, reaper, active)],
    )


def alarms_of(survey: Survey) -> tuple[str, ...]:
    """Return the alarms that workers have raised about the storage as a whole, each alarm once."""
    return tuple(dict.fromkeys(alarm for worker in survey.workers for alarm in worker.alarm.splitlines()))


def no_handlers(queue: QueueSurvey, workers: Iterable[WorkerSurvey]) -> tuple[NoHandler, ...]:
    """Return the tasks of jobs that wait in a queue, which no live worker has known for 10 min.

    A survey shows a silent worker for 10 min, too, so each worker shown was alive within this time.
    """
    serving = [worker for worker in workers if queue.queue in worker.queues]
    return tuple(
        NoHandler(task=task.task, version=task.version, waited=task.waited / SECOND)
        for task in queue.unknown
        if task.waited >= NO_HANDLER and not any(knows(worker.tasks, task.task, task.version) for worker in serving)
    )


def unreachable(error: str) -> Health:
    """Return the assessment if the storage gave no answer."""
    return Health(
        status="unreachable",
        now=None,
        queues={},
        workers=[],
        reaper=ReaperHealth(age=None, late=False),
        complaints=[f"the storage is unreachable: {error}"],
    )


def consuming(survey: Survey, owner: str, timing: Timing) -> bool:
    """Return True if this worker claims jobs: the storage knows it, it is not quiet, and its claim loop turns."""
    return any(worker.owner.id == owner and state_of(worker, timing) == "alive" for worker in survey.workers)


def waiting(survey: Survey) -> Mapping[str, int]:
    """Return how many jobs wait in each queue."""
    return {queue.queue: queue.counts.get(State.WAITING, 0) for queue in survey.queues}


def state_of(worker: WorkerSurvey, timing: Timing) -> WorkerState:
    """Return the state of a worker; a dead worker is stale, because it neither claims nor renews."""
    three = 3 * timing.beat
    # If the beat is short, the loop of an idle worker turns less often than every three beats; allow for its rest.
    turn = max(three, timedelta(seconds=LONGEST_REST) + 2 * timing.beat)
    silent = worker.seen_ago > three.total_seconds() * SECOND or worker.turned_ago > turn.total_seconds() * SECOND
    if worker.died or silent:
        return "stale"
    if worker.stopping:
        return "stopping"
    return "quiet" if worker.quiet else "alive"


def _worker(worker: WorkerSurvey, timing: Timing) -> WorkerHealth:
    return WorkerHealth(
        id=worker.owner.id,
        name=worker.owner.name,
        host=worker.owner.host,
        pid=worker.owner.pid,
        queues=worker.queues,
        concurrency=worker.concurrency,
        active=worker.active,
        started=moment(worker.started),
        state=state_of(worker, timing),
        age=max(worker.seen_ago, worker.turned_ago) / SECOND,
        seen_ago=worker.seen_ago / SECOND,
        turned_ago=worker.turned_ago / SECOND,
        died=worker.died,
    )


def _queue(
    queue: QueueSurvey,
    *,
    known: bool,
    served: bool,
    threshold: int | None,
    above_for: float | None,
    overdue: bool,
    workers: Sequence[WorkerSurvey],
) -> QueueHealth:
    waits = queue.counts.get(State.WAITING, 0)
    unhandled = no_handlers(queue, workers)
    # Jobs of a paused queue wait on purpose; only their number can still be too large.
    degraded = not known or (bool(waits) and not served and not queue.paused) or bool(unhandled)
    return QueueHealth(
        status="unhealthy" if overdue else "degraded" if degraded else "ok",
        known=known,
        waiting=waits,
        active=queue.counts.get(State.ACTIVE, 0),
        delayed=queue.counts.get(State.DELAYED, 0),
        failed=queue.counts.get(State.FAILED, 0),
        completed=queue.counts.get(State.COMPLETED, 0),
        oldest_waiting=None if queue.oldest_waiting is None else queue.oldest_waiting / SECOND,
        paused=queue.paused,
        served=served,
        threshold=threshold,
        above_for=above_for,
        no_handler=unhandled,
        suspended=queue.counts.get(State.SUSPENDED, 0),
    )


def _reaper(swept_ago: int | None, active: int, timing: Timing) -> ReaperHealth:
    age = None if swept_ago is None else swept_ago / SECOND
    return ReaperHealth(age=age, late=active > 0 and (age is None or age > timing.recovery_bound.total_seconds()))


_RANKS: dict[Status, int] = {"ok": 0, "degraded": 1, "unhealthy": 2, "unreachable": 3}


def _worst(statuses: Iterable[Status]) -> Status:
    worst: Status = "ok"
    for status in statuses:
        if _RANKS[status] > _RANKS[worst]:
            worst = status
    return worst


def _complaints(
    queues: Mapping[str, QueueHealth], workers: Sequence[WorkerHealth], reaper: ReaperHealth, active: int
) -> Iterator[str]:
    for name, queue in queues.items():
        if queue.status == "unhealthy":
            yield (
                f"queue {name!r}: {jobs_wait(queue.waiting)}, more than {queue.threshold} "
                f"for {queue.above_for or 0:.0f} s; add workers, or find out why jobs are slow"
            )
        elif not queue.known:
            yield f"queue {name!r}: unknown: it never had a job and no task uses it; check the spelling"
        elif queue.stranded:
            quiet_workers = sum(worker.state == "quiet" and name in worker.queues for worker in workers)
            hint = f"; {quiet_workers} quiet workers could: tenure workers quiet --undo" if quiet_workers else ""
            yield f"queue {name!r}: {jobs_wait(queue.waiting)} and no live worker serves it{hint}"
        for task in queue.no_handler:
            yield (
                f"queue {name!r}: no_handler: no live worker knows task {task.task!r} with payload version "
                f"{task.version}, and a job has waited {task.waited:.0f} s for one"
            )
    for worker in workers:
        if worker.state == "stale":
            yield (
                f"worker {worker.name!r}: stale, last seen {worker.seen_ago:.1f} s ago, "
                f"its loop turned {worker.turned_ago:.1f} s ago"
            )
    if reaper.late:
        age = "ever" if reaper.age is None else f"for {reaper.age:.0f} s"
        yield f"{jobs_are(active)} active and no process has swept {age}; start a worker or tenure reaper"


def jobs_wait(count: int) -> str:
    """Return "1 job waits" or "2 jobs wait"."""
    return "1 job waits" if count == 1 else f"{count} jobs wait"


def jobs_are(count: int) -> str:
    """Return "1 job is" or "2 jobs are"."""
    return "1 job is" if count == 1 else f"{count} jobs are"
