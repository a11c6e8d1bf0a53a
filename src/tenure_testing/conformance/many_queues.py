"""Conformance tests of claims over many queues: each job that may start is found, in the order of the queues."""

from collections.abc import Awaitable, Callable

import pytest

from tenure.clock import SECOND
from tenure.core.job import Key, NewJob, Policy, RateKey, Redriving, Ref
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.outcome import Interrupted
from tenure.core.retry import Backoff
from tenure.storage.protocol import CancelJob, RedriveJob, RescheduleJob, Settings, Storage, Target
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    ONCE,
    RAISED,
    REAPER,
    Conformance,
    enqueue,
    new_job,
    order,
    record,
    recover,
    settle,
    settled,
    start,
    sweep_all,
)

QUEUES = (*(f"queue-{number}" for number in range(39)), r"odd\u0000name")
HERE = QUEUES[28]
"""The queue that has a job to find. The other queues have none, or none that is due."""

SLOW = RateKey("slow", SECOND)

Way = Callable[[Storage, ManualClock], Awaitable[Ref]]


async def _enqueued(storage: Storage, clock: ManualClock) -> Ref:
    return await _one(storage, new_job(queue=HERE))


async def _enqueued_in_a_fair_line(storage: Storage, clock: ManualClock) -> Ref:
    return await _one(storage, new_job(queue=HERE, fair_key="tenant"))


async def _due(storage: Storage, clock: ManualClock) -> Ref:
    ref = await _one(storage, new_job(queue=HERE, delay=SECOND))
    clock.advance(1)
    return ref


async def _due_before_another_that_was_there(storage: Storage, clock: ManualClock) -> Ref:
    await enqueue(storage, new_job("later", queue=HERE, delay=3600 * SECOND))
    await order(storage, BOB, *QUEUES, room=5)
    return await _due(storage, clock)


async def _put_back_at_once(storage: Storage, clock: ManualClock) -> Ref:
    lease = await start(storage, new_job(queue=HERE))
    await settle(storage, ALICE, lease, Interrupted("shutdown"))
    return lease.ref


async def _put_back_for_a_while(storage: Storage, clock: ManualClock) -> Ref:
    lease = await start(storage, new_job(queue=HERE))
    await settle(storage, ALICE, lease, RAISED)
    clock.advance(1)
    return lease.ref


async def _redriven(storage: Storage, clock: ManualClock) -> Ref:
    lease = await start(storage, new_job(queue=HERE, policy=ONCE))
    await settle(storage, ALICE, lease, RAISED)
    await storage.revise([RedriveJob(lease.ref)])
    return lease.ref


async def _redriven_for_later(storage: Storage, clock: ManualClock) -> Ref:
    lease = await start(storage, new_job(queue=HERE, policy=ONCE))
    await settle(storage, ALICE, lease, RAISED)
    await storage.revise([RedriveJob(lease.ref, delay=SECOND)])
    clock.advance(1)
    return lease.ref


async def _redriven_by_its_rule(storage: Storage, clock: ManualClock) -> Ref:
    policy = Policy(retry=Backoff(max_attempts=1), redrive=Redriving(after=SECOND, times=1))
    lease = await start(storage, new_job(queue=HERE, policy=policy))
    await settle(storage, ALICE, lease, RAISED)
    clock.advance(1)
    await sweep_all(storage)
    return lease.ref


async def _rescheduled(storage: Storage, clock: ManualClock) -> Ref:
    ref = await _one(storage, new_job(queue=HERE, delay=3600 * SECOND))
    await storage.revise([RescheduleJob(ref, delay=0)])
    return ref


async def _recovered(storage: Storage, clock: ManualClock) -> Ref:
    lease = await start(storage, new_job(queue=HERE))
    await recover(storage, clock)
    return lease.ref


async def _its_key_was_left(storage: Storage, clock: ManualClock) -> Ref:
    lease, ref = await _held_up(storage, keys=(Key("k", 1),))
    await settle(storage, ALICE, lease)
    return ref


async def _its_rate_opens(storage: Storage, clock: ManualClock) -> Ref:
    _, ref = await _held_up(storage, rates=(SLOW,))
    clock.advance(2)
    return ref


async def _its_queue_opens(storage: Storage, clock: ManualClock) -> Ref:
    await storage.tune(Target("queue", HERE), Settings(rate=SLOW))
    _, ref = await _held_up(storage)
    clock.advance(2)
    return ref


