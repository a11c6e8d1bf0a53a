"""What a process counts of its own work: metrics for scrapers, and the figures that its beats carry to the storage.

Metrics are totals that only go up, in few series, as plain numbers.

A series is a metric with one value for each of its labels; it never describes a single job. Its numbers:

    a counter                      the count
    a histogram                    the sum in seconds, then the count of each bucket, the last one without upper bound
"""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import islice

from msgspec import Struct

from tenure.core.figures import CELLS_SENT, LENGTH, FiguresDelta, TaskCounts, count_run
from tenure.core.job import JobRecord
from tenure.core.settlement import RELEASED, Settlement

Key = tuple[str, ...]
"""The name of a metric, then the values of its labels in their order."""

Totals = Mapping[Key, tuple[float, ...]]

MOST = 2_000
"""The greatest number of series in a process; further label values are counted under `OTHER`."""

OTHER = "(other)"


class Metric(Struct, frozen=True):
    """A metric. `buckets`: the upper bounds of a histogram's buckets, in seconds; empty for a counter."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
LONG = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0, 7_200.0)

JOBS = Metric("tenure_jobs_total", "Settled runs, by outcome.", ("queue", "task", "outcome"))
DURATION = Metric("tenure_job_duration_seconds", "How long runs took.", ("queue", "task"), LONG)
WAIT = Metric("tenure_job_wait_seconds", "Time from the due time of a job to its claim.", ("queue",), LONG)
RENEWALS = Metric("tenure_lease_renewals_total", "Requested lease renewals.", ("result",))
STALLED = Metric("tenure_stalled_total", "Runs reclaimed from dead or silent workers.", ("task", "reason"))
FENCED = Metric("tenure_fenced_total", "Refused writes of runs that are no longer current.", ("write",))
STORAGE_OP = Metric("tenure_storage_op_seconds", "How long calls of the storage took.", ("op",), QUICK)
RELAYED = Metric("tenure_outbox_relayed_total", "Calls that this process relayed from an outbox.", ("queue",))
RELAY_DELAY = Metric("tenure_outbox_delay_seconds", "Time from a call to its relay.", ("queue",), LONG)

METRICS = (JOBS, DURATION, WAIT, RENEWALS, STALLED, FENCED, STORAGE_OP, RELAYED, RELAY_DELAY)
"""All metrics that processes count."""


class MetricsRegistry:
    """The metrics of one process, or of a part of it. Any thread may count and read."""

    def __init__(self) -> None:
        self._series: dict[Key, list[float]] = {}
        self._lock = threading.Lock()

    def count(self, metric: Metric, *labels: str, by: int = 1) -> None:
        """Add to a counter."""
        key = (metric.name, *labels)
        with self._lock:
            numbers = self._series.get(key) or self._new(key, 1)
            numbers[0] += by

    def observe(self, metric: Metric, times: Iterable[float], *labels: str) -> None:
        """Add durations, in seconds, to a histogram."""
        key, buckets = (metric.name, *labels), metric.buckets
        with self._lock:
            numbers = self._series.get(key) or self._new(key, len(buckets) + 2)
            for seconds in times:
                numbers[0] += seconds
                numbers[1 + bisect_left(buckets, seconds)] += 1

    def totals(self) -> dict[Key, tuple[float, ...]]:
        """Return the totals so far."""
        with self._lock:
            return {key: tuple(numbers) for key, numbers in self._series.items()}

    def _new(self, key: Key, many: int) -> list[float]:
        if len(self._series) >= MOST:
            key = (key[0], *(OTHER for _ in key[1:]))
        return self._series.setdefault(key, [0.0] * many)


class FiguresCounter:
    """The figures of a process that no delta has taken yet. Any thread may count and take."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, str], list[int]] = {}
        self._lock = threading.Lock()

    def count(self, runs: Iterable[tuple[JobRecord, Settlement, str, float]]) -> None:
        """Count runs that were settled, each with its outcome and its seconds; 0 if these say nothing.

        Uncharged put-backs do not count.
        """
        with self._lock:
            for job, settlement, outcome, took in runs:
                if outcome == RELEASED:
                    continue
                counts = self._counted.get((job.queue, job.task))
                if counts is None:
                    counts = self._counted[job.queue, job.task] = [0] * LENGTH
                ran = int(took * 1_000_000) if took else None
                count_run(counts, outcome, stalled=settlement.decision.charge == "stalls", waited=job.waited, ran=ran)

    def take(self) -> FiguresDelta | None:
        """Return what was counted, at most `CELLS_SENT` tasks of queues, those first that have waited longest."""
        with self._lock:
            places = list(islice(self._counted, CELLS_SENT))
            found = [TaskCounts(*place, tuple(self._counted.pop(place))) for place in places]
        return FiguresDelta(tuple(found)) if found else None


def added_up(some: Iterable[Totals]) -> dict[Key, tuple[float, ...]]:
    """Return the sums of several processes' totals; a series that differs in length from the first one is left out."""
    sums: dict[Key, tuple[float, ...]] = {}
    for totals in some:
        for key, numbers in totals.items():
            before = sums.get(key)
            if before is None:
                sums[key] = tuple(numbers)
            elif len(before) == len(numbers):
                sums[key] = tuple(a + b for a, b in zip(before, numbers, strict=True))
    return sums
