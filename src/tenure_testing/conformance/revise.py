"""Conformance tests of `revise` and `plan`: an operator changes inactive jobs, and asks active jobs to stop."""

import pytest

from tenure.clock import SECOND
from tenure.core.events import JobCancelled, JobDeleted, JobRedriven
from tenure.core.job import DebounceKey, Key, RateKey, Ref, UniqueKey
from tenure.core.lifecycle import State
from tenure.core.outcome import Cancelled, Interrupted, Outcome, Rejected, Returned
from tenure.storage.protocol import (
    CancelJob,
    DeleteJob,
    Query,
    RedriveJob,
    RemoveSchedule,
    RescheduleJob,
    RetainJob,
    Revision,
    RevisionResult,
    ScheduleResult,
    Storage,
)
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    ERROR,
    ONCE,
    QUEUE,
    RAISED,
    Conformance,
    all_events,
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
    sweep_all,
    watch,
)


class ReviseConformance(Conformance):
    """An operator changes jobs that are not active, and asks active jobs to stop."""

    async def test_a_job_that_ended_since_its_listing_is_not_deleted(self, storage: Storage) -> None:
        await enqueue(storage, new_job("waiting"), new_job("ran"))
        await settle(storage, ALICE, next(lease for lease in await claim(storage) if lease.ref.id == "ran"))
        ran, waiting = new_job("ran").ref, new_job("waiting").ref

        assert [result.verdict for result in await storage.revise([DeleteJob(ran, ended=0)])] == ["changed"]
        assert (await record(storage, ran)).state is State.COMPLETED

        await enqueue(storage, new_job("later", delay=SECOND))
        refs = [new_job("later").ref, ran]
        assert [item.verdict for item in await storage.revise([DeleteJob(ref, ended=0) for ref in refs])] == [
            "done",
            "changed",
        ]
        # An active job stays, even if the listing showed it as waiting.
        assert [result.verdict for result in await storage.revise([DeleteJob(waiting, ended=0)])] == ["refused"]

    async def test_a_job_whose_end_is_another_one_is_not_changed(self, storage: Storage) -> None:
        await settle(storage, ALICE, await start(storage, new_job("completed")))
        await settle(storage, ALICE, await start(storage, new_job("failed", policy=ONCE)), RAISED)
        await enqueue(storage, new_job("waiting"))
        before = {name: await record(storage, new_job(name).ref) for name in ("waiting", "completed", "failed")}

        def changes(others: int) -> list[Revision]:
            ends = {name: (job.finished or 0) + others for name, job in before.items()}
            waiting, completed, failed = (job.ref for job in before.values())
            return [
                RescheduleJob(waiting, delay=9 * SECOND, ended=ends["waiting"]),
                RetainJob(completed, 9 * SECOND, ended=ends["completed"]),
                RedriveJob(failed, ended=ends["failed"]),
                CancelJob(waiting, ended=ends["waiting"]),
            ]

        assert [result.verdict for result in await storage.revise(changes(1))] == ["changed"] * 4
        assert {name: await record(storage, job.ref) for name, job in before.items()} == before
        assert [result.verdict for result in await storage.revise(changes(0))] == ["done"] * 4

    async def test_a_new_priority_moves_a_job_and_keeps_its_keys(self, storage: Storage, clock: ManualClock) -> None:
        unique, rate = UniqueKey("u"), RateKey("mail", interval=10 * SECOND)
        running = await start(storage, new_job("running", keys=(Key("printer"),), rates=(rate,)))
        clock.advance(0.000_001)
        await start(storage, new_job("also", rates=(rate,)))
        await enqueue(storage, *(new_job(f"key-{name}", keys=(Key("printer"),)) for name in "ab"))
        await enqueue(storage, *(new_job(f"rate-{name}", rates=(rate,)) for name in "ab"))
        assert await claim(storage, room=9) == []
        await enqueue(storage, new_job("plain"), new_job("unique", merge=unique), new_job("later", delay=SECOND))

        names = ("key-b", "rate-b", "unique", "later")
        await storage.revise([RescheduleJob(Ref(QUEUE, name), priority=2, boost=120 * SECOND) for name in names])

        # The parked jobs stay parked, the unique key is still held, and the delay is not over yet.
        assert all([(await record(storage, Ref(QUEUE, name))).parked_under for name in ("key-b", "rate-b")])
        assert (await storage.enqueue([new_job("again", merge=unique)]))[0].ref.id == "unique"
        assert (await record(storage, Ref(QUEUE, "later"))).state is State.DELAYED
        assert [lease.ref.id for lease in await claim(storage, room=1)] == ["unique"]

        clock.advance(1)
        await sweep_all(storage)
        assert [lease.ref.id for lease in await claim(storage, room=1)] == ["later"]
        await settle(storage, ALICE, running)
        assert [lease.ref.id for lease in await claim(storage, room=1)] == ["key-b"]
        clock.advance(9)
        await sweep_all(storage)
        assert [lease.ref.id for lease in await claim(storage, room=9)] == ["rate-b", "plain"]

    async def test_a_new_priority_leaves_a_debounced_job_as_it_is(self, storage: Storage, clock: ManualClock) -> None:
        key = DebounceKey("save", delay=10 * SECOND)
        await enqueue(storage, new_job("first", merge=key), new_job("other", delay=12 * SECOND))
        first = new_job("first").ref
        await storage.revise([RescheduleJob(first, priority=-1, boost=-60 * SECOND)])
        clock.advance(2)
        (receipt,) = await storage.enqueue([new_job("second", merge=key)])

        assert receipt.action == "replaced"
        clock.advance(9)
        await sweep_all(storage)
        assert await claim(storage) == []
        clock.advance(1)
        await sweep_all(storage)
        assert len(await claim(storage, room=9)) == 2

    async def test_a_waiting_job_is_cancelled_at_once(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job())
        clock.advance(1)

        assert await storage.revise([CancelJob(new_job().ref, "enough", "ops")]) == [
            RevisionResult(new_job().ref, "done", State.WAITING)
        ]

        job = await record(storage, new_job().ref)
        assert (job.state, job.reason, job.finished) == (State.CANCELLED, "enough", clock.now())
        event = (await events_of(storage, JobCancelled))[0]
        assert (event.reason, event.by, event.was, event.run) == ("enough", "ops", "waiting", 0)
        assert await claim(storage) == []

    async def test_a_delayed_job_is_cancelled_at_once(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job(delay=5 * SECOND))
        revised = await storage.revise([CancelJob(new_job().ref)])
        clock.advance(60)
        await watch(storage, clock, 4)

        assert [(result.verdict, result.state) for result in revised] == [("done", State.DELAYED)]
        assert await claim(storage) == []
        assert [event.was for event in await events_of(storage, JobCancelled)] == ["delayed"]

    async def test_a_job_between_two_attempts_is_cancelled_at_once(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await settle(storage, ALICE, lease, RAISED)

        assert await storage.revise([CancelJob(lease.ref, "enough", "ops")]) == [
            RevisionResult(lease.ref, "done", State.DELAYED)
        ]

        job = await record(storage, lease.ref)
        clock.advance(60)
        await sweep_all(storage)
        assert (job.state, job.failures, job.reason) == (State.CANCELLED, 1, "enough")
        assert (job.cancel_reason, job.cancel_by) == ("enough", "ops")
        assert await claim(storage) == []

    async def test_a_parked_job_is_cancelled_at_once(self, storage: Storage) -> None:
        holder = await start(storage, new_job("holder", keys=(Key("printer"),)))
        await enqueue(storage, new_job(keys=(Key("printer"),)))
        await claim(storage)

        assert await storage.revise([CancelJob(new_job().ref)]) == [
            RevisionResult(new_job().ref, "done", State.WAITING)
        ]

        job = await record(storage, new_job().ref)
        await settle(storage, ALICE, holder)
        assert (job.state, job.parked_under) == (State.CANCELLED, None)
        assert [event.was for event in await events_of(storage, JobCancelled)] == ["waiting"]
        assert await claim(storage) == []

    async def test_a_suspect_job_gets_a_cancel_request(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await watch(storage, clock, 20)

        assert (await record(storage, lease.ref)).suspect_until is not None
        assert await storage.revise([CancelJob(lease.ref)]) == [RevisionResult(lease.ref, "asked", State.ACTIVE)]

        await recover(storage, clock)

        assert (await record(storage, lease.ref)).state is State.CANCELLED

    async def test_an_expired_job_cannot_be_cancelled(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job(ttl=SECOND))
        clock.advance(1)
        await sweep_all(storage)

        assert await storage.revise([CancelJob(new_job().ref)]) == [
            RevisionResult(new_job().ref, "refused", State.EXPIRED)
        ]

    async def test_a_second_cancel_request_does_not_change_the_first(self, storage: Storage) -> None:
        lease = await start(storage)
        await storage.revise([CancelJob(lease.ref, "enough", "ops")])
        await storage.revise([CancelJob(lease.ref, "more than enough", "boss")])
        await settle(storage, ALICE, lease, Cancelled("enough"))
        (event,) = await events_of(storage, JobCancelled)

        assert (event.reason, event.by, event.was) == ("enough", "ops", "active")

    @pytest.mark.fault("W-P14")
    async def test_an_active_job_gets_a_cancel_request(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        clock.advance(1)
        first = await storage.revise([CancelJob(lease.ref, "enough")])
        clock.advance(1)
        second = await storage.revise([CancelJob(lease.ref, "again")])
        job = await record(storage, lease.ref)

        assert [item.verdict for item in first + second] == ["asked", "asked"]
        assert (job.state, job.owner, job.fence) == (State.ACTIVE, ALICE.id, lease.fence)
        assert (job.cancel_at, job.cancel_reason) == (clock.now() - SECOND, "enough")
        assert await all_events(storage) == []

        await settle(storage, ALICE, lease, Cancelled("enough"))

        assert (await record(storage, lease.ref)).state is State.CANCELLED

    async def test_a_terminal_job_cannot_be_cancelled(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(3))
        leases = await claim(storage)
        outcomes: tuple[Outcome, ...] = (Returned(b"3"), Rejected(ERROR), Cancelled("first"))
        for lease, outcome in zip(leases, outcomes, strict=True):
            await settle(storage, ALICE, lease, outcome)
        before = [await look(storage, lease.ref) for lease in leases]
        revised = await storage.revise([CancelJob(lease.ref, "second") for lease in leases])

        assert [(result.verdict, result.state) for result in revised] == [
            ("refused", State.COMPLETED),
            ("refused", State.FAILED),
            ("refused", State.CANCELLED),
        ]
        assert [await look(storage, lease.ref) for lease in leases] == before

    async def test_a_failed_job_is_redriven_with_new_budgets(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job())
        for _ in range(3):
            lease = await claim_one(storage)
            await settle(storage, ALICE, lease, RAISED)
            clock.advance(1)
        before = await record(storage, new_job().ref)

        assert await storage.revise([RedriveJob(before.ref, "ops")]) == [
            RevisionResult(before.ref, "done", State.FAILED)
        ]

        job = await record(storage, before.ref)
        assert (job.state, job.failures, job.stalls, job.releases) == (State.WAITING, 0, 0, 0)
        assert (job.error, job.reason, job.finished) == (None, None, None)
        assert (job.starts, job.fence, job.created) == (3, before.fence, before.created)
        assert [(event.by, event.was) for event in await events_of(storage, JobRedriven)] == [("ops", "failed")]

        again = await claim_one(storage)

        assert (again.run, again.job.attempt) == (4, 1)
        assert again.fence > before.fence
        assert len((await look(storage, before.ref)).runs) == 4

    async def test_a_cancelled_job_is_redriven_and_not_cancelled_again(self, storage: Storage) -> None:
        lease = await start(storage)
        await storage.revise([CancelJob(lease.ref, "enough")])
        await settle(storage, ALICE, lease, Interrupted("shutdown"))
        assert await storage.revise([RedriveJob(lease.ref)]) == [RevisionResult(lease.ref, "done", State.CANCELLED)]
        again = await claim_one(storage)

        assert (again.job.cancel_at, again.job.cancel_reason) == (None, None)

        await settle(storage, ALICE, again, Interrupted("shutdown"))

        assert (await record(storage, lease.ref)).state is State.WAITING

    async def test_a_fence_from_before_a_redrive_settles_nothing(self, storage: Storage) -> None:
        old = await start(storage)
        await settle(storage, ALICE, old, Rejected(ERROR))
        await storage.revise([RedriveJob(old.ref)])
        await claim_one(storage)

        # The run was settled under this very fence, so a repeated settlement gets this answer.
        assert await settle(storage, ALICE, old) == "duplicate"
        assert (await record(storage, old.ref)).state is State.ACTIVE

    async def test_a_completed_job_cannot_be_redriven(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(2), new_job("later", delay=SECOND), new_job("z-waiting"))
        completed, active = await claim(storage, room=2)
        await settle(storage, ALICE, completed)
        refs = [completed.ref, active.ref, Ref(QUEUE, "later"), Ref(QUEUE, "z-waiting")]
        revised = await storage.revise([RedriveJob(ref) for ref in refs])

        assert [(result.verdict, result.state) for result in revised] == [
            ("refused", State.COMPLETED),
            ("refused", State.ACTIVE),
            ("refused", State.DELAYED),
            ("refused", State.WAITING),
        ]
        assert await events_of(storage, JobRedriven) == []

    async def test_a_job_that_is_not_active_can_be_deleted(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job("over"))
        await settle(storage, ALICE, lease)
        await enqueue(storage, new_job("waiting"), new_job("delayed", delay=SECOND))
        refs = [Ref(QUEUE, name) for name in ("over", "waiting", "delayed")]
        revised = await storage.revise([DeleteJob(ref, "ops") for ref in refs])
        clock.advance(60)

        assert [result.verdict for result in revised] == ["done", "done", "done"]
        assert await storage.get(refs) == [None, None, None]
        assert (await storage.find(Query())).jobs == ()
        assert await claim(storage) == []
        assert [(event.id, event.by, event.was) for event in await events_of(storage, JobDeleted)] == [
            ("over", "ops", "completed"),
            ("waiting", "ops", "waiting"),
            ("delayed", "ops", "delayed"),
        ]

    async def test_an_active_job_cannot_be_deleted(self, storage: Storage) -> None:
        lease = await start(storage)

        assert await storage.revise([DeleteJob(lease.ref)]) == [RevisionResult(lease.ref, "refused", State.ACTIVE)]
        assert await settle(storage, ALICE, lease) == "done"

    async def test_a_deleted_id_is_free_again(self, storage: Storage) -> None:
        lease = await start(storage)
        await settle(storage, ALICE, lease)
        await storage.revise([DeleteJob(lease.ref)])
        again = await start(storage)
        detail = await look(storage, again.ref)

        assert again.run == 1
        assert len(detail.runs) == 1
        assert detail.job.result is None

    async def test_a_delayed_job_can_be_brought_forward(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("moved", delay=3600 * SECOND))
        clock.advance(1)
        await enqueue(storage, new_job("usual"))
        revised = await storage.revise([RescheduleJob(Ref(QUEUE, "moved"), delay=0)])

        assert [result.verdict for result in revised] == ["done"]
        assert (await record(storage, Ref(QUEUE, "moved"))).run_at == clock.now()
        assert {lease.ref.id for lease in await claim(storage)} == {"moved", "usual"}

    async def test_a_job_can_be_put_off(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("waiting"), new_job("delayed", delay=SECOND))
        refs = [Ref(QUEUE, "waiting"), Ref(QUEUE, "delayed")]
        revised = await storage.revise([RescheduleJob(ref, delay=10 * SECOND) for ref in refs])
        clock.advance(9.999_999)

        assert [result.verdict for result in revised] == ["done", "done"]
        assert await claim(storage) == []

        clock.advance(0.000_001)

        assert {lease.ref for lease in await claim(storage)} == set(refs)

    async def test_a_new_priority_moves_a_job_in_its_queue(self, storage: Storage, clock: ManualClock) -> None:
        for name in ("first", "second", "third"):
            await enqueue(storage, new_job(name))
            clock.advance(1)
        due = (await record(storage, Ref(QUEUE, "third"))).run_at
        await storage.revise([RescheduleJob(Ref(QUEUE, "third"), priority=5, boost=300 * SECOND)])
        job = await record(storage, Ref(QUEUE, "third"))

        assert (job.priority, job.boost, job.run_at, job.state) == (5, 300 * SECOND, due, State.WAITING)
        assert [lease.ref.id for lease in await claim(storage)] == ["third", "first", "second"]

    async def test_a_new_due_time_leaves_the_priority(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("urgent", boost=60 * SECOND, delay=SECOND))
        await storage.revise([RescheduleJob(Ref(QUEUE, "urgent"), delay=2 * SECOND)])
        due = (await record(storage, Ref(QUEUE, "urgent"))).run_at
        await enqueue(storage, new_job("usual"))
        clock.advance(2)

        assert due == clock.now()
        assert [lease.ref.id for lease in await claim(storage)] == ["urgent", "usual"]

    async def test_a_started_job_cannot_be_rescheduled(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(2))
        active, over = await claim(storage)
        await settle(storage, ALICE, over)
        revised = await storage.revise([RescheduleJob(active.ref, delay=0), RescheduleJob(over.ref, delay=0)])

        assert [(result.verdict, result.state) for result in revised] == [
            ("refused", State.ACTIVE),
            ("refused", State.COMPLETED),
        ]

    async def test_an_unknown_job_is_gone(self, storage: Storage) -> None:
        ref = Ref(QUEUE, "missing")
        revised = await storage.revise([CancelJob(ref), RedriveJob(ref), DeleteJob(ref), RescheduleJob(ref, delay=0)])

        assert revised == [RevisionResult(ref, "gone")] * 4
        assert await all_events(storage) == []

    async def test_verdicts_come_in_the_order_of_the_revisions(self, storage: Storage) -> None:
        lease = await start(storage, new_job("active"))
        await enqueue(storage, new_job("waiting"))
        revised = await storage.revise(
            [
                DeleteJob(Ref(QUEUE, "missing")),
                CancelJob(Ref(QUEUE, "waiting")),
                CancelJob(lease.ref),
                DeleteJob(Ref(QUEUE, "waiting")),
                RedriveJob(lease.ref),
            ]
        )

        assert [(result.ref.id, result.verdict) for result in revised] == [
            ("missing", "gone"),
            ("waiting", "done"),
            ("active", "asked"),
            ("waiting", "done"),
            ("active", "refused"),
        ]

    async def test_a_change_to_an_unknown_schedule_is_gone(self, storage: Storage) -> None:
        assert await storage.plan([RemoveSchedule("nightly"), RemoveSchedule("hourly")]) == [
            ScheduleResult("nightly", "gone"),
            ScheduleResult("hourly", "gone"),
        ]
        assert await storage.plan([]) == []
