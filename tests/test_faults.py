"""Each fault of the systems before ours has a test of its own here, or a stated reason why it cannot be so far."""

from tests import faults

FOUND = faults.shown(faults.PLACES)


def test_every_fault_has_a_test_or_a_reason_to_have_none() -> None:
    assert faults.missing(FOUND) == []


def test_every_mark_names_a_fault_that_there_is() -> None:
    assert set(FOUND) <= set(faults.FAULTS)


def test_the_table_has_them_all() -> None:
    counts = {"F": 13, "W-T": 33, "W-B": 14, "W-N": 19, "W-P": 19}

    assert list(faults.FAULTS) == [
        f"{kind}{number}" for kind, count in counts.items() for number in range(1, count + 1)
    ]
