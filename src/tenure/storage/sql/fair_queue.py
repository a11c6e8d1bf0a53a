"""The order of a queue in SQL: a job's score, in virtual time if the queue is fair (core/order.py).

Each tenant is looked up separately, so a job costs the same with ten thousand tenants. For a queue without tenants the
cost is one look-up per transaction.
"""

from collections.abc import Iterable

from tenure.core.job import JobRecord, NewJob
from tenure.core.order import Fairness, score_at
from tenure.storage.sql.transaction import FairQueueState, Transaction

_DELETE = ("fair_queue.delete_front", "fair_queue.delete_reached", "fair_queue.delete_tags")


def score(tx: Transaction, job: NewJob | JobRecord, at: int) -> int:
    """Return the score of a job that enters its queue as if at an instant; the caller must then add the job."""
    state = tx.fair_queue(job.queue)
    fair = is_fair(tx, job.queue)
    state.waits = True
    if job.lifo:
        return score_at(at, boost=job.boost, lifo=True)
    if job.fair_key is not None and not fair:
        # A late arrival must not start the virtual clock in the past.
        state.fairness, state.written = Fairness(max(at, tx.now)), None
    if state.fairness is not None:
        at = _tag(tx, job, state, state.fairness)
    return score_at(at, boost=job.boost)


def is_fair(tx: Transaction, queue: str) -> bool:
    """Return True if jobs that enter a queue get virtual instants; if no job waits, reset its fair order."""
    state = tx.fair_queue(queue)
    if state.fairness is not None and not _has_waiting_jobs(tx, queue, state):
        if state.written is not None:
            delete(tx, queue)
        state.fairness = None
    return state.fairness is not None


def delete(tx: Transaction, queue: str) -> None:
    """Delete a queue's fair order."""
    for statement in _DELETE:
        tx.run(statement, {"queue": queue})


def reached(tx: Transaction, queue: str, boost: int) -> int:
    """Return the virtual time that a queue has reached for jobs of a priority."""
    state = tx.fair_queue(queue)
    _look_up_reached(tx, queue, state, boost)
    return tx.now if state.fairness is None else state.fairness.start(boost)


def mark_dispatched(tx: Transaction, queue: str, jobs: Iterable[JobRecord]) -> None:
    """Advance a queue's virtual time for these jobs, as far as they count in it."""
    state = tx.fair_queue(queue)
    if state.fairness is not None:
        for job in jobs:
            if not job.lifo:
                _look_up_reached(tx, queue, state, job.boost)
                state.fairness.mark_dispatched(job.score, job.boost)


def _tag(tx: Transaction, job: NewJob | JobRecord, state: FairQueueState, fairness: Fairness) -> int:
    """Return the virtual instant of a tenant's next job."""
    key = job.fair_key or ""
    _look_up_reached(tx, job.queue, state, job.boost)
    _look_up_tag(tx, job.queue, state, (job.boost, key))
    # A priority without an entry has reached the queue's front; the entry also records that the priority exists.
    fairness.reached.setdefault(job.boost, fairness.front)
    waits = job.fair_key is None or _tenant_waits(tx, job.queue, state, (job.boost, key))
    state.tenants.add((job.boost, key))
    return fairness.tag(key, boost=job.boost, weight=job.weight, waits=waits)


def _look_up_reached(tx: Transaction, queue: str, state: FairQueueState, boost: int) -> None:
    if state.fairness is None or state.written is None or boost in state.fairness.reached:
        return
    row = tx.one("fair_queue.reached", {"queue": queue, "boost": boost})
    if row is not None:
        state.fairness.reached[boost] = state.written.reached[boost] = row[0]


def _look_up_tag(tx: Transaction, queue: str, state: FairQueueState, lane: tuple[int, str]) -> None:
    if state.fairness is None or state.written is None or lane in state.fairness.tags:
        return
    row = tx.one("fair_queue.tag", {"queue": queue, "boost": lane[0], "key": lane[1]})
    if row is not None:
        state.fairness.tags[lane] = state.written.tags[lane] = row[0]


def _tenant_waits(tx: Transaction, queue: str, state: FairQueueState, lane: tuple[int, str]) -> bool:
    if lane in state.tenants:
        return True
    boost, key = lane
    return tx.one("fair_queue.tenant_has_waiting", {"queue": queue, "boost": boost, "key": key}) == (1,)


def _has_waiting_jobs(tx: Transaction, queue: str, state: FairQueueState) -> bool:
    if not state.waits:
        state.waits = tx.one("fair_queue.has_waiting", {"queue": queue}) == (1,)
    return state.waits
