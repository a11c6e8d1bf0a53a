"""Checks rates in a simulated world (I6): jobs start no more often than their rates allow, and not less often."""

from collections.abc import Iterable, Mapping

from tenure.core.job import JobRecord, RateKey, Ref
from tenure.core.lifecycle import State
from tenure.core.rate import RateReservation, extended, limit_end, limit_name, opens_at, refund, taken
from tenure.storage.protocol import QUEUE_RATE, RATE
from tenure_testing.simulation.call_checks import Require


class RateChecks:
    """An account of the starts under each rate of each queue, in microseconds of the storage's clock."""

    def __init__(self, require: Require) -> None:
        self._require = require
        self._starts: dict[tuple[str, str], list[int]] = {}
        self._taken: dict[tuple[str, str], RateReservation] = {}
        """Until when the starts have used up the time of each rate."""
        self._limits: dict[tuple[str, str], RateReservation] = {}
        """The limits that handlers have set for rates and queues."""
        self._steps = 0

    def started(self, job: JobRecord, rates: Iterable[RateKey], now: int, steps: int) -> None:
        """Check that a job started no sooner than its rates allow. `steps`: how often the clock was stepped so far.

        Any period has at most as many starts as it has intervals, plus the burst, plus one.
        """
        if steps != self._steps:
            # Times before and after a step of the clock cannot be compared.
            self._starts.clear()
            self._steps = steps
        until = self._limit_end(job.queue, QUEUE_RATE, now)
        self._require(until <= now, "I6", f"{job.ref} started {until - now} us before the limit of its queue ends")
        for rate in rates:
            until = self._limit_end(job.queue, rate.name, now)
            self._require(until <= now, "I6", f"{job.ref} started {until - now} us before the limit of {rate} ends")
            place, gap = (job.queue, rate.name), rate.interval
            starts = self._starts.setdefault(place, [])
            starts.append(now)
            for count, first in enumerate(reversed(starts), 1):
                fits = count <= rate.burst or (count - 1 - rate.burst) * gap < now - first
                self._require(fits, "I6", f"{job.ref} is number {count} under {rate} in {now - first} microseconds")
            self._taken[place] = taken(self._taken.get(place, RateReservation()), rate, now)

    def limited(self, job: JobRecord, rates: Iterable[RateKey], length: int, now: int) -> None:
        """Record that a handler has set a limit."""
        place = job.queue, limit_name(rates) or QUEUE_RATE
        self._limits[place] = extended(self._limits.get(place, RateReservation()), length, now)

    def queue_is_limited(self, queue: str, now: int) -> bool:
        """Return True if a limit lets nothing of the queue start."""
        return self._limit_end(queue, QUEUE_RATE, now) > now

    def _limit_end(self, queue: str, name: str, now: int) -> int:
        return limit_end(self._limits.get((queue, name), RateReservation()), now)

    def put_back(self, job: JobRecord, rates: Iterable[RateKey], now: int) -> None:
        """Record that a start of a job was undone. That start does not count."""
        started = job.started or now
        for rate in rates:
            place = job.queue, rate.name
            if started in (starts := self._starts.get(place, [])):
                starts.remove(started)
            so_far = self._taken.get(place, RateReservation())
            if so_far.until > now:
                self._taken[place] = RateReservation(so_far.until - refund(rate, started, now), so_far.reach)

    def open(self, queue: str, rate: RateKey, now: int) -> bool:
        """Return True if the rate allows a start now, given all earlier starts."""
        if self._limit_end(queue, rate.name, now) > now:
            return False
        return opens_at(self._taken.get((queue, rate.name), RateReservation()), rate, now) <= now

    def swept(self, now: int) -> None:
        """Forget reservations that are over, as a sweep does."""
        self._limits = {place: limit for place, limit in self._limits.items() if limit.until > now}
        self._taken = {place: taken for place, taken in self._taken.items() if taken.until > now}

    def kept_waiting(
        self, job: JobRecord, rates: Iterable[RateKey], records: Mapping[Ref, JobRecord], now: int
    ) -> bool:
        """Return True if a job is parked under a rate that is open, while no ready job could go before it."""
        rate = next((rate for rate in rates if RATE + rate.name == job.parked_under), None)
        if rate is None or not self.open(job.queue, rate, now):
            return False
        return not any(
            other.queue == job.queue and other.state is State.WAITING and other.parked_under is None
            for other in records.values()
        )
