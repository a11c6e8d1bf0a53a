"""Measures how late a worker's event loop is, and extends the limits of runs while the loop is blocked.

The loop cannot see whether a run kept its limits while the loop is blocked. A handler that ended in time would lose its
lease, and a handler that waits on the loop can give no sign. So the run that blocks the loop keeps its limits. The
other runs get more time with each renewal, until the loop turns again or is given up.
"""

from tenure.core.job import Ref
from tenure.worker.scoreboard import Scoreboard, Way

TICK = 0.5
"""Seconds between two notes. If a note is late, the loop counts as blocked since the note before."""


RECENT = 15.0
"""Minimum seconds for which the longest delay is remembered; at most twice as long."""


class RecentMaximum:
    """The largest of the values that were noted recently."""

    def __init__(self) -> None:
        self._began = self._before = self._now = 0.0

    def note(self, at: float, value: float) -> float:
        """Note a value at an uptime, and return the largest recent value."""
        if at - self._began > RECENT:
            self._before = self._now if at - self._began <= 2 * RECENT else 0.0
            self._began, self._now = at, 0.0
        self._now = max(self._now, value)
        return max(self._before, self._now)


class LoopMonitor:
    """The turns of one loop. Also writes them to the scoreboard if the worker has a supervisor."""

    def __init__(self, scoreboard: Scoreboard | None) -> None:
        self._scoreboard = scoreboard
        self._worst = 0.0
        self._peak = RecentMaximum()
        self.turned_at = 0.0
        """The uptime of the last turn; 0 before the first turn, and when no more turns are expected."""
        self.memory = 0
        """The bytes that the process occupied at the last measurement."""
        self._blocker: tuple[tuple[Ref, int], float] | None = None
        """The run that was last seen to block the loop, and the loop's last turn before that."""

    def turned(self, at: float, lag: float) -> None:
        """Note a turn, and by how many seconds it was late."""
        self.turned_at = at
        self._worst = max(self._worst, lag)
        self._peak.note(at, lag)
        if self._scoreboard is not None:
            self._scoreboard.turned(at, lag)

    def reported(self, at: float) -> None:
        """Note that the storage answered the beat that was sent at this uptime. Called from the keeper's thread."""
        if self._scoreboard is not None:
            self._scoreboard.reported(at)

    def set_blocker(self, key: tuple[Ref, int], row: int | None) -> None:
        """Note which run blocks the loop, and its row in the scoreboard. Called from another thread."""
        of = self.turned_at
        if self._scoreboard is not None and row is not None:
            self._scoreboard.set_blocker(row, key[1], of)
        self._blocker = key, of

    @property
    def blocker(self) -> tuple[Ref, int] | None:
        """The run that blocks the loop, if the loop is blocked and the run is known."""
        seen = self._blocker
        return seen[0] if seen is not None and seen[1] == self.turned_at else None

    def ended(self) -> None:
        """Note that no more turns are expected, and that leases must not be renewed on its behalf."""
        self.turned(0.0, 0.0)

    def blocked(self, now: float) -> float:
        """Return for how many seconds the loop has been late; 0 if it is not late."""
        return max(0.0, now - self.turned_at - TICK) if self.turned_at else 0.0

    def recent(self, now: float) -> float:
        """Return the longest recent delay of the loop, in seconds."""
        return self._peak.note(now, self.blocked(now))

    def lag(self, now: float) -> float:
        """Return the longest delay of the loop since the last call of this method, in seconds."""
        worst, self._worst = self._worst, 0.0
        return max(worst, self.blocked(now))


LATE = 0.25
"""Seconds that a loop may be late before any limit is extended."""


def extended_limits(
    now: float,
    *,
    turned_at: float,
    blocks_loop: bool,
    no_thread_runs: bool,
    claimed_at: float,
    signed_at: float,
    lease: float,
    timeout: float,
    heartbeat_timeout: float,
    way: Way,
) -> tuple[float, float]:
    """Return for how many seconds a run counts as running, and as silent.

    `blocks_loop`: this run blocks the loop. `no_thread_runs`: no thread of the process runs either. Missing limits are
    infinite. Times are uptimes.
    """
    ran, silent = now - claimed_at, now - signed_at
    if blocks_loop or not turned_at or now - turned_at <= TICK + LATE:
        return ran, silent
    if turned_at <= claimed_at + timeout + TICK:
        # Leave room for a whole lease before the timeout, if the timeout is that long.
        ran = min(ran, max(0.0, timeout - lease) if timeout < float("inf") else ran)
    if (no_thread_runs or way == "loop") and turned_at <= signed_at + heartbeat_timeout + TICK:
        # The next renewal comes within a quarter of the heartbeat timeout.
        silent = min(silent, heartbeat_timeout / 2)
    return ran, silent
