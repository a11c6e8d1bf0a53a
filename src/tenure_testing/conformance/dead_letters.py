"""Conformance tests of dead letters: each is found by its fields and is redriven once, with all counters reset."""

from collections.abc import Callable

import pytest
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.events import JobFailed, JobRedriven
from tenure.core.fingerprint import FaultSurvey, fingerprint, shown_error
from tenure.core.job import Key, Policy, RecordedError, Redriving, Ref, StallTerms, unreadable_record
from tenure.core.lifecycle import State
from tenure.core.outcome import Cancelled, Outcome, Raised, Rejected, TimedOut, Unreadable
from tenure.core.retention import KeepRule, RetentionRules
from tenure.core.retry import Backoff
from tenure.storage.protocol import (
    SWEEP_LIMIT,
    CancelJob,
    DeleteJob,
    Query,
    RedriveJob,
    RevisionResult,
    Settings,
    Storage,
    Target,
    job_topic,
    queue_topic,
)
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    DEPUTY,
    ERROR,
    ONCE,
    QUEUE,
    RAISED,
    REAPER,
    Conformance,
    apply,
    bid,
    claim,
    claim_one,
    counted,
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
    sweep_all,
)
from tenure_testing.conformance.notices import woken_by

MINUTE = 60 * SECOND
RULED = Policy(
    retry=Backoff(max_attempts=2, kind="fixed", base=SECOND, jitter=0.0), redrive=Redriving(after=MINUTE, times=2)
)
RULED_ONCE = Policy(retry=Backoff(max_attempts=1), redrive=Redriving(after=MINUTE, times=1))

REASONS: tuple[tuple[Outcome, str], ...] = (
    (RAISED, "exhausted"),
    (TimedOut(ERROR), "timeout"),
    (Rejected(ERROR), "rejected"),
    (Unreadable(ERROR), "undecodable"),
)
"""Final outcomes of a run, each with the reason by which its job is found."""

NO_MATTER_OF_TIME: tuple[Outcome, ...] = (
    Rejected(ERROR),
    Unreadable(ERROR),
    Raised(ERROR, final=True),
    TimedOut(ERROR, final=True),
    Cancelled("enough"),
)
"""Outcomes that no later attempt would change."""


