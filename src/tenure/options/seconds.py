"""Reads the durations of options, and warns of bare numbers that look like milliseconds."""

import inspect
import os
import warnings
from datetime import timedelta
from pathlib import Path

from tenure.core.duration import Duration, duration, micros
from tenure.core.duration import duration_text as text_of

_HOUSE = f"{Path(__file__).parents[1]}{os.sep}"

_SUSPICIOUS = 1_000
"""A bare number from this on may be meant as milliseconds."""


def option_duration(value: Duration, *, field: str, zero: bool = False) -> timedelta:
    """Parse the duration of an option, as `duration` does, and warn if it is a number that looks like milliseconds.

    Raises:
        UsageError: see `duration`.
    """
    length = duration(value, field=field, zero=zero)
    if looks_like_milliseconds(value):
        name = field.rpartition(".")[2]
        meant = text_of(micros(timedelta(milliseconds=float(value))))  # type: ignore[arg-type]  # it is a number
        warnings.warn(
            f"{field} = {value} is a number of seconds, {_spoken(length)}; did you mean {meant}? "
            f'Write {name}="{meant}", or {name}="{value}s"',
            UserWarning,
            stacklevel=_level_of_user(),
        )
    return length


def looks_like_milliseconds(value: object) -> bool:
    """Return True for a bare number of 1,000 or more that is neither whole minutes nor, if round, whole hours."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value < _SUSPICIOUS or value != int(value):
        return False
    return value % 60 != 0 or (value % 1_000 == 0 and value % 3_600 != 0)


def _spoken(length: timedelta) -> str:
    seconds = length.total_seconds()
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:g} seconds"


def _level_of_user() -> int:
    """Return the level of the stack at which the user's code calls us, for `warnings.warn` in the caller."""
    this = inspect.currentframe()
    frame = this.f_back if this is not None else None
    level = 1
    while frame is not None and frame.f_code.co_filename.startswith(_HOUSE):
        frame, level = frame.f_back, level + 1
    return level
