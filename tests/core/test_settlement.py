"""Settlements: the decision on a run, with its events."""

from random import Random

import pytest
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.decision import Finish, PutBack, decide, run_end
from tenure.core.events import (
    RESULT_SHOWN,
    Event,
    JobCancelled,
    JobCompleted,
    JobEvent,
    JobFailed,
    JobReleased,
    JobRetried,
    JobStalled,
)
from tenure.core.fingerprint import fingerprint
from tenure.core.job import JobRecord, Ref
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
from tenure.core.settlement import settlement, when_cancelling
from tests.core.cases import ACTIVE, ERROR, OUTCOMES, WAIT, active, lease


def events_of(job: JobRecord, outcome: Outcome) -> tuple[JobEvent, ...]:
    return settlement(lease(job), outcome, Random(0), took=1.5).events


def completed(result: bytes | None) -> JobCompleted:
    return JobCompleted(queue="mail", id="a", task="send", run=4, attempt=1, duration=1.5, result=result, waited=0.0)


def failed(reason: str, attempt: int = 1) -> JobFailed:
    return JobFailed(queue="mail", id="a", task="send", run=4, attempt=attempt, reason=reason, error=ERROR, waited=0.0)


def released(reason: str, delay: float) -> JobReleased:
    return JobReleased(queue="mail", id="a", task="send", run=4, reason=reason, delay=delay)


def retried(delay: float) -> JobRetried:
    return JobRetried(
        queue="mail", id="a", task="send", run=4, attempt=1, next_attempt=2, delay=delay, error=ERROR, waited=0.0
    )


