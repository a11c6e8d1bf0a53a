"""Conformance tests of retention: finished jobs are kept for the time that was set, and then deleted completely."""

import pytest

from tenure.clock import SECOND
from tenure.core.events import EventsTrimmed, JobDeleted, WorkerStarted
from tenure.core.job import (
    FOREVER,
    CollectKey,
    DebounceKey,
    Key,
    NewJob,
    Policy,
    Ref,
    StallTerms,
    UniqueKey,
)
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.outcome import Cancelled, Rejected, Returned
from tenure.core.retention import EVENTS_KEPT, KEPT, KeepRule, RetentionRules
from tenure.storage.protocol import (
    EVENTS_END,
    TRIM_LIMIT,
    CancelJob,
    DeleteJob,
    LeaseRenewal,
    NewLogLine,
    Query,
    RedriveJob,
    RenewRequest,
    RescheduleJob,
    RetainJob,
    RevisionResult,
    Settings,
    Storage,
    Target,
    job_topic,
)
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    ERROR,
    QUEUE,
    RAISED,
    Conformance,
    bid,
    claim,
    claim_one,
    counted,
    enqueue,
    events_of,
    look,
    new_job,
    new_jobs,
    record,
    settle,
    settled,
    start,
    states,
    sweep_all,
)
from tenure_testing.conformance.notices import woken_by

HOUR = 3600
DAY = 24 * HOUR
THIS_QUEUE = Target("queue", QUEUE)

ENDS: tuple[State, ...] = (State.COMPLETED, State.FAILED, State.CANCELLED, State.EXPIRED)

BRIEF = Policy(result_ttl=60 * SECOND)
LASTING = Policy(result_ttl=10 * DAY * SECOND)


