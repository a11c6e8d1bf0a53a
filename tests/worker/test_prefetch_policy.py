"""How many jobs a worker may prefetch, depending on how long its runs took."""

from hypothesis import given
from hypothesis import strategies as st

from tenure.worker.prefetch import LONGEST_WAIT, MOST_HELD, PREFETCHED_WORK, SHORT_RUN, PrefetchPolicy


def after(*times: float, concurrency: int = 10) -> PrefetchPolicy:
    ahead = PrefetchPolicy(concurrency, max(0, MOST_HELD - concurrency))
    for took in times:
        ahead.ran(took)
    return ahead


def test_nothing_is_prefetched_before_many_runs_were_short() -> None:
    assert after().room == 0
    assert after(0.001).room == 0
    assert 0 < after(*[0.001] * 15).room < 50
    assert after(*[0.0001] * 60).room == MOST_HELD - 10


def test_as_much_work_is_prefetched_as_is_done_in_a_moment() -> None:
    assert after(*[0.01] * 100).room == 9
    assert after(*[0.002] * 200).room == 49


def test_one_long_run_ends_prefetching_and_many_short_ones_resume_it() -> None:
    ahead = after(*[0.0001] * 60, 1.0)

    assert ahead.room == 0
    for _ in range(15):
        ahead.ran(0.0001)
    assert ahead.room == 0
    for _ in range(60):
        ahead.ran(0.0001)
    assert ahead.room == MOST_HELD - 10


def test_a_job_that_was_prefetched_for_too_long_ends_prefetching() -> None:
    ahead = after(*[0.0001] * 60)
    ahead.kept_waiting()

    assert ahead.room == 0


def test_a_worker_that_runs_many_at_a_time_prefetches_none() -> None:
    assert after(*[0.0001] * 60, concurrency=MOST_HELD).room == 0
    assert after(*[0.0001] * 60, concurrency=500).room == 0


@given(st.lists(st.floats(0.0, 10.0), max_size=80), st.integers(1, 300))
def test_never_more_is_prefetched_than_a_moments_work_of_recent_runs(times: list[float], concurrency: int) -> None:
    room = after(*times, concurrency=concurrency).room

    assert 0 <= room <= max(0, MOST_HELD - concurrency)
    if times and times[-1] > SHORT_RUN:
        assert room == 0
    if room:
        assert room * times[-1] <= PREFETCHED_WORK * concurrency * (1 + 1e-9)
        assert max(times[-5:]) <= LONGEST_WAIT
