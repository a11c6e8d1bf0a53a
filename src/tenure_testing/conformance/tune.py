"""Conformance tests of `tune`: a setting applies to all callers at once, and an unset field keeps its value."""

import pytest

from tenure.clock import SECOND
from tenure.core.events import QueuePaused, QueueResumed
from tenure.core.job import FOREVER, RateKey, StallSetting, StallTerms
from tenure.core.retention import KeepRule, RetentionRules
from tenure.storage.protocol import Settings, Storage, Target
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    LEASE,
    QUEUE,
    Conformance,
    all_events,
    beat,
    claim,
    claim_one,
    enqueue,
    events_of,
    new_job,
    order,
    record,
    recover,
    start,
    watch,
)

THIS_QUEUE = Target("queue", QUEUE)


class TuneConformance(Conformance):
    """A setting applies to all callers at once."""

    async def test_a_paused_queue_starts_no_job(self, storage: Storage) -> None:
        await enqueue(storage, new_job(), new_job("later", delay=SECOND), new_job(queue="mail"))
        settings = await storage.tune(THIS_QUEUE, Settings(paused=True), by="ops")
        answer = await order(storage, ALICE, QUEUE, "mail", room=5)

        assert settings.paused is True
        assert [lease.ref.queue for lease in answer.leases] == ["mail"]
        assert (answer.left, answer.next_due) == (False, None)

    async def test_a_paused_queue_still_takes_jobs_and_beats(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await storage.tune(THIS_QUEUE, Settings(paused=True))
        await enqueue(storage, new_job("more"))

        assert await claim(storage) == []
        assert await watch(storage, clock, 60, beating=[lease]) == []

    async def test_a_resumed_queue_starts_its_waiting_jobs(self, storage: Storage) -> None:
        await enqueue(storage, new_job())
        await storage.tune(THIS_QUEUE, Settings(paused=True))

        assert await claim(storage) == []

        await storage.tune(THIS_QUEUE, Settings(paused=False))

        assert len(await claim(storage)) == 1

    async def test_a_queue_can_be_paused_before_it_has_jobs(self, storage: Storage) -> None:
        await storage.tune(THIS_QUEUE, Settings(paused=True))
        await enqueue(storage, new_job())
        survey = (await storage.survey([QUEUE])).queues[0]

        assert survey.paused
        assert await claim(storage) == []

    async def test_a_pause_and_its_end_record_one_event_each(self, storage: Storage) -> None:
        for paused in (True, True, False, False):
            await storage.tune(THIS_QUEUE, Settings(paused=paused), by="ops")

        assert [(event.queue, event.by) for event in await events_of(storage, QueuePaused)] == [(QUEUE, "ops")]
        assert [(event.queue, event.by) for event in await events_of(storage, QueueResumed)] == [(QUEUE, "ops")]
        assert len(await all_events(storage)) == 2

    async def test_settings_that_are_not_the_expected_ones_stay(self, storage: Storage) -> None:
        rate, stall = RateKey("queue", 2 * SECOND), StallSetting(lease=8 * SECOND)
        for target in (THIS_QUEUE, Target("task", "add")):
            assert await storage.tune(target, Settings(paused=True), expected=Settings(paused=True)) == Settings()
            # A field that is not set is the same as False, and fields that do not change are not compared.
            first = await storage.tune(target, Settings(paused=True), expected=Settings(paused=False, stall=stall))
            assert first == Settings(paused=True)
            assert await storage.tune(target, Settings(paused=False, rate=rate), expected=Settings()) == first
            second = await storage.tune(target, Settings(paused=False, rate=rate), expected=first)
            assert second == Settings(paused=False, rate=rate)
            # After a lost answer the caller sees in the answer that the settings are the wanted ones.
            assert await storage.tune(target, Settings(paused=False, rate=rate), expected=first) == second

        both = Settings(stall=stall, record=("started",), retention=RetentionRules(failed=KeepRule(SECOND, 9)))
        third = await storage.tune(THIS_QUEUE, both, expected=second)

        assert third == second.under(both)
        assert await storage.tune(THIS_QUEUE, both, expected=second) == third
        assert await storage.tune(THIS_QUEUE, Settings(record=()), expected=second) == third
        assert await storage.tune(THIS_QUEUE, Settings(record=()), expected=third) == third.under(Settings(record=()))
        assert len(await events_of(storage, QueuePaused)) == 1

    async def test_an_unset_field_stays(self, storage: Storage) -> None:
        setting = StallSetting(lease=8 * SECOND)
        await storage.tune(THIS_QUEUE, Settings(paused=True))
        await storage.tune(THIS_QUEUE, Settings(stall=setting))

        assert await storage.tune(THIS_QUEUE, Settings()) == Settings(paused=True, stall=setting)

    async def test_each_target_has_its_own_settings(self, storage: Storage) -> None:
        await storage.tune(Target("queue", "a"), Settings(paused=True))
        await storage.tune(Target("worker", "a"), Settings(quiet=True))

        assert await storage.tune(Target("queue", "a"), Settings()) == Settings(paused=True)
        assert await storage.tune(Target("worker", "a"), Settings()) == Settings(quiet=True)
        assert await storage.tune(Target("queue", "b"), Settings()) == Settings()

    @pytest.mark.statement(89)
    async def test_a_claim_applies_the_stall_setting_of_the_queue(self, storage: Storage, clock: ManualClock) -> None:
        before = await start(storage, new_job("before"))
        await enqueue(storage, new_job("after"))
        await storage.tune(
            THIS_QUEUE, Settings(stall=StallSetting(lease=8 * SECOND, max_stalls=0, start_grace=12 * SECOND))
        )
        after = await claim_one(storage)

        assert (after.job.stall.lease, after.job.stall.max_stalls) == (8 * SECOND, 0)
        assert after.job.lease_until == clock.now() + 12 * SECOND
        assert (await record(storage, before.ref)).stall == StallTerms()

        clock.advance(10)
        await beat(storage, ALICE, [before, after])

        assert (await record(storage, before.ref)).lease_until == clock.now() + LEASE
        assert (await record(storage, after.ref)).lease_until == clock.now() + 8 * SECOND

    @pytest.mark.statement(89)
    async def test_the_stall_setting_of_a_queue_keeps_terms_pinned_by_the_call(self, storage: Storage) -> None:
        terms = StallTerms(lease=90 * SECOND, max_stalls=5, pinned=("lease",))
        await enqueue(storage, new_job(stall=terms))
        await storage.tune(THIS_QUEUE, Settings(stall=StallSetting(lease=8 * SECOND, max_stalls=2, renewed=False)))
        lease = await claim_one(storage)

        assert lease.job.stall == StallTerms(90 * SECOND, 2, 0, renewed=False, pinned=("lease",))

    @pytest.mark.statement(89)
    async def test_a_queue_can_switch_stall_detection_off(self, storage: Storage, clock: ManualClock) -> None:
        await storage.tune(THIS_QUEUE, Settings(stall=StallSetting(lease=FOREVER)))
        await start(storage)
        clock.advance(86_400)

        assert await watch(storage, clock, 30) == []

    async def test_a_queues_stall_setting_counts_for_the_next_stall(self, storage: Storage, clock: ManualClock) -> None:
        lease = await start(storage)
        await recover(storage, clock)
        await storage.tune(THIS_QUEUE, Settings(stall=StallSetting(max_stalls=2)))
        await claim_one(storage)
        await recover(storage, clock)

        assert (await record(storage, lease.ref)).state == "waiting"

    async def test_settings_outlive_the_connection(self, storage: Storage) -> None:
        setting = Settings(paused=True, stall=StallSetting(lease=8 * SECOND, renewed=False))
        await storage.tune(THIS_QUEUE, setting)
        await storage.close()
        await storage.open()

        assert await storage.tune(THIS_QUEUE, Settings()) == setting

    async def test_stall_terms_are_set_field_by_field(self, storage: Storage) -> None:
        await storage.tune(THIS_QUEUE, Settings(stall=StallSetting(lease=9 * SECOND)))
        settings = await storage.tune(THIS_QUEUE, Settings(stall=StallSetting(max_stalls=4)))
        lease = await start(storage)

        assert settings.stall == StallSetting(lease=9 * SECOND, max_stalls=4)
        assert (lease.job.stall.lease, lease.job.stall.max_stalls) == (9 * SECOND, 4)
