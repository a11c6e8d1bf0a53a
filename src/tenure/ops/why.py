"""Explains why a job does not run now, or how it ended: all causes with their remedies, the decisive one first.

This module neither waits nor reads a storage or a clock: the caller passes the evidence in.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from tenure.core.duration import moment, span_text
from tenure.core.job import CollectKey, DebounceKey, JobDetail, JobRecord, Ref, RunRecord
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.postmortem import first_line
from tenure.health.assessment import jobs_wait, state_of
from tenure.options import Timing
from tenure.options.keys import SINGLETON
from tenure.storage.protocol import (
    PAUSED,
    QUEUE_RATE,
    RATE,
    TASK_RATE,
    UNKNOWN,
    QueueSurvey,
    Survey,
    WorkerSurvey,
    knows,
    task_of_place,
)

Cause = Literal[
    "unreadable",
    "completed",
    "failed",
    "cancelled",
    "expired",
    "redrive_due",
    "running",
    "stopping",
    "unstopped",
    "worker_silent",
    "lease_out",
    "suspect",
    "debounced",
    "collecting",
    "retry_delay",
    "snoozed",
    "rate_limited",
    "delayed",
    "suspended",
    "overdue",
    "expires_first",
    "queue_moved",
    "queue_paused",
    "task_paused",
    "unknown_task",
    "newer_payload",
    "rate",
    "key",
    "no_worker",
    "workers_quiet",
    "workers_stopping",
    "slots_full",
    "quarantined",
    "turn",
    "reaper_late",
]


class Reason(Struct, frozen=True, kw_only=True):
    """One cause. `since` and `until`: instants in microseconds, if known. `blocker`: the job that this one waits for.

    `remedy`: empty if nothing needs to be done.
    """

    cause: Cause
    text: str
    since: int | None = None
    until: int | None = None
    blocker: Ref | None = None
    remedy: str = ""


class WhyInput(Struct, frozen=True, kw_only=True):
    """The evidence: the job, a survey of the storage, and active jobs of its queue, the newest first.

    `complete`: True if `active` contains all active jobs of the queue.
    """

    detail: JobDetail
    survey: Survey
    active: tuple[JobRecord, ...] = ()
    complete: bool = True


def explain(evidence: WhyInput, timing: Timing) -> list[Reason]:
    """Return at least one reason. The first one decides: the others matter once it is gone."""
    return list(_Explanation(evidence, timing).reasons())


class _Explanation:
    def __init__(self, evidence: WhyInput, timing: Timing) -> None:
        self._job = evidence.detail.job
        self._runs = evidence.detail.runs
        self._survey = evidence.survey
        self._now = evidence.survey.now
        self._active = evidence.active
        self._complete = evidence.complete
        self._timing = timing
        queues = {queue.queue: queue for queue in evidence.survey.queues}
        self._queue = queues.get(self._job.queue, QueueSurvey(queue=self._job.queue))

    def reasons(self) -> Iterator[Reason]:
        job = self._job
        if job.unreadable is not None and job.state not in TERMINAL:
            yield Reason(
                cause="unreadable",
                text=f"a part of its record cannot be read, so its next run fails as undecodable: {job.unreadable}",
                remedy="if Tenure was downgraded, upgrade it again; otherwise delete the job and enqueue it again",
            )
        match job.state:
            case State.ACTIVE:
                yield from self._running()
            case State.DELAYED:
                yield from self._delayed()
                yield from self._closed()
                yield from self._workers()
            case State.SUSPENDED:
                yield self._suspended()
            case State.WAITING:
                yield from self._too_late()
                yield from self._closed()
                yield from self._parked()
                yield from self._limited()
                yield from self._workers()
                yield from self._turn()
            case _:
                yield from self._ended()

    # --- ended -----------------------------------------------------------------------------------

    def _ended(self) -> Iterator[Reason]:
        job = self._job
        runs = "no run" if not job.starts else "1 run" if job.starts == 1 else f"{job.starts} runs"
        if job.redrive_at is not None:
            yield Reason(
                cause="redrive_due",
                text=f"its redrive rule puts it back {self._when(job.redrive_at)}",
                until=job.redrive_at,
            )
        match job.state:
            case State.COMPLETED:
                kept = "" if job.kept_until is None else f"; its result is kept until {_at(job.kept_until)}"
                yield Reason(cause="completed", text=f"it is completed, after {runs}{kept}", since=job.finished)
            case State.CANCELLED:
                by = f" by {job.cancel_by}" if job.cancel_by else ""
                why = f": {job.cancel_reason}" if job.cancel_reason else ""
                yield Reason(
                    cause="cancelled",
                    text=f"it was cancelled{by}, after {runs}{why}",
                    since=job.finished,
                    remedy=_redrive(job),
                )
            case State.EXPIRED:
                ttl = "its time to live" if job.ttl is None else f"its time to live of {span_text(job.ttl)}"
                yield Reason(
                    cause="expired",
                    text=f"it did not start within {ttl}",
                    since=job.finished,
                    remedy=f"find out why the queue is slow, then: {_redrive(job)}",
                )
            case _:
                yield Reason(
                    cause="failed",
                    text=f"it has failed, after {runs}: {self._failure()}",
                    since=job.finished,
                    remedy=f"mend the cause, then: {_redrive(job)}",
                )

    def _failure(self) -> str:
        job = self._job
        error = "" if job.error is None else f" ({job.error.type}: {first_line(job.error.message)})"
        return _FAILURES.get(job.reason or "", job.reason or "no reason is recorded").format(job=job) + error

    # --- active ----------------------------------------------------------------------------------

    def _running(self) -> Iterator[Reason]:
        job, now = self._job, self._now
        worker = next((worker for worker in self._survey.workers if worker.owner.id == job.owner), None)
        run = self._runs[-1] if self._runs else None
        place = _place(worker, run)
        if job.suspect_until is not None:
            yield Reason(
                cause="suspect",
                text=f"its lease ran out: {place} has not renewed it; it is recovered {self._when(job.suspect_until)}",
                since=job.lease_until,
                until=job.suspect_until,
            )
            yield from self._reaper()
        elif job.lease_until is not None and job.lease_until < now:
            yield Reason(
                cause="lease_out",
                text=f"its lease ran out {self._ago(job.lease_until)}: {place} has not renewed it; the next sweep "
                "begins its recovery",
                since=job.lease_until,
            )
            yield from self._reaper()
        if worker is not None and worker.died:
            yield Reason(
                cause="worker_silent",
                text=f"the process of {place} has died; the next sweep recovers the job",
            )
        elif worker is not None and state_of(worker, self._timing) == "stale":
            yield Reason(
                cause="worker_silent",
                text=f"{place} is silent: its last beat came {span_text(worker.seen_ago)} ago, its loop turned "
                f"{span_text(worker.turned_ago)} ago",
                remedy="it is dead, frozen or cut off, or a handler blocks its event loop: read its log",
            )
        if worker is not None and job.ref in worker.unstopped:
            yield Reason(
                cause="unstopped",
                text=f"its handler goes on although {place} has asked it to stop, and keeps its exclusive right",
                remedy=f"end process {worker.owner.pid}; its supervisor starts a new one",
            )
        elif job.cancel_at is not None:
            why = f": {job.cancel_reason}" if job.cancel_reason else ""
            yield Reason(
                cause="stopping",
                text=f"its run was asked to stop {self._ago(job.cancel_at)}{why}",
                since=job.cancel_at,
            )
        yield Reason(
            cause="running",
            text=f"it runs on {place}{'' if job.started is None else f', since {self._ago(job.started)}'}"
            f"{self._limit()}",
            since=job.started,
            until=job.run_until,
        )

    def _limit(self) -> str:
        job = self._job
        if job.run_until is not None:
            return f"; it is stopped {self._when(job.run_until)}"
        if job.progress_until is not None:
            return f"; it is stopped without a heartbeat {self._when(job.progress_until)}"
        return "; its run has no time limit"

    # --- delayed ---------------------------------------------------------------------------------

    def _delayed(self) -> Iterator[Reason]:
        job, now = self._job, self._now
        if job.expires_at is not None and job.expires_at <= job.run_at:
            yield Reason(
                cause="expires_first",
                text=f"it expires {self._when(job.expires_at)}, before it is due",
                until=job.expires_at,
                remedy="give it a longer ttl, or a shorter delay",
            )
        if job.run_at <= now:
            yield Reason(
                cause="overdue",
                text=f"it has been due for {span_text(now - job.run_at)}; the next claim or sweep makes it ready",
                since=job.run_at,
            )
            yield from self._reaper()
            return
        due = f"it is due {self._when(job.run_at)}"
        match job.merge:
            case DebounceKey(key=key):
                yield Reason(
                    cause="debounced", text=f"{due}, unless another call with its debounce key {key!r} comes first",
                    until=job.run_at,
                )  # fmt: skip
                return
            case CollectKey(key=key, max_size=size):
                yield Reason(
                    cause="collecting",
                    text=f"it collects calls with the key {key!r}, {job.collected} of {size} so far; {due}",
                    until=job.run_at,
                )
                return
            case _:
                pass
        last = self._runs[-1] if self._runs else None
        match last.ended if last is not None else None, last.reason if last is not None else None:
            case "released", "snoozed":
                yield Reason(cause="snoozed", text=f"its handler asked to run later: {due}", until=job.run_at)
            case "released", "rate_limited":
                yield Reason(cause="rate_limited", text=f"its handler raised RateLimited: {due}", until=job.run_at)
            case "raised" | "timed_out" | "stalled" | "undecodable" as how, _ if job.failures or job.stalls:
                cause = {"timed_out": "passed its time limit", "stalled": "was lost"}.get(how, "failed")
                yield Reason(
                    cause="retry_delay",
                    text=f"run {job.starts} {cause}; attempt {job.attempt} of {job.policy.retry.max_attempts} "
                    f"is due {self._when(job.run_at)}",
                    until=job.run_at,
                )
            case _:
                yield Reason(cause="delayed", text=due, until=job.run_at)

    # --- suspended -------------------------------------------------------------------------------

    def _suspended(self) -> Reason:
        links = self._job.links
        needs = () if links is None or links.wait is None else links.wait.needs
        missing = [
            f"{need.box!r}" if need.source is None else f"the job {need.source.id!r} of the queue {need.source.queue!r}"
            for need in needs
        ]
        until = None if links is None else links.wake_at
        word = " or " if links is not None and links.wait is not None and links.wait.want == "any" else " and "
        return Reason(cause="suspended", text=f"it waits for {word.join(missing)}", until=until)

    # --- waiting ---------------------------------------------------------------------------------

    def _too_late(self) -> Iterator[Reason]:
        job = self._job
        if job.expires_at is not None and job.expires_at <= self._now:
            yield Reason(
                cause="expires_first",
                text=f"its time to live ended {self._ago(job.expires_at)}; the next claim or sweep expires it",
                since=job.expires_at,
            )
            yield from self._reaper()

    def _closed(self) -> Iterator[Reason]:
        settings = self._queue.settings
        if settings.moved_to is not None:
            yield Reason(
                cause="queue_moved",
                text=f"the jobs of queue {self._job.queue!r} move to {settings.moved_to}",
                remedy="let `tenure move` end, or start it again: it goes on where it stopped",
            )
        if settings.paused:
            yield Reason(
                cause="queue_paused",
                text=f"queue {self._job.queue!r} is paused",
                remedy=f"tenure queues resume {self._job.queue}",
            )
        if self._job.task in self._survey.paused_tasks:
            yield Reason(
                cause="task_paused",
                text=f"task {self._job.task!r} is paused",
                remedy=f"tenure queues resume --task {self._job.task}",
            )

    def _parked(self) -> Iterator[Reason]:
        place = self._job.parked_under
        if place is None:
            return
        if place.startswith(PAUSED):
            task = place.removeprefix(PAUSED)
            if task not in self._survey.paused_tasks:
                yield Reason(cause="task_paused", text=f"task {task!r} was paused; the next sweeps make its jobs ready")
        elif place.startswith(UNKNOWN):
            yield self._unknown(*task_of_place(place))
        elif place.startswith(RATE):
            yield self._rate(place.removeprefix(RATE))
        else:
            yield self._key(place)

    def _unknown(self, task: str, version: int) -> Reason:
        newest = max(
            (serving.tasks.get(task, 0) for serving in self._serving() if serving.tasks is not None), default=0
        )
        if newest:
            return Reason(
                cause="newer_payload",
                text=f"its arguments have version {version} of task {task!r}, and the workers of its queue read "
                f"version {newest} at most",
                remedy="deploy the workers with the newer code",
            )
        return Reason(
            cause="unknown_task",
            text=f"no live worker of queue {self._job.queue!r} knows task {task!r}",
            remedy=f"deploy a worker that imports it, or cancel the job: tenure jobs cancel {self._job.id}",
        )

    def _rate(self, name: str) -> Reason:
        until = next((limit.until for limit in self._queue.limits if limit.rate == name), None)
        if until is not None:
            return Reason(
                cause="rate_limited",
                text=f"a handler raised RateLimited: nothing starts under {_rate_name(name)} before {_at(until)}",
                until=until,
                remedy=f"to end that limit now: tenure queues lift {self._job.queue}",
            )
        rates = {rate.name: rate for rate in self._job.rates} | {
            rate.name: rate
            for rate in (self._queue.settings.rate, *self._survey.task_rates.values())
            if rate is not None
        }
        rate = rates.get(name)
        each = "" if rate is None else f": one start in {span_text(rate.interval)}"
        return Reason(cause="rate", text=f"{_rate_name(name)} holds it back{each}")

    def _key(self, name: str) -> Reason:
        holders = [job for job in self._active if any(key.name == name for key in job.keys)]
        limit = next((key.limit for key in self._job.keys if key.name == name), 1)
        what = (
            f"another job of singleton task {name.removeprefix(SINGLETON)!r}"
            if name.startswith(SINGLETON)
            else f"concurrency key {name!r} is full ({limit} at once): it"
        )
        if not holders:
            unknown = "by a job that is not among the newest active ones" if not self._complete else "by no active job"
            text = f"it waits for concurrency key {name!r}, which is held {unknown}"
            return Reason(cause="key", text=text + ("" if not self._complete else "; the next sweep makes it ready"))
        # The run that began first is the likeliest to be the next to end.
        holder = min(holders, key=lambda job: job.started or 0)
        since = "" if holder.started is None else f", since {self._ago(holder.started)}"
        held = f"{what} runs: {holder.id}" if name.startswith(SINGLETON) else f"{what} is held by job {holder.id}"
        return Reason(
            cause="key",
            text=f"{held}{since}",
            since=holder.started,
            blocker=holder.ref,
            remedy=f"if that run hangs: tenure jobs why {holder.id}",
        )

    def _limited(self) -> Iterator[Reason]:
        for limit in self._queue.limits:
            if limit.rate is None:
                yield Reason(
                    cause="rate_limited",
                    text=f"a handler raised RateLimited: nothing starts in queue {self._job.queue!r} before "
                    f"{_at(limit.until)}",
                    until=limit.until,
                    remedy=f"to end that limit now: tenure queues lift {self._job.queue}",
                )

    def _serving(self) -> list[WorkerSurvey]:
        """Return the workers of its queue that are neither stale nor dead."""
        return [
            worker
            for worker in self._survey.workers
            if self._job.queue in worker.queues and state_of(worker, self._timing) != "stale"
        ]

    def _workers(self) -> Iterator[Reason]:
        serving = self._serving()
        queue = self._job.queue
        if not serving:
            yield Reason(
                cause="no_worker",
                text=f"no live worker serves queue {queue!r}",
                remedy=f"tenure worker MODULE:APP -q {queue}",
            )
            return
        claiming = [worker for worker in serving if not (worker.quiet or worker.stopping or worker.why)]
        if not claiming:
            stopping = [worker for worker in serving if worker.stopping or worker.why]
            if stopping:
                why = next((worker.why for worker in stopping if worker.why), "")
                yield Reason(
                    cause="workers_stopping",
                    text=f"each worker of queue {queue!r} stops or is quiet{': ' if why else ''}{why}",
                    remedy=f"start a worker: tenure worker MODULE:APP -q {queue}",
                )
            else:
                yield Reason(
                    cause="workers_quiet",
                    text=f"each worker of queue {queue!r} is quiet by order",
                    remedy="tenure workers quiet --undo",
                )
            return
        version = self._job.policy.version
        able = [worker for worker in claiming if knows(worker.tasks, self._job.task, version)]
        if not able:
            if self._job.parked_under is None or not self._job.parked_under.startswith(UNKNOWN):
                yield self._unknown(self._job.task, version)
            return
        slots, busy = sum(worker.concurrency for worker in able), sum(worker.active for worker in able)
        if self._job.state is State.WAITING and busy >= slots:
            yield self._full(able, slots)

    def _full(self, able: Sequence[WorkerSurvey], slots: int) -> Reason:
        owners = {worker.owner.id for worker in able}
        running = [job for job in self._active if job.owner in owners and job.started is not None]
        oldest = min(running, key=lambda job: job.started or 0, default=None)
        longest = "" if oldest is None else f"; job {oldest.id} has run longest, since {self._ago(oldest.started or 0)}"
        workers = "worker" if len(able) == 1 else f"{len(able)} workers"
        return Reason(
            cause="slots_full",
            text=f"all {slots} slots of the {workers} that could run it are taken{longest}",
            blocker=None if oldest is None else oldest.ref,
            remedy="start more workers, or raise their --concurrency",
        )

    def _turn(self) -> Iterator[Reason]:
        job = self._job
        if job.quarantined:
            yield Reason(
                cause="quarantined",
                text="its last run ended together with its process, so the next one gets a process of its own, which "
                "must be free",
            )
        ready = self._queue.counts.get(State.WAITING, 0) - self._queue.parked
        if job.parked_under is None:
            fair = "" if job.fair_key is None else f"; the tenants of the queue take turns, and its is {job.fair_key!r}"
            yield Reason(
                cause="turn",
                text=f"it is ready: {jobs_wait(max(ready, 1))} in queue {job.queue!r}, this one since "
                f"{self._ago(job.run_at)}{fair}",
                since=job.run_at,
            )

    # --- times -----------------------------------------------------------------------------------

    def _reaper(self) -> Iterator[Reason]:
        swept, bound = self._survey.swept_ago, self._timing.recovery_bound.total_seconds() * 1_000_000
        if swept is None or swept > bound:
            since = "has ever swept" if swept is None else f"has swept for {span_text(swept)}"
            yield Reason(cause="reaper_late", text=f"no process {since}", remedy="start a worker, or tenure reaper")

    def _when(self, at: int) -> str:
        return f"in {span_text(at - self._now)}, at {_at(at)}" if at > self._now else "with the next sweep"

    def _ago(self, at: int) -> str:
        return f"{span_text(max(0, self._now - at))} ago"


_FAILURES = {
    "exhausted": "attempt {job.policy.retry.max_attempts} of {job.policy.retry.max_attempts} failed",
    "stalled": "its worker was lost; stalls: {job.stalls}, allowed: {job.stall.max_stalls}",
    "crashed": "its process died; stalls: {job.stalls}, allowed: {job.stall.max_stalls}",
    "rejected": "its handler rejected it",
    "undecodable": "its arguments could not be read, or its result could not be stored",
    "timeout": "its last run passed its time limit",
}


def _place(worker: WorkerSurvey | None, run: RunRecord | None) -> str:
    if worker is not None:
        return f"worker {worker.owner.name!r}"
    return "its worker" if run is None else f"worker {run.worker!r}"


def _rate_name(name: str) -> str:
    if name == QUEUE_RATE:
        return "the rate of its queue"
    if name.startswith(TASK_RATE):
        return f"the rate of task {name.removeprefix(TASK_RATE)!r}"
    return f"rate {name!r}"


def _redrive(job: JobRecord) -> str:
    return f"tenure jobs redrive {job.id}"


def _at(at: int) -> str:
    return f"{moment(at):%Y-%m-%d %H:%M:%S} UTC"
