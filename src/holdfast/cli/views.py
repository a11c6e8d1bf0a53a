"""What the command line shows, as records whose fields are the stable keys of its JSON.

Instants are aware datetimes in UTC, durations are seconds.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from holdfast.clock import SECOND
from holdfast.core.duration import moment
from holdfast.core.job import JobRecord, LogLine, RunRecord
from holdfast.core.lifecycle import State
from holdfast.storage.protocol import QueueSurvey, Survey, WorkerSurvey

Decode = Callable[[bytes], Any]


class Opaque(Struct, frozen=True):
    """Bytes that cannot be read from here: their codec is the app's."""

    opaque_bytes: int


class ErrorView(Struct, frozen=True):
    """What a run raised."""

    type: str
    message: str
    traceback: str


class JobView(Struct, frozen=True, kw_only=True):
    """A job."""

    queue: str
    id: str
    task: str
    state: str
    reason: str | None
    arguments: Any
    result: Any
    error: ErrorView | None
    tags: tuple[str, ...]
    headers: dict[str, str]
    priority: int
    created: datetime
    run_at: datetime
    started: datetime | None
    finished: datetime | None
    expires_at: datetime | None
    deadline: datetime | None
    timeout: float | None
    starts: int
    attempt: int
    max_attempts: int
    failures: int
    stalls: int
    max_stalls: int
    releases: int
    fence: int
    owner: str | None
    lease_until: datetime | None
    cancel_asked: datetime | None
    cancel_reason: str | None
    progress: float | None
    progress_note: str | None


class RunView(Struct, frozen=True, kw_only=True):
    """One start of a job. `took` runs until its end, if it has one."""

    number: int
    fence: int
    worker: str
    owner: str
    host: str
    pid: int
    start: datetime
    end: datetime | None
    took: float | None
    ended: str | None
    reason: str | None
    detail: str | None


class LogView(Struct, frozen=True, kw_only=True):
    """A line that a handler logged."""

    at: datetime
    run: int
    level: str
    message: str
    fields: dict[str, str]


class DetailView(JobView, frozen=True, kw_only=True):
    """A job with its runs, its log, and why it ran more than once."""

    why: str | None
    runs: list[RunView]
    log: list[LogView]


class QueueView(Struct, frozen=True, kw_only=True):
    """A queue at a glance."""

    queue: str
    paused: bool
    oldest_waiting: float | None
    counts: dict[str, int]


class WorkerView(Struct, frozen=True, kw_only=True):
    """A worker at a glance; stale is one that gave no sign for three beats."""

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
    stale: bool
    stopping: bool


class LeaderView(Struct, frozen=True, kw_only=True):
    """Who sweeps."""

    scope: str
    owner: str
    epoch: int


class InfoView(Struct, frozen=True, kw_only=True):
    """A storage at a glance."""

    url: str
    now: datetime
    queues: list[QueueView]
    workers: list[WorkerView]
    leaders: list[LeaderView]
    swept_ago: float | None
    complaints: list[str]


class RevisedView(Struct, frozen=True, kw_only=True):
    """What became of a job that somebody redrove or cancelled; `was` is the state that this found it in."""

    queue: str
    id: str
    verdict: str
    was: str | None


def job_view(job: JobRecord, decode: Decode) -> JobView:
    """Return a job as it is shown."""
    return JobView(**_told(job, decode))


def detail_view(
    job: JobRecord, runs: Sequence[RunRecord], log: Sequence[LogLine], decode: Decode, *, why: str | None
) -> DetailView:
    """Return a job as it is shown with its history."""
    return DetailView(
        **_told(job, decode),
        why=why,
        runs=[_run(run) for run in runs],
        log=[
            LogView(at=moment(line.at), run=line.run, level=line.level, message=line.message, fields=line.fields)
            for line in log
        ],
    )


def info_view(survey: Survey, *, url: str, stale_after: float) -> InfoView:
    """Return a survey as it is shown, with nothing to complain of yet."""
    return InfoView(
        url=url,
        now=moment(survey.now),
        queues=[queue_view(queue) for queue in survey.queues],
        workers=[worker_view(worker, stale_after=stale_after) for worker in survey.workers],
        leaders=[LeaderView(scope=term.scope, owner=term.owner, epoch=term.epoch) for term in survey.leaders],
        swept_ago=_seconds(survey.swept_ago),
        complaints=[],
    )


def queue_view(queue: QueueSurvey) -> QueueView:
    """Return a queue as it is shown: with a count for every state."""
    return QueueView(
        queue=queue.queue,
        paused=queue.paused,
        oldest_waiting=_seconds(queue.oldest_waiting),
        counts={state.value: queue.counts.get(state, 0) for state in State},
    )


def worker_view(worker: WorkerSurvey, *, stale_after: float) -> WorkerView:
    """Return a worker as it is shown."""
    seen, turned = worker.seen_ago / SECOND, worker.turned_ago / SECOND
    return WorkerView(
        owner=worker.owner.id,
        name=worker.owner.name,
        host=worker.owner.host,
        pid=worker.owner.pid,
        queues=worker.queues,
        concurrency=worker.concurrency,
        active=worker.active,
        started=moment(worker.started),
        seen_ago=seen,
        turned_ago=turned,
        stale=max(seen, turned) > stale_after,
        stopping=worker.stopping,
    )


def readable(data: bytes | None, decode: Decode) -> Any:
    """Return what the bytes say, or how many they are."""
    if data is None:
        return None
    try:
        return decode(data)
    except Exception:
        # Whatever a codec raises on bytes that are not its own.
        return Opaque(len(data))


def _told(job: JobRecord, decode: Decode) -> dict[str, Any]:
    error = job.error
    return {
        "queue": job.queue,
        "id": job.id,
        "task": job.task,
        "state": job.state.value,
        "reason": job.reason,
        "arguments": readable(job.payload, decode),
        "result": readable(job.result, decode),
        "error": None if error is None else ErrorView(error.type, error.message, error.traceback),
        "tags": job.tags,
        "headers": job.headers,
        "priority": job.priority,
        "created": moment(job.created),
        "run_at": moment(job.run_at),
        "started": _moment(job.started),
        "finished": _moment(job.finished),
        "expires_at": _moment(job.expires_at),
        "deadline": _moment(job.deadline),
        "timeout": _seconds(job.timeout),
        "starts": job.starts,
        "attempt": job.attempt,
        "max_attempts": job.policy.retry.max_attempts,
        "failures": job.failures,
        "stalls": job.stalls,
        "max_stalls": job.stall.max_stalls,
        "releases": job.releases,
        "fence": job.fence,
        "owner": job.owner,
        "lease_until": _moment(job.lease_until),
        "cancel_asked": _moment(job.cancel_at),
        "cancel_reason": job.cancel_reason,
        "progress": job.progress,
        "progress_note": job.progress_note,
    }


def _run(run: RunRecord) -> RunView:
    return RunView(
        number=run.number,
        fence=run.fence,
        worker=run.worker,
        owner=run.owner,
        host=run.host,
        pid=run.pid,
        start=moment(run.start),
        end=_moment(run.end),
        took=None if run.end is None else (run.end - run.start) / SECOND,
        ended=run.ended,
        reason=run.reason,
        detail=run.detail,
    )


def _moment(at: int | None) -> datetime | None:
    return None if at is None else moment(at)


def _seconds(length: int | None) -> float | None:
    return None if length is None else length / SECOND
