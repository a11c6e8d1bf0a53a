"""Whether too many jobs wait for too long: a step of what is known, fed with what is seen, told the time.

    below ──more wait than may──► above, since then ──for longer than the patience──► overdue
      ▲                             │                                                    │
      └──────── a single look that finds fewer, or the queue gone ───────────────────────┘

A short spike is over before the patience is, so it trips nothing; a recovery forgets all that was before it.
"""

from collections.abc import Mapping

from msgspec import Struct


class Thresholds(Struct, frozen=True):
    """How many jobs may wait: `most` in any queue that is not `named`, None for any number.

    `patience`: how many seconds a queue may stay above its threshold.
    """

    most: int | None = None
    named: Mapping[str, int] = {}
    patience: float = 300.0

    def of(self, queue: str) -> int | None:
        """Return how many jobs may wait in this queue; None is any number."""
        return self.named.get(queue, self.most)


class Backlog(Struct, frozen=True):
    """Since when, in seconds of some uptime, which queues have been above their thresholds at every look."""

    since: Mapping[str, float] = {}

    def lasted(self, queue: str, *, now: float) -> float | None:
        """Return for how many seconds a queue has been above its threshold, None if it is not."""
        began = self.since.get(queue)
        return None if began is None else max(0.0, now - began)

    def overdue(self, queue: str, thresholds: Thresholds, *, now: float) -> bool:
        """Say whether a queue has been above its threshold for longer than its time."""
        lasted = self.lasted(queue, now=now)
        return lasted is not None and lasted > thresholds.patience


def seen(before: Backlog, thresholds: Thresholds, waiting: Mapping[str, int], *, now: float) -> Backlog:
    """Return what is known after a look at all queues; one that is not among them has no jobs."""
    above = {
        queue: before.since.get(queue, now)
        for queue, jobs in waiting.items()
        if (most := thresholds.of(queue)) is not None and jobs > most
    }
    return Backlog(above)
