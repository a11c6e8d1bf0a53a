"""Rates: how often jobs may start. The state of a rate is one number: the instant up to which its time is taken.

Every start takes one interval of time, from that instant on or from now, whichever is later. A start is allowed as long
as no more than `burst` intervals are taken ahead. So any stretch of time has at most as many starts as its length has
intervals, plus `burst`. There are no windows, and so no window edges at which two bursts could meet.

A handler may put a limit on a rate or a queue: nothing starts before an instant. The state of a limit has the form of a
rate's: `until` is the instant, and `reach` is the length with which it was set. The latest instant applies.

Jobs that share a rate may carry different speeds: after a deploy the waiting jobs still carry the old one. Each start
takes its own job's interval, and respects the time that other jobs have taken.
"""

from collections.abc import Iterable

from msgspec import Struct

from tenure.core.job import RateKey


class RateReservation(Struct, frozen=True, order=True):
    """The time that a rate's starts have taken: up to `until`, in microseconds.

    `reach`: how far ahead the latest start was allowed to take time.
    """

    until: int = 0
    reach: int = 0


def opens_at(so_far: RateReservation, rate: RateKey, now: int) -> int:
    """Return when the next job may start. If it may start at once, this is not after now."""
    return _taken_until(so_far, now) - rate.interval * rate.burst + 1


def taken(so_far: RateReservation, rate: RateKey, now: int, *, starts: int = 1) -> RateReservation:
    """Return the taken time after a job, or `starts` jobs, have started now."""
    if not starts:
        return so_far
    return RateReservation(max(_taken_until(so_far, now), now) + rate.interval * starts, _reach(rate))


def refund(rate: RateKey, started: int, now: int) -> int:
    """Return how much time to give back for a start that was undone, in microseconds.

    Time that has passed since is not given back: other jobs may have started in it as if it had not been taken.
    """
    return max(0, rate.interval - max(0, now - started))


def taken_if_open(at: int, rate: RateKey) -> RateReservation:
    """Return the taken time of a rate that lets the next job start at an instant."""
    return RateReservation(at + rate.interval * rate.burst - 1, _reach(rate))


def retuned(so_far: RateReservation, rate: RateKey, now: int) -> RateReservation:
    """Return the taken time of a rate whose pace has changed: the new pace applies at once.

    Time that is taken further ahead than a start could now take is dropped.
    """
    return so_far if so_far.until <= now + _reach(rate) else RateReservation(now, _reach(rate))


def free(so_far: RateReservation, rate: RateKey, now: int) -> int:
    """Return how many jobs may start now."""
    opened = max(opens_at(so_far, rate, now), now - rate.interval * rate.burst + 1)
    return max(0, (now - opened) // rate.interval + 1)


def limit_name(rates: Iterable[RateKey]) -> str | None:
    """Return the name of the rate that a job's limit applies to: one with a key of its own, else one of its task.

    `rates`: those that the job's start takes time of. None: the job has no rate, so the limit applies to its queue.
    """
    names = [rate.name for rate in rates]
    return next((name for name in names if not name.startswith(("task:", "task/"))), names[0] if names else None)


def extended(limit: RateReservation, length: int, now: int) -> RateReservation:
    """Return the state of a limit that is set for `length` microseconds; an instant before the current one is ignored.

    A limit that lies further ahead than its length was set before the clock was set back, and is over.
    """
    return limit if limit_end(limit, now) >= now + length else RateReservation(now + length, length)


def limit_end(limit: RateReservation, now: int) -> int:
    """Return the instant before which a limit lets nothing start; not after now if nothing is limited."""
    return _taken_until(limit, now)


def limited(so_far: RateReservation, rate: RateKey, until: int, now: int) -> RateReservation:
    """Return the taken time of a rate that lets nothing start before an instant."""
    if until <= now:
        return so_far
    end = until + rate.interval * rate.burst - 1
    return so_far if _taken_until(so_far, now) >= end else RateReservation(end, end - now)


def effective_rates(rates: Iterable[RateKey], task_rate: RateKey | None, task: str) -> list[RateKey]:
    """Return the rates that a start takes time of; a rate set for a task replaces all of the task's own."""
    if task_rate is None:
        return [rate for rate in rates if rate.interval]
    others = (rate for rate in rates if rate.name != task_rate.name and not is_of_task(rate.name, task))
    return [rate for rate in (task_rate, *others) if rate.interval]


def is_of_task(name: str, task: str) -> bool:
    """Return True if the name is that of a task's own rate: `task:<task>`, or its variant `task/<interval>:<task>`."""
    kind, _, of = name.partition(":")
    return of == task and (kind == "task" or kind.startswith("task/"))


def _reach(rate: RateKey) -> int:
    return rate.interval * (rate.burst + 1)


def _taken_until(so_far: RateReservation, now: int) -> int:
    # Time that is taken further ahead than a start could take was taken before the clock was set back. It is ignored
    # completely: if a part of it counted, that part would count again at each check, and the rate would never open.
    return now if so_far.until > now + so_far.reach else so_far.until
