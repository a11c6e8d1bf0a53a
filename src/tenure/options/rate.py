"""Rate options: how many jobs may start per time, at an even pace."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from tenure.clock import SECOND
from tenure.core.check import several, shown, whole
from tenure.core.duration import Duration, duration, micros
from tenure.core.job import FOREVER, RateKey
from tenure.errors import UsageError
from tenure.options.keys import KeyTemplate, key_template
from tenure.options.merging import fill

_TEXT = re.compile(r"(\d{1,9})/(\d+(?:\.\d+)?)?(ms|s|m|h|d)")

_REMEDY = 'write rate="10/s", "100/m" or Rate(10, per="1s")'


@dataclass(frozen=True, init=False)
class Rate:
    """At most `max` jobs start per `per` (1 s by default), at an even pace, across all workers of a queue.

    `key`: a template over the arguments or a function of them; jobs of a queue with the same key share the rate.
    Without a key, the jobs of the task share it. `burst`: how many jobs may start at once after a time without starts.
    In any period, at most one job per interval (`per` divided by `max`) starts, plus `burst` jobs.
    """

    max: int
    per: timedelta
    key: KeyTemplate | None
    burst: int

    def __init__(
        self,
        max: int,  # noqa: A002 - the name
        per: Duration = "1s",
        *,
        key: KeyTemplate | None = None,
        burst: int = 1,
    ) -> None:
        """Set the number of jobs and the time.

        Raises:
            UsageError: `max` or `burst` is not a whole number of at least 1, `per` is not a duration, the key is
                neither a template nor a function, or `burst` intervals are longer than a hundred years.
        """
        fill(
            self,
            max=whole(max, field="Rate.max", least=1, meaning="to let none start, pause the task or its queue instead"),
            per=duration(per, field="Rate.per"),
            key=None if key is None else key_template(key, field="rate"),
            burst=whole(burst, field="Rate.burst", least=1),
        )
        if self.interval * burst > FOREVER:
            raise UsageError(f"Rate.burst = {burst:,} takes up more than a hundred years; give a smaller one")

    @property
    def interval(self) -> int:
        """The time between two starts, in microseconds."""
        return -(-micros(self.per) // self.max)

    def named(self, name: str) -> RateKey:
        """Return the rate in the form that the storage uses, under the given name."""
        return RateKey(name, self.interval, self.burst)


def rate_of(key: RateKey | None) -> Rate | None:
    """Return a stored rate as an option; None stands for no limit."""
    if key is None or not key.interval:
        return None
    if key.interval < SECOND and SECOND % key.interval == 0:
        return Rate(SECOND // key.interval, burst=key.burst)
    return Rate(1, timedelta(microseconds=key.interval), burst=key.burst)


Rates = str | Rate | Sequence[str | Rate]
"""One rate, such as "10/s", or several that all apply."""


def valid_rate(value: object, *, field: str = "rate", remedy: str = _REMEDY) -> Rate:
    """Return a rate; a string such as "10/s" becomes one. `remedy` is the advice in the error message.

    Raises:
        UsageError: it is neither a `Rate` nor such a string.
    """
    match value:
        case Rate():
            return value
        case str() if read := _TEXT.fullmatch(value.strip()):
            return Rate(int(read[1]), f"{read[2] or 1}{read[3]}")
        case _:
            raise UsageError(f"{field} = {shown(value)} is not a rate; {remedy}")


def valid_rates(value: object) -> tuple[Rate, ...]:
    """Return one rate or several, the fastest first.

    Raises:
        UsageError: a value is not a rate, the sequence is empty, or two rates are the same.
    """
    listed = not isinstance(value, str) and hasattr(value, "__iter__")
    each = several(value, field="rate") if listed else (value,)
    rates = sorted(map(valid_rate, each), key=lambda rate: rate.interval)
    for index, rate in enumerate(rates):
        if any((rate.key, rate.interval) == (other.key, other.interval) for other in rates[:index]):
            raise UsageError(f"rate = {shown(value)} has two rates with the same period and key; leave one out")
    if not rates:
        raise UsageError(f"rate = {shown(value)} has none in it; leave it out, or {_REMEDY}")
    return tuple(rates)


def rate_key(value: object, name: str) -> RateKey:
    """Return a rate that is set at run time for all jobs of a queue or a task, under this name. None means no limit.

    Raises:
        UsageError: it is not a rate, or has a key.
    """
    if value is None:
        return RateKey(name, 0)
    rate = valid_rate(value)
    if rate.key is not None:
        raise UsageError(f"rate = {shown(value)} has a key, and what is set here holds for all its jobs; leave it out")
    return rate.named(name)
