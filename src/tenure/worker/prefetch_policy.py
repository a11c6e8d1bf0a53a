"""How many jobs a worker may claim ahead: beyond those that it runs, as much work as is done in a moment.

A call to the storage costs both sides something whatever it brings. Where jobs are short, a worker that claims no more
than it runs makes many calls of few jobs. So it has some at hand that have not begun: only where the latest runs were
all short, and never for long (`PATIENCE`), for another worker may be idle.
"""

from tenure.core.job import JobRecord

MOMENT = 0.01
"""Seconds of work that may be at hand, by what runs take."""

SHORT = 0.05
"""Where runs take more seconds than this, none is claimed ahead: there are few calls anyway."""

MOST = 100
"""How many jobs a worker may have claimed in all, unless it is told otherwise: about as many as a call has time for."""

PATIENCE = 0.2
"""Seconds that a job may be at hand before it is handed back: those in front of it took longer than others before."""

EASING = 8
"""The longest rises with a longer run at once, and falls with a shorter one by one in so many of the difference."""


class PrefetchPolicy:
    """What one worker may claim ahead, by the seconds that its runs took. `most`: so many jobs at most."""

    def __init__(self, concurrency: int, most: int) -> None:
        self.moment, self.short, self.patience, self.most = MOMENT, SHORT, PATIENCE, most
        self._concurrency = concurrency
        # Nothing is known yet; so it takes some tens of short runs until the first job is claimed ahead.
        self._longest = PATIENCE

    def ran(self, took: float) -> None:
        """Take note of a run."""
        longest = self._longest
        self._longest = took if took >= longest else longest - (longest - took) / EASING

    def kept_waiting(self) -> None:
        """Take note that a job was at hand for too long."""
        self._longest = max(self._longest, self.patience)

    @property
    def room(self) -> int:
        """How many jobs may be at hand."""
        if self._longest > self.short:
            return 0
        return min(self.most, int(self.moment * self._concurrency / self._longest))


def may_wait(job: JobRecord) -> bool:
    """Say whether a job may be at hand; not one whose end the next death of its worker would be."""
    return job.policy.on_worker_lost != "fail" and job.stalls < job.stall.max_stalls
