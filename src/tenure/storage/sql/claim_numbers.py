"""The numbered claims of this process's owners, and the hand-back of runs whose answers were lost.

An owner is one process, and only this process makes its calls. So the numbers are kept in memory and end with
the owner. A transaction publishes its changes only after the commit, because it may be rolled back and repeated.
"""

from tenure.core.job import Owner
from tenure.core.lane import Lane
from tenure.core.lifecycle import State
from tenure.core.settlement import handed_back
from tenure.storage.protocol import WORKER_KEPT
from tenure.storage.sql.settle import settle
from tenure.storage.sql.transaction import Lanes, Transaction
from tenure.storage.sql.transitions import find_job

_KEPT = 64
"""Above this number of lanes, lanes that were unused for long are deleted."""


def has_seen(tx: Transaction, owner: Owner, lane: Lane) -> bool:
    """Return True if a call's number was seen before; if not, hand back runs whose answers were lost."""
    if tx.lane(owner.id, lane.id).has_seen(lane):
        return True
    hand_back(tx, owner, lane)
    return False


def hand_back(tx: Transaction, owner: Owner, lane: Lane) -> None:
    """Hand back the runs that a lane's finished calls gave out in answers that were lost."""
    known = tx.lane(owner.id, lane.id)
    lost = [(found[1], fence) for ref, fence in known.lost(lane) if (found := find_job(tx, ref)) is not None]
    settle(
        tx,
        owner,
        [
            handed_back(job)
            for job, fence in lost
            if job.state is State.ACTIVE and job.fence == fence and job.owner == owner.id
        ],
    )
    tx.lanes[owner.id, lane.id] = known.finished(lane, tx.now)


def publish(lanes: Lanes, tx: Transaction) -> None:
    """Publish a transaction's changes after its commit."""
    lanes |= tx.lanes
    if tx.lanes and len(lanes) > _KEPT:
        for place in [place for place, known in lanes.items() if known.at <= tx.now - WORKER_KEPT]:
            del lanes[place]
