"""What happens to a job after one run, for every outcome and every budget."""

from random import Random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.decision import SHORTAGE_REST, Decision, Finish, PutBack, RunEnd, Suspend, counts, decide, run_end
from tenure.core.job import OnWorkerLost, Policy, RecordedError, Redriving, StallReason
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
from tenure.core.retry import Backoff
from tests.core.cases import ERROR, OUTCOMES, WAIT, active

REST = 7 * SECOND
DELAY = 10 * SECOND
RAISED, TIMED_OUT = Raised(ERROR), TimedOut(ERROR)


def failed(reason: str) -> Finish:
    return Finish(state=State.FAILED, error=ERROR, reason=reason, charge="failures")


def retried(after: int, reason: str | None = None) -> PutBack:
    return PutBack(charge="failures", after=after, reason=reason, error=ERROR)


def released(after: int, reason: str) -> PutBack:
    return PutBack(charge="releases", after=after, reason=reason)


def parked(reason: str) -> PutBack:
    return PutBack(charge="releases", reason=reason, until_known=True)


@pytest.mark.parametrize(
    ("outcome", "fresh", "last"),
    [
        (Returned(b"3"), Finish(state=State.COMPLETED, result=b"3"), None),
        (Cancelled("enough"), Finish(state=State.CANCELLED, reason="enough"), None),
        (Cancelled(), Finish(state=State.CANCELLED), None),
        (Raised(ERROR), retried(REST), failed("exhausted")),
        (Raised(ERROR, after=0), retried(0), failed("exhausted")),
        (Raised(ERROR, after=DELAY), retried(DELAY), failed("exhausted")),
        (Raised(ERROR, final=True), failed("rejected"), None),
        (Raised(ERROR, final=True, after=DELAY), failed("rejected"), None),
        (TimedOut(ERROR), retried(REST, "timeout"), failed("timeout")),
        (TimedOut(ERROR, final=True), failed("timeout"), None),
        (Rejected(ERROR), failed("rejected"), None),
        (Unreadable(ERROR), failed("undecodable"), None),
        (Unknown(), parked("unknown_task"), None),
        (Unknown("newer_payload"), parked("newer_payload"), None),
        (Snoozed(DELAY), released(DELAY, "snoozed"), None),
        (Suspended(WAIT), Suspend(wait=WAIT), None),
        (RateLimitHit(DELAY), released(DELAY, "rate_limited"), None),
        (Interrupted("shutdown"), released(0, "shutdown"), None),
        (Interrupted("prefetch"), released(0, "prefetch"), None),
        (Interrupted("unreachable", DELAY), released(DELAY, "unreachable"), None),
    ],
)
def test_an_outcome_is_decided_by_its_attempts_alone(outcome: Outcome, fresh: Decision, last: Decision | None) -> None:
    """`last`: the decision on the last attempt, if it differs from that on the first two."""
    for failures in range(3):
        expected = last if last is not None and failures == 2 else fresh

        assert decide(active(failures=failures), outcome, Random(0)) == expected
        # Neither the other budgets nor a cancel request matters here: the holder has seen it, or not.
        assert decide(active(failures=failures, stalls=9, releases=9), outcome, Random(0)) == expected
        assert decide(active(failures=failures, cancelled=True), outcome, Random(0)) == expected


@pytest.mark.statement(6, 7, 8, 9, 39)
@pytest.mark.parametrize("max_stalls", range(5))
@pytest.mark.parametrize("stalls", range(6))
def test_a_stall_fails_the_job_when_the_count_is_above_the_maximum(max_stalls: int, stalls: int) -> None:
    job = active(stalls=stalls, max_stalls=max_stalls)
    decision = decide(job, Stalled("lease_expired"), Random(0))

    if stalls + 1 > max_stalls:
        assert isinstance(decision, Finish)
        assert (decision.state, decision.reason, decision.charge) == (State.FAILED, "stalled", "stalls")
        assert decision.error is not None
        assert decision.error.type == "JobStalledError"
        assert str(stalls + 1) in decision.error.message
    else:
        assert decision == PutBack(charge="stalls", reason="lease_expired", quarantine=True)


RULED = Policy(retry=Backoff(max_attempts=3, jitter=0.0), redrive=Redriving(after=60 * SECOND, times=3))


