"""The diagnosis of `tenure doctor`: finds what delays jobs or soon will, each finding with its remedy.

These findings follow from what every storage shows through its verbs. Findings of one kind of storage come from its
`examine`. This module neither waits nor reads a storage or a clock: the caller passes the evidence in.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from msgspec import Struct

from tenure.clock import SECOND
from tenure.core.backlog import Backlog, Thresholds
from tenure.core.duration import span_text
from tenure.core.events import JobRepaired
from tenure.core.job import JobRecord
from tenure.core.lifecycle import State
from tenure.health.assessment import Health, alarms_of, jobs_are, jobs_wait, judged
from tenure.options import Timing
from tenure.outbox.outbox import COUNTED, LATE, OutboxState
from tenure.storage.protocol import PAUSED, RATE, UNKNOWN, Finding, Survey

PENDING = (State.WAITING, State.DELAYED)
"""The states of jobs that have not run yet."""

CLOCKS_APART = SECOND
"""The least difference of two clocks that is reported, in microseconds."""

LONG_HELD = 3600 * SECOND
"""How long a run without a limit may hold a key that other jobs wait for until it is reported, in microseconds."""

_NAMED = 5
"""How many names one finding lists."""


class TaskFacts(Struct, frozen=True):
    """A task of an app: the queue of its jobs, and whether a timeout bounds its runs."""

    queue: str
    bounded: bool


class DiagnosisInput(Struct, frozen=True, kw_only=True):
    """The evidence from a storage. `asked_at` and `answered_at`: this host's clock before and after the survey.

    `active` and `pending` (not run yet): jobs, the newest first; `complete`: True if no job was left out. `tasks`: the
    tasks of the app, or None if no app was given.
    """

    survey: Survey
    asked_at: int
    answered_at: int
    active: tuple[JobRecord, ...] = ()
    pending: tuple[JobRecord, ...] = ()
    complete: bool = True
    tasks: Mapping[str, TaskFacts] | None = None


def diagnose(evidence: DiagnosisInput, timing: Timing) -> list[Finding]:
    """Return all findings of the evidence, including those that report that a check found no problem."""
    health = judged(evidence.survey, timing=timing, thresholds=Thresholds(), backlog=Backlog(), now=0.0)
    return [
        *_storage(evidence.survey),
        *_clock(evidence),
        *_sweeping(evidence.survey, health, timing),
        *_overdue(evidence, health, timing),
        *_workers(evidence.survey, health),
        *_unstopped(evidence.survey),
        *_queues(health),
        *_paused(evidence),
        *_parked(evidence),
        *_no_handler(health),
        *_schedules(evidence.survey, timing),
        *_tasks(evidence),
    ]


def outbox_findings(outbox: OutboxState | None) -> list[Finding]:
    """Return the findings about an outbox; None: it has no table yet."""
    if outbox is None:
        return [Finding("error", "outbox", "it has no table tenure_outbox", "run tenure migrate up")]
    findings: list[Finding] = []
    if outbox.refused:
        findings.append(
            Finding(
                "error",
                "outbox",
                f"no job can be made of {_calls(outbox.refused)}",
                "read the reason in the column answer of tenure_outbox; delete the row, or set answer to NULL to try "
                "again",
            )
        )
    if outbox.oldest * SECOND >= LATE:
        findings.append(
            Finding(
                "error",
                "outbox",
                f"{_calls(outbox.waiting)} wait, the oldest for {outbox.oldest:.0f} s, and no relay takes them",
                "start a worker of this app, or tenure relay, and look into its log",
            )
        )
    return findings or [Finding("ok", "outbox", f"{_calls(outbox.waiting)} wait, none for long")]


def _calls(number: int) -> str:
    return f"{number}{' or more' if number == COUNTED else ''} call{'' if number == 1 else 's'}"


def repairs(found: Sequence[JobRepaired], events_read: int) -> Finding:
    """Return the finding about repairs in an event log: `found`, the oldest first, among `events_read` events."""
    if not found:
        return Finding("ok", "repairs", f"none {_among(events_read)}")
    newest = found[-1]
    at = "" if newest.at is None else f" at {newest.at:%Y-%m-%d %H:%M:%S} UTC"
    many = "once" if len(found) == 1 else f"{len(found)} times"
    return Finding(
        "warning",
        "repairs",
        f"sweeps repaired inconsistent records {many} {_among(events_read)}; the newest{at}, of job {newest.id} in "
        f"queue {newest.queue!r}: {newest.found}; {newest.repair}",
        "unless records were changed by hand, this is a bug in Tenure: report it with the output of tenure events "
        "--kind repaired",
    )


def _among(events_read: int) -> str:
    return f"among {_some(events_read, 'event')} in the log"


def _storage(survey: Survey) -> Iterator[Finding]:
    for alarm in alarms_of(survey):
        yield Finding(
            "error",
            "storage",
            alarm,
            "find out what emptied, replaced or failed over the storage, and enqueue again what is missing",
        )


def _clock(evidence: DiagnosisInput) -> Iterator[Finding]:
    now = evidence.survey.now
    difference = now - evidence.answered_at if now > evidence.answered_at else min(now - evidence.asked_at, 0)
    if abs(difference) < CLOCKS_APART:
        yield Finding("ok", "clock", "the storage's clock and this host's agree")
        return
    relation = "ahead of" if difference > 0 else "behind"
    yield Finding(
        "warning",
        "clock",
        f"the storage's clock is {span_text(abs(difference))} {relation} this host's. Leases and delays are durations "
        "and not affected; an instant from a caller (run_at, a deadline) comes that much too early or too late",
        "keep the clocks of both machines in step, such as with chrony or systemd-timesyncd",
    )


def _sweeping(survey: Survey, health: Health, timing: Timing) -> Iterator[Finding]:
    age = health.reaper.age
    no_sweep = "no process has ever swept" if age is None else f"no process has swept for {span_text(age * SECOND)}"
    remedy = "start a worker, or tenure reaper"
    unfinished = sum(
        queue.counts.get(state, 0) for queue in survey.queues for state in (*PENDING, State.ACTIVE, State.SUSPENDED)
    )
    if health.reaper.late:
        active = sum(queue.active for queue in health.queues.values())
        yield Finding(
            "error",
            "reaper",
            f"{jobs_are(active)} active and {no_sweep}: jobs of dead workers are not recovered",
            remedy,
        )
    elif age is not None and age <= timing.recovery_bound.total_seconds():
        names = {worker.id: worker.name for worker in health.workers}
        leaders = sorted({names.get(term.owner, term.owner) for term in survey.leaders})
        yield Finding("ok", "reaper", f"last swept {span_text(age * SECOND)} ago, by {_listed(leaders) or 'no leader'}")
    elif unfinished or survey.schedules:
        yield Finding(
            "warning",
            "reaper",
            f"{no_sweep}, with {_some(unfinished, 'job')} unfinished and {_some(len(survey.schedules), 'schedule')}: "
            "nothing is recovered, expired or scheduled",
            remedy,
        )
    else:
        yield Finding("ok", "reaper", "no process sweeps, and nothing needs a sweep")


def _overdue(evidence: DiagnosisInput, health: Health, timing: Timing) -> Iterator[Finding]:
    now = evidence.survey.now
    late = [
        job for job in evidence.active if job.lease_until is not None and now - job.lease_until > _slack(job, timing)
    ]
    if not late:
        yield Finding("ok", "leases", "no job is active long after its lease ran out")
        return
    yield Finding(
        "error",
        "leases",
        f"{_jobs(late)} active although the lease ran out long ago, and not recovered",
        "start a worker, or tenure reaper"
        if health.reaper.late
        else "read the log of the leading reaper: a step of its sweep fails; if it shows no error, report a bug",
    )


def _slack(job: JobRecord, timing: Timing) -> int:
    # After a pause of the storage or of the reaper, the grace is half the lease.
    return _micros(timing.recovery_bound) + job.stall.lease // 2


def _workers(survey: Survey, health: Health) -> Iterator[Finding]:
    stale = [worker for worker in health.workers if worker.state == "stale"]
    stale_ids = {worker.id for worker in stale}
    short = [worker for worker in survey.workers if worker.why and worker.owner.id not in stale_ids]
    if not stale and not short:
        alive = sum(worker.state == "alive" for worker in health.workers)
        quiet_workers = sum(worker.state == "quiet" for worker in health.workers)
        quiet = f", {quiet_workers} quiet by operator request" if quiet_workers else ""
        yield Finding("ok", "workers", f"{alive} alive{quiet}, none stale")
    for short_worker in short:
        yield Finding(
            "warning",
            "workers",
            f"worker {short_worker.owner.name!r} claims no more jobs: {short_worker.why}",
            "its supervisor replaces it; without one, restart it. If it happens again, look for resources that "
            "handlers do not close, or raise the limit (ulimit -n, LimitNOFILE, TasksMax, --max-memory)",
        )
    for worker in stale:
        yield Finding(
            "warning",
            "workers",
            f"worker {worker.name!r} is stale: last seen {span_text(worker.seen_ago * SECOND)} ago, its loop turned "
            f"{span_text(worker.turned_ago * SECOND)} ago",
            "it is dead, frozen or cut off, or a handler blocks its event loop; its jobs are recovered, so start "
            "another one and read its log",
        )


def _unstopped(survey: Survey) -> Iterator[Finding]:
    for worker in survey.workers:
        if not worker.unstopped or worker.died:
            continue
        names = [repr(ref.id) for ref in worker.unstopped]
        many = "a run" if len(names) == 1 else f"{len(names)} runs"
        yield Finding(
            "warning",
            "exclusive",
            f"worker {worker.owner.name!r} (pid {worker.owner.pid}) holds {many} whose handler continues after a stop "
            f"request, so the exclusive right stays taken: job {_listed(names)}",
            "end that process, which frees the right; its supervisor then starts a new one. For a handler that cannot "
            "be "
            'stopped use run="process"',
        )


def _queues(health: Health) -> Iterator[Finding]:
    stranded = [(name, queue) for name, queue in health.queues.items() if queue.stranded]
    if not stranded:
        yield Finding("ok", "queues", "a live worker serves each queue in which jobs wait")
    for name, queue in stranded:
        oldest = "" if queue.oldest_waiting is None else f", one of them for {span_text(queue.oldest_waiting * SECOND)}"
        yield Finding(
            "error",
            "queues",
            f"{jobs_wait(queue.waiting)} in queue {name!r}{oldest}, and no live worker serves it",
            f"start a worker: tenure worker module:app -q {name}",
        )


def _paused(evidence: DiagnosisInput) -> Iterator[Finding]:
    for queue in evidence.survey.queues:
        if queue.paused and (waiting := queue.counts.get(State.WAITING, 0)):
            yield Finding(
                "warning",
                "paused",
                f"{jobs_wait(waiting)} in queue {queue.queue!r}, which is paused",
                f"resume it when possible: tenure queues resume {queue.queue}",
            )
    held = Counter(job.parked_under for job in evidence.pending)
    for task in evidence.survey.paused_tasks:
        if jobs := held[f"{PAUSED}{task}"]:
            yield Finding(
                "warning",
                "paused",
                f"{_some(jobs, 'job', evidence)} of task {task!r} held back, which is paused",
                f"resume it when possible: tenure queues resume --task {task}",
            )


def _parked(evidence: DiagnosisInput) -> Iterator[Finding]:
    held = {(job.queue, key.name): job for job in evidence.active for key in job.keys}
    next_in_line = {(job.queue, key.name) for job in evidence.pending if job.parked_under is None for key in job.keys}
    parked = Counter(
        (job.queue, job.parked_under)
        for job in evidence.pending
        if job.parked_under is not None and not job.parked_under.startswith((PAUSED, RATE, UNKNOWN))
    )
    now = evidence.survey.now
    healthy = True
    for (queue, key), jobs in parked.items():
        holder = held.get((queue, key))
        if holder is None:
            # A job that was released but not claimed yet does not hold the key, although the other jobs wait for it.
            if evidence.complete and (queue, key) not in next_in_line:
                healthy = False
                yield Finding(
                    "error",
                    "parked",
                    f"{jobs} jobs in queue {queue!r} wait for key {key!r}, and no job holds it",
                    "the next sweep should release them; if doctor reports this twice in a row while a reaper runs, "
                    "report a bug",
                )
        elif holder.run_until is None and holder.progress_until is None and _ran(holder, now) > LONG_HELD:
            healthy = False
            yield Finding(
                "warning",
                "parked",
                f"{_least(jobs, evidence)} jobs in queue {queue!r} wait for key {key!r}, which job {holder.id} of task "
                f"{holder.task!r} has held for {span_text(_ran(holder, now))}, and its run has no time limit",
                f"check its progress (tenure jobs show {holder.id}); if it hangs, cancel it (tenure jobs cancel "
                f"{holder.id}); give the task a timeout",
            )
    if healthy:
        yield Finding("ok", "parked", "no job waits for a key that is never released")


def _ran(job: JobRecord, now: int) -> int:
    return 0 if job.started is None else now - job.started


def _no_handler(health: Health) -> Iterator[Finding]:
    for name, queue in health.queues.items():
        for task in queue.no_handler:
            yield Finding(
                "warning",
                "no_handler",
                f"jobs of task {task.task!r} with payload version {task.version} wait in queue {name!r}, one of them "
                "for "
                f"{span_text(task.waited * SECOND)}, and no live worker that serves it knows both",
                "deploy a worker that knows them; the jobs wait for it and do not fail. If the task was removed, "
                "cancel them: "
                f"tenure jobs list -q {name} --task {task.task}",
            )


def _schedules(survey: Survey, timing: Timing) -> Iterator[Finding]:
    bound = _micros(timing.recovery_bound)
    late = [
        schedule
        for schedule in survey.schedules
        if not schedule.paused and schedule.next_tick is not None and survey.now - schedule.next_tick > bound
    ]
    if late:
        longest = max(survey.now - (schedule.next_tick or 0) for schedule in late)
        yield Finding(
            "error",
            "schedules",
            f"{_some(len(late), 'schedule')} due and not fired, up to {span_text(longest)} late: "
            f"{_listed([schedule.name for schedule in late])}",
            "start a worker or tenure reaper; if one runs, read its log",
        )
    elif survey.schedules:
        yield Finding("ok", "schedules", f"none of {len(survey.schedules)} is late")


def _tasks(evidence: DiagnosisInput) -> Iterator[Finding]:
    tasks = evidence.tasks
    if tasks is None:
        yield Finding(
            "ok",
            "tasks",
            "no app was given, so no tasks were checked",
            "to check them: tenure doctor module:app",
        )
        return
    unbounded = sorted(name for name, facts in tasks.items() if not facts.bounded)
    if unbounded:
        yield Finding(
            "warning",
            "tasks",
            f"{_some(len(unbounded), 'task')} with neither timeout nor heartbeat_timeout: {_listed(unbounded)}; "
            "a run that hangs keeps its slot forever",
            'give each a timeout="5m" that fits it, or all of them: Tenure(defaults=TaskOptions(timeout="1h"))',
        )
    else:
        yield Finding("ok", "tasks", f"each of {len(tasks)} tasks bounds its runs")
    unknown = Counter(job.task for job in evidence.pending if job.task not in tasks)
    for task, jobs in sorted(unknown.items()):
        yield Finding(
            "warning",
            "unknown task",
            f"{_some(jobs, 'job', evidence)} of task {task!r} wait, and the given app has no such task",
            f"deploy an app with that task, or cancel the jobs: see tenure jobs list --task {task}",
        )


def _some(count: int, noun: str, evidence: DiagnosisInput | None = None) -> str:
    least = count if evidence is None else _least(count, evidence)
    return f"{least} {noun}{'' if count == 1 else 's'}"


def _jobs(jobs: Sequence[JobRecord]) -> str:
    first = f"{jobs[0].id} in queue {jobs[0].queue!r}"
    return f"job {first} is" if len(jobs) == 1 else f"{len(jobs)} jobs, such as {first}, are"


def _least(jobs: int, evidence: DiagnosisInput) -> str:
    return str(jobs) if evidence.complete else f"at least {jobs}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _micros(length: timedelta) -> int:
    return length // timedelta(microseconds=1)
