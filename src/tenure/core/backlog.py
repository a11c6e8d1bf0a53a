"""Detects queues in which too many jobs wait for too long, from a sequence of observations.

    below ──more wait than may──► above, since then ──for longer than the patience──► overdue
      ▲                             │                                                    │
      └──────── a single look that finds fewer, or the queue gone ───────────────────────┘

A spike that is shorter than the patience has no effect. After a recovery the count starts again.
"""

from collections.abc import Mapping

from msgspec import Struct


class Thresholds(Struct, frozen=True):
    """How many jobs may wait: `most` in any queue that is not in `named`; None means any number.

    `patience`: how many seconds a queue may stay above its threshold.
    """

    most: int | None = None
    named: Mapping[str, int] = {}
    patience: float = 300.0

    def of(self, queue: str) -> int | None:
        """Return how many jobs may wait in this queue; None means any number."""
        return self.named.get(queue, self.most)


class Backlog(Struct, frozen=True):
    """For each queue above its threshold: since when, in seconds of an uptime, every look found it there."""

    since: Mapping[str, float] = {}

    def seconds_above(self, queue: str, *, now: float) -> float | None:
        """Return for how many seconds a queue has been above its threshold, None if it is not."""
        began = self.since.get(queue)
        return None if began is None else max(0.0, now - began)

    def overdue(self, queue: str, thresholds: Thresholds, *, now: float) -> bool:
        """Return True if a queue has been above its threshold for longer than the patience."""
        lasted = self.seconds_above(queue, now=now)
        return lasted is not None and lasted > thresholds.patience


def observe(before: Backlog, thresholds: Thresholds, waiting: Mapping[str, int], *, now: float) -> Backlog:
    """Return the state after a look at all queues; a queue that is missing has no jobs."""
    above = {
        queue: before.since.get(queue, now)
        for queue, jobs in waiting.items()
        if (most := thresholds.of(queue)) is not None and jobs > most
    }
    return Backlog(above)
