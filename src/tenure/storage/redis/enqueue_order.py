"""Orders the jobs of a call that go to several partitions: each job before those that notify it."""

from collections.abc import Callable, Sequence
from graphlib import CycleError, TopologicalSorter

from tenure.core.job import NewJob, Ref


def levels_of(jobs: Sequence[NewJob], partition_of: Callable[[str], object]) -> list[int]:
    """Return for each job its level: jobs of a lower level are stored first.

    A job has a higher level than the jobs of other partitions that it notifies. The jobs of one partition and one level
    are stored in one step. Jobs that notify each other in a circle never end, so their order does not matter.
    """
    if all(job.links is None for job in jobs):
        return [0] * len(jobs)
    new = {job.ref for job in jobs}
    notified: dict[Ref, set[Ref]] = {ref: set() for ref in new}
    for job in jobs:
        if job.links is not None:
            notified[job.ref] |= {dependent.to for dependent in job.links.dependents} & new - {job.ref}
    levels: dict[Ref, int] = {}
    try:
        order = list(TopologicalSorter(notified).static_order())
    except CycleError:
        return [0] * len(jobs)
    for ref in order:
        here = partition_of(ref.queue)
        steps = (levels[other] + (partition_of(other.queue) is not here) for other in notified[ref])
        levels[ref] = max(steps, default=0)
    return [levels[job.ref] for job in jobs]