async def _its_queue_was_resumed(storage: Storage, clock: ManualClock) -> Ref:
    await storage.tune(Target("queue", HERE), Settings(paused=True))
    ref = await _one(storage, new_job(queue=HERE))
    assert (await order(storage, BOB, *QUEUES, room=5)).leases == ()
    await storage.tune(Target("queue", HERE), Settings(paused=False))
    return ref


async def _its_task_was_resumed(storage: Storage, clock: ManualClock) -> Ref:
    await storage.tune(Target("task", "add"), Settings(paused=True))
    ref = await _one(storage, new_job(queue=HERE))
    assert (await order(storage, BOB, *QUEUES, room=5)).leases == ()
    await storage.tune(Target("task", "add"), Settings(paused=False))
    return ref


async def _one(storage: Storage, job: NewJob) -> Ref:
    [ref] = await enqueue(storage, job)
    return ref


async def _held_up(
    storage: Storage, *, keys: tuple[Key, ...] = (), rates: tuple[RateKey, ...] = ()
) -> tuple[Lease, Ref]:
    """Start one job, and check that the other one may not start while it runs. Return the lease and the other job."""
    _, ref = await enqueue(storage, *(new_job(name, queue=HERE, keys=keys, rates=rates) for name in ("one", "other")))
    answer = await order(storage, ALICE, *QUEUES, room=5)
    assert [lease.ref.id for lease in answer.leases] == ["one"]
    assert not answer.left
    return answer.leases[0], ref


WAYS: dict[str, Way] = {
    "enqueued": _enqueued,
    "enqueued in a fair line": _enqueued_in_a_fair_line,
    "due": _due,
    "due before another that was there": _due_before_another_that_was_there,
    "put back at once": _put_back_at_once,
    "put back for a while": _put_back_for_a_while,
    "redriven": _redriven,
    "redriven for later": _redriven_for_later,
    "redriven by its rule": _redriven_by_its_rule,
    "rescheduled": _rescheduled,
    "recovered": _recovered,
    "its key was left": _its_key_was_left,
    "its rate opens": _its_rate_opens,
    "its queue opens": _its_queue_opens,
    "its queue was resumed": _its_queue_was_resumed,
    "its task was resumed": _its_task_was_resumed,
}
"""Every way in which a job becomes ready to start."""


