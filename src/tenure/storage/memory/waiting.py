"""The model's waits: delivers tokens, awakens or ends the jobs that wait, and notifies the dependents of each end."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from tenure.clock import Clock
from tenure.core.decision import Suspend
from tenure.core.events import FlowBroken, JobCancelled, JobCompleted, JobEvent, JobFailed, JobRedriven
from tenure.core.figures import TaskCounts, end_of
from tenure.core.fingerprint import fingerprint
from tenure.core.job import DebounceKey, JobRecord, NewJob, RecordedError, Ref, UniqueKey
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.order import entered_at
from tenure.core.transition import redriven
from tenure.core.waiting import (
    EARLY_FAILURE,
    SIGNAL,
    Broken,
    Dependent,
    Inbox,
    JobKind,
    Links,
    Met,
    NeedOutcome,
    Open,
    Skipped,
    StepRecord,
    Verdict,
    WaitToken,
    added,
    due_at,
    evaluate,
    failure_cause,
)
from tenure.storage.memory.enqueue import EnqueueRules
from tenure.storage.protocol import EnqueueResult, RevisionResult, job_topic, queue_topic
from tenure.storage.waiting import (
    ENDS_AT_ONCE,
    ENTRY_PAGE,
    NOTIFIED_AT_ONCE,
    OUTBOX_DELAY,
    OUTBOX_LIMIT,
    AdvanceEntry,
    DeliverToken,
    OutboxEntry,
    SealBox,
    Subscribe,
    end_token,
)

DEPENDENCY = "dependency"
"""The reason of a job that failed because a job that it needs has failed, and who puts it back."""

SKIPPED = "skipped"
"""The reason of a job that was cancelled because what it was meant to react to did not happen."""

_PLAIN = Links()


@dataclass(frozen=True)
class _End:
    """The end of a job, and the dependents that are to be notified of it."""

    ref: Ref
    completed: bool
    dependents: tuple[Dependent, ...]


@dataclass
class _Entry:
    """An entry of the outbox: an end, how many of its dependents were notified, and when a sweep hands it out."""

    number: int
    end: _End
    cursor: int
    at: int


class WaitingRules(EnqueueRules):
    """Carries out the verdicts of `core.waiting` on each job in the step in which its tokens arrive."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._inboxes: dict[Ref, Inbox] = {}
        self._steps: dict[Ref, dict[str, StepRecord]] = {}
        self._outbox: dict[int, _Entry] = {}
        self._ends: deque[_End] = deque()
        self._entries_written = 0
        self._written: list[int] = []
        """The numbers of the outbox entries that the current step has written."""
        self._immediate: list[tuple[Ref, WaitToken]] = []
        """Tokens of calls whose jobs have ended already, or never begin. A later call of the step may wait for them."""

    @property
    def inboxes(self) -> Mapping[Ref, Inbox]:
        """The inboxes of all jobs that have one, for the invariant checks."""
        return self._inboxes

    @property
    def outbox(self) -> tuple[OutboxEntry, ...]:
        """All entries of the outbox, for the invariant checks."""
        return tuple(map(_shown, self._outbox.values()))

    # ── tokens ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _revise_waiting(self, revision: DeliverToken | SealBox | Subscribe, job: JobRecord, now: int) -> RevisionResult:
        """Carry out a revision that concerns what jobs wait for."""
        match revision:
            case DeliverToken(token=token):
                if token.box.startswith(SIGNAL) and job.state in TERMINAL:
                    return RevisionResult(job.ref, "refused", job.state)
                self._deliver(job.ref, token, now)
            case SealBox(box=box, total=total):
                if self._inbox(job.ref).seal(box, total):
                    self._arrived(job, now)
            case Subscribe(dependent=dependent):
                self._add_dependents(job.ref, (dependent,), now)
                self._deliver_immediate(now)
        return RevisionResult(job.ref, "done", job.state)

    def _deliver(self, to: Ref, token: WaitToken, now: int) -> None:
        """Put a token into a job's inbox, and act on it. A token for an unknown job, or a repeated one, is dropped."""
        job = self._jobs.get(self._merged_into.get(to, to))
        if job is None or self._is_past_retention(job, now) or not self._inbox(job.ref).deliver(token):
            return
        links = job.links or _PLAIN
        if token.outcome == "failed" and links.kind is not JobKind.JOB:
            self._note_early_failure(job, links, token, now)
        if token.box != EARLY_FAILURE:
            self._arrived(job, now)

    def _arrived(self, job: JobRecord, now: int) -> None:
        """Evaluate the wait of a job whose inbox has changed."""
        if job.state is State.SUSPENDED:
            self._judge(job, now)
        elif job.state is State.FAILED and job.reason == DEPENDENCY:
            self._resume(job, now)

    def _note_early_failure(self, job: JobRecord, links: Links, token: WaitToken, now: int) -> None:
        """Report the first failure in a flow or a group, which itself may end much later, to the flow, once."""
        inbox = self._inbox(job.ref)
        if token.box == EARLY_FAILURE:
            if inbox.box(EARLY_FAILURE).arrived == 1:
                self._record(
                    FlowBroken(queue=job.queue, id=job.id, task=job.task, run=job.starts, failure_cause=token.key), now
                )
            return
        needs = () if links.wait is None else links.wait.needs
        need = next((need for need in needs if need.box == token.box and need.mode in ("fail", "tally")), None)
        if need is not None:
            flow = links.flow or job.ref
            if flow in self._inboxes and self._inboxes[flow].box(EARLY_FAILURE).arrived:
                return
            cause = failure_cause(need, token.key, job.ref, links.kind, links.plan)
            name = token.key if cause is None else f"{cause.queue}/{cause.id}"
            self._deliver(flow, WaitToken(EARLY_FAILURE, name, "failed"), now)

    def _inbox(self, ref: Ref) -> Inbox:
        return self._inboxes.setdefault(ref, Inbox())

    # ── verdicts ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _verdict(self, job: JobRecord, now: int) -> Verdict:
        """Return the verdict on a job's wait; a job without one has nothing to wait for."""
        if job.links is None or job.links.wait is None:
            return Met()
        return evaluate(job.links.wait, self._inbox(job.ref), now)

    def _judge(self, job: JobRecord, now: int) -> None:
        """Carry out the verdict on a suspended job."""
        verdict, links = self._verdict(job, now), job.links or _PLAIN
        if isinstance(verdict, Open):
            if job.deadline is not None and job.deadline <= now:
                self._end_at_deadline(job, links, now)
            else:
                self._set_wake_time(job, links)
        elif isinstance(verdict, Skipped):
            self._end(job, State.CANCELLED, now, reason=SKIPPED)
        elif links.kind is JobKind.JOB and not (isinstance(verdict, Broken) and not job.starts):
            # A broken wait of a job that has started: its handler gets the error.
            self._wake(job, verdict.outcomes, now)
        elif isinstance(verdict, Broken):
            cause = self._failure_cause(job, verdict)
            self._end(job, State.FAILED, now, reason=DEPENDENCY, error=self._dependency_error(verdict, cause))
        elif verdict.by_time:
            self._end(job, State.FAILED, now, reason="timeout", error=_TOO_LATE)
        else:
            self._end(job, State.COMPLETED, now)

    def _suspend(self, job: JobRecord, freed: JobRecord, decision: Suspend, now: int) -> None:
        """Suspend an active job, or put it back at once if what it waits for is there. `freed`: it without its run."""
        links = structs.replace(job.links or _PLAIN, wait=decision.wait, wake_at=None)
        suspended = structs.replace(freed, state=State.SUSPENDED, expires_at=None, reason=decision.reason, links=links)
        self._replace(job, suspended)
        self._judge(suspended, now)

    def _end_at_deadline(self, job: JobRecord, links: Links, now: int) -> None:
        if links.kind is JobKind.JOB:
            # Its next run ends at once, as that of any job whose deadline has passed.
            self._wake(job, (), now)
        else:
            self._end(job, State.FAILED, now, reason="timeout", error=_TOO_LATE)

    def _set_wake_time(self, job: JobRecord, links: Links) -> None:
        """Set the instant at which time alone changes a suspended job."""
        times = [job.deadline, None if links.wait is None else due_at(links.wait, self._inbox(job.ref))]
        wake_at = min((time for time in times if time is not None), default=None)
        if wake_at != links.wake_at:
            self._replace(job, structs.replace(job, links=structs.replace(links, wake_at=wake_at)))

    def _wake_due(self, queue: str, limit: int, now: int) -> int:
        """Judge the suspended jobs of a queue whose time has come; return how many there were."""
        due = self._queues[queue].timers.first(limit, until=now)
        for ref in due:
            # The end of an earlier one may have changed or deleted it.
            job = self._jobs.get(ref)
            if job is not None and job.state is State.SUSPENDED:
                self._judge(job, now)
        return len(due)

    def _wake(self, job: JobRecord, outcomes: Sequence[NeedOutcome], now: int) -> None:
        """Put a suspended job back into its queue at its old place, with new budgets, and record what it waited for."""
        steps = self._steps.setdefault(job.ref, {})
        for outcome in outcomes:
            if (name := outcome.need.step) is not None:
                steps.setdefault(name, StepRecord(name, job.starts, now, outcome.by, outcome.body))
        if job.starts:
            score, expires_at = self._indexes.score_again(job, now), None
        else:
            entered = entered_at(job.score, boost=job.boost, lifo=job.lifo)
            score, expires_at = self._indexes.score(job, entered, now), None if job.ttl is None else now + job.ttl
        self._replace(
            job,
            structs.replace(
                job,
                state=State.WAITING,
                run_at=now,
                score=score,
                expires_at=expires_at,
                failures=0,
                stalls=0,
                reason=None,
                links=_without_time(job.links),
            ),
        )
        self.notified += [queue_topic(job.queue), job_topic(job.ref)]

    def _end(
        self, job: JobRecord, state: State, now: int, *, reason: str | None = None, error: RecordedError | None = None
    ) -> None:
        """End a suspended job by the verdict on its wait."""
        ended = structs.replace(
            job,
            state=state,
            finished=now,
            reason=reason,
            error=error,
            links=_without_time(job.links),
            fault=fingerprint(job.task, reason, error) if state is State.FAILED else None,
        )
        self._record(_end_event(ended), now)
        self._figures.add([TaskCounts(job.queue, job.task, end_of(state.value))], now)
        self._replace(job, ended)
        self._record_if_drained(job.queue, now)
        self.notified.append(job_topic(job.ref))

    def _failure_cause(self, job: JobRecord, verdict: Broken) -> Ref | None:
        links = job.links or _PLAIN
        return failure_cause(verdict.need, verdict.key, job.ref, links.kind, links.plan)

    def _dependency_error(self, verdict: Broken, cause: Ref | None) -> RecordedError:
        """Return the error of a job that failed by another one, which it names."""
        if cause is None:
            return RecordedError(_DEPENDENCY_ERROR, f"{verdict.key!r} in {verdict.need.box!r} failed")
        message = f"it needs the job {cause.id!r} of the queue {cause.queue!r}, which did not complete"
        failed = self._jobs.get(cause)
        if failed is not None and failed.error is not None:
            message += f": {failed.error.type}: {failed.error.message}"
        return RecordedError(_DEPENDENCY_ERROR, message)

    # ── redrives ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _resume(self, job: JobRecord, now: int) -> None:
        """Put a job back that had failed by others only, if none of its needs is broken any more."""
        if isinstance(self._verdict(job, now), Broken):
            return
        if isinstance(job.merge, UniqueKey) and self._key_holder(job.queue, job.merge, now) is not None:
            return
        self._record(
            JobRedriven(queue=job.queue, id=job.id, task=job.task, run=job.starts, by=DEPENDENCY, was=job.state), now
        )
        self._suspend_again(job, now)

    def _suspend_again(self, job: JobRecord, now: int) -> None:
        """Suspend an ended job with new budgets, and judge it."""
        suspended = structs.replace(
            redriven(job, now), state=State.SUSPENDED, run_at=job.run_at, score=job.score, expires_at=None
        )
        self._replace(job, suspended)
        self.notified.append(job_topic(job.ref))
        self._judge(suspended, now)

    def _redrive_waiting(self, job: JobRecord, by: str | None, now: int) -> bool:
        """Suspend a job that is redriven, if something is missing; return False if it may run."""
        if job.links is None or job.links.wait is None:
            return False
        verdict = self._verdict(job, now)
        # An operator may run a job that was skipped.
        skipped = isinstance(verdict, Skipped) and not job.starts and job.reason != SKIPPED
        if job.links.kind is JobKind.JOB and not (isinstance(verdict, Open) or skipped):
            return False
        self._record(JobRedriven(queue=job.queue, id=job.id, task=job.task, run=job.starts, by=by, was=job.state), now)
        if job.links.kind is not JobKind.JOB:
            # Its time is over, and would end it again.
            needs = tuple(structs.replace(need, until=None) for need in job.links.wait.needs)
            wait = structs.replace(job.links.wait, needs=needs)
            job = structs.replace(job, deadline=None, links=structs.replace(job.links, wait=wait))
        self._suspend_again(job, now)
        return True

    def _missing_job(self, job: JobRecord, now: int) -> Ref | None:
        """Return the failed job that must be redriven instead of one that needs it; None if that job does not exist."""
        verdict = self._verdict(job, now)
        # The handler of a job that has started gets the error of its wait, unless that error has ended it.
        handled = job.starts > 0 and job.reason != DEPENDENCY
        if job.links is None or handled or not isinstance(verdict, Broken):
            return None
        cause = self._failure_cause(job, verdict)
        # A job without a handler cannot do without it.
        return cause if cause in self._jobs or job.links.kind is not JobKind.JOB else None

    # ── ends ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _replace(self, before: JobRecord, after: JobRecord) -> None:
        super()._replace(before, after)
        if after.state in TERMINAL and before.state not in TERMINAL:
            self._hand_over(after, completed=after.state is State.COMPLETED)

    def _hand_over(self, job: JobRecord, *, completed: bool = False) -> None:
        """Notify the dependents of a job of its end, and those of the jobs that end by this."""
        if job.links is None or not job.links.dependents:
            return
        self._ends.append(_End(job.ref, completed, job.links.dependents))
        if len(self._ends) > 1:
            # The call below this one goes on with it.
            return
        try:
            self._carry_out_ends(self._clock.now())
        finally:
            # Otherwise no later end would be carried out after an error.
            self._ends.clear()

    def _carry_out_ends(self, now: int) -> None:
        carried = 0
        while self._ends:
            end = self._ends[0]
            if len(end.dependents) > NOTIFIED_AT_ONCE or carried > ENDS_AT_ONCE:
                self._write_entry(end, now)
            else:
                carried += 1
                for dependent in end.dependents:
                    self._deliver(dependent.to, end_token(dependent, completed=end.completed), now)
            self._ends.popleft()

    def _write_entry(self, end: _End, now: int) -> None:
        # The new entry notifies all dependents of an earlier failure; its tokens replace those of the failure.
        replaced = [
            number
            for number, entry in self._outbox.items()
            if entry.end.ref == end.ref and not entry.end.completed and {*entry.end.dependents} <= {*end.dependents}
        ]
        for number in replaced:
            del self._outbox[number]
        self._entries_written += 1
        self._outbox[self._entries_written] = _Entry(self._entries_written, end, 0, now + OUTBOX_DELAY)
        self._written.append(self._entries_written)

    def _advance_entry(self, done: AdvanceEntry, now: int) -> RevisionResult:
        """Record how far an entry was carried out. Another end of a job of the same id has an entry of its own.

        The job itself may be deleted.
        """
        entry = self._outbox.get(done.number)
        if entry is None or entry.end.ref != done.ref or done.cursor < entry.cursor:
            return RevisionResult(done.ref, "gone")
        # The next page is handed out at once.
        entry.at = now if done.cursor > entry.cursor else now + done.put_off
        entry.cursor = done.cursor
        if entry.cursor >= len(entry.end.dependents):
            del self._outbox[done.number]
        return RevisionResult(done.ref, "done")

    def _take_written(self) -> tuple[OutboxEntry, ...]:
        """Return the entries that this step has written."""
        written, self._written = self._written, []
        kept = [self._outbox[number] for number in written if number in self._outbox]
        return tuple(map(_shown, kept[:OUTBOX_LIMIT]))

    def _due_entries(self, now: int) -> tuple[OutboxEntry, ...]:
        """Return the entries that a sweep hands out, those first that have waited longest."""
        due = sorted((entry for entry in self._outbox.values() if entry.at <= now), key=lambda entry: entry.at)
        return tuple(map(_shown, due[:OUTBOX_LIMIT]))

    # ── enqueueing and deleting ───────────────────────────────────────────────────────────────────────────────────

    def _enqueue(self, new: NewJob, now: int, offset: int) -> EnqueueResult:
        result = super()._enqueue(new, now, offset)
        if new.links is None:
            return result
        if result.action == "created":
            job = self._jobs[new.ref]
            if job.state is State.SUSPENDED:
                self._judge(job, now)
        elif result.action == "throttled":
            self._immediate += ((one.to, end_token(one, completed=False)) for one in new.links.dependents)
        else:
            self._add_dependents(result.ref, new.links.dependents, now)
        return result

    def _deliver_immediate(self, now: int) -> None:
        tokens, self._immediate = self._immediate, []
        for to, token in tokens:
            self._deliver(to, token, now)

    def _replace_call(self, new: NewJob, old: JobRecord, key: DebounceKey, now: int, offset: int) -> None:
        inbox = self._inboxes.get(old.ref)
        super()._replace_call(new, old, key, now, offset)
        if inbox is not None:
            self._inboxes[old.ref] = inbox
        if old.links is not None:
            self._add_dependents(old.ref, old.links.dependents, now)

    def _add_dependents(self, ref: Ref, dependents: tuple[Dependent, ...], now: int) -> None:
        """Add dependents to a job; if it has ended, or was deleted, `_deliver_immediate` notifies them."""
        job = self._jobs.get(ref)
        if job is None or job.state in TERMINAL:
            completed = job is not None and job.state is State.COMPLETED
            self._immediate += ((one.to, end_token(one, completed=completed)) for one in dependents)
        if job is None:
            return
        links = job.links or _PLAIN
        more = added(links.dependents, dependents)
        if more != links.dependents:
            self._replace(job, structs.replace(job, links=structs.replace(links, dependents=more)))

    def _expire(self, job: JobRecord, now: int) -> None:
        super()._expire(job, now)
        if job.ref not in self._jobs:
            self._hand_over(job)

    def _drop(self, job: JobRecord) -> None:
        super()._drop(job)
        self._inboxes.pop(job.ref, None)
        self._steps.pop(job.ref, None)


_DEPENDENCY_ERROR = "DependencyFailedError"
_TOO_LATE = RecordedError("WaitTimeoutError", "its members did not end within its time")


def _without_time(links: Links | None) -> Links | None:
    return links if links is None or links.wake_at is None else structs.replace(links, wake_at=None)


def _shown(entry: _Entry) -> OutboxEntry:
    page = entry.end.dependents[entry.cursor : entry.cursor + ENTRY_PAGE]
    return OutboxEntry(entry.end.ref, entry.number, entry.end.completed, page, entry.cursor)


def _end_event(job: JobRecord) -> JobEvent:
    """Return the event for a suspended job that has ended without a run."""
    match job.state:
        case State.COMPLETED:
            return JobCompleted(queue=job.queue, id=job.id, task=job.task, run=job.starts, attempt=job.attempt)
        case State.CANCELLED:
            return JobCancelled(
                queue=job.queue, id=job.id, task=job.task, run=job.starts, reason=job.reason, was=State.SUSPENDED
            )
        case _:
            return JobFailed(
                queue=job.queue,
                id=job.id,
                task=job.task,
                run=job.starts,
                attempt=job.attempt,
                reason=job.reason or DEPENDENCY,
                error=job.error,
            )
