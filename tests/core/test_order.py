"""Scores: age and priority in one number, newest first, and fair shares in virtual time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.core.order import FAIR_SHARE, Fairness, entered_at, next_tag, score_at, share
from tests.core.cases import NOW

STEP = 60_000_000
STRICT = 10_000_000_000_000


def test_a_step_of_priority_is_worth_a_minute_of_waiting() -> None:
    assert score_at(NOW + STEP, boost=STEP) == score_at(NOW, boost=0)
    assert score_at(NOW + STEP + 1, boost=STEP) > score_at(NOW, boost=0) > score_at(NOW + STEP - 1, boost=STEP)


def test_no_waiting_time_outweighs_a_strict_step() -> None:
    assert score_at(NOW + 100 * 86_400 * 1_000_000, boost=STRICT) < score_at(NOW, boost=0)


def test_newest_first_jobs_precede_all_others_and_each_older_one() -> None:
    assert score_at(NOW + 1, boost=0, lifo=True) < score_at(NOW, boost=0, lifo=True) < score_at(NOW, boost=0)


@given(st.integers(0, 2 * NOW), st.integers(-500, 500).map(lambda steps: steps * STRICT), st.booleans())
def test_a_score_contains_the_arrival_time_and_fits_a_double(at: int, boost: int, lifo: bool) -> None:
    score = score_at(at, boost=boost, lifo=lifo)

    assert entered_at(score, boost=boost, lifo=lifo) == at
    assert int(float(score)) == score


def served(line: Fairness, jobs: list[tuple[int, str, int]], count: int) -> list[str]:
    """Take this many of the best from these (score, tenant, boost)."""
    given_out: list[str] = []
    for _ in range(count):
        score, tenant, boost = best = min(jobs)
        jobs.remove(best)
        line.mark_dispatched(score, boost)
        given_out.append(tenant)
    return given_out


def come(
    line: Fairness, jobs: list[tuple[int, str, int]], tenant: str, count: int, *, boost: int = 0, w: int = 1
) -> None:
    for _ in range(count):
        jobs.append((score_at(line.tag(tenant, boost=boost, weight=w), boost=boost), tenant, boost))


def test_a_new_tenant_starts_next_behind_any_backlog_of_others() -> None:
    line, jobs = Fairness(NOW), list[tuple[int, str, int]]()
    come(line, jobs, "a", 1000)
    served(line, jobs, 300)
    come(line, jobs, "b", 3)

    assert served(line, jobs, 6).count("b") == 3


def test_a_new_tenant_does_not_catch_up_on_earlier_starts() -> None:
    line, jobs = Fairness(NOW), list[tuple[int, str, int]]()
    come(line, jobs, "a", 1000)
    served(line, jobs, 500)
    come(line, jobs, "b", 500)

    assert 49 <= served(line, jobs, 100).count("a") <= 51


def test_weights_share_in_their_ratio() -> None:
    line, jobs = Fairness(NOW), list[tuple[int, str, int]]()
    come(line, jobs, "a", 400, w=3)
    come(line, jobs, "b", 400)

    assert 73 <= served(line, jobs, 100).count("a") <= 77


def test_a_burst_of_higher_priority_takes_no_turn_of_a_new_tenant() -> None:
    line, jobs = Fairness(NOW), list[tuple[int, str, int]]()
    come(line, jobs, "a", 1000)
    served(line, jobs, 10)
    come(line, jobs, "high", 50, boost=5 * STEP)

    assert served(line, jobs, 50) == ["high"] * 50

    come(line, jobs, "b", 1)
    assert "b" in served(line, jobs, 2)


def test_a_priority_that_comes_late_begins_at_the_current_position() -> None:
    line, jobs = Fairness(NOW), list[tuple[int, str, int]]()
    come(line, jobs, "a", 1000)
    served(line, jobs, 900)
    come(line, jobs, "high", 1000, boost=STEP)

    # Its step is worth sixty jobs, not the whole lead of the virtual time over the clock.
    assert served(line, jobs, 160).count("a") >= 45


@pytest.mark.parametrize("boost", [-500 * STRICT, -5 * STEP, 5 * STEP])
def test_a_priority_moves_the_virtual_time_by_its_jobs_alone(boost: int) -> None:
    line, jobs = Fairness(NOW), list[tuple[int, str, int]]()
    for generation in range(100):
        come(line, jobs, f"tenant-{generation}", 1, boost=boost)
        served(line, jobs, 1)

    assert NOW <= line.front <= line.start(boost) == NOW + 100 * FAIR_SHARE


def test_a_tenant_without_waiting_jobs_begins_at_the_current_turn() -> None:
    line, jobs = Fairness(NOW), list[tuple[int, str, int]]()
    come(line, jobs, "a", 30)

    assert line.tag("a", boost=0) == NOW + 31 * FAIR_SHARE
    assert line.tag("a", boost=0, waits=False) == NOW + FAIR_SHARE
    assert line.tag("a", boost=0) == NOW + 2 * FAIR_SHARE


def test_tags_that_virtual_time_has_passed_are_ignored_and_deleted() -> None:
    line, jobs = Fairness(NOW), list[tuple[int, str, int]]()
    come(line, jobs, "a", 1)
    come(line, jobs, "b", 3)
    served(line, jobs, 2)
    before = Fairness(line.front, dict(line.reached), dict(line.tags))
    line.forget()

    assert set(line.tags) == {(0, "b")}
    assert line.tag("a", boost=0) == before.tag("a", boost=0)


@pytest.mark.parametrize(("weight", "apart"), [(1, FAIR_SHARE), (4, FAIR_SHARE // 4), (1000, FAIR_SHARE // 1000)])
def test_a_tenants_jobs_are_one_share_apart(weight: int, apart: int) -> None:
    assert share(weight) == apart
    assert next_tag(NOW, None, weight) == NOW + apart
    assert next_tag(NOW, NOW - 5, weight) == NOW + apart
    assert next_tag(NOW, NOW + 5, weight) == NOW + 5 + apart
