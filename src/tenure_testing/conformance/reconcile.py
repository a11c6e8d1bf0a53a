"""Conformance tests of stale waits: a sweep names what a job misses, and what is known of it is delivered.

For a storage that hands out stale waits; the others name none.
"""

import logging

from tenure.clock import SECOND
from tenure.core.lifecycle import State
from tenure.core.outcome import Rejected
from tenure.core.reconcile import StaleWait
from tenure.core.retention import KeepRule, RetentionRules
from tenure.core.waiting import JobKind, Need
from tenure.maintenance.reconcile import Reconciler
from tenure.storage.protocol import Storage
from tenure.storage.revisions import DeleteJob, Settings, Target
from tenure.storage.waiting import ENDED_KEPT, MISSING_LIMIT, RECONCILE_AFTER, RECONCILE_LIMIT, SealBox
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    ERROR,
    QUEUE,
    RETURNED,
    Conformance,
    bid,
    claim_one,
    enqueue,
    new_job,
    settle,
)
from tenure_testing.conformance.waiting import deliver, linked, ref_of, state_of, token

AFTER = RECONCILE_AFTER / SECOND


class ReconcileConformance(Conformance):
    """A job that has waited for five minutes without a token is named by a sweep, with what it misses."""

    async def stale(self, storage: Storage) -> tuple[StaleWait, ...]:
        """Sweep, and return the stale waits."""
        return (await storage.sweep(bid())).stale

    async def look(self, storage: Storage, clock: ManualClock, reconciler: Reconciler) -> None:
        """Let five minutes pass, and reconcile what a sweep names then."""
        clock.advance(AFTER)
        assert await reconciler.reconcile(await self.stale(storage)) == ()

    def reconciler(self, storage: Storage) -> Reconciler:
        """Return what a sweeper has."""
        return Reconciler(storage, logging.getLogger("tenure.conformance"))

    async def end(self, storage: Storage, *, completed: bool = True) -> None:
        """End the next job."""
        lease = await claim_one(storage)
        assert await settle(storage, ALICE, lease, RETURNED if completed else Rejected(ERROR)) == "done"

    async def test_a_wait_is_named_once_each_five_minutes(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, linked("b", after=["a", "c"]))
        clock.advance(AFTER - 1)
        assert await self.stale(storage) == ()
        clock.advance(1)
        (wait,) = await self.stale(storage)
        assert (wait.ref, [end.ref for end in wait.missing]) == (ref_of("b"), [ref_of("a"), ref_of("c")])
        assert await self.stale(storage) == ()
        clock.advance(AFTER)

        assert await self.stale(storage) == (wait,)

    async def test_a_token_puts_the_look_off(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, linked("b", after=["a", "c"]))
        clock.advance(AFTER - 1)
        await deliver(storage, "b", token("a"))
        clock.advance(AFTER - 1)
        assert await self.stale(storage) == ()
        clock.advance(1)
        (wait,) = await self.stale(storage)

        assert [end.ref for end in wait.missing] == [ref_of("c")]

    async def test_a_wait_for_signals_or_a_time_is_never_named(self, storage: Storage, clock: ManualClock) -> None:
        until = clock.now() + 10 * RECONCILE_AFTER
        await enqueue(storage, linked("b", after=[Need(box="signal:go"), Need(box="sleep", until=until)]))
        clock.advance(2 * AFTER)

        assert await self.stale(storage) == ()

    async def test_what_has_ended_is_delivered(self, storage: Storage, clock: ManualClock) -> None:
        # The jobs do not know that others wait for them, as if their tokens were lost.
        for completed in (True, False):
            name = "good" if completed else "bad"
            await enqueue(storage, linked(f"after-{name}", after=[name]), new_job(name))
            await self.end(storage, completed=completed)
        await self.look(storage, clock, self.reconciler(storage))

        assert await state_of(storage, "after-good") is State.WAITING
        assert await state_of(storage, "after-bad") is State.FAILED

    async def test_a_job_that_goes_on_is_waited_for(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, linked("b", after=["a"]), linked("a", to=["b"]))
        await self.look(storage, clock, self.reconciler(storage))

        assert await state_of(storage, "b") is State.SUSPENDED

    async def test_an_unknown_job_is_waited_for(self, storage: Storage, clock: ManualClock) -> None:
        reconciler = self.reconciler(storage)
        await enqueue(storage, linked("b", after=["a"]))
        for _ in range(4):
            await self.look(storage, clock, reconciler)

        assert await state_of(storage, "b") is State.SUSPENDED

    async def test_an_unknown_member_of_a_sealed_group_is_lost_at_the_second_look(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        reconciler = self.reconciler(storage)
        group = linked("g", after=[Need(box="members", count=None, mode="tally")], kind=JobKind.GROUP)
        await enqueue(storage, group, linked("g~2", to=["g"]))
        await self.look(storage, clock, reconciler)
        await self.look(storage, clock, reconciler)
        assert await state_of(storage, "g") is State.SUSPENDED
        await deliver(storage, "g", token("members", key="2"))
        await storage.revise([SealBox(ref_of("g"), "members", 2)])
        await self.look(storage, clock, reconciler)
        assert await state_of(storage, "g") is State.SUSPENDED
        await self.look(storage, clock, reconciler)

        assert await state_of(storage, "g") is State.FAILED

    async def test_an_unknown_member_of_a_group_that_was_written_whole_is_not_lost(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        reconciler = self.reconciler(storage)
        await enqueue(storage, linked("g", after=[Need(box="members", count=1, mode="tally")], kind=JobKind.GROUP))
        for _ in range(4):
            await self.look(storage, clock, reconciler)

        assert await state_of(storage, "g") is State.SUSPENDED

    async def test_the_missing_members_of_a_large_group_are_named_in_turns(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        size = MISSING_LIMIT + 20
        await enqueue(storage, linked("g", after=[Need(box="members", count=size)], kind=JobKind.GROUP))
        named: list[str] = []
        for _ in range(2):
            clock.advance(AFTER)
            (wait,) = await self.stale(storage)
            assert len(wait.missing) == MISSING_LIMIT
            named += [end.ref.id for end in wait.missing]

        assert set(named) == {f"g~{number}" for number in range(1, size + 1)}

    async def test_a_sweep_names_a_bounded_number_of_waits(self, storage: Storage, clock: ManualClock) -> None:
        names = [f"b-{number:02}" for number in range(RECONCILE_LIMIT + 5)]
        await enqueue(storage, *(linked(name, after=["a"]) for name in names))
        clock.advance(AFTER)
        first, second = await self.stale(storage), await self.stale(storage)

        assert len(first) == RECONCILE_LIMIT
        assert {wait.ref.id for wait in (*first, *second)} == set(names)

    async def test_a_job_that_is_deleted_or_has_ended_is_not_named(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, linked("b", after=["a"]), linked("c", after=["a"]))
        await storage.revise([DeleteJob(ref_of("b"))])
        await deliver(storage, "c", token("a", "failed"))
        clock.advance(AFTER)

        assert await self.stale(storage) == ()

    async def test_an_ended_job_that_others_wait_for_is_kept_for_a_while(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.tune(Target("queue", QUEUE), Settings(retention=RetentionRules(completed=KeepRule(0))))
        await enqueue(storage, linked("b", after=["a", "x"]), linked("a", to=["b"]))
        await self.end(storage)
        clock.advance(ENDED_KEPT / SECOND - 1)
        await storage.sweep(bid())
        assert await storage.get([ref_of("a")]) != [None]
        clock.advance(1)
        await storage.sweep(bid())

        assert await storage.get([ref_of("a")]) == [None]
