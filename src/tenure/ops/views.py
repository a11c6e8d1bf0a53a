"""The views that the command line shows: records whose fields are the stable keys of its JSON output.

Instants are aware datetimes in UTC, durations are seconds.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Struct

from tenure.client.dead_letters import DeadGroups, DeadLetter, DeadReport
from tenure.client.job_info import JobInfo, RunInfo, run_info
from tenure.clock import SECOND
from tenure.core.backlog import Backlog, Thresholds
from tenure.core.deduplication import EnqueueAction
from tenure.core.document import Progress, decode_document
from tenure.core.duration import moment
from tenure.core.frames import unframed
from tenure.core.internal import is_internal
from tenure.core.job import JobDetail, JobRecord, RateKey, Ref
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.retention import RetentionRules
from tenure.core.retry import Backoff
from tenure.core.schedule import Schedule
from tenure.health.assessment import WorkerHealth, judged
from tenure.ops.slow_runs import NO_SLOW_RUNS, SlowRuns, SlowView
from tenure.ops.why import Reason
from tenure.options import Timing
from tenure.storage.protocol import EnqueueResult, Finding, QueueSurvey, Survey

Decode = Callable[[bytes], Any]


class Opaque(Struct, frozen=True):
    """Bytes that cannot be decoded without the app's codec."""

    opaque_bytes: int


class ErrorView(Struct, frozen=True):
    """The exception that a run raised."""

    type: str
    message: str
    traceback: str


class RetryView(Struct, frozen=True, kw_only=True):
    """The retry rule that a job stores. `base`: the first delay; `cap`: the longest; both in seconds.

    `pinned`: the call itself set a delay, so a delay function of the task does not apply.
    """

    max_attempts: int
    backoff: str
    base: float
    cap: float
    jitter: float
    pinned: bool


class JobView(Struct, frozen=True, kw_only=True):
    """A job. `scheduled_for`: the tick of its `schedule` that created it, None if it was triggered by hand."""

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
    retry: RetryView
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
    progress: Progress | None
    progress_note: str | None
    schedule: str | None
    scheduled_for: datetime | None


class RunView(Struct, frozen=True, kw_only=True):
    """One run of a job. `took`: its duration, None while it runs; `trace`: the last known stack of its handler."""

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
    trace: str | None


class LogView(Struct, frozen=True, kw_only=True):
    """A line that a handler logged."""

    at: datetime
    run: int
    level: str
    message: str
    fields: dict[str, str]


class DetailView(JobView, frozen=True, kw_only=True):
    """A job with its data, its runs, its log, and why it ran more than once."""

    data: Any
    why: str | None
    runs: list[RunView]
    log: list[LogView]
    log_dropped: int


class RefView(Struct, frozen=True, kw_only=True):
    """The queue and the id of a job, which identify it."""

    queue: str
    id: str


class ReasonView(Struct, frozen=True, kw_only=True):
    """A cause why a job does not run, or how it ended. `blocker`: the job that it waits for."""

    cause: str
    text: str
    since: datetime | None
    until: datetime | None
    blocker: RefView | None
    remedy: str


class QueueView(Struct, frozen=True, kw_only=True):
    """A queue in brief."""

    queue: str
    paused: bool
    oldest_waiting: float | None
    parked: int
    discarded: int
    counts: dict[str, int]
    limits: list["LimitView"]


class LimitView(Struct, frozen=True, kw_only=True):
    """A limit that a handler has set with `RateLimited`: nothing starts before `until`. `rate`: None for the queue."""

    rate: str | None
    until: datetime


class LiftedView(Struct, frozen=True, kw_only=True):
    """A queue whose limits were lifted, and the limits that are left."""

    queue: str
    limits: list[LimitView]


class KeepView(Struct, frozen=True, kw_only=True):
    """The retention of ended jobs: for `age` seconds, and only the newest `count` (None: all)."""

    age: float
    count: int | None


class StallView(Struct, frozen=True, kw_only=True):
    """The stall settings of a queue for all its jobs; None leaves a field to the task. Durations in seconds."""

    lease: float | None
    max_stalls: int | None
    start_grace: float | None
    renewed: bool | None


class RateView(Struct, frozen=True, kw_only=True):
    """How often jobs may start: one per `every` seconds, and up to `burst` at once after a pause."""

    every: float
    burst: int


