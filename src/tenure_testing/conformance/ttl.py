"""Conformance tests of the time to live: no job starts that has waited too long, and each expiry is recorded."""

import pytest

from tenure.clock import SECOND
from tenure.core.events import JobDeleted, JobExpired, JobFailed, JobStalled
from tenure.core.job import Key, NewJob, OnExpire, Policy, Ref
from tenure.core.lifecycle import State
from tenure.core.outcome import Interrupted, Rejected, Snoozed
from tenure.core.retry import Backoff
from tenure.storage.protocol import (
    EXPIRE_LIMIT,
    PROMOTE_LIMIT,
    SCAN_LIMIT,
    CancelJob,
    ClaimRequest,
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
    all_events,
    beat,
    bid,
    claim,
    claim_one,
    counted,
    enqueue,
    events_of,
    glance,
    look,
    new_job,
    order,
    record,
    recover,
    settle,
    settled,
    start,
    states,
    sweep_all,
    watch,
)

TTL = 60 * SECOND
RESTS_LONG = Policy(retry=Backoff(max_attempts=3, kind="fixed", base=90 * SECOND, jitter=0.0))


class TtlConformance(Conformance):
    """No job starts that has waited too long, and each expiry is recorded."""

    @pytest.mark.statement(54)
    async def test_a_time_to_live_counts_from_the_enqueue(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(
            storage,
            new_job("due", ttl=TTL),
            new_job("later", ttl=TTL, delay=30 * SECOND),
            new_job("longer", ttl=2 * TTL),
            new_job("for-ever"),
        )
        clock.advance(5)
        jobs = {job.id: job for job in (await storage.find(Query())).jobs}
        made = clock.now() - 5 * SECOND

        assert {name: (job.ttl, job.expires_at) for name, job in jobs.items()} == {
            "due": (TTL, made + TTL),
            "later": (TTL, made + TTL),
            "longer": (2 * TTL, made + 2 * TTL),
            "for-ever": (None, None),
        }

    @pytest.mark.statement(54)
    async def test_each_job_lives_for_its_own_time(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("short", ttl=1), new_job("long", ttl=TTL + 1), new_job("for-ever"))
        clock.advance(60)

        assert {lease.ref.id for lease in await claim(storage)} == {"long", "for-ever"}
        assert (await states(storage))["short"] is State.EXPIRED

    @pytest.mark.fault("W-T15", "W-N10")
    @pytest.mark.statement(52, 55, 57)
    async def test_a_claim_skips_expired_jobs(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("old", ttl=TTL))
        clock.advance(30)
        await enqueue(storage, new_job("young", ttl=TTL))
        clock.advance(31)
        answer = await order(storage, ALICE, room=1)
        detail = await look(storage, Ref(QUEUE, "old"))
        job = detail.job

        assert [lease.ref.id for lease in answer.leases] == ["young"]
        assert not answer.left
        assert (job.state, job.finished, job.starts, job.owner) == (State.EXPIRED, clock.now(), 0, None)
        assert job.error is not None
        assert (job.error.type, job.error.traceback) == ("JobExpiredError", "")
        assert "time to live of 1m" in job.error.message
        assert (job.result, job.reason, job.failures, detail.runs) == (None, None, 0, ())
        assert [found.id for found in (await storage.find(Query(states=(State.EXPIRED,)))).jobs] == ["old"]
        assert [(event.id, event.run, event.ttl, event.age, event.on_expire) for event in await expiries(storage)] == [
            ("old", 0, 60.0, 61.0, "fail")
        ]

    @pytest.mark.statement(56)
    async def test_a_claim_expires_a_job_to_the_microsecond(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job("first", ttl=TTL), new_job("second", ttl=TTL))
        clock.advance(59.999_999)

        assert [lease.ref.id for lease in await claim(storage, room=1)] == ["first"]

        clock.advance(0.000_001)

        assert await claim(storage) == []
        assert (await states(storage))["second"] is State.EXPIRED
        assert [event.age for event in await expiries(storage)] == [60.0]

    async def test_a_sweep_expires_a_job_to_the_microsecond(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job(ttl=TTL))
        clock.advance(59.999_999)
        await sweep_all(storage)

        assert (await record(storage, new_job().ref)).state is State.WAITING

        clock.advance(0.000_001)
        await sweep_all(storage)

        assert (await record(storage, new_job().ref)).state is State.EXPIRED

    @pytest.mark.statement(58)
    @pytest.mark.parametrize("by_sweep", [False, True])
    async def test_a_discarded_job_leaves_only_a_count_and_an_event(
        self, storage: Storage, clock: ManualClock, by_sweep: bool
    ) -> None:
        await enqueue(storage, mortal("gone", "discard"), mortal("kept"), new_job("live"))
        clock.advance(61)
        if by_sweep:
            await sweep_all(storage)
        leases = await claim(storage)

        assert [lease.ref.id for lease in leases] == ["live"]
        assert await storage.get([Ref(QUEUE, "gone")]) == [None]
        assert await states(storage) == {"kept": State.EXPIRED, "live": State.ACTIVE}
        assert await counted(storage) == {State.EXPIRED: 1, State.ACTIVE: 1}
        assert (await glance(storage)).discarded == 1
        assert sorted((event.id, event.on_expire) for event in await expiries(storage)) == [
            ("gone", "discard"),
            ("kept", "fail"),
        ]
        assert (await storage.revise([RedriveJob(Ref(QUEUE, "gone"))]))[0].verdict == "gone"

    @pytest.mark.fault("W-N10")
    @pytest.mark.statement(58)
    async def test_discarded_jobs_are_counted_by_queue_permanently(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, mortal("a", "discard"), mortal("b", "discard"), mortal("a", "discard", queue="mail"))
        clock.advance(60)
        await claim(storage)
        await sweep_all(storage)
        await storage.close()
        await storage.open()

        assert {queue.queue: queue.discarded for queue in (await storage.survey()).queues} == {QUEUE: 2, "mail": 1}

        await enqueue(storage, mortal("a", "discard"))
        clock.advance(60)
        await sweep_all(storage)

        assert (await glance(storage)).discarded == 3

    async def test_the_id_of_a_discarded_job_is_free_and_of_an_expired_job_is_not(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        jobs = [mortal("gone", "discard"), mortal("kept")]
        await enqueue(storage, *jobs)
        clock.advance(60)
        await sweep_all(storage)

        assert [receipt.action for receipt in await storage.enqueue(jobs)] == ["created", "duplicate"]
        assert [lease.ref.id for lease in await claim(storage)] == ["gone"]

    @pytest.mark.statement(59)
    async def test_the_job_decides_whether_it_is_discarded_or_kept(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, mortal("a", "discard"), mortal("b", "fail"), mortal("c", "discard"))
        clock.advance(60)
        await claim(storage, BOB)

        assert await states(storage) == {"b": State.EXPIRED}

    @pytest.mark.statement(60)
    async def test_a_delayed_job_that_expires_before_it_is_due_never_starts(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, new_job(ttl=TTL, delay=90 * SECOND))
        clock.advance(90)

        assert await claim(storage) == []
        detail = await look(storage, new_job().ref)
        assert (detail.job.state, detail.job.starts, detail.runs) == (State.EXPIRED, 0, ())
        assert [event.age for event in await expiries(storage)] == [90.0]

    @pytest.mark.statement(60, 63)
    async def test_a_sweep_ends_a_delayed_job_before_it_is_due(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job(ttl=TTL, delay=90 * SECOND))
        clock.advance(60)
        await sweep_all(storage)

        assert (await record(storage, new_job().ref)).state is State.EXPIRED
        assert (await order(storage, ALICE, room=1)).next_due is None

    @pytest.mark.statement(61)
    @pytest.mark.parametrize("by_sweep", [False, True])
    async def test_a_job_between_two_attempts_expires(
        self, storage: Storage, clock: ManualClock, by_sweep: bool
    ) -> None:
        lease = await start(storage, new_job(ttl=TTL, policy=RESTS_LONG))
        await settle(storage, ALICE, lease, RAISED)
        clock.advance(90)
        if by_sweep:
            await sweep_all(storage)

        assert await claim(storage) == []
        detail = await look(storage, lease.ref)
        job = detail.job
        assert (job.state, job.failures, job.starts) == (State.EXPIRED, 1, 1)
        assert job.error is not None
        assert job.error.type == "JobExpiredError"
        assert [run.ended for run in detail.runs] == ["raised"]
        assert [event.run for event in await expiries(storage)] == [1]
        assert await events_of(storage, JobFailed) == []

    @pytest.mark.parametrize("outcome", [Interrupted("shutdown"), Snoozed(2 * SECOND)])
    async def test_a_run_released_after_expiry_is_not_followed_by_another(
        self, storage: Storage, clock: ManualClock, outcome: Interrupted | Snoozed
    ) -> None:
        lease = await start(storage, new_job(ttl=TTL))
        clock.advance(60)
        await beat(storage, ALICE, [lease])
        await settle(storage, ALICE, lease, outcome)
        clock.advance(2)

        assert await claim(storage) == []
        assert (await record(storage, lease.ref)).state is State.EXPIRED

    async def test_a_recovered_job_past_its_time_expires_instead_of_running(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage, new_job(ttl=15 * SECOND))
        await recover(storage, clock)
        await sweep_all(storage)

        assert await claim(storage) == []
        job = await record(storage, lease.ref)
        assert (job.state, job.stalls, job.starts) == (State.EXPIRED, 1, 1)
        assert [type(event).__name__ for event in await all_events(storage) if hasattr(event, "run")] == [
            "JobStalled",
            "JobExpired",
        ]
        assert [event.action for event in await events_of(storage, JobStalled)] == ["recovered"]

    @pytest.mark.statement(62)
    async def test_a_running_job_does_not_expire(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job(ttl=TTL))

        assert await watch(storage, clock, 70, beating=[lease]) == []
        assert (await record(storage, lease.ref)).state is State.ACTIVE
        assert await settle(storage, ALICE, lease) == "done"
        assert (await record(storage, lease.ref)).state is State.COMPLETED
        assert await expiries(storage) == []

    @pytest.mark.statement(63)
    async def test_a_sweep_expires_jobs_of_unclaimed_queues(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job(ttl=TTL), new_job(ttl=TTL, queue="mail"), new_job("live"))
        clock.advance(60)
        swept = await storage.sweep(bid())

        assert swept.did["expired"] == 2
        assert (await record(storage, new_job().ref)).finished == clock.now()
        assert await states(storage, QUEUE, "mail") == {"job": State.EXPIRED, "live": State.WAITING}
        assert len(await expiries(storage)) == 2

    @pytest.mark.statement(63)
    async def test_a_sweep_expires_jobs_of_a_paused_queue(self, storage: Storage, clock: ManualClock) -> None:
        await storage.tune(Target("queue", QUEUE), Settings(paused=True))
        await storage.tune(Target("task", "mail.send"), Settings(paused=True))
        await enqueue(storage, new_job(ttl=TTL), new_job(ttl=TTL, queue="mail", task="mail.send"))
        await claim(storage, queue="mail")
        clock.advance(60)
        await sweep_all(storage)

        assert await counted(storage) == {State.EXPIRED: 1}
        assert await counted(storage, "mail") == {State.EXPIRED: 1}

    async def test_a_job_expires_once(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job(ttl=TTL))
        clock.advance(60)
        for _ in range(2):
            await claim(storage)
            await sweep_all(storage)
            clock.advance(60)

        assert len(await expiries(storage)) == 1

    async def test_a_sweep_expires_in_bounded_steps(self, storage: Storage, clock: ManualClock) -> None:
        count = EXPIRE_LIMIT + 60
        await enqueue(storage, *(new_job(f"job-{number:04}", ttl=TTL) for number in range(count)))
        clock.advance(60)
        first = await storage.sweep(bid())

        assert (first.more, first.did["expired"]) == (True, EXPIRE_LIMIT)

        second = await storage.sweep(bid())

        assert (second.more, second.did["expired"]) == (False, 60)
        assert await counted(storage) == {State.EXPIRED: count}

    @pytest.mark.statement(64)
    @pytest.mark.parametrize("on_expire", ["fail", "discard"])
    async def test_a_claim_finds_a_live_job_behind_many_expired_ones(
        self, storage: Storage, clock: ManualClock, on_expire: OnExpire
    ) -> None:
        dead = 2 * SCAN_LIMIT + 50
        await enqueue(storage, *(mortal(f"job-{number:04}", on_expire) for number in range(dead)))
        clock.advance(60)
        await enqueue(storage, new_job("live"))
        done = 0
        for _ in range(2):
            answer = await order(storage, ALICE, room=1)
            passed = (await glance(storage)).discarded + (await counted(storage)).get(State.EXPIRED, 0)

            # The answer is empty but says that there is more, so that the caller does not sleep. Each call has a
            # bounded share.
            assert (answer.leases, answer.left) == ((), True)
            assert 0 < passed - done <= SCAN_LIMIT
            done = passed
        answer = await order(storage, ALICE, room=1)

        assert [lease.ref.id for lease in answer.leases] == ["live"]
        assert not answer.left
        assert len(await expiries(storage)) == dead

    @pytest.mark.statement(64)
    async def test_a_claim_finds_a_live_job_behind_expired_delayed_ones(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        dead = PROMOTE_LIMIT + 50
        await enqueue(storage, *(new_job(f"job-{number:04}", ttl=TTL, delay=TTL) for number in range(dead)))
        await enqueue(storage, new_job("live", delay=TTL + 1))
        clock.advance(61)
        first = await order(storage, ALICE, room=1)

        assert (first.leases, first.left or first.next_due == 0) == ((), True)

        second = await order(storage, ALICE, room=1)

        assert [lease.ref.id for lease in second.leases] == ["live"]

    async def test_an_expired_job_leaves_its_parked_place(self, storage: Storage, clock: ManualClock) -> None:
        one = (Key("printer"),)
        holder = await start(storage, new_job("holder", keys=one))
        await enqueue(storage, new_job("mortal", keys=one, ttl=15 * SECOND), new_job("patient", keys=one))

        assert await claim(storage) == []
        assert (await glance(storage)).parked == 2

        clock.advance(15)
        await sweep_all(storage)
        job = await record(storage, Ref(QUEUE, "mortal"))

        assert (job.state, job.parked_under) == (State.EXPIRED, None)
        assert (await glance(storage)).parked == 1

        await settle(storage, ALICE, holder)

        assert [lease.ref.id for lease in await claim(storage)] == ["patient"]

    @pytest.mark.parametrize("by_sweep", [False, True])
    async def test_a_released_job_that_expires_passes_its_slot_to_the_next(
        self, storage: Storage, clock: ManualClock, by_sweep: bool
    ) -> None:
        one = (Key("printer"),)
        holder = await start(storage, new_job("holder", keys=one))
        await enqueue(storage, new_job("mortal", keys=one, ttl=15 * SECOND), new_job("patient", keys=one))
        await claim(storage)
        await settle(storage, ALICE, holder)
        clock.advance(15)
        if by_sweep:
            await sweep_all(storage)

        assert [lease.ref.id for lease in await claim(storage)] == ["patient"]

    @pytest.mark.fault("W-T31")
    @pytest.mark.statement(66)
    async def test_a_redrive_gives_the_same_time_to_live_each_time(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job(ttl=TTL))
        for _ in range(3):
            clock.advance(60)
            await sweep_all(storage)

            assert (await record(storage, new_job().ref)).state is State.EXPIRED

            clock.advance(100)
            await storage.revise([RedriveJob(new_job().ref)])
            job = await record(storage, new_job().ref)

            assert (job.state, job.ttl, job.expires_at) == (State.WAITING, TTL, clock.now() + TTL)
            assert (job.error, job.finished) == (None, None)

        clock.advance(59.999_999)

        assert len(await claim(storage)) == 1
        assert [(event.ttl, event.age) for event in await expiries(storage)] == [(60.0, 60.0)] * 3

    @pytest.mark.statement(66)
    async def test_a_delayed_redrive_counts_its_time_to_live_from_its_due_time(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage, new_job(ttl=TTL))
        await settle(storage, ALICE, lease, Rejected(ERROR))
        clock.advance(3600)
        await storage.revise([RedriveJob(lease.ref, delay=300 * SECOND)])

        assert (await record(storage, lease.ref)).expires_at == clock.now() + 360 * SECOND

        clock.advance(359.999_999)

        assert len(await claim(storage)) == 1

    async def test_a_job_delayed_beyond_its_time_to_live_expires_in_time(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, new_job(ttl=TTL))
        await storage.revise([RescheduleJob(new_job().ref, delay=3600 * SECOND)])
        clock.advance(60)
        await sweep_all(storage)

        assert (await record(storage, new_job().ref)).state is State.EXPIRED

    async def test_an_expired_job_cannot_be_changed(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job(ttl=TTL))
        clock.advance(60)
        await sweep_all(storage)
        revised = await storage.revise([CancelJob(new_job().ref), RescheduleJob(new_job().ref, delay=0)])

        assert [(result.verdict, result.state) for result in revised] == [("refused", State.EXPIRED)] * 2
        assert await events_of(storage, JobDeleted) == []

    async def test_a_settled_job_never_expires(self, storage: Storage, clock: ManualClock) -> None:
        await settle(storage, ALICE, await start(storage, new_job("done", ttl=TTL)))
        await settle(storage, ALICE, await start(storage, new_job("dead", ttl=TTL)), Rejected(ERROR))
        await enqueue(storage, new_job("unwanted", ttl=TTL))
        await storage.revise([CancelJob(Ref(QUEUE, "unwanted"))])
        clock.advance(61)
        await sweep_all(storage)

        assert await states(storage) == {
            "done": State.COMPLETED,
            "dead": State.FAILED,
            "unwanted": State.CANCELLED,
        }
        assert await expiries(storage) == []

    async def test_an_exchange_that_settles_and_claims_expires_jobs(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job("first", ttl=TTL))
        await enqueue(storage, new_job("second"))
        clock.advance(60)
        answer = await storage.exchange(ALICE, [settled(lease, Interrupted("shutdown"))], ClaimRequest((QUEUE,), 1))

        assert [verdict.verdict for verdict in answer.verdicts] == ["done"]
        assert [leased.ref.id for leased in answer.leases] == ["second"]
        assert (await states(storage))["first"] is State.EXPIRED

    async def test_a_job_expires_by_the_storages_clock_after_clock_steps(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, new_job(ttl=TTL))
        clock.advance(59)
        clock.step_wall(-30)
        clock.advance(30)

        assert (await claim_one(storage)).ref == new_job().ref


def mortal(name: str, on_expire: OnExpire = "fail", *, queue: str = QUEUE) -> NewJob:
    """Return a job with a time to live of a minute."""
    return new_job(name, queue=queue, ttl=TTL, policy=Policy(on_expire=on_expire))


async def expiries(storage: Storage) -> list[JobExpired]:
    """Return the events about jobs that waited too long."""
    return await events_of(storage, JobExpired)
