"""Conformance tests of `get`, `find`, `survey` and `events`: they return all that exists, in order."""

import asyncio

import pytest
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.duration import moment
from tenure.core.events import AnyEvent, EventsTrimmed, JobCompleted, JobEvent, JobRetried
from tenure.core.internal import INTERNAL_QUEUES, OPS_QUEUE, WEBHOOKS_QUEUE
from tenure.core.job import Owner, Ref
from tenure.core.lifecycle import State
from tenure.core.outcome import Rejected, Returned
from tenure.storage.cursors import recorded_within
from tenure.storage.protocol import (
    EVENT_LOAN,
    EVENTS_END,
    EventReader,
    Query,
    RenewRequest,
    Settings,
    Storage,
    Target,
    WorkerInfo,
)
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    ERROR,
    QUEUE,
    RAISED,
    REAPER,
    Conformance,
    all_events,
    bid,
    claim,
    claim_one,
    enqueue,
    look,
    new_job,
    new_jobs,
    record,
    settle,
    settled,
    start,
    sweep_all,
)

WEEK = 7 * 86_400

NO_CURSORS = ["soon", "-1", "+1", " 1", "1_0", "\u0661", str(2**63), "9" * 40, "9" * 5_000, "~", "~-1", "~soon"]
"""Strings that no storage has ever returned as a cursor. Python reads some of them as numbers; no database holds those.
"""


