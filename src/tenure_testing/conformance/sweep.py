"""Conformance tests of `sweep` and `resign`: stalled runs are found, live runs are spared, and there is one leader."""

import asyncio

import pytest

from tenure.clock import SECOND
from tenure.core.events import JobCancelled, JobFailed, JobStalled, LeadershipAcquired, LeadershipLost
from tenure.core.job import FOREVER, Policy, Ref, StallTerms
from tenure.core.leadership import Term
from tenure.core.lease import REAPER_LEASE, Lease
from tenure.core.lifecycle import State
from tenure.core.outcome import Cancelled, Interrupted, Outcome, Raised, Rejected, Stalled
from tenure.storage.protocol import (
    PROMOTE_LIMIT,
    SWEEP_LIMIT,
    CancelJob,
    DeleteJob,
    Query,
    RedriveJob,
    StalledLease,
    Storage,
)
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    DEPUTY,
    ERROR,
    LEASE,
    QUEUE,
    RAISED,
    REAPER,
    RETURNED,
    Conformance,
    all_events,
    apply,
    beat,
    bid,
    claim,
    claim_one,
    enqueue,
    events_of,
    look,
    new_job,
    new_jobs,
    record,
    recover,
    settle,
    settled,
    stalled,
    start,
    sweep_all,
    watch,
)

BOUND = 27
"""Lease, grace and two sweeps: the seconds after which a stalled job is claimable again."""


