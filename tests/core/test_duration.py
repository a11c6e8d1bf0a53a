"""Durations and instants as users write them."""

import math
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.core.duration import Duration, duration, duration_text, instant, micros, moment
from tenure.errors import UsageError


@pytest.mark.statement(53)
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1.5h", 5400),
        ("30s", 30),
        ("250ms", 0.25),
        ("2m", 120),
        ("2d", 172_800),
        (" 30s ", 30),
        ("0.5s", 0.5),
        (30, 30),
        (0.25, 0.25),
        (1e-6, 0.000_001),
        (timedelta(minutes=1), 60),
    ],
)
def test_a_duration_is_parsed(value: Duration, seconds: float) -> None:
    assert duration(value, field="delay") == timedelta(seconds=seconds)


@pytest.mark.statement(53)
@pytest.mark.parametrize(
    "value",
    [
        "",
        "0s",
        "0.0h",
        "-1s",
        "+1s",
        "10",
        "5w",
        "s",
        "1 s",
        "1e3s",
        ".5s",
        "1.s",
        "1,5s",
        "nan",
        "infs",
        "1S",
        "٣s٣",
        "1s1s",
        "99999999d",
        "9" * 400 + "s",
        0,
        -1,
        -0.5,
        1e-9,
        math.nan,
        math.inf,
        -math.inf,
        1e300,
        10**400,
        True,
        False,
        None,
        b"30s",
        ["30s"],
        timedelta(0),
        timedelta(seconds=-1),
        timedelta.max,
        timedelta.min,
    ],
    ids=lambda value: repr(value)[:20],
)
def test_an_invalid_duration_is_refused_by_name(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^Retry\.base = ") as refused:
        duration(value, field="Retry.base")

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", ["0s", 0, 0.0, timedelta(0)])
def test_zero_is_a_duration_where_it_is_allowed(value: Duration) -> None:
    assert duration(value, field="start_grace", zero=True) == timedelta(0)


@pytest.mark.parametrize("value", ["-1s", -1, timedelta(seconds=-1), math.nan, True])
def test_a_negative_duration_is_always_refused(value: Any) -> None:
    with pytest.raises(UsageError):
        duration(value, field="start_grace", zero=True)


def test_a_hundred_years_are_accepted() -> None:
    assert duration("36500d", field="ttl") == timedelta(days=36_500)
    with pytest.raises(UsageError, match="hundred years"):
        duration("36500.1d", field="ttl")
    with pytest.raises(UsageError, match="hundred years"):
        duration(timedelta(days=36_501), field="ttl")


@given(st.timedeltas())
def test_microseconds_are_exact(length: timedelta) -> None:
    assert timedelta(microseconds=micros(length)) == length


@given(st.datetimes(timezones=st.just(UTC)))
def test_an_instant_converts_to_its_datetime_and_back(value: datetime) -> None:
    assert moment(instant(value, field="run_at")) == value


def test_an_instant_means_the_same_in_every_zone() -> None:
    here = datetime(2026, 7, 1, 12, tzinfo=UTC)
    there = here.astimezone(timezone(timedelta(hours=5, minutes=45)))

    assert instant(here, field="run_at") == instant(there, field="run_at") == 1_782_907_200_000_000


def test_an_instant_without_a_zone_is_refused() -> None:
    with pytest.raises(UsageError, match="run_at = 2026-07-01T12:00:00 has no time zone"):
        instant(datetime(2026, 7, 1, 12), field="run_at")


@pytest.mark.parametrize("value", ["2026-07-01", 30, date(2026, 7, 1), None])
def test_only_a_datetime_is_an_instant(value: object) -> None:
    with pytest.raises(UsageError, match="is not a datetime; give one with a time zone"):
        instant(value, field="run_at")


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (0, "0s"),
        (1, "1e-06s"),
        (250_000, "250ms"),
        (1_500_000, "1500ms"),
        (30_000_000, "30s"),
        (60_000_000, "1m"),
        (5_400_000_000, "90m"),
        (7_200_000_000, "2h"),
        (86_400_000_000, "1d"),
        (90_000_000_000, "25h"),
    ],
)
def test_a_duration_is_shown_in_the_largest_unit_without_a_fraction(length: int, words: str) -> None:
    assert duration_text(length) == words


@given(st.integers(1, 3_153_600_000).map(lambda millis: millis * 1000))
def test_a_duration_that_is_shown_can_be_parsed_again(length: int) -> None:
    assert micros(duration(duration_text(length), field="ttl")) == length


@pytest.mark.parametrize("value", ["36501d", timedelta(days=36_501), timedelta.max])
def test_over_a_hundred_years_is_refused(value: Duration) -> None:
    with pytest.raises(UsageError, match="longer than a hundred years"):
        duration(value, field="ttl")
