"""When a worker's event loop last turned, and how long it has kept others waiting."""

from tenure.core.job import Ref
from tenure.worker.scoreboard import Scoreboard

TICK = 0.5
"""Seconds between two notes. A loop that is late with one has not turned since the one before, as far as we know."""


RECENT = 15.0
"""Seconds for which the longest delay is remembered, at least; up to twice as long."""


class RecentMaximum:
    """The largest of some values within the last while."""

    def __init__(self) -> None:
        self._began = self._before = self._now = 0.0

    def note(self, at: float, value: float) -> float:
        """Note one at some uptime, and return the largest."""
        if at - self._began > RECENT:
            self._before = self._now if at - self._began <= 2 * RECENT else 0.0
            self._began, self._now = at, 0.0
        self._now = max(self._now, value)
        return max(self._before, self._now)


class LoopMonitor:
    """The turns of one loop, also on the slate of a worker that is watched."""

    def __init__(self, slate: Scoreboard | None) -> None:
        self._slate = slate
        self._worst = 0.0
        self._peak = RecentMaximum()
        self.at = 0.0
        """The uptime of the last turn; 0 before the first, and when no loop is to turn any more."""
        self.memory = 0
        """How many bytes the process was last found to occupy."""
        self._blocker: tuple[tuple[Ref, int], float] | None = None
        """The run that was last seen to block the loop, and when that had turned last."""

    def turned(self, at: float, lag: float) -> None:
        """Note a turn, and by how many seconds it was late."""
        self.at = at
        self._worst = max(self._worst, lag)
        self._peak.note(at, lag)
        if self._slate is not None:
            self._slate.turned(at, lag)

    def told(self, at: float) -> None:
        """Note that the storage has taken the beat that was sent at this uptime; from the keeper's thread."""
        if self._slate is not None:
            self._slate.told(at)

    def blocked_by(self, key: tuple[Ref, int], line: int | None) -> None:
        """Note which run blocks the loop, and its line on the slate; from beside the loop."""
        of = self.at
        if self._slate is not None and line is not None:
            self._slate.blocked_by(line, key[1], of)
        self._blocker = key, of

    @property
    def blocker(self) -> tuple[Ref, int] | None:
        """The run that blocks the loop, if it is blocked and somebody has seen by which."""
        seen = self._blocker
        return seen[0] if seen is not None and seen[1] == self.at else None

    def ended(self) -> None:
        """Note that nothing is expected of the loop from now on, nor of anybody on its behalf."""
        self.turned(0.0, 0.0)

    def blocked(self, now: float) -> float:
        """Return for how many seconds the loop has been late; 0 if it is not."""
        return max(0.0, now - self.at - TICK) if self.at else 0.0

    def recent(self, now: float) -> float:
        """Return the longest that the loop has kept anything waiting within the last while, in seconds."""
        return self._peak.note(now, self.blocked(now))

    def lag(self, now: float) -> float:
        """Return the longest that the loop has kept anything waiting since this was asked last, in seconds."""
        worst, self._worst = self._worst, 0.0
        return max(worst, self.blocked(now))
