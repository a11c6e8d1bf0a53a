"""Counts the work of a worker as metrics."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from tenure.clock import SECOND
from tenure.core.job import JobRecord
from tenure.core.lease import Lease
from tenure.core.settlement import Settlement, outcome_of
from tenure.metrics import DURATION, FENCED, JOBS, RENEWALS, STALLED, STORAGE_OP, WAIT, FiguresCounter, MetricsRegistry
from tenure.storage.protocol import SettleVerdict


class WorkerMetrics:
    """The metrics of the workers of one process. Safe from any thread."""

    def __init__(self, registry: MetricsRegistry) -> None:
        self._registry = registry
        self.figures = FiguresCounter()
        """The figures that no beat has sent yet."""
        self._took: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        """The seconds of runs that are not counted yet. Only the worker's loop uses it."""

    def claimed(self, leases: Iterable[Lease]) -> None:
        """Count how long jobs had been due when they were claimed, by the storage's clock."""
        waits: defaultdict[str, list[float]] = defaultdict(list)
        for lease in leases:
            job = lease.job
            if job.heard_at is not None:
                late = job.heard_at - job.run_at
                waits[job.queue].append(late / SECOND if late > 0 else 0.0)
        for queue, values in waits.items():
            self._registry.observe(WAIT, values, queue)

    def ran(self, job: JobRecord, took: float) -> None:
        """Note the duration of a run, to be counted with the next call. 0 means that the run did not begin."""
        if took:
            self._took[job.queue, job.task].append(took)

    def answered(self, answered: Iterable[tuple[JobRecord, Settlement, SettleVerdict, float]]) -> None:
        """Count the storage's verdicts on settlements, each with the run's seconds; 0 if they say nothing.

        A duplicate is a settlement whose first answer was lost.
        """
        settled: Counter[tuple[str, str, str]] = Counter()
        runs: list[tuple[JobRecord, Settlement, str, float]] = []
        for job, settlement, verdict, took in answered:
            if verdict == "lost":
                self._registry.count(FENCED, "settle")
            elif verdict != "gone":
                outcome = outcome_of(settlement)
                settled[job.queue, job.task, outcome] += 1
                runs.append((job, settlement, outcome, took))
                if settlement.decision.charge == "stalls":
                    self._registry.count(STALLED, job.task, settlement.ended.reason or "process_died")
        self.figures.count(runs)
        for labels, count in settled.items():
            self._registry.count(JOBS, *labels, by=count)

    def renewed(self, *, renewed: int, lost: int, failed: int) -> None:
        """Count the leases of one renewal call: renewed, lost, or without an answer."""
        for result, count in (("renewed", renewed), ("lost", lost), ("failed", failed)):
            if count:
                self._registry.count(RENEWALS, result, by=count)
        if lost:
            self._registry.count(FENCED, "renew", by=lost)

    def called(self, op: str, took: float) -> None:
        """Count the duration of a storage call, successful or not, and the noted durations of runs."""
        for labels, values in self._took.items():
            self._registry.observe(DURATION, values, *labels)
        self._took.clear()
        self._registry.observe(STORAGE_OP, (took,), op)
