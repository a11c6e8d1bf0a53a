"""Detects that this process runs out of descriptors or threads. Such a worker claims no more jobs."""

import errno
import os
import resource
from collections.abc import Callable
from typing import Any

from tenure.clock import Clock
from tenure.failures import is_a

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
