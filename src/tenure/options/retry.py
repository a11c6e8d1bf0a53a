"""Retry options: how often and when a failed job is retried."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import cast, get_args

from tenure.core.check import of_kind, one_of, several, shown, whole
from tenure.core.duration import Duration, micros
from tenure.core.retry import Backoff, BackoffKind
from tenure.errors import UsageError
from tenure.handlers.functions import is_async
from tenure.options.merging import NestedOptions, fill
from tenure.options.seconds import option_duration

DelayFunction = Callable[[int, BaseException], Duration | None]
"""Takes the attempt that failed, from 1, and its exception; returns the delay, or None for the default delay."""


@dataclass(frozen=True, init=False)
class Retry(NestedOptions):
    """How often and when a failed job is retried. Default: 3 attempts, exponential delay from 1 s to 10 min, ±25 %.

    - `max_attempts`: the number of charged runs, including the first; 1 means no retry.
    - `backoff`: "fixed", "linear" or "exponential". `base`: the first delay. `cap`: the longest delay.
    - `jitter`: the delay varies at random by up to this share, from 0 to 1; True is 0.25.
    - `on`: only these exceptions are retried. `never`: these exceptions are not retried, even if `on` names them.
      Both take one exception class or several.
    - `delay`: a function that returns the delay instead: `delay=lambda attempt, error: 10 * attempt`. It takes the
      attempt that failed, from 1, and its exception (a `TimeoutError` after a timeout). The worker calls it on its
      event loop, so it must not block. Its result is used as it is, without `cap` and `jitter`. If it returns None,
      raises, or returns a value that is not a duration, the delay by `backoff` applies.
    """

    max_attempts: int | None
    backoff: BackoffKind | None
    base: timedelta | None
    cap: timedelta | None
    jitter: float | None
    on: tuple[type[BaseException], ...] | None
    never: tuple[type[BaseException], ...] | None
    delay: DelayFunction | None

    def __init__(
        self,
        max_attempts: int | None = None,
        backoff: BackoffKind | None = None,
        base: Duration | None = None,
        cap: Duration | None = None,
        jitter: float | bool | None = None,
        on: type[BaseException] | Sequence[type[BaseException]] | None = None,
        never: type[BaseException] | Sequence[type[BaseException]] | None = None,
        delay: DelayFunction | None = None,
    ) -> None:
        """Set the options that differ from the defaults.

        Raises:
            UsageError: max_attempts is not a whole number of at least 1, jitter is outside 0 to 1, a duration is
                invalid or below 0, the backoff is unknown, `on` or `never` has a value that is not an exception
                class, or `delay` is not a plain function of two arguments.
        """
        if max_attempts is not None:
            whole(max_attempts, field="Retry.max_attempts", least=1, meaning="1 means never again")
        fill(
            self,
            max_attempts=max_attempts,
            backoff=one_of(backoff, get_args(BackoffKind), field="Retry.backoff"),
            base=None if base is None else option_duration(base, field="Retry.base", zero=True),
            cap=None if cap is None else option_duration(cap, field="Retry.cap", zero=True),
            jitter=_share(jitter),
            on=_exceptions(on, field="Retry.on"),
            never=_exceptions(never, field="Retry.never"),
            delay=None if delay is None else _delay_function(delay),
        )

    def rule(self, *, pinned: "Retry | None" = None) -> Backoff:
        """Return the part of the policy that a job stores; `pinned`: the options that the call itself set."""
        values = {
            "max_attempts": self.max_attempts,
            "kind": self.backoff,
            "base": None if self.base is None else micros(self.base),
            "cap": None if self.cap is None else micros(self.cap),
            "jitter": self.jitter,
            "pinned": True if pinned is not None and pinned.sets_delay else None,
        }
        return Backoff(**{name: value for name, value in values.items() if value is not None})  # type: ignore[arg-type]

    @property
    def sets_delay(self) -> bool:
        """True if a number of the delay is set."""
        return any(value is not None for value in (self.backoff, self.base, self.cap, self.jitter))

    def final(self, error: BaseException) -> bool:
        """Return True if this exception must not be retried."""
        return (self.on is not None and not isinstance(error, self.on)) or isinstance(error, self.never or ())


def valid_retry(retry: object) -> Retry:
    """Return the retry options.

    Raises:
        UsageError: the value is not a `Retry`.
    """
    return of_kind(retry, Retry, field="retry", remedy="write retry=Retry(max_attempts=5)")


def valid_call_retry(retry: object) -> Retry:
    """Return the retry options of one call.

    Raises:
        UsageError: the value is not a `Retry`, or it has an option that a job cannot store.
    """
    own = valid_retry(retry)
    for name in ("on", "never", "delay"):
        if getattr(own, name) is not None:
            raise UsageError(
                f"Retry.{name} cannot be set for one call, because a job cannot store it; set it on the task, with "
                f"@app.task(retry=Retry({name}=...))"
            )
    return own


def _delay_function(value: object) -> DelayFunction:
    if not callable(value) or is_async(value):
        raise UsageError(
            f"Retry.delay = {shown(value)} must be a plain function of the attempt and its exception; write "
            "delay=lambda attempt, error: 10 * attempt, or give base= for a delay without a function"
        )
    try:
        inspect.signature(value).bind(1, Exception())
    except TypeError:
        raise UsageError(
            f"Retry.delay = {shown(value)} cannot be called with two arguments; it takes the attempt and its exception"
        ) from None
    except ValueError:
        pass  # a function in C may have no signature
    return cast(DelayFunction, value)


def _share(jitter: object) -> float | None:
    match jitter:
        case None:
            return None
        case bool():
            return 0.25 if jitter else 0.0
        # This form of the comparison also refuses NaN.
        case int() | float() if 0 <= jitter <= 1:
            return jitter
        case _:
            raise UsageError(
                f"Retry.jitter = {shown(jitter)} must be a number from 0 to 1, a share of the delay, or True for 0.25"
            )


def _exceptions(value: object, *, field: str) -> tuple[type[BaseException], ...] | None:
    if value is None:
        return None
    classes: list[type[BaseException]] = []
    for item in (value,) if isinstance(value, type | str) else several(value, field=field):
        text = shown(item)
        if not (isinstance(item, type) and issubclass(item, BaseException)):
            raise UsageError(
                f"{field} has {text}, which is not an exception class; give classes, such as (ValueError, OSError)"
            )
        classes.append(item)
    return tuple(classes)