@pytest.mark.parametrize("result_ttl", [None, 1, 3600 * SECOND])
def test_a_result_is_kept_for_as_long_as_its_job_says(result_ttl: int | None) -> None:
    policy = Policy(result_ttl=result_ttl)

    assert decide(active(policy=policy), Returned(b"3"), Random(0)) == Finish(
        state=State.COMPLETED, result=b"3", keep=result_ttl
    )
    for outcome in (Rejected(ERROR), Cancelled()):
        decision = decide(active(policy=policy), outcome, Random(0))

        assert isinstance(decision, Finish)
        assert decision.keep is None


@pytest.mark.parametrize("redrives", range(5))
@pytest.mark.parametrize("outcome", [Raised(ERROR), TimedOut(ERROR), Stalled("lease_expired"), Stalled("process_died")])
def test_a_rule_doubles_its_delay_with_each_redrive_up_to_its_count(outcome: Outcome, redrives: int) -> None:
    job = structs.replace(active(failures=2, stalls=1, policy=RULED), redrives=redrives)
    decision = decide(job, outcome, Random(0))

    assert isinstance(decision, Finish)
    assert decision.redrive_after == {0: 60 * SECOND, 1: 120 * SECOND, 2: 240 * SECOND}.get(redrives)


@pytest.mark.parametrize(
    "outcome",
    [
        Returned(b"3"),
        Cancelled(),
        Rejected(ERROR),
        Unreadable(ERROR),
        Raised(ERROR, final=True),
        TimedOut(ERROR, final=True),
    ],
)
def test_a_rule_redrives_nothing_that_is_final(outcome: Outcome) -> None:
    decision = decide(active(failures=2, policy=RULED), outcome, Random(0))

    assert isinstance(decision, Finish)
    assert decision.redrive_after is None


def test_a_rule_redrives_nothing_that_must_not_run_twice() -> None:
    policy = structs.replace(RULED, on_worker_lost="fail")
    decision = decide(active(stalls=9, policy=policy), Stalled("lease_expired"), Random(0))

    assert isinstance(decision, Finish)
    assert decision.redrive_after is None


def test_without_a_rule_a_dead_letter_is_not_redriven() -> None:
    decision = decide(active(failures=2), Raised(ERROR), Random(0))

    assert isinstance(decision, Finish)
    assert decision.redrive_after is None


@pytest.mark.statement(13)
@pytest.mark.parametrize("failures", range(4))
def test_a_stall_does_not_depend_on_the_attempts(failures: int) -> None:
    decision = decide(active(failures=failures), Stalled("no_progress"), Random(0))

    assert decision == PutBack(charge="stalls", reason="no_progress")


@pytest.mark.parametrize(
    ("stall", "reason"),
    [
        ("lease_expired", "stalled"),
        ("no_progress", "stalled"),
        ("loop_blocked", "stalled"),
        ("process_died", "crashed"),
    ],
)
@pytest.mark.parametrize("on_worker_lost", ["retry", "fail"])
def test_a_dead_letter_records_whether_its_worker_crashed(
    stall: StallReason, reason: str, on_worker_lost: OnWorkerLost
) -> None:
    job = active(
        stalls=1, max_stalls=1 if on_worker_lost == "retry" else 9, policy=Policy(on_worker_lost=on_worker_lost)
    )
    decision = decide(job, Stalled(stall), Random(0))

    assert isinstance(decision, Finish)
    assert (decision.state, decision.reason) == (State.FAILED, reason)


def test_the_error_of_a_job_that_must_not_run_twice_says_so() -> None:
    decision = decide(active(policy=Policy(on_worker_lost="fail")), Stalled("process_died"), Random(0))

    assert isinstance(decision, Finish)
    assert decision.error is not None
    assert "on_worker_lost" in decision.error.message


@pytest.mark.statement(26, 27)
@pytest.mark.parametrize("max_stalls", [0, 1])
@pytest.mark.parametrize("on_worker_lost", ["retry", "fail"])
def test_a_stalled_job_with_a_cancel_request_is_cancelled_at_any_budget(
    max_stalls: int, on_worker_lost: OnWorkerLost
) -> None:
    job = active(max_stalls=max_stalls, policy=Policy(on_worker_lost=on_worker_lost), cancelled=True)

    assert decide(job, Stalled("process_died"), Random(0)) == Finish(state=State.CANCELLED, reason="enough")


