"""Retention: how long ended jobs are kept, by outcome, and how long events are kept."""

from msgspec import Struct

from tenure.core.lifecycle import State

TRIM_BATCH = 200
"""The usual limit of ended jobs, or of events, that one call deletes when it finds too many."""


class KeepRule(Struct, frozen=True):
    """How long ended jobs are kept: `age` microseconds, and the newest `count` of them (None: all)."""

    age: int
    count: int | None = None

    @property
    def most(self) -> int | None:
        """The temporary maximum: the count plus a tenth, at least 100 more. Sweeps restore the count itself.

        Above it, the call that ends a job also deletes the earliest ended jobs. The margin gives callers that wait for
        a job the time to read it, also if few jobs are kept.
        """
        return None if self.count is None else self.count + max(self.count // 10, 100)

    def deleted_at_once(self, jobs: int, ended: int) -> int:
        """Return how many of `jobs` ended jobs are deleted by the call that has ended `ended` of them.

        Above `most` the call deletes a whole batch, because that costs little more than one job. If more jobs have
        ended than a batch holds, it deletes up to a quarter more than these, so that a backlog shrinks. The number is
        bounded, so that no call takes long.
        """
        most = self.most
        if self.count is None or most is None or jobs <= most:
            return 0
        batch = min((most - self.count) // 2 + 1, TRIM_BATCH)
        return max(batch, min(jobs - most, ended + ended // 4 + 1))


class RetentionRules(Struct, frozen=True, omit_defaults=True):
    """How long a queue keeps its ended jobs, by outcome; None leaves an outcome at its default."""

    completed: KeepRule | None = None
    failed: KeepRule | None = None
    cancelled: KeepRule | None = None
    expired: KeepRule | None = None

    def updated_with(self, newer: "RetentionRules") -> "RetentionRules":
        """Return these rules with each field replaced that `newer` sets."""
        return RetentionRules(
            completed=self.completed if newer.completed is None else newer.completed,
            failed=self.failed if newer.failed is None else newer.failed,
            cancelled=self.cancelled if newer.cancelled is None else newer.cancelled,
            expired=self.expired if newer.expired is None else newer.expired,
        )

    def of(self, state: State) -> KeepRule:
        """Return the rule for jobs that ended in a state."""
        rule: KeepRule | None = getattr(self, state.value)
        return KEPT[state] if rule is None else rule


_HOUR = 3_600_000_000
_DAY = 24 * _HOUR

KEPT = {
    State.COMPLETED: KeepRule(_HOUR, 10_000),
    State.FAILED: KeepRule(30 * _DAY),
    State.CANCELLED: KeepRule(7 * _DAY),
    State.EXPIRED: KeepRule(7 * _DAY),
}
"""The default rules, by outcome, for each queue."""

EVENTS_KEPT = KeepRule(7 * _DAY, 100_000)
"""How long the event log keeps its events."""