class ManyQueuesConformance(Conformance):
    """Each job that may start in one of many queues is found, in the order in which the queues are named.

    `one_order`: a claim follows the order of all queues. Set it to False for a storage of several servers, where each
    server follows the order on its own.
    """

    one_order = True

    @pytest.mark.parametrize("way", WAYS)
    async def test_the_only_claimable_job_of_many_queues_is_found(
        self, storage: Storage, clock: ManualClock, way: str
    ) -> None:
        ref = await WAYS[way](storage, clock)
        # A worker without free room asks this way whether there are jobs.
        asked = await order(storage, BOB, *QUEUES, room=0)
        won = await order(storage, BOB, *QUEUES, room=5)
        after = await order(storage, BOB, *QUEUES, room=5)

        assert asked.left
        assert [lease.ref for lease in won.leases] == [ref]
        assert (won.left, after.left, after.leases) == (False, False, ())

    @pytest.mark.parametrize("way", WAYS)
    async def test_a_claimable_job_is_found_among_queues_of_blocked_jobs(
        self, storage: Storage, clock: ManualClock, way: str
    ) -> None:
        ahead = 7200 * SECOND
        await storage.tune(Target("queue", QUEUES[7]), Settings(paused=True))
        await storage.tune(Target("queue", QUEUES[9]), Settings(rate=RateKey("seldom", ahead)))
        slow, full = RateKey("slow", ahead), Key("k", 1)
        await enqueue(
            storage,
            *(new_job(f"{number}", queue=QUEUES[5], rates=(slow,)) for number in range(3)),
            *(new_job(f"{number}", queue=QUEUES[6], keys=(full,)) for number in range(3)),
            *(new_job(f"{number}", queue=queue) for number in range(3) for queue in (QUEUES[7], QUEUES[9])),
            *(new_job(queue=queue, delay=ahead) for queue in (*QUEUES[3:5], *QUEUES[30:33])),
        )
        begun = await order(storage, REAPER, *QUEUES, room=20)
        # A rate may be one interval ahead.
        clock.advance(1)
        begun_too = await order(storage, REAPER, *QUEUES, room=20)
        assert {lease.ref.queue for lease in begun.leases} == {QUEUES[5], QUEUES[6], QUEUES[9]}
        assert {lease.ref.queue for lease in begun_too.leases} == {QUEUES[5], QUEUES[9]}
        over = [lease for lease in (*begun.leases, *begun_too.leases) if lease.ref.queue != QUEUES[6]]
        await storage.exchange(REAPER, [settled(lease) for lease in over])
        ref = await WAYS[way](storage, clock)
        won = await order(storage, BOB, *QUEUES, room=20)

        assert ref in [lease.ref for lease in won.leases]
        # A recovery puts back the stalled job that held the key, too.
        assert {lease.ref.queue for lease in won.leases} <= {HERE, QUEUES[6]}

    async def test_jobs_come_in_the_order_in_which_queues_are_named(self, storage: Storage) -> None:
        some = [QUEUES[number] for number in (0, 1, 5, 17, 18, 39)]
        await enqueue(storage, *(new_job(name, queue=queue) for queue in some for name in ("a", "b")))
        first = await order(storage, ALICE, *QUEUES, room=5)
        others = await order(storage, ALICE, *reversed(QUEUES), room=3)
        rest = await order(storage, ALICE, *QUEUES[10:], *QUEUES[:10], room=5)

        given = [[some.index(lease.ref.queue) for lease in answer.leases] for answer in (first, others, rest)]
        assert sorted(number for part in given for number in part) == sorted([*range(len(some))] * 2)
        assert (first.left, others.left, rest.left) == (True, True, False)
        if self.one_order:
            assert given == [[0, 0, 1, 1, 2], [5, 5, 4], [3, 3, 4, 2]]

    async def test_due_jobs_become_waiting_in_queues_that_a_claim_has_no_room_for(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, new_job("first", queue=QUEUES[0]), new_job("second", queue=QUEUES[0]))
        due = await enqueue(storage, *(new_job(queue=queue, delay=SECOND) for queue in QUEUES[20:23]))
        clock.advance(1)
        answer = await order(storage, ALICE, *QUEUES, room=1)

        assert [lease.ref.id for lease in answer.leases] == ["first"]
        assert [(await record(storage, ref)).state for ref in due] == [State.WAITING] * 3
        assert answer.left

    async def test_next_due_is_the_earliest_due_time_of_many_queues(self, storage: Storage, clock: ManualClock) -> None:
        delays = {7: 5, 22: 3, 31: 9}
        refs = await enqueue(storage, *(new_job(queue=QUEUES[n], delay=s * SECOND) for n, s in delays.items()))

        assert (await order(storage, ALICE, *QUEUES, room=1)).next_due == 3 * SECOND
        assert (await order(storage, ALICE, *QUEUES[:20], room=1)).next_due == 5 * SECOND

        # The instant of a job that was cancelled is not reported.
        await storage.revise([CancelJob(refs[1])])
        assert (await order(storage, ALICE, *QUEUES, room=1)).next_due == 5 * SECOND

        await storage.tune(Target("queue", QUEUES[7]), Settings(paused=True))
        assert (await order(storage, ALICE, *QUEUES, room=1)).next_due == 9 * SECOND

        clock.advance(9)
        answer = await order(storage, ALICE, *QUEUES, room=5)

        assert [lease.ref for lease in answer.leases] == [refs[2]]
        assert answer.next_due is None

    async def test_next_due_is_the_earliest_opening_of_a_rate_of_many_queues(self, storage: Storage) -> None:
        for number, seconds in {7: 5, 22: 3, 31: 9}.items():
            await storage.tune(Target("queue", QUEUES[number]), Settings(rate=RateKey("queue", seconds * SECOND)))
            await enqueue(storage, *(new_job(name, queue=QUEUES[number]) for name in ("a", "b", "c")))
        begun = await order(storage, ALICE, *QUEUES, room=20)
        again = await order(storage, ALICE, *QUEUES, room=20)

        assert {lease.ref.queue for lease in begun.leases} == {QUEUES[7], QUEUES[22], QUEUES[31]}
        assert (again.leases, again.left, again.next_due) == ((), False, begun.next_due)
        assert begun.next_due == 1

    async def test_a_queue_that_is_named_twice_is_claimed_once(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("due", queue=HERE, delay=SECOND), new_job("there", queue=HERE))
        clock.advance(1)
        answer = await order(storage, ALICE, HERE, *QUEUES, HERE, room=5)

        assert sorted(lease.ref.id for lease in answer.leases) == ["due", "there"]
        assert not answer.left
