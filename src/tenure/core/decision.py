"""Decides what happens to a job after one run: the one place for workers, reapers and supervisors."""

from random import Random
from typing import Literal, assert_never

from msgspec import Struct

from tenure.core.job import Charge, JobRecord, RecordedError
from tenure.core.lifecycle import State
from tenure.core.outcome import (
    Cancelled,
    Interrupted,
    Outcome,
    Raised,
    RateLimitHit,
    Rejected,
    Returned,
    Snoozed,
    Stalled,
    Suspended,
    TimedOut,
    Unknown,
    Unreadable,
)
from tenure.core.postmortem import first_line, stall_cause
from tenure.core.waiting import Wait

STALL_ERROR = "JobStalledError"
"""The error type of a job that failed because of its stalls."""

AGAIN = "its worker failed while it ran, for the second time in a row"
"""The cause of a stall that replaces a second uncharged put-back in a row."""

WORKER_DIED = "worker_died"
"""The reason in the run history of an uncharged run that may have caused the death of its worker from a process of its
own."""

SHORTAGE_REST = 1_000_000
"""The delay before a job runs again after its worker ran out of descriptors, threads or memory, in microseconds."""

EndState = Literal[State.COMPLETED, State.FAILED, State.CANCELLED]


class Finish(Struct, frozen=True, kw_only=True, gc=False):
    """The job ends.

    `keep`: how many microseconds the storage keeps it with its result; None: the queue's setting applies.
    `redrive_after`: after how many microseconds a rule puts it back; None: never. `fault`: of a failed job, the
    fingerprint of its fault.
    """

    state: EndState
    result: bytes | None = None
    error: RecordedError | None = None
    reason: str | None = None
    charge: Charge | None = None
    keep: int | None = None
    redrive_after: int | None = None
    fault: str | None = None


class PutBack(Struct, frozen=True, kw_only=True):
    """The job runs again: after `after` microseconds, or at once with its position in the queue kept.

    `quarantine`: it runs alone in a process, because it may have caused the end of its last process. `put_back_used`:
    the new value of `JobRecord.put_back_used`. `until_known`: only a worker that knows the task and the payload version
    may take it, when such a worker next claims.
    """

    charge: Charge
    after: int = 0
    reason: str | None = None
    error: RecordedError | None = None
    quarantine: bool = False
    put_back_used: bool = False
    until_known: bool = False


class Suspend(Struct, frozen=True, kw_only=True):
    """The job waits for tokens. If they have arrived already, it goes back to its queue at once."""

    wait: Wait
    charge: Charge = "releases"
    reason: str | None = "suspended"


Decision = Finish | PutBack | Suspend


def counts(outcome: Outcome) -> bool:
    """Return True for an uncharged put-back that could repeat without a limit.

    The run had begun, and its worker failed, or released it for a shutdown although it was not stopping, or ran out of
    descriptors, threads or memory. Any other put-back is requested, has another limit, or happens before the run
    begins.
    """
    match outcome:
        case (
            Interrupted(reason="worker_failed", begun=True) | Interrupted(reason="shutdown", begun=True, stopping=False)
        ):
            return True
        case Raised(final=False, shortage=True):
            return True
        case _:
            return False


def limited(job: JobRecord, outcome: Outcome) -> Outcome:
    """Return the outcome to judge a run by: the second counted put-back in a row becomes a stall.

    The first counted put-back since the job's last charge or end is free. The job itself may have caused a second one.
    An exception need not become a stall: it is charged as a failure.
    """
    if job.put_back_used and isinstance(outcome, Interrupted) and counts(outcome):
        return Stalled("process_died", owner=job.owner or "", detail=AGAIN, delay=outcome.delay)
    return outcome


