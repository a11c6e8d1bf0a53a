"""The arithmetic of leases: when they end, how long they are trusted, what follows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.clock import SECOND
from tenure.core.job import FOREVER, Ref, StallSetting, StallTerms
from tenure.core.lease import (
    REAPER_LEASE,
    grace_end,
    lease_end,
    longest_lease,
    margin,
    next_fence,
    renewed_limits,
    run_limit,
    trusted_until,
)
from tests.core.cases import ACTIVE, NOW, lease

LENGTH = 20 * SECOND
instants = st.integers(0, 2**52)
lengths = st.integers(1, 3_600 * SECOND)


def test_a_lease_names_its_run() -> None:
    held = lease()

    assert (held.ref, held.fence, held.run) == (Ref("mail", "a"), ACTIVE.fence, 4)
    assert ACTIVE.attempt == 1


@given(instants, instants)
def test_a_fence_only_rises_and_never_lags_behind_the_clock(fence: int, now: int) -> None:
    assert next_fence(fence, now) > fence
    assert next_fence(fence, now) >= now
    assert next_fence(fence, now) == max(fence + 1, now)


def test_a_fence_fits_into_a_double() -> None:
    assert next_fence(0, NOW) < 2**53
    assert NOW + FOREVER < 2**53


@pytest.mark.parametrize(
    ("length", "expected"), [(20 * SECOND, 2 * SECOND), (8 * SECOND, 800_000), (600 * SECOND, 2 * SECOND), (9, 0)]
)
def test_the_margin_is_a_tenth_and_two_seconds_at_most(length: int, expected: int) -> None:
    assert margin(length) == expected


def test_a_holder_trusts_its_lease_from_when_it_asked() -> None:
    assert trusted_until(100.0, LENGTH) == 118.0
    assert trusted_until(100.0, 8 * SECOND) == 107.2


def test_a_lease_ends_after_its_length() -> None:
    assert lease_end(NOW, LENGTH, run_until=None, progress_until=None) == NOW + LENGTH


@pytest.mark.statement(89)
def test_a_start_grace_lengthens_a_lease_and_never_shortens_it() -> None:
    assert lease_end(NOW, LENGTH, run_until=None, progress_until=None, not_before=NOW + 60) == NOW + LENGTH
    assert lease_end(NOW, 10, run_until=None, progress_until=None, not_before=NOW + 60) == NOW + 60


@given(
    instants,
    lengths,
    st.none() | instants,
    st.none() | instants,
    instants,
)
def test_a_lease_never_passes_the_limits_of_its_run(
    now: int, length: int, run_until: int | None, progress_until: int | None, not_before: int
) -> None:
    end = lease_end(now, length, run_until=run_until, progress_until=progress_until, not_before=not_before)
    limits = [limit for limit in (run_until, progress_until) if limit is not None]

    assert all(end <= limit for limit in limits)
    assert end in {now + length, not_before, *limits}
    if not limits:
        assert end >= now + length


def test_a_run_is_limited_by_the_earlier_of_its_limits_and_a_beat() -> None:
    minute = 60 * SECOND

    assert run_limit(NOW, lease=LENGTH, timeout=None, deadline=None) is None
    assert run_limit(NOW, lease=LENGTH, timeout=minute, deadline=None) == NOW + minute + 5 * SECOND
    assert run_limit(NOW, lease=LENGTH, timeout=None, deadline=NOW + minute) == NOW + minute + 5 * SECOND
    assert run_limit(NOW, lease=LENGTH, timeout=minute, deadline=NOW + 9) == NOW + 9 + 5 * SECOND


def test_no_sound_lease_is_longer_than_its_terms_or_a_reapers() -> None:
    assert longest_lease(StallTerms()) == 20 * SECOND
    assert longest_lease(StallTerms(start_grace=60 * SECOND)) == 60 * SECOND
    assert longest_lease(StallTerms(lease=1 * SECOND)) == REAPER_LEASE == 5 * SECOND


GRACE = 3 * SECOND


@pytest.mark.parametrize(
    ("lease_until", "resumed_at", "expected"),
    [
        (NOW, None, GRACE),
        (NOW - 3600 * SECOND, None, GRACE),
        (NOW, NOW, 10 * SECOND),
        (NOW, NOW - 6 * SECOND, 4 * SECOND),
        (NOW, NOW - 8 * SECOND, GRACE),
        (NOW, NOW + 1, GRACE),
        (NOW + 20 * SECOND, None, GRACE),
        (NOW + 20 * SECOND + 1, None, 10 * SECOND),
        (NOW + 3600 * SECOND, None, 10 * SECOND),
    ],
    ids=[
        "usual",
        "long out",
        "just resumed",
        "resumed a while ago: two beats from then",
        "resumed so long ago that the grace lasts longer",
        "resumed in the future: the clock was set back since",
        "as far ahead as it is long",
        "further ahead than it is long",
        "far ahead",
    ],
)
def test_the_grace_lasts_two_beats_from_when_time_was_in_doubt(
    lease_until: int, resumed_at: int | None, expected: int
) -> None:
    end = grace_end(NOW, terms=StallTerms(), lease_until=lease_until, grace=GRACE, resumed_at=resumed_at)

    assert end == NOW + expected


@pytest.mark.statement(1)
def test_the_terms_by_default_are_twenty_seconds_and_one_stall() -> None:
    terms = StallTerms()

    assert (terms.lease, terms.max_stalls, terms.start_grace, terms.renewed) == (20 * SECOND, 1, 0, True)


@pytest.mark.statement(89)
def test_a_queues_setting_applies_where_a_call_left_it_open() -> None:
    setting = StallSetting(lease=8 * SECOND, max_stalls=4, start_grace=1, renewed=False)

    assert StallTerms().with_setting(setting) == StallTerms(8 * SECOND, 4, 1, renewed=False)
    assert StallTerms(lease=9, pinned=("lease", "renewed")).with_setting(setting) == StallTerms(
        9, 4, 1, renewed=True, pinned=("lease", "renewed")
    )
    assert StallTerms(max_stalls=7).with_setting(StallSetting(lease=9)) == StallTerms(9, 7)
    assert StallTerms(7).with_setting(StallSetting()) == StallTerms(7)
    assert StallTerms(max_stalls=7).with_setting(StallSetting(max_stalls=0)) == StallTerms(max_stalls=0)


def limits(**changes: int | None) -> tuple[int | None, int | None]:
    fields: dict[str, int | None] = {
        "timeout": 60 * SECOND,
        "deadline": None,
        "heartbeat_timeout": 15 * SECOND,
        "run_until": NOW + 1,
        "progress_until": NOW + 2,
        "ran": None,
        "silent": None,
        **changes,
    }
    return renewed_limits(NOW, lease=LENGTH, **fields)


def test_a_renewal_that_measured_nothing_leaves_the_limits_of_its_run() -> None:
    assert limits() == (NOW + 1, NOW + 2)


def test_a_renewal_counts_limits_from_the_times_of_its_keeper() -> None:
    beat = LENGTH // 4

    assert limits(ran=10 * SECOND) == (NOW + 50 * SECOND + beat, NOW + 2)
    assert limits(ran=10 * SECOND, deadline=NOW + 5 * SECOND) == (NOW + 5 * SECOND + beat, NOW + 2)
    assert limits(ran=10 * SECOND, timeout=None) == (None, NOW + 2)
    assert limits(silent=0) == (NOW + 1, NOW + 15 * SECOND)
    assert limits(silent=20 * SECOND) == (NOW + 1, NOW - 5 * SECOND)


def test_without_a_progress_limit_silence_sets_none() -> None:
    assert limits(silent=5 * SECOND, heartbeat_timeout=None, progress_until=None) == (NOW + 1, None)
