"""Each fault of earlier systems has its own test here, or a stated reason why it cannot have one so far."""

from tests import faults


def test_every_fault_has_a_test_or_a_reason_and_every_mark_names_a_fault() -> None:
    found = faults.shown(faults.PLACES)

    assert faults.missing(found) == []
    assert set(found) <= set(faults.FAULTS)


def test_the_table_has_them_all() -> None:
    counts = {"F": 13, "W-T": 33, "W-B": 14, "W-N": 19, "W-P": 19}

    assert list(faults.FAULTS) == [
        f"{kind}{number}" for kind, count in counts.items() for number in range(1, count + 1)
    ]
