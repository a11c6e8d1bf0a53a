"""When a worker process has to be replaced."""

from random import Random

from tenure.worker.recycling import RecyclePolicy, staggered


def test_max_jobs_jobs_begin_and_no_more() -> None:
    wear = RecyclePolicy(max_jobs=3)
    rooms: list[int] = []
    for _ in range(3):
        rooms.append(wear.room(10))
        assert wear.reason() is None
        wear.began()

    assert rooms == [3, 2, 1]
    assert wear.reason() == "it has begun 3 jobs, and --max-jobs allows no more"
    assert wear.room(10) == 0


def test_a_job_that_was_to_begin_and_did_not_is_not_counted() -> None:
    wear = RecyclePolicy(max_jobs=1)
    wear.began()
    wear.not_begun()

    assert wear.room(10) == 1
    assert wear.reason() is None


def test_memory_over_the_limit_after_a_job_recycles_for_good() -> None:
    occupied = 600_000_000
    wear = RecyclePolicy(max_memory=500_000_000, occupied=lambda: occupied)
    assert wear.reason() is None
    assert wear.room(10) == 10
    wear.began()
    why = wear.reason()
    assert why == "it occupies 600 MB, and --max-memory allows 500 MB"
    occupied = 100_000_000

    assert wear.reason() == why
    assert wear.room(10) == 0


def test_without_limits_no_worker_is_recycled() -> None:
    wear = RecyclePolicy()
    for _ in range(1000):
        wear.began()

    assert wear.reason() is None
    assert wear.room(7) == 7


def test_limits_of_siblings_are_spread_and_never_above_max_jobs() -> None:
    dice = Random(7)
    limits = [staggered(1000, dice) for _ in range(50)]

    assert 800 < min(limits) < max(limits) <= 1000
    assert len(set(limits)) > 40
    assert staggered(1, dice) == 1
