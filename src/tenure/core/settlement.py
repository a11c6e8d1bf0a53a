"""A settlement: what a lease holder asks the storage to do with a run, with the events that report it."""

from random import Random
from typing import assert_never

from msgspec import Struct, structs

from tenure.core.decision import Decision, Finish, PutBack, RunEnd, Suspend, decide, limited, run_end
from tenure.core.events import (
    RESULT_SHOWN,
    JobCancelled,
    JobCompleted,
    JobEvent,
    JobFailed,
    JobReleased,
    JobRetried,
    JobStalled,
)
from tenure.core.figures import STALLED
from tenure.core.fingerprint import fingerprint
from tenure.core.job import JobRecord, Ref
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.outcome import Cancelled, Interrupted, Outcome, RateLimitHit, Stalled

RELEASED = "released"
"""The outcome of a run whose job was put back without a charge."""


class Settlement(Struct, frozen=True, gc=False):
    """A decision for one run. It applies only if that run (queue, id, fence and sending owner) is the current one.

    `limit`: for how many microseconds nothing more may start under the job's own rate, or in its queue if it has none.
    """

    ref: Ref
    fence: int
    decision: Decision
    ended: RunEnd
    events: tuple[JobEvent, ...] = ()
    limit: int | None = None


def settlement(lease: Lease, outcome: Outcome, rng: Random, *, took: float = 0.0) -> Settlement:
    """Decide on an outcome and return the settlement to send to the storage. `took`: the run's seconds."""
    job = lease.job
    outcome = limited(job, outcome)
    decision = _with_fault(job, decide(job, outcome, rng))
    return Settlement(
        job.ref,
        job.fence,
        decision,
        run_end(outcome, decision),
        _events(job, outcome, decision, took=took),
        outcome.retry_after or None if isinstance(outcome, RateLimitHit) else None,
    )


def outcome_of(settlement: Settlement) -> str:
    """Return the outcome that a settlement is counted as."""
    match settlement.decision:
        case Finish():
            # A third of the time that `value` takes.
            return str(settlement.decision.state)
        case PutBack(charge="failures"):
            return "retried"
        case PutBack(charge="stalls"):
            return STALLED
        case PutBack() | Suspend():
            return RELEASED


def uses_queue_retention(settlement: Settlement) -> bool:
    """Return True if a settlement completes a job whose result has no lifetime of its own."""
    decision = settlement.decision
    return isinstance(decision, Finish) and decision.state is State.COMPLETED and decision.keep is None


def when_cancelling(settlement: Settlement, job: JobRecord) -> Settlement:
    """Return the settlement that applies if the job was asked to stop.

    A put-back or a suspension becomes a cancellation. A success or a failure stays, and a success reports that the
    cancel came too late. A cancellation names the person who requested it. No rule redrives the job, because its stop
    was requested. The run may not have seen the request: only the record has it.
    """
    decision = settlement.decision
    if isinstance(decision, PutBack | Suspend):
        decision = Finish(state=State.CANCELLED, reason=job.cancel_reason)
        return Settlement(
            settlement.ref,
            settlement.fence,
            decision,
            settlement.ended,
            (_cancelled(job, job.cancel_reason, job.cancel_by),),
            settlement.limit,
        )
    events: list[JobEvent] = []
    for event in settlement.events:
        match event:
            case JobCompleted():
                events.append(structs.replace(event, cancel_too_late=True))
            case JobCancelled(by=None):
                events.append(structs.replace(event, by=job.cancel_by))
            case _:
                events.append(event)
    return Settlement(
        settlement.ref, settlement.fence, structs.replace(decision, redrive_after=None), settlement.ended, tuple(events)
    )


def _with_fault(job: JobRecord, decision: Decision) -> Decision:
    """Add the fingerprint of a failure's fault, so that a storage can count the failed jobs of each fault."""
    if isinstance(decision, Finish) and decision.state is State.FAILED:
        return structs.replace(decision, fault=fingerprint(job.task, decision.reason, decision.error))
    return decision


def handed_back(job: JobRecord) -> Settlement:
    """Return the settlement of a run that never began, because the answer that gave it out was lost."""
    # A release does not use the random numbers.
    return settlement(Lease(job), Interrupted("prefetch"), Random(0))


def _events(job: JobRecord, outcome: Outcome, decision: Decision, *, took: float) -> tuple[JobEvent, ...]:
    waited = None if job.waited is None else job.waited / 1_000_000
    if isinstance(decision, Finish) and decision.state is State.COMPLETED:
        result = decision.result
        return (
            JobCompleted(
                queue=job.queue,
                id=job.id,
                task=job.task,
                run=job.starts,
                attempt=job.attempt,
                duration=took,
                result=result if result is not None and len(result) <= RESULT_SHOWN else None,
                waited=waited,
            ),
        )
    events: list[JobEvent] = []
    if isinstance(outcome, Stalled) and decision.charge == "stalls":
        events.append(
            JobStalled(
                queue=job.queue,
                id=job.id,
                task=job.task,
                run=job.starts,
                count=job.stalls + 1,
                action="failed" if isinstance(decision, Finish) else "recovered",
                reason=outcome.reason,
                owner=outcome.owner,
                silent_for=outcome.silent_for / 1_000_000,
                post_mortem=outcome.detail,
            )
        )
    match decision:
        case Finish(state=State.CANCELLED, reason=reason):
            events.append(_cancelled(job, reason, outcome.by if isinstance(outcome, Cancelled) else None))
        case Finish(reason=reason, error=error):
            events.append(
                JobFailed(
                    queue=job.queue,
                    id=job.id,
                    task=job.task,
                    run=job.starts,
                    attempt=job.attempt,
                    reason=reason or "exhausted",
                    error=error,
                    waited=waited,
                )
            )
        case PutBack(charge="failures", after=after, error=error):
            events.append(
                JobRetried(
                    queue=job.queue,
                    id=job.id,
                    task=job.task,
                    run=job.starts,
                    attempt=job.attempt,
                    next_attempt=job.attempt + 1,
                    delay=after / 1_000_000,
                    error=error,
                    waited=waited,
                )
            )
        case PutBack(charge="releases", after=after, reason=reason):
            events.append(_released(job, reason or "shutdown", after))
        case Suspend():
            events.append(_released(job, "suspended", 0))
        case PutBack():
            pass  # charged to the stalls; its event is above
        case _:
            assert_never(decision)
    return tuple(events)


def _released(job: JobRecord, reason: str, after: int) -> JobReleased:
    return JobReleased(
        queue=job.queue, id=job.id, task=job.task, run=job.starts, reason=reason, delay=after / 1_000_000
    )


def _cancelled(job: JobRecord, reason: str | None, by: str | None) -> JobCancelled:
    return JobCancelled(
        queue=job.queue, id=job.id, task=job.task, run=job.starts, reason=reason, by=by, was=State.ACTIVE
    )
