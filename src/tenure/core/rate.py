"""Rates: how often jobs may start, by one number for each rate, the instant up to which its time is taken.

Every start takes an interval of time, from that instant on or from now, whichever is later. A start is allowed as long
as no more than `burst` intervals are taken ahead. So in any stretch of time there start no more than its length has
intervals, and `burst` besides: there is no window, and no edge at which two bursts could meet.

Jobs that share a rate need not agree how fast it is: after a deploy those that wait still bring the old one along. Each
takes an interval of its own, and heeds what the others have taken.
"""

from collections.abc import Iterable

from msgspec import Struct

from tenure.core.job import RateKey


class RateReservation(Struct, frozen=True, order=True):
    """Up to when the time of a rate is taken, and how far ahead whoever took last could take any, in microseconds."""

    until: int = 0
    reach: int = 0


def opens_at(so_far: RateReservation, rate: RateKey, now: int) -> int:
    """Return when the next job may start: not after now where it may start at once."""
    return _sound(so_far, now) - rate.interval * rate.burst + 1


def taken(so_far: RateReservation, rate: RateKey, now: int, *, starts: int = 1) -> RateReservation:
    """Return how far time is taken once a job, or so many, have started now."""
    if not starts:
        return so_far
    return RateReservation(max(_sound(so_far, now), now) + rate.interval * starts, _reach(rate))


def regained(rate: RateKey, started: int, now: int) -> int:
    """Return how much time is given back by a job that started in vain, in microseconds.

    What has gone by since is not: other jobs may have started in this time as if nothing had been taken.
    """
    return max(0, rate.interval - max(0, now - started))


def taken_if_open(at: int, rate: RateKey) -> RateReservation:
    """Return how far time is taken of a rate that lets the next job start at an instant."""
    return RateReservation(at + rate.interval * rate.burst - 1, _reach(rate))


def retuned(so_far: RateReservation, rate: RateKey, now: int) -> RateReservation:
    """Return how far time is taken of a rate that has been changed: it goes by its new pace at once.

    Of what is taken further ahead than a start can take by now nothing is left.
    """
    return so_far if so_far.until <= now + _reach(rate) else RateReservation(now, _reach(rate))


def free(so_far: RateReservation, rate: RateKey, now: int) -> int:
    """Return how many jobs may start now."""
    opened = max(opens_at(so_far, rate, now), now - rate.interval * rate.burst + 1)
    return max(0, (now - opened) // rate.interval + 1)


def heeded(brought: Iterable[RateKey], told: RateKey | None, task: str) -> list[RateKey]:
    """Return the rates that a start takes time of: what a task is told, in the place of all that are its own."""
    if told is None:
        return [rate for rate in brought if rate.interval]
    others = (rate for rate in brought if rate.name != told.name and not is_of_task(rate.name, task))
    return [rate for rate in (told, *others) if rate.interval]


def is_of_task(name: str, task: str) -> bool:
    """Say whether a rate is a task's own by its name: `task:<task>`, or `task/<interval>:<task>` beside it."""
    kind, _, of = name.partition(":")
    return of == task and (kind == "task" or kind.startswith("task/"))


def _reach(rate: RateKey) -> int:
    return rate.interval * (rate.burst + 1)


def _sound(so_far: RateReservation, now: int) -> int:
    # What is taken further ahead than a start could take was taken before the clock was set back. To count a part of it
    # would be to count that anew with each look, and never open.
    return now if so_far.until > now + so_far.reach else so_far.until