class QueueSettingsView(QueueView, frozen=True, kw_only=True):
    """A queue in brief, with the settings for all its jobs."""

    retention: dict[str, KeepView]
    stall: StallView | None
    rate: RateView | None
    record: tuple[str, ...]


class SpreadView(Struct, frozen=True, kw_only=True):
    """Durations in seconds: the median (`half`), the 95th percentile (`most`) and the longest."""

    half: float
    most: float
    longest: float


class QueueStatsView(QueueView, frozen=True, kw_only=True):
    """A queue in brief, with statistics of recently ended jobs.

    `ended` counts the newest jobs that ended within `window` seconds. `capped`: True if there may be more than those.
    `waited` and `ran` are the durations of each job's last run.
    """

    window: float
    capped: bool
    ended: dict[str, int]
    reasons: dict[str, int]
    per_minute: float
    waited: SpreadView | None
    ran: SpreadView | None


class TriggeredView(Struct, frozen=True, kw_only=True):
    """The result of a call that was enqueued by hand, and its job, or the job that prevented it.

    `action`: "created", "replaced" or "collected". Or no job was created: "duplicate", or "throttled" for `retry_in`
    more seconds.
    """

    queue: str
    id: str
    action: EnqueueAction
    retry_in: float | None


class HeldView(Struct, frozen=True, kw_only=True):
    """A job, and the job of its queue that holds its unique key."""

    queue: str
    id: str
    holder: str


class DeadView(Struct, frozen=True, kw_only=True):
    """A dead letter: a failed job with all its runs. `arguments` are shown on request only."""

    queue: str
    id: str
    task: str
    reason: str | None
    fault: str
    error: ErrorView | None
    tags: tuple[str, ...]
    created: datetime
    started: datetime | None
    failed: datetime | None
    starts: int
    failures: int
    stalls: int
    releases: int
    redrives: int
    redrive_at: datetime | None
    runs: list[RunView]
    arguments: Any = None


class DeadGroupView(Struct, frozen=True, kw_only=True):
    """A fault, and its dead letters."""

    fault: str
    task: str
    reason: str
    error: str | None
    message: str
    count: int
    first: datetime
    last: datetime
    newest: list[RefView]


class DeadGroupsView(Struct, frozen=True, kw_only=True):
    """The faults, and how many dead letters there are; `others`: those of faults too rare to be listed."""

    groups: list[DeadGroupView]
    total: int
    others: int


class DeadReportView(Struct, frozen=True, kw_only=True):
    """The result of redriving or purging dead letters; `left`: how many more match.

    `duration`: seconds until the last of them is due. `held`: the refused ones whose unique key another job holds.
    """

    done: list[RefView]
    refused: list[RefView]
    gone: list[RefView]
    held: list[HeldView]
    left: int
    duration: float


class PausedView(Struct, frozen=True, kw_only=True):
    """A queue or a task that was paused or resumed."""

    kind: str
    name: str
    paused: bool


class PurgedView(Struct, frozen=True, kw_only=True):
    """The jobs of queues that match, those that were deleted, and those that stay because they changed meanwhile."""

    matched: int
    deleted: int
    changed: int


class RatedView(Struct, frozen=True, kw_only=True):
    """A queue or a task whose rate was set; None: it has no limit."""

    kind: str
    name: str
    rate: RateView | None


class ScheduleView(Struct, frozen=True, kw_only=True):
    """A schedule: `cron` in the time zone `tz`, or every `every` seconds. `last_tick`: None before its first job."""

    name: str
    task: str
    queue: str
    arguments: Any
    cron: str | None
    tz: str
    every: float | None
    missed: str
    max: int | None
    overlap: str
    grace: float
    paused: bool
    created: datetime
    last_tick: datetime | None
    next_tick: datetime | None
    last_id: str | None
    runs: int
    limit: int | None
    start: datetime | None
    end: datetime | None
    immediately: bool


class TickView(Struct, frozen=True, kw_only=True):
    """A future tick, in UTC and in the local time of its schedule's zone."""

    tick: datetime
    local: str


