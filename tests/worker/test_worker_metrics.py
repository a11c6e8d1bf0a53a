"""What a worker counts of its runs."""

from random import Random

import pytest

from tenure.core.lease import Lease
from tenure.core.outcome import Returned
from tenure.core.settlement import settlement
from tenure.metrics import DURATION, FENCED, JOBS, MetricsRegistry
from tenure.storage.protocol import SettleVerdict
from tenure.worker.worker_metrics import WorkerMetrics
from tests.core.cases import active


def test_runs_are_counted_with_the_next_call_without_an_answer() -> None:
    figures = MetricsRegistry()
    metrics, job = WorkerMetrics(figures), active()
    metrics.ran(job, 2.0)
    metrics.ran(job, 3.0)
    metrics.called("exchange", 0.1)
    metrics.called("exchange", 0.1)
    seconds, *places = figures.totals()[DURATION.name, job.queue, job.task]

    assert (seconds, sum(places)) == (5.0, 2)


@pytest.mark.parametrize(
    ("verdict", "jobs", "fenced"),
    [("done", 1, 0), ("duplicate", 1, 0), ("lost", 0, 1), ("gone", 0, 0)],
)
def test_an_outcome_counts_once_its_verdict_is_known(verdict: SettleVerdict, jobs: int, fenced: int) -> None:
    figures = MetricsRegistry()
    job = active()
    WorkerMetrics(figures).answered([(job, settlement(Lease(job), Returned(b"3"), Random(1), took=0.5), verdict, 0.5)])
    totals = figures.totals()

    assert totals.get((JOBS.name, job.queue, job.task, "completed"), (0,)) == (jobs,)
    assert totals.get((FENCED.name, "settle"), (0,)) == (fenced,)
