"""A child process that inherits everything of its parent."""

import os
import signal
from collections.abc import Callable


def forked(work: Callable[[], object]) -> int:
    """Do some work in a child, and return its exit status: 0 is success."""
    pid = os.fork()
    if not pid:
        try:
            signal.alarm(20)
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