@pytest.mark.parametrize(
    ("outcome", "event"),
    [
        (Returned(b"3"), completed(b"3")),
        (Returned(b"x" * RESULT_SHOWN), completed(b"x" * RESULT_SHOWN)),
        (Returned(b"x" * (RESULT_SHOWN + 1)), completed(None)),
        (Raised(ERROR), retried(7.0)),
        (Raised(ERROR, after=SECOND // 2), retried(0.5)),
        (Raised(ERROR, final=True), failed("rejected")),
        (TimedOut(ERROR), retried(7.0)),
        (TimedOut(ERROR, final=True), failed("timeout")),
        (Rejected(ERROR), failed("rejected")),
        (Unreadable(ERROR), failed("undecodable")),
        (Unknown(), released("unknown_task", 0.0)),
        (Snoozed(2 * SECOND), released("snoozed", 2.0)),
        (Suspended(WAIT), released("suspended", 0.0)),
        (RateLimitHit(2 * SECOND), released("rate_limited", 2.0)),
        (Interrupted("prefetch"), released("prefetch", 0.0)),
        (
            Cancelled("enough", "ops"),
            JobCancelled(queue="mail", id="a", task="send", run=4, reason="enough", by="ops", was="active"),
        ),
    ],
)
def test_an_outcome_is_recorded_in_one_event(outcome: Outcome, event: Event) -> None:
    assert events_of(ACTIVE, outcome) == (event,)


@pytest.mark.parametrize(("late", "waited"), [(1_500_000, 1.5), (-5, 0.0)])
@pytest.mark.parametrize("outcome", [Returned(b"3"), Raised(ERROR), Rejected(ERROR)])
def test_events_say_how_long_the_job_had_waited(outcome: Outcome, late: int, waited: float) -> None:
    [event] = events_of(structs.replace(ACTIVE, run_at=(ACTIVE.started or 0) - late), outcome)

    assert isinstance(event, JobCompleted | JobRetried | JobFailed)
    assert event.waited == waited


def test_the_last_attempt_is_recorded_as_a_failure_and_not_as_a_retry() -> None:
    assert events_of(active(failures=2), Raised(ERROR)) == (failed("exhausted", attempt=3),)
    assert events_of(active(failures=2), TimedOut(ERROR)) == (failed("timeout", attempt=3),)


@pytest.mark.statement(4, 40)
def test_a_recovery_is_recorded_by_its_stall_event_only() -> None:
    outcome = Stalled("no_progress", silent_for=24 * SECOND, owner="00000000000a11ce", detail="frames")

    assert events_of(active(), outcome) == (
        JobStalled(
            queue="mail",
            id="a",
            task="send",
            run=4,
            count=1,
            action="recovered",
            reason="no_progress",
            owner="00000000000a11ce",
            silent_for=24.0,
            post_mortem="frames",
        ),
    )


@pytest.mark.statement(5, 93)
@pytest.mark.parametrize(("reason", "dead"), [("lease_expired", "stalled"), ("process_died", "crashed")])
def test_the_last_stall_is_recorded_before_its_failure(reason: str, dead: str) -> None:
    outcome = Stalled("lease_expired" if reason == "lease_expired" else "process_died")
    stall, failure = events_of(active(stalls=1), outcome)

    assert isinstance(stall, JobStalled)
    assert (stall.count, stall.action, stall.reason) == (2, "failed", reason)
    assert isinstance(failure, JobFailed)
    assert (failure.reason, failure.attempt) == (dead, 1)
    assert failure.error is not None
    assert failure.error.type == "JobStalledError"


@pytest.mark.statement(26, 27)
@pytest.mark.parametrize("max_stalls", [0, 1])
def test_a_stall_with_a_cancel_request_records_only_a_cancellation(max_stalls: int) -> None:
    assert events_of(active(max_stalls=max_stalls, cancelled=True), Stalled("lease_expired")) == (
        JobCancelled(queue="mail", id="a", task="send", run=4, reason="enough", was="active"),
    )


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_a_settlement_has_its_run_and_its_decision(outcome: Outcome) -> None:
    sent = settlement(lease(), outcome, Random(5))

    assert (sent.ref, sent.fence) == (Ref("mail", "a"), ACTIVE.fence)
    decided = decide(ACTIVE, outcome, Random(5))
    if isinstance(decided, Finish) and decided.state is State.FAILED:
        decided = structs.replace(decided, fault=fingerprint("send", decided.reason, decided.error))
    assert sent.decision == decided
    assert sent.ended == run_end(outcome, sent.decision)
    assert all((event.queue, event.id, event.task, event.run) == ("mail", "a", "send", 4) for event in sent.events)


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_the_end_of_a_job_is_recorded_once_and_a_put_back_is_not_an_end(outcome: Outcome) -> None:
    for job in (active(), active(failures=2, stalls=1), active(cancelled=True)):
        sent = settlement(lease(job), outcome, Random(0))
        ends = [event for event in sent.events if isinstance(event, JobCompleted | JobFailed | JobCancelled)]

        assert len(ends) == isinstance(sent.decision, Finish)
        assert sent.events


@pytest.mark.parametrize("outcome", [Raised(ERROR), Interrupted("shutdown"), Stalled("lease_expired")])
def test_a_put_back_of_a_cancelled_job_becomes_its_end(outcome: Outcome) -> None:
    sent = settlement(lease(), outcome, Random(0))
    cancelled = active(cancelled=True)
    ended = when_cancelling(sent, cancelled)

    assert isinstance(sent.decision, PutBack)
    assert ended.decision == Finish(state=State.CANCELLED, reason="enough")
    assert (ended.ref, ended.fence, ended.ended) == (sent.ref, sent.fence, sent.ended)
    assert ended.events == (JobCancelled(queue="mail", id="a", task="send", run=4, reason="enough", was="active"),)


@pytest.mark.parametrize(
    ("outcome", "event"),
    [
        (Returned(b"3"), structs.replace(completed(b"3"), cancel_too_late=True)),
        (Rejected(ERROR), failed("rejected")),
    ],
)
def test_an_end_of_a_job_with_a_cancel_request_counts(outcome: Outcome, event: JobEvent) -> None:
    sent = settlement(lease(), outcome, Random(0), took=1.5)
    ended = when_cancelling(sent, active(cancelled=True))

    assert (ended.decision, ended.ended, ended.ref, ended.fence) == (
        sent.decision,
        sent.ended,
        sent.ref,
        sent.fence,
    )
    assert ended.events == (event,)


@pytest.mark.parametrize(("canceller", "by"), [(None, "ops"), ("itself", "itself")])
def test_a_cancellation_names_who_requested_it(canceller: str | None, by: str) -> None:
    job = structs.replace(active(cancelled=True), cancel_by="ops")
    ended = when_cancelling(settlement(lease(), Cancelled("enough", canceller), Random(0)), job)

    assert ended.events == (
        JobCancelled(queue="mail", id="a", task="send", run=4, reason="enough", by=by, was="active"),
    )


def test_a_second_counted_put_back_in_a_row_is_recorded_as_a_stall() -> None:
    job = structs.replace(active(), put_back_used=True)
    sent = settlement(lease(job), Interrupted("worker_failed", begun=True), Random(0))
    (event,) = sent.events

    assert isinstance(event, JobStalled)
    assert (event.count, event.action, event.reason, event.owner) == (1, "recovered", "process_died", ACTIVE.owner)
    assert (sent.ended.ended, sent.ended.reason) == ("stalled", "process_died")
