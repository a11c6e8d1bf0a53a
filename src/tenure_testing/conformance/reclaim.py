"""Conformance tests of `reclaim`: all leases of a dead owner are taken at once, and no others."""

import pytest

from tenure.clock import SECOND
from tenure.core.events import JobFailed, JobStalled
from tenure.core.job import Policy, StallTerms
from tenure.core.lease import REAPER_LEASE
from tenure.core.lifecycle import State
from tenure.core.outcome import Interrupted
from tenure.storage.protocol import SWEEP_LIMIT, WORKER_KEPT, CancelJob, RenewRequest, Storage, SweepRequest, WorkerInfo
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    DEPUTY,
    RAISED,
    REAPER,
    Conformance,
    apply,
    beat,
    claim,
    claim_one,
    enqueue,
    events_of,
    look,
    new_job,
    new_jobs,
    record,
    settle,
    stalled,
    start,
    watch,
)


class ReclaimConformance(Conformance):
    """The leases of a dead owner are taken at once, without grace."""

    @pytest.mark.statement(92)
    async def test_the_leases_of_a_dead_owner_are_reclaimed_at_once(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        clock.advance(1.5)
        answer = await storage.reclaim(ALICE.id, REAPER)

        assert not answer.more
        assert [(taken.lease.ref, taken.reason, taken.owner) for taken in answer.stalled] == [
            (lease.ref, "process_died", ALICE.id)
        ]
        assert answer.stalled[0].silent_for == 1_500_000
        job = answer.stalled[0].lease.job
        assert job == await record(storage, lease.ref)
        assert job.fence > lease.fence
        assert (job.state, job.owner, job.lease_until) == (State.ACTIVE, REAPER.id, clock.now() + REAPER_LEASE)
        assert (job.starts, job.stalls) == (1, 0)

    @pytest.mark.statement(92, 117)
    async def test_a_job_whose_worker_died_runs_again_at_once(self, storage: Storage) -> None:
        lease = await start(storage)
        for taken in (await storage.reclaim(ALICE.id, REAPER)).stalled:
            assert await apply(storage, REAPER, stalled(taken)) == "done"
        again = await claim_one(storage, BOB)

        assert (again.ref, again.run, again.job.stalls, again.job.attempt) == (lease.ref, 2, 1, 1)
        event = (await events_of(storage, JobStalled))[0]
        assert (event.action, event.reason) == ("recovered", "process_died")

    @pytest.mark.fault("W-N6", "W-P9")
    @pytest.mark.statement(117)
    async def test_a_job_that_kills_its_workers_fails_as_crashed(self, storage: Storage) -> None:
        await enqueue(storage, new_job())
        for owner in (ALICE, BOB):
            await claim_one(storage, owner)
            for taken in (await storage.reclaim(owner.id, REAPER)).stalled:
                await apply(storage, REAPER, stalled(taken))
        job = await record(storage, new_job().ref)

        assert (job.state, job.reason, job.stalls, job.failures) == (State.FAILED, "crashed", 2, 0)
        assert [event.reason for event in await events_of(storage, JobFailed)] == ["crashed"]

    async def test_a_job_that_must_not_run_twice_fails_when_its_worker_died(self, storage: Storage) -> None:
        lease = await start(storage, new_job(policy=Policy(on_worker_lost="fail")))
        for taken in (await storage.reclaim(ALICE.id, REAPER)).stalled:
            await apply(storage, REAPER, stalled(taken))
        job = await record(storage, lease.ref)

        assert (job.state, job.reason) == (State.FAILED, "crashed")

    async def test_only_jobs_of_the_dead_owner_are_reclaimed(self, storage: Storage) -> None:
        lease = await start(storage, new_job("alices"))
        foreign = await start(storage, new_job("bobs"), BOB)
        over = await start(storage, new_job("over"))
        await settle(storage, ALICE, over)
        back = await start(storage, new_job("back"))
        await settle(storage, ALICE, back, Interrupted("shutdown"))
        resting = await start(storage, new_job("resting", boost=SECOND))
        await settle(storage, ALICE, resting, RAISED)
        answer = await storage.reclaim(ALICE.id, REAPER)

        assert [taken.lease.ref for taken in answer.stalled] == [lease.ref]
        assert await record(storage, foreign.ref) == foreign.job

    async def test_reclaiming_from_an_owner_without_jobs_returns_nothing(self, storage: Storage) -> None:
        await start(storage, owner=BOB)
        answer = await storage.reclaim(ALICE.id, REAPER)

        assert (answer.stalled, answer.more) == ((), False)

    async def test_a_repeated_reclaim_has_no_further_effect(self, storage: Storage) -> None:
        await start(storage)
        first = await storage.reclaim(ALICE.id, REAPER)
        second = await storage.reclaim(ALICE.id, DEPUTY)

        assert (len(first.stalled), len(second.stalled)) == (1, 0)

    async def test_a_reclaimed_lease_fences_its_old_holder(self, storage: Storage) -> None:
        lease = await start(storage)
        await storage.reclaim(ALICE.id, REAPER)

        assert (await beat(storage, ALICE, [lease])).lost == ((lease.ref, lease.fence),)
        assert await settle(storage, ALICE, lease) == "lost"

    async def test_a_suspect_job_is_reclaimed(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await watch(storage, clock, 20)

        assert (await record(storage, lease.ref)).suspect_until is not None

        answer = await storage.reclaim(ALICE.id, REAPER)

        assert [taken.lease.ref for taken in answer.stalled] == [lease.ref]
        assert (await record(storage, lease.ref)).suspect_until is None

    async def test_the_leases_of_a_dead_reaper_are_reclaimed(self, storage: Storage) -> None:
        lease = await start(storage)
        first = (await storage.reclaim(ALICE.id, REAPER)).stalled[0]
        second = (await storage.reclaim(REAPER.id, DEPUTY)).stalled[0]

        assert await apply(storage, REAPER, stalled(first)) == "lost"
        assert await apply(storage, DEPUTY, stalled(second)) == "done"
        assert (await record(storage, lease.ref)).stalls == 1

    async def test_jobs_of_a_reclaim_with_a_lost_answer_can_be_reclaimed_again(self, storage: Storage) -> None:
        leases = [await start(storage, new_job(name)) for name in ("a", "b")]
        # The answers of these two calls were lost. Each caller used an owner id that is used for nothing else.
        await storage.reclaim(ALICE.id, REAPER)
        await storage.reclaim(REAPER.id, DEPUTY)
        empty = [await storage.reclaim(holder, BOB) for holder in (ALICE.id, REAPER.id)]
        found = await storage.reclaim(DEPUTY.id, BOB)

        assert [(answer.stalled, answer.more, answer.incomplete) for answer in empty] == [((), False, False)] * 2
        assert {(taken.lease.ref, taken.reason) for taken in found.stalled} == {
            (lease.ref, "process_died") for lease in leases
        }
        for taken in found.stalled:
            assert await apply(storage, BOB, stalled(taken)) == "done"
        for holder in (ALICE, REAPER, DEPUTY, BOB):
            assert (await storage.reclaim(holder.id, ALICE)).stalled == ()
        assert [(await record(storage, lease.ref)).stalls for lease in leases] == [1, 1]
        assert (await storage.survey()).workers == ()

    async def test_a_reclaim_reports_jobs_that_an_earlier_lost_answer_named(self, storage: Storage) -> None:
        await start(storage, new_job("a"))
        await start(storage, new_job("b"), BOB)
        # The network has carried out this call twice and delivered the second answer.
        first = await storage.reclaim(ALICE.id, REAPER)
        second = await storage.reclaim(ALICE.id, REAPER)
        other = await storage.reclaim(BOB.id, REAPER)
        found = await storage.reclaim(REAPER.id, DEPUTY)

        assert (len(first.stalled), first.more, first.incomplete) == (1, False, False)
        assert (second.stalled, second.more, second.incomplete) == ((), False, True)
        assert (len(other.stalled), other.more, other.incomplete) == (1, False, True)
        assert (len(found.stalled), found.more, found.incomplete) == (2, False, False)

    async def test_a_dead_workers_job_with_a_cancel_request_is_cancelled(self, storage: Storage) -> None:
        lease = await start(storage, new_job(stall=StallTerms(max_stalls=0)))
        await storage.revise([CancelJob(lease.ref, "enough")])
        for taken in (await storage.reclaim(ALICE.id, REAPER)).stalled:
            await apply(storage, REAPER, stalled(taken))

        assert (await record(storage, lease.ref)).state is State.CANCELLED
        assert await events_of(storage, JobStalled) == []

    async def test_a_dead_worker_is_shown_as_dead(self, storage: Storage) -> None:
        await storage.renew(RenewRequest(ALICE, worker=WorkerInfo(("default",), 10)))
        before = (await storage.survey()).workers
        await storage.reclaim(ALICE.id, REAPER)
        after = (await storage.survey()).workers

        assert [(worker.owner, worker.died) for worker in before + after] == [(ALICE, False), (ALICE, True)]

    async def test_a_worker_that_did_not_sign_off_is_shown_for_ten_minutes(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.renew(RenewRequest(ALICE, worker=WorkerInfo(("default",), 10)))
        clock.advance(WORKER_KEPT / SECOND - 1)
        await storage.sweep(SweepRequest(REAPER))
        before = len((await storage.survey()).workers)
        clock.advance(1)
        await storage.sweep(SweepRequest(REAPER))

        assert (before, (await storage.survey()).workers) == (1, ())

    async def test_a_reclaim_takes_in_bounded_steps(self, storage: Storage) -> None:
        count = SWEEP_LIMIT + 30
        await enqueue(storage, *new_jobs(count))
        while await claim(storage):
            pass
        first = await storage.reclaim(ALICE.id, REAPER)
        second = await storage.reclaim(ALICE.id, REAPER)

        assert (len(first.stalled), first.more) == (SWEEP_LIMIT, True)
        assert (len(second.stalled), second.more) == (30, False)

        taken = [*first.stalled, *second.stalled]
        await storage.exchange(REAPER, [stalled(lease) for lease in taken])

        assert {run.reason for lease in taken for run in (await look(storage, lease.lease.ref)).runs} == {
            "process_died"
        }
        assert len({lease.lease.ref for lease in taken}) == count
