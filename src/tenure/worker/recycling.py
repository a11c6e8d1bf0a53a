"""Decides when a worker process is recycled: by its jobs, memory, descriptors, threads and handlers.

A process that must be recycled claims no more, lets its runs end without a time limit, and is then replaced.
"""

import errno
import logging
import os
import resource
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tenure.clock import Clock, SystemClock
from tenure.core.events import Event, JobStopIgnored
from tenure.core.job import JobRecord, Owner, RecordedError
from tenure.core.outcome import StopCode
from tenure.failures import is_a

_STATM = Path("/proc/self/statm")


def resident() -> int:
    """Return the bytes that this process occupies now; 0 if the system does not report them."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


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


LEAST_FREE = 32
"""With fewer free descriptors than this, a worker claims no more. It needs some itself to settle and to end."""

CHECK_INTERVAL = 1.0
"""Seconds between two checks of the descriptors. A check takes some microseconds for each open one."""

NO_THREAD = "can't start new thread"
"""The message of the RuntimeError that the interpreter raises if the system refuses a thread."""

_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_OPEN = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"


def free_descriptors() -> int | None:
    """Return how many more descriptors this process may open. None if it is unlimited or unknown."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        # The list includes the descriptor that reads it.
        return limit - len(os.listdir(_OPEN)) + 1
    except OSError as error:
        return 0 if error.errno in (errno.EMFILE, errno.ENFILE) else None


def is_shortage(error: BaseException) -> bool:
    """Return True if an exception says that descriptors, threads or memory have run out. Never raises."""
    exception: Any = error
    try:
        # Any attribute of a subclass may raise.
        if is_a(error, OSError):
            return exception.errno in _SHORT
        if is_a(error, BaseExceptionGroup):
            return any(is_shortage(part) for part in exception.exceptions)
        return type(error) is RuntimeError and error.args[:1] == (NO_THREAD,)
    except BaseException:
        return False


class Descriptors:
    """Checks at intervals how many descriptors are free. Calls `found` with the reason when there are too few."""

    def __init__(
        self, clock: Clock, found: Callable[[str], None], *, free: Callable[[], int | None] = free_descriptors
    ) -> None:
        self._clock = clock
        self._found = found
        self._free = free
        self._next_check = 0.0
        self.why: str | None = None
        """Why nothing more may be claimed, by the latest check. None if claims are allowed."""

    def short(self) -> str | None:
        """Check if it is time, and return why nothing more may be claimed. None if claims are allowed."""
        now = self._clock.uptime()
        if now >= self._next_check:
            self._next_check = now + CHECK_INTERVAL
            self.check()
        return self.why

    def check(self) -> None:
        """Check at once."""
        free = self._free()
        # Require twice as many to claim again, so that the result does not change with each descriptor.
        if free is None or free >= LEAST_FREE * (1 if self.why is None else 2):
            self.why = None
        elif self.why is None:
            self.why = f"it has {max(0, free)} free descriptors, and claims nothing with fewer than {LEAST_FREE}"
            self._found(self.why)


class Recycler:
    """Begins the recycling of a worker process. Without a supervisor, it logs each reason once."""

    def __init__(
        self,
        owner: Owner,
        logger: logging.Logger,
        *,
        supervised: bool,
        announce: Callable[[Event], None],
        is_ending: Callable[[], bool],
        claim_no_more: Callable[[str], None],
        drain: Callable[[str], None],
    ) -> None:
        """`claim_no_more` gives the runs all the time that they need, and `drain` only that of a drain."""
        # The system's clock: a test's clock moves far between two looks, and each look reads a directory.
        self.descriptors = Descriptors(SystemClock(), self.recycle_for)
        self._owner = owner
        self._logger = logger
        self._supervised = supervised
        self._announce = announce
        self._is_ending = is_ending
        self._claim_no_more = claim_no_more
        self._drain = drain
        self._reported: set[str] = set()
        """The reasons that were reported already."""

    def recycle_for(self, why: str, *, drain: bool = False) -> None:
        """Recycle this process for the given reason. `drain`: some of its runs would never end by themselves."""
        if self._is_ending() or why in self._reported:
            return
        self._reported.add(why)
        if not self._supervised:
            self._logger.critical(
                "worker %s: %s; restart it soon, or use `tenure worker`, which restarts it", self._owner.name, why
            )
            return
        self._logger.error("worker %s must be recycled: %s", self._owner.name, why)
        if drain:
            self._drain(why)
        else:
            self._claim_no_more(why)

    def too_many_abandoned(self, count: int) -> None:
        """Recycle this process: too many abandoned runs go on in it."""
        self.recycle_for(f"{count} of its handlers ignore their cancellation", drain=True)

    def unstoppable(self, job: JobRecord, reason: StopCode) -> None:
        """Recycle this process: only its end can end the handler of this exclusive run, which ignored its stop."""
        self._announce(
            JobStopIgnored(
                queue=job.queue, id=job.id, task=job.task, run=job.starts, owner=self._owner.id, reason=reason
            )
        )
        self.recycle_for(
            f"job {job.id} ({job.task}) keeps its exclusive right, because its handler ignores the request to stop",
            drain=True,
        )

    def out_of_threads(self) -> None:
        """Recycle this process: it has no threads for plain handlers, so it can only hand their jobs back."""
        self.recycle_for("the machine has no thread for its plain handlers")

    def shortage(self, error: RecordedError) -> None:
        """Handle a run's exception which says that descriptors, threads or memory have run out."""
        if NO_THREAD in error.message:
            self.recycle_for("its handlers cannot start threads any more")
        else:
            self.descriptors.check()
