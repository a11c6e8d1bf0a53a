"""Conformance tests of crash records: where a handler was, which job is quarantined next, how a worker is."""

import pytest
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.decision import PutBack, RunEnd
from tenure.core.events import JobReleased, JobStalled, WorkerHung
from tenure.core.job import TRACE_KEPT, NewJob, Ref, StallTerms
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.outcome import Interrupted, Outcome, Rejected, Snoozed, Stalled, Unknown
from tenure.core.settlement import Settlement
from tenure.storage.protocol import (
    WORKER_KEPT,
    CancelJob,
    LeaseRenewal,
    NewLogLine,
    Query,
    RedriveJob,
    RenewRequest,
    RenewResult,
    RescheduleJob,
    Settings,
    Storage,
    Target,
    WorkerInfo,
    WorkerSurvey,
)
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    ERROR,
    RAISED,
    REAPER,
    RETURNED,
    Conformance,
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
    settle,
    settled,
    stalled,
    start,
    sweep_all,
    watch,
)

HERE = 'File "größe.py", line 7, in größe ☃\n    sleep(1)'
FAILED_WORKER = Interrupted("worker_failed", begun=True)
THERE = 'File "größe.py", line 9, in größe'


class CrashesConformance(Conformance):
    """A run that goes down with its process leaves behind a record of where it was."""

    # ── quarantine ────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_job_of_a_died_process_is_quarantined_until_a_run_ends(self, storage: Storage) -> None:
        lease = await crashed(storage)
        waiting = await record(storage, lease.ref)
        listed = (await storage.find(Query())).jobs
        again = await claim_one(storage, BOB)
        running = await record(storage, lease.ref)
        await settle(storage, BOB, again)

        assert not lease.job.quarantined
        assert (waiting.state, waiting.quarantined) == (State.WAITING, True)
        assert listed == (waiting,)
        assert again.job.quarantined
        assert running == again.job
        assert not (await record(storage, lease.ref)).quarantined

    async def test_quarantine_outlasts_renewal_suspicion_and_reclaim_of_the_run(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await crashed(storage)
        again = await claim_one(storage)
        await beat(storage, ALICE, [again], sign=True)
        beaten = await record(storage, again.ref)
        [taken] = await watch(storage, clock, 30)
        # The reaper that was to settle the job died, too.
        [late] = (await storage.reclaim(REAPER.id, BOB)).stalled

        assert beaten.quarantined
        assert taken.lease.job.quarantined
        assert late.lease.job.quarantined
        assert (await record(storage, again.ref)).quarantined

    @pytest.mark.parametrize("outcome", [Interrupted("shutdown"), Unknown()])
    async def test_an_inconclusive_run_leaves_the_job_in_quarantine(self, storage: Storage, outcome: Outcome) -> None:
        await crashed(storage)
        await settle(storage, ALICE, await claim_one(storage), outcome)

        assert (await claim_one(storage)).job.quarantined

    @pytest.mark.parametrize("outcome", [RAISED, Snoozed(SECOND), Rejected(ERROR), RETURNED, Stalled("no_progress")])
    async def test_a_run_that_ended_by_itself_ends_the_quarantine(self, storage: Storage, outcome: Outcome) -> None:
        lease = await crashed(storage)
        await settle(storage, ALICE, await claim_one(storage), outcome)

        assert not (await record(storage, lease.ref)).quarantined

    async def test_a_delayed_job_in_quarantine_keeps_it_through_every_change(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage)
        await apply(storage, ALICE, put_back(lease, after=60 * SECOND))
        delayed = await record(storage, lease.ref)
        await storage.revise([RescheduleJob(lease.ref, delay=5 * SECOND, priority=3)])
        moved = await record(storage, lease.ref)
        clock.advance(5)
        await sweep_all(storage)
        promoted = await record(storage, lease.ref)

        assert [job.state for job in (delayed, moved, promoted)] == [State.DELAYED, State.DELAYED, State.WAITING]
        assert all(job.quarantined for job in (delayed, moved, promoted))
        assert (await claim_one(storage)).job.quarantined

    async def test_no_terminal_job_is_quarantined(self, storage: Storage, clock: ManualClock) -> None:
        cancelled = await crashed(storage, new_job(queue="cancelled"))
        expired = await crashed(storage, new_job(queue="expired", ttl=9 * SECOND))
        failed = await crashed(storage, new_job(queue="failed"))
        await storage.revise([CancelJob(cancelled.ref, "enough")])
        await settle(storage, ALICE, await claim_one(storage, queue="failed"), Rejected(ERROR))
        clock.advance(9)
        await sweep_all(storage)
        jobs = [await record(storage, lease.ref) for lease in (cancelled, expired, failed)]

        assert [job.state for job in jobs] == [State.CANCELLED, State.EXPIRED, State.FAILED]
        assert not any(job.quarantined for job in jobs)

        await storage.revise([RedriveJob(job.ref) for job in jobs])
        again = [await claim_one(storage, queue=job.queue) for job in jobs]

        assert not any(lease.job.quarantined for lease in again)

    async def test_a_put_back_with_a_cancel_request_ends_the_job(self, storage: Storage) -> None:
        await crashed(storage)
        lease = await claim_one(storage)
        await storage.revise([CancelJob(lease.ref, "enough")])
        asked = await record(storage, lease.ref)
        await apply(storage, ALICE, put_back(lease))
        job = await record(storage, lease.ref)

        assert asked.quarantined
        assert (job.state, job.quarantined) == (State.CANCELLED, False)

    async def test_a_late_settlement_changes_no_quarantine(self, storage: Storage) -> None:
        lease = await crashed(storage)
        marked = await settle(storage, ALICE, lease)
        again = await claim_one(storage, BOB)
        await settle(storage, BOB, again, RAISED)

        assert marked == "lost"
        assert again.job.quarantined
        assert await apply(storage, ALICE, put_back(lease)) == "lost"
        assert not (await record(storage, lease.ref)).quarantined

    # ── put-backs by workers that failed ──────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("outcome", [FAILED_WORKER, Interrupted("shutdown", begun=True, stopping=False)])
    async def test_every_second_counted_put_back_in_a_row_is_charged_as_a_stall(
        self, storage: Storage, outcome: Interrupted
    ) -> None:
        lease = await start(storage, new_job(stall=StallTerms(max_stalls=1)))
        used: list[bool] = []
        for number in range(4):
            assert await settle(storage, ALICE, lease, outcome) == "done"
            used.append((await record(storage, lease.ref)).put_back_used)
            if number < 3:
                lease = await claim_one(storage)
        detail = await look(storage, lease.ref)

        assert used == [True, False, True, False]
        assert (detail.job.state, detail.job.reason) == (State.FAILED, "crashed")
        assert (detail.job.stalls, detail.job.releases, detail.job.starts) == (2, 2, 4)
        assert [(run.ended, run.reason) for run in detail.runs] == [
            ("released", outcome.reason),
            ("stalled", "process_died"),
        ] * 2
        assert [event.reason for event in await events_of(storage, JobReleased)] == [outcome.reason] * 2
        assert [
            (event.count, event.action, event.reason, event.owner) for event in await events_of(storage, JobStalled)
        ] == [
            (1, "recovered", "process_died", ALICE.id),
            (2, "failed", "process_died", ALICE.id),
        ]

    @pytest.mark.parametrize(
        "outcome",
        [
            Interrupted("worker_failed"),
            Interrupted("shutdown", begun=True),
            Interrupted("shutdown", stopping=False),
            Interrupted("prefetch", begun=True, stopping=False),
            Interrupted("unreachable", begun=True, stopping=False),
            Unknown(),
            Unknown("newer_payload"),
            Snoozed(0),
            Stalled("process_died", blameless=True),
        ],
        ids=repr,
    )
    async def test_an_uncounted_put_back_is_free_and_leaves_the_free_one_unused(
        self, storage: Storage, outcome: Outcome
    ) -> None:
        lease = await start(storage)
        for _ in range(3):
            await settle(storage, ALICE, lease, outcome)
            lease = await claim_one(storage)
        unused = lease.job.put_back_used
        await settle(storage, ALICE, lease, FAILED_WORKER)
        for _ in range(3):
            await settle(storage, ALICE, await claim_one(storage), outcome)
        job = await record(storage, lease.ref)

        assert not unused
        assert (job.state, job.stalls, job.failures, job.releases) == (State.WAITING, 0, 0, 7)
        assert job.put_back_used

    @pytest.mark.parametrize("outcome", [RAISED, Stalled("no_progress"), Stalled("process_died")], ids=repr)
    async def test_a_charge_between_two_counted_put_backs_makes_the_second_free(
        self, storage: Storage, clock: ManualClock, outcome: Outcome
    ) -> None:
        await settle(storage, ALICE, await start(storage), FAILED_WORKER)
        await settle(storage, ALICE, await claim_one(storage), outcome)
        clock.advance(1)
        charged = await claim_one(storage)
        await settle(storage, ALICE, charged, FAILED_WORKER)
        job = await record(storage, charged.ref)

        assert not charged.job.put_back_used
        assert (job.state, job.releases, job.put_back_used) == (State.WAITING, 2, True)
        assert job.failures + job.stalls == 1

    async def test_a_used_put_back_stays_recorded_through_renewal_and_reclaim(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await settle(storage, ALICE, await start(storage), structs.replace(FAILED_WORKER, delay=5 * SECOND))
        delayed = await record(storage, new_job().ref)
        clock.advance(5)
        lease = await claim_one(storage)
        await beat(storage, ALICE, [lease], sign=True)
        beaten = await record(storage, lease.ref)
        [taken] = (await storage.reclaim(ALICE.id, REAPER)).stalled

        assert (delayed.state, delayed.put_back_used) == (State.DELAYED, True)
        assert (await storage.find(Query())).jobs[0].put_back_used
        assert lease.job.put_back_used
        assert beaten.put_back_used
        assert taken.lease.job.put_back_used

    async def test_a_terminal_job_has_its_free_put_back_again(self, storage: Storage, clock: ManualClock) -> None:
        names = ("cancelled", "expired", "failed", "completed")
        refs = [new_job(queue=name).ref for name in names]
        for name in names:
            lease = await start(storage, new_job(queue=name, ttl=9 * SECOND if name == "expired" else None))
            await settle(storage, ALICE, lease, FAILED_WORKER)
        used = [(await record(storage, ref)).put_back_used for ref in refs]
        await storage.revise([CancelJob(refs[0], "enough")])
        for name, outcome in (("failed", Rejected(ERROR)), ("completed", RETURNED)):
            await settle(storage, ALICE, await claim_one(storage, queue=name), outcome)
        clock.advance(9)
        await sweep_all(storage)
        over = [await record(storage, ref) for ref in refs]
        await storage.revise([RedriveJob(ref) for ref in refs[:3]])
        again = [await record(storage, ref) for ref in refs[:3]]

        assert used == [True] * 4
        assert [job.state for job in over] == [State.CANCELLED, State.EXPIRED, State.FAILED, State.COMPLETED]
        assert not any(job.put_back_used for job in (*over, *again))

    async def test_an_error_about_a_shortage_is_put_back_once_uncharged(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        shortage = structs.replace(RAISED, shortage=True)
        lease = await start(storage)
        await settle(storage, ALICE, lease, shortage)
        first = await record(storage, lease.ref)
        clock.advance(1)
        await settle(storage, ALICE, await claim_one(storage), shortage)
        second = await look(storage, lease.ref)

        assert (first.state, first.failures, first.releases, first.error) == (State.DELAYED, 0, 1, ERROR)
        assert (second.job.failures, second.job.releases, second.job.put_back_used) == (1, 1, False)
        assert [(run.ended, run.reason) for run in second.runs] == [
            ("released", "worker_failed"),
            ("raised", ERROR.type),
        ]

    # ── where a handler was ───────────────────────────────────────────────────────────────────────────────────────

    async def test_a_run_keeps_its_last_trace_until_a_beat_brings_another(self, storage: Storage) -> None:
        lease = await start(storage)
        before = await trace(storage, lease.ref)
        # The first renewal, a usual one, and one that carries more than the trace.
        seen = [
            await traced(storage, LeaseRenewal(lease.ref, lease.fence, trace=HERE)),
            await traced(storage, LeaseRenewal(lease.ref, lease.fence)),
            await traced(storage, LeaseRenewal(lease.ref, lease.fence, trace=THERE)),
            await traced(
                storage, LeaseRenewal(lease.ref, lease.fence, progress=0.5, log=(NewLogLine("info", "so", {}),))
            ),
            await traced(storage, LeaseRenewal(lease.ref, lease.fence, sign=True, progress=0.7, trace="")),
        ]

        assert before is None
        assert seen == [HERE, HERE, THERE, THERE, ""]

    async def test_a_trace_changes_nothing_else_of_its_beat(self, storage: Storage, clock: ManualClock) -> None:
        first, second = await start(storage, new_job("first")), await start(storage, new_job("second"))
        for _ in range(2):
            clock.advance(5)
            with_trace, without_trace = (
                LeaseRenewal(first.ref, first.fence, trace=HERE),
                LeaseRenewal(second.ref, second.fence),
            )

            assert await storage.renew(RenewRequest(ALICE, (with_trace, without_trace))) == RenewResult()

            jobs = [await record(storage, lease.ref) for lease in (first, second)]
            assert {(job.heard_at, job.lease_until) for job in jobs} == {(clock.now(), clock.now() + 20 * SECOND)}

        assert [await trace(storage, lease.ref) for lease in (first, second)] == [HERE, None]

    async def test_a_renewal_that_extends_nothing_still_stores_its_trace(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage)
        clock.advance(5)
        seen = await traced(storage, LeaseRenewal(lease.ref, lease.fence, extend=False, trace=HERE))

        assert seen == HERE
        assert await record(storage, lease.ref) == lease.job

    async def test_a_refused_beat_stores_no_trace(self, storage: Storage) -> None:
        old = await crashed(storage)
        new = await claim_one(storage, BOB)
        late = LeaseRenewal(old.ref, old.fence, trace=HERE)
        for owner in (ALICE, BOB):
            await storage.renew(RenewRequest(owner, (late,)))
        await storage.renew(RenewRequest(ALICE, (LeaseRenewal(new.ref, new.fence, trace=HERE),)))
        untouched = await trace(storage, new.ref)
        await storage.renew(RenewRequest(BOB, (LeaseRenewal(new.ref, new.fence, trace=THERE), late)))

        assert untouched is None
        assert await trace(storage, new.ref) == THERE

    @pytest.mark.parametrize("died", [True, False])
    async def test_a_reclaim_returns_the_trace_and_its_settlement_deletes_it(
        self, storage: Storage, clock: ManualClock, died: bool
    ) -> None:
        lease = await start(storage)
        await storage.renew(RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence, trace=HERE),)))
        [taken] = (await storage.reclaim(ALICE.id, REAPER)).stalled if died else await watch(storage, clock, 26)
        detail = await look(storage, lease.ref)
        late = await storage.renew(RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence, trace=THERE),)))
        still = await trace(storage, lease.ref)
        settlement = stalled(taken)
        ended = structs.replace(settlement, ended=structs.replace(settlement.ended, detail=f"was at {HERE}"))
        await apply(storage, REAPER, ended)
        over = (await look(storage, lease.ref)).runs
        await claim_one(storage, BOB)
        runs = (await look(storage, lease.ref)).runs

        assert detail.job.fence == taken.lease.fence
        assert (detail.runs[-1].trace, detail.runs[-1].end) == (HERE, None)
        assert late.lost == ((lease.ref, lease.fence),)
        assert still == HERE
        assert [(run.trace, run.detail) for run in over] == [(None, f"was at {HERE}")]
        assert [run.trace for run in runs] == [None, None]

    @pytest.mark.parametrize("outcome", [RETURNED, RAISED, Rejected(ERROR), Interrupted("shutdown")])
    async def test_a_settlement_deletes_the_trace_of_its_run(self, storage: Storage, outcome: Outcome) -> None:
        lease = await start(storage)

        assert await traced(storage, LeaseRenewal(lease.ref, lease.fence, trace=HERE)) == HERE

        await settle(storage, ALICE, lease, outcome)

        assert [run.trace for run in (await look(storage, lease.ref)).runs] == [None]

    async def test_a_trace_outlasts_suspicion_and_a_cancel_request(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await storage.renew(RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence, trace=HERE),)))
        await storage.revise([CancelJob(lease.ref)])
        await watch(storage, clock, 21)
        suspected = await look(storage, lease.ref)
        await storage.renew(RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence, trace=THERE),)))

        assert suspected.job.suspect_until is not None
        assert suspected.runs[-1].trace == HERE
        assert await trace(storage, lease.ref) == THERE

    async def test_traces_of_the_maximum_length_are_kept_in_full(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(60))
        leases = await claim(storage)
        texts = [f"{number:02}" + "☃" * (TRACE_KEPT - 2) for number in range(60)]
        for _ in range(2):
            renewals = (
                LeaseRenewal(lease.ref, lease.fence, trace=text) for lease, text in zip(leases, texts, strict=True)
            )

            assert await storage.renew(RenewRequest(ALICE, tuple(renewals), WorkerInfo(active=60))) == RenewResult()

        details = await storage.get([lease.ref for lease in leases])
        assert [detail and detail.runs[-1].trace for detail in details] == texts
        assert (await worker(storage)).active == 60

    # ── how a worker is ───────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_beat_stores_the_state_of_its_worker(self, storage: Storage) -> None:
        await storage.renew(
            RenewRequest(ALICE, worker=WorkerInfo(concurrency=10, lag=250_000, memory=9 << 30, quiet=True))
        )
        busy = await worker(storage)
        await storage.renew(RenewRequest(ALICE, worker=WorkerInfo(unstopped=(Ref("default", "1"), Ref("other", "é")))))
        held_up = await worker(storage)
        await storage.renew(RenewRequest(ALICE, worker=WorkerInfo(concurrency=10)))
        idle = await worker(storage)

        assert (busy.lag, busy.memory, busy.quiet) == (250_000, 9 << 30, True)
        assert (idle.lag, idle.memory, idle.quiet) == (0, 0, False)
        assert held_up.unstopped == (Ref("default", "1"), Ref("other", "é"))
        assert idle.unstopped == ()

    async def test_an_external_renewal_does_not_report_the_worker_as_alive(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage)
        info = WorkerInfo(("default",), 10, 1, turned_ago=100_000, lag=3, memory=4)
        await storage.renew(RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence),), info))
        begun = await worker(storage)
        hung = WorkerHung(owner=ALICE.id, blocked_for=5.0, stack=HERE)
        for _ in range(6):
            clock.advance(5)
            pulse = await storage.renew(RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence, trace=HERE),)))

            assert pulse == RenewResult()

        await storage.renew(RenewRequest(ALICE, events=(hung,)))
        hung_events = await events_of(storage, WorkerHung)

        assert await worker(storage) == structs.replace(begun, seen_ago=30 * SECOND, turned_ago=30_100_000)
        assert (await record(storage, lease.ref)).heard_at == clock.now()
        assert [(event.owner, event.blocked_for, event.stack) for event in hung_events] == [(ALICE.id, 5.0, HERE)]

    async def test_an_external_renewal_creates_no_unknown_worker(self, storage: Storage) -> None:
        lease = await start(storage)
        await storage.renew(RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence),)))

        assert (await storage.survey()).workers == ()

    async def test_each_beat_returns_the_orders_of_its_worker_until_it_leaves(self, storage: Storage) -> None:
        target = Target("worker", ALICE.id)
        await storage.renew(RenewRequest(ALICE, worker=WorkerInfo()))
        before = await orders(storage)
        await storage.tune(target, Settings(quiet=True, stop=True), by="ops")
        repeated = [await orders(storage) for _ in range(3)]
        unowned = await storage.renew(RenewRequest(ALICE))
        await storage.tune(target, Settings(quiet=False), by="ops")
        fewer = await orders(storage)
        last = await storage.renew(RenewRequest(ALICE, last=True))

        assert before == ()
        assert [set(item) for item in repeated] == [{"quiet", "stop"}] * 3
        # The keeper of a worker that hangs receives the orders, too.
        assert set(unowned.orders or ()) == {"quiet", "stop"}
        assert fewer == last.orders == ("stop",)
        assert await orders(storage) == ()

    async def test_the_orders_of_a_lost_worker_are_deleted_with_its_record(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.renew(RenewRequest(ALICE, worker=WorkerInfo()))
        await storage.tune(Target("worker", ALICE.id), Settings(stop=True))
        await storage.reclaim(ALICE.id, REAPER)
        clock.advance(WORKER_KEPT / SECOND - 1)
        await storage.sweep(bid())
        kept = await storage.tune(Target("worker", ALICE.id), Settings())
        shown = await worker(storage)
        clock.advance(1)
        await storage.sweep(bid())

        assert kept == Settings(stop=True)
        assert shown.died
        assert (await storage.survey()).workers == ()
        assert await orders(storage) == ()


async def crashed(storage: Storage, job: NewJob | None = None) -> Lease:
    """Start a job, let its worker die, and let a reaper put the job back. Return the lost lease."""
    lease = await start(storage, job)
    for taken in (await storage.reclaim(ALICE.id, REAPER)).stalled:
        assert await apply(storage, REAPER, stalled(taken)) == "done"
    marked = await record(storage, lease.ref)
    assert (marked.state, marked.quarantined) == (State.WAITING, True)
    return lease


def put_back(lease: Lease, *, after: int = 0) -> Settlement:
    """Return a settlement that puts a run back into quarantine."""
    decision = PutBack(charge="stalls", after=after, reason="process_died", quarantine=True)
    return structs.replace(settled(lease), decision=decision, ended=RunEnd("stalled"), events=())


async def traced(storage: Storage, renewal: LeaseRenewal) -> str | None:
    """Renew a lease of Alice's and return the trace of its handler after that."""
    assert await storage.renew(RenewRequest(ALICE, (renewal,))) == RenewResult()
    return await trace(storage, renewal.ref)


async def trace(storage: Storage, ref: Ref) -> str | None:
    """Return the trace of the handler of a job's latest run."""
    return (await look(storage, ref)).runs[-1].trace


async def worker(storage: Storage) -> WorkerSurvey:
    """Return the survey of the only worker."""
    [only] = (await storage.survey()).workers
    return only


async def orders(storage: Storage) -> tuple[str, ...]:
    """Return the orders that Alice receives with a renewal."""
    given = (await storage.renew(RenewRequest(ALICE, worker=WorkerInfo()))).orders
    assert given is not None
    return given
