"""How often jobs may start: so many in a time, at an even pace."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from tenure.core.check import several, shown, whole
from tenure.core.duration import Duration, duration, micros
from tenure.core.job import FOREVER, RateKey
from tenure.errors import UsageError
from tenure.options.keys import KeyTemplate, templated
from tenure.options.merging import fill

_TEXT = re.compile(r"(\d{1,9})/(\d+(?:\.\d+)?)?(ms|s|m|h|d)")

_REMEDY = 'write rate="10/s", "100/m" or Rate(10, per="1s")'


@dataclass(frozen=True, init=False)
class Rate:
    """At most `max` jobs start in each `per`, all workers of a queue together, at an even pace.

    `key`: a template over the arguments or a function of them: jobs of a queue with the same key share the rate.
    Without one it is the task's own. `burst`: how many starts may be made up at once, after a time without any. So in
    any stretch of time there start no more than it has intervals, and `burst` besides.
    """

    max: int
    per: timedelta
    key: KeyTemplate | None
    burst: int

    def __init__(
        self,
        max: int,  # noqa: A002 - the word
        per: Duration = "1s",
        *,
        key: KeyTemplate | None = None,
        burst: int = 1,
    ) -> None:
        """Take a number and a time.

        Raises:
            UsageError: `max` or `burst` is no whole number from 1, `per` no duration, the key neither template nor
                function, or the burst takes up more than a hundred years.
        """
        fill(
            self,
            max=whole(max, field="Rate.max", least=1, meaning="to let none start, pause the task or its queue instead"),
            per=duration(per, field="Rate.per"),
            key=None if key is None else templated(key, field="rate"),
            burst=whole(burst, field="Rate.burst", least=1),
        )
        if self.interval * burst > FOREVER:
            raise UsageError(f"Rate.burst = {burst:,} takes up more than a hundred years; give a smaller one")

    @property
    def interval(self) -> int:
        """How many microseconds lie between two starts."""
        return -(-micros(self.per) // self.max)

    def named(self, name: str) -> RateKey:
        """Return the rate as the storage goes by it."""
        return RateKey(name, self.interval, self.burst)


Rates = str | Rate | Sequence[str | Rate]
"""One rate, such as "10/s", or several that hold together."""


def rating(given: object, *, field: str = "rate", remedy: str = _REMEDY) -> Rate:
    """Return a rate, made of a text such as "10/s" where it is one; `remedy` says how to write it there.

    Raises:
        UsageError: it is neither.
    """
    match given:
        case Rate():
            return given
        case str() if read := _TEXT.fullmatch(given.strip()):
            return Rate(int(read[1]), f"{read[2] or 1}{read[3]}")
        case _:
            raise UsageError(f"{field} = {shown(given)} is no rate; {remedy}")


def ratings(given: object) -> tuple[Rate, ...]:
    """Return one rate or several, the fastest first.

    Raises:
        UsageError: it is neither, or two of them are the same.
    """
    listed = not isinstance(given, str) and hasattr(given, "__iter__")
    each = several(given, field="rate") if listed else (given,)
    rates = sorted(map(rating, each), key=lambda rate: rate.interval)
    for place, rate in enumerate(rates):
        if any((rate.key, rate.interval) == (other.key, other.interval) for other in rates[:place]):
            raise UsageError(f"rate = {shown(given)} says the same twice; leave one of them out")
    if not rates:
        raise UsageError(f"rate = {shown(given)} has none in it; leave it out, or {_REMEDY}")
    return tuple(rates)


def rate_key(given: object, name: str) -> RateKey:
    """Return a rate that is set at run time for all jobs of a queue or a task, by this name; None means no limit.

    Raises:
        UsageError: it is no rate, or one with a key.
    """
    if given is None:
        return RateKey(name, 0)
    rate = rating(given)
    if rate.key is not None:
        raise UsageError(f"rate = {shown(given)} has a key, and what is set here holds for all its jobs; leave it out")
    return rate.named(name)
