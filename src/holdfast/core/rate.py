"""Rates: how often jobs may start, by one number for each rate, the instant up to which its time is taken.

Every start takes an interval of time, from that instant on or from now, whichever is later. A start is allowed as long
as no more than `burst` intervals are taken ahead. So in any stretch of time there start no more than its length has
intervals, and `burst` besides: there is no window, and no edge at which two bursts could meet.
"""

from holdfast.core.job import RateKey


def opens_at(taken_until: int, rate: RateKey, now: int) -> int:
    """Return when the next job may start: not after now where it may start at once."""
    return _sound(taken_until, rate, now) - rate.interval * rate.burst + 1


def taken(taken_until: int, rate: RateKey, now: int, *, starts: int = 1) -> int:
    """Return the instant up to which time is taken once a job, or so many, have started now."""
    return max(_sound(taken_until, rate, now), now) + rate.interval * starts


def taken_if_open(at: int, rate: RateKey) -> int:
    """Return the instant up to which time is taken of a rate that lets the next job start at an instant."""
    return at + rate.interval * rate.burst - 1


def free(taken_until: int, rate: RateKey, now: int) -> int:
    """Return how many jobs may start now."""
    return max(0, (now - opens_at(max(taken_until, now), rate, now)) // rate.interval + 1)


def _sound(taken_until: int, rate: RateKey, now: int) -> int:
    # What is taken further ahead than a start can take was taken before the clock was set back, or at a slower rate. To
    # count a part of it would be to count that anew with each look, and never open.
    return now if taken_until > now + rate.interval * (rate.burst + 1) else taken_until
