"""The verdict over time: what makes a backlog overdue, what does not, and what resets it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.core.backlog import Backlog, Thresholds, observe

FEW = Thresholds(most=10, patience=60.0)


def fed(looks: list[tuple[float, int]], thresholds: Thresholds = FEW) -> Backlog:
    """Return the backlog of one queue after readings at these times, which found so many waiting jobs."""
    known = Backlog()
    for now, jobs in looks:
        known = observe(known, thresholds, {"mail": jobs}, now=now)
    return known


@pytest.mark.statement(50)
def test_a_backlog_above_its_threshold_for_too_long_is_overdue() -> None:
    known = fed([(0, 11), (30, 12), (60, 11)])

    assert known.seconds_above("mail", now=60) == 60
    assert not known.overdue("mail", FEW, now=60)
    assert known.overdue("mail", FEW, now=60.1)


@pytest.mark.statement(50)
def test_a_short_spike_is_not_overdue() -> None:
    known = fed([(0, 0), (10, 1_000_000), (69, 1_000_000), (70, 10)])

    assert known == Backlog()
    assert not known.overdue("mail", FEW, now=1000)


@pytest.mark.statement(50)
def test_a_recovery_resets_the_time() -> None:
    known = fed([(0, 11), (59, 11), (60, 10), (61, 11), (120, 11)])

    assert known.seconds_above("mail", now=120) == 59
    assert not known.overdue("mail", FEW, now=120)
    assert known.overdue("mail", FEW, now=121.5)


def test_a_backlog_at_its_threshold_is_not_counted() -> None:
    assert fed([(0, 10), (100, 10)]) == Backlog()


def test_a_deleted_queue_has_recovered() -> None:
    known = observe(fed([(0, 11)]), FEW, {}, now=30)

    assert known.seconds_above("mail", now=30) is None


def test_a_queue_with_its_own_threshold_does_not_use_the_general_one() -> None:
    thresholds = Thresholds(most=10, named={"bulk": 1000}, patience=1.0)
    known = observe(Backlog(), thresholds, {"bulk": 500, "mail": 500}, now=0)

    assert not known.overdue("bulk", thresholds, now=5)
    assert known.overdue("mail", thresholds, now=5)


def test_without_a_threshold_any_number_may_wait() -> None:
    only = Thresholds(named={"mail": 0})
    known = observe(observe(Backlog(), Thresholds(), {"bulk": 10**9}, now=0), only, {"bulk": 10**9, "mail": 1}, now=1)

    assert dict(known.since) == {"mail": 1}


@given(st.lists(st.tuples(st.floats(0.01, 100), st.integers(0, 20)), min_size=1, max_size=50))
def test_a_backlog_is_overdue_once_every_reading_of_a_time_was_too_high(steps: list[tuple[float, int]]) -> None:
    looks: list[tuple[float, int]] = []
    now = 0.0
    for passed, jobs in steps:
        now += passed
        looks.append((now, jobs))
    last_good = max((at for at, jobs in looks if jobs <= 10), default=-1.0)
    above = [at for at, _ in looks if at > last_good]

    assert fed(looks).overdue("mail", FEW, now=now) == (bool(above) and now - above[0] > 60)
