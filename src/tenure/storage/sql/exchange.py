"""The hot path in SQL: enqueues jobs, and settles runs and claims jobs in one step."""

from collections.abc import Sequence

from tenure.core.job import NewJob, Owner
from tenure.core.lease import Lease
from tenure.core.settlement import Settlement
from tenure.storage.protocol import (
    CLAIM_LIMIT,
    PROMOTE_LIMIT,
    ClaimRequest,
    EnqueueResult,
    ExchangeResult,
    SettlementResult,
)
from tenure.storage.sql import claim_numbers, concurrency_keys, enqueue, rates
from tenure.storage.sql.claim import Claim, promote
from tenure.storage.sql.ready_queues import ReadyQueues
from tenure.storage.sql.settings import require_here
from tenure.storage.sql.settle import settle
from tenure.storage.sql.transaction import Transaction

QUEUES_READ = 16
"""The state of this number of a claim's queues is read before it is needed. The queues of a claim may be thousands."""


def enqueue_all(tx: Transaction, calls: Sequence[Sequence[NewJob]]) -> list[list[EnqueueResult]]:
    """Store each new job of several calls once.

    Raises:
        StorageMovedError: the jobs of one of the queues are moved to another storage.
    """
    for queue in dict.fromkeys(new.queue for call in calls for new in call):
        require_here(tx, queue)
    return enqueue_moved(tx, calls)


def enqueue_moved(tx: Transaction, calls: Sequence[Sequence[NewJob]]) -> list[list[EnqueueResult]]:
    """Store each new job of several calls once, also in queues whose jobs are moved: it waits there to be moved."""
    results = enqueue.store_all(tx, calls)
    concurrency_keys.release_freed(tx)
    return results


def exchange(
    tx: Transaction, owner: Owner, settlements: Sequence[Settlement], order: ClaimRequest | None
) -> ExchangeResult:
    """Apply each settlement whose run is the current one, then claim jobs."""
    tx.load_queues(
        [*(settlement.ref.queue for settlement in settlements), *(() if order is None else order.queues[:QUEUES_READ])]
    )
    verdicts = settle(tx, owner, settlements)
    if order is None:
        return ExchangeResult(verdicts)
    lane = order.lane
    seen = lane is not None and claim_numbers.has_seen(tx, owner, lane)
    ready = ReadyQueues(tx, order.queues, order.tasks)
    claim = Claim(tx, owner, 0 if seen else min(order.room, CLAIM_LIMIT), order.tasks)
    visited: list[str] = []
    # The first queue is visited anyway, so it needs no check for ready jobs.
    next_ready = 0
    for number, queue in enumerate(order.queues):
        if next_ready < number and claim.has_room:
            next_ready = ready.next_ready(number)
        due, opens, known = ready.is_due(queue), ready.has_opened(queue), ready.known(queue)
        if not (due or opens or known or next_ready == number) or ready.is_paused(queue):
            continue
        visited.append(queue)
        if due:
            promote(tx, queue, PROMOTE_LIMIT)
        if opens and rates.opens_at(tx, queue) <= tx.now:
            concurrency_keys.release_opened(tx, queue)
        claim.take_from(queue, known)
        if due or opens or known:
            # The jobs that fall due, or may start, have changed too.
            claim.left.pop(queue, None)
    if lane is not None and not seen:
        runs = [(lease.ref, lease.fence) for lease in claim.leases]
        tx.lanes[owner.id, lane.id] = tx.lane(owner.id, lane.id).claimed(lane, runs, tx.now)
    waiting = [queue for queue in visited if (claim.left[queue] if queue in claim.left else ready.refresh(queue))]
    left = any(not ready.is_closed(queue) for queue in waiting) or ready.has_claimable(max(1, next_ready))
    return _answer(verdicts, tuple(claim.leases), left, ready.next_due(), tx.now, seen=seen)


def exchange_read_only(tx: Transaction, owner: Owner, order: ClaimRequest | None) -> ExchangeResult | None:
    """Return the answer to a claim that changes nothing, or None if it may change something.

    This only reads, so it needs no lock: eight idle processes that poll do not block each other.
    """
    if order is None:
        return ExchangeResult()
    lane = order.lane
    claims = None if lane is None else tx.lane(owner.id, lane.id)
    if lane is not None and claims is not None and (claims.has_seen(lane) or claims.lost(lane)):
        return None
    ready = ReadyQueues(tx, order.queues, order.tasks)
    left, due = ready.has_claimable(0), ready.next_due()
    # A job that may not start, for example of a paused task, is parked, and due jobs are promoted or expired.
    if (left and order.room > 0) or (due is not None and due <= tx.now):
        return None
    if lane is not None and claims is not None:
        tx.lanes[owner.id, lane.id] = claims.claimed(lane, (), tx.now)
    return _answer((), (), left, due, tx.now)


def _answer(
    verdicts: tuple[SettlementResult, ...],
    leases: tuple[Lease, ...],
    left: bool,
    due: int | None,
    now: int,
    *,
    seen: bool = False,
) -> ExchangeResult:
    return ExchangeResult(verdicts, leases, left=left, next_due=None if due is None else max(0, due - now), seen=seen)
