"""What a worker counts of its runs."""

from holdfast.figures import DURATION, Figures
from holdfast.worker.tally import Tally
from tests.core.cases import active


def test_runs_are_counted_with_the_next_call_though_the_storage_answers_none() -> None:
    figures = Figures()
    tally, job = Tally(figures), active()
    tally.ran(job, 2.0)
    tally.ran(job, 3.0)
    tally.called("exchange", 0.1)
    tally.called("exchange", 0.1)
    seconds, *places = figures.totals()[DURATION.name, job.queue, job.task]

    assert (seconds, sum(places)) == (5.0, 2)
