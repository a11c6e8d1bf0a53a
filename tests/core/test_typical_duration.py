"""The typical duration of a task's runs, and which runs are far beyond it."""

import pytest

from tenure.core.typical_duration import FEW, is_unusually_long, typical_duration

SECOND = 1_000_000


def test_the_typical_duration_is_the_95th_percentile() -> None:
    lengths = [SECOND] * 19 + [600 * SECOND]

    assert typical_duration(lengths) == SECOND
    assert typical_duration([*range(101)]) == 95


def test_few_runs_have_no_typical_duration() -> None:
    assert typical_duration([SECOND] * (FEW - 1)) is None
    assert typical_duration([SECOND] * FEW) == SECOND
    assert not is_unusually_long(10**12, None)


@pytest.mark.parametrize(
    ("ran", "usually", "far"),
    [
        (59.9, 0.001, False),
        (60, 0.001, True),
        (100, 10, False),
        (100.1, 10, True),
        (3_600, 400, False),
    ],
)
def test_far_beyond_is_more_than_ten_times_as_long_and_at_least_a_minute(ran: float, usually: float, far: bool) -> None:
    assert is_unusually_long(round(ran * SECOND), round(usually * SECOND)) is far
