"""Cron texts and intervals: how they are parsed, and when they are due, including clock changes."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tenure.clock import SECOND
from tenure.core.cron import COUNTED, Cron, Every, Rhythm
from tenure.core.duration import instant, moment
from tenure.errors import UsageError

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def at(text: str, tz: str = "UTC", *, fold: int = 0) -> int:
    return instant(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz), fold=fold), field="at")


def shown(tick: int, tz: str = "UTC") -> str:
    return moment(tick).astimezone(ZoneInfo(tz)).strftime("%Y-%m-%d %H:%M:%S")


def day_of(rhythm: Rhythm, day: str, tz: str) -> list[str]:
    """Return the ticks of a local day as the clocks of the zone show them."""
    start = at(f"{day} 00:00", tz)
    end = at(f"{datetime.fromisoformat(day) + timedelta(days=1):%Y-%m-%d} 00:00", tz)
    return [shown(tick, tz)[11:16] for tick in rhythm.between(start - 1, end - 1, 10_000)]


# ── parsing ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("* * * * *", ["2026-03-04 10:31:00", "2026-03-04 10:32:00"]),
        ("*/15 * * * *", ["2026-03-04 10:45:00", "2026-03-04 11:00:00"]),
        ("5-20/5,40 * * * *", ["2026-03-04 10:40:00", "2026-03-04 11:05:00", "2026-03-04 11:10:00"]),
        ("0 4 * * *", ["2026-03-05 04:00:00", "2026-03-06 04:00:00"]),
        ("30 10 * * *", ["2026-03-05 10:30:00"]),
        ("15,45 3,4 * * *", ["2026-03-05 03:15:00", "2026-03-05 03:45:00", "2026-03-05 04:15:00"]),
        ("0 0 1 jan *", ["2027-01-01 00:00:00", "2028-01-01 00:00:00"]),
        ("0 0 1 JAN-mar *", ["2027-01-01 00:00:00", "2027-02-01 00:00:00", "2027-03-01 00:00:00"]),
        ("0 9 * * mon-fri", ["2026-03-05 09:00:00", "2026-03-06 09:00:00", "2026-03-09 09:00:00"]),
        ("0 9 * * 5-7", ["2026-03-06 09:00:00", "2026-03-07 09:00:00", "2026-03-08 09:00:00", "2026-03-13 09:00:00"]),
        ("0 9 * * fri-sun", ["2026-03-06 09:00:00", "2026-03-07 09:00:00", "2026-03-08 09:00:00"]),
        ("0 9 * * 7", ["2026-03-08 09:00:00", "2026-03-15 09:00:00"]),
        ("0 9 * * 0", ["2026-03-08 09:00:00"]),
        ("0 9 ? * sun", ["2026-03-08 09:00:00"]),
        ("0 9 8 * ?", ["2026-03-08 09:00:00", "2026-04-08 09:00:00"]),
        ("0 0 L * *", ["2026-03-31 00:00:00", "2026-04-30 00:00:00", "2026-05-31 00:00:00"]),
        ("0 0 l feb *", ["2027-02-28 00:00:00", "2028-02-29 00:00:00"]),
        ("0 0 15,L * *", ["2026-03-15 00:00:00", "2026-03-31 00:00:00", "2026-04-15 00:00:00"]),
        ("0 0 13 * fri", ["2026-03-06 00:00:00", "2026-03-13 00:00:00", "2026-03-20 00:00:00"]),
        ("0 0 L * fri", ["2026-03-06 00:00:00", "2026-03-13 00:00:00", "2026-03-20 00:00:00", "2026-03-27 00:00:00"]),
        ("0 0 */10 * mon", ["2026-05-11 00:00:00", "2026-06-01 00:00:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00:00", "2032-02-29 00:00:00"]),
        ("0 0 31 * *", ["2026-03-31 00:00:00", "2026-05-31 00:00:00", "2026-07-31 00:00:00"]),
        ("0 0 31 2 mon", ["2027-02-01 00:00:00"]),
        ("*/20 * * * * *", ["2026-03-04 10:30:40", "2026-03-04 10:31:00"]),
        ("59 59 23 31 12 *", ["2026-12-31 23:59:59", "2027-12-31 23:59:59"]),
        ("0 30 10 4 3 *", ["2027-03-04 10:30:00"]),
        ("@hourly", ["2026-03-04 11:00:00"]),
        ("@Daily", ["2026-03-05 00:00:00"]),
        ("@midnight", ["2026-03-05 00:00:00"]),
        ("@weekly", ["2026-03-08 00:00:00"]),
        ("@monthly", ["2026-04-01 00:00:00"]),
        ("@yearly", ["2027-01-01 00:00:00"]),
        ("@annually", ["2027-01-01 00:00:00"]),
    ],
)
def test_a_cron_text_is_parsed(text: str, ticks: list[str]) -> None:
    cron = Cron.parse(text)

    found = cron.between(at("2026-03-04 10:30:20"), at("2099-01-01"), len(ticks))

    assert [shown(tick) for tick in found] == ticks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "must be a text"),
        (5, "must be a text"),
        ("", "has 0 fields"),
        ("0 4 * *", "has 4 fields, not 5 or 6; write minute, hour"),
        ("0 0 0 4 * * *", "has 7 fields"),
        ("@reboot", "use one of @hourly, @daily"),
        ("60 * * * *", "minute '60' is unknown; use 0 to 59"),
        ("* 24 * * *", "hour '24' is unknown; use 0 to 23"),
        ("* * 0 * *", "day of month '0' is unknown; use 1 to 31"),
        ("* * 32 * *", "day of month '32'"),
        ("* * * 13 *", "month '13' is unknown; use 1 to 12 or jan to dec"),
        ("* * * mon *", "month 'mon'"),
        ("* * * * 8", "day of week '8' is unknown; use 0 to 7 or sun to sat"),
        ("* * * * jan", "day of week 'jan'"),
        ("60 * * * * *", "second '60' is unknown"),
        ("-1 * * * *", "minute '-1'"),
        ("1.5 * * * *", "minute '1.5'"),
        ("1,,2 * * * *", "minute ''"),
        ("*-5 * * * *", "minute '*-5'"),
        ("? * * * *", "minute '?'"),
        ("* * ?/2 * *", "day of month '?/2' is unknown; use 1 to 31, ranges such as 1-5, steps such as */5"),
        ("* * ?,5 * *", "day of month '?'"),
        ("* * L-3 * *", "? for any, L for the last"),
        ("* * 15W * *", "day of month '15W'"),
        ("* * * * 5L", "day of week '5L'"),
        ("* * * * 1#2", "day of week '1#2'"),
        ("٣ * * * *", "minute '٣'"),
        ("30-10 * * * *", "minute '30-10' runs backwards; write two ranges, such as 30-59,0-10"),
        ("0 0 * * sat-mon", "day of week 'sat-mon' runs backwards"),
        ("5/15 * * * *", "minute '5/15' has a step but no range; write 5-59/15"),
        ("*/0 * * * *", "minute '*/0' has a step outside 1 to 59"),
        ("*/90 * * * *", "minute '*/90' has a step outside 1 to 59; a longer rhythm is an interval"),
        ("0 0 30 2 *", "is never due: none of its months has a day 30; L is a month's last day"),
        ("0 0 31 4,6,9,11 *", "is never due"),
    ],
)
def test_a_bad_cron_text_is_refused_with_its_remedy(text: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Cron.parse(text, field="pattern")

    assert str(caught.value).startswith("pattern = ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "tz", ["", "Mars/Olympus", "Europe", "../etc/passwd", "/etc/passwd", "Europe/\0", None, 1, UTC]
)
def test_an_unknown_time_zone_is_refused_with_its_remedy(tz: Any) -> None:
    with pytest.raises(UsageError, match=r'^zone = .* write "UTC" or "Europe/Vienna"'):
        Cron.parse("0 4 * * *", tz, zone="zone")


def test_a_time_zone_object_is_accepted() -> None:
    assert Cron.parse("0 4 * * *", ZoneInfo("Asia/Tokyo")) == Cron.parse("0 4 * * *", "Asia/Tokyo")


def test_recurrences_are_shown_as_text() -> None:
    assert str(Cron.parse(" 0  4 * * MON ", "Europe/Vienna")) == "0 4 * * MON Europe/Vienna"
    assert str(Every.parse("90s")) == "every 90s"


# ── gaps and folds ────────────────────────────────────────────────────────────────────────────────────────────────

EVERY_HOUR = [f"{hour:02}:00" for hour in range(24)]


@pytest.mark.parametrize(
    ("tz", "day", "text", "ticks"),
    [
        # Europe/Vienna: 02:00 to 03:00 is left out on 29 March 2026 and comes twice on 25 October.
        ("Europe/Vienna", "2026-03-29", "0 * * * *", EVERY_HOUR[:2] + EVERY_HOUR[3:]),
        ("Europe/Vienna", "2026-10-25", "0 * * * *", [*EVERY_HOUR[:3], "02:00", *EVERY_HOUR[3:]]),
        ("Europe/Vienna", "2026-03-29", "0 */2 * * *", EVERY_HOUR[:1] + EVERY_HOUR[4::2]),
        ("Europe/Vienna", "2026-10-25", "0 */2 * * *", ["00:00", "02:00", "02:00", *EVERY_HOUR[4::2]]),
        ("Europe/Vienna", "2026-10-25", "30 0-23 * * *", [f"{hour:02}:30" for hour in range(24)]),
        ("Europe/Vienna", "2026-03-29", "0 0-23 * * *", EVERY_HOUR[:2] + EVERY_HOUR[3:]),
        ("Europe/Vienna", "2026-03-29", "30 2 * * *", ["03:00"]),
        ("Europe/Vienna", "2026-03-29", "*/10 2 * * *", ["03:00"]),
        ("Europe/Vienna", "2026-03-29", "0,30 1-3 * * *", ["01:00", "01:30", "03:00", "03:30"]),
        ("Europe/Vienna", "2026-10-25", "30 2 * * *", ["02:30"]),
        ("Europe/Vienna", "2026-10-25", "*/20 1-3 * * *", [f"0{h}:{m:02}" for h in (1, 2, 3) for m in (0, 20, 40)]),
        ("America/New_York", "2026-03-08", "0 2 * * *", ["03:00"]),
        ("America/New_York", "2026-03-08", "30 * * * *", [f"{hour:02}:30" for hour in range(24) if hour != 2]),
        ("America/New_York", "2026-11-01", "0 1 * * *", ["01:00"]),
        ("America/New_York", "2026-11-01", "0 * * * *", ["00:00", "01:00", "01:00", *EVERY_HOUR[2:]]),
        # Australia/Lord_Howe: half an hour. 02:00 to 02:30 is left out, 01:30 to 02:00 comes twice.
        ("Australia/Lord_Howe", "2026-10-04", "15 2 * * *", ["02:30"]),
        ("Australia/Lord_Howe", "2026-10-04", "0 * * * *", EVERY_HOUR[:2] + EVERY_HOUR[3:]),
        ("Australia/Lord_Howe", "2026-04-05", "45 1 * * *", ["01:45"]),
        (
            "Australia/Lord_Howe",
            "2026-04-05",
            "45 * * * *",
            ["00:45", "01:45", "01:45", *[f"{hour:02}:45" for hour in range(2, 24)]],
        ),
        ("Australia/Lord_Howe", "2026-04-05", "0 * * * *", EVERY_HOUR),
        # Africa/Casablanca: back an hour for Ramadan at 03:00 on 15 February 2026, and forward at 02:00 on 22 March.
        ("Africa/Casablanca", "2026-02-15", "30 2 * * *", ["02:30"]),
        (
            "Africa/Casablanca",
            "2026-02-15",
            "30 * * * *",
            ["00:30", "01:30", "02:30", "02:30", *[f"{hour:02}:30" for hour in range(3, 24)]],
        ),
        ("Africa/Casablanca", "2026-03-22", "30 2 * * *", ["03:00"]),
        # Pacific/Apia: 30 December 2011 did not exist.
        ("Pacific/Apia", "2011-12-31", "0 12 * * *", ["00:00", "12:00"]),
        ("Pacific/Apia", "2011-12-31", "0 12 30 12 *", ["00:00"]),
        ("Pacific/Apia", "2011-12-31", "0 */6 * * *", ["00:00", "06:00", "12:00", "18:00"]),
        ("UTC", "2026-03-29", "0 * * * *", EVERY_HOUR),
        ("UTC", "2026-03-29", "30 2 * * *", ["02:30"]),
    ],
)
def test_a_day_of_a_gap_or_a_fold_has_the_ticks_of_the_table(tz: str, day: str, text: str, ticks: list[str]) -> None:
    assert day_of(Cron.parse(text, tz), day, tz) == ticks


def test_the_two_passes_of_a_fold_are_different_instants() -> None:
    cron = Cron.parse("*/30 * * * *", "Europe/Vienna")

    first = at("2026-10-25 02:00", "Europe/Vienna")

    assert cron.next_after(first) == first + 30 * MINUTE == at("2026-10-25 02:30", "Europe/Vienna")
    assert cron.next_after(first + 30 * MINUTE) == first + HOUR == at("2026-10-25 02:00", "Europe/Vienna", fold=1)
    assert cron.next_after(first + 90 * MINUTE) == first + 2 * HOUR == at("2026-10-25 03:00", "Europe/Vienna")


def test_a_fixed_time_is_not_due_again_in_the_second_pass() -> None:
    cron = Cron.parse("* 2 * * *", "Europe/Vienna")
    start = at("2026-10-25 02:00", "Europe/Vienna", fold=1)

    for second in (start, start + SECOND, start + 30 * MINUTE, start + HOUR - 1):
        assert cron.next_after(second) == at("2026-10-26 02:00", "Europe/Vienna")

    assert cron.next_after(start - 1) == at("2026-10-26 02:00", "Europe/Vienna")
    assert cron.next_after(start - MINUTE - 1) == start - MINUTE


# ── properties ────────────────────────────────────────────────────────────────────────────────────────────────────

ZONES = [
    "UTC",
    "Europe/Vienna",
    "America/New_York",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "Pacific/Apia",
    "America/St_Johns",
    "Asia/Kathmandu",
]
TURNS = [
    "2011-12-30 10:00",
    "2024-03-10 07:00",
    "2026-02-15 02:00",
    "2026-03-22 02:00",
    "2026-03-29 01:00",
    "2026-10-25 01:00",
    "2026-04-04 15:00",
    "2026-10-03 15:30",
    "2026-11-01 05:30",
    "2028-02-29 00:00",
]


@st.composite
def fields(draw: st.DrawFn, least: int, most: int) -> tuple[str, frozenset[int]]:
    """Return a field as it is written, and the numbers that it means."""
    step = draw(st.integers(1, most))
    match draw(st.sampled_from(["star", "star", "step", "list", "range"])):
        case "star":
            return "*", frozenset(range(least, most + 1))
        case "step":
            return f"*/{step}", frozenset(range(least, most + 1, step))
        case "list":
            numbers = draw(st.lists(st.integers(least, most), min_size=1, max_size=4))
            return ",".join(map(str, numbers)), frozenset(numbers)
        case _:
            low = draw(st.integers(least, most))
            high = draw(st.integers(low, most))
            return f"{low}-{high}/{step}", frozenset(range(low, high + 1, step))


LONG = {1, 3, 5, 7, 8, 10, 12}

minutes = fields(0, 59)
hours = fields(0, 23)
days = fields(1, 31)
months = fields(1, 12)
weekdays = fields(0, 6)
starts = st.one_of(
    st.tuples(st.sampled_from(TURNS).map(at), st.integers(-30 * HOUR, 2 * HOUR)).map(sum),
    st.integers(at("2000-01-01"), at("2040-01-01")),
)


def scanned(parts: list[tuple[str, frozenset[int]]], tz: str, start: int, end: int) -> list[int]:
    """Return the ticks from `start` to `end`, found by checking each minute: slow and simple."""
    (_, minute), (hour_text, hour), (day_text, day), (_, month), (week_text, week) = parts
    moving = hour_text.startswith("*")
    either = day_text[0] != "*" and week_text[0] != "*"

    def matches(wall: datetime) -> bool:
        in_month, in_week = wall.day in day, wall.isoweekday() % 7 in week
        return (
            wall.minute in minute
            and wall.hour in hour
            and wall.month in month
            and (in_month or in_week if either else in_month and in_week)
        )

    zone = ZoneInfo(tz)
    ticks: list[int] = []
    before = moment(start - MINUTE).astimezone(zone).replace(tzinfo=None)
    for tick in range(start, end, MINUTE):
        local = moment(tick).astimezone(zone)
        wall = local.replace(tzinfo=None, fold=0)
        left_out = (before + timedelta(minutes=n) for n in range(1, round((wall - before) / timedelta(minutes=1))))
        kept = matches(wall) and not local.fold
        if (moving and matches(wall)) or (not moving and (kept or any(matches(left) for left in left_out))):
            ticks.append(tick)
        before = wall
    return ticks


# Each example checks 2,400 minutes.
@settings(deadline=None, max_examples=30)
@given(minutes, hours, days, months, weekdays, st.sampled_from(ZONES), starts)
@example(("*", frozenset(range(60))), ("2", frozenset({2})), *[("*", frozenset(range(32)))] * 3, ZONES[1], at(TURNS[4]))
@example(
    ("*", frozenset(range(60))), ("*", frozenset(range(24))), *[("*", frozenset(range(32)))] * 3, ZONES[3], at(TURNS[6])
)
def test_the_ticks_are_those_that_a_check_of_each_minute_finds(
    minute: tuple[str, frozenset[int]],
    hour: tuple[str, frozenset[int]],
    day: tuple[str, frozenset[int]],
    month: tuple[str, frozenset[int]],
    weekday: tuple[str, frozenset[int]],
    tz: str,
    start: int,
) -> None:
    parts = [minute, hour, day, month, weekday]
    start -= start % MINUTE
    end = start + 40 * HOUR
    text = " ".join(text for text, _ in parts)
    # Days that even the longest of its months does not have make a text that is refused.
    assume(min(day[1]) <= 29 or month[1] & LONG or (day[0][0] != "*" and weekday[0][0] != "*"))

    found = Cron.parse(text, tz).between(start - 1, end - 1, 10_000)

    assert list(found) == scanned(parts, tz, start, end)


@st.composite
def crons(draw: st.DrawFn) -> Cron:
    parts = [draw(minutes), draw(hours), draw(st.one_of(fields(1, 28), st.just(("L", frozenset[int]())))), draw(months)]
    text = " ".join(text for text, _ in parts)
    second = draw(st.one_of(st.just(""), fields(0, 59).map(lambda field: field[0] + " ")))
    return Cron.parse(f"{second}{text} {draw(weekdays)[0]}", draw(st.sampled_from(ZONES)))


rhythms = st.one_of(crons(), st.builds(Every, st.integers(SECOND, 30 * DAY)))


@given(rhythms, starts)
def test_ticks_strictly_rise_and_none_lies_between_two(rhythm: Rhythm, start: int) -> None:
    ticks = rhythm.between(start, start + 60 * 365 * DAY, 5)

    assert ticks
    assert ticks[0] > start
    for pair, other in pairwise(ticks):
        assert pair < other
        assert rhythm.next_after(pair) == other
        assert rhythm.next_after(other - 1) == other
        assert rhythm.next_after((pair + other) // 2) == other


@settings(deadline=None)
@given(rhythms, starts, st.integers(0, 3 * DAY), st.integers(1, 50))
def test_the_newest_are_the_last_of_all(rhythm: Rhythm, start: int, length: int, limit: int) -> None:
    every = rhythm.between(start, start + length, 2_000)
    length = min(length, every[-1] - start) if len(every) == 2_000 else length

    assert rhythm.newest(start, start + length, limit) == every[-limit:]
    assert rhythm.between(start, start + length, limit) == every[:limit]
    # A cron's ticks have to be found one by one, so no more than this number are counted.
    most = COUNTED if isinstance(rhythm, Cron) else len(every)
    assert rhythm.count(start, start + length) == min(len(every), most)


# ── how far, how fast ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_rare_day_is_found_however_far_it_is() -> None:
    leap_sunday = Cron.parse("0 0 29 2 */7")

    assert leap_sunday.next_after(at("2088-03-01")) == at("2128-02-29")
    assert Cron.parse("0 0 29 2 *").next_after(at("2096-03-01")) == at("2104-02-29")


@pytest.mark.parametrize("text", ["0 0 1 1 *", "0 * 1 1 *"])
def test_ticks_end_with_the_calendar(text: str) -> None:
    cron = Cron.parse(text)

    assert cron.next_after(at("9998-06-01")) is None
    assert cron.between(at("9997-06-01"), at("9999-06-01"), 100)[-1] <= at("9998-01-01 23:00")


def test_the_newest_of_many_years_are_found_without_visiting_all() -> None:
    now = at("2026-03-04 10:30")

    assert Every(SECOND).newest(0, now, 2) == (now - SECOND, now)
    assert Every(SECOND).count(0, now) == now // SECOND
    assert Every(SECOND).count(now, 0) == 0
    assert Cron.parse("* * * * *").count(0, now) == 1_000
    assert Cron.parse("0 0 1 1 *").newest(0, now, 2) == (at("2025-01-01"), at("2026-01-01"))


# ── intervals ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_ticks_of_an_interval_are_its_multiples_at_any_start() -> None:
    every = Every.parse("5m")

    assert every.next_after(at("2026-03-04 10:31:17")) == at("2026-03-04 10:35:00")
    assert every.next_after(at("2026-03-04 10:35:00")) == at("2026-03-04 10:40:00")
    assert every.next_after(at("2026-03-04 10:35:00") - 1) == at("2026-03-04 10:35:00")


@pytest.mark.parametrize("interval", ["999ms", 0.5, timedelta(milliseconds=1), 0, -1, "1 minute", None])
def test_an_interval_below_a_second_is_refused(interval: Any) -> None:
    with pytest.raises(UsageError, match=r"^every = "):
        Every.parse(interval)
