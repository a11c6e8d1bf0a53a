"""How worn a worker process is: what it has done and how large it has grown, against what it may.

One that is worn out claims no more, lets its runs end, however long that takes, and makes room for a fresh one.
"""

from collections.abc import Callable
from random import Random

from tenure.worker.memory import resident

SPREAD = 0.2
"""By how much siblings may fall short of `max_jobs`, so that they are not all replaced in the same moment."""


def staggered(max_jobs: int, rng: Random) -> int:
    """Return how many jobs one of several siblings may begin: up to a fifth less."""
    return max_jobs - int(max_jobs * SPREAD * rng.random())


class RecyclePolicy:
    """Counts the jobs that were begun here, and looks at the memory that is occupied."""

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
        """Whether any job has begun here: no process is replaced before it has done one."""
        return self._begun > 0

    def began(self) -> None:
        """Note that a job has begun."""
        self._begun += 1

    def not_begun(self) -> None:
        """Take one back that was to begin, and did not."""
        self._begun -= 1

    def wear_out(self, why: str) -> None:
        """Note that this process is to be replaced, for a reason that others have found."""
        self._why = self._why or why

    def room(self, free: int) -> int:
        """Return how many of so many free slots may still be filled."""
        if self._why is not None:
            return 0
        return free if self._max_jobs is None else min(free, self._max_jobs - self._begun)

    def out(self) -> str | None:
        """Say why this process had better be replaced, None if it had not. It stays at that."""
        if self._why is None and self._begun:
            # One that is too large from the start does a job all the same, or nobody would ever do any.
            self._why = self._reason()
        return self._why

    def _reason(self) -> str | None:
        if self._max_jobs is not None and self._begun >= self._max_jobs:
            return f"it has begun {self._begun} jobs, and --max-jobs allows no more"
        if self._max_memory is not None and (occupied := self._occupied()) > self._max_memory:
            return f"it occupies {occupied / 1e6:.0f} MB, and --max-memory allows {self._max_memory / 1e6:.0f} MB"
        return None
