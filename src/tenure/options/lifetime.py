"""How long a job may wait, and how long it is kept once it is over."""

from dataclasses import dataclass
from datetime import timedelta
from typing import get_args

from tenure.core import retention
from tenure.core.check import of_kind, one_of, whole
from tenure.core.duration import Duration, duration, micros
from tenure.core.job import OnExpire, Redriving
from tenure.options.merging import NestedOptions, fill


@dataclass(frozen=True, init=False)
class TTL(NestedOptions):
    """How long a job may wait before it starts, counted from its enqueue or its redrive; a run is not bounded by it.

    A job that is still waiting, delayed or resting between two attempts by then expires: with `on_expire="fail"` (built
    in) it is kept as expired, with a `JobExpiredError`; with "discard" nothing is kept but an event and a count.
    Whoever awaits its result gets `JobExpiredError` either way.
    """

    max: timedelta | None
    on_expire: OnExpire | None

    def __init__(self, max: Duration | None = None, on_expire: OnExpire | None = None) -> None:  # noqa: A002 - the word
        """Take what differs from what is set below.

        Raises:
            UsageError: `max` is no positive duration, or `on_expire` is unknown.
        """
        fill(
            self,
            max=None if max is None else duration(max, field="TTL.max"),
            on_expire=one_of(on_expire, get_args(OnExpire), field="TTL.on_expire"),
        )


@dataclass(frozen=True, init=False)
class AutoRedrive(NestedOptions):
    """A rule that puts a dead letter back in line by itself: `after` its failure, then each time twice as late.

    It does so `times` times, with new budgets and a new TTL. It leaves alone what was rejected or could not be read,
    what its policy never retries, and what lost its worker and must not run twice (`on_worker_lost="fail"`).
    """

    after: timedelta
    times: int

    def __init__(self, after: Duration = "1h", times: int = 3) -> None:
        """Take the first delay and the number of redrives.

        Raises:
            UsageError: `after` is no positive duration, or `times` no whole number from 1 to 20.
        """
        fill(
            self,
            after=duration(after, field="AutoRedrive.after"),
            # Doubled twenty times, a second is twelve days; beyond that the rule would outlive the retention.
            times=whole(times, field="AutoRedrive.times", least=1, most=20),
        )

    def rule(self) -> Redriving:
        """Return the rule as a job carries it."""
        return Redriving(micros(self.after), self.times)


@dataclass(frozen=True, init=False)
class Keep:
    """How long jobs that came to one kind of end are kept: for `age`, and no more than the newest `count` of them."""

    age: timedelta
    count: int | None

    def __init__(self, age: Duration, count: int | None = None) -> None:
        """Take an age, and a count if there shall be one.

        Raises:
            UsageError: `age` is no positive duration, or `count` no whole number from 0.
        """
        fill(
            self,
            age=duration(age, field="Keep.age"),
            count=None if count is None else whole(count, field="Keep.count", least=0, meaning="0 keeps none"),
        )


@dataclass(frozen=True, init=False)
class Retention:
    """How long a queue keeps its jobs once they are over, by outcome; None leaves an outcome as it is.

    Built in: completed 1 h and 10,000, failed 30 d, cancelled and expired 7 d. A completed job with a `result_ttl` of
    its own is kept for that long instead.
    """

    completed: Keep | None
    failed: Keep | None
    cancelled: Keep | None
    expired: Keep | None

    def __init__(
        self,
        *,
        completed: Keep | None = None,
        failed: Keep | None = None,
        cancelled: Keep | None = None,
        expired: Keep | None = None,
    ) -> None:
        """Take what differs from what is set.

        Raises:
            UsageError: one of them is no `Keep`.
        """
        fill(
            self,
            completed=_keep(completed, field="completed"),
            failed=_keep(failed, field="failed"),
            cancelled=_keep(cancelled, field="cancelled"),
            expired=_keep(expired, field="expired"),
        )

    def setting(self) -> retention.RetentionRules:
        """Return this as a queue keeps it."""
        return retention.RetentionRules(
            completed=_kept(self.completed),
            failed=_kept(self.failed),
            cancelled=_kept(self.cancelled),
            expired=_kept(self.expired),
        )


def living(ttl: object, *, field: str = "ttl") -> TTL:
    """Return a TTL, made of a bare duration where it is one.

    Raises:
        UsageError: it is neither.
    """
    if isinstance(ttl, TTL):
        return ttl
    return TTL(duration(ttl, field=field))  # type: ignore[arg-type]  # it refuses what is none


def _keep(given: object, *, field: str) -> Keep | None:
    if given is None:
        return None
    return of_kind(given, Keep, field=f"Retention.{field}", remedy=f'write {field}=Keep("7d", 10_000)')


def _kept(keep: Keep | None) -> retention.KeepRule | None:
    return None if keep is None else retention.KeepRule(micros(keep.age), keep.count)