@pytest.mark.parametrize("attempts", [1, 2, 7])
def test_the_attempts_bound_all_runs_that_fail_the_first_included(attempts: int) -> None:
    policy = Policy(retry=Backoff(max_attempts=attempts))
    decisions = [
        decide(active(failures=failures, policy=policy), Raised(ERROR), Random(0)) for failures in range(attempts)
    ]

    assert [isinstance(decision, PutBack) for decision in decisions] == [True] * (attempts - 1) + [False]


@given(st.sampled_from(OUTCOMES), st.integers(0, 9), st.integers(0, 9), st.booleans(), st.integers())
def test_the_same_arguments_give_the_same_answer(
    outcome: Outcome, failures: int, stalls: int, cancelled: bool, seed: int
) -> None:
    job = active(failures=failures, stalls=stalls, cancelled=cancelled, policy=Policy())

    assert decide(job, outcome, Random(seed)) == decide(job, outcome, Random(seed))


@given(st.sampled_from(OUTCOMES), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.booleans())
def test_a_decision_charges_one_budget_at_most_and_delays_never_backwards(
    outcome: Outcome, failures: int, stalls: int, max_stalls: int, cancelled: bool
) -> None:
    job = active(failures=failures, stalls=stalls, max_stalls=max_stalls, cancelled=cancelled, policy=Policy())
    decision = decide(job, outcome, Random(0))

    if isinstance(decision, PutBack):
        assert decision.after >= 0
        assert decision.charge == {
            "Raised": "failures",
            "TimedOut": "failures",
            "Stalled": "stalls",
        }.get(type(outcome).__name__, "releases")
    elif isinstance(decision, Suspend):
        assert decision.charge == "releases"
    else:
        assert (decision.charge is None) == (decision.state in (State.COMPLETED, State.CANCELLED))
        assert (decision.error is not None) == (decision.state is State.FAILED)


@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        (Returned(b"3"), RunEnd("completed")),
        (Raised(ERROR), RunEnd("raised", "ValueError", "no good")),
        (TimedOut(RecordedError("TimeoutError", "5 s")), RunEnd("timed_out", "TimeoutError", "5 s")),
        (
            TimedOut(RecordedError("TimeoutError", "5 s", "in send\nTimeoutError: 5 s")),
            RunEnd("timed_out", "TimeoutError", "5 s\nin send\nTimeoutError: 5 s"),
        ),
        (Rejected(ERROR), RunEnd("rejected", "ValueError", "no good")),
        (Unreadable(ERROR), RunEnd("undecodable", "ValueError", "no good")),
        (Stalled("process_died", detail="signal 9"), RunEnd("stalled", "process_died", "signal 9")),
        (Stalled("process_died", detail="x", blameless=True), RunEnd("released", "process_died", "x")),
        (Cancelled("enough"), RunEnd("cancelled", "enough")),
        (Cancelled(), RunEnd("cancelled")),
        (Snoozed(DELAY), RunEnd("released", "snoozed")),
        (Suspended(WAIT), RunEnd("released", "suspended")),
        (RateLimitHit(DELAY), RunEnd("released", "rate_limited")),
        (Interrupted("shutdown"), RunEnd("released", "shutdown")),
        (Unknown(), RunEnd("released", "unknown_task")),
        (Unknown("newer_payload"), RunEnd("released", "newer_payload")),
    ],
)
def test_the_run_history_has_a_word_for_each_outcome(outcome: Outcome, end: RunEnd) -> None:
    assert run_end(outcome, decide(active(), outcome, Random(0))) == end


@pytest.mark.parametrize("reason", get_args(StallReason))
def test_a_run_whose_process_died_runs_next_in_quarantine_a_silent_one_not(
    reason: StallReason,
) -> None:
    decision = decide(active(), Stalled(reason), Random(1))

    assert isinstance(decision, PutBack)
    assert decision.quarantine == (reason != "no_progress")


@pytest.mark.parametrize("outcome", [Interrupted("shutdown"), Interrupted("prefetch", 5), Unknown()])
def test_a_run_that_did_not_start_leaves_its_job_in_quarantine(outcome: Outcome) -> None:
    kept = decide(structs.replace(active(), quarantined=True), outcome, Random(1))
    free = decide(active(), outcome, Random(1))

    assert isinstance(kept, PutBack)
    assert kept.quarantine
    assert isinstance(free, PutBack)
    assert not free.quarantine