class RetentionConformance(Conformance):
    """Finished jobs are kept for the time that was set, and then deleted completely."""

    @pytest.mark.fault("W-T15", "W-B5")
    @pytest.mark.statement(36, 67)
    @pytest.mark.parametrize(
        ("state", "seconds"),
        [(State.COMPLETED, HOUR), (State.FAILED, 30 * DAY), (State.CANCELLED, 7 * DAY), (State.EXPIRED, 7 * DAY)],
    )
    async def test_each_outcome_is_kept_for_its_time(
        self, storage: Storage, clock: ManualClock, state: State, seconds: int
    ) -> None:
        ref = await ended(storage, clock, state)
        clock.advance(seconds - 0.000_001)
        await sweep_all(storage)

        assert (await record(storage, ref)).state is state

        clock.advance(0.000_001)
        swept = await storage.sweep(bid())

        assert swept.did["trimmed"] == 1
        assert await storage.get([ref]) == [None]
        assert (await storage.find(Query())).jobs == ()
        assert await counted(storage) == {}

    @pytest.mark.statement(67)
    @pytest.mark.parametrize("state", ENDS)
    async def test_the_newest_jobs_of_each_outcome_are_kept(
        self, storage: Storage, clock: ManualClock, state: State
    ) -> None:
        keep = RetentionRules(**{state.value: KeepRule(DAY * SECOND, 2)})
        await storage.tune(THIS_QUEUE, Settings(retention=keep))
        for name in ("e", "a", "d", "b", "c"):
            await ended(storage, clock, state, name)
            clock.advance(1)
        await sweep_all(storage)

        assert await states(storage) == {"b": state, "c": state}

        await storage.tune(THIS_QUEUE, Settings(retention=RetentionRules(**{state.value: KeepRule(DAY * SECOND, 0)})))
        await sweep_all(storage)

        assert await states(storage) == {}

    @pytest.mark.parametrize("state", ENDS)
    async def test_a_queue_keeps_jobs_for_its_configured_time(
        self, storage: Storage, clock: ManualClock, state: State
    ) -> None:
        keep = RetentionRules(**{state.value: KeepRule(5 * SECOND)})
        settings = await storage.tune(THIS_QUEUE, Settings(retention=keep))
        here = await ended(storage, clock, state)
        there = await ended(storage, clock, state, queue="mail")
        clock.advance(5)
        await sweep_all(storage)

        assert settings.retention == keep
        assert await storage.get([here]) == [None]
        assert (await record(storage, there)).state is state

    async def test_the_first_limit_to_be_reached_deletes_a_job(self, storage: Storage, clock: ManualClock) -> None:
        await storage.tune(THIS_QUEUE, Settings(retention=RetentionRules(completed=KeepRule(10 * SECOND, 3))))
        for number in range(5):
            await ended(storage, clock, State.COMPLETED, f"job-{number}")
            clock.advance(2)
        await sweep_all(storage)

        assert set(await states(storage)) == {"job-2", "job-3", "job-4"}

        clock.advance(4)
        await sweep_all(storage)

        assert set(await states(storage)) == {"job-3", "job-4"}

    async def test_each_outcome_is_counted_separately(self, storage: Storage, clock: ManualClock) -> None:
        await storage.tune(THIS_QUEUE, Settings(retention=RetentionRules(completed=KeepRule(DAY * SECOND, 1))))
        for number in range(2):
            for state in ENDS:
                await ended(storage, clock, state, f"{state}-{number}")
        clock.advance(1)
        await sweep_all(storage)

        assert await counted(storage) == {
            State.COMPLETED: 1,
            State.FAILED: 2,
            State.CANCELLED: 2,
            State.EXPIRED: 2,
        }

    async def test_an_unset_rule_keeps_its_value(self, storage: Storage, clock: ManualClock) -> None:
        first = RetentionRules(completed=KeepRule(5 * SECOND, 7))
        second = RetentionRules(failed=KeepRule(6 * SECOND))
        await storage.tune(THIS_QUEUE, Settings(retention=first))
        settings = await storage.tune(THIS_QUEUE, Settings(retention=second))
        ref = await ended(storage, clock, State.CANCELLED)
        clock.advance(DAY)
        await sweep_all(storage)

        assert settings.retention == RetentionRules(completed=KeepRule(5 * SECOND, 7), failed=KeepRule(6 * SECOND))
        assert (await record(storage, ref)).state is State.CANCELLED
        assert KEPT[State.COMPLETED] == KeepRule(HOUR * SECOND, 10_000)

    async def test_a_retention_outlives_the_connection(self, storage: Storage, clock: ManualClock) -> None:
        keep = RetentionRules(completed=KeepRule(5 * SECOND, 7), expired=KeepRule(DAY * SECOND))
        await storage.tune(THIS_QUEUE, Settings(retention=keep))
        await storage.close()
        await storage.open()

        assert await storage.tune(THIS_QUEUE, Settings()) == Settings(retention=keep)

    @pytest.mark.fault("W-T17", "W-B5")
    async def test_a_trim_deletes_the_oldest_first_in_bounded_steps(self, storage: Storage, clock: ManualClock) -> None:
        count = TRIM_LIMIT + 60
        await enqueue(storage, *new_jobs(count))
        while leases := await claim(storage):
            await storage.exchange(ALICE, [settled(lease) for lease in leases])
            clock.advance(1)
        clock.advance(HOUR)
        first = await storage.sweep(bid())
        left = await states(storage)

        assert (first.more, first.did["trimmed"]) == (True, TRIM_LIMIT)
        assert set(left) == {job.id for job in new_jobs(count)[TRIM_LIMIT:]}

        second = await storage.sweep(bid())

        assert (second.more, second.did["trimmed"]) == (False, 60)
        assert await states(storage) == {}

    async def test_all_data_of_a_job_is_deleted_with_it(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await storage.renew(
            RenewRequest(
                ALICE, (LeaseRenewal(lease.ref, lease.fence, log=(NewLogLine("info", "a line", {}),), progress=0.5),)
            )
        )
        await settle(storage, ALICE, lease)
        before = await look(storage, lease.ref)
        clock.advance(HOUR)
        await sweep_all(storage)
        await enqueue(storage, new_job())
        detail = await look(storage, lease.ref)

        assert (len(before.runs), len(before.log), before.job.result, before.job.progress) == (1, 1, b"3", 0.5)
        assert (detail.runs, detail.log, detail.job.result, detail.job.progress) == ((), (), None, None)
        assert (await claim_one(storage)).run == 1

    @pytest.mark.fault("W-N2")
    async def test_unfinished_jobs_of_any_age_are_kept(self, storage: Storage, clock: ManualClock) -> None:
        none = KeepRule(1, 0)
        await storage.tune(
            THIS_QUEUE,
            Settings(retention=RetentionRules(completed=none, failed=none, cancelled=none, expired=none)),
        )
        await start(storage, new_job("active", stall=StallTerms(lease=FOREVER)))
        await enqueue(storage, new_job("waiting"), new_job("delayed", delay=100 * DAY * SECOND))
        over = await ended(storage, clock, State.CANCELLED, "over")
        clock.advance(60 * DAY)
        await sweep_all(storage)

        assert await storage.get([over]) == [None]
        assert await states(storage) == {
            "active": State.ACTIVE,
            "waiting": State.WAITING,
            "delayed": State.DELAYED,
        }

    async def test_a_trim_records_no_event(self, storage: Storage, clock: ManualClock) -> None:
        ref = await ended(storage, clock, State.COMPLETED)
        clock.advance(HOUR)
        await sweep_all(storage)

        assert await storage.get([ref]) == [None]
        assert await events_of(storage, JobDeleted) == []

    async def test_a_late_settlement_of_a_trimmed_job_gets_the_verdict_gone(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage)
        await settle(storage, ALICE, lease)
        clock.advance(HOUR)
        await sweep_all(storage)

        assert await settle(storage, ALICE, lease) == "gone"

    async def test_a_job_redriven_in_time_is_not_trimmed(self, storage: Storage, clock: ManualClock) -> None:
        ref = await ended(storage, clock, State.FAILED)
        clock.advance(30 * DAY - 1)
        await storage.revise([RedriveJob(ref)])
        clock.advance(5)
        await sweep_all(storage)

        assert (await record(storage, ref)).state is State.WAITING

    # ── a lifetime of its own ─────────────────────────────────────────────────────────────────────────────────────

    async def test_a_short_result_ttl_precedes_the_rule_of_the_queue(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage, new_job(policy=BRIEF))
        clock.advance(1)
        await settle(storage, ALICE, lease)

        assert (await record(storage, lease.ref)).kept_until == clock.now() + 60 * SECOND

        clock.advance(59.999_999)
        await sweep_all(storage)

        assert (await record(storage, lease.ref)).result == b"3"

        clock.advance(0.000_001)
        await sweep_all(storage)

        assert await storage.get([lease.ref]) == [None]
        assert await counted(storage) == {}

    @pytest.mark.fault("W-P7")
    async def test_a_long_result_ttl_outlasts_the_time_and_count_of_the_queue(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.tune(THIS_QUEUE, Settings(retention=RetentionRules(completed=KeepRule(5 * SECOND, 1))))
        for number in range(3):
            await settle(storage, ALICE, await start(storage, new_job(f"lasting-{number}", policy=LASTING)))
            await ended(storage, clock, State.COMPLETED, f"usual-{number}")
            clock.advance(1)
        await sweep_all(storage)

        assert set(await states(storage)) == {"lasting-0", "lasting-1", "lasting-2", "usual-2"}

        clock.advance(9 * DAY)
        await sweep_all(storage)

        assert set(await states(storage)) == {"lasting-0", "lasting-1", "lasting-2"}

    async def test_a_result_expires_to_the_microsecond_without_a_sweep(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage, new_job(policy=BRIEF))
        await settle(storage, ALICE, lease)
        ref = lease.ref
        clock.advance(59.999_999)

        assert (await record(storage, ref)).state is State.COMPLETED

        clock.advance(0.000_001)
        revised = await storage.revise(
            [
                CancelJob(ref),
                RedriveJob(ref),
                RescheduleJob(ref, delay=0),
                RetainJob(ref, HOUR * SECOND),
                DeleteJob(ref),
            ]
        )

        assert await storage.get([ref]) == [None]
        assert (await storage.find(Query())).jobs == ()
        assert (await storage.find(Query(id=ref.id, states=(State.COMPLETED,)))).jobs == ()
        assert revised == [RevisionResult(ref, "gone")] * 5
        assert await events_of(storage, JobDeleted) == []

    async def test_pages_omit_expired_jobs_that_are_not_yet_swept(self, storage: Storage, clock: ManualClock) -> None:
        for number in range(6):
            job = new_job(f"job-{number}", policy=BRIEF if number % 2 else Policy())
            await settle(storage, ALICE, await start(storage, job))
            clock.advance(1)
        clock.advance(60)
        first = await storage.find(Query(limit=2))
        second = await storage.find(Query(limit=2, after=first.next))

        assert [[job.id for job in page.jobs] for page in (first, second)] == [["job-4", "job-2"], ["job-0"]]
        assert second.next is None

    async def test_a_result_ttl_applies_to_results_only(self, storage: Storage, clock: ManualClock) -> None:
        failed = await start(storage, new_job("failed", policy=BRIEF))
        await settle(storage, ALICE, failed, Rejected(ERROR))
        cancelled = await start(storage, new_job("cancelled", policy=BRIEF))
        await settle(storage, ALICE, cancelled, Cancelled())
        clock.advance(HOUR)
        await sweep_all(storage)

        assert await states(storage) == {"failed": State.FAILED, "cancelled": State.CANCELLED}

    async def test_an_id_is_free_when_its_result_has_expired(self, storage: Storage, clock: ManualClock) -> None:
        job = new_job(policy=BRIEF)
        old = await start(storage, job)
        await settle(storage, ALICE, old)
        clock.advance(59.999_999)

        assert [receipt.action for receipt in await storage.enqueue([job])] == ["duplicate"]

        clock.advance(0.000_001)

        assert [receipt.action for receipt in await storage.enqueue([job, job])] == ["created", "duplicate"]

        detail = await look(storage, job.ref)

        assert (detail.job.state, detail.job.starts, detail.job.result, detail.runs) == (State.WAITING, 0, None, ())
        assert detail.job.kept_until is None

        new = await claim_one(storage, BOB)

        assert (new.run, new.fence > old.fence) == (1, True)
        # The old lease settles nothing of the new job. The storage still recognizes the settlement of the old run.
        assert await settle(storage, ALICE, old) == "duplicate"
        assert await settle(storage, BOB, new) == "done"
        assert await counted(storage) == {State.COMPLETED: 1}

    async def test_expired_results_are_trimmed_in_bounded_steps(self, storage: Storage, clock: ManualClock) -> None:
        count = TRIM_LIMIT + 60
        await enqueue(storage, *(new_job(f"job-{number:04}", policy=BRIEF) for number in range(count)))
        while leases := await claim(storage):
            await storage.exchange(ALICE, [settled(lease) for lease in leases])
        clock.advance(60)
        first, second = await storage.sweep(bid()), await storage.sweep(bid())

        assert (first.more, first.did["trimmed"]) == (True, TRIM_LIMIT)
        assert (second.more, second.did["trimmed"]) == (False, 60)
        assert await counted(storage) == {}

    # ── in step with completions ──────────────────────────────────────────────────────────────────────────────────

    async def test_completions_delete_the_oldest_above_the_count_and_a_tenth(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        keep = KeepRule(DAY * SECOND, 60)
        await storage.tune(THIS_QUEUE, Settings(retention=RetentionRules(completed=keep)))
        most: list[int] = []
        for burst in range(8):
            await complete(storage, clock, *(new_job(f"job-{burst}-{number:02}") for number in range(40)))
            most.append((await counted(storage))[State.COMPLETED])
        left = await states(storage)

        # No sweep has run yet.
        assert (keep.most, most) == (160, [40, 80, 120, 160, 149, 138, 127, 116])
        assert sorted(left) == [f"job-{number // 40}-{number % 40:02}" for number in range(320 - 116, 320)]

        await sweep_all(storage)

        assert len(await states(storage)) == 60

    async def test_completions_delete_a_bounded_part_of_a_backlog(self, storage: Storage, clock: ManualClock) -> None:
        await complete(storage, clock, *(new_job(f"job-{number:03}") for number in range(200)))
        await storage.tune(THIS_QUEUE, Settings(retention=RetentionRules(completed=KeepRule(DAY * SECOND, 0))))
        await complete(storage, clock, *(new_job(f"late-{number}") for number in range(40)))
        left = await states(storage)

        # A quarter more than were completed, and one.
        assert len(left) == 200 + 40 - 51
        assert "job-050" not in left
        assert "job-051" in left

    async def test_a_job_forgotten_by_completions_leaves_nothing(self, storage: Storage, clock: ManualClock) -> None:
        await storage.tune(THIS_QUEUE, Settings(retention=RetentionRules(completed=KeepRule(DAY * SECOND, 0))))
        first = new_job("first", payload=b"p" * 2_000)
        lease = await start(storage, first)
        await settle(storage, ALICE, lease, RAISED)
        clock.advance(DAY)
        lease = await claim_one(storage)
        line = NewLogLine("info", "a line", {})
        await storage.renew(
            RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence, log=(line,), progress=0.5, trace="here"),))
        )
        before = await look(storage, lease.ref)
        await settle(storage, ALICE, lease, Returned(b"r" * 2_000))
        await complete(storage, clock, *(new_job(f"job-{number:03}") for number in range(100)))

        assert (before.runs[-1].trace, len(before.log), before.job.progress) == ("here", 1, 0.5)
        assert await storage.get([first.ref]) == [None]

        await enqueue(storage, new_job("first"))
        detail = await look(storage, first.ref)

        assert (detail.runs, detail.log, detail.job.result, detail.job.progress) == ((), (), None, None)
        assert (await claim_one(storage)).run == 1
        assert not [finding for finding in await storage.examine() if finding.level == "error"]

    async def test_completions_leave_jobs_with_other_records_to_the_sweep(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.tune(THIS_QUEUE, Settings(retention=RetentionRules(completed=KeepRule(DAY * SECOND, 0))))
        odd = [
            new_job("debounces", merge=DebounceKey("d", SECOND)),
            new_job("collects", merge=CollectKey("c", SECOND, 9)),
            new_job("lasts", policy=LASTING),
        ]
        usual = [
            new_job("unique", merge=UniqueKey("u")),
            new_job("keyed", keys=(Key("k"),)),
            new_job("fair", fair_key="tenant"),
            new_job("tagged", tags=("t",)),
        ]
        await enqueue(storage, *odd)
        clock.advance(2)
        await complete(storage, clock, *usual)
        await complete(storage, clock, *(new_job(f"job-{number:03}") for number in range(120)))
        left = await states(storage)

        assert {job.id for job in odd} <= set(left)
        assert not {job.id for job in usual} & set(left)

        await sweep_all(storage)

        assert set(await states(storage)) == {"lasts"}

    async def test_completions_delete_nothing_after_the_clock_was_set_back(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.tune(THIS_QUEUE, Settings(retention=RetentionRules(completed=KeepRule(DAY * SECOND, 0))))
        await complete(storage, clock, new_job("before"))
        clock.step_wall(-HOUR)
        await complete(storage, clock, *(new_job(f"job-{number:03}") for number in range(120)))

        assert (await counted(storage))[State.COMPLETED] == 121

        clock.advance(2 * HOUR)
        await complete(storage, clock, *(new_job(f"late-{number:03}") for number in range(40)))

        assert (await counted(storage))[State.COMPLETED] == 161 - 51

    @pytest.mark.slow
    async def test_retention_keeps_up_with_the_work(self, storage: Storage, clock: ManualClock) -> None:
        keep = KeepRule(DAY * SECOND, 1_000)
        await storage.tune(THIS_QUEUE, Settings(retention=RetentionRules(completed=keep)))
        most = 0
        for burst in range(200):
            await complete(storage, clock, *(new_job(f"job-{burst}-{number}") for number in range(100)))
            most = max(most, (await counted(storage))[State.COMPLETED])

        assert 1_000 < most <= 1_200

    @pytest.mark.slow
    async def test_the_event_log_keeps_its_bound_without_sweeps(self, storage: Storage) -> None:
        kept = EVENTS_KEPT.count
        assert kept is not None
        started = WorkerStarted(owner="o", host="h", pid=1, queues=(), concurrency=1)
        for _ in range(kept // 1_000 + 25):
            await storage.renew(RenewRequest(ALICE, events=(started,) * 1_000))
        (trimmed,) = (await storage.events(limit=0)).events
        last = places((await storage.events(EVENTS_END)).next)

        assert isinstance(trimmed, EventsTrimmed)
        assert last >= kept + 25_000
        assert kept <= last - places(trimmed.oldest) <= kept * 1.2

    # ── Retain ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_result_can_be_kept_for_longer(self, storage: Storage, clock: ManualClock) -> None:
        brief, usual = await completed(storage, new_job("brief", policy=BRIEF), new_job("usual"))
        clock.advance(30)
        revised = await storage.revise([RetainJob(brief.ref, 2 * DAY * SECOND), RetainJob(usual.ref, 2 * DAY * SECOND)])

        assert [(result.verdict, result.state) for result in revised] == [("done", State.COMPLETED)] * 2

        clock.advance(2 * DAY - 0.000_001)
        await sweep_all(storage)

        assert set(await states(storage)) == {"brief", "usual"}

        clock.advance(0.000_001)

        assert await states(storage) == {}

        await sweep_all(storage)

        assert await counted(storage) == {}

    async def test_a_result_can_be_kept_for_shorter(self, storage: Storage, clock: ManualClock) -> None:
        lasting, usual = await completed(storage, new_job("lasting", policy=LASTING), new_job("usual"))
        await storage.revise([RetainJob(lasting.ref, SECOND), RetainJob(usual.ref, SECOND)])
        clock.advance(1)

        assert await storage.get([lasting.ref, usual.ref]) == [None, None]

    async def test_the_last_retention_of_a_result_counts(self, storage: Storage, clock: ManualClock) -> None:
        (lease,) = await completed(storage, new_job())
        await storage.revise(
            [RetainJob(lease.ref, SECOND), RetainJob(lease.ref, DAY * SECOND), RetainJob(lease.ref, HOUR)]
        )
        before = await record(storage, lease.ref)
        await storage.revise([RetainJob(lease.ref, 5 * SECOND)])
        after = await record(storage, lease.ref)

        assert before.kept_until == clock.now() + HOUR
        assert after.kept_until == clock.now() + 5 * SECOND
        assert (after.result, after.finished) == (before.result, before.finished)

    async def test_a_result_retained_twice_counts_once(self, storage: Storage, clock: ManualClock) -> None:
        retained, *_ = await completed(storage, *new_jobs(3))
        for _ in range(2):
            await storage.revise([RetainJob(retained.ref, DAY * SECOND)])
        await storage.tune(
            Target("queue", QUEUE), Settings(retention=RetentionRules(completed=KeepRule(DAY * SECOND, 1)))
        )
        await sweep_all(storage)

        # One of the two other jobs exceeds the limit of one. The retained job does not count.
        assert set(await states(storage)) == {"job-0000", "job-0002"}
        assert [finding for finding in await storage.examine() if finding.level == "error"] == []

    async def test_only_a_result_can_be_retained(self, storage: Storage, clock: ManualClock) -> None:
        refs = [await ended(storage, clock, state, state.value) for state in ENDS[1:]]
        await start(storage, new_job("active"))
        await enqueue(storage, new_job("waiting"), new_job("delayed", delay=SECOND))
        refs += [Ref(QUEUE, name) for name in ("active", "waiting", "delayed")]
        before = [await look(storage, ref) for ref in refs]
        revised = await storage.revise([RetainJob(ref, SECOND) for ref in (*refs, Ref(QUEUE, "missing"))])

        assert [result.verdict for result in revised] == ["refused"] * 6 + ["gone"]
        assert [item.state and item.state.value for item in revised[:6]] == [ref.id for ref in refs]
        assert [await look(storage, ref) for ref in refs] == before

    async def test_a_new_retention_time_wakes_listeners_of_the_job(self, storage: Storage) -> None:
        (lease,) = await completed(storage, new_job())
        notices = storage.notices([job_topic(lease.ref)])
        await woken_by(storage, notices, lambda: storage.revise([RetainJob(lease.ref, SECOND)]))
        notices.close()

    async def test_a_retained_result_can_be_deleted(self, storage: Storage) -> None:
        (lease,) = await completed(storage, new_job(policy=LASTING))

        assert await storage.revise([DeleteJob(lease.ref)]) == [RevisionResult(lease.ref, "done", State.COMPLETED)]
        assert await storage.get([lease.ref]) == [None]


async def complete(storage: Storage, clock: ManualClock, *jobs: NewJob) -> None:
    """Enqueue jobs and complete all that are due, many in one call."""
    await enqueue(storage, *jobs)
    while leases := await claim(storage):
        clock.advance(0.001)
        await storage.exchange(ALICE, [settled(lease) for lease in leases])


async def completed(storage: Storage, *jobs: NewJob) -> list[Lease]:
    """Let jobs complete and return their leases."""
    leases: list[Lease] = []
    for job in jobs:
        leases.append(await start(storage, job))
        await settle(storage, ALICE, leases[-1])
    return leases


async def ended(storage: Storage, clock: ManualClock, state: State, name: str = "job", *, queue: str = QUEUE) -> Ref:
    """Bring a job into this final state now, and return its reference."""
    job = new_job(name, queue=queue, ttl=1 if state is State.EXPIRED else None)
    match state:
        case State.EXPIRED:
            await enqueue(storage, job)
            clock.advance(0.000_001)
            assert await claim(storage, queue=queue) == []
        case State.FAILED:
            await settle(storage, ALICE, await start(storage, job), Rejected(ERROR))
        case State.CANCELLED:
            await enqueue(storage, job)
            await storage.revise([CancelJob(job.ref)])
        case _:
            await settle(storage, ALICE, await start(storage, job))
    assert (await record(storage, job.ref)).state is state
    return job.ref


def places(cursor: str) -> int:
    """Return how many events are before a cursor, summed over the logs of all parts of the storage."""
    return sum(int(place) for place in cursor.split("."))
