"""The prefetched jobs of a worker. They wait until a run is over, the oldest first, and never for long."""

import asyncio
from collections.abc import Callable

from tenure.clock import Clock
from tenure.worker.active_runs import ActiveRun
from tenure.worker.prefetch_policy import PrefetchPolicy


class PrefetchBuffer:
    """The prefetched jobs of one worker. `too_long` is called when the oldest one has waited for the maximum time."""

    def __init__(self, policy: PrefetchPolicy, clock: Clock, *, too_long: Callable[[], None]) -> None:
        self._policy = policy
        self._clock = clock
        self._too_long = too_long
        self._since: dict[ActiveRun, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since)

    def __contains__(self, run: ActiveRun) -> bool:
        return run in self._since

    def add(self, run: ActiveRun, now: float) -> None:
        """Add a job behind all others."""
        self._since[run] = now

    def remove(self, run: ActiveRun) -> None:
        """Remove a job."""
        del self._since[run]

    def take(self) -> ActiveRun:
        """Remove and return the job that has waited longest."""
        run = next(iter(self._since))
        del self._since[run]
        return run

    def take_all(self) -> list[ActiveRun]:
        """Remove and return all jobs."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._since = list(self._since), {}
        return waiting

    def watch(self) -> None:
        """Start the timer for the oldest job, unless it runs. Idempotent."""
        if self._since and self._timer is None:
            waits = next(iter(self._since.values())) + self._policy.longest_wait - self._clock.uptime()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, waits), self._check)

    def _check(self) -> None:
        self._timer = None
        if not self._since:
            return
        if next(iter(self._since.values())) + self._policy.longest_wait > self._clock.uptime():
            # The oldest job is another one now.
            self.watch()
            return
        self._policy.kept_waiting()
        self._too_long()