class WorkerView(Struct, frozen=True, kw_only=True):
    """A worker in brief, with its state as health assesses it: stale, stopping, quiet, or alive if none of these.

    A worker that is known to have died is stale, too.
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
    stale: bool
    stopping: bool
    quiet: bool
    died: bool


class LeaderView(Struct, frozen=True, kw_only=True):
    """A reaper that leads."""

    scope: str
    owner: str
    epoch: int


class InfoView(Struct, frozen=True, kw_only=True):
    """A storage in brief. `task_rates`: rates that were set for tasks and replace those of the code; None: no limit.

    `slow_capped`: True if there may be more slow runs: not all active jobs were looked at.
    """

    url: str
    now: datetime
    queues: list[QueueView]
    paused_tasks: tuple[str, ...]
    task_rates: dict[str, RateView | None]
    workers: list[WorkerView]
    leaders: list[LeaderView]
    swept_ago: float | None
    slow: list[SlowView]
    slow_capped: bool
    complaints: list[str]


class DoctorView(Struct, frozen=True, kw_only=True):
    """The findings of `tenure doctor`; `status` is the worst level among them."""

    url: str
    status: str
    findings: list[Finding]


class RevisedView(Struct, frozen=True, kw_only=True):
    """The result of redriving, cancelling or deleting a job; `was` is its state before.

    `holder`: the unfinished job that holds its unique key, so that it could not be redriven.
    """

    queue: str
    id: str
    verdict: str
    was: str | None
    holder: str | None


def job_view(job: JobRecord, decode: Decode) -> JobView:
    """Return the view of a job."""
    return JobView(**_job_fields(job, decode))


def schedule_view(schedule: Schedule, decode: Decode) -> ScheduleView:
    """Return the view of a schedule."""
    return ScheduleView(
        name=schedule.name,
        task=schedule.job.task,
        queue=schedule.job.queue,
        arguments=readable(schedule.job.payload, decode),
        cron=schedule.cron,
        tz=schedule.tz,
        every=None if schedule.every is None else schedule.every / SECOND,
        missed=schedule.missed,
        max=schedule.most,
        overlap=schedule.overlap,
        grace=schedule.grace / SECOND,
        paused=schedule.paused,
        created=moment(schedule.created),
        last_tick=None if schedule.last_id is None else moment(schedule.last_tick),
        next_tick=None if schedule.next_tick is None else moment(schedule.next_tick),
        last_id=schedule.last_id,
        runs=schedule.runs,
        limit=schedule.limit,
        start=_moment(schedule.start),
        end=_moment(schedule.end),
        immediately=schedule.immediately,
    )


def triggered_view(receipt: EnqueueResult) -> TriggeredView:
    """Return the view of an enqueue's result."""
    wait = None if receipt.retry_in is None else receipt.retry_in / SECOND
    return TriggeredView(queue=receipt.ref.queue, id=receipt.ref.id, action=receipt.action, retry_in=wait)


def tick_view(tick: datetime, schedule: Schedule) -> TickView:
    """Return the view of a future tick."""
    return TickView(tick=tick, local=tick.astimezone(ZoneInfo(schedule.tz)).isoformat())


def detail_view(
    detail: JobDetail, decode: Decode, *, why: str | None, decode_data: Decode = decode_document
) -> DetailView:
    """Return the view of a job with its history."""
    return DetailView(
        **_job_fields(detail.job, decode),
        data=readable(detail.job.data, decode_data),
        why=why,
        runs=[_run(run_info(run)) for run in detail.runs],
        log=[
            LogView(at=moment(line.at), run=line.run, level=line.level, message=line.message, fields=line.fields)
            for line in detail.log
        ],
        log_dropped=detail.log_dropped,
    )


def reason_view(reason: Reason) -> ReasonView:
    """Return the view of a cause."""
    return ReasonView(
        cause=reason.cause,
        text=reason.text,
        since=_moment(reason.since),
        until=_moment(reason.until),
        blocker=None if reason.blocker is None else RefView(queue=reason.blocker.queue, id=reason.blocker.id),
        remedy=reason.remedy,
    )


