"""Checks fairness in a simulated world (I14): while a tenant waits, others get no more than their weights allow.

Take the turns of the waiting tenant plus the one that it waits for, and scale that number by the two weights. Another
tenant may have that many turns meanwhile, plus one. A job that is put back at once has had its turn. A tenant is left
out from when one of its jobs leaves the queue without a start, because the others keep their distances.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from tenure.core.job import JobRecord, Ref
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.order import share
from tenure_testing.simulation.call_checks import Require

Lane = tuple[str, int]
"""A queue, and how far a priority moves its jobs ahead. Tenants are compared within one lane."""


@dataclass
class TenantWait:
    """A period in which a tenant waits: the front of its lane when it began, and all turns since."""

    front: float
    waiting: set[Ref]
    weight: int
    turns: int = 0
    others: dict[str, int] = field(default_factory=dict[str, int])


class FairnessChecks:
    """An account of all tenants with ready jobs."""

    def __init__(self, require: Require) -> None:
        self._require = require
        self._waits: dict[tuple[Lane, str], TenantWait] = {}
        self._fronts: dict[Lane, float] = {}
        self._queues: set[str] = set()
        self._left_out: set[tuple[str, str]] = set()
        self._scores: dict[Ref, int] = {}
        """The score with which each job was claimed last."""

    def counts(self, queue: str) -> bool:
        """Return True if tenants share a queue, so that its jobs are ordered by virtual time."""
        return queue in self._queues

    def claimed(
        self, leases: Sequence[Lease], before: Mapping[Ref, JobRecord], records: Mapping[Ref, JobRecord]
    ) -> None:
        """Check that no tenant had too many turns, in the order in which the jobs were claimed."""
        left = [
            was
            for ref, was in before.items()
            if was.fair_key is not None and records.get(ref) is not was and _has_left(was, records.get(ref))
        ]
        for lease in leases:
            job = lease.job
            # The claim came to these jobs first, and parked or expired them.
            self._left_out |= {
                (was.queue, was.fair_key)
                for was in left
                if was.fair_key is not None and was.queue == job.queue and was.score <= job.score
            }
            if job.fair_key is None or job.lifo:
                continue
            lane = _lane(job)
            # A job that is put back at once keeps its score or a lower one. A job that is enqueued or due again gets a
            # higher one.
            again, self._scores[job.ref] = job.score <= self._scores.get(job.ref, -inf), job.score
            for (other, tenant), wait in list(self._waits.items()):
                if other != lane:
                    continue
                if tenant == job.fair_key:
                    wait.turns += not again and job.score > wait.front
                    wait.waiting.discard(job.ref)
                    if not wait.waiting:
                        del self._waits[other, tenant]
                elif not again and job.score > wait.front:
                    self._another(job, job.fair_key, tenant, wait)
            self._fronts[lane] = max(self._fronts.get(lane, -inf), job.score)

    def _another(self, job: JobRecord, by: str, tenant: str, wait: TenantWait) -> None:
        turns = wait.others[by] = wait.others.get(by, 0) + 1
        if self._left_out & {(job.queue, by), (job.queue, tenant)}:
            return
        most = (wait.turns + 1) * share(wait.weight) // share(job.weight) + 1
        self._require(
            turns <= most, "I14", f"{job.ref}: {by!r} had {turns} turns while {tenant!r} waited and had {wait.turns}"
        )

    def stand(self, before: Mapping[Ref, JobRecord], records: Mapping[Ref, JobRecord], moved: Iterable[Ref]) -> None:
        """Record which jobs are ready after a step that moved some."""
        fair = [job for job in records.values() if job.fair_key is not None and not job.lifo]
        if not fair and not self._waits:
            return
        self._queues |= {job.queue for job in fair}
        for ref in moved:
            was, job = before.get(ref), records.get(ref)
            if was is not None and was.fair_key is not None and _has_left(was, job):
                self._left_out.add((was.queue, was.fair_key))
            if was is not None and was.state is State.ACTIVE and job is not None and job.state is State.WAITING:
                # The job was put back at once, perhaps further ahead than before if the queue's virtual time has
                # restarted.
                self._scores[ref] = job.score
        waiting: dict[tuple[Lane, str], set[Ref]] = {}
        weights: dict[tuple[Lane, str], int] = {}
        for job in fair:
            # A tenant that comes late into a lane of low priority may find more jobs before it: its lane has no front
            # yet, and the front of the other lanes is ahead.
            if _in_line(job) and job.boost >= 0:
                place = _lane(job), job.fair_key or ""
                waiting.setdefault(place, set()).add(job.ref)
                weights[place] = job.weight
        known = self._waits
        self._waits = {}
        for place, refs in waiting.items():
            wait = known.get(place) or TenantWait(self._fronts.get(place[0], -inf), refs, weights[place])
            wait.waiting = refs
            self._waits[place] = wait


def _lane(job: JobRecord) -> Lane:
    return job.queue, job.boost


def _in_line(job: JobRecord) -> bool:
    return job.state is State.WAITING and job.parked_under is None


def _has_left(was: JobRecord, job: JobRecord | None) -> bool:
    """Return True if a job that was ready, or became ready in this step, lost its place without a start."""
    if job is None or job.state is State.ACTIVE:
        return job is None
    parked = job.state is State.WAITING and job.parked_under is not None
    if not _in_line(was):
        return parked
    return not _in_line(job) or job.score != was.score
