"""Retry options: how often and when a failed job is retried."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import get_args

from tenure.core.check import one_of, several, shown, whole
from tenure.core.duration import Duration, duration, micros
from tenure.core.retry import Backoff, BackoffKind
from tenure.errors import UsageError
from tenure.options.merging import NestedOptions, fill


@dataclass(frozen=True, init=False)
class Retry(NestedOptions):
    """How often and when a failed job is retried. Default: 3 attempts, exponential delay from 1 s to 10 min, ±25 %.

    - `max_attempts`: the number of charged runs, including the first; 1 means no retry.
    - `backoff`: "fixed", "linear" or "exponential". `base`: the first delay. `cap`: the longest delay.
    - `jitter`: the delay varies at random by up to this share, from 0 to 1; True is 0.25.
    - `on`: only these exceptions are retried. `never`: these exceptions are not retried, even if `on` names them.
      Both take one exception class or several.
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
        """Set the options that differ from the defaults.

        Raises:
            UsageError: max_attempts is not a whole number of at least 1, jitter is outside 0 to 1, a duration is
                invalid or below 0, the backoff is unknown, or `on` or `never` has a value that is not an exception
                class.
        """
        if max_attempts is not None:
            whole(max_attempts, field="Retry.max_attempts", least=1, meaning="1 means never again")
        fill(
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
        """Return the part of the policy that a job stores."""
        values = {
            "max_attempts": self.max_attempts,
            "kind": self.backoff,
            "base": None if self.base is None else micros(self.base),
            "cap": None if self.cap is None else micros(self.cap),
            "jitter": self.jitter,
        }
        return Backoff(**{name: value for name, value in values.items() if value is not None})  # type: ignore[arg-type]

    def final(self, error: BaseException) -> bool:
        """Return True if this exception must not be retried."""
        return (self.on is not None and not isinstance(error, self.on)) or isinstance(error, self.never or ())


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
