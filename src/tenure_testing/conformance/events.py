"""Conformance tests of the event log: each change is recorded once, some on request, and gaps are reported."""

from collections.abc import Callable

import pytest

from tenure.clock import SECOND
from tenure.core.duration import moment
from tenure.core.events import (
    AnyEvent,
    EventsTrimmed,
    JobDeleted,
    JobEnqueued,
    JobEvent,
    JobExpired,
    JobProgressed,
    JobRedriven,
    JobRescheduled,
    JobStarted,
    JobSuspected,
    OnRequest,
    QueueDrained,
    QueuePaused,
    QueueResumed,
    WorkerStopping,
    name_of,
)
from tenure.core.job import OnExpire, Policy, Ref, StallTerms
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
    Unknown,
    Unreadable,
)
from tenure.core.retention import EVENTS_KEPT
from tenure.storage.protocol import (
    EVENTS_END,
    TRIM_LIMIT,
    CancelJob,
    DeleteJob,
    EventReader,
    LeaseRenewal,
    NewLogLine,
    RedriveJob,
    RenewRequest,
    RescheduleJob,
    Revision,
    Settings,
    Storage,
    Target,
)
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    ERROR,
    ONCE,
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
    new_job,
    new_jobs,
    record,
    recover,
    settle,
    start,
    sweep_all,
    watch,
)

THIS_QUEUE = Target("queue", QUEUE)
ALL: tuple[OnRequest, ...] = ("enqueued", "rescheduled", "started", "progressed", "suspected", "queue_drained")
WEEK = 7 * 86_400

OUTCOMES: tuple[tuple[Outcome, str], ...] = (
    (Returned(b"3"), "completed"),
    (RAISED, "retried"),
    (Raised(ERROR, after=0), "retried"),
    (Raised(ERROR, final=True), "failed"),
    (TimedOut(ERROR), "retried"),
    (TimedOut(ERROR, final=True), "failed"),
    (Rejected(ERROR), "failed"),
    (Unreadable(ERROR), "failed"),
    (Unknown(), "released"),
    (Snoozed(10 * SECOND), "released"),
    (Interrupted("shutdown"), "released"),
    (Cancelled("enough"), "cancelled"),
)
"""Each outcome with the one event that reports it."""

LAST_MOVES: tuple[tuple[str, Callable[[Ref], Revision]], ...] = (("cancelled", CancelJob), ("deleted", DeleteJob))


