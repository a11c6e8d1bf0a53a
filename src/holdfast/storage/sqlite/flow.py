"""The flow in SQL: jobs are remembered, and claimed in the same step that settles others."""

from collections.abc import Sequence

from holdfast.core.job import NewJob, Owner, StallSetting
from holdfast.core.lease import Lease
from holdfast.core.settlement import Settlement
from holdfast.core.transition import claimed
from holdfast.storage.protocol import (
    CLAIM_LIMIT,
    PROMOTE_LIMIT,
    RUNS_KEPT,
    Exchanged,
    Order,
    Receipt,
    Verdict,
    queue_topic,
)
from holdfast.storage.sqlite import rows
from holdfast.storage.sqlite.queries import query
from holdfast.storage.sqlite.settling import settle
from holdfast.storage.sqlite.step import Step
from holdfast.storage.sqlite.tuning import setting

_REMEMBER = query("enqueue", "remember")
_PROMOTE = query("exchange", "promote")
_READY = query("exchange", "ready")
_START = query("exchange", "start")
_OPEN_RUN = query("exchange", "open_run")
_TRIM_RUNS = query("exchange", "trim_runs")
_GLANCE = query("exchange", "glance")


def enqueue(step: Step, jobs: Sequence[NewJob]) -> list[Receipt]:
    """Remember each new job once."""
    receipts: list[Receipt] = []
    for place, job in enumerate(jobs):
        row = rows.wished(job, step.now, place)
        if step.run(_REMEMBER, row):
            step.moved(job.queue, to=row[3])
            step.knocked.append(queue_topic(job.queue))
            receipts.append(Receipt("created", job.ref))
        else:
            receipts.append(Receipt("duplicate", job.ref))
    return receipts


def exchange(step: Step, owner: Owner, settlements: Sequence[Settlement], order: Order | None) -> Exchanged:
    """Apply each settlement whose run is the current one, then claim what is ordered."""
    verdicts = settle(step, owner, settlements)
    if order is None:
        return Exchanged(verdicts)
    leases: list[Lease] = []
    room = max(0, min(order.room, CLAIM_LIMIT))
    open_queues: list[str] = []
    for queue in order.queues:
        terms = setting(step, "queue", queue)
        if terms.paused:
            continue
        open_queues.append(queue)
        promote(step, queue, PROMOTE_LIMIT)
        leases += _claim(step, owner, queue, room - len(leases), terms.stall)
    return _answer(verdicts, tuple(leases), [_glance(step, queue) for queue in open_queues], step.now)


def nothing_to_exchange(step: Step, order: Order | None) -> Exchanged | None:
    """Return the answer to an order that changes nothing, or None where it may change something.

    It only reads, so it needs no lock: eight idle processes that ask do not stand in each other's way.
    """
    seen: list[tuple[int, int | None]] = []
    for queue in order.queues if order else ():
        if setting(step, "queue", queue).paused:
            continue
        ready, due = _glance(step, queue)
        if (ready and order and order.room > 0) or (due is not None and due <= step.now):
            return None
        seen.append((ready, due))
    return _answer((), (), seen, step.now)


def promote(step: Step, queue: str, limit: int) -> int:
    """Make waiting what fell due in a queue; return how many that were."""
    promoted = step.run(_PROMOTE, (queue, step.now, limit))
    step.moved(queue, left="delayed", to="waiting", jobs=promoted)
    return promoted


def _claim(step: Step, owner: Owner, queue: str, room: int, stall: StallSetting | None) -> list[Lease]:
    if room <= 0:
        return []
    found = step.all(_READY, (queue, room))
    if not found:
        return []
    started = [(row[0], claimed(rows.record(row), owner.id, step.now, stall)) for row in found]
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
    step.moved(queue, left="waiting", to="active", jobs=len(started))
    return [Lease(job) for _, job in started]


def _glance(step: Step, queue: str) -> tuple[int, int | None]:
    seen = step.one(_GLANCE, {"queue": queue})
    return (0, None) if seen is None else (seen[0], seen[1])


def _answer(
    verdicts: tuple[Verdict, ...], leases: tuple[Lease, ...], seen: list[tuple[int, int | None]], now: int
) -> Exchanged:
    dues = [due for _, due in seen if due is not None]
    return Exchanged(
        verdicts,
        leases,
        left=any(ready for ready, _ in seen),
        next_due=max(0, min(dues) - now) if dues else None,
    )
