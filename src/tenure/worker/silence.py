"""Builds the outcome of a run whose handler gave no sign for too long, from the facts that its live worker has."""

from msgspec import structs

from tenure.clock import SECOND, Clock
from tenure.core.job import Owner, RunRecord, StallReason
from tenure.core.outcome import Stalled
from tenure.core.postmortem import post_mortem, stall_cause
from tenure.worker.active_runs import ActiveRun


def told_of_silence(held: ActiveRun, reason: StallReason, *, worker: Owner, clock: Clock) -> Stalled:
    """Return the outcome of a run that its worker stopped because its handler was silent, with a post-mortem."""
    now, wall, job, silent = clock.uptime(), clock.now(), held.lease.job, held.silent_for
    run = RunRecord(
        number=job.starts,
        fence=job.fence,
        owner=worker.id,
        worker=worker.name,
        host=worker.host,
        pid=held.pid or worker.pid,
        start=wall - round((now - held.claimed_at) * SECOND),
        trace=held.at_limit,
    )
    text = post_mortem(
        structs.replace(job, heard_at=wall),
        stall_cause(job, reason, silent_for=silent, run=run),
        silent_for=silent,
        died=False,
        run=run,
    )
    return Stalled(reason, silent, worker.id, text)
