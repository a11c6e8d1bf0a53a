"""The record after each transition, and the events of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.duration import moment
from tenure.core.events import (
    JobCollected,
    JobDebounced,
    JobDeduplicated,
    JobEnqueued,
    JobEvent,
    JobExpired,
    JobProgressed,
    JobRescheduled,
    JobStarted,
    JobSuspected,
    RunFenced,
)
from tenure.core.job import (
    FOREVER,
    CollectKey,
    DebounceKey,
    MergeKey,
    NewJob,
    OnExpire,
    Owner,
    Policy,
    Ref,
    StallSetting,
    StallTerms,
    UniqueKey,
)
from tenure.core.lease import REAPER_LEASE
from tenure.core.lifecycle import State
from tenure.core.order import score_at
from tenure.core.transition import (
    begun,
    claimed,
    collecting,
    enqueued,
    expired,
    expiry,
    is_expired,
    merged,
    progressed,
    reclaimed,
    redriven,
    refused,
    rescheduled,
    retimed,
    silence,
    stall_reason,
    suspected,
)
from tests.core.cases import ACTIVE, ERROR, NOW

BOB = Owner("0000000000000b0b", "bob", "host-2", 102)
LATER = NOW + 100 * SECOND
LEASE = 20 * SECOND

WAITING = structs.replace(ACTIVE, state=State.WAITING, owner=None, started=None, starts=0, fence=0)
OVER = structs.replace(
    ACTIVE,
    state=State.FAILED,
    owner=None,
    score=NOW - 60 * SECOND,
    boost=60 * SECOND,
    failures=3,
    stalls=1,
    releases=2,
    redrives=1,
    redrive_at=LATER,
    cancel_at=NOW,
    cancel_reason="enough",
    cancel_by="ops",
    finished=NOW,
    kept_until=LATER,
    error=ERROR,
    reason="exhausted",
    progress=0.5,
    progress_note="half",
)


def test_a_claim_opens_a_run_under_a_new_fence() -> None:
    job = claimed(WAITING, BOB.id, LATER, None)

    assert (job.state, job.owner, job.starts, job.fence) == (State.ACTIVE, BOB.id, 1, LATER)
    assert (job.started, job.heard_at, job.lease_until) == (LATER, LATER, LATER + LEASE)
    assert (job.run_until, job.progress_until) == (None, None)
    assert (job.score, job.run_at, job.failures) == (WAITING.score, WAITING.run_at, WAITING.failures)


def test_a_claim_by_a_clock_that_was_set_back_raises_the_fence_anyway() -> None:
    again = claimed(structs.replace(WAITING, fence=LATER), BOB.id, NOW, None)

    assert again.fence == LATER + 1


def test_a_claim_applies_the_stall_setting_to_terms_that_are_not_pinned() -> None:
    job = structs.replace(WAITING, stall=StallTerms(lease=90 * SECOND, max_stalls=5, pinned=("lease",)))
    setting = StallSetting(lease=8 * SECOND, max_stalls=0, start_grace=120 * SECOND)
    started = claimed(job, BOB.id, LATER, setting)

    assert started.stall == StallTerms(90 * SECOND, 0, 120 * SECOND, pinned=("lease",))
    assert started.lease_until == LATER + 120 * SECOND


def test_a_lease_ends_with_the_first_limit_of_its_run() -> None:
    job = structs.replace(WAITING, timeout=60 * SECOND, deadline=LATER + 30 * SECOND, heartbeat_timeout=15 * SECOND)
    started = claimed(job, BOB.id, LATER, None)

    assert started.run_until == LATER + 30 * SECOND + LEASE // 4
    assert started.lease_until == started.progress_until == LATER + 15 * SECOND


def test_a_reclaim_gives_the_run_a_new_fence_and_a_short_lease() -> None:
    job = structs.replace(ACTIVE, suspect_until=LATER, run_until=LATER, progress_until=LATER, lease_until=NOW)
    taken = reclaimed(job, BOB.id, LATER)

    assert (taken.state, taken.owner, taken.fence) == (State.ACTIVE, BOB.id, LATER)
    assert (taken.starts, taken.started) == (job.starts, job.started)
    assert (taken.lease_until, taken.heard_at) == (LATER + REAPER_LEASE, LATER)
    assert (taken.suspect_until, taken.run_until, taken.progress_until) == (None, None, None)


@pytest.mark.statement(56)
@pytest.mark.parametrize(
    ("expires_at", "now", "too_old"),
    [(None, NOW, False), (NOW, NOW - 1, False), (NOW, NOW, True), (NOW, NOW + 1, True)],
)
def test_a_job_expires_from_the_very_instant(expires_at: int | None, now: int, too_old: bool) -> None:
    assert is_expired(structs.replace(WAITING, expires_at=expires_at), now) is too_old


@pytest.mark.statement(57)
def test_an_expired_job_says_why_it_never_started() -> None:
    job = structs.replace(
        WAITING, parked_under="printer", ttl=5400 * SECOND, expires_at=NOW, reason="snoozed", redrive_at=NOW
    )
    over = expired(job, LATER)

    assert (over.state, over.finished, over.parked_under, over.reason) == (State.EXPIRED, LATER, None, None)
    assert over.redrive_at is None
    assert over.error is not None
    assert over.error.type == "JobExpiredError"
    assert "90m" in over.error.message
    assert over.ttl == job.ttl


@pytest.mark.parametrize("on_expire", ["fail", "discard"])
def test_an_expiry_event_has_the_ttl_and_the_age(on_expire: OnExpire) -> None:
    job = structs.replace(
        WAITING, starts=2, ttl=60 * SECOND, expires_at=LATER - 5 * SECOND, policy=Policy(on_expire=on_expire)
    )

    assert expiry(job, LATER) == JobExpired(
        queue="mail", id="a", task="send", run=2, ttl=60.0, age=65.0, on_expire=on_expire
    )


def test_a_redriven_job_begins_again_and_goes_on_counting_its_runs() -> None:
    job = redriven(OVER, LATER)

    assert (job.state, job.run_at, job.score) == (State.WAITING, LATER, LATER - OVER.boost)
    assert (job.failures, job.stalls, job.releases) == (0, 0, 0)
    assert (job.cancel_at, job.cancel_reason, job.cancel_by) == (None, None, None)
    assert (job.finished, job.kept_until, job.redrive_at) == (None, None, None)
    assert (job.error, job.reason, job.progress, job.progress_note) == (None, None, None, None)
    assert (job.starts, job.fence, job.created) == (OVER.starts, OVER.fence, OVER.created)


def test_a_redrive_may_be_delayed() -> None:
    job = redriven(OVER, LATER, delay=5 * SECOND)

    assert (job.state, job.run_at, job.score) == (State.DELAYED, LATER + 5 * SECOND, LATER + 5 * SECOND - OVER.boost)


@pytest.mark.parametrize(("by_rule", "redrives"), [(True, 2), (False, 0)])
def test_a_rule_counts_its_redrives_and_an_operator_resets_the_count(by_rule: bool, redrives: int) -> None:
    assert redriven(OVER, LATER, by_rule=by_rule).redrives == redrives


@pytest.mark.statement(66)
@given(st.integers(1, FOREVER), st.lists(st.integers(0, 10**12), min_size=1, max_size=5), st.integers(0, 10**10))
def test_each_redrive_gives_the_same_time_to_live(ttl: int, pauses: list[int], delay: int) -> None:
    job = structs.replace(OVER, ttl=ttl, expires_at=NOW)
    now = NOW
    for pause in pauses:
        now += pause
        job = redriven(job, now, delay=delay)

        assert job.expires_at == job.run_at + ttl == now + delay + ttl

    assert redriven(structs.replace(OVER, ttl=None), now).expires_at is None


@pytest.mark.parametrize(
    ("progress_until", "reason"),
    [(None, "lease_expired"), (LATER + 1, "lease_expired"), (LATER, "no_progress"), (NOW, "no_progress")],
)
def test_the_reason_of_a_stall_is_the_limit_that_was_exceeded(progress_until: int | None, reason: str) -> None:
    assert stall_reason(structs.replace(ACTIVE, progress_until=progress_until), LATER) == reason


@pytest.mark.parametrize(("heard_at", "silent"), [(NOW, 100 * SECOND), (LATER, 0), (None, 0), (LATER + SECOND, 0)])
def test_silence_counts_from_the_last_heartbeat_and_never_backwards(heard_at: int | None, silent: int) -> None:
    assert silence(structs.replace(ACTIVE, heard_at=heard_at), LATER) == silent


def test_a_refused_write_records_both_fences() -> None:
    assert refused(ACTIVE, BOB.id, 7, "renew") == RunFenced(
        queue="mail", id="a", task="send", run=4, fence=7, current_fence=ACTIVE.fence, owner=BOB.id, write="renew"
    )


def test_optional_events_have_all_documented_fields() -> None:
    job = structs.replace(ACTIVE, priority=3, failures=1, heard_at=NOW, run_at=LATER)

    assert enqueued(WAITING) == JobEnqueued(queue="mail", id="a", task="send", due_at=moment(NOW))
    assert enqueued(job).priority == 3
    assert rescheduled(job, "ops") == JobRescheduled(
        queue="mail", id="a", task="send", run=4, due_at=moment(LATER), priority=3, by="ops"
    )
    assert begun(job, BOB) == JobStarted(
        queue="mail",
        id="a",
        task="send",
        run=4,
        attempt=2,
        owner=BOB.id,
        host="host-2",
        pid=102,
        fence=job.fence,
        redelivered=True,
    )
    assert not begun(structs.replace(job, starts=1), BOB).redelivered
    assert progressed(job, 0.5, "half") == JobProgressed(
        queue="mail", id="a", task="send", run=4, value=0.5, note="half"
    )
    assert suspected(job, LATER) == JobSuspected(
        queue="mail", id="a", task="send", run=4, owner=ACTIVE.owner or "", silent_for=100.0
    )
    assert suspected(structs.replace(job, owner=None), LATER).owner == ""


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (UniqueKey("k"), JobDeduplicated(queue="mail", id="b", task="send", key="k", existing_id="a")),
        (DebounceKey("k", 1), JobDebounced(queue="mail", id="a", task="send", key="k", replaced_by="b")),
        (CollectKey("k", 1, 2), JobCollected(queue="mail", id="a", task="send", key="k", count=7)),
    ],
)
def test_a_merged_call_records_an_event(key: MergeKey, expected: JobEvent) -> None:
    call = NewJob(queue="mail", id="b", task="send", payload=b"", merge=key)

    assert merged(call, Ref("mail", "a"), 7) == expected


def test_the_newest_first_stay_so_when_they_are_redriven() -> None:
    first, later = (redriven(structs.replace(ACTIVE, state=State.FAILED, lifo=True), now) for now in (NOW, LATER))

    assert later.score < first.score < 0


def test_a_rescheduled_job_is_delayed_or_waiting_by_its_new_due_time() -> None:
    parked = structs.replace(WAITING, parked_under="k", boost=5)
    later = retimed(parked, LATER, delay=9, priority=None, boost=None)
    at_once = retimed(later, LATER, delay=0, priority=None, boost=None)

    assert (later.state, later.run_at, later.score) == (State.DELAYED, LATER + 9, score_at(LATER + 9, boost=5))
    assert later.parked_under is None
    assert (at_once.state, at_once.run_at, at_once.score) == (State.WAITING, LATER, score_at(LATER, boost=5))


@pytest.mark.parametrize("state", [State.DELAYED, State.WAITING])
def test_a_job_with_a_new_priority_keeps_its_state_and_due_time(state: State) -> None:
    job = structs.replace(WAITING, state=state, run_at=LATER, score=score_at(LATER, boost=0))
    raised = retimed(job, NOW, delay=None, priority=2, boost=7)

    assert raised == structs.replace(job, priority=2, boost=7, score=score_at(LATER, boost=7))


GATHER = CollectKey("k", 5 * SECOND, 3, 20 * SECOND)
BATCH = structs.replace(
    WAITING,
    state=State.DELAYED,
    merge=GATHER,
    collected=1,
    collected_bytes=10,
    run_at=NOW + 5 * SECOND,
    score=NOW + 5 * SECOND,
)


def test_a_collected_call_delays_its_batch_and_sets_its_time_to_live() -> None:
    more = collecting(BATCH, GATHER, NOW + SECOND, ttl=7, offset=2, size=7)

    assert (more.state, more.collected, more.run_at) == (State.DELAYED, 2, NOW + 6 * SECOND)
    assert more.collected_bytes == 17
    assert (more.score, more.ttl, more.expires_at) == (NOW + 6 * SECOND + 2, 7, NOW + SECOND + 7)
    assert collecting(more, GATHER, NOW + SECOND, ttl=None, offset=0, size=5).expires_at is None


def test_a_full_batch_becomes_waiting_and_a_waiting_one_keeps_its_place() -> None:
    full = collecting(structs.replace(BATCH, collected=2), GATHER, NOW + 1, ttl=None, offset=0, size=5)
    in_line = structs.replace(WAITING, merge=GATHER, collected=1, parked_under="k", run_at=NOW - 1)
    due = collecting(in_line, GATHER, NOW + 30 * SECOND, ttl=None, offset=0, size=5)
    put_off = collecting(in_line, GATHER, NOW, ttl=None, offset=0, size=5)

    assert (full.state, full.run_at, full.score) == (State.WAITING, NOW + 1, NOW + 1)
    assert due == structs.replace(in_line, collected=2, collected_bytes=5)
    assert (put_off.state, put_off.parked_under) == (State.DELAYED, None)


def test_the_creation_time_of_a_batch_is_not_after_the_current_time() -> None:
    assert collecting(BATCH, GATHER, NOW - LEASE, ttl=None, offset=0, size=5).created == NOW - LEASE
