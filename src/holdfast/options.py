"""What a user may set, checked when it is made: every object here is valid once it exists.

None in a field of `Stall`, `Retry` or `TaskOptions` means "not set here". What is set is merged field by field:
the call's own over the queue's over the task's over the app's over the built-in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Literal, Self, TypedDict, TypeVar, get_args

from holdfast.core.check import flag, named, of_kind, one_of, several, shown, whole
from holdfast.core.duration import Duration, duration, micros
from holdfast.core.job import FOREVER, OnWorkerLost, StallSetting, StallTerms
from holdfast.core.retry import Backoff, BackoffKind
from holdfast.errors import UsageError

OnUnreachable = Literal["auto", "stop", "continue"]

PRIORITY_RANGE = 500
"""Priorities lie between minus this and this, which keeps the score of a strict one below 2^53."""


@dataclass(frozen=True, init=False)
class Timing:
    """How fast a lost worker is noticed.

    A host or network that is lost is noticed within `lease + grace + 2 * sweep` (27 s by default). `beat`: between
    two renewals of all leases, a quarter of the lease by default. `sweep`: between two turns of the reaper. `grace`:
    how long a lease that has run out stays a mere suspect. `leader_ttl`: how long one reaper leads without renewing,
    two sweeps by default.
    """

    lease: timedelta
    beat: timedelta
    sweep: timedelta
    grace: timedelta
    leader_ttl: timedelta

    def __init__(
        self,
        lease: Duration = "20s",
        beat: Duration | None = None,
        sweep: Duration = "2s",
        grace: Duration = "3s",
        leader_ttl: Duration | None = None,
    ) -> None:
        """Take durations in seconds, as timedelta, or as text ("30s").

        Raises:
            UsageError: a duration is not positive, beat is half the lease or more, or leader_ttl is under a sweep.
        """
        lease_ = duration(lease, field="Timing.lease")
        sweep_ = duration(sweep, field="Timing.sweep")
        beat_ = lease_ / 4 if beat is None else duration(beat, field="Timing.beat")
        if beat_ >= lease_ / 2:
            raise UsageError(
                f"Timing.beat = {_seconds(beat_)} must be under half of Timing.lease = {_seconds(lease_)}: "
                "one late beat would cost the lease; leave it unset for a quarter"
            )
        term = sweep_ * 2 if leader_ttl is None else duration(leader_ttl, field="Timing.leader_ttl")
        if term < sweep_:
            raise UsageError(
                f"Timing.leader_ttl = {_seconds(term)} must not be under Timing.sweep = {_seconds(sweep_)}: "
                "every leader would lose its term between two sweeps; leave it unset for two sweeps"
            )
        _fill(
            self, lease=lease_, beat=beat_, sweep=sweep_, grace=duration(grace, field="Timing.grace"), leader_ttl=term
        )

    @classmethod
    def fast(cls) -> Self:
        """Return lease 8 s, sweep 1 s, grace 1 s: a lost host is noticed within 11 s."""
        return cls(lease="8s", beat="2s", sweep="1s", grace="1s", leader_ttl="2s")

    @classmethod
    def classic(cls) -> Self:
        """Return lease 30 s, sweep 5 s, grace 5 s, the pace of the older queues."""
        return cls(lease="30s", beat="7.5s", sweep="5s", grace="5s", leader_ttl="10s")

    @property
    def recovery_bound(self) -> timedelta:
        """Within this a job whose worker is lost with its host can be claimed again."""
        if self.leader_ttl <= 2 * self.sweep:
            return self.lease + self.grace + 2 * self.sweep
        return max(self.lease + self.grace + 2 * self.sweep, self.leader_ttl + self.lease + 2 * self.sweep)


@dataclass(frozen=True, init=False)
class Stall:
    """When a job counts as stalled, and how often it may. Built in: the app's lease, once, enabled, no start grace.

    `interval`: the job's lease. `max_count`: it fails when it stalls more often than this. `enabled=False`: only the
    death of its process, as seen by a supervisor or the kernel, takes a job from its worker. `start_grace`: no beat is
    asked of a run younger than this. `heartbeat=False`: the lease is not renewed by the worker, only by the handler's
    own `current_job().heartbeat()`: a visibility timeout.
    """

    interval: timedelta | None
    max_count: int | None
    enabled: bool | None
    start_grace: timedelta | None
    heartbeat: bool | None

    def __init__(
        self,
        interval: Duration | None = None,
        max_count: int | None = None,
        enabled: bool | None = None,
        start_grace: Duration | None = None,
        heartbeat: bool | None = None,
    ) -> None:
        """Take what differs from the defaults.

        Raises:
            UsageError: a duration is not positive, max_count is no whole number from 0, or a switch is no bool.
        """
        if max_count is not None:
            whole(max_count, field="Stall.max_count", least=0, meaning="0 fails a job at its first stall")
        _fill(
            self,
            interval=None if interval is None else duration(interval, field="Stall.interval"),
            max_count=max_count,
            enabled=flag(enabled, field="Stall.enabled"),
            start_grace=None if start_grace is None else duration(start_grace, field="Stall.start_grace", zero=True),
            heartbeat=flag(heartbeat, field="Stall.heartbeat"),
        )

    @classmethod
    def from_bunqueue(cls, *, max_stalls: int, interval: Duration | None = None) -> Self:
        """Return the same rule as bunqueue's, which fails a job when its count reaches `max_stalls`.

        Raises:
            UsageError: max_stalls is no whole number from 1, or the interval no duration.
        """
        most = whole(max_stalls, field="max_stalls", least=1, meaning="1 fails a job at its first stall")
        return cls(interval=interval, max_count=most - 1)

    def terms(self, lease: timedelta, *, pinned: "Stall | None" = None) -> StallTerms:
        """Return these options as a job carries them; `pinned` are those that its own call set."""
        setting = self.setting()
        return StallTerms(
            lease=setting.lease if setting.lease is not None else micros(lease),
            max_stalls=1 if setting.max_stalls is None else setting.max_stalls,
            start_grace=setting.start_grace or 0,
            renewed=setting.renewed is not False,
            pinned=tuple(name for name in _SETTABLE if getattr(pinned.setting(), name) is not None) if pinned else (),
        )

    def setting(self) -> StallSetting:
        """Return these options as a queue keeps them."""
        lease = None if self.interval is None else micros(self.interval)
        return StallSetting(
            lease=FOREVER if self.enabled is False else lease,
            max_stalls=self.max_count,
            start_grace=None if self.start_grace is None else micros(self.start_grace),
            renewed=self.heartbeat,
        )


_SETTABLE = ("lease", "max_stalls", "start_grace", "renewed")


@dataclass(frozen=True, init=False)
class Retry:
    """How often and when a failed job is tried again. Built in: 3 attempts, exponential from 1 s to 10 min, ±25 %.

    `max_attempts` counts all charged runs, the first included; 1 is never again. `on`: only these exceptions are
    retried. `never`: these are not, even where `on` names them. Both take one class or several. `jitter`: a share of
    the delay, or True for a quarter.
    """

    max_attempts: int | None
    backoff: BackoffKind | None
    base: timedelta | None
    cap: timedelta | None
    jitter: float | None
    on: tuple[type[BaseException], ...] | None
    never: tuple[type[BaseException], ...] | None

    def __init__(
        self,
        max_attempts: int | None = None,
        backoff: BackoffKind | None = None,
        base: Duration | None = None,
        cap: Duration | None = None,
        jitter: float | bool | None = None,
        on: type[BaseException] | Sequence[type[BaseException]] | None = None,
        never: type[BaseException] | Sequence[type[BaseException]] | None = None,
    ) -> None:
        """Take what differs from the defaults.

        Raises:
            UsageError: max_attempts is no whole number from 1, jitter lies outside 0 to 1, a duration is below 0, the
                backoff is unknown, or what is given as exceptions are none.
        """
        if max_attempts is not None:
            whole(max_attempts, field="Retry.max_attempts", least=1, meaning="1 means never again")
        _fill(
            self,
            max_attempts=max_attempts,
            backoff=one_of(backoff, get_args(BackoffKind), field="Retry.backoff"),
            base=None if base is None else duration(base, field="Retry.base", zero=True),
            cap=None if cap is None else duration(cap, field="Retry.cap", zero=True),
            jitter=_share(jitter),
            on=_exceptions(on, field="Retry.on"),
            never=_exceptions(never, field="Retry.never"),
        )

    def rule(self) -> Backoff:
        """Return the part of the policy that a job carries as data."""
        given = {
            "max_attempts": self.max_attempts,
            "kind": self.backoff,
            "base": None if self.base is None else micros(self.base),
            "cap": None if self.cap is None else micros(self.cap),
            "jitter": self.jitter,
        }
        return Backoff(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]

    def final(self, error: BaseException) -> bool:
        """Say whether this exception shall never be retried."""
        return (self.on is not None and not isinstance(error, self.on)) or isinstance(error, self.never or ())


def _share(jitter: object) -> float | None:
    match jitter:
        case None:
            return None
        case bool():
            return 0.25 if jitter else 0.0
        # Said this way round it refuses NaN too.
        case int() | float() if 0 <= jitter <= 1:
            return jitter
        case _:
            raise UsageError(
                f"Retry.jitter = {shown(jitter)} must be a number from 0 to 1, a share of the delay, or True for 0.25"
            )


def _exceptions(given: object, *, field: str) -> tuple[type[BaseException], ...] | None:
    if given is None:
        return None
    classes: list[type[BaseException]] = []
    for one in (given,) if isinstance(given, type | str) else several(given, field=field):
        told = shown(one)
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise UsageError(
                f"{field} has {told}, which is no exception class; give classes, such as (ValueError, OSError)"
            )
        classes.append(one)
    return tuple(classes)


@dataclass(frozen=True, init=False)
class LeaderElection:
    """That one reaper sweeps for all; `ttl` is its term, two sweeps by default."""

    ttl: timedelta | None

    def __init__(self, ttl: Duration | None = None) -> None:
        """Take the term, if it shall be another.

        Raises:
            UsageError: it is no positive duration.
        """
        _fill(self, ttl=None if ttl is None else duration(ttl, field="LeaderElection.ttl"))

    def length(self, timing: Timing) -> timedelta:
        """Return how long a term lasts."""
        return timing.leader_ttl if self.ttl is None else self.ttl


@dataclass(frozen=True, init=False)
class TaskOptions:
    """What a task, or an app for all its tasks, may set.

    `timeout` bounds one run, `heartbeat_timeout` the time between two signs of the handler's own. `on_worker_lost`:
    "fail" for work that must not run twice. `on_unreachable`: what a run does when its lease may have passed on while
    the storage cannot be reached: "stop", "continue", or "auto" (stop those that hold an exclusive right).
    """

    queue: str | None
    retry: Retry | None
    stall: Stall | None
    timeout: timedelta | None
    heartbeat_timeout: timedelta | None
    on_worker_lost: OnWorkerLost | None
    on_unreachable: OnUnreachable | None
    priority: int | None
    strict: bool | None

    def __init__(
        self,
        *,
        queue: str | None = None,
        retry: Retry | None = None,
        stall: Stall | None = None,
        timeout: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        on_worker_lost: OnWorkerLost | None = None,
        on_unreachable: OnUnreachable | None = None,
        priority: int | None = None,
        strict: bool | None = None,
    ) -> None:
        """Take what differs from the defaults.

        Raises:
            UsageError: an option has no valid value.
        """
        _fill(
            self,
            queue=None if queue is None else named(queue, field="queue"),
            retry=None
            if retry is None
            else of_kind(retry, Retry, field="retry", remedy="write retry=Retry(max_attempts=5)"),
            stall=None if stall is None else stalling(stall),
            timeout=None if timeout is None else duration(timeout, field="timeout"),
            heartbeat_timeout=(
                None if heartbeat_timeout is None else duration(heartbeat_timeout, field="heartbeat_timeout")
            ),
            on_worker_lost=one_of(on_worker_lost, get_args(OnWorkerLost), field="on_worker_lost"),
            on_unreachable=one_of(on_unreachable, get_args(OnUnreachable), field="on_unreachable"),
            priority=None if priority is None else ranked(priority),
            strict=flag(strict, field="strict"),
        )

    def over(self, below: "TaskOptions") -> "TaskOptions":
        """Return these options laid over others, field by field."""
        return overlay(self, below)


class TaskSettings(TypedDict, total=False):
    """The options of `@app.task(...)`, one by one."""

    queue: str
    retry: Retry
    stall: Stall
    timeout: Duration
    heartbeat_timeout: Duration
    on_worker_lost: OnWorkerLost
    on_unreachable: OnUnreachable
    priority: int
    strict: bool


class CallOptions(TypedDict, total=False):
    """What one call may set: `task.options(delay="5m").enqueue(...)`.

    `id`: the job's own id, unique within its queue; a second enqueue with it makes no second job. `delay` or `run_at`
    (an aware datetime): not before then. `tags`: words to find it by.
    """

    id: str
    queue: str
    delay: Duration
    run_at: datetime
    priority: int
    stall: Stall
    tags: Sequence[str]


def ranked(priority: object) -> int:
    """Return a priority.

    Raises:
        UsageError: it is no whole number from -500 to 500.
    """
    return whole(priority, field="priority", least=-PRIORITY_RANGE, most=PRIORITY_RANGE)


def stalling(stall: object) -> Stall:
    """Return stall options.

    Raises:
        UsageError: they are none.
    """
    return of_kind(stall, Stall, field="stall", remedy='write stall=Stall(interval="30s")')


Merged = TypeVar("Merged", bound=Stall | Retry | TaskOptions)


def overlay(above: Merged, below: Merged) -> Merged:
    """Return what is set above, and the rest as below; policies merge inside."""
    merged: dict[str, Any] = {}
    for spec in fields(above):
        upper, lower = getattr(above, spec.name), getattr(below, spec.name)
        if isinstance(upper, Stall | Retry) and lower is not None:
            merged[spec.name] = overlay(upper, lower)
        else:
            merged[spec.name] = lower if upper is None else upper
    # These are made by checking, not by copying; the fields are valid already.
    made = object.__new__(type(above))
    _fill(made, **merged)
    return made


def _fill(made: object, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(made, name, value)


def _seconds(length: timedelta) -> str:
    return f"{length.total_seconds():g}s"
