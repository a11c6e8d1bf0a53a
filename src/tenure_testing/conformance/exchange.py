"""Conformance tests of `exchange`: only the current run can settle a job, and each job is claimed by one owner only."""

import asyncio

import pytest
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.events import JobCancelled, JobCompleted, JobFailed, JobReleased, JobRetried, RunFenced
from tenure.core.job import Owner, Policy, RecordedError, Ref, StallTerms
from tenure.core.lifecycle import State
from tenure.core.outcome import (
    Cancelled,
    Interrupted,
    Outcome,
    Raised,
    RateLimitHit,
    Rejected,
    Returned,
    Snoozed,
    TimedOut,
    Unknown,
    Unreadable,
)
from tenure.core.retry import Backoff
from tenure.storage.protocol import (
    CLAIM_LIMIT,
    RUNS_KEPT,
    SETTLE_LIMIT,
    CancelJob,
    ClaimRequest,
    DeleteJob,
    LeaseRenewal,
    RenewRequest,
    Settings,
    Storage,
    Target,
)
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
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
    order,
    record,
    recover,
    settle,
    settled,
    stalled,
    start,
    watch,
)

NEVER_AGAIN = Policy(retry=Backoff(max_attempts=1))


class ClaimConformance(Conformance):
    """A due job is given to one claimer, under a fence that only rises."""

    async def test_a_job_is_claimed_by_one_worker_only(self, storage: Storage) -> None:
        lease = await start(storage)

        assert lease.job.state is State.ACTIVE
        assert await claim(storage, BOB) == []
        assert await claim(storage, ALICE) == []

    async def test_claims_made_at_once_never_share_a_job(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(60))
        owners = [Owner(f"{number:016x}") for number in range(10)]
        answers = await asyncio.gather(*(claim(storage, owner, room=7) for owner in owners))
        claimed = [lease.ref for leases in answers for lease in leases]

        assert sorted(claimed) == sorted(job.ref for job in new_jobs(60))

    async def test_claims_from_several_threads_never_share_a_job(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(100))

        async def work(number: int) -> list[Ref]:
            owner = Owner(f"{number:016x}")
            claimed: list[Ref] = []
            while leases := await claim(storage, owner, room=3):
                claimed += [lease.ref for lease in leases]
                verdicts = (await storage.exchange(owner, [settled(lease) for lease in leases])).verdicts
                assert {verdict.verdict for verdict in verdicts} == {"done"}
            return claimed

        async with asyncio.TaskGroup() as task_group:
            threads = [task_group.create_task(asyncio.to_thread(asyncio.run, work(number))) for number in range(4)]
        claimed = [ref for thread in threads for ref in thread.result()]

        assert sorted(claimed) == sorted(job.ref for job in new_jobs(100))

    async def test_a_claim_raises_start_and_fence(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)

        assert (lease.run, lease.job.starts) == (1, 1)
        assert lease.fence == clock.now()

        await settle(storage, ALICE, lease, Interrupted("shutdown"))
        again = await claim_one(storage, BOB)

        assert again.run == 2
        assert again.fence > lease.fence

    async def test_a_fence_rises_though_the_clock_stands_or_goes_back(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        fences: list[int] = []
        lease = await start(storage)
        for step in (0, -3600, 0, 7200):
            fences.append(lease.fence)
            await settle(storage, ALICE, lease, Interrupted("shutdown"))
            clock.step_wall(step)
            lease = await claim_one(storage)

        first = fences[0]
        assert fences == [first, first + 1, first + 2, first + 3]
        # The wall clock is an hour ahead now, and the fence follows it.
        assert lease.fence == clock.now() == first + 3600 * SECOND

    async def test_a_claim_sets_the_owner_and_the_end_of_the_lease(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job(stall=StallTerms(lease=8 * SECOND)))
        clock.advance(3)
        now = clock.now()
        job = (await claim_one(storage, BOB)).job

        assert (job.state, job.owner, job.started, job.heard_at) == (State.ACTIVE, BOB.id, now, now)
        assert job.lease_until == now + 8 * SECOND
        assert (job.suspect_until, job.run_until, job.progress_until, job.finished) == (None, None, None, None)
        assert job == await record(storage, job.ref)

    async def test_a_claim_opens_a_run(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        runs = (await look(storage, lease.ref)).runs

        assert len(runs) == 1
        run = runs[0]
        assert (run.number, run.fence, run.start, run.end, run.ended) == (1, lease.fence, clock.now(), None, None)
        assert (run.owner, run.worker, run.host, run.pid) == (ALICE.id, ALICE.name, ALICE.host, ALICE.pid)

    async def test_a_claim_takes_no_more_than_its_room(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(5))
        first = await order(storage, ALICE, room=3)
        second = await order(storage, ALICE, room=3)

        assert [lease.ref.id for lease in first.leases] == ["job-0000", "job-0001", "job-0002"]
        assert first.left
        assert [lease.ref.id for lease in second.leases] == ["job-0003", "job-0004"]
        assert not second.left

    async def test_a_claim_without_room_reports_whether_jobs_are_left(self, storage: Storage) -> None:
        await enqueue(storage, new_job())
        answer = await order(storage, ALICE, room=0)

        assert answer.leases == ()
        assert answer.left

    async def test_an_exchange_without_a_claim_request_claims_nothing(self, storage: Storage) -> None:
        await enqueue(storage, new_job())

        assert (await storage.exchange(ALICE)).leases == ()

    async def test_one_call_claims_no_more_than_the_limit(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(CLAIM_LIMIT + 72))
        first = await order(storage, ALICE, room=1000)
        second = await order(storage, ALICE, room=1000)

        assert (len(first.leases), first.left) == (CLAIM_LIMIT, True)
        assert (len(second.leases), second.left) == (72, False)

    async def test_queues_are_served_in_the_order_they_are_named(self, storage: Storage) -> None:
        await enqueue(storage, *(new_job(name, queue=name) for name in ("a", "b", "c")))
        answer = await order(storage, ALICE, "c", "b", room=1)

        assert [lease.ref.queue for lease in answer.leases] == ["c"]
        assert answer.left

        answer = await order(storage, ALICE, "c", "b", room=5)

        assert [lease.ref.queue for lease in answer.leases] == ["b"]
        assert not answer.left

    async def test_a_queue_that_is_not_named_is_left_alone(self, storage: Storage) -> None:
        await enqueue(storage, new_job(queue="mail"))
        answer = await order(storage, ALICE, "default", "unheard-of", room=5)

        assert (answer.leases, answer.left, answer.next_due) == ((), False, None)

    async def test_the_answer_says_when_the_next_job_is_due(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(
            storage,
            new_job("later", delay=9 * SECOND),
            new_job("sooner", delay=4 * SECOND),
            new_job("elsewhere", queue="mail", delay=1 * SECOND),
        )
        clock.advance(1.5)
        answer = await order(storage, ALICE, room=5)

        assert (answer.leases, answer.left, answer.next_due) == ((), False, 2_500_000)

        clock.advance(2.5)
        answer = await order(storage, ALICE, "mail", "default", room=5)

        assert [lease.ref.id for lease in answer.leases] == ["elsewhere", "sooner"]
        assert answer.next_due == 5 * SECOND

    @pytest.mark.statement(89)
    async def test_a_young_run_has_its_start_grace(self, storage: Storage, clock: ManualClock) -> None:
        long = await start(storage, new_job("long", stall=StallTerms(start_grace=60 * SECOND)))
        short = await start(storage, new_job("short", stall=StallTerms(start_grace=5 * SECOND)))

        assert long.job.lease_until == clock.now() + 60 * SECOND
        assert short.job.lease_until == clock.now() + LEASE

    async def test_a_lease_never_passes_the_limit_of_its_run(self, storage: Storage, clock: ManualClock) -> None:
        now = clock.now()
        timed = await start(storage, new_job("timed", timeout=2 * SECOND))
        dated = await start(storage, new_job("dated", deadline=now + 3 * SECOND, timeout=60 * SECOND))
        long = await start(storage, new_job("long", timeout=60 * SECOND))

        # A quarter of the lease, one renewal interval, is left for the worker to report that the time is over.
        assert timed.job.lease_until == timed.job.run_until == now + 2 * SECOND + LEASE // 4
        assert dated.job.lease_until == dated.job.run_until == now + 3 * SECOND + LEASE // 4
        assert (long.job.lease_until, long.job.run_until) == (now + LEASE, now + 60 * SECOND + LEASE // 4)

    async def test_a_lease_never_passes_the_progress_clock(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job(heartbeat_timeout=5 * SECOND))

        assert lease.job.lease_until == lease.job.progress_until == clock.now() + 5 * SECOND


OUTCOMES: tuple[tuple[Outcome, State, str | None, str, str | None], ...] = (
    (Returned(b"3"), State.COMPLETED, None, "completed", None),
    (Raised(ERROR), State.DELAYED, "failures", "raised", None),
    (Raised(ERROR, after=0), State.WAITING, "failures", "raised", None),
    (Raised(ERROR, final=True), State.FAILED, "failures", "raised", "rejected"),
    (TimedOut(ERROR), State.DELAYED, "failures", "timed_out", "timeout"),
    (TimedOut(ERROR, final=True), State.FAILED, "failures", "timed_out", "timeout"),
    (Rejected(ERROR), State.FAILED, "failures", "rejected", "rejected"),
    (Unreadable(ERROR), State.FAILED, "failures", "undecodable", "undecodable"),
    (Unknown(), State.WAITING, "releases", "released", "unknown_task"),
    (Unknown("newer_payload"), State.WAITING, "releases", "released", "newer_payload"),
    (Snoozed(10 * SECOND), State.DELAYED, "releases", "released", "snoozed"),
    (RateLimitHit(10 * SECOND), State.DELAYED, "releases", "released", "rate_limited"),
    (Interrupted("shutdown"), State.WAITING, "releases", "released", "shutdown"),
    (Interrupted("prefetch"), State.WAITING, "releases", "released", "prefetch"),
    (Interrupted("unreachable", 2 * SECOND), State.DELAYED, "releases", "released", "unreachable"),
    (Cancelled("enough"), State.CANCELLED, None, "cancelled", "enough"),
)
"""Each outcome with the resulting state, the counter that it is charged to, the end of the run, and the job's reason.
"""


class SettleConformance(Conformance):
    """A settlement counts once, and only if its run is the current one."""

    @pytest.mark.fault("W-N10")
    @pytest.mark.parametrize(("outcome", "state", "charge", "ended", "reason"), OUTCOMES)
    async def test_an_outcome_leads_to_its_state_and_is_charged_to_one_budget(
        self,
        storage: Storage,
        clock: ManualClock,
        outcome: Outcome,
        state: State,
        charge: str | None,
        ended: str,
        reason: str | None,
    ) -> None:
        lease = await start(storage)
        clock.advance(1)

        assert await settle(storage, ALICE, lease, outcome) == "done"

        detail = await look(storage, lease.ref)
        job, run = detail.job, detail.runs[0]
        charged = {"failures": job.failures, "stalls": job.stalls, "releases": job.releases}
        assert job.state is state
        assert job.reason == reason
        assert charged == {name: int(name == charge) for name in charged}
        assert job.starts == 1
        assert (run.ended, run.end) == (ended, clock.now())

    async def test_a_settled_run_leaves_no_lease(self, storage: Storage) -> None:
        lease = await start(storage, new_job(timeout=60 * SECOND, heartbeat_timeout=30 * SECOND))
        await settle(storage, ALICE, lease)
        job = await record(storage, lease.ref)

        assert (job.owner, job.lease_until, job.suspect_until) == (None, None, None)
        assert (job.run_until, job.progress_until, job.heard_at) == (None, None, None)
        assert (job.fence, job.settled_fence) == (lease.fence, lease.fence)

    async def test_a_result_is_kept_with_its_job(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        clock.advance(2)
        result = bytes(range(256)) * 100
        await settle(storage, ALICE, lease, Returned(result))
        job = await record(storage, lease.ref)

        assert (job.result, job.error, job.reason) == (result, None, None)
        assert (job.started, job.finished) == (clock.now() - 2 * SECOND, clock.now())

    async def test_an_error_is_kept_with_its_job(self, storage: Storage, clock: ManualClock) -> None:
        error = RecordedError("app.OddError", "größer than 'expected'\n; --", "Traceback\n  ...")
        lease = await start(storage)
        await settle(storage, ALICE, lease, Raised(error))
        resting = await record(storage, lease.ref)

        assert (resting.state, resting.error, resting.finished) == (State.DELAYED, error, None)

        clock.advance(1)
        await settle(storage, BOB, await claim_one(storage, BOB), Rejected(error))
        failed = await record(storage, lease.ref)

        assert (failed.state, failed.error, failed.result) == (State.FAILED, error, None)
        assert failed.finished == clock.now()

    async def test_a_terminal_job_is_not_claimed_again(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *new_jobs(3))
        leases = await claim(storage)
        outcomes: tuple[Outcome, ...] = (RETURNED, Rejected(ERROR), Cancelled())
        for lease, outcome in zip(leases, outcomes, strict=True):
            await settle(storage, ALICE, lease, outcome)
        over = [(await record(storage, lease.ref)).state for lease in leases]
        clock.advance(3600)
        await watch(storage, clock, 30)

        assert over == [State.COMPLETED, State.FAILED, State.CANCELLED]
        assert await claim(storage) == []

    async def test_a_failed_run_is_due_after_its_delay_to_the_microsecond(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage)
        await settle(storage, ALICE, lease, RAISED)
        clock.advance(0.999_999)

        assert await claim(storage) == []

        clock.advance(0.000_001)
        again = await claim_one(storage)

        assert (again.run, again.job.attempt) == (2, 2)

    async def test_a_job_fails_when_its_attempts_are_used_up(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job())
        for _ in range(3):
            await settle(storage, ALICE, await claim_one(storage), RAISED)
            clock.advance(1)
        detail = await look(storage, new_job().ref)

        assert (detail.job.state, detail.job.reason, detail.job.failures) == (State.FAILED, "exhausted", 3)
        assert [run.ended for run in detail.runs] == ["raised", "raised", "raised"]
        assert [event.next_attempt for event in await events_of(storage, JobRetried)] == [2, 3]
        assert [(event.attempt, event.reason) for event in await events_of(storage, JobFailed)] == [(3, "exhausted")]

    @pytest.mark.fault("F10")
    @pytest.mark.statement(12, 13)
    async def test_failures_stalls_and_releases_are_counted_separately(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, new_job(stall=StallTerms(max_stalls=5), policy=Policy(retry=Backoff(max_attempts=9))))
        for outcome in (RAISED, None, Snoozed(0), Interrupted("shutdown"), TimedOut(ERROR), None, Unknown()):
            lease = await claim_one(storage)
            if outcome is None:
                await recover(storage, clock)
            else:
                await settle(storage, ALICE, lease, outcome)
            clock.advance(60)
        job = await record(storage, new_job().ref)

        assert (job.starts, job.failures, job.stalls, job.releases) == (7, 2, 2, 3)
        assert job.attempt == 3

        await settle(storage, ALICE, await claim_one(storage))
        detail = await look(storage, job.ref)

        assert [run.number for run in detail.runs] == [1, 2, 3, 4, 5, 6, 7, 8]
        assert [run.ended for run in detail.runs] == [
            "raised",
            "stalled",
            "released",
            "released",
            "timed_out",
            "stalled",
            "released",
            "completed",
        ]
        assert detail.job.starts == detail.job.failures + detail.job.stalls + detail.job.releases + 1

    async def test_a_released_run_keeps_its_place_in_the_queue(self, storage: Storage, clock: ManualClock) -> None:
        first = await start(storage, new_job("first"))
        clock.advance(1)
        await enqueue(storage, new_job("second"))
        await settle(storage, ALICE, first, Interrupted("shutdown"))

        assert [lease.ref.id for lease in await claim(storage)] == ["first", "second"]

    async def test_a_retried_job_counts_from_when_it_is_due(self, storage: Storage, clock: ManualClock) -> None:
        first = await start(storage, new_job("first"))
        await settle(storage, ALICE, first, RAISED)
        clock.advance(0.5)
        await enqueue(storage, new_job("second"))
        clock.advance(1)

        assert [lease.ref.id for lease in await claim(storage)] == ["second", "first"]

    async def test_a_boost_outlasts_a_retry(self, storage: Storage, clock: ManualClock) -> None:
        first = await start(storage, new_job("first", boost=60 * SECOND))
        await settle(storage, ALICE, first, RAISED)
        await enqueue(storage, new_job("second"))
        clock.advance(1)

        assert [lease.ref.id for lease in await claim(storage)] == ["first", "second"]

    async def test_a_lease_settles_once(self, storage: Storage) -> None:
        lease = await start(storage)

        assert await settle(storage, ALICE, lease, Returned(b"first")) == "done"
        assert await settle(storage, ALICE, lease, Returned(b"second")) == "duplicate"
        assert (await record(storage, lease.ref)).result == b"first"
        assert [event.result for event in await events_of(storage, JobCompleted)] == [b"first"]
        assert len(await all_events(storage)) == 1

    async def test_a_put_back_repeated_is_a_duplicate_and_charged_once(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage)
        sent = settled(lease, RAISED)

        assert await apply(storage, ALICE, sent) == "done"
        assert await apply(storage, ALICE, sent) == "duplicate"
        job = await record(storage, lease.ref)
        assert (job.state, job.failures) == (State.DELAYED, 1)
        assert len(await all_events(storage)) == 1

    @pytest.mark.fault("W-P4")
    async def test_an_exchange_repeated_after_a_lost_reply_settles_once(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(2))
        lease = await claim_one(storage)
        sent = [settled(lease)]
        first = await storage.exchange(ALICE, sent, ClaimRequest((QUEUE,), 1))
        second = await storage.exchange(ALICE, sent, ClaimRequest((QUEUE,), 1))

        assert [verdict.verdict for verdict in first.verdicts] == ["done"]
        assert [verdict.verdict for verdict in second.verdicts] == ["duplicate"]
        # The claim stays in force although its reply was lost. Its lease expires by itself.
        assert (len(first.leases), len(second.leases)) == (1, 0)

    @pytest.mark.statement(31)
    async def test_a_stale_fence_settles_nothing_and_is_recorded(self, storage: Storage, clock: ManualClock) -> None:
        old = await start(storage)
        await recover(storage, clock)
        new = await claim_one(storage, BOB)
        before = await look(storage, old.ref)

        assert await settle(storage, ALICE, old, Returned(b"late")) == "lost"
        assert await look(storage, old.ref) == before

        refused = await events_of(storage, RunFenced)
        assert [(event.fence, event.current_fence, event.owner, event.write) for event in refused] == [
            (old.fence, new.fence, ALICE.id, "settle")
        ]
        assert [(event.queue, event.id, event.run) for event in refused] == [(QUEUE, "job", 2)]

    async def test_the_right_fence_from_another_owner_settles_nothing(self, storage: Storage) -> None:
        lease = await start(storage)
        before = await look(storage, lease.ref)

        assert await settle(storage, BOB, lease) == "lost"
        assert await look(storage, lease.ref) == before
        assert [event.owner for event in await events_of(storage, RunFenced)] == [BOB.id]
        assert await settle(storage, ALICE, lease) == "done"

    @pytest.mark.fault("F7", "W-N5")
    async def test_an_old_fence_of_the_same_owner_settles_nothing(self, storage: Storage, clock: ManualClock) -> None:
        old = await start(storage)
        await recover(storage, clock)
        new = await claim_one(storage, ALICE)

        assert await settle(storage, ALICE, old, Returned(b"late")) == "lost"
        assert await settle(storage, ALICE, new, Returned(b"right")) == "done"
        assert (await record(storage, old.ref)).result == b"right"

    async def test_a_job_that_waits_cannot_be_settled(self, storage: Storage) -> None:
        first = await start(storage)
        await settle(storage, ALICE, first, Interrupted("shutdown"))
        second = await claim_one(storage)
        await settle(storage, ALICE, second, Interrupted("shutdown"))

        assert await settle(storage, ALICE, first) == "lost"
        assert (await record(storage, first.ref)).state is State.WAITING

    async def test_the_settlement_of_an_unknown_job_is_gone(self, storage: Storage) -> None:
        lease = await start(storage)
        await settle(storage, ALICE, lease)
        await storage.revise([DeleteJob(lease.ref)])

        assert await settle(storage, ALICE, lease) == "gone"
        assert await events_of(storage, RunFenced) == []

    @pytest.mark.statement(91)
    async def test_a_lapsed_lease_that_was_not_reclaimed_still_settles(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage)
        clock.advance(3600)

        assert await claim(storage, BOB) == []
        assert await settle(storage, ALICE, lease) == "done"
        assert await watch(storage, clock, 30) == []

    @pytest.mark.statement(91)
    async def test_a_suspect_run_still_settles(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await watch(storage, clock, 20)

        assert (await record(storage, lease.ref)).suspect_until is not None
        assert await settle(storage, ALICE, lease) == "done"

        job = await record(storage, lease.ref)
        assert (job.state, job.suspect_until, job.stalls) == (State.COMPLETED, None, 0)
        assert await watch(storage, clock, 30) == []

    @pytest.mark.statement(91)
    async def test_a_reclaimed_lease_cannot_settle(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        taken = await watch(storage, clock, 26)

        assert await settle(storage, ALICE, lease) == "lost"
        assert await apply(storage, REAPER, stalled(taken[0])) == "done"
        assert await settle(storage, ALICE, lease) == "lost"
        assert (await record(storage, lease.ref)).state is State.WAITING

    @pytest.mark.fault("F7", "W-N5", "W-P1")
    @pytest.mark.statement(31, 90)
    async def test_a_fenced_run_cannot_change_the_run_after_it(self, storage: Storage, clock: ManualClock) -> None:
        zombie = await start(storage)
        await recover(storage, clock)
        current = await claim_one(storage, BOB)
        await storage.renew(
            RenewRequest(ALICE, (LeaseRenewal(zombie.ref, zombie.fence, sign=True, progress=0.9, note="late"),))
        )

        assert await settle(storage, ALICE, zombie, Rejected(ERROR)) == "lost"
        assert await record(storage, zombie.ref) == current.job
        assert await settle(storage, BOB, current, Returned(b"bob")) == "done"
        assert await settle(storage, ALICE, zombie, Returned(b"alice")) == "lost"

        detail = await look(storage, zombie.ref)
        assert (detail.job.state, detail.job.result) == (State.COMPLETED, b"bob")
        assert [(run.owner, run.ended) for run in detail.runs] == [(ALICE.id, "stalled"), (BOB.id, "completed")]

    async def test_a_cancelled_run_is_never_put_back(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *new_jobs(3))
        leases = await claim(storage)
        await storage.revise([CancelJob(lease.ref, "enough", "ops") for lease in leases])
        outcomes: tuple[Outcome, ...] = (RAISED, Interrupted("shutdown"), Snoozed(5 * SECOND))
        for lease, outcome in zip(leases, outcomes, strict=True):
            assert await settle(storage, ALICE, lease, outcome) == "done"

        for lease in leases:
            job = await record(storage, lease.ref)
            assert (job.state, job.reason, job.finished) == (State.CANCELLED, "enough", clock.now())
            assert (job.failures, job.stalls, job.releases) == (0, 0, 0)
        events = await events_of(storage, JobCancelled)
        assert [(event.id, event.reason, event.was) for event in events] == [
            (lease.ref.id, "enough", "active") for lease in leases
        ]
        assert len(await all_events(storage)) == 3

    @pytest.mark.fault("W-P14")
    async def test_a_result_returned_after_a_cancel_request_counts(self, storage: Storage) -> None:
        lease = await start(storage)
        await storage.revise([CancelJob(lease.ref, "enough")])
        await settle(storage, ALICE, lease, RETURNED)

        assert (await record(storage, lease.ref)).state is State.COMPLETED
        assert [event.cancel_too_late for event in await events_of(storage, JobCompleted)] == [True]

    async def test_a_final_failure_counts_although_the_job_has_a_cancel_request(self, storage: Storage) -> None:
        lease = await start(storage, new_job(policy=NEVER_AGAIN))
        await storage.revise([CancelJob(lease.ref)])
        await settle(storage, ALICE, lease, RAISED)
        job = await record(storage, lease.ref)

        assert job.state is State.FAILED
        assert job.cancel_at is not None

    async def test_one_call_settles_and_claims(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(4))
        first, second = await claim(storage, room=2)
        answer = await storage.exchange(
            ALICE, [settled(first), settled(second, Interrupted("prefetch"))], ClaimRequest((QUEUE,), 2)
        )

        assert [verdict.verdict for verdict in answer.verdicts] == ["done", "done"]
        # The job that was just put back is at the front of the queue again.
        assert [lease.ref.id for lease in answer.leases] == ["job-0001", "job-0002"]
        assert answer.left

    async def test_a_refused_settlement_does_not_affect_others(self, storage: Storage, clock: ManualClock) -> None:
        old = await start(storage, new_job("old"))
        await recover(storage, clock)
        await claim_one(storage, BOB)
        await enqueue(storage, *new_jobs(2))
        one, two = await claim(storage)
        await settle(storage, ALICE, one)
        gone = structs.replace(settled(old), ref=Ref(QUEUE, "missing"))
        answer = await storage.exchange(ALICE, [settled(old), settled(one), gone, settled(two)])

        assert [verdict.verdict for verdict in answer.verdicts] == ["lost", "duplicate", "gone", "done"]
        assert [verdict.ref.id for verdict in answer.verdicts] == ["old", "job-0000", "missing", "job-0001"]

    async def test_an_exchange_of_the_maximum_size_settles_all(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(SETTLE_LIMIT + CLAIM_LIMIT))
        leases = await claim(storage) + await claim(storage)

        assert len(leases) == SETTLE_LIMIT

        answer = await storage.exchange(
            ALICE, [settled(lease) for lease in leases], ClaimRequest((QUEUE,), CLAIM_LIMIT)
        )

        assert {verdict.verdict for verdict in answer.verdicts} == {"done"}
        assert len(answer.leases) == CLAIM_LIMIT
        assert not answer.left
        survey = (await storage.survey()).queues[0]
        assert survey.counts.get(State.COMPLETED) == SETTLE_LIMIT
        assert survey.counts.get(State.ACTIVE) == CLAIM_LIMIT

    async def test_the_newest_runs_are_kept(self, storage: Storage) -> None:
        lease = await start(storage)
        for _ in range(RUNS_KEPT + 4):
            answer = await storage.exchange(ALICE, [settled(lease, Interrupted("prefetch"))], ClaimRequest((QUEUE,), 1))
            lease = answer.leases[0]
        await settle(storage, ALICE, lease)
        detail = await look(storage, lease.ref)

        assert detail.job.starts == RUNS_KEPT + 5
        assert [run.number for run in detail.runs] == list(range(6, RUNS_KEPT + 6))
        assert [run.ended for run in detail.runs] == ["released"] * (RUNS_KEPT - 1) + ["completed"]

    async def test_each_transition_is_recorded_in_its_own_step(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await settle(storage, ALICE, lease, RAISED)
        clock.advance(1)
        await settle(storage, ALICE, await claim_one(storage), Interrupted("shutdown"))
        await settle(storage, BOB, await claim_one(storage, BOB), RETURNED)
        retried, released, completed = await all_events(storage)

        assert isinstance(retried, JobRetried)
        assert (retried.attempt, retried.delay, retried.error, retried.run) == (1, 1.0, ERROR, 1)
        assert isinstance(released, JobReleased)
        assert (released.reason, released.delay, released.run) == ("shutdown", 0.0, 2)
        assert isinstance(completed, JobCompleted)
        assert (completed.attempt, completed.duration, completed.run) == (2, 0.5, 3)

    async def test_a_paused_queue_still_settles(self, storage: Storage) -> None:
        lease = await start(storage)
        await storage.tune(Target("queue", QUEUE), Settings(paused=True))
        await enqueue(storage, new_job("kept"))

        assert await claim(storage) == []
        assert await settle(storage, ALICE, lease) == "done"

    async def test_a_settlement_frees_its_run_from_the_sweep(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await beat(storage, ALICE, [lease])
        await settle(storage, ALICE, lease)
        clock.advance(3600)
        swept = await storage.sweep(bid())

        # First the hour that has passed, then the time in which a later sweep would reclaim an unsettled run.
        assert swept.did.get("suspected", 0) == 0
        assert await watch(storage, clock, 30) == []
