"""When a worker's event loop last turned, and how long it has kept others waiting."""

from holdfast.worker.slate import Slate

TICK = 0.5
"""Seconds between two notes. A loop that is late with one has not turned since the one before, as far as we know."""


class Turns:
    """The turns of one loop, also on the slate of a worker that is watched."""

    def __init__(self, slate: Slate | None) -> None:
        self._slate = slate
        self._worst = 0.0
        self.at = 0.0
        """The uptime of the last turn; 0 before the first, and when no loop is to turn any more."""
        self.memory = 0
        """How many bytes the process was last found to occupy."""

    def turned(self, at: float, lag: float) -> None:
        """Note a turn, and by how many seconds it was late."""
        self.at = at
        self._worst = max(self._worst, lag)
        if self._slate is not None:
            self._slate.turned(at, lag)

    def ended(self) -> None:
        """Note that nothing is expected of the loop from now on, nor of anybody on its behalf."""
        self.turned(0.0, 0.0)

    def blocked(self, now: float) -> float:
        """Return for how many seconds the loop has been late; 0 if it is not."""
        return max(0.0, now - self.at - TICK) if self.at else 0.0

    def lag(self, now: float) -> float:
        """Return the longest that the loop has kept anything waiting since this was asked last, in seconds."""
        worst, self._worst = self._worst, 0.0
        return max(worst, self.blocked(now))
