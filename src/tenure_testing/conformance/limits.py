"""Conformance tests of limits that a handler sets with `RateLimited`: nothing starts before the instant."""

import pytest

from tenure.clock import SECOND
from tenure.core.duration import moment
from tenure.core.events import JobReleased, QueueLimited
from tenure.core.job import Key, Owner, RateKey
from tenure.core.lifecycle import State
from tenure.core.outcome import RateLimitHit, Unknown
from tenure.storage.protocol import (
    QUEUE_RATE,
    CancelJob,
    ClaimRequest,
    RescheduleJob,
    Settings,
    StartLimit,
    Storage,
    Target,
    queue_topic,
)
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    QUEUE,
    RETURNED,
    Conformance,
    claim,
    claim_one,
    enqueue,
    events_of,
    glance,
    new_job,
    order,
    record,
    settle,
    settled,
    start,
    sweep_all,
)
from tenure_testing.conformance.notices import woken_by

FAST = RateKey("key:a", SECOND // 10, 10)
OTHER = RateKey("key:b", SECOND // 10, 10)
TASK = RateKey("task:send", SECOND // 10, 10)
MINUTE = 60 * SECOND


class LimitsConformance(Conformance):
    """Nothing of a limited rate or queue starts before the instant, with any number of workers."""

    async def test_a_rate_limited_job_is_released_until_the_instant(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        assert await settle(storage, ALICE, lease, RateLimitHit(MINUTE)) == "done"
        job = await record(storage, lease.ref)

        assert (job.state, job.reason, job.run_at) == (State.DELAYED, "rate_limited", clock.now() + MINUTE)
        assert (job.failures, job.stalls, job.releases) == (0, 0, 1)
        assert [event.reason for event in await events_of(storage, JobReleased)] == ["rate_limited"]

    async def test_a_job_without_a_rate_limits_its_whole_queue(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await settle(storage, ALICE, lease, RateLimitHit(MINUTE))
        await enqueue(storage, new_job("plain"), new_job("paced", rates=(FAST,)), new_job("keyed", keys=(Key("k"),)))
        await enqueue(storage, new_job("elsewhere", queue="other"))

        assert [each.ref.id for each in await claim(storage, queue="other")] == ["elsewhere"]
        await nothing_starts_before(storage, clock, MINUTE)
        assert {each.ref.id for each in await claim(storage)} == {"job", "plain", "paced", "keyed"}

    async def test_a_job_with_a_rate_limits_only_that_rate(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job(rates=(FAST,)))
        await settle(storage, ALICE, lease, RateLimitHit(MINUTE))
        await enqueue(storage, new_job("free"), new_job("same", rates=(FAST,)), new_job("other", rates=(OTHER,)))

        assert {each.ref.id for each in await claim(storage)} == {"free", "other"}
        await nothing_starts_before(storage, clock, MINUTE)
        assert {each.ref.id for each in await claim(storage)} == {"job", "same"}

    async def test_a_rate_with_a_key_is_limited_rather_than_that_of_the_task(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage, new_job(rates=(TASK, FAST)))
        await settle(storage, ALICE, lease, RateLimitHit(MINUTE))
        await enqueue(storage, new_job("same", rates=(TASK, FAST)), new_job("other", rates=(TASK, OTHER)))

        assert [each.ref.id for each in await claim(storage)] == ["other"]

    async def test_jobs_parked_under_a_rate_do_not_start_before_its_limit(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        slow = RateKey("key:slow", SECOND)
        lease = await start(storage, new_job(rates=(slow,)))
        await enqueue(storage, *(new_job(f"waits-{number}", rates=(slow,)) for number in range(3)))
        assert len(await claim(storage)) == 0
        await settle(storage, ALICE, lease, RateLimitHit(MINUTE))

        assert (await order(storage, BOB, room=10)).next_due == MINUTE
        await nothing_starts_before(storage, clock, MINUTE)
        assert len(await claim(storage)) == 1

    async def test_jobs_that_a_rate_had_released_do_not_start_before_its_limit(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        first, second = (
            await start(storage, new_job("a", rates=(FAST,))),
            await start(storage, new_job("b", rates=(FAST,))),
        )
        await enqueue(storage, *(new_job(f"ready-{number}", rates=(FAST,)) for number in range(5)))
        await settle(storage, ALICE, first, RateLimitHit(MINUTE))
        # A run that its worker did not know gives time back to its rate, but not to the limit.
        await settle(storage, ALICE, second, Unknown())

        await nothing_starts_before(storage, clock, MINUTE)

    async def test_the_latest_instant_wins_and_an_earlier_one_changes_nothing(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, *(new_job(name) for name in "abc"))
        leases = await claim(storage)
        begun = clock.now()
        for lease, length in zip(leases, (20, 60, 40), strict=True):
            await settle(storage, ALICE, lease, RateLimitHit(length * SECOND))

        assert (await glance(storage)).limits == (StartLimit(None, begun + MINUTE),)
        assert [
            (event.queue, event.rate, event.until, event.by) for event in await events_of(storage, QueueLimited)
        ] == [
            (QUEUE, None, moment(begun + 20 * SECOND), "a"),
            (QUEUE, None, moment(begun + MINUTE), "b"),
        ]
        await nothing_starts_before(storage, clock, MINUTE)
        assert len(await claim(storage)) == 3

    async def test_a_claim_says_when_the_limit_of_its_queue_ends(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await settle(storage, ALICE, lease, RateLimitHit(MINUTE))
        await enqueue(storage, new_job("next"))
        await storage.revise([CancelJob(lease.ref)])
        answer = await order(storage, BOB, room=5)

        assert (answer.leases, answer.left, answer.next_due) == ((), False, MINUTE)
        clock.advance(15)
        assert (await order(storage, BOB, "other", QUEUE, room=0)).next_due == MINUTE - 15 * SECOND

    async def test_a_settlement_with_a_limit_gives_out_nothing_in_the_same_call(self, storage: Storage) -> None:
        lease = await start(storage)
        await enqueue(storage, *(new_job(f"next-{number}") for number in range(3)))
        answer = await storage.exchange(ALICE, [settled(lease, RateLimitHit(MINUTE))], ClaimRequest((QUEUE,), 10))

        assert (answer.leases, answer.left, answer.next_due) == ((), False, MINUTE)

    async def test_a_refused_settlement_limits_nothing(self, storage: Storage) -> None:
        lease = await start(storage)
        assert await settle(storage, BOB, lease, RateLimitHit(MINUTE)) == "lost"

        assert (await glance(storage)).limits == ()
        assert await events_of(storage, QueueLimited) == []

    async def test_a_repeated_settlement_does_not_extend_the_limit(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await settle(storage, ALICE, lease, RateLimitHit(MINUTE))
        clock.advance(10)
        assert await settle(storage, ALICE, lease, RateLimitHit(MINUTE)) == "duplicate"

        assert [limit.until for limit in (await glance(storage)).limits] == [clock.now() + 50 * SECOND]

    async def test_the_limit_of_a_cancelled_run_applies(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await enqueue(storage, new_job("next"))
        await storage.revise([CancelJob(lease.ref)])
        await settle(storage, ALICE, lease, RateLimitHit(MINUTE))

        assert (await record(storage, lease.ref)).state is State.CANCELLED
        await nothing_starts_before(storage, clock, MINUTE)

    async def test_an_operator_lifts_a_limit_and_the_queue_is_notified(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage)
        await settle(storage, ALICE, lease, RateLimitHit(MINUTE))
        await enqueue(storage, new_job("next"))

        async def lift() -> None:
            await storage.tune(Target("queue", QUEUE), Settings(lift=QUEUE_RATE), by="ops")

        await woken_by(storage, storage.notices([queue_topic(QUEUE)]), lift)
        assert (await glance(storage)).limits == ()
        assert (await glance(storage)).settings == Settings()
        last = (await events_of(storage, QueueLimited))[-1]
        assert (last.queue, last.rate, last.until, last.by) == (QUEUE, None, None, "ops")
        assert [each.ref.id for each in await claim(storage)] == ["next"]
        # Nothing is left to lift.
        await lift()
        assert len(await events_of(storage, QueueLimited)) == 2

    async def test_an_operator_lifts_one_limit_of_several_or_all(self, storage: Storage, clock: ManualClock) -> None:
        jobs = [new_job("a", rates=(FAST,)), new_job("b", rates=(OTHER,)), new_job("c")]
        await enqueue(storage, *jobs)
        for lease in await claim(storage):
            await settle(storage, ALICE, lease, RateLimitHit(MINUTE))
        await enqueue(storage, new_job("d", rates=(FAST,)), new_job("e", rates=(OTHER,)), new_job("f"))
        until = clock.now() + MINUTE

        assert (await glance(storage)).limits == tuple(StartLimit(rate, until) for rate in ("key:a", "key:b", None))
        await storage.tune(Target("queue", QUEUE), Settings(lift=QUEUE_RATE))
        assert [each.ref.id for each in await claim(storage)] == ["f"]
        await storage.tune(Target("queue", QUEUE), Settings(lift="key:b"))
        assert [each.ref.id for each in await claim(storage)] == ["e"]
        await storage.tune(Target("queue", QUEUE), Settings(lift="*"))
        assert [each.ref.id for each in await claim(storage)] == ["d"]
        assert (await glance(storage)).limits == ()

    async def test_a_limit_that_is_over_leaves_nothing_behind(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job(rates=(FAST,)))
        await settle(storage, ALICE, lease, RateLimitHit(MINUTE))
        clock.advance(61)
        await settle(storage, ALICE, await claim_one(storage), RETURNED)
        await sweep_all(storage)
        clock.advance(60)
        await sweep_all(storage)

        assert (await glance(storage)).limits == ()

    @pytest.mark.fault("W-T9")
    async def test_a_limit_from_before_the_clock_was_set_back_is_over(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await start(storage)
        await settle(storage, ALICE, lease, RateLimitHit(MINUTE))
        await storage.revise([RescheduleJob(lease.ref, delay=0)])
        clock.step_wall(-3600)

        assert (await glance(storage)).limits == ()
        await enqueue(storage, new_job("next"))
        assert "next" in [each.ref.id for each in await claim(storage)]


async def nothing_starts_before(storage: Storage, clock: ManualClock, length: int) -> None:
    """Claim as several workers until just before the instant; then let the instant come."""
    workers = [Owner(f"{number:016x}", f"w{number}") for number in range(1, 6)]
    ends = clock.now() + length
    for pause in (0, 1, 10, 40):
        clock.advance(pause)
        await sweep_all(storage)
        for worker in workers:
            assert await claim(storage, worker) == []
    clock.advance((ends - clock.now() - 1) / SECOND)
    for worker in workers:
        assert await claim(storage, worker) == []
    clock.advance(0.000_001)
    assert clock.now() == ends
