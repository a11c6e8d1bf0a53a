"""Counts by outcome, and quantiles estimated from histograms."""

from random import Random

import pytest

from tenure.core.figures import (
    ALL_TASKS,
    BUCKETS,
    LENGTH,
    MINUTE,
    NO_COUNTS,
    OTHERS,
    OUTCOMES,
    TASKS_KEPT,
    Counts,
    Figures,
    FiguresCell,
    TaskCounts,
    bucket_of,
    count_run,
    end_of,
    folded,
    quantile,
    sound,
    summed,
    with_counted,
)

MS = 1_000


def histogram(durations: list[int]) -> list[int]:
    buckets = [0] * BUCKETS
    for duration in durations:
        buckets[bucket_of(duration)] += 1
    return buckets


@pytest.mark.parametrize(
    ("duration", "bucket"),
    [
        *[(-5, 0), (0, 0), (999, 0), (MS, 1), (2 * MS - 1, 1), (2 * MS, 2), (4 * MS - 1, 2), (4 * MS, 3)],
        *[((1 << 22) * MS - 1, 22), ((1 << 22) * MS, 23), (1 << 60, 23)],
    ],
)
def test_bucket_k_holds_durations_below_2_to_the_k_milliseconds(duration: int, bucket: int) -> None:
    assert bucket_of(duration) == bucket


def test_a_run_is_counted_by_outcome_and_in_both_histograms() -> None:
    counts = [0] * LENGTH
    count_run(counts, "completed", stalled=False, waited=3 * MS, ran=0)
    count_run(counts, "failed", stalled=True, waited=None, ran=None)
    count_run(counts, "stalled", stalled=True, waited=0, ran=None)
    figures = Figures(tuple(counts))

    assert figures.ends == {"completed": 1, "failed": 1, "retried": 0, "cancelled": 0, "expired": 0, "stalled": 2}
    assert (figures.waited[2], figures.waited[0], sum(figures.waited)) == (1, 1, 2)
    assert (figures.ran[0], sum(figures.ran)) == (1, 1)
    assert len(figures.waited) == len(figures.ran) == BUCKETS


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("p", [0.0, 0.01, 0.5, 0.9, 0.95, 0.99, 1.0])
def test_an_estimated_quantile_is_within_a_factor_of_two(seed: int, p: float) -> None:
    rng = Random(seed)
    durations = sorted(round(2 ** rng.uniform(0, 31)) for _ in range(rng.randint(1, 300)))
    estimate = quantile(histogram(durations), p)
    # The smallest duration that a part p of all durations do not exceed.
    true = durations[max(0, -(-round(p * len(durations) * 1e9) // 10**9) - 1)]

    assert estimate is not None
    assert true / 2 <= estimate <= true * 2 or (true < MS and estimate <= MS)


def test_quantiles_of_nothing_and_of_very_long_durations() -> None:
    assert quantile([0] * BUCKETS, 0.5) is None
    assert quantile(histogram([1 << 50]), 0.5) == (1 << 22) * MS


def test_quantiles_are_interpolated_within_a_bucket() -> None:
    buckets = [0] * BUCKETS
    buckets[3] = 4

    assert [quantile(buckets, p) for p in (0.25, 0.5, 1.0)] == [5 * MS, 6 * MS, 8 * MS]


def test_a_queue_has_a_limited_number_of_tasks() -> None:
    one = end_of("completed")
    known: dict[tuple[str, str], Counts] = {}
    for number in range(TASKS_KEPT + 3):
        known.update(with_counted(known, [TaskCounts("q", f"t{number}", one)]))
    changed = with_counted(known, [TaskCounts("q", "t0", one), TaskCounts("q", OTHERS, one), TaskCounts("p", "x", one)])

    assert len(known) == TASKS_KEPT + 2
    assert known["q", OTHERS][0] == 3
    assert {place: counts[0] for place, counts in changed.items()} == {
        ("q", "t0"): 2,
        ("q", OTHERS): 4,
        ("q", ALL_TASKS): TASKS_KEPT + 5,
        ("p", "x"): 1,
        ("p", ALL_TASKS): 1,
    }


def test_cells_are_added_up_by_place_and_folded_by_step() -> None:
    one = end_of("failed")
    cells = [FiguresCell("b", MINUTE, one), FiguresCell("a", 2 * MINUTE, one), FiguresCell("b", MINUTE, one)]
    sums = summed(cells)

    assert [(cell.queue, cell.start, sum(cell.counts)) for cell in sums] == [("a", 2 * MINUTE, 1), ("b", MINUTE, 2)]
    assert {start: sum(counts) for start, counts in folded(sums, step=2 * MINUTE).items()} == {0: 2, 2 * MINUTE: 1}


def test_damaged_counts_count_as_none() -> None:
    assert sound((1, 2)) == NO_COUNTS
    assert sound(NO_COUNTS) == NO_COUNTS
    assert len(NO_COUNTS) == LENGTH == len(OUTCOMES) + 2 * BUCKETS
