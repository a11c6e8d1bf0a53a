"""Completes the events of one job by the changes that its record shows: starts and progress that were not recorded."""

from collections.abc import Sequence

from tenure.core.duration import moment
from tenure.core.events import (
    AnyEvent,
    JobCancelled,
    JobCompleted,
    JobEvent,
    JobExpired,
    JobFailed,
    JobProgressed,
    JobRedriven,
    JobReleased,
    JobRetried,
    JobStalled,
    JobStarted,
)
from tenure.core.job import JobDetail, RunRecord

_ENDS = (JobCancelled, JobCompleted, JobExpired, JobFailed, JobReleased, JobRetried, JobStalled)
"""The events that end a run."""

_CHARGED = ("raised", "timed_out", "rejected", "undecodable")
"""How a run ended that counts as an attempt."""


class ChangesOfRecord:
    """The starts and the progress of one job that were yielded, by which later ones are found."""

    def __init__(self) -> None:
        self._run = 0
        """The last run whose start was yielded."""
        self._progress: object = None

    def merge(self, recorded: Sequence[AnyEvent], detail: JobDetail | None) -> list[AnyEvent]:
        """Return recorded events, each after the changes that came before it. `detail`: read after the events."""
        merged: list[AnyEvent] = []
        for event in recorded:
            match event:
                case JobStarted():
                    self._run = max(self._run, event.run)
                case JobProgressed():
                    self._progress = event.value, event.note
                case JobEvent() if detail is not None:
                    merged += self._starts(detail, event.run)
                    if isinstance(event, _ENDS) and event.run == detail.job.starts:
                        merged += self._new_progress(detail)
                    if isinstance(event, JobRedriven):
                        self._progress = None
                case _:
                    pass
            merged.append(event)
        return merged

    def latest(self, detail: JobDetail) -> list[AnyEvent]:
        """Return the changes that no event tells, once all events up to this state of the record were merged."""
        return [*self._starts(detail, detail.job.starts), *self._new_progress(detail)]

    def _starts(self, detail: JobDetail, last: int) -> list[AnyEvent]:
        first, self._run = self._run + 1, max(self._run, last)
        return [_started(detail, run) for run in detail.runs if first <= run.number <= last]

    def _new_progress(self, detail: JobDetail) -> list[AnyEvent]:
        job = detail.job
        if job.progress is None or self._progress == (job.progress, job.progress_note):
            return []
        self._progress = job.progress, job.progress_note
        at = None if job.heard_at is None else moment(job.heard_at)
        return [
            JobProgressed(
                at=at,
                queue=job.queue,
                id=job.id,
                task=job.task,
                run=job.starts,
                value=job.progress,
                note=job.progress_note,
            )
        ]


def _started(detail: JobDetail, run: RunRecord) -> JobStarted:
    job = detail.job
    # The runs before a redrive do not count, but the record does not say when that was.
    charged = sum(other.ended in _CHARGED for other in detail.runs if other.number < run.number)
    return JobStarted(
        at=moment(run.start),
        queue=job.queue,
        id=job.id,
        task=job.task,
        run=run.number,
        attempt=charged + 1,
        owner=run.owner,
        host=run.host,
        pid=run.pid,
        fence=run.fence,
        redelivered=run.number > 1,
    )
