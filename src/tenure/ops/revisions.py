"""Results of changes to single jobs: their views, and why a job was not changed."""

from tenure.ops.views import RevisedView
from tenure.storage.protocol import CancelJob, DeleteJob, RedriveJob, RescheduleJob, RetainJob, Revision, RevisionResult

REFUSALS: dict[type[Revision], str] = {
    CancelJob: "is {} already",
    RedriveJob: "is {}; only failed, cancelled or expired jobs are redriven",
    DeleteJob: "is {}; cancel it first",
    RescheduleJob: "is {}; only a job that is waiting or delayed is rescheduled",
    RetainJob: "is {}; only the result of a completed job is retained",
}
"""Why a job was not changed, with a place for its state."""


def revised_view(result: RevisionResult) -> RevisedView:
    """Return the view of a result."""
    return RevisedView(
        queue=result.ref.queue,
        id=result.ref.id,
        verdict=result.verdict,
        was=result.state and result.state.value,
        holder=None if result.holder is None else result.holder.id,
    )
