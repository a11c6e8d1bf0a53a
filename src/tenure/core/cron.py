"""Computes when a schedule is due: cron texts and plain intervals, as instants in UTC.

The clocks of a zone skip times (a gap) and show some twice (a fold). The hour field decides about a tick there, because
it shows whether the schedule means a time of day or a rhythm:

                                    in a gap                      in a fold
    hour is `*` or `*/n`            skipped                       in both passes
    any other hour: `4`, `1,3`      once, at the end of the gap   in the first pass only

So `0 * * * *` has 23 ticks on the day of a gap and 25 on that of a fold, and `30 2 * * *` has one on each.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct

from tenure.core.check import shown
from tenure.core.duration import Duration, duration, duration_text, micros, moment
from tenure.errors import UsageError

_SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

YEARS = 50
"""How far ahead a tick is searched for. The 29th of February falls on a given weekday at least every 40 years."""

COUNTED = 1_000
"""The maximum count of a cron text's ticks; it stands for this number or more.

The search takes some 30 us per tick, and the sweep often runs in a worker, with handlers on the same loop."""


class Cron(Struct, frozen=True):
    """A parsed cron text, with the time zone whose clocks it follows. Make one with `Cron.parse`."""

    text: str
    zone: ZoneInfo
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    last_day: bool
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    either: bool
    """Day of month and day of week are both given, so a day matches if one of them does."""
    moving: bool
    """The hour is `*` or `*/n`: a rhythm, which follows the elapsed time, not the shown time."""

    @classmethod
    def parse(cls, text: object, tz: object = "UTC", *, field: str = "cron", zone: str = "tz") -> "Cron":
        """Parse a cron text: minute, hour, day of month, month, day of week, or six fields with the second first.

        Errors name `field` and `zone`.

        Raises:
            UsageError: the text is not a cron text, it can never be due, or the time zone is unknown.
        """
        if not isinstance(text, str):
            raise UsageError(f"{field} = {shown(text)} must be a text; {_REMEDY}")
        setting = f"{field} = {shown(text)}"
        words = text.split()
        if len(words) == 1 and words[0].startswith("@"):
            if words[0].lower() not in _NICKNAMES:
                raise UsageError(f"{setting} is unknown; use one of {', '.join(_NICKNAMES)}")
            words = _NICKNAMES[words[0].lower()].split()
        if len(words) not in (5, 6):
            raise UsageError(f"{setting} has {len(words)} fields, not 5 or 6; {_REMEDY}")
        second, minute, hour, day, month, weekday = words if len(words) == 6 else ["0", *words]
        kept = [part for part in day.split(",") if part.upper() != "L"]
        last_day = len(kept) < len(day.split(","))
        months = _MONTH.read(month, setting)
        days = _DAY.read(",".join(kept), setting) if kept else ()
        # As in Vixie's cron, a field that begins with a star does not restrict the days, and both fields must match.
        either = day[0] not in "*?" and weekday[0] not in "*?"
        weekdays = tuple(sorted({number % 7 for number in _WEEKDAY.read(weekday, setting)}))
        if not (either or last_day or min(days) <= max(_LONGEST[number] for number in months)):
            raise UsageError(
                f"{setting} is never due: none of its months has a day {min(days)}; L is a month's last day"
            )
        return cls(
            text=" ".join(text.split()),
            zone=_zone(tz, field=zone),
            seconds=_SECOND_FIELD.read(second, setting),
            minutes=_MINUTE.read(minute, setting),
            hours=_HOUR.read(hour, setting),
            days=days,
            last_day=last_day,
            months=months,
            weekdays=weekdays,
            either=either,
            moving=re.fullmatch(r"\*(/\d+)?", hour) is not None,
        )

    def next_after(self, at: int) -> int | None:
        """Return the first tick after an instant, or None if the next fifty years (until 9999) have none."""
        if self.zone.key == "UTC":
            # The clocks of this zone skip no time and show none twice.
            shown_next = self._wall_after(moment(at).replace(tzinfo=None, microsecond=0))
            return None if shown_next is None else micros(shown_next.replace(tzinfo=UTC) - _EPOCH)
        return self._moving_after(at) if self.moving else self._fixed_after(at)

    def between(self, after: int, until: int, limit: int) -> tuple[int, ...]:
        """Return the ticks after one instant, up to and including another, oldest first; at most `limit`."""
        return _between(self, after, until, limit)

    def newest(self, after: int, until: int, limit: int) -> tuple[int, ...]:
        """Return as `between` does, but keep the newest ticks if there are too many."""
        return _newest(self, after, until, limit)

    def count(self, after: int, until: int) -> int:
        """Return how many ticks lie after one instant, up to and including another; 1,000 if there are more."""
        return len(_between(self, after, until, COUNTED))

    def __str__(self) -> str:
        return f"{self.text} {self.zone.key}"

    def _fixed_after(self, at: int) -> int | None:
        wall = self._wall(at)
        if wall.fold:
            # Times that the clocks show for the second time had their ticks in the first pass.
            first, _ = self._passes(wall)
            wall += timedelta(microseconds=self._change(first, at) - first - _SECOND)
        shown_next = self._wall_after(wall)
        if shown_next is None:
            return None
        first, second = self._passes(shown_next)
        return first if first <= second else self._change(second, first)

    def _moving_after(self, at: int) -> int | None:
        wall = self._wall(at)
        found = self._first_shown(wall, at)
        first, second = self._passes(wall)
        if not wall.fold and first < second:
            # In the first pass of a fold: the second pass shows earlier times again, before later ones.
            turn = self._change(first, second)
            if found is None or found >= turn:
                found = self._first_shown(self._wall(turn) - timedelta(seconds=1), turn - 1)
        return found

    def _first_shown(self, wall: datetime, at: int) -> int | None:
        """Return the first instant after `at` at which the clocks show a time that matches and is later than `wall`."""
        while (shown_next := self._wall_after(wall)) is not None:
            first, second = self._passes(shown_next)
            if first <= second:
                return first if first > at else second
            wall = self._wall(self._change(second, first)) - timedelta(seconds=1)
        return None

    def _wall(self, at: int) -> datetime:
        """Return the time that the clocks show at an instant, to the second; `fold` marks the second showing."""
        return moment(at).astimezone(self.zone).replace(tzinfo=None, microsecond=0)

    def _passes(self, wall: datetime) -> tuple[int, int]:
        """Return when the clocks show this time for the first time and for the second time.

        Both are the same instant if they show it once. In a gap the first is the later one: the clocks never show this
        time, and it lies between the two.
        """
        first, second = (micros(wall.replace(tzinfo=self.zone, fold=fold) - _EPOCH) for fold in (0, 1))
        return first, second

    def _change(self, before: int, after: int) -> int:
        """Return the instant between these two at which the UTC offset changes."""

        def changed(second: int) -> bool:
            return moment(second * _SECOND).astimezone(self.zone).utcoffset() != offset

        offset = moment(before).astimezone(self.zone).utcoffset()
        seconds = range(before // _SECOND, after // _SECOND)
        return seconds.start * _SECOND + bisect_left(seconds, True, key=changed) * _SECOND

    def _wall_after(self, wall: datetime) -> datetime | None:
        """Return the next time of day on a day that matches, as clocks without gaps and folds would show it."""
        today: date | None = wall.date()
        time = self._time_after(wall.hour, wall.minute, wall.second)
        if time is None or not self._falls_on(wall):
            time = self.hours[0], self.minutes[0], self.seconds[0]
            today = next((day for day in self._dates_after(wall.date()) if self._falls_on(day)), None)
        return None if today is None else datetime(today.year, today.month, today.day, *time)

    def _time_after(self, hour: int, minute: int, second: int) -> tuple[int, int, int] | None:
        if hour in self.hours:
            if minute in self.minutes and (next_second := _above(self.seconds, second)) is not None:
                return hour, minute, next_second
            if (next_minute := _above(self.minutes, minute)) is not None:
                return hour, next_minute, self.seconds[0]
        next_hour = _above(self.hours, hour)
        return None if next_hour is None else (next_hour, self.minutes[0], self.seconds[0])

    def _falls_on(self, day: date) -> bool:
        in_month = day.day in self.days or (self.last_day and (day + timedelta(days=1)).day == 1)
        in_week = day.isoweekday() % 7 in self.weekdays
        return day.month in self.months and (in_month or in_week if self.either else in_month and in_week)

    def _dates_after(self, day: date) -> Iterator[date]:
        """Yield the days of the matching months, starting after `day`."""
        for year in range(day.year, min(day.year + YEARS, 9998) + 1):
            for month in self.months:
                if (year, month) < (day.year, day.month):
                    continue
                next_date = day + timedelta(days=1) if (year, month) == (day.year, day.month) else date(year, month, 1)
                while next_date.month == month:
                    yield next_date
                    next_date += timedelta(days=1)


class Every(Struct, frozen=True):
    """A plain interval, in microseconds: ticks at its multiples since 1970, so a restart does not shift them."""

    interval: int

    @classmethod
    def parse(cls, interval: Duration, *, field: str = "every") -> "Every":
        """Parse an interval; errors name `field`.

        Raises:
            UsageError: it is not a duration, or is below one second.
        """
        length = micros(duration(interval, field=field))
        if length < _SECOND:
            raise UsageError(
                f"{field} = {shown(interval)} is less than a second; a schedule ticks once a second at most"
            )
        return cls(length)

    def next_after(self, at: int) -> int:
        """Return the first tick after an instant."""
        return (at // self.interval + 1) * self.interval

    def between(self, after: int, until: int, limit: int) -> tuple[int, ...]:
        """Return the ticks after one instant, up to and including another, oldest first; at most `limit`."""
        return _between(self, after, until, limit)

    def newest(self, after: int, until: int, limit: int) -> tuple[int, ...]:
        """Return as `between` does, but keep the newest ticks if there are too many."""
        return _newest(self, after, until, limit)

    def count(self, after: int, until: int) -> int:
        """Return how many ticks lie after one instant, up to and including another."""
        return max(0, until // self.interval - after // self.interval)

    def __str__(self) -> str:
        return f"every {duration_text(self.interval)}"


class Within(Struct, frozen=True):
    """The ticks of another rhythm that do not lie before `start` or after `end`."""

    rhythm: "Cron | Every"
    start: int | None
    end: int | None

    def next_after(self, at: int) -> int | None:
        """Return the first tick after an instant, None if there are no more."""
        tick = self.rhythm.next_after(self._after(at))
        return None if tick is None or tick > self._until(tick) else tick

    def between(self, after: int, until: int, limit: int) -> tuple[int, ...]:
        """Return the ticks after one instant, up to and including another, oldest first; at most `limit`."""
        after, until = self._after(after), self._until(until)
        return self.rhythm.between(after, until, limit) if after < until else ()

    def newest(self, after: int, until: int, limit: int) -> tuple[int, ...]:
        """Return as `between` does, but keep the newest ticks if there are too many."""
        after, until = self._after(after), self._until(until)
        return self.rhythm.newest(after, until, limit) if after < until else ()

    def count(self, after: int, until: int) -> int:
        """Return how many ticks lie after one instant, up to and including another."""
        after, until = self._after(after), self._until(until)
        return self.rhythm.count(after, until) if after < until else 0

    def _after(self, at: int) -> int:
        return at if self.start is None else max(at, self.start - 1)

    def _until(self, at: int) -> int:
        return at if self.end is None else min(at, self.end)


Rhythm = Cron | Every | Within
"""The source of a schedule's ticks."""


