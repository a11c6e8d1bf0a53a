"""Checks rates in a simulated world (I6): jobs start no more often than their rates allow, and not less often."""

from collections.abc import Iterable, Mapping

from tenure.core.job import JobRecord, RateKey, Ref
from tenure.core.lifecycle import State
from tenure.core.rate import RateReservation, opens_at, refund, taken
from tenure.storage.protocol import RATE
from tenure_testing.simulation.call_checks import Require


class RateChecks:
    """An account of the starts under each rate of each queue, in microseconds of the storage's clock."""

    def __init__(self, require: Require) -> None:
        self._require = require
        self._starts: dict[tuple[str, str], list[int]] = {}
        self._taken: dict[tuple[str, str], RateReservation] = {}
        """Until when the starts have used up the time of each rate."""
        self._steps = 0

    def started(self, job: JobRecord, rates: Iterable[RateKey], now: int, steps: int) -> None:
        """Check that a job started no sooner than its rates allow. `steps`: how often the clock was stepped so far.

        Any period has at most as many starts as it has intervals, plus the burst, plus one.
        """
        if steps != self._steps:
            # Times before and after a step of the clock cannot be compared.
            self._starts.clear()
            self._steps = steps
        for rate in rates:
            place, gap = (job.queue, rate.name), rate.interval
            starts = self._starts.setdefault(place, [])
            starts.append(now)
            for count, first in enumerate(reversed(starts), 1):
                fits = count <= rate.burst or (count - 1 - rate.burst) * gap < now - first
                self._require(fits, "I6", f"{job.ref} is number {count} under {rate} in {now - first} microseconds")
            self._taken[place] = taken(self._taken.get(place, RateReservation()), rate, now)

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
        return opens_at(self._taken.get((queue, rate.name), RateReservation()), rate, now) <= now

    def swept(self, now: int) -> None:
        """Forget reservations that are over, as a sweep does."""
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