class ReadingConformance(Conformance):
    """All that exists is found, in order."""

    # ── get ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_records_come_in_the_requested_order(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(3))
        refs = [Ref(QUEUE, name) for name in ("job-0002", "missing", "job-0000", "job-0002")]
        found = await storage.get([*refs, Ref("elsewhere", "job-0001")])

        assert [detail.job.ref if detail else None for detail in found] == [refs[0], None, refs[2], refs[0], None]

    async def test_an_empty_lookup_finds_nothing(self, storage: Storage) -> None:
        assert await storage.get([]) == []

    async def test_a_job_that_never_ran_has_no_runs(self, storage: Storage) -> None:
        await enqueue(storage, new_job())
        detail = await look(storage, new_job().ref)

        assert (detail.runs, detail.log) == ((), ())

    @pytest.mark.fault("W-N19")
    async def test_jobs_and_events_outlive_the_connection(self, storage: Storage) -> None:
        lease = await start(storage)
        await settle(storage, ALICE, lease, RAISED)
        before = await look(storage, lease.ref)
        events = await all_events(storage)
        await storage.close()
        await storage.open()

        assert await look(storage, lease.ref) == before
        assert await all_events(storage) == events

    @pytest.mark.statement(114)
    async def test_opening_or_closing_twice_has_no_further_effect(self, storage: Storage) -> None:
        await storage.open()
        await enqueue(storage, new_job())
        await storage.open()

        assert len(await claim(storage)) == 1

        await storage.close()
        await storage.close()
        await storage.open()

        assert (await record(storage, new_job().ref)).state is State.ACTIVE

    async def test_each_finding_of_an_examination_has_a_remedy(self, storage: Storage) -> None:
        for finding in await storage.examine():
            assert finding.message
            assert finding.remedy or finding.level == "ok"

    # ── find ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_jobs_are_listed_newest_first(self, storage: Storage, clock: ManualClock) -> None:
        for name in ("b", "c", "a"):
            await enqueue(storage, new_job(name))
            clock.advance(1)
        page = await storage.find(Query())

        assert [job.id for job in page.jobs] == ["a", "c", "b"]
        assert page.next is None

    @pytest.mark.parametrize("cursor", [*NO_CURSORS, ""])
    async def test_a_page_after_an_invalid_cursor_is_refused(self, storage: Storage, cursor: str) -> None:
        await enqueue(storage, *new_jobs(2))

        with pytest.raises(ValueError, match="not a cursor"):
            await storage.find(Query(after=cursor))

        assert (await storage.find(Query(after=str(2**63 - 1)))).jobs != ()

    @pytest.mark.parametrize("cursor", NO_CURSORS)
    async def test_events_after_an_invalid_cursor_are_refused(
        self, storage: Storage, clock: ManualClock, cursor: str
    ) -> None:
        app = EventReader("app", "process-1")
        await storage.events(reader=app)
        names = await happenings(storage, clock, 2)

        for reader in (None, app):
            with pytest.raises(ValueError, match="not a cursor"):
                await storage.events(cursor, reader=reader)

        beyond = (await storage.events(str(2**63 - 1))).events
        assert [type(event) for event in beyond[:1]] == [EventsTrimmed]
        # The stored position of the reader is unchanged.
        assert ids((await storage.events(reader=app)).events) == names

    async def test_pages_join_without_gap_or_overlap(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(25))
        seen: list[Ref] = []
        cursor: str | None = None
        sizes: list[int] = []
        while True:
            page = await storage.find(Query(limit=10, after=cursor))
            seen += [job.ref for job in page.jobs]
            sizes.append(len(page.jobs))
            # Jobs that are added meanwhile are newer, and shift no page.
            await enqueue(storage, new_job(f"new-{len(sizes)}"))
            cursor = page.next
            if cursor is None:
                break

        assert sizes == [10, 10, 5]
        assert sorted(seen) == sorted(job.ref for job in new_jobs(25))

    async def test_a_page_that_is_just_full_is_the_last(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(10))

        assert (await storage.find(Query(limit=10))).next is None

    @pytest.mark.parametrize("states", [(), (State.WAITING,), (State.WAITING, State.COMPLETED)])
    async def test_a_listing_with_a_limit_of_looks_ends_early_and_goes_on(
        self, storage: Storage, states: tuple[State, ...]
    ) -> None:
        rare = [new_job(f"rare-{number}", task="rare") for number in range(3)]
        await enqueue(storage, *rare)
        await enqueue(storage, *new_jobs(500))
        query = Query(states=states, tasks=("rare",), limit=2, looks=200)
        pages = [await storage.find(query)]
        while (cursor := pages[-1].next) is not None:
            pages.append(await storage.find(structs.replace(query, after=cursor)))

        assert pages[0].jobs == ()
        assert len(pages) <= 6
        assert sorted(job.id for page in pages for job in page.jobs) == sorted(job.id for job in rare)
        assert (await storage.find(structs.replace(query, looks=None))).jobs != ()

    async def test_a_listing_of_few_jobs_is_whole_although_it_may_look_at_few(self, storage: Storage) -> None:
        await enqueue(storage, new_job("a"))
        await settle(storage, ALICE, await claim_one(storage))
        await enqueue(storage, *new_jobs(4))

        async def found(*states: State) -> tuple[list[str], str | None]:
            page = await storage.find(Query(states=states, looks=100))
            return sorted(job.id for job in page.jobs), page.next

        assert await found(State.COMPLETED) == (["a"], None)
        assert await found(State.WAITING) == ([job.id for job in new_jobs(4)], None)
        assert (await found())[1] is None

    async def test_all_filters_of_a_query_apply(self, storage: Storage) -> None:
        await enqueue(storage, new_job("a"), new_job("b"), new_job("a", queue="mail"), new_job("c", delay=SECOND))
        await settle(storage, ALICE, await claim_one(storage))

        async def found(query: Query) -> set[tuple[str, str]]:
            return {(job.queue, job.id) for job in (await storage.find(query)).jobs}

        everything = {(QUEUE, "a"), (QUEUE, "b"), ("mail", "a"), (QUEUE, "c")}
        assert await found(Query()) == everything
        assert await found(Query(queues=(QUEUE,))) == everything - {("mail", "a")}
        assert await found(Query(queues=(QUEUE, "mail"))) == everything
        assert await found(Query(queues=("unheard-of",))) == set()
        assert await found(Query(states=(State.WAITING,))) == {(QUEUE, "b"), ("mail", "a")}
        assert await found(Query(states=(State.COMPLETED, State.DELAYED))) == {(QUEUE, "a"), (QUEUE, "c")}
        assert await found(Query(states=(State.WAITING,), queues=(QUEUE,))) == {(QUEUE, "b")}
        assert await found(Query(tasks=("add",))) == everything
        assert await found(Query(tasks=("other",))) == set()
        assert await found(Query(id="a")) == {(QUEUE, "a"), ("mail", "a")}
        assert await found(Query(id="a", queues=("mail",))) == {("mail", "a")}

    async def test_jobs_are_found_by_when_they_were_enqueued(self, storage: Storage, clock: ManualClock) -> None:
        begin = clock.now()
        for number in range(4):
            await enqueue(storage, new_job(str(number), delay=number * SECOND))
            clock.advance(1)

        async def found(after: int | None, before: int | None, *states: State) -> list[str]:
            query = Query(created_after=after, created_before=before, states=states)
            return [job.id for job in (await storage.find(query)).jobs]

        # The range includes its first instant and excludes its last one.
        assert await found(begin + SECOND, begin + 3 * SECOND) == ["2", "1"]
        assert await found(begin + 2 * SECOND, None) == ["3", "2"]
        assert await found(None, begin + SECOND) == ["0"]
        assert await found(begin + SECOND, begin + SECOND) == []
        assert await found(begin + SECOND, None, State.DELAYED, State.WAITING) == ["3", "2", "1"]
        assert await found(None, None, State.WAITING) == ["0"]

    async def test_pages_of_a_filtered_listing_join(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(30))
        for lease in (await claim(storage, room=30))[::2]:
            await settle(storage, ALICE, lease)
        first = await storage.find(Query(states=(State.COMPLETED,), limit=10))
        second = await storage.find(Query(states=(State.COMPLETED,), limit=10, after=first.next))

        assert (len(first.jobs), len(second.jobs), second.next) == (10, 5, None)
        assert {job.state for job in (*first.jobs, *second.jobs)} == {State.COMPLETED}
        assert len({job.ref for job in (*first.jobs, *second.jobs)}) == 15

    # ── internal queues ───────────────────────────────────────────────────────────────────────────────────────────

    async def test_only_a_listing_that_names_it_has_an_internal_queue(self, storage: Storage) -> None:
        refs = await enqueue(storage, new_job(), new_job(queue=OPS_QUEUE), new_job(queue=WEBHOOKS_QUEUE, delay=SECOND))
        plain, operation, delivery = refs
        listings = [
            Query(),
            Query(looks=100),
            Query(states=(State.WAITING, State.DELAYED)),
            Query(states=(State.WAITING,), looks=1),
            Query(states=(State.DELAYED,), order="due"),
            Query(id="job"),
        ]

        found = [job.ref for query in listings for job in (await storage.find(query)).jobs]
        assert set(found) == {plain}
        for ref in (operation, delivery):
            assert [job.ref for job in (await storage.find(Query(queues=(ref.queue,)))).jobs] == [ref]
        assert len((await storage.find(Query(queues=(QUEUE, *INTERNAL_QUEUES)))).jobs) == 3

    async def test_only_a_survey_that_names_it_has_an_internal_queue(self, storage: Storage) -> None:
        await enqueue(storage, new_job(), new_job(queue=OPS_QUEUE))
        await storage.tune(Target("queue", WEBHOOKS_QUEUE), Settings(paused=True))
        await settle(storage, ALICE, await claim_one(storage, queue=OPS_QUEUE), Rejected(ERROR))
        survey = await storage.survey(faults=10)

        assert ([queue.queue for queue in survey.queues], survey.faults) == ([QUEUE], ())

        named = await storage.survey(INTERNAL_QUEUES, faults=10)
        assert [queue.queue for queue in named.queues] == list(INTERNAL_QUEUES)
        assert [fault.queue for fault in named.faults] == [OPS_QUEUE]

    async def test_a_survey_leaves_out_workers_of_internal_queues(self, storage: Storage) -> None:
        await storage.renew(RenewRequest(ALICE, worker=WorkerInfo((QUEUE, OPS_QUEUE))))
        await storage.renew(RenewRequest(BOB, worker=WorkerInfo(INTERNAL_QUEUES)))

        async def workers(*queues: str) -> set[Owner]:
            return {worker.owner for worker in (await storage.survey(queues)).workers}

        assert await workers() == await workers(QUEUE) == {ALICE}
        assert await workers(OPS_QUEUE) == {ALICE, BOB}

    # ── survey ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_survey_counts_by_queue_and_state(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(5), new_job("later", delay=SECOND), *new_jobs(2, queue="mail"))
        one, two, _ = await claim(storage, room=3)
        await settle(storage, ALICE, one)
        await settle(storage, ALICE, two, RAISED)
        queues = {queue.queue: queue for queue in (await storage.survey()).queues}

        def counted(queue: str) -> dict[State, int]:
            return {state: count for state, count in queues[queue].counts.items() if count}

        assert counted(QUEUE) == {State.WAITING: 2, State.DELAYED: 2, State.ACTIVE: 1, State.COMPLETED: 1}
        assert counted("mail") == {State.WAITING: 2}
        assert not queues[QUEUE].paused

    async def test_a_survey_can_be_limited_to_some_queues(self, storage: Storage) -> None:
        await enqueue(storage, new_job(), new_job(queue="mail"), new_job(queue="reports"))
        queues = (await storage.survey(["mail", "unheard-of"])).queues

        assert {queue.queue for queue in queues} == {"mail", "unheard-of"}
        assert [sum(queue.counts.values()) for queue in queues if queue.queue == "unheard-of"] == [0]

    async def test_a_survey_says_how_long_the_oldest_has_waited(self, storage: Storage, clock: ManualClock) -> None:
        async def oldest() -> int | None:
            return (await storage.survey([QUEUE])).queues[0].oldest_waiting

        assert await oldest() is None

        await enqueue(storage, new_job("first"))
        clock.advance(3)
        await enqueue(storage, new_job("urgent", boost=60 * SECOND), new_job("later", delay=60 * SECOND))
        clock.advance(2)

        assert await oldest() == 5 * SECOND

        await claim(storage)

        assert await oldest() is None

    async def test_the_oldest_wait_is_right_after_the_clock_was_set_back(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, new_job("ahead"))
        clock.step_wall(-60)
        await enqueue(storage, new_job("back"))
        clock.advance(5)

        assert (await storage.survey([QUEUE])).queues[0].oldest_waiting == 5 * SECOND

        clock.advance(60)

        assert (await storage.survey([QUEUE])).queues[0].oldest_waiting == 65 * SECOND

    async def test_a_survey_has_the_storages_time_and_the_last_sweep(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        survey = await storage.survey()

        assert (survey.now, survey.swept_ago, survey.leaders, survey.workers) == (clock.now(), None, (), ())

        await storage.sweep(bid(term=4 * SECOND))
        clock.advance(3)
        survey = await storage.survey()

        assert (survey.now, survey.swept_ago) == (clock.now(), 3 * SECOND)
        assert {term.owner for term in survey.leaders} == {REAPER.id}

        clock.advance(1)

        assert (await storage.survey()).leaders == ()

    async def test_a_silent_worker_is_still_shown(self, storage: Storage, clock: ManualClock) -> None:
        await storage.renew(RenewRequest(ALICE, worker=WorkerInfo(("default",), 10, 1, 500_000)))
        clock.advance(60)
        worker = (await storage.survey()).workers[0]

        assert (worker.owner, worker.seen_ago, worker.turned_ago) == (ALICE, 60 * SECOND, 60_500_000)

    # ── events ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_events_come_in_order_with_their_time(self, storage: Storage, clock: ManualClock) -> None:
        names = await happenings(storage, clock, 7)
        events = await all_events(storage)

        assert [event.id for event in events if isinstance(event, JobCompleted)] == names
        assert [event.at for event in events] == [
            moment(clock.now() - seconds * SECOND) for seconds in range(len(names), 0, -1)
        ]
        assert len({event.cursor for event in events}) == len(names)
        assert all(event.cursor for event in events)

    async def test_an_empty_log_gives_no_events(self, storage: Storage) -> None:
        page = await storage.events()

        assert page.events == ()
        assert (await storage.events(page.next)).events == ()

    async def test_reading_resumes_at_the_returned_cursor(self, storage: Storage, clock: ManualClock) -> None:
        names = await happenings(storage, clock, 10)
        first = await storage.events(limit=4)
        second = await storage.events(first.next, limit=4)
        third = await storage.events(second.next, limit=4)
        fourth = await storage.events(third.next, limit=4)

        assert [ids(page.events) for page in (first, second, third, fourth)] == [names[:4], names[4:8], names[8:], []]

        more = await happenings(storage, clock, 2, prefix="more")

        assert ids((await storage.events(fourth.next)).events) == more
        assert ids((await storage.events(second.next)).events) == names[8:] + more
        assert ids((await storage.events()).events) == names + more

    async def test_reading_resumes_at_the_cursor_of_an_event(self, storage: Storage, clock: ManualClock) -> None:
        names = await happenings(storage, clock, 5)
        events = (await storage.events()).events

        assert ids((await storage.events(events[1].cursor)).events) == names[2:]
        assert ids((await storage.events(events[-1].cursor)).events) == []

    async def test_an_event_omits_a_large_result(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(2))
        small, large = await claim(storage)
        await settle(storage, ALICE, small, Returned(b'"\xc3\xbc"'))
        await settle(storage, ALICE, large, Returned(b"x" * 5000))

        assert [event.result for event in await all_events(storage) if isinstance(event, JobCompleted)] == [
            b'"\xc3\xbc"',
            None,
        ]

    async def test_an_event_is_read_as_it_was_recorded(self, storage: Storage) -> None:
        lease = await start(storage)
        sent = settled(lease, RAISED)
        await storage.exchange(ALICE, [sent])
        event = (await all_events(storage))[0]
        recorded = sent.events[0]

        assert isinstance(event, JobRetried)
        assert isinstance(recorded, JobRetried)
        assert (event.queue, event.id, event.task, event.run) == (QUEUE, "job", "add", 1)
        assert (event.delay, event.error, event.next_attempt) == (recorded.delay, recorded.error, 2)

    async def test_the_position_of_a_named_reader_is_kept(self, storage: Storage, clock: ManualClock) -> None:
        app = EventReader("app", "process-1")
        await storage.events(reader=app)
        names = await happenings(storage, clock, 6)
        first = await storage.events(limit=4, reader=app)
        second = await storage.events(first.next, limit=4, reader=app)
        third = await storage.events(second.next, limit=4, reader=app)

        assert [ids(page.events) for page in (first, second, third)] == [names[:4], names[4:], []]

        more = await happenings(storage, clock, 1, prefix="more")

        # Without a cursor, the stored position counts.
        assert ids((await storage.events(reader=app)).events) == more

    async def test_recent_events_are_read_by_their_age(self, storage: Storage, clock: ManualClock) -> None:
        names = await happenings(storage, clock, 6)
        ages = [0, SECOND - 1, SECOND, 3 * SECOND, 6 * SECOND, 60 * SECOND]
        found = [await storage.events(recorded_within(age)) for age in ages]
        two = await storage.events(recorded_within(3 * SECOND), limit=2)
        place = (await storage.events(recorded_within(3 * SECOND), limit=0)).next

        assert [ids(page.events) for page in found] == [[], [], names[5:], names[3:], names, names]
        assert ids(two.events) == names[3:5]
        assert ids((await storage.events(two.next)).events) == names[5:]
        assert ids((await storage.events(place)).events) == names[3:]
        assert (await storage.events(recorded_within(0))).next == (await storage.events()).next

    async def test_every_age_is_the_end_of_an_empty_log(self, storage: Storage, clock: ManualClock) -> None:
        place = (await storage.events(recorded_within(60 * SECOND))).next
        names = await happenings(storage, clock, 1)

        assert ids((await storage.events(place)).events) == names

    async def test_an_age_beyond_a_trimmed_log_gives_the_events_that_are_left(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await happenings(storage, clock, 1, prefix="old")
        clock.advance(WEEK)
        names = await happenings(storage, clock, 2)
        await sweep_all(storage)

        page = await storage.events(recorded_within(2 * WEEK * SECOND))
        assert [type(event).__name__ for event in page.events] == ["JobCompleted", "JobCompleted"]
        assert ids(page.events) == names

    async def test_a_new_named_reader_begins_at_the_requested_position(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        names = await happenings(storage, clock, 6)
        place = (await storage.events(recorded_within(3 * SECOND), limit=0)).next
        page = await storage.events(limit=1, reader=EventReader("app", "process-1", place))

        assert ids(page.events) == names[3:4]
        assert (await storage.events(reader=EventReader("audit", "process-1"))).events == ()

        # A reader that is known keeps its position.
        end = (await storage.events(EVENTS_END)).next
        rest = await storage.events(page.next, reader=EventReader("app", "process-1", end))
        assert ids(rest.events) == names[4:]

    async def test_a_lent_batch_of_events_is_given_to_no_other_reader(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        first, second = EventReader("app", "process-1"), EventReader("app", "process-2")
        await storage.events(reader=first)
        names = await happenings(storage, clock, 6)
        lent = await storage.events(limit=4, reader=first)

        assert ids(lent.events) == names[:4]
        assert (await storage.events(limit=4, reader=second)).events == ()

        rest = await storage.events(lent.next, limit=4, reader=first)

        assert ids(rest.events) == names[4:]
        assert (await storage.events(limit=4, reader=second)).events == ()

    async def test_a_reader_that_acknowledged_all_events_holds_no_loan(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        first, second = EventReader("app", "process-1"), EventReader("app", "process-2")
        await storage.events(reader=first)
        names = await happenings(storage, clock, 2)
        lent = await storage.events(reader=first)
        await storage.events(lent.next, reader=first)
        more = await happenings(storage, clock, 2, prefix="more")

        assert ids(lent.events) == names
        assert ids((await storage.events(reader=second)).events) == more

    async def test_an_unacknowledged_batch_goes_to_the_next_reader(self, storage: Storage, clock: ManualClock) -> None:
        first, second = EventReader("app", "process-1"), EventReader("app", "process-2")
        await storage.events(reader=first)
        names = await happenings(storage, clock, 3)
        await storage.events(reader=first)
        clock.advance(EVENT_LOAN / SECOND - 0.000_001)

        assert (await storage.events(reader=second)).events == ()

        clock.advance(0.000_001)

        assert ids((await storage.events(reader=second)).events) == names

    async def test_a_late_acknowledgement_counts_but_does_not_end_the_new_loan(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        first, second = EventReader("app", "process-1"), EventReader("app", "process-2")
        await storage.events(reader=first)
        names = await happenings(storage, clock, 4)
        early = await storage.events(limit=3, reader=first)
        clock.advance(EVENT_LOAN / SECOND)
        await storage.events(limit=4, reader=second)
        late = await storage.events(early.next, limit=4, reader=first)

        assert late.events == ()

        # The second caller died as well. The third caller does not get the events that the first had handled.
        clock.advance(EVENT_LOAN / SECOND)

        assert ids((await storage.events(reader=first)).events) == names[3:]

    async def test_reading_again_renews_the_loan(self, storage: Storage, clock: ManualClock) -> None:
        first, second = EventReader("app", "process-1"), EventReader("app", "process-2")
        await storage.events(reader=first)
        await happenings(storage, clock, 2)
        await storage.events(reader=first)
        for _ in range(5):
            clock.advance(EVENT_LOAN / SECOND / 2)
            await storage.events(limit=1, reader=first)

            assert (await storage.events(reader=second)).events == ()

    async def test_an_acknowledgement_after_the_loan_counts_without_another_reader(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        only = EventReader("app", "process-1")
        await storage.events(reader=only)
        names = await happenings(storage, clock, 4)
        lent = await storage.events(limit=3, reader=only)
        clock.advance(60)

        assert ids((await storage.events(lent.next, reader=only)).events) == names[3:]

    async def test_a_loan_does_not_outlast_a_clock_set_back(self, storage: Storage, clock: ManualClock) -> None:
        first, second = EventReader("app", "process-1"), EventReader("app", "process-2")
        await storage.events(reader=first)
        names = await happenings(storage, clock, 2)
        await storage.events(reader=first)
        clock.step_wall(-3600)
        clock.advance(EVENT_LOAN / SECOND)

        assert ids((await storage.events(reader=second)).events) == names

    async def test_readers_with_other_names_are_independent(self, storage: Storage, clock: ManualClock) -> None:
        app, audit = EventReader("app", "process-1"), EventReader("audit", "process-1")
        await storage.events(reader=app)
        await storage.events(reader=audit)
        names = await happenings(storage, clock, 3)
        mine = await storage.events(reader=app)
        await storage.events(mine.next, reader=app)

        assert ids((await storage.events(reader=audit)).events) == names
        assert ids((await storage.events()).events) == names

    async def test_concurrent_callers_share_no_event(self, storage: Storage, clock: ManualClock) -> None:
        callers = [EventReader("app", f"process-{number}") for number in range(8)]
        await storage.events(reader=callers[0])
        names = await happenings(storage, clock, 3)
        pages = await asyncio.gather(*(storage.events(reader=caller) for caller in callers))

        assert [ids(page.events) for page in pages if page.events] == [names]

    @pytest.mark.fault("W-T23")
    async def test_the_position_of_a_reader_outlives_the_connection(self, storage: Storage, clock: ManualClock) -> None:
        app = EventReader("app", "process-1")
        await storage.events(reader=app)
        names = await happenings(storage, clock, 4)
        lent = await storage.events(limit=2, reader=app)
        await storage.events(lent.next, limit=1, reader=app)
        await storage.close()
        await storage.open()
        clock.advance(EVENT_LOAN / SECOND)

        assert ids((await storage.events(reader=EventReader("app", "process-2"))).events) == names[2:]

    async def test_a_long_log_is_read_to_its_end(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(300))
        while leases := await claim(storage, BOB):
            await storage.exchange(BOB, [settled(lease) for lease in leases])

        assert ids(await all_events(storage)) == [job.id for job in new_jobs(300)]

    async def test_pause_events_keep_their_order_among_job_events(self, storage: Storage, clock: ManualClock) -> None:
        await happenings(storage, clock, 1)
        await storage.tune(Target("queue", QUEUE), Settings(paused=True))
        await storage.tune(Target("queue", QUEUE), Settings(paused=False))
        await happenings(storage, clock, 1, prefix="more")

        assert [type(event).__name__ for event in await all_events(storage)] == [
            "JobCompleted",
            "QueuePaused",
            "QueueResumed",
            "JobCompleted",
        ]


async def happenings(storage: Storage, clock: ManualClock, count: int, *, prefix: str = "job") -> list[str]:
    """Let `number` jobs complete, a second apart, to have events to read. Return their ids."""
    names = [f"{prefix}-{number}" for number in range(count)]
    for name in names:
        await settle(storage, ALICE, await start(storage, new_job(name)))
        clock.advance(1)
    return names


def ids(events: tuple[AnyEvent, ...] | list[AnyEvent]) -> list[str]:
    """Return the ids of the jobs in these events."""
    return [event.id for event in events if isinstance(event, JobEvent)]
