"""The identity of a storage's partition, and the comparison of its current state with what a worker saw before."""

from msgspec import Struct

from tenure.core.events import StorageLogDeleted, StorageReplaced, StorageRewound

IDENTITY_LOST = "the partition had lost its identity, though its jobs are there; the identity is written again"
"""The message of a storage that had to write an identity again."""

LOG_LOST = (
    "the write-ahead log of the file (-wal) was deleted or replaced while it was in use; work goes on with a new log, "
    "and the commits in the lost one were copied into the file if it could still be read; find what deletes it, and "
    "run `tenure doctor`"
)
"""The message of a SQLite storage whose write-ahead log was deleted or replaced."""


class PartitionState(Struct, frozen=True):
    """The state of one partition of the storage at a beat.

    `partition`: its name, "*" if there is only one; `place`: its position among all. `identity`: a random text, written
    once when the partition was created, at the instant `created`; empty if it is missing and the worker saw nothing
    yet, because another worker may have seen it and write it again. `last_event`: the number of the last event in its
    log, recorded at `last_event_at` (0: that event has been trimmed). `continues`: the log still holds the event that
    the beat named as the last one, or has trimmed it. `trouble`: a repair that the storage had to make, as a message.
    """

    partition: str
    identity: str
    created: int
    last_event: int = 0
    last_event_at: int = 0
    continues: bool = True
    trouble: str = ""
    place: int = 0


PartitionEvent = StorageReplaced | StorageRewound | StorageLogDeleted
"""The changes of a partition that a worker may find."""


def compare(seen: PartitionState, now: PartitionState, read: int = 0) -> StorageReplaced | StorageRewound | None:
    """Return what happened to a partition since a worker saw it. `read`: the last event that the worker has read."""
    if seen.identity and seen.identity != now.identity:
        return StorageReplaced(partition=now.partition, old=seen.identity, new=now.identity)
    last_seen = max(seen.last_event, read)
    if now.last_event < last_seen or not now.continues:
        return StorageRewound(partition=now.partition, by=max(0, last_seen - now.last_event))
    return None
