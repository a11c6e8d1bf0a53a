"""The clock that tests set by hand."""

import pytest

from tenure.clock import SECOND, Clock
from tenure.testing import ManualClock


def test_the_clock_does_not_move_by_itself() -> None:
    clock: Clock = ManualClock(5 * SECOND)

    assert (clock.now(), clock.now()) == (5 * SECOND, 5 * SECOND)
    assert clock.uptime() == 0.0


def test_an_advance_moves_every_clock() -> None:
    clock = ManualClock()
    start = clock.now()
    clock.advance(1.5)
    clock.advance(0.000_001)

    assert clock.now() - start == 1_500_001
    assert clock.uptime() == 1.500_001


@pytest.mark.parametrize("step", [3600.0, -3600.0, -0.000_001])
def test_a_step_of_the_wall_clock_lets_no_time_pass(step: float) -> None:
    clock = ManualClock()
    start = clock.now()
    clock.step_wall(step)

    assert clock.now() - start == round(step * SECOND)
    assert clock.uptime() == 0.0


def test_time_never_passes_backwards() -> None:
    with pytest.raises(ValueError, match="step_wall"):
        ManualClock().advance(-1)
