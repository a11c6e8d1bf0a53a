"""Lifetime options: how long a job may wait, when a dead letter is redriven, and how long ended jobs are kept."""

from dataclasses import dataclass
from datetime import timedelta
from typing import get_args

from tenure.core import retention
from tenure.core.check import of_kind, one_of, whole
from tenure.core.duration import Duration, duration, micros
from tenure.core.job import OnExpire, Redriving
from tenure.core.lifecycle import State
from tenure.options.merging import NestedOptions, fill
from tenure.options.seconds import option_duration


@dataclass(frozen=True, init=False)
class TTL(NestedOptions):
    """How long a job may wait before it starts, counted from its enqueue or its redrive. It does not limit a run.

    A job that is still waiting, delayed, or between two attempts after `max` expires. With `on_expire="fail"` (the
    default) it is kept as expired, with a `JobExpiredError`. With "discard" only an event and a count are kept.
    `Job.result` raises `JobExpiredError` in both cases.
    """

    max: timedelta | None
    on_expire: OnExpire | None

    def __init__(self, max: Duration | None = None, on_expire: OnExpire | None = None) -> None:  # noqa: A002 - the name
        """Set the options that differ from the defaults.

        Raises:
            UsageError: `max` is not a positive duration, or `on_expire` is unknown.
        """
        fill(
            self,
            max=None if max is None else option_duration(max, field="TTL.max"),
            on_expire=one_of(on_expire, get_args(OnExpire), field="TTL.on_expire"),
        )


@dataclass(frozen=True, init=False)
class AutoRedrive(NestedOptions):
    """A rule that redrives a dead letter automatically: `after` its failure; each further delay is twice as long.

    It redrives the job `times` times at most, each time with new budgets and a new TTL. It does not redrive a job that
    was rejected or could not be decoded, a job whose error the retry policy never retries, or a job that lost its
    worker and must not run twice (`on_worker_lost="fail"`).
    """

    after: timedelta
    times: int

    def __init__(self, after: Duration = "1h", times: int = 3) -> None:
        """Set the first delay and the number of redrives.

        Raises:
            UsageError: `after` is not a positive duration, or `times` is not a whole number from 1 to 20.
        """
        fill(
            self,
            after=option_duration(after, field="AutoRedrive.after"),
            # A delay of 1 s doubled twenty times is twelve days. A longer rule would outlive the retention.
            times=whole(times, field="AutoRedrive.times", least=1, most=20),
        )

    def rule(self) -> Redriving:
        """Return the rule in the form that a job stores."""
        return Redriving(micros(self.after), self.times)


@dataclass(frozen=True, init=False)
class Keep:
    """How long jobs with one outcome are kept: for `age`, and at most the newest `count` of them (None: no limit)."""

    age: timedelta
    count: int | None

    def __init__(self, age: Duration, count: int | None = None) -> None:
        """Set the age and, optionally, the count; a count of 0 keeps no jobs.

        Raises:
            UsageError: `age` is not a positive duration, or `count` is not a whole number of at least 0.
        """
        fill(
            self,
            age=duration(age, field="Keep.age"),
            count=None if count is None else whole(count, field="Keep.count", least=0, meaning="0 keeps none"),
        )


@dataclass(frozen=True, init=False)
class Retention:
    """How long a queue keeps ended jobs, by outcome. None leaves the setting of an outcome as it is.

    Default: completed 1 h and at most 10,000, failed 30 d, cancelled and expired 7 d. A completed job with a
    `result_ttl` is kept for that time instead.
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
        """Set the outcomes whose retention changes.

        Raises:
            UsageError: a value is not a `Keep`.
        """
        fill(
            self,
            completed=_keep(completed, field="completed"),
            failed=_keep(failed, field="failed"),
            cancelled=_keep(cancelled, field="cancelled"),
            expired=_keep(expired, field="expired"),
        )

    def setting(self) -> retention.RetentionRules:
        """Return the retention in the form that a queue stores."""
        return retention.RetentionRules(
            completed=_kept(self.completed),
            failed=_kept(self.failed),
            cancelled=_kept(self.cancelled),
            expired=_kept(self.expired),
        )


def retention_in_force(rules: retention.RetentionRules | None) -> Retention:
    """Return the retention of a queue that stores these rules: each outcome has its own rule or the default."""
    rules = rules or retention.RetentionRules()

    def keep(state: State) -> Keep:
        rule = rules.of(state)
        return Keep(timedelta(microseconds=rule.age), rule.count)

    return Retention(
        completed=keep(State.COMPLETED),
        failed=keep(State.FAILED),
        cancelled=keep(State.CANCELLED),
        expired=keep(State.EXPIRED),
    )


def valid_ttl(ttl: object, *, field: str = "ttl") -> TTL:
    """Return a TTL; a bare duration becomes a TTL with this `max`.

    Raises:
        UsageError: it is neither a TTL nor a duration.
    """
    if isinstance(ttl, TTL):
        return ttl
    return TTL(option_duration(ttl, field=field))  # type: ignore[arg-type]  # duration() refuses other types


def _keep(value: object, *, field: str) -> Keep | None:
    if value is None:
        return None
    return of_kind(value, Keep, field=f"Retention.{field}", remedy=f'write {field}=Keep("7d", 10_000)')


def _kept(keep: Keep | None) -> retention.KeepRule | None:
    return None if keep is None else retention.KeepRule(micros(keep.age), keep.count)
