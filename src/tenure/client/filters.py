"""The fields that filters of jobs have in common: names, faults, and times as instants or ages."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from tenure.core.check import named, several, shown
from tenure.core.duration import Duration, duration, instant, micros, moment
from tenure.core.fingerprint import LENGTH
from tenure.errors import UsageError

Since = datetime | Duration
"""A point in time: an aware datetime, or a duration, which means how long ago by the storage's clock."""

Instant = datetime | timedelta
"""A checked `Since`."""


def names_of(values: Sequence[str] | None, *, field: str) -> tuple[str, ...]:
    """Return the names of a condition as a tuple; see `condition`.

    Raises:
        UsageError: it is not a list of valid names, or is empty.
    """
    return tuple(named(value, field=field) for value in condition(values, field=field))


def condition(values: Sequence[object] | None, *, field: str) -> tuple[object, ...]:
    """Return the values of a condition. Without values, return an empty tuple.

    Raises:
        UsageError: it is not a list, or it is empty. A caller's list that is empty by mistake must not select all jobs.
    """
    if values is None:
        return ()
    checked = several(values, field=field)
    if not checked:
        raise UsageError(f"{field} = [] is empty; name one or more, or leave {field} out to select all")
    return checked


def fault_named(value: object, *, field: str) -> str:
    """Return the fingerprint of a fault.

    Raises:
        UsageError: the value is not a fingerprint.
    """
    if not isinstance(value, str) or len(value) != LENGTH or not set(value) <= set("0123456789abcdef"):
        raise UsageError(
            f"{field} = {shown(value)} must be {LENGTH} hexadecimal digits; app.dead.groups() and tenure dead groups "
            "list them"
        )
    return value


def when(value: object, *, field: str) -> datetime | timedelta | None:
    """Return an instant or an age as it is given, checked.

    Raises:
        UsageError: it is neither an aware datetime nor a duration.
    """
    match value:
        case None:
            return None
        case datetime():
            return moment(instant(value, field=field))
        case int() | float() | str() | timedelta():
            return duration(value, field=field)
        case _:
            raise UsageError(
                f'{field} = {shown(value)} is not a time; give an aware datetime, or how long ago, such as "2h"'
            )


def in_order(
    since: datetime | timedelta | None, until: datetime | timedelta | None, *, fields: tuple[str, str]
) -> None:
    """Check that `since` is before `until`, as far as that is possible without a clock.

    Raises:
        UsageError: it is not.
    """
    match since, until:
        case datetime() as first, datetime() as last:
            empty = first >= last
        case timedelta() as longest, timedelta() as shortest:
            empty = longest <= shortest
        case _:
            empty = False
    if empty:
        message = f"{fields[0]} = {_time_text(since)} must lie before {fields[1]} = {_time_text(until)}"
        raise UsageError(f"{message}; swap or widen them")


def instant_of(when: datetime | timedelta | None, now: int) -> int | None:
    """Return an instant or an age in microseconds since 1970. `now`: the time of the storage's clock."""
    match when:
        case None:
            return None
        case datetime():
            return instant(when, field="")
        case timedelta():
            return now - micros(when)


def _time_text(when: datetime | timedelta | None) -> str:
    return when.isoformat() if isinstance(when, datetime) else f"{when} ago"
