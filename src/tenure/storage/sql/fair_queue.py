"""The order of a queue in SQL: a job's score, in virtual time if the queue is fair (core/order.py).

Each tenant is looked up separately, so a job costs the same with ten thousand tenants. For a queue without tenants the
cost is one look-up per transaction.
"""

from collections.abc import Iterable

from tenure.core.job import JobRecord, NewJob
from tenure.core.order import Fairness, score_at
from tenure.storage.sql.transaction import FairQueueState, Transaction

_FORGET = ("line.forget_front", "line.forget_reached", "line.forget_tags")


def score(tx: Transaction, job: NewJob | JobRecord, at: int) -> int:
    """Return the score of a job that enters its queue as if at an instant; the caller must then add the job."""
    line = tx.fair_queue(job.queue)
    fair = is_fair(tx, job.queue)
    line.waits = True
    if job.lifo:
        return score_at(at, boost=job.boost, lifo=True)
    if job.fair_key is not None and not fair:
        # A late arrival must not start the virtual clock in the past.
        line.fairness, line.written = Fairness(max(at, tx.now)), None
    if line.fairness is not None:
        at = _tag(tx, job, line, line.fairness)
    return score_at(at, boost=job.boost)


def is_fair(tx: Transaction, queue: str) -> bool:
    """Return True if jobs that enter a queue get virtual instants; if no job waits, reset its fair order."""
    line = tx.fair_queue(queue)
    if line.fairness is not None and not _anybody_waits(tx, queue, line):
        if line.written is not None:
            forget(tx, queue)
        line.fairness = None
    return line.fairness is not None


def forget(tx: Transaction, queue: str) -> None:
    """Delete a queue's fair order."""
    for statement in _FORGET:
        tx.run(statement, {"queue": queue})


def reached(tx: Transaction, queue: str, boost: int) -> int:
    """Return the virtual time that a queue has reached for jobs of a priority."""
    line = tx.fair_queue(queue)
    _look_up_reached(tx, queue, line, boost)
    return tx.now if line.fairness is None else line.fairness.start(boost)


def given_out(tx: Transaction, queue: str, jobs: Iterable[JobRecord]) -> None:
    """Advance a queue's virtual time for these jobs, as far as they count in it."""
    line = tx.fair_queue(queue)
    if line.fairness is not None:
        for job in jobs:
            if not job.lifo:
                _look_up_reached(tx, queue, line, job.boost)
                line.fairness.mark_dispatched(job.score, job.boost)


def _tag(tx: Transaction, job: NewJob | JobRecord, line: FairQueueState, fairness: Fairness) -> int:
    """Return the virtual instant of a tenant's next job."""
    key = job.fair_key or ""
    _look_up_reached(tx, job.queue, line, job.boost)
    _look_up_tag(tx, job.queue, line, (job.boost, key))
    # A priority without an entry has reached the queue's front; the entry also records that the priority exists.
    fairness.reached.setdefault(job.boost, fairness.front)
    waits = job.fair_key is None or _tenant_waits(tx, job.queue, line, (job.boost, key))
    line.tenants.add((job.boost, key))
    return fairness.tag(key, boost=job.boost, weight=job.weight, waits=waits)


def _look_up_reached(tx: Transaction, queue: str, line: FairQueueState, boost: int) -> None:
    if line.fairness is None or line.written is None or boost in line.fairness.reached:
        return
    row = tx.one("line.reached", {"queue": queue, "boost": boost})
    if row is not None:
        line.fairness.reached[boost] = line.written.reached[boost] = row[0]


def _look_up_tag(tx: Transaction, queue: str, line: FairQueueState, lane: tuple[int, str]) -> None:
    if line.fairness is None or line.written is None or lane in line.fairness.tags:
        return
    row = tx.one("line.tag", {"queue": queue, "boost": lane[0], "key": lane[1]})
    if row is not None:
        line.fairness.tags[lane] = line.written.tags[lane] = row[0]


def _tenant_waits(tx: Transaction, queue: str, line: FairQueueState, lane: tuple[int, str]) -> bool:
    return lane in line.tenants or tx.one("line.tenant_waits", {"queue": queue, "boost": lane[0], "key": lane[1]}) == (
        1,
    )


def _anybody_waits(tx: Transaction, queue: str, line: FairQueueState) -> bool:
    if not line.waits:
        line.waits = tx.one("line.waits", {"queue": queue}) == (1,)
    return line.waits
