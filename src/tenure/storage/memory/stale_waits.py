"""The model's stale waits: which suspended jobs have had no token for long, and what a sweep asks for them."""

from collections.abc import Iterator

from tenure.core.job import Ref
from tenure.core.reconcile import MissingEnd
from tenure.storage.memory.job_indexes import OrderedJobs
from tenure.storage.waiting import MISSING_LIMIT, RECONCILE_AFTER, RECONCILE_LIMIT


class StaleWaits:
    """The next look at each suspended job that waits for jobs, and how far the look before it came."""

    def __init__(self) -> None:
        self._order = OrderedJobs()
        self._looks: dict[Ref, tuple[int, int]] = {}

    def token_came(self, ref: Ref, now: int) -> None:
        """Look at a job later: it has just begun to wait, or got a token."""
        _, start = self._looks.get(ref, (0, 0))
        self._set(ref, now + RECONCILE_AFTER, start)

    def drop(self, ref: Ref) -> None:
        """Look at a job no more."""
        if ref in self._looks:
            self._order.drop(self._looks.pop(ref)[0], ref)

    def due(self, now: int) -> Iterator[Ref]:
        """Yield jobs whose time has come, and those whose time is too far ahead because the clock was set back."""
        yield from self._order.first(RECONCILE_LIMIT, until=now)
        yield from self._order.beyond(now + RECONCILE_AFTER, RECONCILE_LIMIT)

    def page(self, ref: Ref, missing: list[MissingEnd], now: int) -> tuple[MissingEnd, ...]:
        """Return the next jobs to ask for, beginning again after the last ones, and look at the job again later."""
        _, start = self._looks.get(ref, (0, 0))
        start %= len(missing)
        self._set(ref, now + RECONCILE_AFTER, start + MISSING_LIMIT)
        return (*missing[start:], *missing[:start])[:MISSING_LIMIT]

    def _set(self, ref: Ref, at: int, start: int) -> None:
        self.drop(ref)
        self._looks[ref] = at, start
        self._order.add(at, ref)