class EventsConformance(Conformance):
    """Each change is recorded once, optional events on request, and gaps are reported."""

    # ── by default ────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize(("outcome", "name"), OUTCOMES)
    async def test_each_settlement_records_one_event(self, storage: Storage, outcome: Outcome, name: str) -> None:
        lease = await start(storage)
        await settle(storage, ALICE, lease, outcome)
        await settle(storage, ALICE, lease, outcome)

        assert names(await all_events(storage)) == [name]

    async def test_each_stall_records_one_event_and_a_failure_another(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await start(storage)
        await recover(storage, clock)
        await claim_one(storage)
        await recover(storage, clock)

        assert names(await all_events(storage)) == ["stalled", "stalled", "failed"]

    async def test_each_change_by_an_operator_records_one_event(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job(ttl=2 * SECOND))
        ref = new_job().ref
        await storage.revise([CancelJob(ref), CancelJob(ref), RedriveJob(ref), RedriveJob(ref)])
        clock.advance(2)
        await sweep_all(storage)
        await claim(storage)
        await storage.revise([RedriveJob(ref), RedriveJob(ref), DeleteJob(ref), DeleteJob(ref), RedriveJob(ref)])

        assert names(await all_events(storage)) == ["cancelled", "redriven", "expired", "redriven", "deleted"]

    async def test_a_deletion_event_names_the_caller_and_the_old_state(self, storage: Storage) -> None:
        lease = await start(storage)
        await settle(storage, ALICE, lease)
        await storage.revise([DeleteJob(lease.ref, "ops")])
        (event,) = await events_of(storage, JobDeleted)

        assert (event.queue, event.id, event.task, event.run) == (QUEUE, "job", "add", 1)
        assert (event.by, event.was) == ("ops", "completed")

    async def test_a_redrive_event_names_the_caller_and_the_old_state(self, storage: Storage) -> None:
        lease = await start(storage, new_job(policy=ONCE))
        await settle(storage, ALICE, lease, RAISED)
        await storage.revise([RedriveJob(lease.ref, "ops", delay=SECOND)])
        (event,) = await events_of(storage, JobRedriven)

        assert (event.queue, event.id, event.task, event.run) == (QUEUE, "job", "add", 1)
        assert (event.by, event.was) == ("ops", "failed")

    async def test_an_expiry_event_has_the_wait_the_limit_and_the_action(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, new_job(ttl=90 * SECOND, policy=Policy(on_expire="discard")))
        clock.advance(100.25)
        await sweep_all(storage)
        (event,) = await events_of(storage, JobExpired)

        assert (event.queue, event.id, event.task, event.run) == (QUEUE, "job", "add", 0)
        assert (event.ttl, event.age, event.on_expire) == (90.0, 100.25, "discard")
        assert event.at == moment(clock.now())

    async def test_a_pause_event_names_the_caller(self, storage: Storage, clock: ManualClock) -> None:
        await storage.tune(THIS_QUEUE, Settings(paused=True), by="ops")
        clock.advance(1)
        await storage.tune(THIS_QUEUE, Settings(paused=False))
        paused, resumed = await all_events(storage)

        assert isinstance(paused, QueuePaused)
        assert isinstance(resumed, QueueResumed)
        assert (paused.queue, paused.by, resumed.queue, resumed.by) == (QUEUE, "ops", QUEUE, None)
        assert resumed.at == moment(clock.now())

    # ── on request ────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_optional_events_are_not_recorded_by_default(self, storage: Storage, clock: ManualClock) -> None:
        await a_whole_life(storage, clock)

        assert names(await all_events(storage)) == ["retried", "stalled", "completed"]

    async def test_a_queue_records_all_requested_events(self, storage: Storage, clock: ManualClock) -> None:
        settings = await storage.tune(THIS_QUEUE, Settings(record=ALL))
        await a_whole_life(storage, clock)

        assert settings.record == ALL
        assert names(await all_events(storage)) == [
            "enqueued",
            "rescheduled",
            "started",
            "retried",
            "started",
            "progressed",
            "suspected",
            "stalled",
            "started",
            "completed",
            "queue_drained",
        ]

    @pytest.mark.parametrize("name", ALL)
    async def test_a_queue_records_only_the_requested_optional_events(
        self, storage: Storage, clock: ManualClock, name: OnRequest
    ) -> None:
        await storage.tune(THIS_QUEUE, Settings(record=(name,)))
        await a_whole_life(storage, clock)

        assert set(names(await all_events(storage))) == {"retried", "stalled", "completed", name}

    async def test_a_request_to_record_events_counts_for_its_queue_only(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.tune(Target("queue", "mail"), Settings(record=ALL))
        await storage.tune(Target("task", "add"), Settings(record=ALL))
        await a_whole_life(storage, clock)

        assert names(await all_events(storage)) == ["retried", "stalled", "completed"]

        await enqueue(storage, new_job(queue="mail"))

        assert [event.queue for event in await events_of(storage, JobEnqueued)] == ["mail"]

    async def test_recording_optional_events_can_be_switched_off(self, storage: Storage) -> None:
        await storage.tune(THIS_QUEUE, Settings(record=("enqueued", "started")))
        await start(storage, new_job("first"))
        await storage.tune(THIS_QUEUE, Settings(paused=False))
        await start(storage, new_job("second"))
        settings = await storage.tune(THIS_QUEUE, Settings(record=()))
        await start(storage, new_job("third"))

        assert settings.record == ()
        assert ids(await all_events(storage)) == ["first", "first", "second", "second"]

    async def test_the_choice_of_recorded_events_outlives_the_connection(self, storage: Storage) -> None:
        await storage.tune(THIS_QUEUE, Settings(record=("started",)))
        await storage.close()
        await storage.open()
        await start(storage)

        assert names(await all_events(storage)) == ["started"]

    async def test_an_enqueue_event_has_the_due_time(self, storage: Storage, clock: ManualClock) -> None:
        await storage.tune(THIS_QUEUE, Settings(record=("enqueued",)))
        await enqueue(storage, new_job("now"), new_job("later", delay=90 * SECOND, priority=3, boost=180 * SECOND))
        await storage.enqueue([new_job("now")])
        now, later = await events_of(storage, JobEnqueued)

        assert (now.queue, now.id, now.task, now.run, now.priority) == (QUEUE, "now", "add", 0, 0)
        assert (now.due_at, now.at) == (moment(clock.now()), moment(clock.now()))
        assert (later.due_at, later.priority) == (moment(clock.now() + 90 * SECOND), 3)

    async def test_a_reschedule_event_names_the_caller(self, storage: Storage, clock: ManualClock) -> None:
        await storage.tune(THIS_QUEUE, Settings(record=("rescheduled",)))
        await enqueue(storage, new_job())
        clock.advance(1)
        due = clock.now() - SECOND
        await storage.revise([RescheduleJob(new_job().ref, priority=5, boost=300 * SECOND, by="ops")])
        await storage.revise([RescheduleJob(new_job().ref, delay=10 * SECOND)])
        first, second = await events_of(storage, JobRescheduled)

        assert (first.id, first.run, first.due_at, first.priority, first.by) == ("job", 0, moment(due), 5, "ops")
        assert (second.due_at, second.priority, second.by) == (moment(clock.now() + 10 * SECOND), 5, None)

    async def test_a_start_event_names_the_owner(self, storage: Storage, clock: ManualClock) -> None:
        await storage.tune(THIS_QUEUE, Settings(record=("started",)))
        first = await start(storage)
        await settle(storage, ALICE, first, RAISED)
        clock.advance(1)
        second = await claim_one(storage, BOB)
        first_event, second_event = await events_of(storage, JobStarted)

        assert (first_event.id, first_event.task, first_event.run, first_event.attempt) == ("job", "add", 1, 1)
        assert (first_event.owner, first_event.host, first_event.pid) == (ALICE.id, ALICE.host, ALICE.pid)
        assert (first_event.fence, first_event.redelivered) == (first.fence, False)
        assert (second_event.run, second_event.attempt, second_event.owner) == (2, 2, BOB.id)
        assert (second_event.fence, second_event.redelivered) == (second.fence, True)

    async def test_each_progress_report_records_an_event(self, storage: Storage) -> None:
        await storage.tune(THIS_QUEUE, Settings(record=("progressed",)))
        lease = await start(storage)
        for progress, note in ((0.25, "a quarter"), (None, None), (0.5, None)):
            line = NewLogLine("info", "no progress", {})
            await storage.renew(
                RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence, progress=progress, note=note, log=(line,)),))
            )
        await storage.renew(RenewRequest(BOB, (LeaseRenewal(lease.ref, lease.fence, progress=0.75),)))

        assert [
            (event.id, event.run, event.value, event.note) for event in await events_of(storage, JobProgressed)
        ] == [
            ("job", 1, 0.25, "a quarter"),
            ("job", 1, 0.5, None),
        ]

    async def test_a_suspicion_event_names_the_owner(self, storage: Storage, clock: ManualClock) -> None:
        await storage.tune(THIS_QUEUE, Settings(record=("suspected",)))
        lease = await start(storage)
        await watch(storage, clock, 20)
        await beat(storage, ALICE, [lease])
        await watch(storage, clock, 22)
        first, second = await events_of(storage, JobSuspected)

        assert (first.id, first.run, first.owner, first.silent_for) == ("job", 1, ALICE.id, 20.0)
        assert second.silent_for == 20.0

    @pytest.mark.parametrize(("name", "last_move"), LAST_MOVES)
    async def test_a_queue_is_drained_when_its_last_job_ends_in_any_way(
        self, storage: Storage, name: str, last_move: Callable[[Ref], Revision]
    ) -> None:
        await storage.tune(THIS_QUEUE, Settings(record=("queue_drained",)))
        await enqueue(storage, *new_jobs(2), new_job(queue="mail"))
        await storage.revise([last_move(Ref(QUEUE, "job-0000"))])

        assert await events_of(storage, QueueDrained) == []

        await storage.revise([last_move(Ref(QUEUE, "job-0001"))])

        assert names(await all_events(storage)) == [name, name, "queue_drained"]
        assert [event.queue for event in await events_of(storage, QueueDrained)] == [QUEUE]

    @pytest.mark.parametrize("on_expire", ["fail", "discard"])
    async def test_a_queue_is_drained_by_an_expiry_too(
        self, storage: Storage, clock: ManualClock, on_expire: OnExpire
    ) -> None:
        await storage.tune(THIS_QUEUE, Settings(record=("queue_drained",)))
        policy = Policy(on_expire=on_expire)
        await enqueue(storage, new_job("a", ttl=SECOND, policy=policy), new_job("b", ttl=2 * SECOND, policy=policy))
        clock.advance(1)
        await sweep_all(storage)
        clock.advance(1)
        await claim(storage)

        assert names(await all_events(storage)) == ["expired", "expired", "queue_drained"]

    async def test_a_queue_is_not_drained_while_a_job_rests_or_runs(self, storage: Storage, clock: ManualClock) -> None:
        await storage.tune(THIS_QUEUE, Settings(record=("queue_drained",)))
        await enqueue(storage, *new_jobs(2))
        first, second = await claim(storage)
        await settle(storage, ALICE, first)
        await settle(storage, ALICE, second, RAISED)

        assert await events_of(storage, QueueDrained) == []

        clock.advance(1)
        await settle(storage, ALICE, await claim_one(storage))

        assert len(await events_of(storage, QueueDrained)) == 1

    async def test_a_queue_is_not_drained_while_a_job_waits_once_more(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.tune(THIS_QUEUE, Settings(record=("queue_drained",)))
        again = await start(storage, new_job("again"))
        clock.advance(1)
        await settle(storage, ALICE, again, Raised(ERROR, after=0))
        await enqueue(storage, new_job("other"))
        await storage.revise([CancelJob(Ref(QUEUE, "other"))])

        assert await events_of(storage, QueueDrained) == []

        await settle(storage, ALICE, await claim_one(storage))

        assert len(await events_of(storage, QueueDrained)) == 1

    async def test_deleting_a_terminal_job_drains_no_queue(self, storage: Storage) -> None:
        await storage.tune(THIS_QUEUE, Settings(record=("queue_drained",)))
        await enqueue(storage, *new_jobs(2))
        for lease in await claim(storage):
            await settle(storage, ALICE, lease)
        await storage.revise([DeleteJob(job.ref) for job in new_jobs(2)])

        # The end of the second job drained the queue, and later changes did not drain it again.
        assert names(await all_events(storage)) == ["completed", "completed", "queue_drained", "deleted", "deleted"]

    async def test_a_queue_is_drained_once_for_each_time_it_empties(self, storage: Storage) -> None:
        await storage.tune(THIS_QUEUE, Settings(record=("queue_drained",)))
        for name in ("first", "second"):
            await settle(storage, ALICE, await start(storage, new_job(name)), Rejected(ERROR))
        await storage.revise([RedriveJob(Ref(QUEUE, "first"))])
        await settle(storage, ALICE, await claim_one(storage))

        assert len(await events_of(storage, QueueDrained)) == 3

    # ── of one job ────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_the_events_of_one_job_can_be_read_alone(self, storage: Storage, clock: ManualClock) -> None:
        await interwoven(storage, clock)
        page = await storage.events(ref=Ref(QUEUE, "b"))

        assert [(name_of(event), event.id) for event in page.events if isinstance(event, JobEvent)] == [
            ("started", "b"),
            ("retried", "b"),
            ("started", "b"),
            ("completed", "b"),
        ]
        assert len(page.events) == 4
        assert (await storage.events(page.next, ref=Ref(QUEUE, "b"))).events == ()

    async def test_reading_the_events_of_a_job_resumes_at_a_cursor(self, storage: Storage, clock: ManualClock) -> None:
        await interwoven(storage, clock)
        ref = Ref(QUEUE, "b")
        read: list[str] = []
        cursor: str | None = None
        for _ in range(5):
            page = await storage.events(cursor, limit=1, ref=ref)
            assert len(page.events) <= 1
            read += names(page.events)
            cursor = page.next
        await storage.revise([DeleteJob(Ref(QUEUE, "a")), DeleteJob(ref)])

        assert read == ["started", "retried", "started", "completed"]
        assert names((await storage.events(cursor, ref=ref)).events) == ["deleted"]

    async def test_one_jobs_events_carry_the_cursors_of_the_whole_log(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await interwoven(storage, clock)
        whole = {event.cursor: event for event in await all_events(storage)}
        of_one = (await storage.events(ref=Ref(QUEUE, "b"))).events

        assert all(whole[event.cursor] == event for event in of_one)
        assert names((await storage.events(of_one[1].cursor, ref=Ref(QUEUE, "b"))).events) == ["started", "completed"]

    async def test_jobs_with_one_id_in_two_queues_have_separate_events(self, storage: Storage) -> None:
        for queue in (QUEUE, "mail"):
            await settle(storage, ALICE, await start(storage, new_job(queue=queue)))
        page = await storage.events(ref=Ref("mail", "job"))

        assert [event.queue for event in page.events if isinstance(event, JobEvent)] == ["mail"]
        assert (await storage.events(ref=Ref("mail", "missing"))).events == ()

    async def test_one_jobs_events_can_be_read_from_now_on(self, storage: Storage) -> None:
        lease = await start(storage)
        await settle(storage, ALICE, lease, RAISED)
        end = (await storage.events(EVENTS_END, ref=lease.ref)).next
        await storage.revise([CancelJob(lease.ref)])

        assert names((await storage.events(end, ref=lease.ref)).events) == ["cancelled"]

    @pytest.mark.fault("W-T23")
    async def test_the_events_of_a_job_outlive_it(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await settle(storage, ALICE, lease)
        clock.advance(3600)
        await sweep_all(storage)

        assert await storage.get([lease.ref]) == [None]
        assert names((await storage.events(ref=lease.ref)).events) == ["completed"]

    # ── trimmed ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_events_are_kept_for_a_week(self, storage: Storage, clock: ManualClock) -> None:
        begin = (await storage.events()).next
        await settle(storage, ALICE, await start(storage, new_job("old")))
        clock.advance(1)
        await settle(storage, ALICE, await start(storage, new_job("young")))
        clock.advance(WEEK - 1.000_001)
        await sweep_all(storage)

        assert ids((await storage.events(begin)).events) == ["old", "young"]

        clock.advance(0.000_001)
        swept = await storage.sweep(bid())
        page = await storage.events(begin)

        assert EVENTS_KEPT.age == WEEK * SECOND
        assert swept.did["forgotten"] == 1
        assert [type(event).__name__ for event in page.events] == ["EventsTrimmed", "JobCompleted"]
        assert ids(page.events) == ["young"]

    @pytest.mark.fault("W-T23")
    async def test_a_late_reader_gets_one_trimmed_event_first(self, storage: Storage, clock: ManualClock) -> None:
        cursors = [(await storage.events()).next]
        for number in range(3):
            await settle(storage, ALICE, await start(storage, new_job(f"job-{number}")))
            cursors.append((await storage.events(cursors[-1])).next)
            clock.advance(1)
        clock.advance(WEEK - 2)
        await sweep_all(storage)
        missed = await storage.events(cursors[0], limit=1)
        (trimmed, event) = missed.events
        rest = await storage.events(missed.next)

        # A cursor directly behind the last trimmed event has missed nothing.
        assert ids((await storage.events(cursors[2])).events) == ["job-2"]
        assert names((await storage.events(cursors[1])).events) == ["events_trimmed", "completed"]
        assert isinstance(trimmed, EventsTrimmed)
        assert ids([event]) == ["job-2"]
        assert ids((await storage.events(trimmed.oldest)).events) == ["job-2"]
        assert rest.events == ()

    async def test_a_reader_of_one_job_gets_a_trimmed_event_for_a_gap(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        begin = (await storage.events()).next
        lease = await start(storage)
        await settle(storage, ALICE, lease, RAISED)
        clock.advance(WEEK - 2)
        await settle(storage, ALICE, await claim_one(storage))
        clock.advance(2)
        await sweep_all(storage)
        page = await storage.events(begin, ref=lease.ref)

        assert names(page.events) == ["events_trimmed", "completed"]
        assert (await storage.events(page.next, ref=lease.ref)).events == ()

    @pytest.mark.fault("W-T23")
    async def test_a_late_named_reader_gets_a_trimmed_event(self, storage: Storage, clock: ManualClock) -> None:
        app = EventReader("app", "process-1")
        await storage.events(reader=app)
        await settle(storage, ALICE, await start(storage, new_job("old")))
        clock.advance(WEEK)
        await sweep_all(storage)
        await settle(storage, ALICE, await start(storage, new_job("young")))
        first = await storage.events(reader=app)
        second = await storage.events(first.next, reader=app)

        assert names(first.events) == ["events_trimmed", "completed"]
        assert ids(first.events) == ["young"]
        assert second.events == ()

    async def test_a_named_reader_lost_by_the_storage_starts_at_the_oldest_event(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        for number in range(3):
            await settle(storage, ALICE, await start(storage, new_job(f"job-{number}")))
            clock.advance(1)
        lost, new = EventReader("lost", "here"), EventReader("new", "here")

        # Its cursor belongs to a log that the storage has lost. In this log it is not a position.
        page = await storage.events("2", reader=lost)

        assert ids(page.events) == ["job-0", "job-1", "job-2"]
        assert (await storage.events(page.next, reader=lost)).events == ()
        assert (await storage.events(reader=new)).events == ()

    async def test_a_named_reader_ignores_a_cursor_beyond_what_was_lent(self, storage: Storage) -> None:
        app = EventReader("app", "process-1")
        await storage.events(reader=app)
        await settle(storage, ALICE, await start(storage, new_job("lent")))
        await storage.events(reader=app)
        await settle(storage, ALICE, await start(storage, new_job("not-lent")))

        # The storage went back in time, and its log has grown past this cursor since.
        page = await storage.events((await storage.events(EVENTS_END)).next, reader=app)

        assert ids(page.events) == ["lent", "not-lent"]
        assert (await storage.events(page.next, reader=app)).events == ()

    async def test_a_named_reader_that_has_read_everything_gets_no_trimmed_event(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        app = EventReader("app", "process-1")
        await storage.events(reader=app)
        await settle(storage, ALICE, await start(storage, new_job("old")))
        page = await storage.events(reader=app)
        await storage.events(page.next, reader=app)
        clock.advance(WEEK)
        await sweep_all(storage)
        await settle(storage, ALICE, await start(storage, new_job("young")))

        assert names((await storage.events(reader=app)).events) == ["completed"]

    async def test_cursors_continue_after_the_log_is_trimmed_to_nothing(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await settle(storage, ALICE, await start(storage, new_job("old")))
        (old,) = (await storage.events()).events
        end = (await storage.events(EVENTS_END)).next
        clock.advance(WEEK)
        await sweep_all(storage)
        await storage.close()
        await storage.open()

        assert (await storage.events(end)).events == ()

        await settle(storage, ALICE, await start(storage, new_job("young")))
        (young,) = (await storage.events(end)).events

        assert ids([young]) == ["young"]
        assert young.cursor != old.cursor

    async def test_the_log_is_trimmed_in_bounded_steps(self, storage: Storage, clock: ManualClock) -> None:
        begin = (await storage.events()).next
        await announce(storage, TRIM_LIMIT + 60)
        clock.advance(WEEK)
        first, second = await storage.sweep(bid()), await storage.sweep(bid())

        assert (first.more, first.did["forgotten"]) == (True, TRIM_LIMIT)
        assert (second.more, second.did["forgotten"]) == (False, 60)
        assert names((await storage.events(begin)).events) == ["events_trimmed"]

    async def test_the_newest_events_of_a_long_log_are_kept(self, storage: Storage) -> None:
        assert EVENTS_KEPT.count is not None

        begin = (await storage.events()).next
        await announce(storage, EVENTS_KEPT.count + 5)
        swept = await storage.sweep(bid())
        page = await storage.events(begin, limit=1)

        assert swept.did["forgotten"] == 5
        assert [type(event) for event in page.events] == [EventsTrimmed, WorkerStopping]
        assert [event.reason for event in page.events if isinstance(event, WorkerStopping)] == ["5"]
        assert (await storage.sweep(bid())).did["forgotten"] == 0


async def a_whole_life(storage: Storage, clock: ManualClock) -> None:
    """Let a job be put off, fail, report progress, stall, and complete."""
    await enqueue(storage, new_job(stall=StallTerms(max_stalls=1)))
    await storage.revise([RescheduleJob(new_job().ref, delay=SECOND)])
    clock.advance(1)
    await settle(storage, ALICE, await claim_one(storage), RAISED)
    clock.advance(1)
    lease = await claim_one(storage)
    await storage.renew(RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence, progress=0.5),)))
    await recover(storage, clock)
    await settle(storage, ALICE, await claim_one(storage))
    assert (await record(storage, new_job().ref)).state is State.COMPLETED


async def interwoven(storage: Storage, clock: ManualClock) -> None:
    """Let two jobs run twice, so that their events alternate."""
    await storage.tune(THIS_QUEUE, Settings(record=("started",)))
    await enqueue(storage, new_job("a"), new_job("b"))
    for lease in await claim(storage):
        await settle(storage, ALICE, lease, RAISED)
    clock.advance(1)
    for lease in await claim(storage):
        await settle(storage, ALICE, lease)


async def announce(storage: Storage, count: int) -> None:
    """Record events that are numbered by their reason."""
    for begin in range(0, count, 5000):
        events = tuple(WorkerStopping(owner=BOB.id, reason=str(n)) for n in range(begin, min(begin + 5000, count)))
        await storage.renew(RenewRequest(BOB, events=events))


def names(events: tuple[AnyEvent, ...] | list[AnyEvent]) -> list[str]:
    """Return the names of these events. Events of leadership are left out."""
    return [name for name in map(name_of, events) if not name.startswith("leadership")]


def ids(events: tuple[AnyEvent, ...] | list[AnyEvent]) -> list[str]:
    """Return the ids of the jobs in these events."""
    return [event.id for event in events if isinstance(event, JobEvent)]
