"""The comparison of a partition's state with what a worker saw of it before."""

from msgspec.structs import replace

from tenure.core.events import StorageReplaced, StorageRewound
from tenure.core.partition import PartitionState, compare

SEEN = PartitionState("partition 2", "0123", 1_000, last_event=50, last_event_at=7_000)


def test_the_same_partition_whose_log_grew_is_unchanged() -> None:
    assert compare(SEEN, SEEN) is None
    assert compare(SEEN, replace(SEEN, last_event=60, last_event_at=8_000), read=60) is None


def test_another_identity_is_another_partition_however_long_its_log_is() -> None:
    for last in (0, 50, 90):
        now = replace(SEEN, identity="4567", last_event=last, continues=last > 0)

        assert compare(SEEN, now) == StorageReplaced(partition="partition 2", old="0123", new="4567")


def test_a_log_that_ends_before_the_last_seen_event_was_rewound() -> None:
    assert compare(SEEN, replace(SEEN, last_event=47)) == StorageRewound(partition="partition 2", by=3)
    assert compare(SEEN, replace(SEEN, last_event=52), read=54) == StorageRewound(partition="partition 2", by=2)


def test_a_log_that_holds_another_event_in_that_place_was_rewound() -> None:
    assert compare(SEEN, replace(SEEN, last_event=80, continues=False)) == StorageRewound(partition="partition 2", by=0)
