"""Finds the queues that have work for a claim, in SQL: one statement for any number of queues.

All answers come from the indexes of the jobs, so no separate record can be wrong.
"""

from collections.abc import Iterator, Mapping, Sequence

from tenure.storage.protocol import PLACE_LIMIT, Settings
from tenure.storage.sql import rates
from tenure.storage.sql.lists import json_names
from tenure.storage.sql.settings import queue_settings
from tenure.storage.sql.transaction import Transaction
from tenure.storage.sql.unknown_tasks import first_seqs, known_places


class ReadyQueues:
    """The state of a claim's queues when the claim begins; `refresh` updates a queue that may have changed."""

    def __init__(self, tx: Transaction, queues: Sequence[str], tasks: Mapping[str, int] | None) -> None:
        self._tx = tx
        self._queues = queues
        self._listed = json_names(queues)
        self._settings: dict[str, Settings] = queue_settings(tx, queues, self._listed)
        self._due: dict[str, tuple[int | None, int | None]] = {}
        self._known: dict[str, tuple[list[str], bool]] = {}
        coming = tx.due_work(queues, self._listed)
        parked = sum(1 for _, (*_, unknown) in coming if unknown)
        for queue, (falls_due, opening, unknown) in coming:
            self._due[queue] = falls_due, opening
            if unknown:
                names, more = known_places(tx, queue, tasks, max(1, PLACE_LIMIT // parked))
                if names:
                    self._known[queue] = names, more

    def is_paused(self, queue: str) -> bool:
        """Return True if nothing may be claimed from a queue."""
        settings = self._settings.get(queue)
        return settings is not None and settings.closed

    def is_due(self, queue: str) -> bool:
        """Return True if a delayed job is due."""
        due, _ = self._due.get(queue, (None, None))
        return due is not None and due <= self._tx.now

    def has_opened(self, queue: str) -> bool:
        """Return True if a rate lets one of its parked jobs start."""
        _, opening = self._due.get(queue, (None, None))
        return opening is not None and opening <= self._tx.now

    def known(self, queue: str) -> Sequence[str]:
        """Return the names of unknown tasks that jobs are parked under and that the caller knows."""
        names, _ = self._known.get(queue, ((), False))
        return names

    def next_ready(self, number: int) -> int:
        """Return the number of the first queue, from `number` on, that has a ready job; else the number of queues."""
        if number >= len(self._queues):
            return number
        row = self._tx.one("exchange.next_ready", {"queues": self._listed, "number": number})
        return len(self._queues) if row is None else int(row[0])

    def refresh(self, queue: str) -> bool:
        """Read a queue's state again; return True if it has a ready job for this caller."""
        seen = self._tx.one("exchange.queue_state", {"queue": queue})
        if seen is None:
            raise AssertionError("exchange.glance returns a row for every queue")
        lined, falls_due, opening = seen
        self._due[queue] = falls_due, opening
        if queue in self._known:
            names, more = self._known[queue]
            if not more and not first_seqs(self._tx, queue, names, 1):
                del self._known[queue]
        return bool(lined) or queue in self._known

    def has_claimable(self, number: int) -> bool:
        """Return True if a queue has a claimable job; ready jobs count only in the queues from `number` on."""
        if any(not self.is_closed(queue) for queue in self._known):
            return True
        while (number := self.next_ready(number)) < len(self._queues):
            if not self.is_closed(self._queues[number]):
                return True
            number += 1
        return False

    def next_due(self) -> int | None:
        """Return when time alone makes another job of the queues claimable, None if it never does."""
        return min(self._next_times(), default=None)

    def is_closed(self, queue: str) -> bool:
        """Return True if nothing may be claimed from a queue now, even if it has ready jobs."""
        return self.is_paused(queue) or rates.opens_at(self._tx, queue) > self._tx.now

    def _next_times(self) -> Iterator[int]:
        tx = self._tx
        for queue, (falls_due, opening) in self._due.items():
            if self.is_paused(queue):
                continue
            if falls_due is not None:
                yield falls_due
            if opening is not None:
                # A job's own rate releases it only once the queue's rate allows a start.
                yield max(opening, rates.opens_at(tx, queue))
        paced = {queue for queue, settings in self._settings.items() if settings.rate is not None}
        for queue in paced | {queue for queue in self._queues if tx.may_be_limited(queue)}:
            if not self.is_paused(queue):
                opens_at = rates.opens_at(tx, queue)
                if opens_at > tx.now and self.refresh(queue):
                    yield opens_at
