"""Conformance tests of `renew`: a renewal extends each lease that was not taken, and reports only exceptions."""

from typing import Literal

import pytest
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.events import (
    JobProgressed,
    JobStalled,
    RunFenced,
    StorageRewound,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from tenure.core.job import RecordedError, StallTerms
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.outcome import Interrupted, Rejected
from tenure.core.partition import PartitionState, compare
from tenure.storage.protocol import (
    LOG_LINES_KEPT,
    RENEW_LIMIT,
    WORKER_KEPT,
    CancelJob,
    CancelRequest,
    DeleteJob,
    LeaseRenewal,
    NewLogLine,
    Query,
    RedriveJob,
    RenewRequest,
    RenewResult,
    Settings,
    Storage,
    Target,
    WorkerInfo,
)
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    LEASE,
    QUEUE,
    RAISED,
    Conformance,
    all_events,
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
    start,
    watch,
)


class RenewConformance(Conformance):
    """A renewal extends every lease it names, unless the lease was taken."""

    @pytest.mark.statement(17)
    async def test_a_beat_gives_a_lease_its_full_length_again(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        clock.advance(5)

        assert await beat(storage, ALICE, [lease]) == RenewResult()

        job = await record(storage, lease.ref)
        assert (job.lease_until, job.heard_at) == (clock.now() + LEASE, clock.now())
        assert (job.fence, job.owner, job.starts) == (lease.fence, ALICE.id, 1)

    async def test_a_beat_extends_by_the_length_of_the_jobs_own_lease(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage, new_job(stall=StallTerms(lease=90 * SECOND)))
        clock.advance(30)
        await beat(storage, ALICE, [lease])

        assert (await record(storage, lease.ref)).lease_until == clock.now() + 90 * SECOND

    async def test_a_beat_renews_only_its_own(self, storage: Storage, clock: ManualClock) -> None:
        mine = await start(storage, new_job("mine"))
        other = await start(storage, new_job("other"))
        foreign = await start(storage, new_job("foreign"), BOB)
        clock.advance(5)
        await beat(storage, ALICE, [mine])

        assert (await record(storage, mine.ref)).lease_until == clock.now() + LEASE
        assert await record(storage, other.ref) == other.job
        assert await record(storage, foreign.ref) == foreign.job

    @pytest.mark.fault("W-T7")
    @pytest.mark.statement(85)
    async def test_one_beat_renews_all_that_a_worker_holds(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *new_jobs(RENEW_LIMIT))
        leases = [lease for _ in range(4) for lease in await claim(storage)]

        assert len(leases) == RENEW_LIMIT

        clock.advance(19)
        pulse = await beat(storage, ALICE, leases)
        reclaimed = await watch(storage, clock, 20)

        assert pulse == RenewResult()
        assert reclaimed == []

    @pytest.mark.statement(18)
    async def test_a_lapsed_lease_that_was_not_reclaimed_is_renewed(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        clock.advance(3600)

        assert await beat(storage, ALICE, [lease]) == RenewResult()
        assert (await record(storage, lease.ref)).lease_until == clock.now() + LEASE

    @pytest.mark.statement(17, 18)
    async def test_a_beat_in_the_grace_ends_the_suspicion(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await watch(storage, clock, 22)

        assert (await record(storage, lease.ref)).suspect_until is not None
        assert await beat(storage, ALICE, [lease]) == RenewResult()
        assert (await record(storage, lease.ref)).suspect_until is None
        assert await watch(storage, clock, 18) == []

    @pytest.mark.statement(18)
    async def test_an_old_fence_renews_nothing(self, storage: Storage, clock: ManualClock) -> None:
        old = await start(storage)
        await recover(storage, clock)
        new = await claim_one(storage, ALICE)
        clock.advance(1)

        assert await beat(storage, ALICE, [old]) == RenewResult(lost=((old.ref, old.fence),))
        assert await record(storage, old.ref) == new.job

        refused = await events_of(storage, RunFenced)
        assert [(event.fence, event.current_fence, event.owner, event.write) for event in refused] == [
            (old.fence, new.fence, ALICE.id, "renew")
        ]

    @pytest.mark.statement(18)
    async def test_a_foreign_owner_renews_nothing(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        clock.advance(1)

        assert await beat(storage, BOB, [lease]) == RenewResult(lost=((lease.ref, lease.fence),))
        assert await record(storage, lease.ref) == lease.job

    @pytest.mark.statement(18)
    async def test_a_late_beat_leaves_the_reapers_lease_alone(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        taken = await watch(storage, clock, 26)
        before = await record(storage, lease.ref)

        assert await beat(storage, ALICE, [lease]) == RenewResult(lost=((lease.ref, lease.fence),))
        assert await record(storage, lease.ref) == before
        assert taken[0].lease.fence == before.fence

    async def test_a_beat_that_crosses_its_own_settlement_records_no_fenced_run(self, storage: Storage) -> None:
        lease = await start(storage)
        await settle(storage, ALICE, lease)

        assert await beat(storage, ALICE, [lease]) == RenewResult(lost=((lease.ref, lease.fence),))
        assert await events_of(storage, RunFenced) == []
        assert (await record(storage, lease.ref)).state is State.COMPLETED

    async def test_a_beat_for_an_unknown_job_is_lost(self, storage: Storage) -> None:
        lease = await start(storage)
        await settle(storage, ALICE, lease)
        await storage.revise([DeleteJob(lease.ref)])

        assert await beat(storage, ALICE, [lease]) == RenewResult(lost=((lease.ref, lease.fence),))
        assert await events_of(storage, RunFenced) == []

    async def test_a_renewal_lists_only_exceptions(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(4))
        well, over, asked, fine = await claim(storage)
        await settle(storage, ALICE, over)
        await storage.revise([CancelJob(asked.ref, "enough")])
        pulse = await beat(storage, ALICE, [well, over, asked, fine])

        assert pulse.lost == ((over.ref, over.fence),)
        assert pulse.cancelling == (CancelRequest(asked.ref, asked.fence, "enough"),)
        assert pulse.orders == ()

    async def test_each_beat_returns_a_cancel_request_and_extends_the_lease(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage)
        await storage.revise([CancelJob(lease.ref)])
        for _ in range(2):
            clock.advance(5)
            pulse = await beat(storage, ALICE, [lease])

            assert pulse.cancelling == (CancelRequest(lease.ref, lease.fence),)
            assert (await record(storage, lease.ref)).lease_until == clock.now() + LEASE

    @pytest.mark.statement(84)
    async def test_three_beats_may_fail(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        for _ in range(3):
            assert await watch(storage, clock, 19) == []
            assert await beat(storage, ALICE, [lease]) == RenewResult()

    async def test_no_beat_extends_a_lease_past_the_limit_of_its_run(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage, new_job(timeout=10 * SECOND))
        end = clock.now() + 10 * SECOND + LEASE // 4
        reclaimed = await watch(storage, clock, 15, beating=[lease])

        assert (await record(storage, lease.ref)).lease_until == end
        assert reclaimed == []

        reclaimed = await watch(storage, clock, 6, beating=[lease])

        assert [taken.reason for taken in reclaimed] == ["lease_expired"]

    @pytest.mark.parametrize("limit", ["timeout", "heartbeat_timeout"])
    async def test_a_beat_for_an_exclusive_run_passes_its_limits(
        self, storage: Storage, clock: ManualClock, limit: Literal["timeout", "heartbeat_timeout"]
    ) -> None:
        job = new_job(timeout=10 * SECOND) if limit == "timeout" else new_job(heartbeat_timeout=10 * SECOND)
        lease = await start(storage, job)
        assert await watch(storage, clock, 60, beating=[lease], exclusive=True) == []
        kept = await record(storage, lease.ref)

        assert (kept.lease_until, kept.suspect_until) == (clock.now() + LEASE, None)

        clock.advance(LEASE / SECOND + 1)
        assert await watch(storage, clock, 2) == []
        await beat(storage, ALICE, [lease], exclusive=True)

        assert (await record(storage, lease.ref)).suspect_until is None

        # When its worker stops renewing, the job is recovered like any other.
        assert [taken.reason for taken in await watch(storage, clock, 30)] == ["lease_expired"]

    async def test_a_beat_that_is_not_exclusive_bounds_a_lease_again(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage, new_job(heartbeat_timeout=10 * SECOND))
        clock.advance(8)
        await beat(storage, ALICE, [lease], exclusive=True)
        assert (await record(storage, lease.ref)).lease_until == clock.now() + LEASE
        await beat(storage, ALICE, [lease])

        assert (await record(storage, lease.ref)).lease_until == clock.now() + 2 * SECOND

    async def test_silence_on_the_progress_clock_ends_a_run_that_beats(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage, new_job(heartbeat_timeout=12 * SECOND))
        reclaimed = await watch(storage, clock, 11, beating=[lease])

        assert reclaimed == []
        assert (await record(storage, lease.ref)).lease_until == clock.now() + 1 * SECOND

        reclaimed = await watch(storage, clock, 8, beating=[lease])

        assert [taken.reason for taken in reclaimed] == ["no_progress"]

    async def test_a_hung_handler_is_recovered_with_its_reason(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job(heartbeat_timeout=5 * SECOND))
        await watch(storage, clock, 5, beating=[lease])

        assert (await record(storage, lease.ref)).state is State.ACTIVE

        reclaimed = await recover(storage, clock)

        assert [taken.reason for taken in reclaimed] == ["no_progress"]
        assert [event.reason for event in await events_of(storage, JobStalled)] == ["no_progress"]
        assert (await look(storage, lease.ref)).runs[0].reason == "no_progress"

    @pytest.mark.statement(28)
    async def test_a_sign_moves_the_progress_clock(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job(heartbeat_timeout=12 * SECOND))
        reclaimed = await watch(storage, clock, 60, beating=[lease], sign=True)

        assert reclaimed == []
        job = await record(storage, lease.ref)
        assert job.progress_until == job.lease_until == clock.now() + 12 * SECOND

    async def test_a_beat_without_a_sign_does_not_clear_a_hung_run(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job(heartbeat_timeout=5 * SECOND))
        await watch(storage, clock, 6)
        suspected = (await record(storage, lease.ref)).suspect_until
        await beat(storage, ALICE, [lease])

        assert suspected is not None
        assert (await record(storage, lease.ref)).suspect_until == suspected

        await beat(storage, ALICE, [lease], sign=True)

        assert (await record(storage, lease.ref)).suspect_until is None

    async def test_without_a_progress_clock_a_sign_has_no_effect_of_its_own(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage)
        clock.advance(5)
        await beat(storage, ALICE, [lease], sign=True)
        job = await record(storage, lease.ref)

        assert (job.lease_until, job.progress_until) == (clock.now() + LEASE, None)

    @pytest.mark.statement(89)
    async def test_a_beat_does_not_shorten_the_start_grace(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job(stall=StallTerms(start_grace=60 * SECOND)))
        begun = clock.now()
        clock.advance(5)
        await beat(storage, ALICE, [lease])

        assert (await record(storage, lease.ref)).lease_until == begun + 60 * SECOND

        clock.advance(45)
        await beat(storage, ALICE, [lease])

        assert (await record(storage, lease.ref)).lease_until == clock.now() + LEASE

    async def test_progress_is_kept_until_the_next_report(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        clock.advance(5)
        await storage.renew(
            RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence, sign=True, progress=0.25, note="größe: ¼"),))
        )
        job = await record(storage, lease.ref)

        assert (job.progress, job.progress_note) == (0.25, "größe: ¼")
        assert job.lease_until == clock.now() + LEASE

        await beat(storage, ALICE, [lease])
        job = await record(storage, lease.ref)

        assert (job.progress, job.progress_note) == (0.25, "größe: ¼")

        await storage.renew(RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence, progress=0.5),)))
        job = await record(storage, lease.ref)

        assert (job.progress, job.progress_note) == (0.5, None)

    async def test_progress_may_be_an_object(self, storage: Storage) -> None:
        await storage.tune(Target("queue", QUEUE), Settings(record=("progressed",)))
        lease = await start(storage)
        for text, note in (('{"page":3,"of":[],"who":{}}', "größe"), (None, None)):
            await storage.renew(RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence, progress=text, note=note),)))
            job = await record(storage, lease.ref)

            assert (job.progress, job.progress_note) == ({"page": 3, "of": [], "who": {}}, "größe")

        (found,) = (await storage.find(Query())).jobs
        (event,) = [event for event in (await storage.events()).events if isinstance(event, JobProgressed)]

        assert found.progress == event.value == {"page": 3, "of": [], "who": {}}
        assert event.note == "größe"

        await storage.renew(RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence, progress=0.5),)))
        job = await record(storage, lease.ref)

        assert (job.progress, job.progress_note) == (0.5, None)

    @pytest.mark.parametrize("size", [10, 65_536])
    async def test_a_jobs_data_are_found_by_its_next_run(self, storage: Storage, clock: ManualClock, size: int) -> None:
        data = b'{"at":"' + b"x" * (size - 9) + b'"}'
        lease = await start(storage)

        assert (lease.job.data, lease.job.data_number) == (None, 0)

        await storage.renew(RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence, data=data, data_number=1),)))
        await beat(storage, ALICE, [lease])
        kept = await record(storage, lease.ref)
        await settle(storage, ALICE, lease, RAISED)
        clock.advance(86_400)
        lease = await claim_one(storage)

        assert (kept.data, kept.data_number) == (data, 1)
        assert (lease.job.data, lease.job.data_number) == (data, 1)

        await settle(storage, ALICE, lease, Interrupted("shutdown"))
        clock.advance(86_400)
        lease = await claim_one(storage, BOB)
        (found,) = (await storage.find(Query())).jobs

        assert (lease.job.data, found.data) == (data, data)

        await settle(storage, BOB, lease)
        ended = await record(storage, lease.ref)

        assert (ended.state, ended.data) == (State.COMPLETED, data)

    async def test_only_the_current_run_changes_the_data(self, storage: Storage, clock: ManualClock) -> None:
        zombie = await start(storage)
        await storage.renew(
            RenewRequest(ALICE, (LeaseRenewal(zombie.ref, zombie.fence, data=b'{"run":1}', data_number=1),))
        )
        await recover(storage, clock)
        lease = await claim_one(storage, BOB)

        assert lease.job.data == b'{"run":1}'

        for owner, fence, number, body, expected in (
            (ALICE, zombie.fence, 9, b'{"late":1}', b'{"run":1}'),
            (BOB, lease.fence, 2, b'{"n":2}', b'{"n":2}'),
            (ALICE, zombie.fence, 9, b'{"late":1}', b'{"n":2}'),
            (BOB, lease.fence, 2, b'{"twice":2}', b'{"n":2}'),
            (BOB, lease.fence, 4, b'{"n":4}', b'{"n":4}'),
            (BOB, lease.fence, 3, b'{"n":3}', b'{"n":4}'),
        ):
            renewal = LeaseRenewal(lease.ref, fence, data=body, data_number=number)
            await storage.renew(RenewRequest(owner, (renewal,)))

            assert (await record(storage, lease.ref)).data == expected

    async def test_a_redrive_keeps_the_data_and_a_deletion_does_not(self, storage: Storage) -> None:
        lease = await start(storage)
        await storage.renew(
            RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence, data=b'{"a":1}', data_number=1),))
        )
        await settle(storage, ALICE, lease, Rejected(RecordedError("Reject", "no")))
        await storage.revise([RedriveJob(lease.ref)])
        lease = await claim_one(storage)

        assert (lease.job.data, lease.job.progress) == (b'{"a":1}', None)

        await settle(storage, ALICE, lease)
        await storage.revise([DeleteJob(lease.ref)])
        again = await start(storage, new_job(lease.ref.id))

        assert (again.job.data, again.job.data_number) == (None, 0)

    async def test_log_lines_are_kept_with_their_run_and_time(self, storage: Storage, clock: ManualClock) -> None:
        first = await start(storage)
        clock.advance(3)
        lines = (
            NewLogLine("info", "began", {"part": "1"}, ago=2_500_000),
            NewLogLine("warning", "größer\nals 'gedacht'", {}, ago=1),
        )
        now = clock.now()
        await storage.renew(RenewRequest(ALICE, (LeaseRenewal(first.ref, first.fence, log=lines),)))
        await settle(storage, ALICE, first, Interrupted("shutdown"))
        second = await claim_one(storage)
        await storage.renew(
            RenewRequest(ALICE, (LeaseRenewal(second.ref, second.fence, log=(NewLogLine("error", "again", {}),)),))
        )
        log = (await look(storage, first.ref)).log

        assert [(line.at, line.run, line.level, line.message) for line in log] == [
            (now - 2_500_000, 1, "info", "began"),
            (now - 1, 1, "warning", "größer\nals 'gedacht'"),
            (now, 2, "error", "again"),
        ]
        assert [line.fields for line in log] == [{"part": "1"}, {}, {}]

    async def test_a_log_line_that_is_sent_twice_is_kept_once(self, storage: Storage) -> None:
        def lines(*numbers: int) -> tuple[NewLogLine, ...]:
            return tuple(NewLogLine("info", f"line {number}", {}, number=number) for number in numbers)

        first = await start(storage)
        for numbers in ((1, 2), (1, 2), (1, 2, 3), (2,), (5,)):
            await storage.renew(RenewRequest(ALICE, (LeaseRenewal(first.ref, first.fence, log=lines(*numbers)),)))
        await settle(storage, ALICE, first, Interrupted("shutdown"))
        second = await claim_one(storage)
        for _ in range(2):
            await storage.renew(RenewRequest(ALICE, (LeaseRenewal(second.ref, second.fence, log=lines(1)),)))
        log = (await look(storage, first.ref)).log

        # Line 4 was dropped before it was sent. Another run counts from 1.
        assert [(line.run, line.message) for line in log] == [
            *((1, f"line {number}") for number in (1, 2, 3, 5)),
            (2, "line 1"),
        ]

    async def test_the_log_of_a_job_is_bounded(self, storage: Storage) -> None:
        lease = await start(storage)
        for part in range(3):
            lines = tuple(NewLogLine("info", f"line {part * 400 + number}", {}) for number in range(400))
            await storage.renew(RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence, log=lines),)))
        detail = await look(storage, lease.ref)

        assert [line.message for line in detail.log] == [f"line {number}" for number in range(200, 1200)]
        assert (len(detail.log), detail.log_dropped) == (LOG_LINES_KEPT, 200)

    async def test_a_log_counts_the_lines_that_were_not_sent(self, storage: Storage) -> None:
        first = await start(storage)

        def beat(lease: Lease, *numbers: int) -> RenewRequest:
            log = tuple(NewLogLine("info", f"line {number}", {}, number=number) for number in numbers)
            return RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence, log=log),))

        # Lines 1 to 5 of the first run and line 1 of the second were never sent. Lines 7 and 8 are sent twice.
        await storage.renew(beat(first, 6, 7, 8))
        await storage.renew(beat(first, 7, 8, 9))
        await settle(storage, ALICE, first, Interrupted("shutdown"))
        await storage.renew(beat(await claim_one(storage), 2, 3))
        detail = await look(storage, first.ref)

        assert [line.message for line in detail.log] == [f"line {number}" for number in (6, 7, 8, 9, 2, 3)]
        assert detail.log_dropped == 6

    @pytest.mark.fault("W-T18")
    async def test_a_fenced_run_records_no_logs_and_no_progress(self, storage: Storage, clock: ManualClock) -> None:
        old = await start(storage)
        await recover(storage, clock)
        await claim_one(storage, BOB)
        late = LeaseRenewal(old.ref, old.fence, sign=True, progress=0.9, log=(NewLogLine("info", "late", {}),))
        await storage.renew(RenewRequest(ALICE, (late,)))
        detail = await look(storage, old.ref)

        assert (detail.log, detail.job.progress) == ((), None)

    async def test_a_beat_shows_its_worker(self, storage: Storage, clock: ManualClock) -> None:
        begun = clock.now()
        info = WorkerInfo(("default", "mail"), concurrency=10, active=3, turned_ago=200_000)
        await storage.renew(RenewRequest(ALICE, worker=info))
        clock.advance(5)
        await storage.renew(RenewRequest(ALICE, worker=WorkerInfo(("default", "mail"), 10, 4, 100_000, stopping=True)))
        await storage.renew(RenewRequest(BOB, worker=WorkerInfo(("mail",), 2)))
        clock.advance(2)
        workers = {worker.owner: worker for worker in (await storage.survey()).workers}

        assert set(workers) == {ALICE, BOB}
        alice = workers[ALICE]
        assert (alice.queues, alice.concurrency, alice.active) == (("default", "mail"), 10, 4)
        assert (alice.started, alice.seen_ago, alice.stopping) == (begun, 2 * SECOND, True)
        assert alice.turned_ago == 2_100_000
        assert (workers[BOB].started, workers[BOB].turned_ago) == (begun + 5 * SECOND, 2 * SECOND)

    async def test_the_last_beat_removes_its_worker(self, storage: Storage) -> None:
        await storage.renew(RenewRequest(ALICE, worker=WorkerInfo(("default",), 10)))
        await storage.renew(RenewRequest(BOB, worker=WorkerInfo(("default",), 10)))
        await storage.renew(RenewRequest(ALICE, worker=WorkerInfo(("default",), 10, stopping=True), last=True))

        assert [worker.owner for worker in (await storage.survey()).workers] == [BOB]

    async def test_events_sent_with_a_beat_are_recorded(self, storage: Storage, clock: ManualClock) -> None:
        began = WorkerStarted(owner=ALICE.id, host="host-1", pid=101, queues=("default",), concurrency=10)
        ended = WorkerStopped(owner=ALICE.id, released=2)
        await storage.renew(RenewRequest(ALICE, events=(began,)))
        clock.advance(1)
        await storage.renew(RenewRequest(ALICE, events=(ended,), last=True))
        first, second = await all_events(storage)

        assert isinstance(first, WorkerStarted)
        assert (first.owner, first.queues, first.concurrency) == (ALICE.id, ("default",), 10)
        assert isinstance(second, WorkerStopped)
        assert second.released == 2

    async def test_an_event_that_is_sent_twice_is_recorded_once(self, storage: Storage) -> None:
        began = WorkerStarted(owner=ALICE.id, host="host-1", pid=101, queues=("default",), concurrency=10)
        stopping, ended = WorkerStopping(owner=ALICE.id, reason="asked"), WorkerStopped(owner=ALICE.id, released=2)
        info = WorkerInfo(("default",), 10)
        for _ in range(2):
            await storage.renew(RenewRequest(ALICE, worker=info, events=(began,), first_event=1))
        await storage.renew(RenewRequest(ALICE, worker=info, first_event=2))
        await storage.renew(RenewRequest(ALICE, worker=info, events=(began, stopping), first_event=1))
        await storage.renew(RenewRequest(ALICE, events=(stopping, ended), last=True, first_event=2))
        # Another owner numbers its own events.
        other = WorkerStarted(owner=BOB.id, host="host-2", pid=102, queues=("default",), concurrency=10)
        await storage.renew(RenewRequest(BOB, worker=info, events=(other,), first_event=1))
        events = await all_events(storage)

        of_alice = [event for event in events if event != structs.replace(other, cursor=event.cursor, at=event.at)]
        assert [type(event) for event in of_alice] == [WorkerStarted, WorkerStopping, WorkerStopped]
        assert len(events) == len(of_alice) + 1

    async def test_orders_for_a_worker_come_with_its_beats(self, storage: Storage) -> None:
        await storage.tune(Target("worker", ALICE.id), Settings(quiet=True))
        quiet = (await storage.renew(RenewRequest(ALICE))).orders
        await storage.tune(Target("worker", ALICE.id), Settings(stop=True))
        stop = (await storage.renew(RenewRequest(ALICE))).orders

        await storage.tune(Target("worker", ALICE.id), Settings(concurrency=3))
        assert set((await storage.renew(RenewRequest(ALICE))).orders or ()) == {"quiet", "stop", "concurrency:3"}
        await storage.tune(Target("worker", ALICE.id), Settings(concurrency=0))
        assert set((await storage.renew(RenewRequest(ALICE))).orders or ()) == {"quiet", "stop"}
        assert quiet == ("quiet",)
        assert set(stop or ()) == {"quiet", "stop"}
        assert (await storage.renew(RenewRequest(BOB))).orders == ()

    @pytest.mark.parametrize("leave", [True, False])
    async def test_orders_for_a_worker_are_deleted_when_it_leaves(
        self, storage: Storage, clock: ManualClock, leave: bool
    ) -> None:
        target = Target("worker", ALICE.id)
        await storage.renew(RenewRequest(ALICE, worker=WorkerInfo()))
        assert await storage.tune(target, Settings(quiet=True)) == Settings(quiet=True)
        assert await storage.tune(target, Settings()) == Settings(quiet=True)
        if leave:
            last = await storage.renew(RenewRequest(ALICE, last=True))

            assert last.orders == ("quiet",)
        else:
            clock.advance(WORKER_KEPT / SECOND)
            await storage.sweep(bid())

        assert await storage.tune(target, Settings()) == Settings()

    async def test_a_renewal_that_extends_nothing_still_gets_all_answers(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage)
        clock.advance(5)
        before = await record(storage, lease.ref)
        asking = LeaseRenewal(lease.ref, lease.fence, extend=False)
        quiet = await storage.renew(RenewRequest(ALICE, (asking,)))
        await storage.revise([CancelJob(lease.ref, "enough")])
        pulse = await storage.renew(RenewRequest(ALICE, (asking,)))
        foreign = await storage.renew(RenewRequest(BOB, (asking,)))
        after = await record(storage, lease.ref)

        assert (quiet.lost, quiet.cancelling) == ((), ())
        assert [(request.ref, request.reason) for request in pulse.cancelling] == [(lease.ref, "enough")]
        assert foreign.lost == ((lease.ref, lease.fence),)
        assert (after.lease_until, after.heard_at) == (before.lease_until, before.heard_at)

    async def test_a_beat_can_request_the_identity_of_each_partition(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        worker = WorkerInfo(queues=(QUEUE,))
        first = await storage.renew(RenewRequest(ALICE, worker=worker, seen=()))
        clock.advance(5)
        again = await storage.renew(RenewRequest(ALICE, worker=worker, seen=first.partitions))
        other = await storage.renew(RenewRequest(ALICE, worker=worker, seen=()))

        assert first.partitions
        for state in first.partitions:
            assert state.identity
            assert state.created > 0
            assert not state.trouble
        expected = {(state.partition, state.identity, state.created) for state in first.partitions}
        assert {(state.partition, state.identity, state.created) for state in again.partitions} == expected
        assert {(state.partition, state.identity, state.created) for state in other.partitions} == expected
        assert len({state.place for state in first.partitions}) == len(first.partitions)
        assert not (await storage.renew(RenewRequest(ALICE, worker=worker))).partitions

    async def test_a_beat_reports_whether_the_log_continues_what_its_worker_saw(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        async def state(*seen: PartitionState) -> PartitionState:
            pulse = await storage.renew(RenewRequest(ALICE, seen=seen))
            [partition] = pulse.partitions
            return partition

        before = await state()
        announced = tuple(WorkerStopping(owner=ALICE.id, reason=reason) for reason in ("one", "two"))
        [sent] = (await storage.renew(RenewRequest(ALICE, events=announced, seen=(before,)))).partitions
        after = await state(sent)
        clock.advance(1)
        await storage.renew(RenewRequest(ALICE, events=announced[:1]))
        later = await state(after)

        # The events that the renewal itself causes come after the events that it carries.
        assert (sent.last_event, after.last_event, later.last_event) == (
            before.last_event,
            before.last_event + 2,
            before.last_event + 3,
        )
        assert later.last_event_at == after.last_event_at + SECOND
        assert (sent.continues, after.continues, later.continues) == (True, True, True)
        assert compare(before, later) is None
        # A log that ends earlier, or that has another event in the same place, is not the log that was seen before.
        ahead = structs.replace(later, last_event=later.last_event + 5)
        assert not (await state(ahead)).continues
        assert compare(ahead, await state(ahead)) == StorageRewound(partition=later.partition, by=5)
        another = structs.replace(after, last_event_at=after.last_event_at + 1)
        assert not (await state(another)).continues
        assert compare(later, later, read=later.last_event + 1) is not None
