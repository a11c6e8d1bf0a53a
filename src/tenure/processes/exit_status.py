"""Describes how a process ended, and detects whether the kernel's OOM killer killed it.

The kernel does not report which process it killed, but it counts the kills of each control group. A process that ended
by SIGKILL while this count rose was killed for memory; the sender of any other SIGKILL is unknown.
"""

import contextlib
import signal
from pathlib import Path

from tenure.processes.process import ProcessExit

GRACE = 2.0
"""Seconds after a counted kill within which we surely see the exit."""

PAUSE = 0.2
"""The least number of seconds between two reads of the count; callers may call `look` more often."""

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")

_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
"""Signals that a process usually receives because of its own fault."""


class OomKills:
    """Counts the OOM kills in our own control group, which our children share; one kill explains one exit_info."""

    def __init__(self, groups: Path = _GROUPS, own: Path = _OWN) -> None:
        """Find the file with the count, in cgroup v2 or v1.

        `groups`: the folder where control groups are mounted; `own`: the file that names our own group.
        """
        self._counter = _counter(groups, own)
        self._seen = self._noticed = self._read() or 0
        self._noticed_at = 0.0
        self._looked_at = float("-inf")

    @property
    def readable(self) -> bool:
        """Return True if such a count can be read."""
        return self._read() is not None

    def explains(self, exit_info: ProcessExit, now: float) -> bool:
        """Return True if a child that has just died was killed for memory. Each kill explains only one exit_info."""
        self._note(now)
        if self._noticed <= self._seen or exit_info.signal != signal.SIGKILL:
            return False
        self._seen += 1
        return True

    def look(self, now: float) -> None:
        """Read the count, at this uptime. A kill without a child's death within `GRACE` hit a descendant of a child.

        Call it regularly: a kill is dated to the call that first sees it.
        """
        if now - self._looked_at < PAUSE:
            return
        self._looked_at = now
        self._note(now)

    def _note(self, now: float) -> None:
        count = self._read() or 0
        if self._noticed > self._seen and now - self._noticed_at > GRACE:
            self._seen = self._noticed
        if count > self._noticed:
            self._noticed, self._noticed_at = count, now

    def _read(self) -> int | None:
        if self._counter is None:
            return None
        with contextlib.suppress(OSError, ValueError):
            for line in self._counter.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
        return None


def describe(exit_info: ProcessExit, *, oom_killed: bool, kill_reason: str = "") -> str:
    """Describe how a process ended, as a clause about the process. `kill_reason`: why we killed it, if so."""
    if kill_reason:
        return f"was {kill_reason}"
    match exit_info.signal:
        case None if exit_info.status is None:
            return "ended, and its exit status is unknown"
        case None:
            return f"exited with status {exit_info.status}"
        case signal.SIGKILL if oom_killed:
            return "was killed by the OOM killer (signal 9, SIGKILL): the host or its control group was out of memory"
        case signal.SIGKILL:
            return "was killed by signal 9 (SIGKILL), cause unknown"
        case number if number in _FAULTS:
            return f"crashed: {exit_info}"
        case _:
            return f"was ended by {exit_info}"


def _counter(groups: Path, own: Path) -> Path | None:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            return _first(groups / "memory", path, "memory.oom_control")
    for line in lines:
        if line.startswith("0::"):
            for root in (groups, groups / "unified"):
                if (found := _first(root, line[3:], "memory.events")) is not None:
                    return found
    return None


def _first(root: Path, path: str, name: str) -> Path | None:
    # In a container the path may be that of the host, although the mounted folder is our own group.
    for folder in (root / path.lstrip("/"), root):
        if (folder / name).is_file():
            return folder / name
    return None
