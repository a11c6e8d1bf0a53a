"""What a worker counts of its work, in the words of the metrics."""

from holdfast.clock import SECOND
from holdfast.core.decision import Finish, PutBack
from holdfast.core.job import JobRecord
from holdfast.core.settlement import Settlement
from holdfast.figures import DURATION, FENCED, JOBS, RENEWALS, STALLED, STORAGE_OP, WAIT, Figures
from holdfast.storage.protocol import SettleVerdict


class Tally:
    """The counts of one process's workers; from any thread."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def claimed(self, job: JobRecord) -> None:
        """Count how long a job had been due when it was claimed, by the storage's clock."""
        if job.heard_at is not None:
            self._figures.observe(WAIT, max(0, job.heard_at - job.run_at) / SECOND, job.queue)

    def ran(self, job: JobRecord, took: float) -> None:
        """Count how long a run took; one that never began took nothing."""
        if took:
            self._figures.observe(DURATION, took, job.queue, job.task)

    def answered(self, job: JobRecord, asked: Settlement, verdict: SettleVerdict) -> None:
        """Count what the storage said to a settlement. A duplicate is one whose first answer never came."""
        if verdict == "lost":
            self._figures.count(FENCED, "settle")
        elif verdict != "gone":
            self._figures.count(JOBS, job.queue, job.task, _outcome(asked))
            if asked.decision.charge == "stalls":
                self._figures.count(STALLED, job.task, asked.ended.reason or "process_died")

    def renewed(self, *, renewed: int, lost: int, failed: int) -> None:
        """Count the leases that were to be renewed with one call: those that were, were gone, or got no answer."""
        for result, many in (("renewed", renewed), ("lost", lost), ("failed", failed)):
            if many:
                self._figures.count(RENEWALS, result, by=many)
        if lost:
            self._figures.count(FENCED, "renew", by=lost)

    def called(self, op: str, took: float) -> None:
        """Count how long a call of the storage took, whatever came of it."""
        self._figures.observe(STORAGE_OP, took, op)


def _outcome(asked: Settlement) -> str:
    match asked.decision:
        case Finish(state=state):
            return state.value
        case PutBack(charge="failures"):
            return "retried"
        case PutBack(charge="stalls"):
            return "stalled"
        case PutBack():
            return "released"
