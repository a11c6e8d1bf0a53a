"""Waits in SQL: delivers tokens, awakens or ends the jobs that wait, and notifies the dependents of each end.

    an end ──► its dependents ──► a token in each inbox ──► the numbers of its boxes ──► evaluate ──► the verdict
                  └── more than a few ──► the outbox

The rules are those of storage/memory/waiting.py. A job without links takes none of these steps.
"""

from collections.abc import Sequence

from msgspec import structs

from tenure.core.deduplication import COLLECTED_LIMIT, merge_name
from tenure.core.events import FlowBroken, JobCancelled, JobCompleted, JobEvent, JobFailed, JobRedriven
from tenure.core.figures import TaskCounts, end_of
from tenure.core.fingerprint import fingerprint
from tenure.core.job import CollectKey, DebounceKey, JobRecord, MergeKey, NewJob, RecordedError, Ref, UniqueKey
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.order import entered_at
from tenure.core.steps import SIGNALS_LIMIT
from tenure.core.transition import expired, expiry, redriven
from tenure.core.waiting import (
    EARLY_FAILURE,
    SIGNAL,
    Broken,
    Dependent,
    InboxCounts,
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
from tenure.storage.names import job_topic, queue_topic
from tenure.storage.requests import EnqueueResult
from tenure.storage.revisions import RevisionResult
from tenure.storage.sql import fair_queue, inbox, outbox, rows
from tenure.storage.sql.columns import UndecodableText
from tenure.storage.sql.transaction import End, Transaction
from tenure.storage.sql.transitions import (
    delete,
    existing,
    find_job,
    is_past_lifetime,
    job_at,
    merged_into,
    record_if_drained,
    record_move,
)
from tenure.storage.waiting import (
    ENDS_AT_ONCE,
    NOTIFIED_AT_ONCE,
    DeliverToken,
    SealBox,
    Subscribe,
    end_token,
)

DEPENDENCY = "dependency"
"""The reason of a job that failed because a job that it needs has failed, and who puts it back."""

SKIPPED = "skipped"
"""The reason of a job that was cancelled because what it was meant to react to did not happen."""

_PLAIN = Links()
_DEPENDENCY_ERROR = "DependencyFailedError"
_TOO_LATE = RecordedError("WaitTimeoutError", "its members did not end within its time")


# ── tokens ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def revise(tx: Transaction, seq: int, job: JobRecord, revision: DeliverToken | SealBox | Subscribe) -> RevisionResult:
    """Carry out a revision that concerns what jobs wait for."""
    match revision:
        case DeliverToken(token=token):
            if token.box.startswith(SIGNAL) and (
                job.state in TERMINAL or inbox.unread(tx, seq, token) >= SIGNALS_LIMIT
            ):
                return RevisionResult(job.ref, "refused", job.state)
            _put(tx, seq, job, token)
        case SealBox(box=box, total=total):
            if inbox.seal(tx, seq, box, total):
                if job.links is None:
                    inbox.mark(tx, seq)
                _arrived(tx, seq, job)
        case Subscribe(dependent=dependent):
            _add_dependents(tx, job.ref, (dependent,))
            deliver_tokens(tx)
    return RevisionResult(job.ref, "done", job.state)


def deliver_tokens(tx: Transaction) -> None:
    """Deliver the tokens that calls have caused. All jobs of these calls exist."""
    tokens, tx.deliveries.tokens = tx.deliveries.tokens, []
    for to, token in tokens:
        _deliver(tx, to, token)


def _deliver(tx: Transaction, to: Ref, token: WaitToken) -> None:
    """Put a token into a job's inbox, and act on it. A token for an unknown job, or a repeated one, is dropped."""
    found = _receiver(tx, to)
    if found is not None:
        _put(tx, *found, token)


def _receiver(tx: Transaction, to: Ref) -> tuple[int, JobRecord] | None:
    found = find_job(tx, to)
    if found is None and (answering := merged_into(tx, to)) is not None:
        found = find_job(tx, answering)
    return None if found is None or is_past_lifetime(found[1], tx.now) else found


def _put(tx: Transaction, seq: int, job: JobRecord, token: WaitToken) -> None:
    if not inbox.put(tx, seq, token):
        return
    if job.links is None:
        inbox.mark(tx, seq)
    elif token.outcome == "failed" and job.links.kind is not JobKind.JOB:
        _note_early_failure(tx, seq, job, job.links, token)
    if token.box != EARLY_FAILURE:
        _arrived(tx, seq, job)


def _arrived(tx: Transaction, seq: int, job: JobRecord) -> None:
    """Evaluate the wait of a job whose inbox has changed."""
    if job.state is State.SUSPENDED:
        judge(tx, seq, job)
    elif job.state is State.FAILED and job.reason == DEPENDENCY:
        _resume(tx, seq, job)


def _note_early_failure(tx: Transaction, seq: int, job: JobRecord, links: Links, token: WaitToken) -> None:
    """Report the first failure in a flow or a group, which itself may end much later, to the flow, once."""
    if token.box == EARLY_FAILURE:
        if inbox.read(tx, seq).box(EARLY_FAILURE).arrived == 1:
            tx.record(
                FlowBroken(queue=job.queue, id=job.id, task=job.task, run=job.starts, failure_cause=token.key),
            )
        return
    needs = () if links.wait is None else links.wait.needs
    need = next((need for need in needs if need.box == token.box and need.mode in ("fail", "tally")), None)
    if need is None:
        return
    found = _receiver(tx, links.flow or job.ref)
    if found is None or inbox.read(tx, found[0]).box(EARLY_FAILURE).arrived:
        return
    cause = failure_cause(need, token.key, job.ref, links.kind, links.plan)
    name = token.key if cause is None else f"{cause.queue}/{cause.id}"
    _put(tx, *found, WaitToken(EARLY_FAILURE, name, "failed"))


# ── verdicts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def judge(tx: Transaction, seq: int, job: JobRecord) -> None:
    """Carry out the verdict on the wait of a suspended job."""
    tokens = inbox.read(tx, seq)
    verdict, links = _verdict(tx, job, tokens), job.links or _PLAIN
    if isinstance(verdict, Open):
        if job.deadline is not None and job.deadline <= tx.now:
            _end_at_deadline(tx, seq, job, links)
        else:
            _set_wake_time(tx, seq, job, links, tokens)
    elif isinstance(verdict, Skipped):
        _end(tx, seq, job, State.CANCELLED, reason=SKIPPED)
    elif links.kind is JobKind.JOB and not (isinstance(verdict, Broken) and not job.starts):
        # A broken wait of a job that has started: its handler gets the error.
        _record_steps(tx, seq, job, verdict, tokens)
        _wake(tx, seq, job)
    elif isinstance(verdict, Broken):
        cause = failure_cause(verdict.need, verdict.key, job.ref, links.kind, links.plan)
        _end(tx, seq, job, State.FAILED, reason=DEPENDENCY, error=_dependency_error(tx, verdict, cause))
    elif verdict.by_time:
        _end(tx, seq, job, State.FAILED, reason="timeout", error=_TOO_LATE)
    else:
        _end(tx, seq, job, State.COMPLETED)


def wake_due(tx: Transaction, queue: str, limit: int) -> int:
    """Judge the suspended jobs of a queue whose time has come; return how many there were."""
    if limit <= 0:
        return 0
    due = tx.all("waiting.due", {"queue": queue, "now": tx.now, "limit": limit})
    for (seq,) in due:
        # The end of an earlier one may have changed or deleted it.
        job = existing(tx, seq)
        if job is not None and job.state is State.SUSPENDED:
            judge(tx, seq, job)
    return len(due)


def _verdict(tx: Transaction, job: JobRecord, tokens: InboxCounts) -> Verdict:
    """Return the verdict on a job's wait; a job without one has nothing to wait for."""
    if job.links is None or job.links.wait is None:
        return Met()
    return evaluate(job.links.wait, tokens, tx.now)


def _end_at_deadline(tx: Transaction, seq: int, job: JobRecord, links: Links) -> None:
    if links.kind is JobKind.JOB:
        # Its next run ends at once, as that of any job whose deadline has passed.
        _wake(tx, seq, job)
    else:
        _end(tx, seq, job, State.FAILED, reason="timeout", error=_TOO_LATE)


def _set_wake_time(tx: Transaction, seq: int, job: JobRecord, links: Links, tokens: InboxCounts) -> None:
    """Set the instant at which time alone changes a suspended job."""
    times = [job.deadline, None if links.wait is None else due_at(links.wait, tokens)]
    wake_at = min((time for time in times if time is not None), default=None)
    if wake_at != links.wake_at:
        tx.run("waiting.set_wake_time", {"wake_at": wake_at, "seq": seq})
        tx.note_wake_time()


def _record_steps(tx: Transaction, seq: int, job: JobRecord, verdict: Met | Broken, tokens: InboxCounts) -> None:
    """Record what a job has waited for, and which signals it has read."""
    steps: list[tuple[int, StepRecord]] = []
    for outcome in verdict.outcomes:
        need = outcome.need
        if (step := outcome.step(job.starts, tx.now)) is not None:
            broken = isinstance(verdict, Broken) and outcome is verdict.outcomes[-1]
            body = None if broken or outcome.by == "timer" else _body(tx, seq, outcome, tokens)
            steps.append((seq, structs.replace(step, body=body)))
        if need.box.startswith(SIGNAL) and outcome.by != "timer":
            inbox.note_read(tx, seq, need.box, need.count or 0)
    if steps:
        inbox.record_steps(tx, steps)


def _body(tx: Transaction, seq: int, outcome: NeedOutcome, tokens: InboxCounts) -> bytes | None:
    """Return the content of the last token that a need counts, in the order of arrival."""
    box, count = outcome.need.box, outcome.need.count
    place = tokens.box(box).total if count is None else count
    return None if place is None else inbox.body(tx, seq, box, place)


def _wake(tx: Transaction, seq: int, job: JobRecord) -> None:
    """Put a suspended job back into its queue at its old place, with new budgets."""
    if job.starts:
        reached = fair_queue.reached(tx, job.queue, job.boost)
        score, expires_at = job.score if job.lifo else min(job.score, reached - job.boost), None
    else:
        score = fair_queue.score(tx, job, entered_at(job.score, boost=job.boost, lifo=job.lifo))
        expires_at = None if job.ttl is None else tx.now + job.ttl
    tx.run("waiting.wake", {"now": tx.now, "score": score, "expires_at": expires_at, "seq": seq})
    record_move(tx, job, State.WAITING, score=score)
    tx.deliveries.woken += 1
    tx.topics += [queue_topic(job.queue), job_topic(job.ref)]


def _end(
    tx: Transaction,
    seq: int,
    job: JobRecord,
    state: State,
    *,
    reason: str | None = None,
    error: RecordedError | None = None,
) -> None:
    """End a suspended job by the verdict on its wait."""
    ended = structs.replace(
        job,
        state=state,
        finished=tx.now,
        reason=reason,
        error=error,
        fault=fingerprint(job.task, reason, error) if state is State.FAILED else None,
    )
    values = {"state": state, "now": tx.now, "reason": reason, "error": rows.error_text(error), "fault": ended.fault}
    tx.run("waiting.end", {**values, "seq": seq})
    tx.record(_end_event(ended))
    tx.count_figures([TaskCounts(job.queue, job.task, end_of(state.value))])
    record_move(tx, job, state)
    hand_over(tx, ended, completed=state is State.COMPLETED)
    record_if_drained(tx, job.queue)
    tx.topics.append(job_topic(job.ref))


def _dependency_error(tx: Transaction, verdict: Broken, cause: Ref | None) -> RecordedError:
    """Return the error of a job that failed by another one, which it names."""
    if cause is None:
        return RecordedError(_DEPENDENCY_ERROR, f"{verdict.key!r} in {verdict.need.box!r} failed")
    message = f"it needs the job {cause.id!r} of the queue {cause.queue!r}, which did not complete"
    failed = find_job(tx, cause)
    if failed is not None and failed[1].error is not None:
        message += f": {failed[1].error.type}: {failed[1].error.message}"
    return RecordedError(_DEPENDENCY_ERROR, message)


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


# ── redrives ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def redrive(tx: Transaction, seq: int, job: JobRecord, by: str | None) -> bool:
    """Suspend a job that is redriven, if something is missing; return False if it may run."""
    if job.links is None or job.links.wait is None:
        return False
    verdict = _verdict(tx, job, inbox.read(tx, seq))
    # An operator may run a job that was skipped.
    skipped = isinstance(verdict, Skipped) and not job.starts and job.reason != SKIPPED
    if job.links.kind is JobKind.JOB and not (isinstance(verdict, Open) or skipped):
        return False
    tx.record(JobRedriven(queue=job.queue, id=job.id, task=job.task, run=job.starts, by=by, was=job.state))
    if job.links.kind is not JobKind.JOB:
        # Its time is over, and would end it again.
        needs = tuple(structs.replace(need, until=None) for need in job.links.wait.needs)
        wait = structs.replace(job.links.wait, needs=needs)
        job = structs.replace(job, deadline=None, links=structs.replace(job.links, wait=wait))
    _suspend_again(tx, seq, job)
    return True


def forget_failures(tx: Transaction, seq: int, job: JobRecord) -> None:
    """Forget the recorded failures of a job that is redriven, so that it tries these steps again."""
    failed = inbox.forget_failures(tx, seq)
    links = job.links
    if not failed or links is None or links.wait is None:
        return
    # The wait stays over, but its time counts from the next wait for the same.
    needs = tuple(
        structs.replace(need, until=0) if need.step in failed and need.until is not None else need
        for need in links.wait.needs
    )
    again = structs.replace(links, wait=structs.replace(links.wait, needs=needs))
    tx.run("waiting.set_links", {"links": rows.links_text(again), "seq": seq})


def missing_job(tx: Transaction, seq: int, job: JobRecord) -> Ref | None:
    """Return the failed job that must be redriven instead of one that needs it; None if that job does not exist."""
    if job.links is None:
        return None
    verdict = _verdict(tx, job, inbox.read(tx, seq))
    # The handler of a job that has started gets the error of its wait, unless that error has ended it.
    handled = job.starts > 0 and job.reason != DEPENDENCY
    if handled or not isinstance(verdict, Broken):
        return None
    cause = failure_cause(verdict.need, verdict.key, job.ref, job.links.kind, job.links.plan)
    # A job without a handler cannot do without it.
    without_handler = job.links.kind is not JobKind.JOB
    return cause if without_handler or (cause is not None and find_job(tx, cause) is not None) else None


def _resume(tx: Transaction, seq: int, job: JobRecord) -> None:
    """Put a job back that had failed by others only, if none of its needs is broken any more."""
    if isinstance(_verdict(tx, job, inbox.read(tx, seq)), Broken) or holder(tx, job) is not None:
        return
    tx.record(JobRedriven(queue=job.queue, id=job.id, task=job.task, run=job.starts, by=DEPENDENCY, was=job.state))
    _suspend_again(tx, seq, job)


def _suspend_again(tx: Transaction, seq: int, job: JobRecord) -> None:
    """Suspend an ended job with new budgets, and judge it."""
    suspended = structs.replace(
        redriven(job, tx.now), state=State.SUSPENDED, run_at=job.run_at, score=job.score, expires_at=None
    )
    values = {
        "deadline": suspended.deadline,
        "error": rows.error_text(suspended.error),
        "links": rows.links_text(suspended.links),
        "seq": seq,
    }
    tx.run("waiting.suspend_again", values)
    record_move(tx, job, State.SUSPENDED)
    tx.topics.append(job_topic(job.ref))
    judge(tx, seq, suspended)


# ── ends ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def hand_over(tx: Transaction, job: JobRecord, *, completed: bool = False) -> None:
    """Notify the dependents of a job of its end, and those of the jobs that end by this."""
    if job.links is not None and job.links.dependents:
        tx.deliveries.ends.append(End(job.ref, completed, job.links.dependents))
        carry_out_ends(tx)


def carry_out_ends(tx: Transaction) -> None:
    """Notify the dependents of the ends that were collected. A call below another one leaves that to it."""
    state = tx.deliveries
    if state.carrying:
        return
    state.carrying = True
    carried = 0
    try:
        while state.ends:
            end = state.ends.popleft()
            if len(end.dependents) > NOTIFIED_AT_ONCE or carried > ENDS_AT_ONCE:
                outbox.write(tx, end)
            else:
                carried += 1
                for dependent in end.dependents:
                    _deliver(tx, dependent.to, end_token(dependent, completed=end.completed))
    finally:
        state.carrying = False


def complete_all(tx: Transaction, dependents: Sequence[Dependent]) -> None:
    """Notify one box of one job of several completions, and evaluate its wait once.

    That has the same effect as one by one: only completed tokens arrive, and no more than one need depends on the box.
    """
    to, box = dependents[0].to, dependents[0].box
    found = _receiver(tx, to)
    if found is None:
        return
    seq, job = found
    wait = None if job.links is None else job.links.wait
    alone = wait is not None and sum(need.box == box for need in wait.needs) < 2
    if not alone or not inbox.complete_all(tx, seq, box, [dependent.key for dependent in dependents]):
        for dependent in dependents:
            _deliver(tx, to, end_token(dependent, completed=True))
    elif box != EARLY_FAILURE:
        _arrived(tx, seq, job)


def expire(tx: Transaction, seq: int, job: JobRecord) -> int:
    """Expire a job that is too old to start, or delete it at once; return 1, or how many calls were deleted with it."""
    calls = 1
    if job.state in TERMINAL:
        # The repair of its record has ended the job.
        return calls
    tx.record(expiry(job, tx.now))
    discarded = job.policy.on_expire == "discard"
    if discarded:
        calls = delete(tx, seq, job)
        tx.count_move(job.queue, to="discarded")
    else:
        error = rows.error_text(expired(job, tx.now).error)
        tx.run("exchange.expire", {"now": tx.now, "error": error, "seq": seq})
        record_move(tx, job, State.EXPIRED)
        hand_over(tx, job)
    tx.count_figures([TaskCounts(job.queue, job.task, end_of("expired"))])
    record_if_drained(tx, job.queue)
    tx.topics.append(job_topic(job.ref))
    if discarded:
        hand_over(tx, job)
    return calls


# ── enqueueing ────────────────────────────────────────────────────────────────────────────────────────────────────────


def enqueued(tx: Transaction, new: NewJob, result: EnqueueResult) -> None:
    """Judge a new job that waits; hand the dependents of a call to the job that answers for it."""
    if new.links is None:
        return
    if result.action == "created":
        if new.links.wait is not None and (found := find_job(tx, new.ref)) is not None:
            judge(tx, *found)
    elif result.action == "throttled":
        tx.deliveries.tokens += ((one.to, end_token(one, completed=False)) for one in new.links.dependents)
    else:
        _add_dependents(tx, result.ref, new.links.dependents)


def replaced(tx: Transaction, seq: int, old: JobRecord) -> None:
    """Give the inbox and the dependents of a debounced job to the job that takes its place. `seq`: of the old one."""
    found = find_job(tx, old.ref)
    if found is None:
        raise AssertionError(f"{old.ref} was replaced, but is gone")
    inbox.move(tx, seq, found[0])
    if old.links is not None:
        _add_dependents(tx, old.ref, old.links.dependents)


def _add_dependents(tx: Transaction, ref: Ref, dependents: tuple[Dependent, ...]) -> None:
    """Add dependents to a job; if it has ended, or was deleted, `deliver_tokens` notifies them."""
    found = find_job(tx, ref)
    if found is None or found[1].state in TERMINAL:
        completed = found is not None and found[1].state is State.COMPLETED
        tx.deliveries.tokens += ((one.to, end_token(one, completed=completed)) for one in dependents)
    if found is None:
        return
    seq, job = found
    links = job.links or _PLAIN
    more = added(links.dependents, dependents)
    if more != links.dependents:
        tx.run("waiting.set_links", {"links": rows.links_text(structs.replace(links, dependents=more)), "seq": seq})


def holder(tx: Transaction, job: JobRecord) -> Ref | None:
    """Return the unfinished job that holds this job's unique key; expire those that have waited too long."""
    return key_holder(tx, job.queue, job.merge) if isinstance(job.merge, UniqueKey) else None


def key_holder(tx: Transaction, queue: str, key: MergeKey) -> Ref | None:
    """Return the job that a call with this key is merged into, or None; expire those that have waited too long."""
    values: dict[str, str | int] = {"queue": queue, "name": merge_name(key), "now": tx.now}
    match key:
        case UniqueKey(window=int()):
            return None
        case UniqueKey(scope="queued"):
            statement = "enqueue.queued_holder"
        case UniqueKey():
            statement = "enqueue.holder"
        case DebounceKey():
            statement = "enqueue.unstarted_holder"
            values |= {"most": 1, "bytes": 1}
        case CollectKey(max_size=max_size):
            statement = "enqueue.unstarted_holder"
            values |= {"most": max_size, "bytes": COLLECTED_LIMIT}
    while (row := tx.one(statement, values)) is not None:
        seq, id_, too_old = row
        if type(id_) is UndecodableText:
            # Reading the record ends the job.
            job_at(tx, seq)
            continue
        if not too_old:
            return Ref(queue, id_)
        expire(tx, seq, job_at(tx, seq))
    return None
