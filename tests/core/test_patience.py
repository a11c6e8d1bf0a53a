"""The arithmetic of rests between tries."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tenure.core.exponential_delay import ExponentialDelay


class Loaded(Random):
    """A die that always shows the same."""

    def __init__(self, shown: float) -> None:
        super().__init__(0)
        self.shown = shown

    def random(self) -> float:
        return self.shown


def test_a_rest_doubles_with_each_failure_up_to_the_last() -> None:
    patience = ExponentialDelay(0.5, 6.0)

    assert [patience.rest(failures, Loaded(1.0)) for failures in range(1, 7)] == [0.5, 1.0, 2.0, 4.0, 6.0, 6.0]


def test_the_dice_take_at_most_half_of_it() -> None:
    patience = ExponentialDelay(0.5, 6.0)

    assert [patience.rest(failures, Loaded(0.0)) for failures in range(1, 7)] == [0.25, 0.5, 1.0, 2.0, 3.0, 3.0]


@given(
    first=st.floats(0.001, 60.0),
    last=st.floats(0.001, 600.0),
    failures=st.integers(1, 10**9),
    seed=st.integers(0, 99),
)
def test_a_rest_lies_between_half_and_all_of_its_length(first: float, last: float, failures: int, seed: int) -> None:
    rest = ExponentialDelay(first, last).rest(failures, Random(seed))

    assert min(first, last) / 2 <= rest <= last


@given(failures=st.integers(1, 10**9), seed=st.integers(0, 99))
def test_the_same_dice_give_the_same_rest(failures: int, seed: int) -> None:
    patience = ExponentialDelay(0.05, 5.0)

    assert patience.rest(failures, Random(seed)) == patience.rest(failures, Random(seed))