def _between(rhythm: Rhythm, after: int, until: int, limit: int) -> tuple[int, ...]:
    ticks: list[int] = []
    while len(ticks) < limit and (tick := rhythm.next_after(after)) is not None and tick <= until:
        ticks.append(tick)
        after = tick
    return tuple(ticks)


def _newest(rhythm: Rhythm, after: int, until: int, limit: int) -> tuple[int, ...]:
    """Look back twice as far each time, which keeps the search short for both long and short intervals."""
    back, end = _SECOND, until
    ticks = tuple[int, ...]()
    while True:
        start = max(after, until - back)
        ticks = _between(rhythm, start, end, back // _SECOND) + ticks
        if len(ticks) >= limit or start == after:
            return ticks[max(0, len(ticks) - limit) :]
        back, end = 2 * back, start


class _Field(Struct, frozen=True):
    """One field of a cron text: its name, and the numbers and words that it accepts."""

    name: str
    least: int
    most: int
    names: Mapping[str, int] = {}
    of_days: bool = False

    def read(self, text: str, setting: str) -> tuple[int, ...]:
        """Return the numbers that a field stands for, in order."""
        numbers: set[int] = set()
        for part in text.split(","):
            read = _PART.fullmatch(part)
            if read is None:
                raise self._wrong(part, setting)
            low, high, step = read["low"], read["high"], read["step"]
            if low in ("*", "?"):
                if high is not None or (low == "?" and (text != "?" or not self.of_days)):
                    raise self._wrong(part, setting)
                first, last = self.least, self.most
            else:
                first = self._number(low, part, setting)
                last = first if high is None else self._number(high, part, setting)
                if self.name == "day of week" and last == 0 < first:
                    last = 7
            if last < first:
                raise UsageError(
                    f"{setting}: {self.name} {part!r} runs backwards; write two ranges, such as {low}-{self.most},"
                    f"{self.least}-{high}"
                )
            if step is not None and high is None and low != "*":
                raise UsageError(
                    f"{setting}: {self.name} {part!r} has a step but no range; write {low}-{self.most}/{step}"
                )
            if step is not None and not 1 <= int(step) <= self.most:
                raise UsageError(
                    f"{setting}: {self.name} {part!r} has a step outside 1 to {self.most}; a longer rhythm is an "
                    "interval"
                )
            numbers.update(range(first, last + 1, int(step or 1)))
        return tuple(sorted(numbers))

    def _number(self, word: str, part: str, setting: str) -> int:
        number = self.names.get(word.lower()) if not word.isdecimal() else int(word)
        if number is None or not self.least <= number <= self.most:
            raise self._wrong(part, setting)
        return number

    def _wrong(self, part: str, setting: str) -> UsageError:
        names = f" or {next(iter(self.names))} to {list(self.names)[-1]}" if self.names else ""
        alternatives = f", ? for any{', L for the last' if not self.names else ''}" if self.of_days else ""
        return UsageError(
            f"{setting}: {self.name} {part!r} is unknown; use {self.least} to {self.most}{names}, ranges such as "
            f"{self.least}-{self.least + 4}, steps such as */5, and lists of them{alternatives}"
        )


_REMEDY = (
    'write minute, hour, day of month, month and day of week, such as "0 4 * * mon-fri", or the second before them'
)
_PART = re.compile(r"(?P<low>\*|\?|\d{1,4}|[a-z]+)(?:-(?P<high>\d{1,4}|[a-z]+))?(?:/(?P<step>\d{1,4}))?", re.A | re.I)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LONGEST = {month: 29 if month == 2 else 30 if month in (4, 6, 9, 11) else 31 for month in range(1, 13)}

_SECOND_FIELD = _Field("second", 0, 59)
_MINUTE = _Field("minute", 0, 59)
_HOUR = _Field("hour", 0, 23)
_DAY = _Field("day of month", 1, 31, of_days=True)
_MONTH = _Field("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)})
_WEEKDAY = _Field("day of week", 0, 7, {name: number for number, name in enumerate(_WEEKDAYS)}, of_days=True)

_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


def _above(numbers: Sequence[int], number: int) -> int | None:
    index = bisect_right(numbers, number)
    return numbers[index] if index < len(numbers) else None


def _zone(tz: object, *, field: str) -> ZoneInfo:
    if isinstance(tz, ZoneInfo):
        tz = tz.key
    tz_text = shown(tz)
    if not isinstance(tz, str):
        raise UsageError(f'{field} = {tz_text} must be the name of a time zone; write "UTC" or "Europe/Vienna"')
    try:
        return ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(
            f'{field} = {tz_text} is not a time zone known on this machine; write "UTC" or "Europe/Vienna". Where '
            "none are "
            "known, as on Windows, install the package tzdata"
        ) from None
