"""How long what is over is kept: jobs by their outcome, and the events that told of them."""

from msgspec import Struct

from holdfast.core.lifecycle import State


class Keep(Struct, frozen=True):
    """How long jobs that are over are kept: `age` microseconds, and the newest `count` of them (None: all)."""

    age: int
    count: int | None = None


class Retention(Struct, frozen=True, omit_defaults=True):
    """How long a queue keeps its jobs after their end, by outcome; None leaves an outcome as it is built in."""

    completed: Keep | None = None
    failed: Keep | None = None
    cancelled: Keep | None = None
    expired: Keep | None = None

    def under(self, told: "Retention") -> "Retention":
        """Return this retention with all that is told laid over it."""
        return Retention(
            completed=self.completed if told.completed is None else told.completed,
            failed=self.failed if told.failed is None else told.failed,
            cancelled=self.cancelled if told.cancelled is None else told.cancelled,
            expired=self.expired if told.expired is None else told.expired,
        )

    def of(self, state: State) -> Keep:
        """Return for how long jobs that ended in a state are kept."""
        told: Keep | None = getattr(self, state.value)
        return KEPT[state] if told is None else told


_HOUR = 3_600_000_000
_DAY = 24 * _HOUR

KEPT = {
    State.COMPLETED: Keep(_HOUR, 10_000),
    State.FAILED: Keep(30 * _DAY),
    State.CANCELLED: Keep(7 * _DAY),
    State.EXPIRED: Keep(7 * _DAY),
}
"""What is built in, by outcome and queue."""

EVENTS_KEPT = Keep(7 * _DAY, 100_000)
"""How long the event log remembers."""
