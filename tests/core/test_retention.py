"""How long what is over is kept, and which word counts."""

import pytest

from tenure.clock import SECOND
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.retention import KEPT, Keep, Retention

DAY = 86_400 * SECOND
SHORT, LONG = Keep(SECOND), Keep(DAY, 5)


def test_every_end_has_a_time_that_is_built_in() -> None:
    assert set(KEPT) == TERMINAL
    assert KEPT[State.COMPLETED] == Keep(3600 * SECOND, 10_000)
    assert KEPT[State.FAILED] == Keep(30 * DAY)
    assert KEPT[State.CANCELLED] == KEPT[State.EXPIRED] == Keep(7 * DAY)


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_what_is_told_counts_and_what_is_not_is_as_built_in(state: State) -> None:
    told = Retention(**{state.value: SHORT})

    assert told.of(state) == SHORT
    assert Retention().of(state) == KEPT[state]
    assert [told.of(other) for other in TERMINAL - {state}] == [KEPT[other] for other in TERMINAL - {state}]


def test_a_later_word_counts_for_what_it_names() -> None:
    before = Retention(completed=SHORT, failed=SHORT)

    assert before.under(Retention(failed=LONG, expired=LONG)) == Retention(completed=SHORT, failed=LONG, expired=LONG)
    assert before.under(Retention(cancelled=LONG)) == Retention(completed=SHORT, failed=SHORT, cancelled=LONG)
    assert before.under(Retention()) == before
