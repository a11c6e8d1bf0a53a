"""Retention: the built-in rule of each final state, and which rule applies."""

import pytest

from tenure.clock import SECOND
from tenure.core.lifecycle import TERMINAL, State
from tenure.core.retention import KEPT, KeepRule, RetentionRules

DAY = 86_400 * SECOND
SHORT, LONG = KeepRule(SECOND), KeepRule(DAY, 5)


def test_every_final_state_has_a_built_in_rule() -> None:
    assert set(KEPT) == TERMINAL
    assert KEPT[State.COMPLETED] == KeepRule(3600 * SECOND, 10_000)
    assert KEPT[State.FAILED] == KeepRule(30 * DAY)
    assert KEPT[State.CANCELLED] == KEPT[State.EXPIRED] == KeepRule(7 * DAY)


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_a_set_rule_counts_and_an_unset_rule_has_the_default(state: State) -> None:
    rules = RetentionRules(**{state.value: SHORT})

    assert rules.of(state) == SHORT
    assert RetentionRules().of(state) == KEPT[state]
    assert [rules.of(other) for other in TERMINAL - {state}] == [KEPT[other] for other in TERMINAL - {state}]


def test_a_later_retention_changes_only_the_rules_that_it_sets() -> None:
    before = RetentionRules(completed=SHORT, failed=SHORT)

    assert before.updated_with(RetentionRules(failed=LONG, expired=LONG)) == RetentionRules(
        completed=SHORT, failed=LONG, expired=LONG
    )
    assert before.updated_with(RetentionRules(cancelled=LONG)) == RetentionRules(
        completed=SHORT, failed=SHORT, cancelled=LONG
    )
    assert before.updated_with(RetentionRules()) == before
