"""Logs runs that went wrong, without arguments, results, or messages that may quote them."""

import logging

from tenure.clock import SECOND
from tenure.core.decision import Finish, PutBack
from tenure.core.job import JobRecord
from tenure.core.lifecycle import State
from tenure.core.postmortem import first_line
from tenure.core.settlement import Settlement


def log_bad_outcome(logger: logging.Logger, job: JobRecord, settlement: Settlement) -> None:
    """Log why a run went wrong, if it did."""
    match settlement.decision:
        case Finish(state=State.FAILED, reason=reason, error=error):
            logger.error(
                "job %s (%s) failed in run %d, reason %s: %s; details: tenure jobs show %s",
                job.id,
                job.task,
                job.starts,
                reason,
                error.type if error else "no error",
                job.id,
            )
        case PutBack(charge="failures", after=after, error=error):
            logger.warning(
                "job %s (%s) failed in run %d: %s; retrying in %.1f s",
                job.id,
                job.task,
                job.starts,
                error.type if error else "no error",
                after / SECOND,
            )
        case PutBack(charge="stalls"):
            why = first_line(settlement.ended.detail or "")
            logger.error("job %s (%s) stalled in run %d: %s", job.id, job.task, job.starts, why)
        case PutBack(charge="releases", reason="unknown_task"):
            logger.warning("job %s: this worker does not know its task %r", job.id, job.task)
        case _:
            return