def info_view(survey: Survey, *, url: str, timing: Timing, slow: SlowRuns = NO_SLOW_RUNS) -> InfoView:
    """Return the view of a survey, with the assessment of `tenure health`."""
    health = judged(survey, timing=timing, thresholds=Thresholds(), backlog=Backlog(), now=0.0)
    return InfoView(
        url=url,
        now=moment(survey.now),
        queues=[queue_view(queue) for queue in survey.queues],
        paused_tasks=tuple(task for task in survey.paused_tasks if not is_internal(task)),
        task_rates=task_rates_view(survey),
        workers=[worker_view(worker) for worker in health.workers],
        leaders=[LeaderView(scope=term.scope, owner=term.owner, epoch=term.epoch) for term in survey.leaders],
        swept_ago=_seconds(survey.swept_ago),
        slow=list(slow.runs),
        slow_capped=slow.capped,
        complaints=health.complaints,
    )


def queue_view(queue: QueueSurvey) -> QueueView:
    """Return the view of a queue, with a count for each state."""
    return QueueView(**_at_a_glance(queue))


def limits_view(queue: QueueSurvey) -> list[LimitView]:
    """Return the views of the limits of a queue that are in force."""
    return [LimitView(rate=limit.rate, until=moment(limit.until)) for limit in queue.limits]


def rate_view(rate: RateKey | None) -> RateView | None:
    """Return the view of a rate."""
    # An interval of 0 means no limit.
    return None if rate is None or not rate.interval else RateView(every=rate.interval / SECOND, burst=rate.burst)


def task_rates_view(survey: Survey) -> dict[str, RateView | None]:
    """Return the views of the rates set for tasks, by task name; None: no limit."""
    return {name: rate_view(rate) for name, rate in survey.task_rates.items()}


def queue_settings_view(queue: QueueSurvey) -> QueueSettingsView:
    """Return the view of a queue with its settings; defaults of the retention are filled in."""
    settings = queue.settings
    kept = RetentionRules() if settings.retention is None else settings.retention
    stall = settings.stall
    return QueueSettingsView(
        **_at_a_glance(queue),
        retention={
            state.value: KeepView(age=kept.of(state).age / SECOND, count=kept.of(state).count)
            for state in State
            if state in TERMINAL
        },
        stall=None
        if stall is None
        else StallView(
            lease=_seconds(stall.lease),
            max_stalls=stall.max_stalls,
            start_grace=_seconds(stall.start_grace),
            renewed=stall.renewed,
        ),
        rate=rate_view(settings.rate),
        record=settings.record or (),
    )


def queue_stats_view(queue: QueueSurvey, ended: Sequence[JobRecord], *, window: float, capped: bool) -> QueueStatsView:
    """Return the view of a queue with statistics of recently ended jobs."""
    per_minute = len(ended) * 60 / window
    return QueueStatsView(
        **_at_a_glance(queue),
        window=window,
        capped=capped,
        ended={state.value: sum(job.state is state for job in ended) for state in State if state in TERMINAL},
        reasons=dict(sorted(Counter(job.reason or "" for job in ended if job.state is State.FAILED).items())),
        per_minute=round(per_minute, 3),
        waited=_spread(job.started - max(job.run_at, job.created) for job in ended if job.started is not None),
        ran=_spread(
            job.finished - job.started
            for job in ended
            if job.state is State.COMPLETED and job.started is not None and job.finished is not None
        ),
    )


def dead_view(letter: DeadLetter, decode: Decode | None) -> DeadView:
    """Return the view of a dead letter, with its arguments if `decode` is given."""
    job = letter.job
    return DeadView(
        queue=job.queue,
        id=job.id,
        task=job.task,
        reason=job.reason,
        fault=letter.fingerprint,
        error=_error(job),
        tags=job.tags,
        created=job.created,
        started=job.started,
        failed=job.finished,
        starts=job.starts,
        failures=job.failures,
        stalls=job.stalls,
        releases=job.releases,
        redrives=job.redrives,
        redrive_at=job.redrive_at,
        runs=[_run(run) for run in letter.runs],
        arguments=None if decode is None else arguments_of(job, decode),
    )


def dead_groups_view(found: DeadGroups) -> DeadGroupsView:
    """Return the view of dead letters grouped by fault."""
    return DeadGroupsView(
        groups=[
            DeadGroupView(
                fault=group.fingerprint,
                task=group.task,
                reason=group.reason,
                error=group.error,
                message=group.message,
                count=group.count,
                first=group.first,
                last=group.last,
                newest=_refs(group.newest),
            )
            for group in found.groups
        ],
        total=found.total,
        others=found.others,
    )


