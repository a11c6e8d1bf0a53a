"""Converts durations and instants as people write them into microseconds."""

import re
from datetime import UTC, datetime, timedelta

from tenure.core.check import shown
from tenure.errors import UsageError

Duration = float | int | timedelta | str
"""Seconds, a timedelta, or a text such as "30s", "1.5h", "2d"."""

_TEXT = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = timedelta(days=36_500)


def duration(value: Duration, *, field: str, zero: bool = False) -> timedelta:
    """Parse a duration. Errors name `field`; `zero` permits 0.

    Raises:
        UsageError: not a finite, positive duration of at most a hundred years.
    """
    match value:
        case timedelta():
            length = value
        case bool():
            raise UsageError(f"{field} = {shown(value)} is not a duration; {_REMEDY}")
        case int() | float():
            # This form also refuses NaN, and it does not raise for an integer that is too large for a float.
            if not abs(value) <= _LONGEST.total_seconds():
                raise UsageError(f"{field} = {shown(value)} is not a finite number of seconds; {_REMEDY}")
            length = timedelta(seconds=value)
        case str():
            read = _TEXT.fullmatch(value.strip())
            if read is None:
                raise UsageError(f"{field} = {shown(value)} is not a duration; {_REMEDY}")
            seconds = float(read[1]) * _UNIT[read[2]]
            if seconds > _LONGEST.total_seconds():
                raise UsageError(f"{field} = {shown(value)} is longer than a hundred years; {_REMEDY}")
            length = timedelta(seconds=seconds)
        case _:
            raise UsageError(f"{field} = {shown(value)} is not a duration; {_REMEDY}")
    if length > _LONGEST:
        raise UsageError(f"{field} = {shown(value)} is longer than a hundred years; {_REMEDY}")
    if length < timedelta(0) or (length == timedelta(0) and not zero):
        raise UsageError(f"{field} = {shown(value)} must be longer than zero; {_REMEDY}")
    return length


_REMEDY = 'give seconds, a timedelta, or a text such as "30s", "1.5h" or "2d"'


def micros(length: timedelta) -> int:
    """Return the duration in whole microseconds."""
    return (length.days * 86_400 + length.seconds) * 1_000_000 + length.microseconds


def duration_text(length: int) -> str:
    """Return microseconds as people write a duration, in the largest unit that leaves no fraction."""
    for unit in ("d", "h", "m", "s", "ms"):
        size = round(_UNIT[unit] * 1_000_000)
        if length >= size and length % size == 0:
            return f"{length // size}{unit}"
    return f"{length / 1_000_000:g}s"


def span_text(length: float) -> str:
    """Return microseconds as people say a duration, rounded: "2.5 hours"."""
    seconds = length / 1_000_000
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def instant(value: object, *, field: str) -> int:
    """Return an aware datetime as microseconds since 1970 (UTC).

    Raises:
        UsageError: it is not a datetime, is naive, or lies before the year 1 or after the year 9999 in UTC.
    """
    if not isinstance(value, datetime):
        raise UsageError(f"{field} = {shown(value)} is not a datetime; give one with a time zone, or use a delay")
    if value.utcoffset() is None:
        raise UsageError(
            f"{field} = {value.isoformat()} has no time zone; make it aware, with tzinfo=UTC or a ZoneInfo"
        )
    try:
        return micros(value.astimezone(UTC) - _EPOCH)
    except OverflowError:
        raise UsageError(
            f"{field} = {value.isoformat()} lies outside the years 1 to 9999 in UTC; give an instant within"
        ) from None


def moment(at: int) -> datetime:
    """Return microseconds since 1970 as an aware datetime in UTC."""
    return _EPOCH + timedelta(microseconds=at)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
