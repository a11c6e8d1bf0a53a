"""The flow in SQL: jobs are remembered, and claimed in the same step that settles others."""

from collections.abc import Sequence

from holdfast.core.job import NewJob, Owner
from holdfast.core.lease import Lease
from holdfast.core.settlement import Settlement
from holdfast.storage.protocol import (
    CLAIM_LIMIT,
    PROMOTE_LIMIT,
    Exchanged,
    Order,
    Receipt,
    Verdict,
)
from holdfast.storage.sqlite import intake, rates, slots
from holdfast.storage.sqlite.claiming import Claim, promote
from holdfast.storage.sqlite.queries import query
from holdfast.storage.sqlite.settings import setting
from holdfast.storage.sqlite.settling import settle
from holdfast.storage.sqlite.step import Step

_GLANCE = query("exchange", "glance")


def enqueue(step: Step, calls: Sequence[Sequence[NewJob]]) -> list[list[Receipt]]:
    """Remember each new job of several calls once."""
    receipts = intake.remember_all(step, calls)
    slots.let_in(step)
    return receipts


def exchange(step: Step, owner: Owner, settlements: Sequence[Settlement], order: Order | None) -> Exchanged:
    """Apply each settlement whose run is the current one, then claim what is ordered."""
    verdicts = settle(step, owner, settlements)
    if order is None:
        return Exchanged(verdicts)
    claim = Claim(step, owner, min(order.room, CLAIM_LIMIT))
    open_queues = [queue for queue in order.queues if not setting(step, "queue", queue).paused]
    for queue in open_queues:
        promote(step, queue, PROMOTE_LIMIT)
        if rates.opens_at(step, queue) <= step.now:
            slots.open_up(step, queue)
        claim.take_from(queue)
    return _answer(verdicts, tuple(claim.leases), [_glance(step, queue) for queue in open_queues], step.now)


def nothing_to_exchange(step: Step, order: Order | None) -> Exchanged | None:
    """Return the answer to an order that changes nothing, or None where it may change something.

    It only reads, so it needs no lock: eight idle processes that ask do not stand in each other's way.
    """
    seen: list[tuple[int, int | None]] = []
    for queue in order.queues if order else ():
        if setting(step, "queue", queue).paused:
            continue
        ready, due = _glance(step, queue)
        # Who may not start, as a job of a paused task, is moved out of the way, and due ones are made ready or expired.
        if (ready and order and order.room > 0) or (due is not None and due <= step.now):
            return None
        seen.append((ready, due))
    return _answer((), (), seen, step.now)


def _glance(step: Step, queue: str) -> tuple[int, int | None]:
    """Return whether a queue has a job that could be claimed, and when time alone gives it another."""
    seen = step.one(_GLANCE, {"queue": queue})
    if seen is None:
        raise AssertionError("a glance tells even of what is not there")
    ready, falls_due, opening = seen
    opens_at = rates.opens_at(step, queue) if ready or opening is not None else step.now
    dues = [] if falls_due is None else [falls_due]
    if opening is not None:
        # Nobody is let in line by a rate of his own before the queue's own lets him start.
        dues.append(max(opening, opens_at))
    if ready and opens_at > step.now:
        ready = 0
        dues.append(opens_at)
    return ready, min(dues, default=None)


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
