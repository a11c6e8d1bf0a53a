"""Conformance tests of `notices`: a listener is woken after a change. No other promise depends on notices."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tenure.clock import SECOND
from tenure.core.job import Key, OnExpire, Policy
from tenure.core.outcome import Interrupted, Raised
from tenure.storage.protocol import (
    EVENTS_TOPIC,
    CancelJob,
    Notifications,
    Settings,
    Storage,
    Target,
    job_topic,
    owner_topic,
    queue_topic,
)
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    ERROR,
    QUEUE,
    REAPER,
    Conformance,
    apply,
    bid,
    claim,
    enqueue,
    new_job,
    new_jobs,
    settle,
    stalled,
    start,
)

PATIENCE = 30
"""Timeout in real seconds, because no manual clock moves notices. Only a broken storage takes that long."""

QUIET = 0.05
"""Real seconds without a hint after which a new subscription counts as quiet. If too short, a test proves less."""


class NoticesConformance(Conformance):
    """A listener is woken after a change."""

    async def test_an_enqueue_wakes_listeners_of_its_queue(self, storage: Storage) -> None:
        notices = storage.notices([queue_topic("mail"), queue_topic(QUEUE)])
        await woken_by(storage, notices, lambda: enqueue(storage, new_job()))
        notices.close()

    async def test_a_released_job_wakes_listeners_of_its_queue(self, storage: Storage) -> None:
        lease = await start(storage)
        notices = storage.notices([queue_topic(QUEUE)])
        await woken_by(storage, notices, lambda: settle(storage, ALICE, lease, Interrupted("shutdown")))
        notices.close()

    @pytest.mark.parametrize("after", [0, SECOND])
    async def test_a_retry_wakes_the_workers_of_its_queue(self, storage: Storage, after: int) -> None:
        lease = await start(storage)
        notices = storage.notices([queue_topic(QUEUE)])
        await woken_by(storage, notices, lambda: settle(storage, ALICE, lease, Raised(ERROR, after=after)))
        notices.close()

    @pytest.mark.statement(4)
    async def test_a_recovered_job_wakes_the_workers_of_its_queue(self, storage: Storage) -> None:
        await start(storage)
        (taken,) = (await storage.reclaim(ALICE.id, REAPER)).stalled
        notices = storage.notices([queue_topic(QUEUE)])
        await woken_by(storage, notices, lambda: apply(storage, REAPER, stalled(taken)))
        notices.close()

    @pytest.mark.parametrize("keys", [(), (Key("k"),)], ids=["plain", "keyed"])
    async def test_a_settlement_wakes_listeners_of_the_job(self, storage: Storage, keys: tuple[Key, ...]) -> None:
        lease = await start(storage, new_job(keys=keys))
        notices = storage.notices([job_topic(lease.ref)])
        await woken_by(storage, notices, lambda: settle(storage, ALICE, lease))
        notices.close()

    async def test_a_cancel_wakes_listeners_of_the_job(self, storage: Storage) -> None:
        await enqueue(storage, new_job())
        notices = storage.notices([job_topic(new_job().ref)])
        await woken_by(storage, notices, lambda: storage.revise([CancelJob(new_job().ref)]))
        notices.close()

    async def test_a_cancel_wakes_the_owner_of_a_running_job(self, storage: Storage) -> None:
        lease = await start(storage)
        notices = storage.notices([owner_topic(ALICE.id)])
        await woken_by(storage, notices, lambda: storage.revise([CancelJob(lease.ref, "enough")]))
        notices.close()

    async def test_an_order_wakes_its_worker(self, storage: Storage) -> None:
        notices = storage.notices([owner_topic(ALICE.id)])
        await woken_by(storage, notices, lambda: storage.tune(Target("worker", ALICE.id), Settings(quiet=True)))
        notices.close()

    @pytest.mark.statement(65)
    @pytest.mark.parametrize("on_expire", ["fail", "discard"])
    @pytest.mark.parametrize("by_sweep", [False, True])
    async def test_an_expiry_wakes_listeners_of_the_job(
        self, storage: Storage, clock: ManualClock, on_expire: OnExpire, by_sweep: bool
    ) -> None:
        await enqueue(storage, new_job(ttl=SECOND, policy=Policy(on_expire=on_expire)))
        clock.advance(1)
        notices = storage.notices([job_topic(new_job().ref)])
        await woken_by(storage, notices, lambda: storage.sweep(bid()) if by_sweep else claim(storage))
        notices.close()

    async def test_a_job_promoted_by_a_sweep_wakes_listeners_of_its_queue(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, new_job(delay=SECOND))
        clock.advance(1)
        notices = storage.notices([queue_topic(QUEUE)])
        await woken_by(storage, notices, lambda: storage.sweep(bid()))
        notices.close()

    async def test_an_event_wakes_readers_of_the_log(self, storage: Storage) -> None:
        lease = await start(storage)
        notices = storage.notices([EVENTS_TOPIC])
        await woken_by(storage, notices, lambda: settle(storage, ALICE, lease))
        notices.close()

    async def test_an_enqueue_in_another_thread_wakes_listeners_of_this_one(self, storage: Storage) -> None:
        notices = storage.notices([queue_topic(QUEUE)])
        await woken_by(storage, notices, lambda: asyncio.to_thread(asyncio.run, enqueue(storage, new_job())))
        notices.close()

    @pytest.mark.fault("W-T32", "W-P18")
    async def test_all_listeners_are_woken(self, storage: Storage) -> None:
        several = [storage.notices([queue_topic(QUEUE)]) for _ in range(3)]
        for notices in several:
            await subscribed(storage, notices)
        waits = [asyncio.ensure_future(notices.__anext__()) for notices in several]
        await enqueue(storage, new_job())
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*waits)
        for notices in several:
            notices.close()

    async def test_a_change_between_two_waits_is_reported_by_the_next(self, storage: Storage) -> None:
        notices = storage.notices([queue_topic(QUEUE)])
        await subscribed(storage, notices)
        await enqueue(storage, new_job())
        async with asyncio.timeout(PATIENCE):
            await notices.__anext__()
        notices.close()

    async def test_many_changes_are_merged(self, storage: Storage) -> None:
        notices = storage.notices([queue_topic(QUEUE), EVENTS_TOPIC])
        await subscribed(storage, notices)
        for job in new_jobs(50):
            await settle(storage, ALICE, await start(storage, job))
        hints = 0
        while await ready(notices, within=QUIET if hints else PATIENCE):
            hints += 1

        assert 0 < hints < 50
        notices.close()

    async def test_a_cancelled_wait_loses_no_notification(self, storage: Storage) -> None:
        notices = storage.notices([queue_topic(QUEUE)])
        await subscribed(storage, notices)
        wait = asyncio.ensure_future(notices.__anext__())
        await turns()
        wait.cancel()
        await asyncio.gather(wait, return_exceptions=True)
        await enqueue(storage, new_job())
        async with asyncio.timeout(PATIENCE):
            await notices.__anext__()
        notices.close()

    async def test_closing_twice_is_allowed(self, storage: Storage) -> None:
        notices = storage.notices([queue_topic(QUEUE)])
        notices.close()
        notices.close()
        await enqueue(storage, new_job())


async def woken_by(storage: Storage, notices: Notifications, change: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Wait for a hint that the change itself causes."""
    await subscribed(storage, notices)
    wait = asyncio.ensure_future(notices.__anext__())
    await turns()
    await change()
    async with asyncio.timeout(PATIENCE):
        await wait


async def subscribed(storage: Storage, notices: Notifications) -> None:
    """Wait until a new subscription has begun. A remote one gives a hint then, which could be mistaken for a change."""
    if storage.remote:
        async with asyncio.timeout(PATIENCE):
            await notices.__anext__()
        while await ready(notices, within=QUIET):
            pass


async def ready(notices: Notifications, *, within: float = 0.0) -> bool:
    """Return True if there is a hint now or within some seconds."""
    wait = asyncio.ensure_future(notices.__anext__())
    await turns()
    await asyncio.wait([wait], timeout=within)
    if wait.done():
        return True
    wait.cancel()
    await asyncio.gather(wait, return_exceptions=True)
    return False


async def turns() -> None:
    """Let all callbacks run that are ready."""
    for _ in range(10):
        await asyncio.sleep(0)
