"""Decides when a worker process is recycled: by the jobs that it began and the memory that it occupies.

A process that must be recycled claims no more, lets its runs end without a time limit, and is then replaced.
"""

from collections.abc import Callable
from random import Random

from tenure.worker.memory import resident

SPREAD = 0.2
"""The largest part by which sibling processes reduce `max_jobs`, so that they are not all replaced at the same time."""


def staggered(max_jobs: int, rng: Random) -> int:
    """Return how many jobs one of several sibling processes may begin: up to a fifth less."""
    return max_jobs - int(max_jobs * SPREAD * rng.random())


class RecyclePolicy:
    """Counts the jobs that began in this process, and measures its memory."""

    def __init__(
        self, *, max_jobs: int | None = None, max_memory: int | None = None, occupied: Callable[[], int] = resident
    ) -> None:
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        self._occupied = occupied
        self._begun = 0
        self._why: str | None = None

    @property
    def used(self) -> bool:
        """True if a job has begun here. No process is replaced before it has done one."""
        return self._begun > 0

    def began(self) -> None:
        """Note that a job has begun."""
        self._begun += 1

    def not_begun(self) -> None:
        """Subtract a job that was counted but did not begin."""
        self._begun -= 1

    def require(self, why: str) -> None:
        """Note that this process must be recycled, for a reason from elsewhere."""
        self._why = self._why or why

    def room(self, free: int) -> int:
        """Return how many of `free` jobs may still be claimed."""
        if self._why is not None:
            return 0
        return free if self._max_jobs is None else min(free, self._max_jobs - self._begun)

    def reason(self) -> str | None:
        """Return why this process must be recycled, or None. The first reason stays."""
        if self._why is None and self._begun:
            # A process that is too large from the start must still do one job. Otherwise no process would ever do any.
            self._why = self._find_reason()
        return self._why

    def _find_reason(self) -> str | None:
        if self._max_jobs is not None and self._begun >= self._max_jobs:
            return f"it has begun {self._begun} jobs, and --max-jobs allows no more"
        if self._max_memory is not None and (occupied := self._occupied()) > self._max_memory:
            return f"it occupies {occupied / 1e6:.0f} MB, and --max-memory allows {self._max_memory / 1e6:.0f} MB"
        return None
