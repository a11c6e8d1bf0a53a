"""Measures how many jobs complete and fail per second, from the event log.

The counters of a survey cannot give this: they count the jobs that exist. Retention deletes completed jobs, and a job
whose result has a short lifetime is gone before the next survey. So the difference between two surveys is too low, or
negative. The log has one event for each job that completed or failed, also for those that were deleted since.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tenure.clock import SECOND
from tenure.core.events import AnyEvent, EventsTrimmed, JobCompleted, JobFailed, at_micros
from tenure.ops.events import events_after, wanted_events
from tenure.storage.cursors import recorded_within
from tenure.storage.protocol import EVENTS_END, Storage

WINDOW = 10 * SECOND
"""Microseconds over which rates are averaged at most, unless two measurements lie further apart."""

EVENTS_READ = 2_000
"""How many events one measurement reads at most. If there are more, the rates are those of the time they cover."""


@dataclass(frozen=True)
class EndedJobs:
    """How many jobs of each queue completed and failed between two instants of the storage's clock."""

    since: int
    until: int
    completed: Counter[str]
    failed: Counter[str]


@dataclass(frozen=True)
class ThroughputRates:
    """How many jobs of each queue completed and failed in `measured` seconds; None: unknown."""

    measured: float | None = None
    completed: Counter[str] = field(default_factory=Counter[str])
    failed: Counter[str] = field(default_factory=Counter[str])

    def per_second(self, jobs: int) -> float | None:
        """Return the rate of a number of these jobs; None if it is unknown."""
        return None if self.measured is None else round(jobs / self.measured, 3)


def ended_jobs(events: Sequence[AnyEvent], since: int, until: int, *, complete: bool) -> EndedJobs | None:
    """Count the jobs that ended; return None if the events do not show it.

    `complete`: these are all events between the two instants. Otherwise they are the first of them, and the count is
    that of the time from the first to the last of them. Those of the last instant do not count, because others of this
    instant may be missing.
    """
    if any(isinstance(event, EventsTrimmed) for event in events):
        return None
    if not complete and events:
        since, until = at_micros(events[0]), at_micros(events[-1])
        events = [event for event in events if at_micros(event) < until]
    if until <= since:
        # The clock was set back, or all events that were read have the same instant.
        return None
    return EndedJobs(
        since,
        until,
        Counter(event.queue for event in events if isinstance(event, JobCompleted)),
        Counter(event.queue for event in events if isinstance(event, JobFailed)),
    )


def rates_of(measurements: Sequence[EndedJobs]) -> ThroughputRates:
    """Return the rates over all these measurements together."""
    completed, failed = Counter[str](), Counter[str]()
    for measurement in measurements:
        completed.update(measurement.completed)
        failed.update(measurement.failed)
    length = sum(measurement.until - measurement.since for measurement in measurements) / SECOND
    return ThroughputRates(length or None, completed, failed)


class Throughput:
    """Measures again and again; keeps its place in the event log. The first measurement covers the last 10 seconds.

    `most`: how many events one measurement reads at most.
    """

    def __init__(self, *, most: int = EVENTS_READ) -> None:
        self._most = most
        self._cursor: str | None = None
        self._since = 0
        self._measurements: deque[EndedJobs] = deque()

    async def measure(self, storage: Storage, now: int) -> ThroughputRates:
        """Return the rates until `now`, which a survey of the storage has just returned.

        Raises:
            StorageError: the storage is unreachable.
        """
        if self._cursor is None:
            self._cursor, self._since = recorded_within(WINDOW), now - WINDOW
        try:
            read = await events_after(storage, self._cursor, wanted=wanted_events(), limit=self._most)
        except ValueError:
            # The storage was replaced by one with other cursors.
            return self._begin_again()
        found = None if read.incomplete else ended_jobs(read.events, self._since, now, complete=read.end)
        if found is None:
            return self._begin_again()
        # If the log is too busy to read it all, the next measurement begins at its end.
        self._cursor = read.next if read.end else (await storage.events(EVENTS_END, limit=0)).next
        self._since = now
        self._measurements.append(found)
        while len(self._measurements) > 1 and self._measurements[0].since < now - WINDOW:
            self._measurements.popleft()
        return rates_of(self._measurements)

    def _begin_again(self) -> ThroughputRates:
        """Forget the place in the log, because events after it are missing; return unknown rates."""
        self._cursor = None
        self._measurements.clear()
        return rates_of(())