class DeadLettersConformance(Conformance):
    """Each dead letter is found by its fields and is redriven once, with all counters reset."""

    async def test_dead_letters_are_found_by_their_reason(self, storage: Storage, clock: ManualClock) -> None:
        for outcome, reason in REASONS:
            await settle(storage, ALICE, await start(storage, new_job(reason, policy=ONCE)), outcome)
        await start(storage, new_job("stalled", stall=StallTerms(max_stalls=0)))
        await recover(storage, clock)
        await start(storage, new_job("crashed", stall=StallTerms(max_stalls=0)))
        (taken,) = (await storage.reclaim(ALICE.id, REAPER)).stalled
        await apply(storage, REAPER, stalled(taken))

        async def found(*reasons: str) -> set[str]:
            return {job.id for job in (await storage.find(Query(states=(State.FAILED,), reasons=reasons))).jobs}

        every = ["exhausted", "timeout", "rejected", "undecodable", "stalled", "crashed"]
        assert [await found(reason) for reason in every] == [{reason} for reason in every]
        assert await found("stalled", "crashed") == {"stalled", "crashed"}
        assert await found("unheard-of") == set()
        assert await found() == set(every)

    async def test_jobs_are_found_by_all_of_their_tags(self, storage: Storage) -> None:
        await enqueue(
            storage,
            new_job("both", tags=("eu", "nightly")),
            new_job("one", tags=("eu",)),
            new_job("other", tags=("eu-west", "größe: 'x'")),
            new_job("none"),
        )

        async def found(*tags: str) -> set[str]:
            return {job.id for job in (await storage.find(Query(tags=tags))).jobs}

        assert await found("eu") == {"both", "one"}
        assert await found("nightly", "eu") == {"both"}
        assert await found("größe: 'x'") == {"other"}
        assert await found("e", "u") == set()
        assert await found() == {"both", "one", "other", "none"}

    async def test_jobs_are_found_by_when_they_ended(self, storage: Storage, clock: ManualClock) -> None:
        begin = clock.now()
        for number in range(4):
            await settle(storage, ALICE, await start(storage, new_job(f"job-{number}", policy=ONCE)), RAISED)
            clock.advance(1)
        await enqueue(storage, new_job("waiting"))

        async def found(after: int | None = None, before: int | None = None) -> set[str]:
            return {job.id[4:] for job in (await storage.find(Query(ended_after=after, ended_before=before))).jobs}

        # The range includes its first instant and excludes its last one.
        assert await found(begin + SECOND, begin + 3 * SECOND) == {"1", "2"}
        assert await found(after=begin + 2 * SECOND) == {"2", "3"}
        assert await found(before=begin + SECOND) == {"0"}
        assert await found(begin + SECOND, begin + SECOND) == set()
        assert await found(before=begin) == set()

    async def test_jobs_are_found_by_their_tasks(self, storage: Storage) -> None:
        await enqueue(storage, *(new_job(task, task=task) for task in ("add", "mail.send", "mail")))

        async def found(*tasks: str) -> set[str]:
            return {job.id for job in (await storage.find(Query(tasks=tasks))).jobs}

        assert await found("mail") == {"mail"}
        assert await found("mail", "add") == {"mail", "add"}

    async def test_jobs_are_found_by_owner_key_and_schedule(self, storage: Storage) -> None:
        await start(storage, new_job("running", keys=(Key("account:1"), Key("account:2"))))
        lease = await start(storage, new_job("ended", keys=(Key("account:1", 2),)), owner=BOB)
        await settle(storage, BOB, lease, RAISED)
        await start(storage, new_job("scheduled", schedule="nightly"), owner=BOB)
        await enqueue(storage, new_job("waiting", schedule="hourly"))

        async def found(query: Query) -> set[str]:
            return {job.id for job in (await storage.find(query)).jobs}

        assert await found(Query(owner=ALICE.id)) == {"running"}
        assert await found(Query(owner=BOB.id, states=(State.ACTIVE,))) == {"scheduled"}
        assert await found(Query(key="account:1")) == {"running", "ended"}
        assert await found(Query(key="account:2", queues=(QUEUE,))) == {"running"}
        assert await found(Query(key="account")) == set()
        assert await found(Query(schedule="nightly")) == {"scheduled"}
        assert await found(Query(schedule="hourly", states=(State.ACTIVE,))) == set()

    # ── by fault ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_survey_counts_failed_jobs_by_fault(self, storage: Storage, clock: ManualClock) -> None:
        begin = clock.now()
        failures: tuple[tuple[str, Outcome], ...] = (
            (QUEUE, RAISED),
            (QUEUE, Rejected(ERROR)),
            (QUEUE, RAISED),
            ("mail", RAISED),
            (QUEUE, RAISED),
        )
        for number, (queue, outcome) in enumerate(failures):
            lease = await start(storage, new_job(f"job-{number}", queue=queue, policy=ONCE))
            await settle(storage, ALICE, lease, outcome)
            clock.advance(1)
        exhausted, rejected = (fingerprint("add", reason, ERROR) for reason in ("exhausted", "rejected"))
        survey = await storage.survey(faults=10)

        assert survey.faults == (
            FaultSurvey(
                queue=QUEUE,
                fault=exhausted,
                count=3,
                first=begin,
                last=begin + 4 * SECOND,
                newest=tuple((begin + number * SECOND, f"job-{number}") for number in (4, 2, 0)),
                task="add",
                reason="exhausted",
                error=shown_error(ERROR),
            ),
            FaultSurvey(
                queue="mail",
                fault=exhausted,
                count=1,
                first=begin + 3 * SECOND,
                last=begin + 3 * SECOND,
                newest=((begin + 3 * SECOND, "job-3"),),
                task="add",
                reason="exhausted",
                error=shown_error(ERROR),
            ),
            FaultSurvey(
                queue=QUEUE,
                fault=rejected,
                count=1,
                first=begin + SECOND,
                last=begin + SECOND,
                newest=((begin + SECOND, "job-1"),),
                task="add",
                reason="rejected",
                error=shown_error(ERROR),
            ),
        )
        assert (await storage.survey(faults=1)).faults == survey.faults[:1]
        assert (await storage.survey(["mail"], faults=10)).faults == survey.faults[1:2]
        assert (await storage.survey()).faults == ()

    async def test_a_fault_names_its_newest_five_jobs(self, storage: Storage, clock: ManualClock) -> None:
        long = RecordedError("ValueError", "x" * 1_000, "Traceback ...")
        for number in range(7):
            await settle(storage, ALICE, await start(storage, new_job(f"job-{number}", policy=ONCE)), Raised(long))
            clock.advance(1)
        (fault,) = (await storage.survey(faults=10)).faults

        assert [id_ for _, id_ in fault.newest] == [f"job-{number}" for number in (6, 5, 4, 3, 2)]
        assert fault.error == RecordedError("ValueError", "x" * 200)

    async def test_a_job_leaves_its_fault_when_redriven_or_deleted(self, storage: Storage, clock: ManualClock) -> None:
        refs: list[Ref] = []
        for number in range(3):
            lease = await start(storage, new_job(f"job-{number}", policy=ONCE))
            await settle(storage, ALICE, lease, RAISED)
            refs.append(lease.ref)
        await storage.revise([RedriveJob(refs[0]), DeleteJob(refs[1])])
        (fault,) = (await storage.survey(faults=10)).faults
        redriven, _, failed = await storage.get(refs)

        assert (fault.count, [id_ for _, id_ in fault.newest]) == (1, ["job-2"])
        assert redriven is not None
        assert redriven.job.fault is None
        assert failed is not None
        assert failed.job.fault == fault.fault
        await storage.tune(
            Target("queue", QUEUE), Settings(retention=RetentionRules(failed=KeepRule(age=SECOND))), by="ops"
        )
        clock.advance(2)
        await sweep_all(storage)
        assert (await storage.survey(faults=10)).faults == ()

    async def test_failed_jobs_are_found_by_their_fault(self, storage: Storage) -> None:
        await enqueue(
            storage, *(new_job(f"job-{number:02}", policy=ONCE, task="ab"[number % 2]) for number in range(30))
        )
        for lease in await claim(storage):
            await settle(storage, ALICE, lease, RAISED)
        query = Query(fault=fingerprint("b", "exhausted", ERROR), limit=4)

        async def found(query: Query) -> list[str]:
            page = await storage.find(query)
            ids = [job.id for job in page.jobs]
            return ids if page.next is None else [*ids, *await found(structs.replace(query, after=page.next))]

        assert await found(query) == [f"job-{number:02}" for number in range(29, 0, -2)]
        assert await found(structs.replace(query, looks=3)) == await found(query)
        assert (await storage.find(structs.replace(query, states=(State.COMPLETED,)))).jobs == ()
        assert (await storage.find(structs.replace(query, tasks=("a",)))).jobs == ()
        assert (await storage.find(structs.replace(query, queues=("mail",)))).jobs == ()

    async def test_all_conditions_of_a_query_must_hold(self, storage: Storage, clock: ManualClock) -> None:
        begin = clock.now()
        cases: tuple[tuple[str, tuple[str, ...], Outcome], ...] = (
            ("mail", ("eu",), RAISED),
            ("mail", ("us",), RAISED),
            ("add", ("eu",), RAISED),
            ("mail", ("eu",), Rejected(ERROR)),
            ("mail", ("eu",), RAISED),
        )
        for number, (task, tags, outcome) in enumerate(cases):
            job = new_job(f"job-{number}", task=task, tags=tags, policy=ONCE)
            await settle(storage, ALICE, await start(storage, job), outcome)
            clock.advance(1)
        query = Query(
            queues=(QUEUE,),
            states=(State.FAILED,),
            tasks=("mail",),
            reasons=("exhausted",),
            tags=("eu",),
            ended_before=begin + 4 * SECOND,
        )

        assert [job.id for job in (await storage.find(query)).jobs] == ["job-0"]

    async def test_pages_of_a_filtered_query_join(self, storage: Storage) -> None:
        await enqueue(
            storage,
            *(
                new_job(f"job-{number:02}", policy=ONCE, tags=("odd",) if number % 2 else ("even",))
                for number in range(30)
            ),
        )
        for lease in await claim(storage):
            await settle(storage, ALICE, lease, RAISED)
        found: list[str] = []
        cursor: str | None = None
        pages = 0
        while pages == 0 or cursor is not None:
            page = await storage.find(Query(reasons=("exhausted",), tags=("odd",), limit=4, after=cursor))
            found += [job.id for job in page.jobs]
            cursor = page.next
            pages += 1

        assert found == [f"job-{number:02}" for number in range(29, 0, -2)]
        assert pages == 4

    # ── by a person ───────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_dead_letter_is_redriven_once(self, storage: Storage) -> None:
        lease = await start(storage, new_job(policy=ONCE))
        await settle(storage, ALICE, lease, RAISED)
        revised = await storage.revise([RedriveJob(lease.ref, "ops"), RedriveJob(lease.ref, "ops")])

        assert [(result.verdict, result.state) for result in revised] == [
            ("done", State.FAILED),
            ("refused", State.WAITING),
        ]
        assert len(await events_of(storage, JobRedriven)) == 1
        assert len(await claim(storage)) == 1

    async def test_a_redriven_job_with_an_unreadable_record_still_does_not_run(self, storage: Storage) -> None:
        for name, keys in (("plain", ()), ("keyed", (Key("k", 1),))):
            lease = await start(storage, new_job(name, keys=keys, policy=ONCE))
            error = unreadable_record("headers: garbage")
            await settle(storage, ALICE, lease, Unreadable(error))
            await storage.revise([RedriveJob(lease.ref, "ops")])
            waiting = await record(storage, lease.ref)
            again = await claim_one(storage)

            assert (waiting.state, waiting.error, waiting.reason) == (State.WAITING, error, None)
            assert again.ref == lease.ref
            assert again.job.unreadable == "headers: garbage"
            assert await settle(storage, ALICE, again, Unreadable(error)) == "done"

    async def test_a_redrive_wakes_the_queue_and_listeners_of_the_job(self, storage: Storage) -> None:
        for topic in (queue_topic(QUEUE), job_topic(new_job().ref)):
            lease = await start(storage)
            await settle(storage, ALICE, lease, Rejected(ERROR))
            notices = storage.notices([topic])
            await woken_by(storage, notices, lambda: storage.revise([RedriveJob(new_job().ref)]))
            notices.close()
            await storage.revise([DeleteJob(lease.ref)])

    async def test_a_delayed_redrive_becomes_due_after_its_delay(self, storage: Storage, clock: ManualClock) -> None:
        for name in ("first", "second"):
            await settle(storage, ALICE, await start(storage, new_job(name, policy=ONCE)), RAISED)
        clock.advance(5)
        await storage.revise(
            [RedriveJob(Ref(QUEUE, "second"), delay=2 * SECOND), RedriveJob(Ref(QUEUE, "first"), delay=4 * SECOND)]
        )
        job = await record(storage, Ref(QUEUE, "second"))

        assert (job.state, job.run_at, job.finished) == (State.DELAYED, clock.now() + 2 * SECOND, None)
        assert (await order(storage, ALICE, room=5)).next_due == 2 * SECOND

        clock.advance(3)
        await enqueue(storage, new_job("a-later"))
        clock.advance(1)

        assert [lease.ref.id for lease in await claim(storage)] == ["second", "a-later", "first"]

    async def test_a_paced_redrive_releases_jobs_one_by_one(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *new_jobs(4))
        for lease in await claim(storage):
            await settle(storage, ALICE, lease, Rejected(ERROR))
        await storage.revise([RedriveJob(job.ref, delay=place * SECOND) for place, job in enumerate(new_jobs(4))])
        turns: list[list[str]] = []
        for _ in range(4):
            turns.append([lease.ref.id for lease in await claim(storage)])
            clock.advance(1)

        assert turns == [["job-0000"], ["job-0001"], ["job-0002"], ["job-0003"]]

    async def test_a_redriven_job_has_fresh_budgets_and_keeps_its_runs(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        job = new_job(policy=RULED, stall=StallTerms(max_stalls=5))
        await enqueue(storage, job)
        await claim_one(storage)
        await recover(storage, clock)
        await exhaust(storage, clock)
        dead = await record(storage, job.ref)

        assert (dead.state, dead.starts, dead.failures, dead.stalls) == (State.FAILED, 3, 2, 1)

        await storage.revise([RedriveJob(job.ref, delay=SECOND)])
        clock.advance(1)
        again = await claim_one(storage)
        detail = await look(storage, job.ref)

        assert (again.run, again.job.attempt) == (4, 1)
        assert (again.job.failures, again.job.stalls, again.job.releases) == (0, 0, 0)
        assert again.fence > dead.fence
        assert [run.number for run in detail.runs] == [1, 2, 3, 4]
        assert detail.job.created == dead.created

    async def test_cancelled_and_expired_jobs_can_be_redriven(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("cancelled"), new_job("expired", ttl=1))
        await storage.revise([CancelJob(Ref(QUEUE, "cancelled"), "enough", "ops")])
        clock.advance(1)
        await sweep_all(storage)
        refs = [Ref(QUEUE, "cancelled"), Ref(QUEUE, "expired")]
        revised = await storage.revise([RedriveJob(ref, "ops", delay=SECOND) for ref in refs])

        assert [(result.verdict, result.state) for result in revised] == [
            ("done", State.CANCELLED),
            ("done", State.EXPIRED),
        ]
        assert [(event.id, event.by, event.was) for event in await events_of(storage, JobRedriven)] == [
            ("cancelled", "ops", "cancelled"),
            ("expired", "ops", "expired"),
        ]
        assert await counted(storage) == {State.DELAYED: 2}
        assert (await record(storage, refs[0])).cancel_at is None

    # ── by a rule ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_rule_redrives_with_doubling_delays_up_to_its_count(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, new_job(policy=RULED))
        for rest in (60, 120):
            await exhaust(storage, clock)
            dead = await record(storage, new_job().ref)

            assert dead.redrive_at == clock.now() + rest * SECOND

            clock.advance(rest - 0.000_001)
            await sweep_all(storage)

            assert (await record(storage, new_job().ref)).state is State.FAILED

            clock.advance(0.000_001)
            await sweep_all(storage)
            job = await record(storage, new_job().ref)

            assert (job.state, job.failures, job.redrive_at, job.error) == (State.WAITING, 0, None, None)
        await exhaust(storage, clock)
        dead = await record(storage, new_job().ref)
        clock.advance(86_400)
        await sweep_all(storage)

        assert (dead.redrive_at, dead.redrives, dead.starts) == (None, 2, 6)
        assert (await record(storage, new_job().ref)).state is State.FAILED
        assert [(event.by, event.was, event.run) for event in await events_of(storage, JobRedriven)] == [
            ("rule", "failed", 2),
            ("rule", "failed", 4),
        ]
        assert len(await events_of(storage, JobFailed)) == 3

    @pytest.mark.parametrize("outcome", [RAISED, TimedOut(ERROR)], ids=["raised", "timed out"])
    async def test_a_rule_redrives_raised_and_timed_out_jobs(self, storage: Storage, outcome: Outcome) -> None:
        lease = await start(storage, new_job(policy=RULED_ONCE))
        await settle(storage, ALICE, lease, outcome)

        assert (await record(storage, lease.ref)).redrive_at is not None

    @pytest.mark.parametrize("died", [False, True])
    async def test_a_rule_redrives_stalled_jobs(self, storage: Storage, clock: ManualClock, died: bool) -> None:
        lease = await start(storage, new_job(policy=RULED_ONCE, stall=StallTerms(max_stalls=0)))
        await lose(storage, clock, died)
        dead = await record(storage, lease.ref)

        assert (dead.state, dead.reason) == (State.FAILED, "crashed" if died else "stalled")

        clock.advance(60)
        await sweep_all(storage)

        assert ((await record(storage, lease.ref)).state, len(await claim(storage))) == (State.WAITING, 1)

    @pytest.mark.parametrize("outcome", NO_MATTER_OF_TIME, ids=lambda outcome: type(outcome).__name__)
    async def test_a_rule_does_not_redrive_rejected_jobs(
        self, storage: Storage, clock: ManualClock, outcome: Outcome
    ) -> None:
        lease = await start(storage, new_job(policy=RULED_ONCE))
        await settle(storage, ALICE, lease, outcome)
        before = await record(storage, lease.ref)
        clock.advance(3600)
        await sweep_all(storage)

        assert before.redrive_at is None
        assert await record(storage, lease.ref) == before

    @pytest.mark.parametrize("died", [False, True])
    async def test_a_rule_does_not_redrive_jobs_that_must_not_run_twice(
        self, storage: Storage, clock: ManualClock, died: bool
    ) -> None:
        policy = Policy(on_worker_lost="fail", redrive=Redriving(after=MINUTE, times=3))
        lease = await start(storage, new_job(policy=policy))
        await lose(storage, clock, died)
        clock.advance(3600)
        await sweep_all(storage)
        job = await record(storage, lease.ref)

        assert (job.state, job.redrive_at) == (State.FAILED, None)

    async def test_a_failed_job_without_a_rule_stays_failed(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job(policy=ONCE))
        await settle(storage, ALICE, lease, RAISED)
        clock.advance(29 * 86_400)
        await sweep_all(storage)

        assert (await record(storage, lease.ref)).state is State.FAILED

    async def test_an_operator_can_redrive_before_the_rule(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job(policy=RULED_ONCE))
        await settle(storage, ALICE, lease, RAISED)
        clock.advance(30)
        await storage.revise([RedriveJob(lease.ref, "ops")])
        await settle(storage, ALICE, await claim_one(storage), RAISED)

        # The redrive by hand restarts the rule's time and uses up none of its redrives.
        clock.advance(59)
        await sweep_all(storage)

        assert (await record(storage, lease.ref)).state is State.FAILED

        clock.advance(1)
        await sweep_all(storage)

        assert (await record(storage, lease.ref)).state is State.WAITING
        assert [event.by for event in await events_of(storage, JobRedriven)] == ["ops", "rule"]

    async def test_a_redrive_by_an_operator_resets_the_count_of_the_rule(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage, new_job(policy=RULED_ONCE))
        await settle(storage, ALICE, lease, RAISED)
        clock.advance(60)
        await sweep_all(storage)
        await settle(storage, ALICE, await claim_one(storage), RAISED)

        assert (await record(storage, lease.ref)).redrive_at is None

        await storage.revise([RedriveJob(lease.ref, "ops")])
        await settle(storage, ALICE, await claim_one(storage), RAISED)
        dead = await record(storage, lease.ref)

        assert (dead.redrives, dead.redrive_at) == (0, clock.now() + MINUTE)

    @pytest.mark.parametrize("way_off", [DeleteJob, RedriveJob], ids=["delete", "redrive"])
    async def test_a_rule_ignores_jobs_that_are_no_longer_failed(
        self, storage: Storage, clock: ManualClock, way_off: Callable[[Ref], DeleteJob | RedriveJob]
    ) -> None:
        lease = await start(storage, new_job(policy=RULED_ONCE))
        await settle(storage, ALICE, lease, RAISED)
        await storage.revise([way_off(lease.ref)])
        for again in await claim(storage):
            await settle(storage, ALICE, again)
        clock.advance(60)
        swept = await storage.sweep(bid())

        assert swept.did["redriven"] == 0
        assert await claim(storage) == []

    async def test_a_rule_acts_once_with_two_reapers(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job(policy=RULED_ONCE))
        await settle(storage, ALICE, lease, RAISED)
        clock.advance(60)
        for reaper in (REAPER, DEPUTY):
            await sweep_all(storage, reaper)

        assert len(await events_of(storage, JobRedriven)) == 1
        assert len(await claim(storage)) == 1

    async def test_a_rule_wakes_the_queue(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job(policy=RULED_ONCE))
        await settle(storage, ALICE, lease, RAISED)
        clock.advance(60)
        notices = storage.notices([queue_topic(QUEUE)])
        await woken_by(storage, notices, lambda: storage.sweep(bid()))
        notices.close()

    async def test_a_rule_redrives_in_bounded_steps(self, storage: Storage, clock: ManualClock) -> None:
        count = SWEEP_LIMIT + 60
        await enqueue(storage, *(new_job(f"job-{number:04}", policy=RULED_ONCE) for number in range(count)))
        while leases := await claim(storage):
            await storage.exchange(ALICE, [settled(lease, RAISED) for lease in leases])
        clock.advance(60)
        first, second = await storage.sweep(bid()), await storage.sweep(bid())

        assert (first.more, first.did["redriven"]) == (True, SWEEP_LIMIT)
        assert (second.more, second.did["redriven"]) == (False, 60)
        assert await counted(storage) == {State.WAITING: count}

    async def test_a_rule_outlives_the_connection(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job(policy=RULED_ONCE))
        await settle(storage, ALICE, lease, RAISED)
        await storage.close()
        await storage.open()
        clock.advance(60)
        await sweep_all(storage)

        assert (await claim_one(storage)).run == 2

    async def test_a_second_redrive_is_refused(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job(policy=RULED_ONCE))
        await settle(storage, ALICE, lease, RAISED)
        clock.advance(60)
        await sweep_all(storage)

        assert await storage.revise([RedriveJob(lease.ref, "ops")]) == [
            RevisionResult(lease.ref, "refused", State.WAITING)
        ]


async def exhaust(storage: Storage, clock: ManualClock) -> None:
    """Let both attempts of a job fail, the second one now."""
    await settle(storage, ALICE, await claim_one(storage), RAISED)
    clock.advance(1)
    await settle(storage, ALICE, await claim_one(storage), RAISED)


async def lose(storage: Storage, clock: ManualClock, died: bool) -> None:
    """Let Alice's process die, or stop renewing for good."""
    if not died:
        await recover(storage, clock)
        return
    for taken in (await storage.reclaim(ALICE.id, REAPER)).stalled:
        await apply(storage, REAPER, stalled(taken))
