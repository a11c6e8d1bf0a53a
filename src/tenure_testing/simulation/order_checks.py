"""Checks the order of jobs in their queues: their places, and that a claim gives the first ones that may start."""

from collections import Counter
from collections.abc import Mapping, Sequence

from tenure.core.job import JobRecord, NewJob, Ref
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.order import score_at
from tenure.storage.protocol import (
    UNKNOWN,
    ClaimRequest,
    ExchangeResult,
    knows,
    task_of_place,
)
from tenure_testing.simulation.accounts import Accounts

COPIED_FIELDS = tuple(
    name
    for name in NewJob.__struct_fields__
    if name in JobRecord.__struct_fields__ and name not in ("id", "payload", "run_at")
)
"""The fields that a job copies from its call.

Its payload and `run_at` may come from several calls and are checked apart.
"""


class OrderChecks:
    """Checks new jobs and claims of one world."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._require = accounts.require

    def placed(self, new: NewJob, job: JobRecord | None, offset: int) -> None:
        """Check that a new job equals its request, and has the right place in its queue."""
        if job is None:
            return
        other = [name for name in COPIED_FIELDS if getattr(job, name) != getattr(new, name)]
        self._require(not other, "I17", f"{job.ref} differs from its request in {other}")
        shared = new.fair_key is not None or self._accounts.sharing.counts(job.queue)
        if job.state is State.WAITING and shared and not new.lifo:
            return
        at = max(job.run_at, self._accounts.clock.now()) + offset
        right = score_at(at, boost=new.boost, lifo=new.lifo)
        self._require(job.score == right, "I14", f"{job.ref}: it was enqueued at {at}, and its score is {job.score}")

    def claimed(self, answer: ExchangeResult, order: ClaimRequest | None, before: Mapping[Ref, JobRecord]) -> None:
        """Check which jobs a claim gave, and which it left."""
        if answer.leases:
            self._ordered(answer.leases, order)
            # A job that expired or was parked may have released another job in front of those claimed before.
            if not any(
                _went_out_of_the_way(job) and before[ref] is not job
                for ref, job in self._accounts.model.records.items()
            ):
                self._in_order(answer.leases)
            self._accounts.sharing.claimed(answer.leases, before, self._accounts.model.records)
        if order is not None and len(answer.leases) < order.room and not answer.seen:
            self._none_left(order)

    def _ordered(self, leases: Sequence[Lease], order: ClaimRequest | None) -> None:
        """Check that a claim gives no more jobs than requested, and exceeds the limit of no key."""
        fits = order is not None and len(leases) <= order.room
        self._require(fits, "I14", f"{len(leases)} leases were given for {order}")
        keys = {(lease.job.queue, key.name) for lease in leases for key in lease.job.keys}
        active = Counter(
            (job.queue, key.name)
            for job in (self._accounts.model.records.values() if keys else ())
            if job.state is State.ACTIVE
            for key in job.keys
        )
        for key in keys:
            self._require(active[key] <= self._accounts.limits[key], "I6", f"{key} is held {active[key]} times")

    def _in_order(self, leases: Sequence[Lease]) -> None:
        last: dict[str, tuple[int, str]] = {}
        for lease in leases:
            place = (lease.job.score, lease.job.id)
            self._require(last.get(lease.job.queue, place) <= place, "I14", f"{lease.ref} was claimed out of order")
            last[lease.job.queue] = place
        for job in self._accounts.model.records.values():
            if job.state is State.WAITING and job.parked_under is None and job.queue in last:
                left = (job.score, job.id)
                self._require(left > last[job.queue], "I14", f"{job.ref} was overtaken by a later job")

    def _none_left(self, order: ClaimRequest) -> None:
        """Check that the queues hold no job that the claim could have returned."""
        now = self._accounts.clock.now()
        for job in self._accounts.model.records.values():
            if job.queue not in order.queues or job.state is not State.WAITING:
                continue
            under = job.parked_under
            if under is not None and not (under.startswith(UNKNOWN) and knows(order.tasks, *task_of_place(under))):
                continue
            held = bool(self._accounts.setting("queue", job.queue).paused) or self._accounts.closed(job.queue, now)
            self._require(held, "I14", f"{job.ref} was left in the queue, and there was room")


def _went_out_of_the_way(job: JobRecord) -> bool:
    """Return True if a job has expired, or is parked and has given up its reservation of a rate."""
    return job.state is State.EXPIRED or (job.parked_under is not None and bool(job.rates))