def dead_report_view(report: DeadReport) -> DeadReportView:
    """Return the view of a redrive or purge of dead letters."""
    return DeadReportView(
        done=_refs(report.done),
        refused=_refs(report.refused),
        gone=_refs(report.gone),
        held=[HeldView(queue=ref.queue, id=ref.id, holder=holder.id) for ref, holder in report.held],
        left=report.left,
        duration=report.duration.total_seconds(),
    )


def worker_view(worker: WorkerHealth) -> WorkerView:
    """Return the view of a worker."""
    return WorkerView(
        owner=worker.id,
        name=worker.name,
        host=worker.host,
        pid=worker.pid,
        queues=worker.queues,
        concurrency=worker.concurrency,
        active=worker.active,
        started=worker.started,
        seen_ago=worker.seen_ago,
        turned_ago=worker.turned_ago,
        stale=worker.state == "stale",
        stopping=worker.state == "stopping",
        quiet=worker.state == "quiet",
        died=worker.died,
    )


def arguments_of(job: JobRecord | JobInfo, decode: Decode) -> Any:
    """Return the arguments of a job; for a job that has collected calls, a list with the arguments of each call."""

    def each(frames: bytes) -> list[Any]:
        return [readable(frame, decode) for frame in unframed(frames)]

    return readable(job.payload, each if job.collected else decode)


def readable(data: bytes | None, decode: Decode) -> Any:
    """Return the decoded bytes, or an `Opaque` with their number if they cannot be decoded."""
    if data is None:
        return None
    try:
        return decode(data)
    except Exception:
        # A codec may raise any exception on bytes of another codec.
        return Opaque(len(data))


def value_text(value: Any) -> str:
    """Return the result of `readable` as one line."""
    if isinstance(value, Opaque):
        return f"opaque, {value.opaque_bytes:,} bytes"
    return msgspec.json.encode(value, enc_hook=repr).decode()


def _job_fields(job: JobRecord, decode: Decode) -> dict[str, Any]:
    return {
        "queue": job.queue,
        "id": job.id,
        "task": job.task,
        "state": job.state.value,
        "reason": job.reason,
        "arguments": arguments_of(job, decode),
        "result": readable(job.result, decode),
        "error": _error(job),
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
        "retry": _retry(job.policy.retry),
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
        "schedule": job.schedule,
        "scheduled_for": _moment(job.tick),
    }


def _retry(rule: Backoff) -> RetryView:
    return RetryView(
        max_attempts=rule.max_attempts,
        backoff=rule.kind,
        base=rule.base / SECOND,
        cap=rule.cap / SECOND,
        jitter=rule.jitter,
        pinned=rule.pinned,
    )


def _at_a_glance(queue: QueueSurvey) -> dict[str, Any]:
    return {
        "queue": queue.queue,
        "paused": queue.paused,
        "oldest_waiting": _seconds(queue.oldest_waiting),
        "parked": queue.parked,
        "discarded": queue.discarded,
        "counts": {state.value: queue.counts.get(state, 0) for state in State},
        "limits": limits_view(queue),
    }


def _error(job: JobRecord | JobInfo) -> ErrorView | None:
    return None if job.error is None else ErrorView(job.error.type, job.error.message, job.error.traceback)


def _refs(refs: Iterable[Ref]) -> list[RefView]:
    return [RefView(queue=ref.queue, id=ref.id) for ref in refs]


def _spread(lengths: Iterable[int]) -> SpreadView | None:
    ordered = sorted(length / SECOND for length in lengths)
    if not ordered:
        return None
    last = len(ordered) - 1
    return SpreadView(half=ordered[last // 2], most=ordered[round(last * 0.95)], longest=ordered[last])


def _run(run: RunInfo) -> RunView:
    return RunView(
        number=run.number,
        fence=run.fence,
        worker=run.worker,
        owner=run.owner,
        host=run.host,
        pid=run.pid,
        start=run.start,
        end=run.end,
        took=None if run.took is None else run.took.total_seconds(),
        ended=run.ended,
        reason=run.reason,
        detail=run.detail,
        trace=run.trace,
    )


def _moment(at: int | None) -> datetime | None:
    return None if at is None else moment(at)


def _seconds(length: int | None) -> float | None:
    return None if length is None else length / SECOND
