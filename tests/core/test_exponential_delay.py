"""Exponential delays: their length and their jitter."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tenure.core.exponential_delay import ExponentialDelay


class Loaded(Random):
    """A random generator that always returns the same number."""

    def __init__(self, shown: float) -> None:
        super().__init__(0)
        self.shown = shown

    def random(self) -> float:
        return self.shown


def test_a_delay_doubles_with_each_failure_up_to_the_longest() -> None:
    delay = ExponentialDelay(0.5, 6.0)

    assert [delay.rest(failures, Loaded(1.0)) for failures in range(1, 7)] == [0.5, 1.0, 2.0, 4.0, 6.0, 6.0]


def test_the_jitter_shortens_a_delay_by_at_most_half() -> None:
    delay = ExponentialDelay(0.5, 6.0)

    assert [delay.rest(failures, Loaded(0.0)) for failures in range(1, 7)] == [0.25, 0.5, 1.0, 2.0, 3.0, 3.0]


@given(
    first=st.floats(0.001, 60.0),
    last=st.floats(0.001, 600.0),
    failures=st.integers(1, 10**9),
    seed=st.integers(0, 99),
)
def test_a_delay_lies_between_half_and_all_of_its_length(first: float, last: float, failures: int, seed: int) -> None:
    rest = ExponentialDelay(first, last).rest(failures, Random(seed))

    assert min(first, last) / 2 <= rest <= last


@given(failures=st.integers(1, 10**9), seed=st.integers(0, 99))
def test_the_same_random_numbers_give_the_same_delay(failures: int, seed: int) -> None:
    delay = ExponentialDelay(0.05, 5.0)

    assert delay.rest(failures, Random(seed)) == delay.rest(failures, Random(seed))
