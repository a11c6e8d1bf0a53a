"""The arithmetic of delays between attempts."""

from random import Random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.clock import SECOND
from tenure.core.retry import Backoff, BackoffKind

KINDS: tuple[BackoffKind, ...] = get_args(BackoffKind)

backoffs = st.builds(
    Backoff,
    kind=st.sampled_from(KINDS),
    base=st.integers(1, 3_600 * SECOND),
    cap=st.integers(1, 86_400 * SECOND),
    jitter=st.floats(0.0, 1.0),
)
failures = st.integers(1, 10_000)


def test_the_defaults_of_stored_backoffs_never_change() -> None:
    assert Backoff() == Backoff(max_attempts=3, kind="exponential", base=SECOND, cap=600 * SECOND, jitter=0.25)


@pytest.mark.parametrize(
    ("kind", "rests"),
    [("fixed", [2, 2, 2, 2, 2]), ("linear", [2, 4, 6, 8, 9]), ("exponential", [2, 4, 8, 9, 9])],
)
def test_a_delay_grows_by_its_kind_up_to_the_cap(kind: BackoffKind, rests: list[int]) -> None:
    policy = Backoff(kind=kind, base=2 * SECOND, cap=9 * SECOND, jitter=0.0)

    assert [policy.delay(count, Random(0)) for count in range(1, 6)] == [rest * SECOND for rest in rests]


def test_the_defaults_are_three_attempts_from_a_second_to_ten_minutes() -> None:
    policy = Backoff()

    assert (policy.max_attempts, policy.kind, policy.base, policy.cap, policy.jitter) == (
        3,
        "exponential",
        1 * SECOND,
        600 * SECOND,
        0.25,
    )


@given(backoffs, failures, st.integers())
def test_a_delay_is_never_above_the_cap_nor_below_zero(policy: Backoff, count: int, seed: int) -> None:
    assert 0 <= policy.delay(count, Random(seed)) <= policy.cap


@given(backoffs, failures, st.integers())
def test_the_jitter_stays_in_its_bounds(policy: Backoff, count: int, seed: int) -> None:
    steady = Backoff(kind=policy.kind, base=policy.base, cap=policy.cap, jitter=0.0).delay(count, Random(0))
    rest = policy.delay(count, Random(seed))

    # Half a microsecond on either side is rounding.
    assert steady * (1 - policy.jitter) - 1 <= rest <= steady * (1 + policy.jitter) + 1


def test_the_jitter_uses_its_whole_width() -> None:
    policy = Backoff(kind="fixed", base=1000 * SECOND, cap=9000 * SECOND, jitter=0.25)
    dice = Random(1)
    rests = [policy.delay(1, dice) / SECOND for _ in range(2000)]

    assert 750 <= min(rests) < 755
    assert 1245 < max(rests) <= 1250


@given(backoffs, failures, st.integers())
def test_the_same_random_numbers_give_the_same_delay(policy: Backoff, count: int, seed: int) -> None:
    assert policy.delay(count, Random(seed)) == policy.delay(count, Random(seed))


@given(backoffs, st.integers(1, 200))
def test_a_delay_without_jitter_never_shrinks(policy: Backoff, count: int) -> None:
    steady = Backoff(kind=policy.kind, base=policy.base, cap=policy.cap, jitter=0.0)

    assert steady.delay(count, Random(0)) <= steady.delay(count + 1, Random(0))
