"""Conformance tests of concurrency keys: the limit holds, the next job is released at once, no other job waits."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random

import pytest

from tenure.clock import SECOND
from tenure.core.job import Key, NewJob, Owner, Policy, Ref, StallTerms
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.outcome import (
    Cancelled,
    Interrupted,
    Outcome,
    Raised,
    Rejected,
    Returned,
    Snoozed,
    TimedOut,
    Unreadable,
)
from tenure.core.retry import Backoff
from tenure.storage.protocol import (
    SCAN_LIMIT,
    CancelJob,
    ClaimRequest,
    DeleteJob,
    Query,
    RedriveJob,
    RescheduleJob,
    Revision,
    StalledLease,
    Storage,
    queue_topic,
)
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    ERROR,
    PLAIN,
    QUEUE,
    RAISED,
    REAPER,
    Conformance,
    all_events,
    apply,
    beat,
    claim,
    claim_one,
    counted,
    enqueue,
    glance,
    new_job,
    order,
    record,
    recover,
    settle,
    settled,
    stalled,
    start,
    sweep_all,
    watch,
)
from tenure_testing.conformance.notices import PATIENCE, QUIET, ready, subscribed, woken_by

PRINTER = Key("printer")
PAIR = Key("pair", 2)

WAYS_OUT: tuple[Outcome, ...] = (
    Returned(b"3"),
    RAISED,
    Raised(ERROR, final=True),
    TimedOut(ERROR),
    Rejected(ERROR),
    Unreadable(ERROR),
    Snoozed(10 * SECOND),
    Interrupted("unreachable", 10 * SECOND),
    Cancelled("enough"),
)
"""Every way in which a worker settles a run so that the job itself is not due at once."""

WAYS_OFF: tuple[Callable[[Ref], Revision], ...] = (
    CancelJob,
    DeleteJob,
    lambda ref: RescheduleJob(ref, delay=60 * SECOND),
)
"""Every way in which an operator takes a job out of the queue."""


class ConcurrencyKeysConformance(Conformance):
    """A key never exceeds its limit, releases the next job at once in its own order, and delays no other job."""

    @pytest.mark.statement(68, 70, 76)
    async def test_at_most_the_limit_of_a_key_runs_across_workers(self, storage: Storage) -> None:
        await enqueue(storage, *keyed(5, PAIR))
        held = [(ALICE, lease) for lease in await claim(storage, ALICE, room=10)]

        assert [lease.ref.id for _, lease in held] == ["job-0", "job-1"]

        done: list[str] = []
        while held:
            assert await claim(storage, BOB, room=10) == []
            assert (await counted(storage))[State.ACTIVE] == len(held) <= 2
            owner, lease = held.pop(0)
            await settle(storage, owner, lease)
            done.append(lease.ref.id)
            held += [(BOB, lease) for lease in await claim(storage, BOB, room=10)]

        assert done == [f"job-{number}" for number in range(5)]
        assert await counted(storage) == {State.COMPLETED: 5}

    @pytest.mark.statement(68, 70)
    async def test_one_job_of_a_singleton_runs_at_a_time(self, storage: Storage) -> None:
        await enqueue(storage, *keyed(12))
        leases = await claim(storage, room=10)

        assert len(leases) == 1
        assert await claim(storage, BOB, room=10) == []

    @pytest.mark.statement(68, 76, 77)
    async def test_concurrent_claims_never_exceed_a_limit(self, storage: Storage) -> None:
        await enqueue(storage, *keyed(40, Key("three", 3)))
        owners = [Owner(f"{number:016x}") for number in range(10)]
        answers = await asyncio.gather(*(claim(storage, owner, room=2) for owner in owners))

        assert sum(map(len, answers)) == 3

    @pytest.mark.statement(76, 77)
    async def test_workers_in_threads_never_exceed_a_limit_and_finish_all_jobs(self, storage: Storage) -> None:
        await enqueue(storage, *keyed(60, PAIR))
        running: set[Ref] = set()
        most = 0

        async def work(number: int) -> int:
            nonlocal most
            owner = Owner(f"{number:016x}")
            done = 0
            for _ in range(2000):
                leases = await claim(storage, owner, room=3)
                # The methods of a set are atomic, and no settlement has begun yet.
                running.update(lease.ref for lease in leases)
                most = max(most, len(running))
                running.difference_update(lease.ref for lease in leases)
                verdicts = (await storage.exchange(owner, [settled(lease) for lease in leases])).verdicts
                assert {verdict.verdict for verdict in verdicts} <= {"done"}
                done += len(leases)
                if (await counted(storage)).get(State.COMPLETED) == 60:
                    break
            return done

        async with asyncio.TaskGroup() as task_group:
            threads = [task_group.create_task(asyncio.to_thread(asyncio.run, work(number))) for number in range(3)]

        assert sum(thread.result() for thread in threads) == 60
        assert most <= 2

    @pytest.mark.fault("W-T12")
    @pytest.mark.statement(68, 81)
    async def test_the_jobs_of_a_key_keep_their_order(self, storage: Storage, clock: ManualClock) -> None:
        names = ["d", "b", "e", "a", "c"]
        for name in names:
            await enqueue(storage, new_job(name, keys=(PRINTER,)))
            clock.advance(0.001)
            await claim(storage, BOB, room=0)
        done: list[str] = []
        lease = await claim_one(storage)
        while True:
            done.append(lease.ref.id)
            answer = await storage.exchange(ALICE, [settled(lease)], ClaimRequest((QUEUE,), 5))
            if not answer.leases:
                break
            (lease,) = answer.leases

        assert done == names

    @pytest.mark.fault("W-T12")
    @pytest.mark.statement(81)
    async def test_a_later_job_does_not_overtake_a_parked_job(self, storage: Storage, clock: ManualClock) -> None:
        holder = await start(storage, new_job("holder", keys=(PRINTER,)))
        clock.advance(1)
        await enqueue(storage, new_job("z-parked", keys=(PRINTER,)))
        await claim(storage)
        clock.advance(1)
        await enqueue(storage, new_job("a-later", keys=(PRINTER,)))
        await settle(storage, ALICE, holder)

        assert [lease.ref.id for lease in await claim(storage)] == ["z-parked"]

    async def test_the_parked_job_with_the_best_score_starts_first(self, storage: Storage, clock: ManualClock) -> None:
        holder = await start(storage, new_job("holder", keys=(PRINTER,)))
        for name, boost in (("usual", 0), ("urgent", 60 * SECOND), ("idle", -60 * SECOND)):
            clock.advance(1)
            await enqueue(storage, new_job(name, keys=(PRINTER,), boost=boost))
        await claim(storage)
        await storage.revise([RescheduleJob(Ref(QUEUE, "idle"), priority=3, boost=180 * SECOND)])
        order_: list[str] = []
        lease = holder
        while answer := (await storage.exchange(ALICE, [settled(lease)], ClaimRequest((QUEUE,), 5))).leases:
            (lease,) = answer
            order_.append(lease.ref.id)

        assert order_ == ["idle", "urgent", "usual"]

    @pytest.mark.statement(69, 77)
    async def test_the_exchange_that_frees_a_slot_starts_the_next_job(self, storage: Storage) -> None:
        await enqueue(storage, *keyed(3))
        lease = await claim_one(storage)
        await claim(storage, BOB)
        answer = await storage.exchange(ALICE, [settled(lease)], ClaimRequest((QUEUE,), 1))

        assert [verdict.verdict for verdict in answer.verdicts] == ["done"]
        assert [leased.ref.id for leased in answer.leases] == ["job-1"]
        assert await claim(storage, BOB) == []

    @pytest.mark.statement(24, 69)
    async def test_a_freed_slot_wakes_the_queue(self, storage: Storage) -> None:
        await enqueue(storage, *keyed(2))
        lease = await claim_one(storage)
        await claim(storage, BOB)
        notices = storage.notices([queue_topic(QUEUE)])
        await woken_by(storage, notices, lambda: settle(storage, ALICE, lease))
        notices.close()

        assert len(await claim(storage, BOB)) == 1

    @pytest.mark.fault("F3", "W-T13", "W-N8")
    @pytest.mark.statement(24, 69, 77)
    @pytest.mark.parametrize("outcome", WAYS_OUT, ids=lambda outcome: type(outcome).__name__)
    async def test_every_outcome_frees_the_slot_of_a_run_once(self, storage: Storage, outcome: Outcome) -> None:
        lease = await start(storage, new_job("holder", keys=(PRINTER,)))
        await enqueue(storage, *keyed(3))

        assert await claim(storage, BOB) == []

        await settle(storage, ALICE, lease, outcome)
        # A repeated settlement has no further effect.
        await settle(storage, ALICE, lease, outcome)

        assert [leased.ref.id for leased in await claim(storage, BOB)] == ["job-0"]
        assert await claim(storage, ALICE) == []
        assert (await glance(storage)).parked == 2

    async def test_a_released_run_gets_its_slot_again_before_the_others(self, storage: Storage) -> None:
        await enqueue(storage, *keyed(3))
        lease = await claim_one(storage)
        await claim(storage)
        await settle(storage, ALICE, lease, Interrupted("shutdown"))

        assert [leased.ref.id for leased in await claim(storage)] == ["job-0"]

    @pytest.mark.fault("F3", "W-T4", "W-T13", "W-N4")
    @pytest.mark.statement(24, 69, 77)
    @pytest.mark.parametrize("max_stalls", [0, 1])
    @pytest.mark.parametrize("cancelled", [False, True])
    async def test_every_decision_about_a_stall_frees_its_slot_once(
        self, storage: Storage, clock: ManualClock, max_stalls: int, cancelled: bool
    ) -> None:
        lease = await start(storage, new_job("holder", keys=(PRINTER,), stall=StallTerms(max_stalls=max_stalls)))
        await enqueue(storage, *keyed(3))
        await claim(storage, BOB)
        if cancelled:
            await storage.revise([CancelJob(lease.ref, "enough")])
        await recover(storage, clock)
        recovered = max_stalls == 1 and not cancelled

        assert [leased.ref.id for leased in await claim(storage, BOB)] == ["holder" if recovered else "job-0"]
        assert await claim(storage, BOB) == []
        assert (await counted(storage))[State.ACTIVE] == 1

    @pytest.mark.statement(24, 26)
    async def test_a_stall_that_ends_in_a_cancel_wakes_the_queue(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job("holder", keys=(PRINTER,)))
        await enqueue(storage, *keyed(1))
        await claim(storage, BOB)
        await storage.revise([CancelJob(lease.ref)])
        taken = await watch(storage, clock, 26)
        notices = storage.notices([queue_topic(QUEUE)])
        await woken_by(storage, notices, lambda: apply(storage, REAPER, stalled(taken[0])))
        notices.close()

        assert (await record(storage, lease.ref)).state is State.CANCELLED
        assert (await record(storage, lease.ref)).stalls == 0
        assert [leased.ref.id for leased in await claim(storage, BOB)] == ["job-0"]

    @pytest.mark.fault("W-T13", "W-N8")
    @pytest.mark.statement(72, 78)
    async def test_a_silent_holder_keeps_its_slot_until_it_is_recovered(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage, new_job("holder", keys=(PRINTER,)))
        await enqueue(storage, *keyed(2))
        taken: list[StalledLease] = []
        while not taken:
            clock.advance(1)
            taken = await sweep_all(storage)

            # With its lease expired, as a suspect or as the reaper's, the job stays active. So no other job is.
            assert await claim(storage, BOB) == []
            assert await counted(storage) == {State.ACTIVE: 1, State.WAITING: 2}

        assert await apply(storage, ALICE, settled(lease)) == "lost"
        assert await claim(storage, BOB) == []

        await apply(storage, REAPER, stalled(taken[0]))

        assert [leased.ref.id for leased in await claim(storage, BOB)] == ["holder"]
        assert await claim(storage, BOB) == []

    @pytest.mark.fault("W-B4")
    @pytest.mark.statement(72, 78)
    async def test_a_dead_workers_slots_come_back_with_its_jobs(self, storage: Storage) -> None:
        await enqueue(storage, *keyed(2, PAIR), *keyed(2, PAIR, prefix="more"))
        held = await claim(storage, ALICE)
        await claim(storage, BOB)
        taken = (await storage.reclaim(ALICE.id, REAPER)).stalled

        assert len(held) == len(taken) == 2
        assert await claim(storage, BOB) == []

        await apply(storage, REAPER, stalled(taken[1]))

        assert [leased.ref for leased in await claim(storage, BOB)] == [taken[1].lease.ref]
        assert await claim(storage, BOB) == []

    @pytest.mark.statement(72)
    async def test_exactly_one_job_of_a_crashed_singleton_continues(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *(new_job(f"job-{n}", keys=(PRINTER,), stall=StallTerms(max_stalls=0)) for n in "abc"))
        await claim(storage)
        await recover(storage, clock)
        owners = [Owner(f"{number:016x}") for number in range(5)]
        answers = await asyncio.gather(*(claim(storage, owner) for owner in owners))

        assert [lease.ref.id for leases in answers for lease in leases] == ["job-b"]

    async def test_a_lease_renewed_in_its_grace_keeps_its_slot(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *keyed(2))
        lease = await claim_one(storage)
        await watch(storage, clock, 20)

        assert (await record(storage, lease.ref)).suspect_until is not None

        await beat(storage, ALICE, [lease])

        assert await claim(storage, BOB) == []

        await settle(storage, ALICE, lease)

        assert [leased.ref.id for leased in await claim(storage, BOB)] == ["job-1"]

    @pytest.mark.statement(73)
    async def test_a_job_between_two_attempts_holds_no_slot(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *keyed(2))
        first = await claim_one(storage)
        await settle(storage, ALICE, first, RAISED)
        second = await claim_one(storage)
        clock.advance(1)

        assert second.ref.id == "job-1"
        assert await claim(storage, BOB) == []

        await settle(storage, ALICE, second)

        assert [lease.ref.id for lease in await claim(storage, BOB)] == ["job-0"]

    @pytest.mark.statement(71)
    async def test_delayed_jobs_become_due_while_a_singleton_runs(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job("holder", keys=(PRINTER,)))
        await enqueue(storage, new_job("later", keys=(PRINTER,), delay=5 * SECOND))
        clock.advance(5)

        assert await claim(storage, BOB) == []
        assert (await record(storage, Ref(QUEUE, "later"))).state is State.WAITING

        await settle(storage, ALICE, lease)

        assert [leased.ref.id for leased in await claim(storage, BOB)] == ["later"]

    @pytest.mark.fault("W-T12", "W-N11")
    @pytest.mark.statement(80)
    async def test_a_claim_finds_a_free_job_behind_150_blocked_jobs(self, storage: Storage) -> None:
        await enqueue(storage, *keyed(151), new_job("z-free"))
        await claim(storage, room=1)
        answer = await order(storage, BOB, room=1)

        assert [lease.ref.id for lease in answer.leases] == ["z-free"]
        assert not answer.left
        assert (await glance(storage)).parked == 150

    @pytest.mark.statement(80, 82)
    async def test_a_claim_inspects_a_bounded_number_of_jobs_and_each_once(self, storage: Storage) -> None:
        await enqueue(storage, *keyed(SCAN_LIMIT + 51), new_job("z-free"))
        await claim(storage, room=1)
        parked: list[int] = []
        while True:
            answer = await order(storage, BOB, room=1)
            parked.append((await glance(storage)).parked)
            if answer.leases:
                break
            # An empty answer says that there is more, so that the caller does not go to sleep.
            assert answer.left
            assert len(parked) < 5

        assert all(0 < after - before <= SCAN_LIMIT for before, after in zip([0, *parked], parked, strict=False))
        assert parked[-1] == SCAN_LIMIT + 50
        assert [lease.ref.id for lease in answer.leases] == ["z-free"]

        answer = await order(storage, BOB, room=1)

        assert (answer.leases, answer.left, answer.next_due) == ((), False, None)

    @pytest.mark.statement(82)
    async def test_a_claim_does_not_report_blocked_jobs_as_left(self, storage: Storage) -> None:
        await enqueue(storage, *keyed(2))
        lease = await claim_one(storage)
        await claim(storage, BOB)
        notices = storage.notices([queue_topic(QUEUE)])
        await subscribed(storage, notices)
        for _ in range(3):
            answer = await order(storage, BOB, room=5)

            assert (answer.leases, answer.left, answer.next_due) == ((), False, None)
            assert not await ready(notices, within=QUIET)

        await settle(storage, ALICE, lease)

        assert await ready(notices, within=PATIENCE)
        notices.close()

    @pytest.mark.fault("W-N11")
    @pytest.mark.statement(74, 80)
    async def test_one_key_does_not_hold_up_another(self, storage: Storage) -> None:
        await enqueue(storage, *keyed(3), *keyed(3, Key("scanner"), prefix="scan"), new_job("z-free"))

        assert [lease.ref.id for lease in await claim(storage)] == ["job-0", "scan-0", "z-free"]

    @pytest.mark.statement(74)
    async def test_a_key_counts_within_its_queue_only(self, storage: Storage) -> None:
        await enqueue(storage, *keyed(2), *keyed(2, queue="mail"))
        answer = await order(storage, ALICE, QUEUE, "mail", room=5)

        assert [lease.ref for lease in answer.leases] == [Ref(QUEUE, "job-0"), Ref("mail", "job-0")]

        await settle(storage, ALICE, answer.leases[0])

        assert await claim(storage, queue="mail") == []
        assert [lease.ref for lease in await claim(storage)] == [Ref(QUEUE, "job-1")]

    @pytest.mark.statement(75)
    async def test_jobs_without_a_key_are_not_limited(self, storage: Storage) -> None:
        await enqueue(storage, *keyed(2), *(new_job(f"free-{number}") for number in range(20)))

        assert len(await claim(storage)) == 21

    async def test_a_job_with_two_keys_takes_both_or_neither(self, storage: Storage) -> None:
        scanner = Key("scanner")
        holder = await start(storage, new_job("holder", keys=(scanner,)))
        await enqueue(storage, new_job("both", keys=(PRINTER, scanner)), new_job("printer", keys=(PRINTER,)))

        # The job may not hold one key while it waits for the other.
        assert [lease.ref.id for lease in await claim(storage)] == ["printer"]
        assert (await record(storage, Ref(QUEUE, "both"))).parked_under == "scanner"

        await settle(storage, ALICE, holder)

        assert await claim(storage) == []
        assert (await record(storage, Ref(QUEUE, "both"))).parked_under == "printer"

    async def test_a_job_with_two_keys_is_parked_under_the_first_full_key(self, storage: Storage) -> None:
        scanner = Key("scanner")
        await enqueue(storage, new_job("a", keys=(PRINTER,)), new_job("b", keys=(scanner,)))
        await enqueue(storage, new_job("both", keys=(PRINTER, scanner)), new_job("turned", keys=(scanner, PRINTER)))
        await claim(storage)

        assert (await record(storage, Ref(QUEUE, "both"))).parked_under == "printer"
        assert (await record(storage, Ref(QUEUE, "turned"))).parked_under == "scanner"

    async def test_a_job_with_two_keys_frees_both(self, storage: Storage) -> None:
        scanner = Key("scanner")
        both = await start(storage, new_job("both", keys=(PRINTER, scanner)))
        await enqueue(storage, *keyed(2), *keyed(2, scanner, prefix="scan"))

        assert await claim(storage) == []

        await settle(storage, ALICE, both)

        assert {lease.ref.id for lease in await claim(storage)} == {"job-0", "scan-0"}

    async def test_a_released_job_that_cannot_start_passes_its_turn_on(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        scanner = Key("scanner")
        printing = await start(storage, new_job("printing", keys=(PRINTER,)))
        await enqueue(storage, new_job("both", keys=(PRINTER, scanner)))
        clock.advance(0.001)
        await enqueue(storage, *keyed(2))
        await claim(storage)
        await start(storage, new_job("scanning", keys=(scanner,)))
        await settle(storage, ALICE, printing)

        # The job that needs both keys was first in the queue for the printer, but has no scanner.
        assert [lease.ref.id for lease in await claim(storage, room=1)] == ["job-0"]
        assert (await record(storage, Ref(QUEUE, "both"))).parked_under == "scanner"

    @pytest.mark.parametrize("way_off", WAYS_OFF, ids=["cancel", "delete", "reschedule"])
    async def test_a_released_job_that_leaves_the_queue_passes_its_turn_on(
        self, storage: Storage, way_off: Callable[[Ref], Revision]
    ) -> None:
        await enqueue(storage, *keyed(3))
        lease = await claim_one(storage)
        await claim(storage)
        await settle(storage, ALICE, lease)
        notices = storage.notices([queue_topic(QUEUE)])
        await woken_by(storage, notices, lambda: storage.revise([way_off(Ref(QUEUE, "job-1"))]))
        notices.close()

        assert [leased.ref.id for leased in await claim(storage)] == ["job-2"]

    @pytest.mark.parametrize("way_off", WAYS_OFF, ids=["cancel", "delete", "reschedule"])
    async def test_a_parked_job_that_leaves_frees_no_slot_of_another(
        self, storage: Storage, way_off: Callable[[Ref], Revision]
    ) -> None:
        await enqueue(storage, *keyed(3))
        lease = await claim_one(storage)
        await claim(storage)
        revised = await storage.revise([way_off(Ref(QUEUE, "job-1"))])

        assert [result.verdict for result in revised] == ["done"]
        assert (await glance(storage)).parked == 1
        assert await claim(storage) == []

        await settle(storage, ALICE, lease)

        assert [leased.ref.id for leased in await claim(storage)] == ["job-2"]

    async def test_a_parked_job_shows_the_key_that_it_waits_for(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *keyed(2))
        await claim(storage)
        clock.advance(3)
        job = await record(storage, Ref(QUEUE, "job-1"))
        glanced = await glance(storage)

        assert (job.state, job.parked_under, job.owner) == (State.WAITING, "printer", None)
        assert (glanced.counts[State.WAITING], glanced.parked, glanced.oldest_waiting) == (1, 1, 3 * SECOND)

    async def test_a_job_that_starts_is_parked_no_more(self, storage: Storage) -> None:
        await enqueue(storage, *keyed(2))
        lease = await claim_one(storage)
        await claim(storage)
        answer = await storage.exchange(ALICE, [settled(lease)], ClaimRequest((QUEUE,), 1))

        assert answer.leases[0].job.parked_under is None
        assert await record(storage, Ref(QUEUE, "job-1")) == answer.leases[0].job
        assert (await glance(storage)).parked == 0

    async def test_parking_records_no_event(self, storage: Storage) -> None:
        await enqueue(storage, *keyed(3))
        await claim(storage)
        await claim(storage)

        assert (await glance(storage)).parked == 2
        assert await all_events(storage) == []

    @pytest.mark.statement(75, 79)
    async def test_a_raised_limit_releases_more_jobs_at_once(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *keyed(5))
        await claim(storage)
        clock.advance(1)
        notices = storage.notices([queue_topic(QUEUE)])
        await woken_by(storage, notices, lambda: enqueue(storage, new_job("z-raises", keys=(Key("printer", 3),))))
        notices.close()

        assert [lease.ref.id for lease in await claim(storage)] == ["job-1", "job-2"]

    @pytest.mark.statement(75, 79)
    async def test_a_lowered_limit_lets_running_jobs_finish(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *keyed(5, Key("printer", 3)))
        held = await claim(storage)
        clock.advance(1)
        await enqueue(storage, new_job("z-lowers", keys=(PRINTER,)))

        assert len(held) == 3
        assert {job.state for job in [await record(storage, lease.ref) for lease in held]} == {State.ACTIVE}

        for lease in held[:2]:
            await settle(storage, ALICE, lease)

            assert await claim(storage) == []

        await settle(storage, ALICE, held[2])

        assert [lease.ref.id for lease in await claim(storage)] == ["job-3"]

    @pytest.mark.statement(79)
    async def test_the_latest_limit_applies_to_jobs_enqueued_with_another(self, storage: Storage) -> None:
        await enqueue(storage, new_job("a", keys=(PAIR,)), new_job("b", keys=(Key("pair", 1),)))

        assert [lease.ref.id for lease in await claim(storage)] == ["a"]
        assert (await record(storage, Ref(QUEUE, "a"))).keys == (PAIR,)

    async def test_an_enqueue_that_creates_no_job_sets_no_limit(self, storage: Storage) -> None:
        await enqueue(storage, *keyed(3))
        receipts = await storage.enqueue([new_job("job-0", keys=(Key("printer", 3),))])

        assert [receipt.action for receipt in receipts] == ["duplicate"]
        assert len(await claim(storage)) == 1

    @pytest.mark.statement(77)
    async def test_a_key_without_jobs_is_forgotten(self, storage: Storage) -> None:
        await enqueue(storage, *keyed(2))
        for name in ("job-0", "job-1"):
            await storage.revise([CancelJob(Ref(QUEUE, name))])
        await settle(storage, ALICE, await start(storage, new_job("wide", keys=(Key("printer", 5),))))
        await storage.revise([RedriveJob(Ref(QUEUE, name)) for name in ("job-0", "job-1")])

        # The limit of five ended with the last job that named the key.
        assert [lease.ref.id for lease in await claim(storage)] == ["job-0"]

    async def test_a_redriven_job_takes_its_slot_like_any_other(self, storage: Storage) -> None:
        await enqueue(storage, *keyed(2))
        first = await claim_one(storage)
        await settle(storage, ALICE, first, Rejected(ERROR))
        second = await claim_one(storage)
        await storage.revise([RedriveJob(first.ref)])

        assert await claim(storage, BOB) == []

        await settle(storage, ALICE, second)

        assert [lease.ref.id for lease in await claim(storage, BOB)] == ["job-0"]

    @pytest.mark.statement(78)
    async def test_slots_outlive_the_connection(self, storage: Storage) -> None:
        await enqueue(storage, *keyed(3, PAIR), new_job("z-parked", keys=(PAIR,)))
        held = await claim(storage)
        await storage.close()
        await storage.open()

        assert await claim(storage, BOB) == []

        await settle(storage, ALICE, held[0])

        assert [lease.ref.id for lease in await claim(storage, BOB)] == ["job-2"]

    async def test_a_key_may_have_any_name(self, storage: Storage) -> None:
        names = ("a:b", "a", "ä", "%", "it's; --", "x" * 500, "two words", "printer ", "printer")
        await enqueue(storage, *(new_job(f"{n}-{name}"[:40], keys=(Key(name),)) for name in names for n in range(2)))

        assert len(await claim(storage)) == len(names)

    @pytest.mark.fault("F3", "W-T13")
    @pytest.mark.statement(77, 78, 83)
    @pytest.mark.parametrize("seed", range(2))
    async def test_a_thousand_random_steps_neither_lose_nor_add_a_slot(
        self, storage: Storage, clock: ManualClock, seed: int
    ) -> None:
        walk = Walk(storage, clock, Random(seed))
        for _ in range(1000):
            await walk.step()
        await walk.come_to_rest()


class Walk:
    """Moves jobs of three keys at random. After each step no key has more active jobs than its limit."""

    LIMITS: tuple[Key, ...] = (Key("one"), Key("two", 2), Key("three", 3))
    WORKERS = (ALICE, BOB)

    def __init__(self, storage: Storage, clock: ManualClock, dice: Random) -> None:
        self._storage = storage
        self._clock = clock
        self._dice = dice
        self._held: list[tuple[Owner, Lease]] = []
        self._made = 0

    async def step(self) -> None:
        """Do one step, and check which jobs hold which keys."""
        moves = (self._enqueue, self._claim, self._claim, self._settle, self._settle, self._kill, self._revise)
        await self._dice.choice((*moves, self._wait))()
        await self._look()

    async def come_to_rest(self) -> None:
        """Finish all remaining jobs. While a job waits for a key, all slots of the key must be in use."""
        for owner in self.WORKERS:
            await self._recover(owner)
        self._held.clear()
        for _ in range(2000):
            held = await claim(self._storage, BOB)
            for key, waiting, active in await self._look():
                assert not waiting or active == key.limit, key
            if not held:
                next_due = (await order(self._storage, BOB, room=1)).next_due
                if next_due is None:
                    break
                self._clock.advance(next_due / SECOND)
            await self._storage.exchange(BOB, [settled(lease) for lease in held])
        glanced = await glance(self._storage)
        living = [
            state for state, count in glanced.counts.items() if count and state in ("waiting", "delayed", "active")
        ]

        assert (living, glanced.parked) == ([], 0)

        # All jobs are over, so the keys are as if no job had ever named them.
        await enqueue(
            self._storage, *(new_job(f"{key.name}-{n}", keys=(key,)) for key in self.LIMITS for n in range(5))
        )

        assert len(await claim(self._storage)) == sum(key.limit for key in self.LIMITS)

    async def _look(self) -> list[tuple[Key, int, int]]:
        """Return the number of parked and of active jobs for each key."""
        found = (await self._storage.find(Query(states=(State.WAITING, State.ACTIVE), limit=10_000))).jobs
        seen: list[tuple[Key, int, int]] = []
        for key in self.LIMITS:
            active = sum(job.state is State.ACTIVE and key in job.keys for job in found)
            parked = sum(job.parked_under == key.name for job in found)
            assert active <= key.limit, (key, active)
            seen.append((key, parked, active))
        return seen

    async def _enqueue(self) -> None:
        self._made += 1
        keys = tuple(self._dice.sample(self.LIMITS, self._dice.choice((0, 1, 1, 1, 2, 3))))
        job = new_job(
            f"job-{self._made:04}",
            keys=keys,
            delay=self._dice.choice((0, 0, 2 * SECOND)),
            ttl=self._dice.choice((None, None, 20 * SECOND)),
            policy=Policy(
                retry=Backoff(max_attempts=3, kind="fixed", base=SECOND, jitter=0.0),
                on_expire=self._dice.choice(("fail", "discard")),
            ),
        )
        await enqueue(self._storage, job)

    async def _claim(self) -> None:
        owner = self._dice.choice(self.WORKERS)
        self._held += [(owner, lease) for lease in await claim(self._storage, owner, room=self._dice.randint(1, 4))]

    async def _settle(self) -> None:
        if self._held:
            owner, lease = self._held.pop(self._dice.randrange(len(self._held)))
            outcomes = (*WAYS_OUT, Interrupted("shutdown"), RAISED)
            room = self._dice.randint(0, 2)
            answer = await self._storage.exchange(
                owner, [settled(lease, self._dice.choice(outcomes))], ClaimRequest((QUEUE,), room)
            )
            self._held += [(owner, leased) for leased in answer.leases]

    async def _kill(self) -> None:
        if self._dice.random() < 0.3:
            owner = self._dice.choice(self.WORKERS)
            await self._recover(owner)
            # Half of the dead workers come back and settle late, under old fences.
            self._held = [(run, lease) for run, lease in self._held if run != owner or self._dice.random() < 0.5]

    async def _recover(self, dead: Owner) -> None:
        taken = (await self._storage.reclaim(dead.id, REAPER)).stalled
        await self._storage.exchange(REAPER, [stalled(lease) for lease in taken])

    async def _revise(self) -> None:
        known = (await self._storage.find(Query(limit=30))).jobs
        if known:
            ref = self._dice.choice(known).ref
            revisions: Sequence[Revision] = (
                CancelJob(ref),
                DeleteJob(ref),
                RedriveJob(ref, delay=self._dice.choice((0, SECOND))),
                RescheduleJob(ref, delay=self._dice.choice((0, SECOND))),
                RescheduleJob(ref, boost=60 * SECOND),
            )
            await self._storage.revise([self._dice.choice(revisions)])

    async def _wait(self) -> None:
        self._clock.advance(self._dice.choice((0.001, 0.5, 1, 5, 12)))
        for lease in await sweep_all(self._storage):
            await apply(self._storage, REAPER, stalled(lease))


def keyed(count: int, key: Key = PRINTER, *, prefix: str = "job", queue: str = QUEUE) -> list[NewJob]:
    """Return jobs that share a key."""
    return [new_job(f"{prefix}-{number}", keys=(key,), queue=queue, policy=PLAIN) for number in range(count)]
