"""Finds the queues that have work for a claim, in SQL: one statement for all queues, whatever their number.

All answers come from the indexes of the jobs, so no separate record can be wrong.
"""

from collections.abc import Iterator, Mapping, Sequence

from tenure.storage.protocol import PLACE_LIMIT, Settings
from tenure.storage.sqlite import rates, rows
from tenure.storage.sqlite.settings import queue_settings
from tenure.storage.sqlite.statements import query
from tenure.storage.sqlite.transaction import Transaction
from tenure.storage.sqlite.unknown_tasks import first_seqs, known_places

_COMING = query("exchange", "coming")
_IN_LINE = query("exchange", "in_line")
_GLANCE = query("exchange", "glance")


class ReadyQueues:
    """The state of a claim's queues when the claim begins; `look_again` updates a queue that may have changed."""

    def __init__(self, step: Transaction, queues: Sequence[str], tasks: Mapping[str, int] | None) -> None:
        self._step = step
        self._queues = queues
        self._listed = rows.names(queues)
        self._told: dict[str, Settings] = queue_settings(step, self._listed)
        self._coming: dict[str, tuple[int | None, int | None]] = {}
        self._known: dict[str, tuple[list[str], bool]] = {}
        coming = step.all(_COMING, (self._listed,))
        parked = sum(1 for *_, unknown in coming if unknown)
        for queue, falls_due, opening, unknown in coming:
            self._coming[queue] = falls_due, opening
            if unknown:
                names, more = known_places(step, queue, tasks, max(1, PLACE_LIMIT // parked))
                if names:
                    self._known[queue] = names, more

    def paused(self, queue: str) -> bool:
        """Return True if nothing may be claimed from a queue."""
        told = self._told.get(queue)
        return told is not None and bool(told.paused)

    def is_due(self, queue: str) -> bool:
        """Return True if a delayed job is due."""
        due, _ = self._coming.get(queue, (None, None))
        return due is not None and due <= self._step.now

    def opens(self, queue: str) -> bool:
        """Return True if a rate lets one of its parked jobs start."""
        _, opening = self._coming.get(queue, (None, None))
        return opening is not None and opening <= self._step.now

    def known(self, queue: str) -> Sequence[str]:
        """Return the names of unknown tasks that jobs are parked under and that the caller knows."""
        names, _ = self._known.get(queue, ((), False))
        return names

    def first_in_line(self, number: int) -> int:
        """Return the number of the first queue, from `number` on, that has a ready job; else the number of queues."""
        if number >= len(self._queues):
            return number
        row = self._step.one(_IN_LINE, (self._listed, number))
        return len(self._queues) if row is None else int(row[0])

    def look_again(self, queue: str) -> bool:
        """Read a queue's state again; return True if it has a ready job for this caller."""
        seen = self._step.one(_GLANCE, {"queue": queue})
        if seen is None:
            raise AssertionError("a glance tells even of what is not there")
        lined, falls_due, opening = seen
        self._coming[queue] = falls_due, opening
        if queue in self._known:
            names, more = self._known[queue]
            if not more and not first_seqs(self._step, queue, names, 1):
                del self._known[queue]
        return bool(lined) or queue in self._known

    def left(self, number: int) -> bool:
        """Return True if a queue has a claimable job; ready jobs count only in the queues from `number` on."""
        if any(not self.shut(queue) for queue in self._known):
            return True
        while (number := self.first_in_line(number)) < len(self._queues):
            if not self.shut(self._queues[number]):
                return True
            number += 1
        return False

    def next_due(self) -> int | None:
        """Return when time alone makes another job of the queues claimable, None if it never does."""
        return min(self._dues(), default=None)

    def shut(self, queue: str) -> bool:
        """Return True if nothing may be claimed from a queue now, even if it has ready jobs."""
        told = self._told.get(queue)
        return told is not None and (bool(told.paused) or rates.opens_at(self._step, queue) > self._step.now)

    def _dues(self) -> Iterator[int]:
        step = self._step
        for queue, (falls_due, opening) in self._coming.items():
            if self.paused(queue):
                continue
            if falls_due is not None:
                yield falls_due
            if opening is not None:
                # A job's own rate releases it only once the queue's rate allows a start.
                yield max(opening, rates.opens_at(step, queue))
        for queue, told in self._told.items():
            if told.rate is not None and not told.paused:
                opens_at = rates.opens_at(step, queue)
                if opens_at > step.now and self.look_again(queue):
                    yield opens_at
