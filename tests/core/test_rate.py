"""Rates: how many jobs may start in any period, with one number for each rate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.core.job import RateKey
from tenure.core.rate import RateReservation, effective_rates, free, is_of_task, opens_at, retuned, taken, taken_if_open
from tests.core.cases import NOW

TENTH = RateKey("mail", 100_000)


def starts(rate: RateKey, looks: list[int]) -> list[int]:
    """Return the instants of the starts, if as many jobs as allowed start at each check."""
    return began_from(RateReservation(), rate, looks)


def began_from(until: RateReservation, rate: RateKey, looks: list[int]) -> list[int]:
    """Return the instants of the starts of a rate whose time is already used up to `until`."""
    began = list[int]()
    for now in looks:
        for _ in range(free(until, rate, now)):
            assert opens_at(until, rate, now) <= now
            until = taken(until, rate, now)
            began.append(now)
        assert opens_at(until, rate, now) > now
    return began


def test_an_unused_rate_allows_one_start_and_a_second_one_right_after() -> None:
    assert free(RateReservation(), TENTH, NOW) == 1
    assert free(taken(RateReservation(), TENTH, NOW), TENTH, NOW) == 0
    assert opens_at(taken(RateReservation(), TENTH, NOW), TENTH, NOW) == NOW + 1


def test_ten_a_second_are_six_hundred_a_minute_though_each_look_is_late() -> None:
    looks = [NOW + step * 100_000 + (step * 7919) % 90_000 for step in range(600)]

    assert len(starts(TENTH, looks)) in range(594, 607)


@given(
    st.integers(1, 20),
    st.integers(1, 3),
    st.lists(st.integers(0, 400_000), min_size=1, max_size=60),
    st.integers(1, 3_000_000),
)
def test_no_window_holds_more_starts_than_its_intervals_plus_the_burst(
    per_second: int, burst: int, waits: list[int], stretch: int
) -> None:
    rate = RateKey("r", 1_000_000 // per_second, burst)
    looks, now = list[int](), NOW
    for wait in waits:
        now += wait
        looks.append(now)
    began = starts(rate, looks)

    for first in began:
        within = sum(first <= start < first + stretch for start in began)
        assert within <= -(-stretch // rate.interval) + burst


@pytest.mark.parametrize("back", [1_000_000, 3_600_000_000])
def test_a_clock_set_back_closes_a_rate_for_at_most_its_own_length(back: int) -> None:
    until = taken(taken(RateReservation(), TENTH, NOW), TENTH, NOW + 1)

    assert opens_at(until, TENTH, NOW - back) <= NOW - back + 2 * TENTH.interval


@pytest.mark.parametrize("back", [1_000_000, 3_600_000_000])
def test_a_clock_set_back_does_not_stop_a_rate_at_later_checks(back: int) -> None:
    until = taken(taken(RateReservation(), TENTH, NOW), TENTH, NOW + 1)
    looks = [NOW - back + step * 10_000 for step in range(51)]

    assert any(free(until, TENTH, now) for now in looks[:21])
    assert len(began_from(until, TENTH, looks)) in (5, 6)


def test_a_rate_that_was_made_faster_has_its_new_pace_at_once() -> None:
    slow, fast = RateKey("mail", 60_000_000), RateKey("mail", 1_000_000)
    until = retuned(taken(taken(RateReservation(), slow, NOW), slow, NOW + 1), fast, NOW + 1)

    assert len(began_from(until, fast, [NOW + step * 100_000 for step in range(101)])) in (10, 11, 12)


def test_a_rate_that_was_made_slower_forgets_nothing() -> None:
    until = taken(RateReservation(), TENTH, NOW)

    assert retuned(until, RateKey("mail", 60_000_000), NOW) == until


@pytest.mark.parametrize("fast", [TENTH, RateKey("mail", 100_000, 5), RateKey("mail", 30_000_000)])
def test_a_faster_rate_of_the_same_name_respects_the_slower_ones_time(fast: RateKey) -> None:
    slow = RateKey("mail", 60_000_000)
    until, began = RateReservation(), list[int]()
    for now in range(NOW, NOW + 600_000_000, 10_000):
        for rate in (fast, slow):
            if opens_at(until, rate, now) <= now:
                until = taken(until, rate, now)
                began += [now] if rate is slow else []

    assert 0 < len(began) <= 11


def test_taking_zero_starts_changes_nothing() -> None:
    until = taken(RateReservation(), RateKey("mail", 60_000_000), NOW)

    assert taken(until, TENTH, NOW, starts=0) == until


def test_the_rate_set_for_a_task_replaces_each_rate_of_its_own() -> None:
    own = (RateKey("task:a:b", 1), RateKey("task/600000:a:b", 2))
    others = (RateKey("task:b", 3), RateKey("key:a:b", 4), RateKey("key/5:a:b", 5), RateKey("tasks:a:b", 6))
    task_rate = RateKey("task:a:b", 7)

    assert effective_rates((*own, *others, RateKey("free", 0)), None, "a:b") == [*own, *others]
    assert effective_rates((*own, *others), task_rate, "a:b") == [task_rate, *others]
    assert effective_rates((*own, *others), RateKey("task:a:b", 0), "a:b") == list(others)
    assert [is_of_task(rate.name, "a:b") for rate in (*own, *others)] == [True, True, False, False, False, False]


@pytest.mark.parametrize("burst", [1, 3])
def test_several_starts_use_the_time_of_each(burst: int) -> None:
    rate = RateKey("mail", 100_000, burst)
    until = RateReservation()
    for _ in range(burst):
        until = taken(until, rate, NOW)

    assert taken(RateReservation(), rate, NOW, starts=burst) == until
    assert taken_if_open(opens_at(until, rate, NOW), rate) == until
