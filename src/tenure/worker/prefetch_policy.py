"""How many jobs a worker may prefetch in addition to those that it runs: the work of a moment.

Each call to the storage costs both sides something, even if it brings few jobs. If jobs are short, a worker that claims
no more than it runs makes many calls with few jobs each. So it prefetches some jobs: only if the latest runs were all
short, and never for long (`PATIENCE`), because another worker may be idle.
"""

from tenure.core.job import JobRecord

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
