"""Conformance tests of queue order: the longest wait first, priorities ahead, and tenants by turns."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tenure.clock import SECOND
from tenure.core.job import Key, NewJob, RateKey, Ref
from tenure.core.lifecycle import State
from tenure.core.outcome import Interrupted, Rejected, Returned
from tenure.storage.protocol import CancelJob, DeleteJob, RedriveJob, RescheduleJob, Revision, Settings, Storage, Target
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    ERROR,
    QUEUE,
    Conformance,
    claim,
    claim_one,
    enqueue,
    new_job,
    order,
    record,
    settle,
    start,
    sweep_all,
)

STEP = 60 * SECOND
"""The waiting time that one step of priority is worth."""

STRICT = 10**15
"""A boost that no waiting time can outweigh."""


def _put_off(ref: Ref) -> Revision:
    return RescheduleJob(ref, delay=3600 * SECOND)


class OrderConformance(Conformance):
    """The job with the longest wait comes first, and priority counts as waiting time.

    The newest comes first on request.
    """

    @pytest.mark.fault("W-T10", "W-B12")
    async def test_a_priority_overtakes_jobs_older_by_less_than_its_boost(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, new_job("patient"))
        clock.advance(59)
        await enqueue(storage, new_job("young"), new_job("urgent", boost=STEP), new_job("idle", boost=-STEP))
        clock.advance(2)
        await enqueue(storage, new_job("late", boost=STEP))

        assert await names(storage) == ["urgent", "patient", "late", "young", "idle"]

    async def test_no_job_is_overtaken_for_ever(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("patient"))
        taken: list[str] = []
        for second in range(4):
            clock.advance(30)
            await enqueue(storage, new_job(f"urgent-{second}", boost=STEP))
            taken.append((await claim_one(storage)).ref.id)

        assert taken == ["urgent-0", "patient", "urgent-1", "urgent-2"]

    async def test_a_strict_job_starts_before_jobs_that_have_waited_any_time(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, new_job("patient", boost=5 * STEP))
        clock.advance(30 * 86_400)
        await enqueue(storage, new_job("strict", boost=STRICT), new_job("strict-later", boost=STRICT))

        assert await names(storage) == ["strict", "strict-later", "patient"]

    @pytest.mark.fault("W-T11")
    async def test_jobs_of_a_priority_keep_their_order_to_the_microsecond(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        for number in range(5):
            await enqueue(storage, new_job(f"{9 - number}", boost=STRICT))
            clock.advance(0.000_001)

        assert await names(storage) == ["9", "8", "7", "6", "5"]

    async def test_the_newest_lifo_job_starts_first(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("plain"), new_job("first", lifo=True))
        clock.advance(1)
        await enqueue(storage, new_job("second", lifo=True), new_job("third", lifo=True))

        assert await names(storage) == ["third", "second", "first", "plain"]

    async def test_a_delayed_lifo_job_counts_from_its_due_time(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("delayed", lifo=True, delay=2 * SECOND))
        clock.advance(1)
        await enqueue(storage, new_job("between", lifo=True))
        clock.advance(5)

        assert await names(storage) == ["delayed", "between"]

    async def test_a_new_priority_or_due_time_keeps_a_job_lifo(self, storage: Storage, clock: ManualClock) -> None:
        refs = await enqueue(storage, *(new_job(name, lifo=True) for name in ("a", "b", "c")))
        clock.advance(1)
        await storage.revise([RescheduleJob(refs[0], delay=0), RescheduleJob(refs[1], priority=1, boost=STEP)])

        assert await names(storage) == ["b", "a", "c"]

    async def test_a_released_job_returns_to_its_old_place(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("first"), new_job("second"))
        lease = await claim_one(storage)
        clock.advance(5)
        await settle(storage, ALICE, lease, Interrupted("shutdown"))

        assert await names(storage) == ["first", "second"]

    async def test_a_released_lifo_job_starts_after_newer_lifo_jobs(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job("first", lifo=True))
        clock.advance(1)
        await enqueue(storage, new_job("second", lifo=True), new_job("plain"))
        await settle(storage, ALICE, lease, Interrupted("shutdown"))

        assert await names(storage) == ["second", "first", "plain"]

    async def test_a_job_released_after_the_clock_was_set_back_keeps_its_place(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage, new_job("first"))
        clock.step_wall(-3600)
        await settle(storage, ALICE, lease, Interrupted("shutdown"))
        clock.advance(1)
        await enqueue(storage, new_job("second"))

        assert await names(storage) == ["first", "second"]


class FairnessConformance(Conformance):
    """Tenants take turns by their weights, regardless of which came first and how many jobs each has."""

    async def test_tenants_take_turns(self, storage: Storage) -> None:
        await enqueue(storage, *of("a", 4))
        await enqueue(storage, *of("b", 2), *of("c", 1))

        assert await names(storage) == ["a-0", "b-0", "c-0", "a-1", "b-1", "a-2", "a-3"]

    async def test_one_claim_of_many_jobs_takes_turns_like_many_claims_of_one(self, storage: Storage) -> None:
        await enqueue(storage, *of("a", 5), *of("b", 5))

        assert await names(storage, room=4) == ["a-0", "b-0", "a-1", "b-1"]
        assert await names(storage, room=1) == ["a-2"]
        assert await names(storage, room=3) == ["b-2", "a-3", "b-3"]

    async def test_a_new_tenant_starts_next_in_a_queue_that_was_long_busy(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, *of("a", 100))
        await claim(storage, room=50)
        # Virtual time does not follow the clock. A newcomer waits neither if it is ahead of the clock nor if it is
        # behind.
        clock.advance(1000)
        await enqueue(storage, *of("b", 2))

        # At the same instant, the lower id comes first.
        assert await names(storage, room=4) == ["a-50", "b-0", "a-51", "b-1"]

        clock.step_wall(-3600)
        await enqueue(storage, *of("c", 1))

        assert "c-0" in await names(storage, room=2)

    async def test_an_absent_tenant_saves_no_turns(self, storage: Storage) -> None:
        await enqueue(storage, *of("a", 20), *of("b", 1))
        await claim(storage, room=11)
        await enqueue(storage, *(new_job(f"b-{number}", fair_key="b") for number in (1, 2, 3, 4)))

        assert await names(storage, room=4) == ["a-10", "b-1", "a-11", "b-2"]

    async def test_tenants_start_jobs_in_proportion_to_their_weights(self, storage: Storage) -> None:
        await enqueue(storage, *of("a", 100, weight=3), *of("b", 100))
        started = Counter(name[0] for name in await names(storage, room=80))

        assert started == {"a": 60, "b": 20}

    async def test_each_priority_takes_its_own_turns(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *of("a", 2), *of("b", 2))
        clock.advance(1)
        high = [new_job(f"{key}-high-{n}", fair_key=key, boost=STEP) for key in "ab" for n in range(2)]
        await enqueue(storage, *high)

        assert await names(storage, room=4) == ["a-high-0", "b-high-0", "a-high-1", "b-high-1"]
        assert await names(storage, room=4) == ["a-0", "b-0", "a-1", "b-1"]

    async def test_jobs_without_a_fair_key_are_one_tenant(self, storage: Storage) -> None:
        await enqueue(storage, *of("a", 3))
        await enqueue(storage, *(new_job(f"plain-{number}") for number in range(3)))
        await enqueue(storage, *of("b", 2))

        assert await names(storage) == ["a-0", "b-0", "plain-0", "a-1", "b-1", "plain-1", "a-2", "plain-2"]

    async def test_jobs_enqueued_before_the_first_fair_key_keep_their_place(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, *(new_job(f"plain-{number}") for number in range(3)))
        clock.advance(1)
        await enqueue(storage, *of("a", 2))

        assert await names(storage) == ["plain-0", "plain-1", "plain-2", "a-0", "a-1"]

    async def test_an_empty_queue_forgets_all_turns(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *of("a", 50))
        await claim(storage, room=50)
        clock.advance(1)
        ref, *_ = await enqueue(storage, new_job("plain"), new_job("keyed", fair_key="a"))
        stands = (await record(storage, ref)).score

        assert stands == clock.now()
        assert await names(storage) == ["plain", "keyed"]

    async def test_deleted_jobs_cost_their_tenant_no_turns_once_the_queue_was_empty(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        refs = await enqueue(storage, *of("a", 30))
        await storage.revise([DeleteJob(ref) for ref in refs])
        await enqueue(storage, *of("b", 2), *of("a", 2))

        assert await names(storage) == ["a-0", "b-0", "a-1", "b-1"]

    @pytest.mark.parametrize("revision", [CancelJob, DeleteJob, _put_off])
    async def test_removed_jobs_cost_their_tenant_no_turns_in_a_busy_queue(
        self, storage: Storage, revision: Callable[[Ref], Revision]
    ) -> None:
        refs = await enqueue(storage, *of("a", 30))
        await enqueue(storage, *of("b", 4))
        assert await names(storage, room=2) == ["a-00", "b-0"]
        await storage.revise([revision(ref) for ref in refs[1:]])
        await enqueue(storage, *(new_job(f"a-new-{number}", fair_key="a") for number in range(2)))

        assert await names(storage) == ["a-new-0", "b-1", "a-new-1", "b-2", "b-3"]

    async def test_a_waiting_tenant_stays_behind_its_earlier_jobs(self, storage: Storage) -> None:
        refs = await enqueue(storage, *of("a", 6))
        await enqueue(storage, *of("b", 6))
        await storage.revise([DeleteJob(ref) for ref in refs[1:4]])
        await enqueue(storage, new_job("a-new", fair_key="a"))

        assert await names(storage) == ["a-0", "b-0", "b-1", "b-2", "b-3", "a-4", "b-4", "a-5", "b-5", "a-new"]

    async def test_a_parked_job_keeps_the_queue_busy(self, storage: Storage, clock: ManualClock) -> None:
        holder = await start(storage, new_job("holder", keys=(Key("k"),)))
        await enqueue(storage, *(new_job(f"a-{n}", fair_key="a", keys=(Key("k"),)) for n in range(3)))
        assert await claim(storage) == []
        clock.advance(3600)
        await enqueue(storage, *of("b", 2))
        stands = (await record(storage, Ref(QUEUE, "b-1"))).score

        assert stands < clock.now() - 3000 * SECOND

        await settle(storage, ALICE, holder, Returned(b""))

        assert await names(storage, room=3) == ["a-0", "b-0", "b-1"]

    async def test_jobs_that_become_due_take_turns_with_waiting_jobs(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, *(new_job(f"a-{n}", fair_key="a", delay=2 * SECOND) for n in range(3)))
        await enqueue(storage, *of("b", 3))
        clock.advance(5)

        assert await names(storage, room=6) == ["a-0", "b-0", "a-1", "b-1", "a-2", "b-2"]

    @pytest.mark.parametrize("swept", [True, False])
    async def test_due_jobs_without_a_fair_key_are_one_tenant(
        self, storage: Storage, clock: ManualClock, swept: bool
    ) -> None:
        await enqueue(storage, *(new_job(f"plain-{n}", delay=2 * SECOND) for n in range(2)))
        await enqueue(storage, *of("a", 3))
        clock.advance(5)
        if swept:
            await sweep_all(storage)

        assert await names(storage, room=5) == ["a-0", "plain-0", "a-1", "plain-1", "a-2"]

    async def test_a_rescheduled_job_takes_a_new_turn(self, storage: Storage, clock: ManualClock) -> None:
        refs = await enqueue(storage, *of("a", 4))
        lease = await claim_one(storage)
        await settle(storage, ALICE, lease, Returned(b""))
        await enqueue(storage, *of("b", 2))
        await storage.revise([RescheduleJob(refs[1], delay=0)])

        assert await names(storage) == ["b-0", "a-2", "b-1", "a-3", "a-1"]

    async def test_a_redriven_job_takes_a_new_turn(self, storage: Storage, clock: ManualClock) -> None:
        gone = await start(storage, new_job("a-gone", fair_key="a"))
        await settle(storage, ALICE, gone, Rejected(ERROR))
        await enqueue(storage, *of("a", 2), *of("b", 2))
        await storage.revise([RedriveJob(gone.ref)])

        assert await names(storage) == ["a-0", "b-0", "a-1", "b-1", "a-gone"]

    async def test_a_released_job_keeps_its_turn(self, storage: Storage) -> None:
        await enqueue(storage, *of("a", 3), *of("b", 3))
        lease = await claim_one(storage)
        await settle(storage, ALICE, lease, Interrupted("shutdown"))

        assert await names(storage, room=3) == ["a-0", "b-0", "a-1"]

    async def test_a_job_released_after_the_queue_emptied_precedes_later_jobs(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, *of("a", 30))
        last = (await claim(storage))[-1]
        clock.advance(1)
        await start(storage, new_job("plain"))
        await enqueue(storage, new_job("before"))
        clock.advance(1)
        await settle(storage, ALICE, last, Interrupted("shutdown"))
        clock.advance(1)
        await enqueue(storage, new_job("later"))

        assert await names(storage) == ["before", "a-29", "later"]

    async def test_a_job_released_in_the_next_busy_time_starts_next(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *of("a", 30))
        last = (await claim(storage))[-1]
        clock.advance(1)
        await enqueue(storage, *of("b", 4))
        assert await names(storage, room=2) == ["b-0", "b-1"]
        await settle(storage, ALICE, last, Interrupted("shutdown"))
        await enqueue(storage, *of("c", 1))

        assert await names(storage) == ["a-29", "b-2", "c-0", "b-3"]

    async def test_a_queue_made_fair_by_an_overdue_job_keeps_the_other_places(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, new_job("late", fair_key="a", delay=SECOND))
        clock.advance(3600)
        await enqueue(storage, *(new_job(f"old-{number}") for number in range(4)))
        first = await names(storage, room=1)
        clock.advance(1)
        await enqueue(storage, *(new_job(f"young-{number}") for number in range(4)))

        assert [name.partition("-")[0] for name in first + await names(storage)] == ["old"] * 4 + ["late"] + [
            "young"
        ] * 4

    async def test_lifo_jobs_start_before_all_turns_and_take_none(self, storage: Storage) -> None:
        await enqueue(storage, *of("a", 2), *of("b", 2), new_job("newest", fair_key="a", lifo=True))

        assert await names(storage) == ["newest", "a-0", "b-0", "a-1", "b-1"]

    async def test_a_call_that_makes_no_job_takes_no_turn(self, storage: Storage) -> None:
        jobs = [*of("a", 2), *of("b", 2)]
        for job in (jobs[0], jobs[0], jobs[0], *jobs[1:]):
            await storage.enqueue([job])

        assert await names(storage) == ["a-0", "b-0", "a-1", "b-1"]

    async def test_each_queue_counts_its_own_turns(self, storage: Storage) -> None:
        await enqueue(storage, *of("a", 3), *(new_job(f"o-{n}", queue="other", fair_key="a") for n in range(2)))
        await enqueue(storage, *of("b", 1), new_job("o-b", queue="other", fair_key="b"))

        assert await names(storage) == ["a-0", "b-0", "a-1", "a-2"]
        assert await names(storage, queue="other") == ["o-0", "o-b", "o-1"]

    async def test_sweeps_keep_the_turns_that_count(self, storage: Storage) -> None:
        await enqueue(storage, *of("a", 9), *of("b", 4))
        assert len(await names(storage, room=6)) == 6
        await sweep_all(storage)
        await enqueue(storage, *of("c", 2))

        assert await names(storage) == ["a-3", "b-3", "c-0", "a-4", "c-1", "a-5", "a-6", "a-7", "a-8"]

    async def test_a_tenant_delayed_by_a_rate_keeps_its_turn(self, storage: Storage, clock: ManualClock) -> None:
        slow = (RateKey("slow", 10 * SECOND),)
        await enqueue(storage, *(new_job(f"a-{n}", fair_key="a", rates=slow) for n in range(3)), *of("b", 5))

        assert await names(storage, room=3) == ["a-0", "b-0", "b-1"]

        clock.advance(10)

        assert await names(storage, room=2) == ["a-1", "b-2"]

    async def test_a_paused_task_keeps_its_turns(self, storage: Storage) -> None:
        await enqueue(storage, *of("a", 2), *(new_job(f"b-{n}", fair_key="b", task="send") for n in range(2)))
        await storage.tune(Target("task", "send"), Settings(paused=True))
        assert (await order(storage, ALICE, room=1)).leases[0].ref.id == "a-0"
        assert await names(storage, room=1) == ["a-1"]
        await storage.tune(Target("task", "send"), Settings(paused=False))
        await enqueue(storage, *of("c", 2))

        assert await names(storage) == ["b-0", "b-1", "c-0", "c-1"]
        assert (await record(storage, Ref(QUEUE, "b-0"))).state is State.ACTIVE


def of(tenant: str, count: int, *, weight: int = 1) -> Iterator[NewJob]:
    """Yield jobs of one tenant, named after it and numbered in order."""
    digits = len(str(count - 1))
    for number in range(count):
        yield new_job(f"{tenant}-{number:0{digits}}", fair_key=tenant, weight=weight)


async def names(storage: Storage, *, room: int = 128, queue: str = QUEUE) -> list[str]:
    """Claim up to `room` jobs and return their ids in the order of the answer."""
    return [lease.ref.id for lease in await claim(storage, room=room, queue=queue)]
