"""Conformance tests of unique, debounce and throttle keys: one job of a key at a time; no key outlives its job."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.deduplication import merge_name
from tenure.core.events import (
    JobDebounced,
    JobDeduplicated,
    JobExpired,
    JobRedriven,
    JobThrottled,
    OnRequest,
)
from tenure.core.job import (
    DebounceKey,
    Key,
    NewJob,
    OnExpire,
    Policy,
    Redriving,
    Ref,
    ThrottleKey,
    UniqueKey,
    UniqueScope,
)
from tenure.core.lifecycle import State
from tenure.core.outcome import Interrupted, Rejected
from tenure.core.retention import KeepRule, RetentionRules
from tenure.core.retry import Backoff
from tenure.storage.protocol import (
    CALLS_KEPT,
    CancelJob,
    DeleteJob,
    EnqueueResult,
    Query,
    RedriveJob,
    RescheduleJob,
    Settings,
    Storage,
    Target,
)
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    ERROR,
    QUEUE,
    RAISED,
    Conformance,
    claim,
    claim_one,
    counted,
    enqueue,
    events_of,
    look,
    new_job,
    record,
    recover,
    settle,
    start,
    states,
    sweep_all,
)

UNIQUE = UniqueKey("report:1")
QUEUED = UniqueKey("report:1", "queued")
TIMED = UniqueKey("report:1", window=60 * SECOND)
DEBOUNCED = DebounceKey("report:1", 10 * SECOND)
THROTTLE = ThrottleKey("mail", 2, 60 * SECOND)

A, B, C = (Ref(QUEUE, name) for name in ("first", "second", "third"))

Stand = Callable[[Storage, ManualClock, NewJob], Awaitable[None]]
"""Enqueues a job and brings it into a state."""


async def waiting(storage: Storage, clock: ManualClock, job: NewJob) -> None:
    """The job waits in its queue."""
    await enqueue(storage, job)


async def delayed(storage: Storage, clock: ManualClock, job: NewJob) -> None:
    """The job is not due yet."""
    await enqueue(storage, job)
    await storage.revise([RescheduleJob(job.ref, delay=3600 * SECOND)])
    assert (await record(storage, job.ref)).state is State.DELAYED


async def parked(storage: Storage, clock: ManualClock, job: NewJob) -> None:
    """The job's task is paused."""
    await storage.tune(Target("task", job.task), Settings(paused=True))
    await enqueue(storage, job)
    assert await claim(storage) == []
    assert (await record(storage, job.ref)).parked_under is not None


async def active(storage: Storage, clock: ManualClock, job: NewJob) -> None:
    """The job runs."""
    await start(storage, job)


async def suspect(storage: Storage, clock: ManualClock, job: NewJob) -> None:
    """The job runs, but its lease has expired."""
    await start(storage, job)
    clock.advance(21)
    await sweep_all(storage)
    assert (await record(storage, job.ref)).suspect_until is not None


async def retrying(storage: Storage, clock: ManualClock, job: NewJob) -> None:
    """The job has failed and will be retried."""
    await settle(storage, ALICE, await start(storage, job), RAISED)
    resting = await record(storage, job.ref)
    assert (resting.state, resting.failures) == (State.DELAYED, 1)


async def put_back(storage: Storage, clock: ManualClock, job: NewJob) -> None:
    """A worker has put the job back."""
    await settle(storage, ALICE, await start(storage, job), Interrupted("shutdown"))
    waiting = await record(storage, job.ref)
    assert (waiting.state, waiting.releases) == (State.WAITING, 1)


async def recovered(storage: Storage, clock: ManualClock, job: NewJob) -> None:
    """The job's worker died."""
    await start(storage, job)
    await recover(storage, clock)
    waiting = await record(storage, job.ref)
    assert (waiting.state, waiting.stalls) == (State.WAITING, 1)


async def completed(storage: Storage, clock: ManualClock, job: NewJob) -> None:
    """The job has completed."""
    await settle(storage, ALICE, await start(storage, job))
    assert (await record(storage, job.ref)).state is State.COMPLETED


async def failed(storage: Storage, clock: ManualClock, job: NewJob) -> None:
    """The job is a dead letter."""
    await settle(storage, ALICE, await start(storage, job), Rejected(ERROR))
    assert (await record(storage, job.ref)).state is State.FAILED


async def exhausted(storage: Storage, clock: ManualClock, job: NewJob) -> None:
    """The job's only attempt has failed, and its redrive rule applies to it."""
    await settle(storage, ALICE, await start(storage, job), RAISED)
    ended = await record(storage, job.ref)

    assert (ended.state, ended.reason) == (State.FAILED, "exhausted")
    assert ended.redrive_at is not None


