"""Claims in SQL: what fell due is made ready, and the best of the ready are started as far as they may."""

from holdfast.core.job import JobRecord, Owner
from holdfast.core.lease import Lease
from holdfast.core.order import came_at
from holdfast.core.transition import begun, claimed, lapsed
from holdfast.storage.protocol import RUNS_KEPT, SCAN_LIMIT
from holdfast.storage.sqlite import line, rates, slots
from holdfast.storage.sqlite.moving import expire, the_job, whole
from holdfast.storage.sqlite.queries import query
from holdfast.storage.sqlite.rows import Row
from holdfast.storage.sqlite.settings import recorded, setting
from holdfast.storage.sqlite.step import Step

_DUE = query("exchange", "due")
_PROMOTE = query("exchange", "promote")
_COME_IN = query("exchange", "come_in")
_READY = query("exchange", "ready")
_START = query("exchange", "start")
_OPEN_RUN = query("exchange", "open_run")
_TRIM_RUNS = query("exchange", "trim_runs")


def promote(step: Step, queue: str, limit: int) -> int:
    """Make waiting what fell due in a queue, or expired where it is too old by now; return how many that were."""
    due = step.all(_DUE, (queue, step.now, limit))
    if not due:
        return 0
    aged = [seq for seq, expires_at, _ in due if expires_at is not None and expires_at <= step.now]
    for seq in aged:
        expire(step, seq, the_job(step, seq))
    if line.is_fair(step, queue) or any(keyed for _, _, keyed in due):
        for seq in [seq for seq, _, _ in due if seq not in aged]:
            _promote(step, seq, the_job(step, seq))
    else:
        promoted = step.run(_PROMOTE, (queue, step.now, len(due) - len(aged)))
        step.moved(queue, left="delayed", to="waiting", jobs=promoted)
    slots.let_in(step)
    return len(due)


def _promote(step: Step, seq: int, job: JobRecord) -> None:
    """Make one job waiting whose score depends on who stands in line before it."""
    at = came_at(job.score, boost=job.boost, lifo=job.lifo)
    step.run(_COME_IN, (line.score(step, job, at), seq))
    step.moved(job.queue, left="delayed", to="waiting")


class Claim:
    """One claim of an owner: as many jobs as there is room for, of so many that may be looked at."""

    def __init__(self, step: Step, owner: Owner, room: int) -> None:
        self.leases: list[Lease] = []
        self._step = step
        self._owner = owner
        self._room = room
        self._looks = SCAN_LIMIT

    def take_from(self, queue: str) -> None:
        """Start the best of a queue, and move out of the way whatever may not start."""
        step = self._step
        while (limit := min(self._room - len(self.leases), self._looks, rates.free(step, queue))) > 0:
            found = step.all(_READY, (queue, limit))
            if not self._go_through(queue, found) and len(found) < limit:
                return

    def _go_through(self, queue: str, found: list[Row]) -> int:
        """Look at the first of a line one by one, until somebody was let in who may stand before the next of them.

        Returns how many were let in.
        """
        step = self._step
        stall = setting(step, "queue", queue).stall
        told = recorded(step, queue, "started")
        started: list[tuple[int, JobRecord]] = []
        let_in = 0
        for row in found:
            if not rates.free(step, queue):
                break
            seq, job = row[0], whole(step, row)
            self._looks -= 1
            if lapsed(job, step.now):
                expire(step, seq, job)
            elif (full := slots.full(step, job)) is not None:
                slots.park(step, seq, job, full)
            else:
                if job.keys:
                    slots.take(step, job)
                rates.take(step, job)
                job = claimed(job, self._owner.id, step.now, stall)
                started.append((seq, job))
                if told:
                    step.record(begun(job, self._owner))
            let_in = slots.let_in(step) if step.freed else 0
            if let_in:
                break
        _start(step, self._owner, started)
        line.given_out(step, queue, (job for _, job in started))
        step.moved(queue, left="waiting", to="active", jobs=len(started))
        self.leases += [Lease(job) for _, job in started]
        return let_in


def _start(step: Step, owner: Owner, started: list[tuple[int, JobRecord]]) -> None:
    step.many(
        _START,
        [
            (
                job.stall.lease,
                job.stall.max_stalls,
                job.stall.start_grace,
                job.stall.renewed,
                job.fence,
                job.owner,
                job.heard_at,
                job.lease_until,
                job.run_until,
                job.progress_until,
                job.starts,
                job.started,
                seq,
            )
            for seq, job in started
        ],
    )
    step.many(
        _OPEN_RUN,
        [(seq, job.starts, job.fence, owner.id, owner.name, owner.host, owner.pid, step.now) for seq, job in started],
    )
    worn = [(seq, job.starts - RUNS_KEPT) for seq, job in started if job.starts > RUNS_KEPT]
    if worn:
        step.many(_TRIM_RUNS, worn)
