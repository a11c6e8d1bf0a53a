"""How long what is over is kept: jobs by their outcome, and the events that told of them."""

from msgspec import Struct

from tenure.core.lifecycle import State

FORGOTTEN_TOGETHER = 200
"""How many jobs that are over, or events, are forgotten at once by a call that adds some to too many."""


class KeepRule(Struct, frozen=True):
    """How long jobs that are over are kept: `age` microseconds, and the newest `count` of them (None: all)."""

    age: int
    count: int | None = None

    @property
    def most(self) -> int | None:
        """How many there may be for a moment: the count and a tenth, at least 100. Sweeps keep to the count itself.

        Above that, whatever ends a job also forgets the longest ended one. The difference leaves those who wait for a
        job the time to read it, also where few are kept.
        """
        return None if self.count is None else self.count + max(self.count // 10, 100)

    def forgotten_at_once(self, jobs: int, ended: int) -> int:
        """Return how many of `jobs` that are over are forgotten by the call that has ended `ended` of them.

        Above `most` a whole batch, as that costs little more than one; where more have ended, up to a quarter more than
        these, so that a backlog shrinks. Never more, so that no call takes long.
        """
        if self.count is None or self.most is None or jobs <= self.most:
            return 0
        batch = min((self.most - self.count) // 2 + 1, FORGOTTEN_TOGETHER)
        return max(batch, min(jobs - self.most, ended + ended // 4 + 1))


class RetentionRules(Struct, frozen=True, omit_defaults=True):
    """How long a queue keeps its jobs after their end, by outcome; None leaves an outcome as it is built in."""

    completed: KeepRule | None = None
    failed: KeepRule | None = None
    cancelled: KeepRule | None = None
    expired: KeepRule | None = None

    def under(self, told: "RetentionRules") -> "RetentionRules":
        """Return this retention with all that is told laid over it."""
        return RetentionRules(
            completed=self.completed if told.completed is None else told.completed,
            failed=self.failed if told.failed is None else told.failed,
            cancelled=self.cancelled if told.cancelled is None else told.cancelled,
            expired=self.expired if told.expired is None else told.expired,
        )

    def of(self, state: State) -> KeepRule:
        """Return for how long jobs that ended in a state are kept."""
        told: KeepRule | None = getattr(self, state.value)
        return KEPT[state] if told is None else told


_HOUR = 3_600_000_000
_DAY = 24 * _HOUR

KEPT = {
    State.COMPLETED: KeepRule(_HOUR, 10_000),
    State.FAILED: KeepRule(30 * _DAY),
    State.CANCELLED: KeepRule(7 * _DAY),
    State.EXPIRED: KeepRule(7 * _DAY),
}
"""What is built in, by outcome and queue."""

EVENTS_KEPT = KeepRule(7 * _DAY, 100_000)
"""How long the event log remembers."""
