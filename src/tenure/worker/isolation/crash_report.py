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
        self.looked_at = 0.0
        """The uptime of the last check of the handler's stack."""
        self.progress: Progress | None = None
        self.lines: deque[Line] = deque(maxlen=LINES)


def inquest(
    held: ActiveRun, heard: LastSigns, ending: Ending, *, worker: Owner, clock: Clock, max_block: int | None = None
) -> Stalled:
    """Return the outcome of a run whose process ended like this, with its post-mortem.

    `max_block`: in microseconds, if the process was killed because its event loop was blocked for longer than this.
    """
    reason: StallReason = "process_died" if max_block is None else "loop_blocked"
    now, wall, job = clock.uptime(), clock.now(), held.lease.job
    silent = max(0, round((now - max(held.claimed_at, held.signed_at, held.signs.last)) * SECOND))
    run = RunRecord(
        number=job.starts,
        fence=job.fence,
        owner=worker.id,
        worker=worker.name,
        host=worker.host,
        pid=worker.pid,
        start=wall - round((now - held.claimed_at) * SECOND),
        trace=held.elsewhere,
    )
    # The last check may have been of another run.
    looked_ago = max(0, round((now - heard.looked_at) * SECOND)) if heard.looked_at > held.claimed_at else None
    told = heard.progress or (job.progress, job.progress_note)
    text = post_mortem(
        structs.replace(job, heard_at=wall, progress=told[0], progress_note=told[1]),
        stall_cause(job, reason, silent_for=silent, ending=ending, max_block=max_block),
        silent_for=silent,
        died=True,
        run=run,
        log=[
            LogLine(at=wall - round((now - at) * SECOND), run=job.starts, level=level, message=message, fields=fields)
            for at, level, message, fields, _ in heard.lines
        ],
        workplace=Workplace(report_age=looked_ago),
        ending=ending,
        alone=True,
    )
    return Stalled(reason, silent, worker.id, text)