def decide(job: JobRecord, outcome: Outcome, rng: Random) -> Decision:
    """Decide what happens to a job after one run. Pure: the same arguments give the same answer."""
    outcome = limited(job, outcome)
    used = job.put_back_used or counts(outcome)
    match outcome:
        case Returned():
            return Finish(state=State.COMPLETED, result=outcome.result, keep=job.policy.result_ttl)
        case Cancelled(reason):
            return Finish(state=State.CANCELLED, reason=reason)
        case Snoozed(delay):
            return PutBack(charge="releases", after=delay, reason="snoozed", put_back_used=used)
        case Suspended(wait):
            return Suspend(wait=wait)
        case RateLimitHit(retry_after):
            return PutBack(charge="releases", after=retry_after, reason="rate_limited", put_back_used=used)
        case Interrupted(reason, delay):
            return PutBack(
                charge="releases", after=delay, reason=reason, quarantine=job.quarantined, put_back_used=used
            )
        case Unknown(reason):
            return PutBack(
                charge="releases", reason=reason, quarantine=job.quarantined, put_back_used=used, until_known=True
            )
        case Stalled() if job.cancel_at is not None:
            return Finish(state=State.CANCELLED, reason=job.cancel_reason)
        case Stalled(reason, blameless=True, begun=begun) if not begun or job.policy.on_worker_lost != "fail":
            return PutBack(charge="releases", reason=reason, quarantine=job.quarantined, put_back_used=used)
        case Stalled(reason):
            if job.stalls + 1 > job.stall.max_stalls or job.policy.on_worker_lost == "fail":
                return Finish(
                    state=State.FAILED,
                    error=_stall_error(job, outcome),
                    reason="crashed" if reason == "process_died" else "stalled",
                    charge="stalls",
                    redrive_after=None if job.policy.on_worker_lost == "fail" else _redrive_after(job),
                )
            # A handler that showed no progress is itself the cause. For any other stall, any run of the process may be
            # the cause.
            return PutBack(charge="stalls", after=outcome.delay, reason=reason, quarantine=reason != "no_progress")
        case Rejected(error):
            return Finish(state=State.FAILED, error=error, reason="rejected", charge="failures")
        case Unreadable(error):
            return Finish(state=State.FAILED, error=error, reason="undecodable", charge="failures")
        case Raised(error, final=False, shortage=True) if not job.put_back_used:
            return PutBack(
                charge="releases", after=SHORTAGE_REST, reason="worker_failed", error=error, put_back_used=used
            )
        case Raised(error, final, after, alone=alone):
            reason = "rejected" if final else "exhausted"
            return _retry(job, error, final=final, after=after, reason=reason, rng=rng, alone=alone)
        case TimedOut(error, final, after):
            return _retry(job, error, final=final, after=after, reason="timeout", rng=rng)
        case _:
            assert_never(outcome)


def _retry(
    job: JobRecord,
    error: RecordedError,
    *,
    final: bool,
    after: int | None,
    reason: str,
    rng: Random,
    alone: bool = False,
) -> Decision:
    failures = job.failures + 1
    if final or failures >= job.policy.retry.max_attempts:
        # Trying again later does not help a failure that the policy calls final.
        after = None if final else _redrive_after(job)
        return Finish(state=State.FAILED, error=error, reason=reason, charge="failures", redrive_after=after)
    delay = job.policy.retry.delay(failures, rng) if after is None else after
    recorded_reason = "timeout" if reason == "timeout" else None
    return PutBack(charge="failures", after=delay, reason=recorded_reason, error=error, quarantine=alone)


def _redrive_after(job: JobRecord) -> int | None:
    rule = job.policy.redrive
    return None if rule is None or job.redrives >= rule.times else rule.after << job.redrives


def _stall_error(job: JobRecord, stalled: Stalled) -> RecordedError:
    """Return the error of a job that failed by its stalls: why it may not run again, and how its last run ended."""
    cause = (
        first_line(stalled.detail)
        if stalled.detail
        else stall_cause(job, stalled.reason, silent_for=stalled.silent_for)
    )
    if job.policy.on_worker_lost == "fail":
        message = f"the worker was lost, and this job must not run twice (on_worker_lost='fail'); {cause}"
    else:
        stalls = f"the job stalled {job.stalls + 1} times, more than its max_count of {job.stall.max_stalls}"
        message = f"{stalls}; the last time {cause}"
    # Like a traceback, the text ends with the error.
    trace = f"{stalled.detail}\n{STALL_ERROR}: {message}" if stalled.detail else ""
    return RecordedError(STALL_ERROR, message, trace)


class RunEnd(Struct, frozen=True):
    """How a run ended, for the run history."""

    ended: Literal["completed", "raised", "timed_out", "rejected", "undecodable", "stalled", "released", "cancelled"]
    reason: str | None = None
    detail: str | None = None


_COMPLETED = RunEnd("completed")


def run_end(outcome: Outcome, decision: Decision) -> RunEnd:
    """Return how a run ended, in the terms of the run history."""
    match outcome:
        case Returned():
            return _COMPLETED
        case Raised(error) if decision.charge == "releases":
            return RunEnd("released", decision.reason, f"{error.type}: {error.message}")
        case Raised(error):
            return RunEnd("raised", error.type, error.message)
        case TimedOut(error):
            # The position at the timeout is the only hint at the cause. For an exception the job itself keeps the
            # traceback.
            return RunEnd("timed_out", error.type, "\n".join(part for part in (error.message, error.traceback) if part))
        case Rejected(error):
            return RunEnd("rejected", error.type, error.message)
        case Unreadable(error):
            return RunEnd("undecodable", error.type, error.message)
        case Stalled(detail=detail, isolated=True) if decision.charge == "releases":
            return RunEnd("released", WORKER_DIED, detail)
        case Stalled(reason=reason, detail=detail):
            return RunEnd("released" if decision.charge == "releases" else "stalled", reason, detail)
        case Cancelled(reason):
            return RunEnd("cancelled", reason)
        case Snoozed():
            return RunEnd("released", "snoozed")
        case Suspended():
            return RunEnd("released", "suspended")
        case RateLimitHit():
            return RunEnd("released", "rate_limited")
        case Interrupted(reason) | Unknown(reason=reason):
            return RunEnd("released", reason)
        case _:
            assert_never(outcome)
