"""How many jobs a worker prefetches in addition to those that it runs, and the buffer in which they wait.

Each call to the storage costs both sides something, even if it brings few jobs. If jobs are short, a worker that claims
no more than it runs makes many calls with few jobs each. So it prefetches some jobs: only if the latest runs were all
short, and never for long (`LONGEST_WAIT`), because another worker may be idle. Prefetched jobs wait until a run is
over, the oldest first.
"""

import asyncio
from collections.abc import Callable

from tenure.clock import Clock
from tenure.core.job import JobRecord
from tenure.worker.active_runs import ActiveRun

PREFETCHED_WORK = 0.01
"""Seconds of work that may be prefetched, by the duration of the latest runs."""

SHORT_RUN = 0.05
"""If runs take more seconds than this, nothing is prefetched: there are few calls anyway."""

MOST_HELD = 100
"""The default maximum of all jobs that a worker holds: about as many as one call has time for."""

LONGEST_WAIT = 0.2
"""Seconds after which a prefetched job is handed back. The jobs before it then took longer than the earlier ones."""

EASING = 8
"""A longer run raises the estimate at once. A shorter run lowers it by 1/`EASING` of the difference."""


class PrefetchPolicy:
    """Decides how many jobs one worker may prefetch, by the seconds that its runs took. At most `most`."""

    def __init__(self, concurrency: int, most: int) -> None:
        self.prefetched_work, self.short_run, self.longest_wait, self.most = (
            PREFETCHED_WORK,
            SHORT_RUN,
            LONGEST_WAIT,
            most,
        )
        self._concurrency = concurrency
        # No run is known yet. So it takes some tens of short runs until the first job is prefetched.
        self._longest = LONGEST_WAIT

    def set_concurrency(self, concurrency: int) -> None:
        """Note how many jobs the worker runs at once from now on."""
        self._concurrency = concurrency

    def ran(self, took: float) -> None:
        """Note the duration of a run."""
        longest = self._longest
        self._longest = took if took >= longest else longest - (longest - took) / EASING

    def kept_waiting(self) -> None:
        """Note that a prefetched job waited too long."""
        self._longest = max(self._longest, self.longest_wait)

    @property
    def room(self) -> int:
        """The number of jobs that may be prefetched."""
        if self._longest > self.short_run:
            return 0
        return min(self.most, int(self.prefetched_work * self._concurrency / self._longest))


def may_wait(job: JobRecord) -> bool:
    """Return True if a job may be prefetched. False if one more lost worker would end the job."""
    return job.policy.on_worker_lost != "fail" and job.stalls < job.stall.max_stalls


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
