"""Jobs and runs as callers read them: instants are aware datetimes in UTC, durations are timedeltas."""

from datetime import datetime, timedelta

from msgspec import Struct

from tenure.core.document import Progress
from tenure.core.duration import moment
from tenure.core.job import JobDetail, JobRecord, RecordedError, Ref, RunRecord
from tenure.core.lifecycle import State


class JobInfo(Struct, frozen=True, kw_only=True):
    """A job as the storage held it when it was read. Instants are aware datetimes in UTC.

    - `payload`, `result`: encoded by the app's codec; `Job.result` returns the decoded result.
    - `run_at`: when the job is due, or was. `started`: when its first run began. `finished`: when it ended.
    - `ttl`: how long it may wait before it starts; `expires_at`: when that time is over.
    - `timeout`: the limit of each run. `deadline`: the instant by which the job must have ended.
    - `attempt`: the number of the current or next attempt. `failures`, `stalls`, `releases`: how its runs were charged.
    - `fence`: the number of the latest claim. `owner`: the id of the worker that runs it. `lease_until`: when the
      worker's lease ends if it is not renewed.
    - `collected`: how many calls a collecting job contains.
    - `unique_key`: the key that keeps equal calls out, or merges them into this job.
    - `scheduled_for`: the tick of its `schedule` that made it; None if the schedule was triggered by hand.
    - `redrive_at`: when it is redriven automatically. `kept_until`: when its own `result_ttl` is over.
    """

    queue: str
    id: str
    task: str
    state: State
    reason: str | None = None
    error: RecordedError | None = None
    payload: bytes = b""
    result: bytes | None = None
    headers: dict[str, str] = {}
    tags: tuple[str, ...] = ()
    priority: int = 0
    created: datetime
    run_at: datetime
    started: datetime | None = None
    finished: datetime | None = None
    ttl: timedelta | None = None
    expires_at: datetime | None = None
    timeout: timedelta | None = None
    deadline: datetime | None = None
    starts: int = 0
    attempt: int = 1
    failures: int = 0
    stalls: int = 0
    releases: int = 0
    redrives: int = 0
    collected: int = 0
    fence: int = 0
    owner: str | None = None
    lease_until: datetime | None = None
    cancel_at: datetime | None = None
    cancel_reason: str | None = None
    cancel_by: str | None = None
    progress: Progress | None = None
    progress_note: str | None = None
    unique_key: str | None = None
    schedule: str | None = None
    scheduled_for: datetime | None = None
    redrive_at: datetime | None = None
    kept_until: datetime | None = None

    @property
    def ref(self) -> Ref:
        """The job's queue and id."""
        return Ref(self.queue, self.id)


class RunInfo(Struct, frozen=True, kw_only=True):
    """One start of a job: which worker ran it under which fence, and how it ended. Instants are datetimes in UTC.

    `end`: None while it runs. `ended`: how it ended, such as "raised"; `reason` and `detail` say why. `trace`: the
    latest reported position of its handler in its code, until the run ends.
    """

    number: int
    fence: int
    owner: str
    worker: str = ""
    host: str = ""
    pid: int = 0
    start: datetime
    end: datetime | None = None
    ended: str | None = None
    reason: str | None = None
    detail: str | None = None
    trace: str | None = None

    @property
    def took(self) -> timedelta | None:
        """How long the run took; None while it runs."""
        return None if self.end is None else self.end - self.start


class LogEntry(Struct, frozen=True, kw_only=True):
    """A line that a handler logged, with the number of its run. `at`: a datetime in UTC."""

    at: datetime
    run: int
    level: str
    message: str
    fields: dict[str, str] = {}


class JobWithRuns(Struct, frozen=True, kw_only=True):
    """A job with its runs (the newest hundred) and its log (the newest thousand lines).

    `log_dropped`: how many lines are missing from the log: older lines, and lines that a worker could not send.
    """

    job: JobInfo
    runs: tuple[RunInfo, ...] = ()
    log: tuple[LogEntry, ...] = ()
    log_dropped: int = 0


def history(detail: JobDetail) -> JobWithRuns:
    """Return a stored job with its runs and its log as callers read them."""
    return JobWithRuns(
        job=job_info(detail.job),
        runs=tuple(run_info(run) for run in detail.runs),
        log=tuple(
            LogEntry(at=moment(line.at), run=line.run, level=line.level, message=line.message, fields=line.fields)
            for line in detail.log
        ),
        log_dropped=detail.log_dropped,
    )


def run_info(run: RunRecord) -> RunInfo:
    """Return a stored run as callers read it."""
    return RunInfo(
        number=run.number,
        fence=run.fence,
        owner=run.owner,
        worker=run.worker,
        host=run.host,
        pid=run.pid,
        start=moment(run.start),
        end=_moment(run.end),
        ended=run.ended,
        reason=run.reason,
        detail=run.detail,
        trace=run.trace,
    )


def job_info(job: JobRecord) -> JobInfo:
    """Return a stored job as callers read it."""
    return JobInfo(
        queue=job.queue,
        id=job.id,
        task=job.task,
        state=job.state,
        reason=job.reason,
        error=job.error,
        payload=job.payload,
        result=job.result,
        headers=job.headers,
        tags=job.tags,
        priority=job.priority,
        created=moment(job.created),
        run_at=moment(job.run_at),
        started=_moment(job.started),
        finished=_moment(job.finished),
        ttl=_span(job.ttl),
        expires_at=_moment(job.expires_at),
        timeout=_span(job.timeout),
        deadline=_moment(job.deadline),
        starts=job.starts,
        attempt=job.attempt,
        failures=job.failures,
        stalls=job.stalls,
        releases=job.releases,
        redrives=job.redrives,
        collected=job.collected,
        fence=job.fence,
        owner=job.owner,
        lease_until=_moment(job.lease_until),
        cancel_at=_moment(job.cancel_at),
        cancel_reason=job.cancel_reason,
        cancel_by=job.cancel_by,
        progress=job.progress,
        progress_note=job.progress_note,
        unique_key=None if job.merge is None else job.merge.key,
        schedule=job.schedule,
        scheduled_for=_moment(job.tick),
        redrive_at=_moment(job.redrive_at),
        kept_until=_moment(job.kept_until),
    )


def _moment(at: int | None) -> datetime | None:
    return None if at is None else moment(at)


def _span(length: int | None) -> timedelta | None:
    return None if length is None else timedelta(microseconds=length)
