"""Whose turn it is in a simulated world (I14): as long as a tenant waits, others have no more than their weights say.

For each job that a tenant in line has had its turn with, and for the one that it waits with, another may have had as
many turns as it has shares of the same length, and one more. Who is put back at once has had its turn. A tenant is left
out from where one of its jobs leaves the line without a start: its others stand as far apart as before.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from tenure.core.job import JobRecord, Ref
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.order import share
from tenure.testing.calls import Require

Lane = tuple[str, int]
"""A queue, and how far ahead a priority puts its jobs: tenants are compared within one."""


@dataclass
class Wait:
    """A time through which a tenant waits: how far its lane had got when it began, and the turns of all since."""

    front: float
    waiting: set[Ref]
    weight: int
    turns: int = 0
    others: dict[str, int] = field(default_factory=dict[str, int])


class Sharing:
    """An account of all tenants in line."""

    def __init__(self, require: Require) -> None:
        self._require = require
        self._waits: dict[tuple[Lane, str], Wait] = {}
        self._fronts: dict[Lane, float] = {}
        self._queues: set[str] = set()
        self._left_out: set[tuple[str, str]] = set()
        self._scores: dict[Ref, int] = {}
        """With which score each job was claimed last."""

    def counts(self, queue: str) -> bool:
        """Say whether tenants share a queue, so that its jobs stand at virtual instants."""
        return queue in self._queues

    def claimed(self, leases: Sequence[Lease]) -> None:
        """See that nobody had too many turns, as they were given out in order."""
        for lease in leases:
            job = lease.job
            if job.fair_key is None or job.lifo:
                continue
            lane = _lane(job)
            # Who is put back at once stands no further than before, who comes in again does.
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

    def _another(self, job: JobRecord, by: str, tenant: str, wait: Wait) -> None:
        turns = wait.others[by] = wait.others.get(by, 0) + 1
        if self._left_out & {(job.queue, by), (job.queue, tenant)}:
            return
        most = (wait.turns + 1) * share(wait.weight) // share(job.weight) + 1
        self._require(
            turns <= most, "I14", f"{job.ref}: {by!r} had {turns} turns while {tenant!r} waited and had {wait.turns}"
        )

    def stand(self, before: Mapping[Ref, JobRecord], records: Mapping[Ref, JobRecord], moved: Iterable[Ref]) -> None:
        """Take in who stands in line after a step that has moved some."""
        fair = [job for job in records.values() if job.fair_key is not None and not job.lifo]
        if not fair and not self._waits:
            return
        self._queues |= {job.queue for job in fair}
        for ref in moved:
            was, job = before.get(ref), records.get(ref)
            if was is not None and was.fair_key is not None and _has_left(was, job):
                self._left_out.add((was.queue, was.fair_key))
            if was is not None and was.state is State.ACTIVE and job is not None and job.state is State.WAITING:
                # Put back at once, and perhaps further ahead than it stood: in a line that has begun anew.
                self._scores[ref] = job.score
        waiting: dict[tuple[Lane, str], set[Ref]] = {}
        weights: dict[tuple[Lane, str], int] = {}
        for job in fair:
            # A tenant that comes late into a lane of low priority may find more before it: its lane has no front yet,
            # and that of the others is ahead of it.
            if _in_line(job) and job.boost >= 0:
                place = _lane(job), job.fair_key or ""
                waiting.setdefault(place, set()).add(job.ref)
                weights[place] = job.weight
        known = self._waits
        self._waits = {}
        for place, refs in waiting.items():
            wait = known.get(place) or Wait(self._fronts.get(place[0], -inf), refs, weights[place])
            wait.waiting = refs
            self._waits[place] = wait


def _lane(job: JobRecord) -> Lane:
    return job.queue, job.boost


def _in_line(job: JobRecord) -> bool:
    return job.state is State.WAITING and job.parked_under is None


def _has_left(was: JobRecord, job: JobRecord | None) -> bool:
    """Say whether a job that had a place in line, or came into it in this step, has lost it without a start."""
    if job is None or job.state is State.ACTIVE:
        return job is None
    parked = job.state is State.WAITING and job.parked_under is not None
    if not _in_line(was):
        return parked
    return not _in_line(job) or job.score != was.score
