"""Builds the outcome of a run whose handler gave no sign for too long, from the facts that its live worker has."""

from msgspec import structs

from tenure.clock import SECOND, Clock
from tenure.core.job import Owner, RunRecord, StallReason
from tenure.core.outcome import Stalled
from tenure.core.postmortem import post_mortem, stall_cause
from tenure.worker.active_runs import ActiveRun


def silence_outcome(run: ActiveRun, reason: StallReason, *, worker: Owner, clock: Clock) -> Stalled:
    """Return the outcome of a run that its worker stopped because its handler was silent, with a post-mortem."""
    now, wall, job, silent = clock.uptime(), clock.now(), run.lease.job, run.silent_for
    record = RunRecord(
        number=job.starts,
        fence=job.fence,
        owner=worker.id,
        worker=worker.name,
        host=worker.host,
        pid=run.pid or worker.pid,
        start=wall - round((now - run.claimed_at) * SECOND),
        trace=run.position_at_stop,
    )
    text = post_mortem(
        structs.replace(job, heard_at=wall),
        stall_cause(job, reason, silent_for=silent, run=record),
        silent_for=silent,
        died=False,
        run=record,
    )
    return Stalled(reason, silent, worker.id, text)