def test_a_run_with_an_outcome_of_its_own_ends_the_quarantine() -> None:
    for outcome in (Raised(RecordedError("E", "")), Snoozed(5), TimedOut(RecordedError("E", ""))):
        decision = decide(structs.replace(active(), quarantined=True), outcome, Random(1))

        assert isinstance(decision, PutBack)
        assert not decision.quarantine


@pytest.mark.parametrize("quarantined", [True, False])
def test_a_run_that_was_ended_by_another_run_is_not_charged(quarantined: bool) -> None:
    job = structs.replace(active(stalls=9), quarantined=quarantined)
    decision = decide(job, Stalled("process_died", blameless=True), Random(0))

    assert decision == PutBack(charge="releases", reason="process_died", quarantine=quarantined)


def test_a_job_that_must_not_run_twice_fails_by_an_uncharged_death() -> None:
    job = active(policy=Policy(on_worker_lost="fail"))
    decision = decide(job, Stalled("process_died", blameless=True), Random(0))

    assert isinstance(decision, Finish)
    assert (decision.state, decision.reason, decision.charge) == (State.FAILED, "crashed", "stalls")


FAILED_WORKER = Interrupted("worker_failed", begun=True)
NOT_STOPPING = Interrupted("shutdown", begun=True, stopping=False)
SHORTAGE = Raised(ERROR, shortage=True)
UNCOUNTED = (
    *(Interrupted(reason, begun=True) for reason in ("prefetch", "unreachable", "shutdown")),
    *(Interrupted(reason, stopping=False) for reason in ("prefetch", "unreachable", "shutdown", "worker_failed")),
    Interrupted("unreachable", begun=True, stopping=False),
    Unknown(),
    Unknown("newer_payload"),
    Snoozed(DELAY),
    RateLimitHit(DELAY),
    Stalled("process_died", blameless=True),
    Stalled("process_died", blameless=True, begun=False),
)


@pytest.mark.parametrize("outcome", [FAILED_WORKER, NOT_STOPPING])
def test_the_first_counted_put_back_is_free_and_the_next_is_a_stall(outcome: Interrupted) -> None:
    first = decide(active(), outcome, Random(0))
    delayed = structs.replace(outcome, delay=DELAY)
    second = decide(structs.replace(active(), put_back_used=True), delayed, Random(0))
    last = decide(structs.replace(active(stalls=1), put_back_used=True), outcome, Random(0))

    assert first == PutBack(charge="releases", reason=outcome.reason, put_back_used=True)
    assert second == PutBack(charge="stalls", after=DELAY, reason="process_died", quarantine=True)
    assert isinstance(last, Finish)
    assert (last.state, last.reason, last.charge) == (State.FAILED, "crashed", "stalls")


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("outcome", UNCOUNTED, ids=repr)
def test_an_uncounted_put_back_neither_uses_nor_restores_the_free_one(outcome: Outcome, used: bool) -> None:
    job = structs.replace(active(stalls=9, failures=1), put_back_used=used)
    decision = decide(job, outcome, Random(0))

    assert not counts(outcome)
    assert isinstance(decision, PutBack)
    assert (decision.charge, decision.put_back_used) == ("releases", used)


@pytest.mark.parametrize("outcome", [RAISED, TIMED_OUT, Stalled("lease_expired"), Stalled("no_progress")], ids=repr)
def test_a_charge_restores_the_free_put_back(outcome: Outcome) -> None:
    decision = decide(structs.replace(active(), put_back_used=True), outcome, Random(0))

    assert isinstance(decision, PutBack)
    assert not decision.put_back_used


def test_an_error_of_a_shortage_is_released_once_then_charged() -> None:
    first = decide(active(), SHORTAGE, Random(0))
    second = decide(structs.replace(active(), put_back_used=True), SHORTAGE, Random(0))

    assert first == PutBack(
        charge="releases", after=SHORTAGE_REST, reason="worker_failed", error=ERROR, put_back_used=True
    )
    assert run_end(SHORTAGE, first) == RunEnd("released", "worker_failed", "ValueError: no good")
    assert second == decide(active(), RAISED, Random(0))
    assert decide(active(), Raised(ERROR, final=True, shortage=True), Random(0)) == failed("rejected")


def test_a_run_that_had_not_begun_is_put_back_if_it_must_not_run_twice() -> None:
    job = active(policy=Policy(on_worker_lost="fail"))
    decision = decide(job, Stalled("process_died", blameless=True, begun=False), Random(0))

    assert decision == PutBack(charge="releases", reason="process_died")
