"""Builds the crash report of an isolated run from the messages of its process, without asking the storage."""

from collections import deque

from msgspec import structs

from tenure.clock import SECOND, Clock
from tenure.core.job import LogLine, Owner, RunRecord, StallReason
from tenure.core.outcome import Stalled
from tenure.core.postmortem import LINES, Ending, Workplace, post_mortem, stall_cause
from tenure.handlers.context import Line, Progress
from tenure.worker.active_runs import ActiveRun


class LastSigns:
    """The last signs that were received of a run."""

    def __init__(self) -> None:
        self.began = False
        self.checked_at = 0.0
        """The uptime of the last check of the handler's stack."""
        self.progress: Progress | None = None
        self.lines: deque[Line] = deque(maxlen=LINES)


def crash_outcome(
    run: ActiveRun, last_signs: LastSigns, ending: Ending, *, worker: Owner, clock: Clock, max_block: int | None = None
) -> Stalled:
    """Return the outcome of a run whose process ended like this, with its post-mortem.

    `max_block`: in microseconds, if the process was killed because its event loop was blocked for longer than this.
    """
    reason: StallReason = "process_died" if max_block is None else "loop_blocked"
    now, wall, job = clock.uptime(), clock.now(), run.lease.job
    silent = max(0, round((now - max(run.claimed_at, run.signed_at, run.signs.last)) * SECOND))
    record = RunRecord(
        number=job.starts,
        fence=job.fence,
        owner=worker.id,
        worker=worker.name,
        host=worker.host,
        pid=worker.pid,
        start=wall - round((now - run.claimed_at) * SECOND),
        trace=run.isolated_position,
    )
    # The last check may have been of another run.
    report_age = (
        max(0, round((now - last_signs.checked_at) * SECOND)) if last_signs.checked_at > run.claimed_at else None
    )
    progress, note = last_signs.progress or (job.progress, job.progress_note)
    text = post_mortem(
        structs.replace(job, heard_at=wall, progress=progress, progress_note=note),
        stall_cause(job, reason, silent_for=silent, ending=ending, max_block=max_block),
        silent_for=silent,
        died=True,
        run=record,
        log=[
            LogLine(at=wall - round((now - at) * SECOND), run=job.starts, level=level, message=message, fields=fields)
            for at, level, message, fields, _ in last_signs.lines
        ],
        workplace=Workplace(report_age=report_age),
        ending=ending,
        alone=True,
    )
    return Stalled(reason, silent, worker.id, text)
