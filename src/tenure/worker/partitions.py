"""Compares each beat's answer with the worker's earlier view of the storage, and raises an alarm on data loss."""

import logging
from collections.abc import Callable

from tenure.clock import Clock
from tenure.core.events import StorageLogDeleted, StorageReplaced, StorageRewound
from tenure.core.partition import LOG_LOST, PartitionEvent, PartitionState, compare
from tenure.errors import SchemaMismatchError
from tenure.storage.cursors import numbers_of

ALARM_KEPT = 3600.0
"""Seconds for which health and doctor show an alarm."""


class PartitionWatch:
    """One worker's view of each partition of the storage."""

    def __init__(
        self,
        *,
        worker: str,
        clock: Clock,
        logger: logging.Logger,
        read: Callable[[], str],
        announce: Callable[[PartitionEvent], None],
        forget_read: Callable[[], None],
        replaced: Callable[[int], None],
        rewound: Callable[[int, int, float], None],
    ) -> None:
        """Create a watch.

        `read` returns the cursor up to which the worker has read the event log. `replaced` gets the index of a
        partition; `rewound` also gets the number of its last event, and the seconds since the last look without a loss.
        """
        self._worker = worker
        self._clock = clock
        self._logger = logger
        self._read = read
        self._announce = announce
        self._forget_read = forget_read
        self._replaced = replaced
        self._rewound = rewound
        self._seen: dict[str, PartitionState] = {}
        self._seen_at: dict[str, float] = {}
        """The uptime before the last look at each partition."""
        self._gone: set[str] = set()
        """The partitions whose loss was announced before a beat found another one in their place."""
        self._alarms: dict[str, tuple[str, float]] = {}
        """The last alarm of each partition, and the uptime at which it was raised."""

    @property
    def alarm(self) -> str:
        """The storage's problems, for health and doctor. One line for each partition with an alarm within the hour."""
        now = self._clock.uptime()
        return "\n".join(alarm for alarm, raised_at in tuple(self._alarms.values()) if now - raised_at < ALARM_KEPT)

    @property
    def seen(self) -> tuple[PartitionState, ...]:
        """The partition states that the last beats found."""
        return tuple(self._seen.values())

    @property
    def read(self) -> tuple[int, ...]:
        """How far the worker has read each partition's event log. Read this before the beat is sent."""
        return numbers_of(self._read())

    def compare(self, found: tuple[PartitionState, ...], read: tuple[int, ...], asked_at: float) -> None:
        """Compare the partition states of a beat, which was sent at uptime `asked_at`, with those seen before."""
        for now in found:
            seen, seen_at = self._seen.get(now.partition), self._seen_at.get(now.partition, asked_at)
            self._seen[now.partition], self._seen_at[now.partition] = now, asked_at
            gone = now.partition in self._gone
            self._gone.discard(now.partition)
            if now.trouble == LOG_LOST:
                self._raise_alarm(
                    now.partition, logging.ERROR, f"{_shown(now.partition)} of the storage: {now.trouble}"
                )
                self._announce(StorageLogDeleted(partition=now.partition))
            elif now.trouble:
                self._logger.warning("worker %s: %s: %s", self._worker, _shown(now.partition), now.trouble)
            if seen is None:
                continue
            read_to = read[now.place] if now.place < len(read) else 0
            event = compare(seen, now, read_to)
            match event:
                case StorageReplaced() if gone:
                    self._forget_read()
                    self._replaced(now.place)
                    continue
                case StorageReplaced():
                    self._raise_alarm(
                        now.partition,
                        logging.CRITICAL,
                        f"{_shown(now.partition)} of the storage was replaced: identity {event.old} is now "
                        f"{event.new}, and everything that it held is lost",
                    )
                    self._replaced(now.place)
                case StorageRewound():
                    self._raise_alarm(
                        now.partition,
                        logging.WARNING,
                        f"{_shown(now.partition)} of the storage went back in time: event "
                        f"{max(seen.last_event, read_to)} was seen and is not in its log, which ends at "
                        f"{now.last_event}; acknowledged writes are lost",
                    )
                    self._rewound(now.place, now.last_event, self._clock.uptime() - seen_at)
                case None:
                    continue
            # The cursor belongs to the log as it was before.
            self._forget_read()
            self._announce(event)

    def mismatched(self, error: SchemaMismatchError) -> None:
        """Raise an alarm, because the storage that the worker has seen is gone, and a beat found no other like it."""
        for partition, seen in self._seen.items():
            if seen.identity and partition not in self._gone:
                self._gone.add(partition)
                self._raise_alarm(
                    partition,
                    logging.CRITICAL,
                    f"{_shown(partition)} of the storage was replaced: identity {seen.identity} is gone, and "
                    f"everything that it held is lost ({error})",
                )
                self._announce(StorageReplaced(partition=partition, old=seen.identity, new=""))

    def _raise_alarm(self, partition: str, level: int, alarm: str) -> None:
        self._logger.log(level, "worker %s: %s", self._worker, alarm)
        self._alarms[partition] = alarm, self._clock.uptime()


def _shown(partition: str) -> str:
    """Return a partition's name in a message: "partition 3", or "partition *" for the only one."""
    return partition if partition.startswith("partition ") else f"partition {partition}"