class SweepConformance(Conformance):
    """A stalled run is found within its bound, and no live worker loses a lease."""

    @pytest.mark.statement(14, 99, 102)
    async def test_a_renewed_lease_is_not_reclaimed(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)

        assert await watch(storage, clock, 300, beating=[lease]) == []

        job = await record(storage, lease.ref)
        assert (job.fence, job.owner, job.stalls, job.suspect_until) == (lease.fence, ALICE.id, 0, None)
        assert await all_events(storage) == []

    @pytest.mark.statement(15, 99)
    async def test_a_lapsed_lease_is_first_only_suspected(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await watch(storage, clock, 18)
        clock.advance(1.999_999)
        await storage.sweep(bid())

        assert (await record(storage, lease.ref)).suspect_until is None

        clock.advance(0.000_001)
        swept = await storage.sweep(bid())
        job = await record(storage, lease.ref)

        assert swept.stalled == ()
        assert job.suspect_until == clock.now() + bid().grace
        assert (job.state, job.fence, job.owner) == (State.ACTIVE, lease.fence, ALICE.id)

    @pytest.mark.statement(16, 99)
    async def test_a_suspect_is_reclaimed_when_its_grace_is_over(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await watch(storage, clock, 20)
        clock.advance(2.999_999)

        assert (await storage.sweep(bid())).stalled == ()

        clock.advance(0.000_001)
        swept = await storage.sweep(bid())

        assert [(taken.lease.ref, taken.reason, taken.owner) for taken in swept.stalled] == [
            (lease.ref, "lease_expired", ALICE.id)
        ]
        assert swept.stalled[0].silent_for == 23 * SECOND

    @pytest.mark.fault("W-T9")
    @pytest.mark.statement(15)
    async def test_no_lease_is_suspected_and_reclaimed_in_one_sweep(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        clock.advance(3600)

        assert (await storage.sweep(bid())).stalled == ()
        assert (await record(storage, lease.ref)).suspect_until is not None
        assert (await storage.sweep(bid())).stalled == ()

    async def test_a_reclaimed_lease_belongs_to_the_reaper_under_a_new_fence(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage, new_job(timeout=600 * SECOND))
        taken = (await watch(storage, clock, 24))[0].lease
        detail = await look(storage, lease.ref)
        job = detail.job

        assert job == taken.job
        assert taken.fence > lease.fence
        assert (job.state, job.owner, job.lease_until) == (State.ACTIVE, REAPER.id, clock.now() + REAPER_LEASE)
        assert (job.suspect_until, job.run_until, job.progress_until) == (None, None, None)
        assert (job.starts, job.stalls, job.started) == (1, 0, lease.job.started)
        assert [(run.number, run.owner, run.end) for run in detail.runs] == [(1, ALICE.id, None)]

    @pytest.mark.statement(17, 19)
    async def test_a_beat_between_suspicion_and_reclaim_prevents_it(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await watch(storage, clock, 20)

        assert (await record(storage, lease.ref)).suspect_until is not None

        clock.advance(2.9)
        await beat(storage, ALICE, [lease])
        clock.advance(0.1)

        assert await watch(storage, clock, 19) == []
        assert (await record(storage, lease.ref)).stalls == 0

    @pytest.mark.statement(4, 13, 88)
    async def test_the_first_stall_recovers(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await recover(storage, clock)
        detail = await look(storage, lease.ref)
        job = detail.job

        assert (job.state, job.stalls, job.failures, job.releases) == (State.WAITING, 1, 0, 0)
        assert (job.owner, job.lease_until, job.error) == (None, None, None)
        assert [(run.ended, run.reason) for run in detail.runs] == [("stalled", "lease_expired")]

        again = await claim_one(storage, BOB)

        assert (again.run, again.job.attempt) == (2, 1)

    @pytest.mark.fault("W-N7")
    @pytest.mark.statement(4, 40, 93, 115)
    async def test_a_recovery_records_one_event_with_all_details(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await recover(storage, clock)
        events = await all_events(storage)

        assert len(events) == 1
        event = events[0]
        assert isinstance(event, JobStalled)
        assert (event.queue, event.id, event.task, event.run) == (QUEUE, "job", "add", 1)
        assert (event.count, event.action, event.reason) == (1, "recovered", "lease_expired")
        assert (event.owner, event.silent_for) == (ALICE.id, 24.0)
        assert event.count == (await record(storage, lease.ref)).stalls

    @pytest.mark.fault("W-T4", "W-B1")
    @pytest.mark.statement(5, 10, 93)
    async def test_the_stall_after_the_last_allowed_fails_the_job(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await recover(storage, clock)
        await claim_one(storage, BOB)
        await recover(storage, clock)
        detail = await look(storage, lease.ref)
        job = detail.job

        assert (job.state, job.reason, job.stalls, job.failures) == (State.FAILED, "stalled", 2, 0)
        assert job.error is not None
        assert job.error.type == "JobStalledError"
        assert job.finished == detail.runs[-1].end
        assert [run.ended for run in detail.runs] == ["stalled", "stalled"]
        assert [found.ref for found in (await storage.find(Query(states=(State.FAILED,)))).jobs] == [job.ref]

        events = (await all_events(storage))[1:]

        assert [type(event) for event in events] == [JobStalled, JobFailed]
        assert isinstance(events[0], JobStalled)
        assert (events[0].count, events[0].action) == (2, "failed")
        assert isinstance(events[1], JobFailed)
        assert (events[1].reason, events[1].attempt) == ("stalled", 1)

    @pytest.mark.fault("W-N6", "W-P9")
    @pytest.mark.statement(5, 6, 7, 8, 9, 39, 88, 117)
    @pytest.mark.parametrize("allowed", [0, 1, 2, 3])
    async def test_a_job_fails_when_it_stalls_more_often_than_allowed(
        self, storage: Storage, clock: ManualClock, allowed: int
    ) -> None:
        await enqueue(storage, new_job(stall=StallTerms(max_stalls=allowed)))
        for count in range(1, allowed + 2):
            await claim_one(storage)
            await recover(storage, clock)
            job = await record(storage, new_job().ref)

            assert job.stalls == count
            assert job.state is (State.FAILED if count > allowed else State.WAITING)
        events = await events_of(storage, JobStalled)
        assert [event.count for event in events] == list(range(1, allowed + 2))
        assert [event.action for event in events] == ["recovered"] * allowed + ["failed"]
        assert await claim(storage) == []

    @pytest.mark.fault("W-T31")
    @pytest.mark.statement(12)
    async def test_a_redrive_resets_the_stalls(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job(stall=StallTerms(max_stalls=0)))
        await recover(storage, clock)
        await storage.revise([RedriveJob(lease.ref)])

        assert (await record(storage, lease.ref)).stalls == 0

        await claim_one(storage)
        await recover(storage, clock)

        assert (await record(storage, lease.ref)).stalls == 1

    @pytest.mark.statement(12)
    async def test_a_retry_does_not_reset_the_stalls(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await recover(storage, clock)
        await settle(storage, BOB, await claim_one(storage, BOB), RAISED)
        clock.advance(1)
        await claim_one(storage, BOB)
        await recover(storage, clock)
        job = await record(storage, lease.ref)

        assert (job.state, job.stalls, job.failures) == (State.FAILED, 2, 1)

    @pytest.mark.fault("W-N4", "W-N19")
    @pytest.mark.statement(11)
    async def test_the_count_outlives_the_connection(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await recover(storage, clock)
        await storage.close()
        await storage.open()

        assert (await record(storage, lease.ref)).stalls == 1

    @pytest.mark.fault("W-P17")
    @pytest.mark.statement(23)
    async def test_a_recovered_job_is_at_the_head_of_its_priority(self, storage: Storage, clock: ManualClock) -> None:
        await start(storage, new_job("z-first"))
        clock.advance(1)
        await enqueue(storage, new_job("a-second"))
        await enqueue(storage, new_job("urgent", boost=3600 * SECOND))
        await recover(storage, clock)

        assert [lease.ref.id for lease in await claim(storage)] == ["urgent", "z-first", "a-second"]

    @pytest.mark.statement(35, 100)
    async def test_a_silent_job_is_claimable_within_its_bound(self, storage: Storage, clock: ManualClock) -> None:
        for offset in (0.0, 0.5, 1.0, 1.9):
            await storage.sweep(bid())
            clock.advance(offset)
            begun = clock.now()
            lease = await start(storage, new_job(f"job-{offset}"))
            clock.advance(2 - offset)
            await recover(storage, clock)
            run = (await look(storage, lease.ref)).runs[0]

            assert run.end is not None
            assert LEASE + 3 * SECOND <= run.end - begun <= BOUND * SECOND

            await settle(storage, ALICE, await claim_one(storage))

    @pytest.mark.statement(99)
    async def test_silence_counts_from_the_last_beat(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await watch(storage, clock, 60, beating=[lease])
        reclaimed = await watch(storage, clock, 22)

        assert reclaimed == []

        reclaimed = await watch(storage, clock, 5)

        assert [taken.lease.ref for taken in reclaimed] == [lease.ref]

    @pytest.mark.fault("F1", "W-T1")
    @pytest.mark.statement(21, 103)
    @pytest.mark.parametrize(
        "outcome", [RETURNED, Rejected(ERROR), Raised(ERROR, final=True), Cancelled()], ids=lambda it: type(it).__name__
    )
    async def test_a_job_that_ended_between_two_sweeps_is_left_alone(
        self, storage: Storage, clock: ManualClock, outcome: Outcome
    ) -> None:
        lease = await start(storage)
        # The job is suspected, and settled before the suspicion ends. Some other job queues bring a finished job back
        # here.
        await watch(storage, clock, 20)

        assert (await record(storage, lease.ref)).suspect_until is not None

        await settle(storage, ALICE, lease, outcome)
        before = await look(storage, lease.ref)
        events = await all_events(storage)

        assert await watch(storage, clock, 60) == []
        assert await look(storage, lease.ref) == before
        assert await all_events(storage) == events
        assert await claim(storage) == []

    @pytest.mark.statement("21b", 104)
    @pytest.mark.parametrize("outcome", [RAISED, Interrupted("shutdown")], ids=lambda it: type(it).__name__)
    async def test_a_job_released_between_two_sweeps_is_queued_once(
        self, storage: Storage, clock: ManualClock, outcome: Outcome
    ) -> None:
        lease = await start(storage)
        await watch(storage, clock, 20)

        assert (await record(storage, lease.ref)).suspect_until is not None

        await settle(storage, ALICE, lease, outcome)

        assert await watch(storage, clock, 60) == []

        leases = await claim(storage)
        job = await record(storage, lease.ref)

        assert [again.run for again in leases] == [2]
        assert job.stalls == 0
        assert await claim(storage) == []

    @pytest.mark.statement("21b", 104)
    async def test_a_recovered_job_is_queued_once(self, storage: Storage, clock: ManualClock) -> None:
        await start(storage)
        await recover(storage, clock)
        await watch(storage, clock, 60)

        assert len(await claim(storage)) == 1
        assert await claim(storage) == []

    @pytest.mark.statement(21)
    async def test_a_deleted_job_is_never_suspected_or_reclaimed(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await watch(storage, clock, 20)

        assert (await record(storage, lease.ref)).suspect_until is not None

        await settle(storage, ALICE, lease)
        await storage.revise([DeleteJob(lease.ref)])

        assert await watch(storage, clock, 60) == []
        assert await storage.get([lease.ref]) == [None]
        assert await claim(storage) == []

    @pytest.mark.fault("W-N5")
    @pytest.mark.statement(101)
    async def test_each_run_has_a_lease_of_its_own(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await watch(storage, clock, 18)
        await settle(storage, ALICE, lease, Interrupted("shutdown"))
        again = await claim_one(storage, BOB)

        # The old lease would have expired by now; the new one has not.
        assert await watch(storage, clock, 18) == []
        assert await settle(storage, BOB, again) == "done"

    @pytest.mark.statement(26)
    async def test_a_stalled_job_with_a_cancel_request_is_cancelled(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await storage.revise([CancelJob(lease.ref, "enough", "ops")])
        await recover(storage, clock)
        job = await record(storage, lease.ref)

        assert (job.state, job.reason, job.stalls) == (State.CANCELLED, "enough", 0)
        assert await events_of(storage, JobStalled) == []
        assert [(event.reason, event.was) for event in await events_of(storage, JobCancelled)] == [("enough", "active")]

    @pytest.mark.statement(27)
    async def test_a_stall_over_the_limit_with_a_cancel_request_is_cancelled(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage, new_job(stall=StallTerms(max_stalls=0)))
        await storage.revise([CancelJob(lease.ref)])
        await recover(storage, clock)

        assert (await record(storage, lease.ref)).state is State.CANCELLED
        assert await events_of(storage, JobFailed) == []

    async def test_a_cancel_between_reclaim_and_settlement_ends_the_job(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage)
        taken = await watch(storage, clock, 24)
        await storage.revise([CancelJob(lease.ref, "enough")])
        await apply(storage, REAPER, stalled(taken[0]))
        job = await record(storage, lease.ref)

        assert (job.state, job.reason, job.stalls) == (State.CANCELLED, "enough", 0)
        assert await events_of(storage, JobStalled) == []

    async def test_a_job_that_must_not_run_twice_fails_at_its_first_stall(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage, new_job(policy=Policy(on_worker_lost="fail")))
        await recover(storage, clock)
        job = await record(storage, lease.ref)

        assert (job.state, job.reason, job.stalls) == (State.FAILED, "stalled", 1)

    async def test_a_schedules_job_stalls_like_any_other(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job("cron:nightly:2026-01-01", schedule="nightly"))
        await recover(storage, clock)
        await claim_one(storage)
        await recover(storage, clock)

        assert (await record(storage, lease.ref)).state is State.FAILED

    @pytest.mark.statement(43)
    async def test_an_unrenewed_lease_lapses_and_its_job_is_claimed_again(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage, new_job(stall=StallTerms(lease=30 * SECOND, renewed=False)))
        await recover(storage, clock, seconds=36)

        assert (await claim_one(storage, BOB)).ref == lease.ref

    @pytest.mark.statement(89)
    async def test_an_unlimited_lease_never_lapses(self, storage: Storage, clock: ManualClock) -> None:
        await start(storage, new_job(stall=StallTerms(lease=FOREVER)))
        clock.advance(86_400 * 365)

        assert await watch(storage, clock, 30) == []

    @pytest.mark.statement(89)
    async def test_a_run_in_its_start_grace_is_not_suspected(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job(stall=StallTerms(start_grace=60 * SECOND)))

        assert await watch(storage, clock, 58) == []
        assert (await record(storage, lease.ref)).suspect_until is None

        assert len(await watch(storage, clock, 8)) == 1

    @pytest.mark.fault("W-T8", "W-P19")
    @pytest.mark.statement(116)
    async def test_each_job_has_its_own_lease_length_with_any_reaper(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        short = await start(storage, new_job("short", stall=StallTerms(lease=8 * SECOND)))
        long = await start(storage, new_job("long", stall=StallTerms(lease=60 * SECOND)))
        early = await watch(storage, clock, 12)
        late = await watch(storage, clock, 44, reaper=DEPUTY)

        assert [taken.lease.ref for taken in early] == [short.ref]
        assert long.ref not in [taken.lease.ref for taken in late]
        assert (await record(storage, long.ref)).suspect_until is None

    @pytest.mark.fault("W-P2", "W-P10")
    @pytest.mark.statement(106)
    async def test_jobs_that_stalled_before_the_first_sweep_are_found(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        old = await start(storage, new_job("old"))
        clock.advance(600)
        young = await start(storage, new_job("young"))
        clock.advance(10)
        first = await recover(storage, clock, seconds=12)
        second = await recover(storage, clock, seconds=12)

        assert [taken.lease.ref for taken in first] == [old.ref]
        assert [taken.lease.ref for taken in second] == [young.ref]

    @pytest.mark.fault("F5")
    async def test_the_jobs_of_a_dead_reaper_are_recovered(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        first = (await watch(storage, clock, 24))[0]
        second = (await watch(storage, clock, 12, reaper=DEPUTY))[0]

        assert second.lease.fence > first.lease.fence > lease.fence
        assert (second.owner, second.lease.run) == (REAPER.id, 1)
        assert await apply(storage, REAPER, stalled(first)) == "lost"
        assert await apply(storage, DEPUTY, stalled(second)) == "done"
        assert (await record(storage, lease.ref)).stalls == 1

    @pytest.mark.fault("W-P8")
    @pytest.mark.statement(20, 34, 105)
    async def test_two_sweepers_never_take_one_lease(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *new_jobs(20))
        await claim(storage)
        await watch(storage, clock, 22)
        clock.advance(2)
        swept = await asyncio.gather(*(storage.sweep(bid(owner)) for owner in (REAPER, DEPUTY, ALICE, REAPER, DEPUTY)))
        taken = [lease for answer in swept for lease in answer.stalled]

        assert sorted(lease.lease.ref for lease in taken) == sorted(job.ref for job in new_jobs(20))
        assert {lease.owner for lease in taken} == {ALICE.id}

    @pytest.mark.fault("F5", "W-P8")
    @pytest.mark.statement(20, 34, 105)
    async def test_two_reapers_recover_a_job_once(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        for _ in range(20):
            clock.advance(1.5)
            for reaper in (REAPER, DEPUTY):
                for taken in await sweep_all(storage, reaper):
                    await apply(storage, reaper, stalled(taken))
        job = await record(storage, lease.ref)

        assert (job.state, job.stalls) == (State.WAITING, 1)
        assert len(await events_of(storage, JobStalled)) == 1
        assert len(await claim(storage)) == 1

    async def test_a_stall_settled_twice_is_charged_once(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        taken = (await watch(storage, clock, 24))[0]

        assert await apply(storage, REAPER, stalled(taken)) == "done"
        assert await apply(storage, REAPER, stalled(taken)) == "duplicate"
        assert (await record(storage, lease.ref)).stalls == 1
        assert len(await events_of(storage, JobStalled)) == 1

    # ── clocks that jump or stop ──────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("frozen", [7, 30, 60, 600, 86_400])
    async def test_a_frozen_storage_takes_no_lease_from_a_live_worker(
        self, storage: Storage, clock: ManualClock, frozen: int
    ) -> None:
        await enqueue(storage, *new_jobs(20))
        leases = await claim(storage)
        await watch(storage, clock, 10, beating=leases)
        clock.advance(frozen)
        # The first process that wakes up sweeps, and every holder's renewal is a full interval away.
        reclaimed = await watch(storage, clock, 4)
        clock.advance(1)
        reclaimed += await watch(storage, clock, 60, beating=leases)

        assert reclaimed == []

    async def test_dead_workers_are_found_after_a_freeze(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *new_jobs(2))
        living, dead = await claim(storage)
        await watch(storage, clock, 10, beating=[living, dead])
        clock.advance(600)
        reclaimed = await watch(storage, clock, 14, beating=[living])

        assert [taken.lease.ref for taken in reclaimed] == [dead.ref]

    @pytest.mark.parametrize("step", [-0.4, -0.5, -5.0, -20.0, -600.0, -86_400.0])
    async def test_a_clock_set_back_takes_no_lease_from_a_live_worker(
        self, storage: Storage, clock: ManualClock, step: float
    ) -> None:
        await enqueue(storage, *new_jobs(20))
        leases = await claim(storage)
        await watch(storage, clock, 10, beating=leases)
        clock.step_wall(step)
        reclaimed = await watch(storage, clock, 4)
        clock.advance(1)
        reclaimed += await watch(storage, clock, 60, beating=leases)

        assert reclaimed == []
        for lease in leases:
            assert (await record(storage, lease.ref)).suspect_until is None

    @pytest.mark.parametrize("step", [-0.5, -5.0, -20.0, -600.0, -86_400.0])
    async def test_a_clock_set_back_delays_no_recovery(self, storage: Storage, clock: ManualClock, step: float) -> None:
        lease = await start(storage)
        await watch(storage, clock, 2, beating=[lease])
        clock.step_wall(step)
        reclaimed = await recover(storage, clock, seconds=BOUND - 2)

        assert [taken.lease.ref for taken in reclaimed] == [lease.ref]

    @pytest.mark.parametrize("step", [-5.0, -600.0, -86_400.0])
    async def test_a_clock_set_back_during_a_suspicion_delays_no_recovery(
        self, storage: Storage, clock: ManualClock, step: float
    ) -> None:
        lease = await start(storage)
        await watch(storage, clock, 20)
        clock.step_wall(step)
        reclaimed = await recover(storage, clock, seconds=LEASE // 2 // SECOND + 4)

        assert [taken.lease.ref for taken in reclaimed] == [lease.ref]

    @pytest.mark.parametrize("step", [7.0, 60.0, 3600.0])
    async def test_a_clock_set_forward_takes_no_lease_from_a_live_worker(
        self, storage: Storage, clock: ManualClock, step: float
    ) -> None:
        await enqueue(storage, *new_jobs(20))
        leases = await claim(storage)
        await watch(storage, clock, 10, beating=leases)
        clock.step_wall(step)
        reclaimed = await watch(storage, clock, 4)
        clock.advance(1)
        reclaimed += await watch(storage, clock, 60, beating=leases)

        assert reclaimed == []

    # ── other sweep steps, and limits ─────────────────────────────────────────────────────────────────────────────

    async def test_a_sweep_promotes_due_jobs(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("due", delay=5 * SECOND), new_job("early", delay=6 * SECOND))
        clock.advance(5)
        await storage.sweep(bid())

        assert (await record(storage, new_job("due").ref)).state is State.WAITING
        assert (await record(storage, new_job("early").ref)).state is State.DELAYED

    async def test_a_sweep_promotes_in_bounded_steps(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *(new_job(f"job-{number:03}", delay=SECOND) for number in range(PROMOTE_LIMIT * 2 + 50)))
        clock.advance(1)
        swept = await storage.sweep(bid())
        counts = (await storage.survey([QUEUE])).queues[0].counts

        assert swept.more
        assert counts.get(State.WAITING) == PROMOTE_LIMIT

        await sweep_all(storage)
        counts = (await storage.survey([QUEUE])).queues[0].counts

        assert counts.get(State.WAITING) == PROMOTE_LIMIT * 2 + 50
        assert counts.get(State.DELAYED, 0) == 0

    async def test_a_sweep_promotes_the_longest_overdue_queue_first(self, storage: Storage, clock: ManualClock) -> None:
        # The queue that would come first by its name also had the job that would have been due first.
        await enqueue(storage, new_job("cancelled", queue="a", delay=SECOND))
        await enqueue(storage, *(new_job(str(number), queue="a", delay=3 * SECOND) for number in range(10)))
        await enqueue(storage, *(new_job(str(number), queue="b", delay=2 * SECOND) for number in range(PROMOTE_LIMIT)))
        await storage.revise([CancelJob(Ref("a", "cancelled"))])
        clock.advance(3)
        await storage.sweep(bid())

        [queue] = (await storage.survey(["b"])).queues
        assert queue.counts.get(State.WAITING) == PROMOTE_LIMIT

    @pytest.mark.fault("F2", "W-T2", "W-B2")
    async def test_a_sweep_reclaims_in_bounded_steps(self, storage: Storage, clock: ManualClock) -> None:
        count = SWEEP_LIMIT + 60
        await enqueue(storage, *new_jobs(count))
        leases: list[Lease] = []
        while claimed := await claim(storage):
            leases += claimed
        await watch(storage, clock, 18)
        clock.advance(2)
        first = await storage.sweep(bid())

        assert (first.more, first.did.get("suspected")) == (True, SWEEP_LIMIT)

        await sweep_all(storage)
        clock.advance(3)
        taken: list[StalledLease] = []
        answer = await storage.sweep(bid())

        assert (answer.more, len(answer.stalled)) == (True, SWEEP_LIMIT)

        taken += answer.stalled
        taken += await sweep_all(storage)
        verdicts = (await storage.exchange(REAPER, [stalled(lease) for lease in taken])).verdicts

        assert sorted(lease.lease.ref for lease in taken) == sorted(lease.ref for lease in leases)
        assert {verdict.verdict for verdict in verdicts} == {"done"}
        assert len(await events_of(storage, JobStalled)) == count
        assert (await storage.survey([QUEUE])).queues[0].counts.get(State.WAITING) == count

    async def test_bounded_steps_detect_a_clock_set_back(self, storage: Storage, clock: ManualClock) -> None:
        count = SWEEP_LIMIT + 60
        await enqueue(storage, *new_jobs(count), new_job("z-short", stall=StallTerms(lease=1 * SECOND)))
        while await claim(storage):
            pass
        clock.step_wall(-3600)
        swept = await storage.sweep(bid())

        assert swept.more

        await sweep_all(storage)
        found = [job for job in (await storage.find(Query(limit=1000))).jobs if job.suspect_until is not None]

        assert len(found) == count + 1

    async def test_a_sweep_with_both_kinds_of_suspects_reports_more(self, storage: Storage, clock: ManualClock) -> None:
        ahead = await start(storage, new_job("a-ahead"))
        clock.step_wall(-3600)
        await enqueue(storage, *new_jobs(SWEEP_LIMIT + 10))
        while await claim(storage):
            pass
        clock.advance(20)
        swept = await storage.sweep(bid())

        assert swept.more

        await sweep_all(storage)
        found = [job for job in (await storage.find(Query(limit=1000))).jobs if job.suspect_until is not None]

        assert len(found) == SWEEP_LIMIT + 11
        assert ahead.ref in [job.ref for job in found]

    async def test_a_sweep_of_an_idle_storage_does_nothing(self, storage: Storage) -> None:
        swept = await storage.sweep(bid())

        assert (swept.stalled, swept.more, swept.terms, swept.retry_in) == ((), False, (), None)
        assert not any(swept.did.values())
        assert await all_events(storage) == []

    async def test_a_stall_is_kept_with_its_reason_and_post_mortem(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        taken = (await watch(storage, clock, 24))[0]
        await storage.exchange(REAPER, [settled(taken.lease, Stalled("loop_blocked", 24 * SECOND, ALICE.id, "frames"))])
        event = (await events_of(storage, JobStalled))[0]

        assert (event.reason, event.post_mortem, event.silent_for) == ("loop_blocked", "frames", 24.0)
        run = (await look(storage, lease.ref)).runs[0]
        assert (run.ended, run.reason, run.detail) == ("stalled", "loop_blocked", "frames")


TERM = 4 * SECOND


class ElectionConformance(Conformance):
    """There is one leader at a time. Its term ends by itself, and only its own call ends it earlier.

    A storage may have several parts with a leader each. A candidate then stands for all of them.
    """

    @pytest.mark.statement(107, 108)
    async def test_the_first_bidder_leads(self, storage: Storage) -> None:
        swept = await storage.sweep(bid(term=TERM))

        assert {(term.owner, term.length) for term in swept.terms} == {(REAPER.id, TERM)}
        assert swept.retry_in is None
        assert (await storage.survey()).leaders == swept.terms
        acquired = await events_of(storage, LeadershipAcquired)
        assert {(event.scope, event.owner, event.epoch) for event in acquired} == {
            (term.scope, REAPER.id, term.epoch) for term in swept.terms
        }

    @pytest.mark.statement(107, 108)
    async def test_a_second_bidder_follows_and_learns_when_to_retry(self, storage: Storage, clock: ManualClock) -> None:
        await storage.sweep(bid(term=TERM))
        clock.advance(1.5)
        swept = await storage.sweep(bid(DEPUTY, term=TERM))

        assert swept.terms == ()
        assert swept.retry_in == 2_500_000

    @pytest.mark.statement(41, 107)
    async def test_a_follower_does_no_sweep_steps(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await storage.sweep(bid(term=60 * SECOND))
        clock.advance(30)
        swept = await storage.sweep(bid(DEPUTY, term=TERM))

        assert (swept.stalled, swept.retry_in) == ((), 30 * SECOND)
        assert (await record(storage, lease.ref)).suspect_until is None

    @pytest.mark.statement(107)
    async def test_a_leader_keeps_its_term_by_sweeping(self, storage: Storage, clock: ManualClock) -> None:
        first = (await storage.sweep(bid(term=TERM))).terms
        for _ in range(10):
            clock.advance(2)

            assert (await storage.sweep(bid(DEPUTY, term=TERM))).terms == ()
            assert (await storage.sweep(bid(term=TERM))).terms == first
        assert len(await events_of(storage, LeadershipAcquired)) == len(first)

    @pytest.mark.statement(109, 110)
    async def test_a_silent_leader_is_replaced_when_its_term_is_over(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        first = (await storage.sweep(bid(term=TERM))).terms
        clock.advance(3.999_999)

        assert (await storage.sweep(bid(DEPUTY, term=TERM))).retry_in == 1

        clock.advance(0.000_001)
        second = (await storage.sweep(bid(DEPUTY, term=TERM))).terms

        assert {term.owner for term in second} == {DEPUTY.id}
        assert _all_rose(first, second)
        lost = await events_of(storage, LeadershipLost)
        assert sorted((event.scope, event.owner, event.epoch, event.reason) for event in lost) == sorted(
            (term.scope, REAPER.id, term.epoch, "expired") for term in first
        )

    @pytest.mark.fault("F5", "W-P12")
    @pytest.mark.statement(109, 111, 112)
    async def test_an_old_term_cannot_renew_a_new_one(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await storage.sweep(bid(term=TERM))
        clock.advance(30)
        second = (await storage.sweep(bid(DEPUTY, term=TERM))).terms
        clock.advance(3)
        late = await storage.sweep(bid(term=TERM))

        assert (late.terms, late.stalled, late.retry_in) == ((), (), 1 * SECOND)
        assert (await storage.survey()).leaders == second
        assert (await record(storage, lease.ref)).owner == ALICE.id

    async def test_a_leader_that_comes_back_late_has_a_new_epoch(self, storage: Storage, clock: ManualClock) -> None:
        first = (await storage.sweep(bid(term=TERM))).terms
        clock.advance(10)
        second = (await storage.sweep(bid(term=TERM))).terms

        assert {term.owner for term in second} == {REAPER.id}
        assert _all_rose(first, second)

    @pytest.mark.statement(110)
    async def test_a_resigned_leader_is_replaced_at_once(self, storage: Storage) -> None:
        first = (await storage.sweep(bid(term=TERM))).terms
        for term in first:
            await storage.resign(term)

        assert (await storage.survey()).leaders == ()

        second = (await storage.sweep(bid(DEPUTY, term=TERM))).terms

        assert _all_rose(first, second)
        lost = await events_of(storage, LeadershipLost)
        assert sorted((event.scope, event.owner, event.epoch, event.reason) for event in lost) == sorted(
            (term.scope, REAPER.id, term.epoch, "resigned") for term in first
        )

    @pytest.mark.statement(111)
    async def test_an_old_term_cannot_resign_a_new_one(self, storage: Storage, clock: ManualClock) -> None:
        first = (await storage.sweep(bid(term=TERM))).terms
        clock.advance(10)
        second = (await storage.sweep(bid(term=TERM))).terms
        for term in first:
            await storage.resign(term)

        assert (await storage.survey()).leaders == second

    @pytest.mark.statement(111)
    async def test_an_owner_cannot_resign_the_term_of_another(self, storage: Storage) -> None:
        terms = (await storage.sweep(bid(term=TERM))).terms
        for term in terms:
            await storage.resign(Term(term.scope, DEPUTY.id, term.epoch, term.length))

        assert (await storage.survey()).leaders == terms

    @pytest.mark.statement(114)
    async def test_a_repeated_resign_has_no_further_effect(self, storage: Storage) -> None:
        term = (await storage.sweep(bid(term=TERM))).terms[0]
        await storage.resign(term)
        await storage.resign(term)

        assert len(await events_of(storage, LeadershipLost)) == 1

    async def test_a_bid_without_a_term_sweeps_in_addition_to_the_leader(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage)
        terms = (await storage.sweep(bid(term=60 * SECOND))).terms
        taken = await watch(storage, clock, 24, reaper=DEPUTY)

        assert [item.lease.ref for item in taken] == [lease.ref]
        assert (await storage.survey()).leaders == terms
        assert len(await events_of(storage, LeadershipAcquired)) == len(terms)

    async def test_concurrent_bids_elect_one_leader(self, storage: Storage) -> None:
        bidders = (REAPER, DEPUTY, ALICE, BOB)
        swept = await asyncio.gather(*(storage.sweep(bid(owner, term=TERM)) for owner in bidders))
        scopes = [term.scope for answer in swept for term in answer.terms]

        assert len(scopes) == len(set(scopes)) == len((await storage.survey()).leaders)
        assert all((answer.retry_in is None) == bool(answer.terms) for answer in swept)

    @pytest.mark.parametrize("step", [-5.0, -86_400.0])
    async def test_a_term_does_not_outlast_a_clock_set_back(
        self, storage: Storage, clock: ManualClock, step: float
    ) -> None:
        await storage.sweep(bid(term=TERM))
        clock.step_wall(step)
        clock.advance(TERM / SECOND)
        swept = await storage.sweep(bid(DEPUTY, term=TERM))

        assert {term.owner for term in swept.terms} == {DEPUTY.id}

    async def test_a_leader_keeps_its_term_over_a_clock_set_back(self, storage: Storage, clock: ManualClock) -> None:
        first = (await storage.sweep(bid(term=TERM))).terms
        clock.step_wall(-3600)
        second = (await storage.sweep(bid(term=TERM))).terms
        clock.advance(2)
        follower = await storage.sweep(bid(DEPUTY, term=TERM))

        assert first == second
        assert follower.retry_in == 2 * SECOND


def _all_rose(first: tuple[Term, ...], second: tuple[Term, ...]) -> bool:
    """Return True if each part of the storage has a later epoch than before."""
    before, after = ({term.scope: term.epoch for term in terms} for terms in (first, second))
    return before.keys() == after.keys() and all(after[scope] > epoch for scope, epoch in before.items())