async def cancelled(storage: Storage, clock: ManualClock, job: NewJob) -> None:
    """The job was cancelled."""
    await enqueue(storage, job)
    await storage.revise([CancelJob(job.ref)])
    assert (await record(storage, job.ref)).state is State.CANCELLED


async def expired(storage: Storage, clock: ManualClock, job: NewJob) -> None:
    """The job was swept as expired."""
    await enqueue(storage, structs.replace(job, ttl=SECOND))
    clock.advance(1)
    await sweep_all(storage)
    assert (await record(storage, job.ref)).state is State.EXPIRED


async def deleted(storage: Storage, clock: ManualClock, job: NewJob) -> None:
    """The job was deleted."""
    await enqueue(storage, job)
    await storage.revise([DeleteJob(job.ref)])
    assert await storage.get([job.ref]) == [None]


IN_LINE: tuple[Stand, ...] = (waiting, delayed, parked, retrying, put_back, recovered)
AT_WORK: tuple[Stand, ...] = (active, suspect)
OVER: tuple[Stand, ...] = (completed, failed, cancelled, expired, deleted)


class UniqueConformance(Conformance):
    """One job of a key for as long as the key says. No key outlives its job."""

    @pytest.mark.parametrize("scope", ["unfinished", "queued"])
    async def test_one_of_many_calls_with_a_key_creates_a_job(self, storage: Storage, scope: UniqueScope) -> None:
        calls = [new_job(f"call-{number}", merge=UniqueKey("k", scope), payload=b"%d" % number) for number in range(5)]
        receipts = await storage.enqueue(calls[:3]) + await storage.enqueue(calls[3:])

        assert receipts == [EnqueueResult("created", calls[0].ref)] + [EnqueueResult("duplicate", calls[0].ref)] * 4
        assert [lease.job.payload for lease in await claim(storage)] == [b"0"]
        assert (await storage.get([calls[1].ref])) == [None]

    async def test_one_of_many_concurrent_calls_with_a_key_creates_a_job(self, storage: Storage) -> None:
        answers = await asyncio.gather(
            *(storage.enqueue([new_job(f"call-{number}", merge=UNIQUE)]) for number in range(20))
        )
        made = [receipt for receipts in answers for receipt in receipts if receipt.action == "created"]

        assert len(made) == 1
        assert {receipt.ref for receipts in answers for receipt in receipts} == {made[0].ref}

    @pytest.mark.parametrize("stand", [*IN_LINE, *AT_WORK], ids=lambda stand: stand.__name__)
    async def test_a_key_is_held_in_every_unfinished_state_of_its_job(
        self, storage: Storage, clock: ManualClock, stand: Stand
    ) -> None:
        await stand(storage, clock, new_job("first", merge=UNIQUE))

        assert await storage.enqueue([new_job("second", merge=UNIQUE)]) == [EnqueueResult("duplicate", A)]

    @pytest.mark.parametrize("stand", IN_LINE, ids=lambda stand: stand.__name__)
    async def test_a_key_with_scope_queued_is_held_until_its_job_starts(
        self, storage: Storage, clock: ManualClock, stand: Stand
    ) -> None:
        await stand(storage, clock, new_job("first", merge=QUEUED))

        assert await storage.enqueue([new_job("second", merge=QUEUED)]) == [EnqueueResult("duplicate", A)]

    @pytest.mark.parametrize("stand", AT_WORK, ids=lambda stand: stand.__name__)
    async def test_a_key_with_scope_queued_is_free_once_its_job_starts(
        self, storage: Storage, clock: ManualClock, stand: Stand
    ) -> None:
        await stand(storage, clock, new_job("first", merge=QUEUED))

        assert await storage.enqueue([new_job("second", merge=QUEUED)]) == [EnqueueResult("created", B)]
        assert await storage.enqueue([new_job("third", merge=QUEUED)]) == [EnqueueResult("duplicate", B)]

    @pytest.mark.fault("W-T4", "W-T14", "W-T15", "W-N10")
    @pytest.mark.statement(25, 26, 65)
    @pytest.mark.parametrize("stand", OVER, ids=lambda stand: stand.__name__)
    @pytest.mark.parametrize("scope", ["unfinished", "queued"])
    async def test_a_key_is_free_as_soon_as_its_job_is_over(
        self, storage: Storage, clock: ManualClock, stand: Stand, scope: UniqueScope
    ) -> None:
        key = UniqueKey("report:1", scope)
        await stand(storage, clock, new_job("first", merge=key))

        assert await storage.enqueue([new_job("second", merge=key)]) == [EnqueueResult("created", B)]

    @pytest.mark.fault("W-T14")
    @pytest.mark.parametrize("stand", [completed, failed, cancelled, expired], ids=lambda stand: stand.__name__)
    async def test_a_terminal_job_frees_no_key_of_another(
        self, storage: Storage, clock: ManualClock, stand: Stand
    ) -> None:
        await stand(storage, clock, new_job("first", merge=UNIQUE))
        await enqueue(storage, new_job("second", merge=UNIQUE))
        await storage.revise([CancelJob(A), DeleteJob(A)])
        await sweep_all(storage)

        assert await storage.enqueue([new_job("third", merge=UNIQUE)]) == [EnqueueResult("duplicate", B)]

    @pytest.mark.fault("W-T14")
    async def test_a_late_settlement_frees_no_key_of_another(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job("first", merge=UNIQUE, policy=Policy(on_worker_lost="fail")))
        await recover(storage, clock)
        await enqueue(storage, new_job("second", merge=UNIQUE))

        assert (await record(storage, A)).state is State.FAILED
        assert await settle(storage, ALICE, lease) == "lost"
        assert await storage.enqueue([new_job("third", merge=UNIQUE)]) == [EnqueueResult("duplicate", B)]

    @pytest.mark.fault("W-N3")
    async def test_thousands_of_keys_are_all_kept(self, storage: Storage) -> None:
        calls = [new_job(f"job-{number:04}", merge=UniqueKey(f"key-{number}")) for number in range(1500)]
        await enqueue(storage, *calls)
        await sweep_all(storage)
        again = [new_job(f"again-{number:04}", merge=UniqueKey(f"key-{number}")) for number in range(1500)]

        assert await storage.enqueue(again) == [EnqueueResult("duplicate", call.ref) for call in calls]

    async def test_keys_of_different_queues_and_kinds_are_different(self, storage: Storage) -> None:
        await enqueue(
            storage,
            new_job("first", merge=UNIQUE),
            new_job("second", merge=DEBOUNCED),
            new_job("third", merge=UniqueKey("report:2")),
            new_job("fourth", throttle=ThrottleKey("report:1", 1, SECOND)),
            new_job("fifth", merge=UNIQUE, queue="other"),
        )

    async def test_another_scope_of_a_key_is_the_same_key(self, storage: Storage) -> None:
        await start(storage, new_job("first", merge=QUEUED))

        assert await storage.enqueue([new_job("second", merge=UNIQUE)]) == [EnqueueResult("duplicate", A)]
        assert await storage.enqueue([new_job("third", merge=QUEUED)]) == [EnqueueResult("created", C)]

    async def test_a_retried_call_gets_its_own_job(self, storage: Storage) -> None:
        await enqueue(storage, new_job("first", merge=UNIQUE))

        assert await storage.enqueue([new_job("first", merge=UNIQUE)]) == [EnqueueResult("duplicate", A)]

        await settle(storage, ALICE, await claim_one(storage))

        assert await storage.enqueue([new_job("first", merge=UNIQUE)]) == [EnqueueResult("duplicate", A)]
        assert await counted(storage) == {State.COMPLETED: 1}

    async def test_a_released_job_may_share_a_queued_key_with_a_later_job(self, storage: Storage) -> None:
        lease = await start(storage, new_job("first", merge=QUEUED))
        await enqueue(storage, new_job("second", merge=QUEUED))
        await settle(storage, ALICE, lease, Interrupted("shutdown"))

        assert await storage.enqueue([new_job("third", merge=QUEUED)]) == [EnqueueResult("duplicate", A)]
        assert [found.ref.id for found in await claim(storage)] == ["first", "second"]
        assert await storage.enqueue([new_job("third", merge=QUEUED)]) == [EnqueueResult("created", C)]

    @pytest.mark.parametrize("on_expire", ["fail", "discard"])
    async def test_an_expired_job_holds_no_key(self, storage: Storage, clock: ManualClock, on_expire: OnExpire) -> None:
        policy = Policy(on_expire=on_expire)
        await enqueue(storage, new_job("first", merge=UNIQUE, ttl=5 * SECOND, policy=policy))
        clock.advance(4.999_999)

        assert await storage.enqueue([new_job("second", merge=UNIQUE)]) == [EnqueueResult("duplicate", A)]

        clock.advance(0.000_001)

        assert await storage.enqueue([new_job("second", merge=UNIQUE)]) == [EnqueueResult("created", B)]
        assert [event.id for event in await events_of(storage, JobExpired)] == ["first"]
        assert (await states(storage)).get("first") is (None if on_expire == "discard" else State.EXPIRED)

    async def test_a_running_job_past_its_time_to_live_holds_its_key(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await start(storage, new_job("first", merge=UNIQUE, ttl=5 * SECOND))
        clock.advance(9)

        assert await storage.enqueue([new_job("second", merge=UNIQUE)]) == [EnqueueResult("duplicate", A)]
        assert (await record(storage, A)).state is State.ACTIVE
        assert await events_of(storage, JobExpired) == []

    @pytest.mark.parametrize("stand", [*IN_LINE, *AT_WORK], ids=lambda stand: stand.__name__)
    async def test_a_redrive_is_refused_while_another_holds_the_key(
        self, storage: Storage, clock: ManualClock, stand: Stand
    ) -> None:
        await failed(storage, clock, new_job("first", merge=UNIQUE))
        await stand(storage, clock, new_job("second", merge=UNIQUE))
        (revised,) = await storage.revise([RedriveJob(A)])

        assert (revised.verdict, revised.state, revised.holder) == ("refused", State.FAILED, B)
        assert (await record(storage, A)).state is State.FAILED
        assert await events_of(storage, JobRedriven) == []

    @pytest.mark.parametrize("stand", OVER, ids=lambda stand: stand.__name__)
    async def test_a_redrive_takes_the_key_again_if_it_is_free(
        self, storage: Storage, clock: ManualClock, stand: Stand
    ) -> None:
        await failed(storage, clock, new_job("first", merge=UNIQUE))
        await stand(storage, clock, new_job("second", merge=UNIQUE))
        (revised,) = await storage.revise([RedriveJob(A)])

        assert (revised.verdict, revised.holder) == ("done", None)
        assert await storage.enqueue([new_job("third", merge=UNIQUE)]) == [EnqueueResult("duplicate", A)]

    async def test_a_redrive_expires_an_overdue_holder_of_the_key(self, storage: Storage, clock: ManualClock) -> None:
        await failed(storage, clock, new_job("first", merge=UNIQUE))
        await enqueue(storage, new_job("second", merge=UNIQUE, ttl=SECOND))
        clock.advance(1)
        (revised,) = await storage.revise([RedriveJob(A)])

        assert revised.verdict == "done"
        assert await states(storage) == {"first": State.WAITING, "second": State.EXPIRED}

    async def test_one_of_two_jobs_redriven_together_holds_the_key(self, storage: Storage, clock: ManualClock) -> None:
        await failed(storage, clock, new_job("first", merge=UNIQUE))
        await failed(storage, clock, new_job("second", merge=UNIQUE))
        revised = await storage.revise([RedriveJob(B, delay=SECOND), RedriveJob(A)])

        assert [(found.verdict, found.holder) for found in revised] == [("done", None), ("refused", B)]

    async def test_a_rule_gives_up_while_another_holds_the_key(self, storage: Storage, clock: ManualClock) -> None:
        ruled = Policy(retry=Backoff(max_attempts=1), redrive=Redriving(after=5 * SECOND))
        await exhausted(storage, clock, new_job("first", merge=UNIQUE, policy=ruled))
        await enqueue(storage, new_job("second", merge=UNIQUE))
        clock.advance(5)
        swept = await sweep_all(storage)
        job = await record(storage, A)

        assert swept == []
        assert (job.state, job.redrive_at, job.redrives) == (State.FAILED, None, 0)
        assert await events_of(storage, JobRedriven) == []

        await storage.revise([DeleteJob(B)])
        clock.advance(60)
        await sweep_all(storage)

        assert (await record(storage, A)).state is State.FAILED

    async def test_a_job_that_a_rule_gave_up_is_trimmed(self, storage: Storage, clock: ManualClock) -> None:
        ruled = Policy(retry=Backoff(max_attempts=1), redrive=Redriving(after=5 * SECOND))
        await exhausted(storage, clock, new_job("first", merge=UNIQUE, policy=ruled))
        await enqueue(storage, new_job("second", merge=UNIQUE))
        await storage.tune(Target("queue", QUEUE), Settings(retention=RetentionRules(failed=KeepRule(30 * SECOND))))
        clock.advance(5)
        await sweep_all(storage)
        clock.advance(30)
        await sweep_all(storage)

        assert await states(storage) == {"second": State.WAITING}

    @pytest.mark.parametrize("stand", [*IN_LINE, *AT_WORK, completed, failed], ids=lambda stand: stand.__name__)
    async def test_a_timed_key_is_held_through_every_state_of_its_job(
        self, storage: Storage, clock: ManualClock, stand: Stand
    ) -> None:
        began = clock.now()
        await stand(storage, clock, new_job("first", merge=TIMED))
        clock.advance((began + 60 * SECOND - 1 - clock.now()) / SECOND)

        assert await storage.enqueue([new_job("second", merge=TIMED)]) == [EnqueueResult("duplicate", A)]

        clock.advance(0.000_001)

        assert await storage.enqueue([new_job("second", merge=TIMED)]) == [EnqueueResult("created", B)]
        assert await storage.enqueue([new_job("third", merge=TIMED)]) == [EnqueueResult("duplicate", B)]

    async def test_a_timed_key_is_held_after_its_job_was_trimmed(self, storage: Storage, clock: ManualClock) -> None:
        policy = Policy(result_ttl=SECOND)
        await settle(storage, ALICE, await start(storage, new_job("first", merge=TIMED, policy=policy)))
        clock.advance(2)
        await sweep_all(storage)

        assert await storage.get([A]) == [None]
        assert await storage.enqueue([new_job("second", merge=TIMED)]) == [EnqueueResult("duplicate", A)]

    async def test_a_timed_key_is_freed_when_its_job_is_deleted(self, storage: Storage) -> None:
        await enqueue(storage, new_job("first", merge=TIMED))
        await storage.revise([DeleteJob(A)])

        assert await storage.enqueue([new_job("second", merge=TIMED)]) == [EnqueueResult("created", B)]

    @pytest.mark.fault("W-T14")
    async def test_a_timed_key_is_freed_only_by_the_job_that_it_names(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, new_job("first", merge=TIMED))
        clock.advance(60)
        await enqueue(storage, new_job("second", merge=TIMED))
        await storage.revise([DeleteJob(A)])

        assert await storage.enqueue([new_job("third", merge=TIMED)]) == [EnqueueResult("duplicate", B)]

    async def test_a_clock_set_back_does_not_extend_a_timed_key(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("first", merge=TIMED))
        clock.step_wall(-3600)

        assert await storage.enqueue([new_job("second", merge=TIMED)]) == [EnqueueResult("duplicate", A)]

        clock.advance(60)

        assert await storage.enqueue([new_job("second", merge=TIMED)]) == [EnqueueResult("created", B)]

    async def test_a_redrive_ignores_timed_keys(self, storage: Storage, clock: ManualClock) -> None:
        await failed(storage, clock, new_job("first", merge=TIMED))
        clock.advance(60)
        await enqueue(storage, new_job("second", merge=TIMED))
        (revised,) = await storage.revise([RedriveJob(A)])

        assert revised.verdict == "done"

    async def test_the_holder_of_a_key_can_be_looked_up(self, storage: Storage, clock: ManualClock) -> None:
        await completed(storage, clock, new_job("first", merge=UNIQUE))
        await enqueue(
            storage,
            new_job("second", merge=UNIQUE),
            new_job("third", merge=DEBOUNCED),
            new_job("fourth", merge=UNIQUE, queue="other"),
        )

        async def found(**messages: object) -> list[str]:
            page = await storage.find(Query(merge=merge_name(UNIQUE), **messages))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
            return [job.id for job in page.jobs]

        assert await found() == ["fourth", "second"]
        assert await found(queues=(QUEUE,)) == ["second"]
        assert await found(states=(State.ACTIVE,)) == []
        assert await found(id="fourth") == ["fourth"]
        assert await found(limit=1) == ["fourth"]

    async def test_deduplicated_calls_are_recorded_as_events_on_request(self, storage: Storage) -> None:
        await record_on_request(storage, "deduplicated")
        await enqueue(storage, new_job("first", merge=UNIQUE))
        await storage.enqueue([new_job("second", merge=UNIQUE, task="other"), new_job("first", merge=UNIQUE)])
        events = await events_of(storage, JobDeduplicated)

        assert [(event.id, event.task, event.key, event.existing_id) for event in events] == [
            ("second", "other", "report:1", "first")
        ]


class DebounceConformance(Conformance):
    """A job runs after the calls of its key have stopped, with the arguments of the last call."""

    async def test_a_debounced_job_runs_after_the_last_call_with_its_arguments(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        made = clock.now()
        first = new_job("first", merge=DEBOUNCED, payload=b"1", tags=("old",), priority=3, boost=180 * SECOND)

        assert await storage.enqueue([first]) == [EnqueueResult("created", A)]

        clock.advance(4)
        later = new_job("second", merge=DEBOUNCED, payload=b"2", task="other", ttl=60 * SECOND)

        assert await storage.enqueue([later]) == [EnqueueResult("replaced", A)]

        job = await record(storage, A)

        assert (job.payload, job.task, job.tags, job.priority) == (b"2", "other", (), 0)
        assert (job.created, job.run_at, job.expires_at) == (made, made + 14 * SECOND, made + 64 * SECOND)
        assert await counted(storage) == {State.DELAYED: 1}

        clock.advance(9.999_999)

        assert await claim(storage) == []

        clock.advance(0.000_001)
        lease = await claim_one(storage)

        assert (lease.ref, lease.job.payload, lease.fence > 0) == (A, b"2", True)

    async def test_debounced_calls_in_one_enqueue_create_one_job_of_the_last(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        receipts = await storage.enqueue(
            [new_job(name, merge=DEBOUNCED, payload=name.encode()) for name in ("first", "second", "third")]
        )
        clock.advance(10)

        assert [receipt.action for receipt in receipts] == ["created", "replaced", "replaced"]
        assert [lease.job.payload for lease in await claim(storage)] == [b"third"]

    @pytest.mark.fault("W-T22")
    async def test_a_steady_stream_delays_a_job_for_the_longest_wait_at_most(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        began, key = clock.now(), DebounceKey("k", 10 * SECOND, 25 * SECOND)
        started: list[int] = []
        for number in range(30):
            await storage.enqueue([new_job(f"call-{number:02}", merge=key)])
            started += [clock.now() - began for _ in await claim(storage)]
            clock.advance(1)

        assert started == [25 * SECOND]

    async def test_a_started_job_is_not_debounced(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("first", merge=DEBOUNCED))
        clock.advance(10)
        lease = await claim_one(storage)

        assert await storage.enqueue([new_job("second", merge=DEBOUNCED)]) == [EnqueueResult("created", B)]

        await settle(storage, ALICE, lease, RAISED)

        assert await storage.enqueue([new_job("third", merge=DEBOUNCED)]) == [EnqueueResult("replaced", B)]

    @pytest.mark.slow
    async def test_a_debounced_job_is_found_by_its_latest_calls_only(self, storage: Storage) -> None:
        first = new_job("first", merge=DEBOUNCED)
        await enqueue(storage, first)
        calls = [new_job(f"call-{number:05}", merge=DEBOUNCED) for number in range(CALLS_KEPT + 3)]
        for at in range(0, len(calls), 100):
            receipts = await storage.enqueue(calls[at : at + 100])
            assert {receipt.action for receipt in receipts} == {"replaced"}

        # Calls 0 to 2 are forgotten. Asking for one by its id records it again, in the place of the next oldest.
        assert await storage.get([calls[number].ref for number in (0, 2)]) == [None, None]
        assert [(await look(storage, calls[number].ref)).job.id for number in (3, -1)] == ["first", "first"]
        assert await storage.enqueue([calls[3], calls[-1], first]) == [EnqueueResult("duplicate", first.ref)] * 3
        assert await storage.enqueue([calls[0]]) == [EnqueueResult("replaced", first.ref)]
        assert await storage.get([calls[3].ref]) == [None]
        assert (await look(storage, calls[0].ref)).job.id == "first"

    @pytest.mark.parametrize("stand", OVER, ids=lambda stand: stand.__name__)
    async def test_a_terminal_job_is_not_debounced(self, storage: Storage, clock: ManualClock, stand: Stand) -> None:
        await stand(storage, clock, new_job("first", merge=DebounceKey("k", 0)))

        assert await storage.enqueue([new_job("second", merge=DebounceKey("k", 0))]) == [EnqueueResult("created", B)]

    async def test_a_due_job_that_has_not_started_is_delayed_again(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("first", merge=DEBOUNCED))
        clock.advance(10)
        await sweep_all(storage)

        assert (await record(storage, A)).state is State.WAITING
        assert await storage.enqueue([new_job("second", merge=DEBOUNCED)]) == [EnqueueResult("replaced", A)]
        assert (await record(storage, A)).state is State.DELAYED
        assert await claim(storage) == []

    async def test_a_lookup_of_a_debounced_call_finds_its_job(self, storage: Storage, clock: ManualClock) -> None:
        await storage.enqueue([new_job(name, merge=DEBOUNCED) for name in ("first", "second", "third")])
        found = await storage.get([A, B, C])

        assert found == [await look(storage, A)] * 3

        clock.advance(10)
        await settle(storage, ALICE, await claim_one(storage))
        found = await storage.get([B])

        assert found == [await look(storage, A)]

    async def test_a_call_retried_after_a_lost_reply_changes_nothing(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.enqueue([new_job(name, merge=DEBOUNCED, payload=name.encode()) for name in ("first", "second")])
        clock.advance(4)
        before = await record(storage, A)
        for name in ("second", "first"):
            retried = new_job(name, merge=DEBOUNCED, payload=name.encode())

            assert await storage.enqueue([retried]) == [EnqueueResult("duplicate", A)]

        assert await record(storage, A) == before

        clock.advance(6)
        await settle(storage, ALICE, await claim_one(storage))

        assert await storage.enqueue([new_job("second", merge=DEBOUNCED)]) == [EnqueueResult("duplicate", A)]
        assert await counted(storage) == {State.COMPLETED: 1}

    async def test_the_id_of_a_debounced_call_is_known(self, storage: Storage) -> None:
        await storage.enqueue([new_job(name, merge=DEBOUNCED) for name in ("first", "second")])

        assert await storage.enqueue([new_job("second")]) == [EnqueueResult("duplicate", A)]
        assert await storage.enqueue([new_job("second", merge=UNIQUE)]) == [EnqueueResult("duplicate", A)]
        assert await storage.enqueue([new_job("second", queue="other")]) == [
            EnqueueResult("created", Ref("other", "second"))
        ]

    @pytest.mark.parametrize("by_sweep", [False, True])
    async def test_debounced_calls_are_deleted_with_their_job(
        self, storage: Storage, clock: ManualClock, by_sweep: bool
    ) -> None:
        policy = Policy(result_ttl=5 * SECOND)
        await storage.enqueue([new_job(name, merge=DEBOUNCED, policy=policy) for name in ("first", "second")])
        clock.advance(10)
        await settle(storage, ALICE, await claim_one(storage))
        if by_sweep:
            clock.advance(5)
            await sweep_all(storage)
        else:
            await storage.revise([DeleteJob(A)])

        assert await storage.get([A, B]) == [None, None]
        assert await storage.enqueue([new_job("second")]) == [EnqueueResult("created", B)]

    async def test_a_debounced_id_is_free_when_its_result_has_expired(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        policy = Policy(result_ttl=5 * SECOND)
        await storage.enqueue([new_job(name, merge=DEBOUNCED, policy=policy) for name in ("first", "second")])
        clock.advance(10)
        await settle(storage, ALICE, await claim_one(storage))
        clock.advance(5)

        assert await storage.get([A, B]) == [None, None]
        assert await storage.enqueue([new_job("second", merge=DEBOUNCED)]) == [EnqueueResult("created", B)]
        assert await storage.enqueue([new_job("first", merge=DEBOUNCED)]) == [EnqueueResult("replaced", B)]

    async def test_a_debounced_job_frees_the_slots_of_the_earlier_call(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        old, new = Key("old"), Key("new")
        held = await start(storage, new_job("holder", keys=(old,)))
        await storage.enqueue([new_job("first", merge=DEBOUNCED, keys=(old,))])
        await storage.enqueue([new_job("second", merge=DEBOUNCED, keys=(new,))])
        clock.advance(10)
        lease = await claim_one(storage, BOB)

        assert (lease.ref, lease.job.keys) == (A, (new,))

        await settle(storage, ALICE, held)
        await enqueue(storage, new_job("other", keys=(old, new)))

        assert await claim(storage) == []

        await settle(storage, BOB, lease)

        assert (await claim_one(storage)).ref.id == "other"

    async def test_the_fence_of_a_debounced_job_still_rises_after_a_clock_set_back(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        brief = Policy(result_ttl=0)
        lease = await start(storage, new_job("first", policy=brief))
        await settle(storage, ALICE, lease)
        await storage.enqueue([new_job("first", merge=DEBOUNCED), new_job("second", merge=DEBOUNCED)])
        clock.step_wall(-3600)
        await storage.enqueue([new_job("third", merge=DEBOUNCED)])
        clock.advance(10)

        assert (await claim_one(storage)).fence > lease.fence

    async def test_debounced_calls_are_recorded_as_events_on_request(self, storage: Storage) -> None:
        await record_on_request(storage, "debounced")
        await storage.enqueue([new_job("first", merge=DEBOUNCED), new_job("second", merge=DEBOUNCED, task="other")])
        events = await events_of(storage, JobDebounced)

        assert [(event.id, event.task, event.key, event.replaced_by) for event in events] == [
            ("first", "other", "report:1", "second")
        ]


class ThrottleConformance(Conformance):
    """In each window, no more jobs of a key are created than the key allows."""

    async def test_a_window_limits_the_number_of_created_jobs(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("first", throttle=THROTTLE))
        clock.advance(20)
        receipts = await storage.enqueue(
            [new_job(name, throttle=THROTTLE, delay=SECOND) for name in ("second", "third", "fourth")]
        )

        assert receipts == [
            EnqueueResult("created", B),
            EnqueueResult("throttled", B, 40 * SECOND),
            EnqueueResult("throttled", B, 40 * SECOND),
        ]
        assert set(await states(storage)) == {"first", "second"}
        assert await storage.get([C]) == [None]

    async def test_a_window_lasts_from_its_first_job_to_the_microsecond(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        clock.advance(33)
        await enqueue(storage, new_job("first", throttle=THROTTLE), new_job("second", throttle=THROTTLE))
        clock.advance(59.999_999)

        assert await storage.enqueue([new_job("third", throttle=THROTTLE)]) == [EnqueueResult("throttled", B, 1)]

        clock.advance(0.000_001)
        await sweep_all(storage)
        receipts = await storage.enqueue([new_job(name, throttle=THROTTLE) for name in ("third", "fourth", "fifth")])

        assert [(receipt.action, receipt.retry_in) for receipt in receipts] == [
            ("created", None),
            ("created", None),
            ("throttled", 60 * SECOND),
        ]

    async def test_a_call_repeated_after_retry_in_creates_its_job(self, storage: Storage, clock: ManualClock) -> None:
        key = ThrottleKey("k", 1, 7 * SECOND)
        await enqueue(storage, new_job("first", throttle=key))
        clock.advance(2.5)
        (receipt,) = await storage.enqueue([new_job("second", throttle=key)])
        assert receipt.retry_in is not None
        clock.advance(receipt.retry_in / SECOND)

        assert await storage.enqueue([new_job("second", throttle=key)]) == [EnqueueResult("created", B)]

    async def test_a_call_that_creates_no_job_does_not_count_in_the_window(self, storage: Storage) -> None:
        await enqueue(storage, new_job("first", throttle=THROTTLE, merge=UNIQUE))
        again = [new_job("first", throttle=THROTTLE), new_job("second", throttle=THROTTLE, merge=UNIQUE)]

        assert [receipt.action for receipt in await storage.enqueue(again)] == ["duplicate", "duplicate"]
        assert await storage.enqueue([new_job("third", throttle=THROTTLE)]) == [EnqueueResult("created", C)]

    async def test_a_repeated_id_is_a_duplicate_although_the_window_is_full(self, storage: Storage) -> None:
        await enqueue(storage, new_job("first", throttle=THROTTLE), new_job("second", throttle=THROTTLE))

        assert await storage.enqueue([new_job("first", throttle=THROTTLE)]) == [EnqueueResult("duplicate", A)]

    async def test_completed_and_deleted_jobs_still_count_in_the_window(self, storage: Storage) -> None:
        await settle(storage, ALICE, await start(storage, new_job("first", throttle=THROTTLE)))
        await enqueue(storage, new_job("second", throttle=THROTTLE))
        await storage.revise([DeleteJob(A), DeleteJob(B)])

        assert await storage.enqueue([new_job("third", throttle=THROTTLE)]) == [
            EnqueueResult("throttled", B, 60 * SECOND)
        ]

    async def test_each_key_and_each_queue_has_its_own_window(self, storage: Storage) -> None:
        once = ThrottleKey("mail", 1, 60 * SECOND)
        await enqueue(
            storage,
            new_job("first", throttle=once),
            new_job("second", throttle=ThrottleKey("other", 1, 60 * SECOND)),
            new_job("third", throttle=once, queue="other"),
        )

    async def test_a_clock_set_back_does_not_extend_a_window(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("first", throttle=THROTTLE), new_job("second", throttle=THROTTLE))
        clock.step_wall(-3600)

        assert await storage.enqueue([new_job("third", throttle=THROTTLE)]) == [
            EnqueueResult("throttled", B, 60 * SECOND)
        ]

        clock.advance(60)

        assert await storage.enqueue([new_job("third", throttle=THROTTLE)]) == [EnqueueResult("created", C)]

    async def test_the_latest_call_sets_the_limit_of_the_window(self, storage: Storage) -> None:
        await enqueue(storage, new_job("first", throttle=THROTTLE), new_job("second", throttle=THROTTLE))
        more = ThrottleKey("mail", 3, 60 * SECOND)

        assert await storage.enqueue([new_job("third", throttle=more)]) == [EnqueueResult("created", C)]

    async def test_throttled_calls_are_recorded_as_events_on_request(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await record_on_request(storage, "throttled")
        await enqueue(storage, new_job("first", throttle=THROTTLE), new_job("second", throttle=THROTTLE))
        clock.advance(10)
        await storage.enqueue([new_job("third", throttle=THROTTLE)])
        events = await events_of(storage, JobThrottled)

        assert [(event.id, event.key, event.retry_in) for event in events] == [("third", "mail", 50.0)]


async def record_on_request(storage: Storage, *events: OnRequest) -> None:
    """Turn on the recording of events that are recorded on request only."""
    await storage.tune(Target("queue", QUEUE), Settings(record=events))
