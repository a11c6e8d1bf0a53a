"""Regression tests of faults that a review found: clocks set back, rules against retention, keys released in bulk."""

from tenure.clock import SECOND
from tenure.core.events import EventsTrimmed, JobCompleted
from tenure.core.job import Key, Policy, Redriving
from tenure.core.lifecycle import State
from tenure.core.outcome import TimedOut
from tenure.core.retention import KeepRule, RetentionRules
from tenure.core.retry import Backoff
from tenure.storage.protocol import (
    CancelJob,
    EventReader,
    LeaseRenewal,
    RenewRequest,
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
    bid,
    claim,
    enqueue,
    glance,
    look,
    new_job,
    new_jobs,
    record,
    settle,
    settled,
    start,
    states,
)

HOUR = 3600 * SECOND
QUEUE_ITSELF = Target("queue", QUEUE)
AGAIN = Policy(retry=Backoff(max_attempts=1), redrive=Redriving(2 * HOUR, 3))


class RegressionsConformance(Conformance):
    """Each test shows a fault that a storage once had."""

    async def test_a_rule_redrives_no_job_with_a_cancel_request(self, storage: Storage, clock: ManualClock) -> None:
        for name, outcome in (("raised", RAISED), ("late", TimedOut(ERROR))):
            lease = await start(storage, new_job(name, policy=AGAIN))
            await storage.revise([CancelJob(lease.ref, "enough")])
            await settle(storage, ALICE, lease, outcome)
        await settle(storage, ALICE, await start(storage, new_job("wanted", policy=AGAIN)), RAISED)
        clock.advance(3 * 3600)
        await storage.sweep(bid())

        assert await states(storage) == {"raised": State.FAILED, "late": State.FAILED, "wanted": State.WAITING}

    async def test_a_job_due_in_the_year_9999_waits_and_can_be_brought_forward(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        far = 253_402_300_799 * SECOND
        jobs = [new_job("plain", run_at=far), new_job("keyed", run_at=far, keys=(Key("k", 1),), tags=("far",))]
        await enqueue(storage, *jobs)
        for _ in range(3):
            clock.advance(5)
            await storage.sweep(bid())
        before = [await record(storage, job.ref) for job in jobs]
        await storage.revise([RescheduleJob(job.ref, delay=0) for job in jobs])
        leases = await claim(storage)

        assert [(job.state, job.run_at, job.unreadable) for job in before] == [(State.DELAYED, far, None)] * 2
        assert {lease.ref.id for lease in leases} == {"plain", "keyed"}
        assert [await settle(storage, ALICE, lease) for lease in leases] == ["done", "done"]

    async def test_retention_keeps_jobs_that_a_rule_will_redrive(self, storage: Storage, clock: ManualClock) -> None:
        await storage.tune(QUEUE_ITSELF, Settings(retention=RetentionRules(failed=KeepRule(HOUR, 0))))
        ruled, plain = await start(storage, new_job("ruled", policy=AGAIN)), await start(storage, new_job("plain"))
        await settle(storage, ALICE, ruled, RAISED)
        await settle(storage, ALICE, plain, TimedOut(ERROR, final=True))
        clock.advance(2 * 3600 - 1)
        await storage.sweep(bid())
        kept = await states(storage)
        clock.advance(1)
        await storage.sweep(bid())

        assert kept == {"ruled": State.FAILED}
        assert await states(storage) == {"ruled": State.WAITING}

    async def test_retention_after_a_clock_set_back_does_not_take_new_jobs_for_old(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.tune(QUEUE_ITSELF, Settings(retention=RetentionRules(completed=KeepRule(HOUR, 3))))
        for number in range(3):
            await settle(storage, ALICE, await start(storage, new_job(f"old-{number}")))
            clock.advance(1)
        clock.step_wall(-1800)
        await settle(storage, ALICE, await start(storage, new_job("new")))
        clock.advance(2)
        await storage.sweep(bid())

        assert set(await states(storage)) == {"old-1", "old-2", "new"}

    async def test_a_new_priority_after_a_clock_set_back_does_not_delay_the_job(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        (ref,) = await enqueue(storage, new_job())
        clock.step_wall(-3600)
        await storage.revise([RescheduleJob(ref, priority=2, boost=120 * SECOND)])
        job = await record(storage, ref)

        assert (job.state, job.priority) == (State.WAITING, 2)
        assert [lease.ref for lease in await claim(storage)] == [ref]

    async def test_durations_are_never_negative(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, new_job())
        clock.step_wall(-3600)

        assert (await glance(storage)).oldest_waiting == 0

    async def test_slots_freed_together_are_offered_once_each(self, storage: Storage) -> None:
        key = Key("k", 10)
        await enqueue(storage, *(new_job(f"job-{number:02}", keys=(key,)) for number in range(60)))
        running = await claim(storage, room=20)
        parked = (await glance(storage)).parked
        await storage.exchange(ALICE, [settled(lease) for lease in running])

        assert (len(running), parked) == (10, 50)
        # Ten jobs were released for the ten slots, not 1 + 2 + ... + 10.
        assert (await glance(storage)).parked == 40

    async def test_a_sweep_releases_no_job_while_a_released_one_waits(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        jobs = [new_job(f"{name}-{number}", keys=(Key(name),)) for number in range(5) for name in ("a", "b", "c")]
        await enqueue(storage, *jobs)
        running = await claim(storage)
        await storage.exchange(ALICE, [settled(lease) for lease in running])
        before = (await glance(storage)).parked
        for _ in range(5):
            clock.advance(2)
            await storage.sweep(bid())

        assert before == (await glance(storage)).parked == len(jobs) - 6

    async def test_a_repeated_settlement_is_a_duplicate_after_its_id_was_reused(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        job = new_job(policy=Policy(result_ttl=SECOND))
        lease = await start(storage, job)
        await settle(storage, ALICE, lease)
        clock.advance(2)
        await enqueue(storage, job)

        assert await settle(storage, ALICE, lease) == "duplicate"
        assert (await look(storage, lease.ref)).job.state is State.WAITING

    async def test_a_cursor_beyond_the_log_does_not_silence_a_reader(self, storage: Storage) -> None:
        for lease in [await start(storage, job) for job in new_jobs(3)]:
            await settle(storage, ALICE, lease)
        reader = EventReader("app", "process-1")
        await storage.events(reader=reader)
        page = await storage.events("1000")
        await storage.events("1000", reader=reader)
        await settle(storage, BOB, await start(storage, new_job("later"), BOB))
        heard = (await storage.events(reader=reader)).events

        assert isinstance(page.events[0], EventsTrimmed)
        assert len(page.events) == 4
        assert [event.id for event in heard if isinstance(event, JobCompleted)] == ["later"]

    async def test_a_heartbeat_counts_from_when_it_was_given(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage, new_job(heartbeat_timeout=10 * SECOND))
        clock.advance(5)
        # The renewal was delayed, or an earlier one was sent and its answer was lost.
        await storage.renew(RenewRequest(ALICE, (LeaseRenewal(lease.ref, lease.fence, sign=True, silent=4 * SECOND),)))

        assert (await record(storage, lease.ref)).progress_until == clock.now() + 6 * SECOND
