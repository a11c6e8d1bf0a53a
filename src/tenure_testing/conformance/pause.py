"""Conformance tests of pauses: no paused job starts, other jobs are not delayed, and resuming restores everything."""

from collections.abc import Callable

import pytest

from tenure.clock import SECOND
from tenure.core.job import Key, Ref
from tenure.core.lifecycle import State
from tenure.core.outcome import Interrupted
from tenure.storage.protocol import (
    PROMOTE_LIMIT,
    SCAN_LIMIT,
    CancelJob,
    ClaimRequest,
    DeleteJob,
    RescheduleJob,
    Revision,
    Settings,
    Storage,
    Target,
    queue_topic,
)
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    QUEUE,
    RAISED,
    Conformance,
    all_events,
    bid,
    claim,
    claim_one,
    counted,
    enqueue,
    glance,
    new_job,
    new_jobs,
    order,
    record,
    settle,
    settled,
    start,
    sweep_all,
    watch,
)
from tenure_testing.conformance.notices import woken_by

THIS_QUEUE = Target("queue", QUEUE)
THIS_TASK = Target("task", "add")
PAUSE, RESUME = Settings(paused=True), Settings(paused=False)

WAYS_OFF: tuple[Callable[[Ref], Revision], ...] = (
    CancelJob,
    DeleteJob,
    lambda ref: RescheduleJob(ref, delay=60 * SECOND),
)
"""Every way in which an operator takes a job out of the queue."""


class PauseConformance(Conformance):
    """No paused job starts, other jobs are not delayed, and resuming restores everything."""

    async def test_a_resumed_queue_continues_in_its_order(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *new_jobs(3))
        await storage.tune(THIS_QUEUE, PAUSE)
        clock.advance(1)
        await enqueue(storage, new_job("a-later"), new_job("urgent", boost=60 * SECOND))
        await claim(storage)
        await sweep_all(storage)
        await storage.tune(THIS_QUEUE, RESUME)

        assert [lease.ref.id for lease in await claim(storage)] == [
            "urgent",
            "job-0000",
            "job-0001",
            "job-0002",
            "a-later",
        ]

    async def test_a_resumed_queue_wakes_its_listeners(self, storage: Storage) -> None:
        await storage.tune(THIS_QUEUE, PAUSE)
        await enqueue(storage, new_job())
        notices = storage.notices([queue_topic(QUEUE)])
        await woken_by(storage, notices, lambda: storage.tune(THIS_QUEUE, RESUME))
        notices.close()

    async def test_a_paused_queue_settles_its_run_and_starts_no_other(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(2))
        lease = await claim_one(storage)
        await storage.tune(THIS_QUEUE, PAUSE)
        answer = await storage.exchange(ALICE, [settled(lease)], ClaimRequest((QUEUE,), 5))

        assert [verdict.verdict for verdict in answer.verdicts] == ["done"]
        assert (answer.leases, answer.left) == ((), False)

    async def test_jobs_of_a_paused_queue_become_due(self, storage: Storage, clock: ManualClock) -> None:
        await storage.tune(THIS_QUEUE, PAUSE)
        await enqueue(storage, new_job(delay=5 * SECOND))
        clock.advance(5)
        await sweep_all(storage)

        assert (await record(storage, new_job().ref)).state is State.WAITING
        assert await claim(storage) == []

    async def test_a_paused_task_does_not_hold_up_the_jobs_behind_it(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(3), new_job("z-other", task="send"))
        settings = await storage.tune(THIS_TASK, PAUSE)
        answer = await order(storage, ALICE, room=1)

        assert settings == PAUSE
        assert [lease.ref.id for lease in answer.leases] == ["z-other"]
        assert not answer.left
        assert await counted(storage) == {State.WAITING: 3, State.ACTIVE: 1}
        assert (await glance(storage)).parked == 3

    async def test_a_paused_task_is_paused_in_every_queue(self, storage: Storage) -> None:
        await enqueue(storage, new_job(), new_job(queue="mail"), new_job("z", queue="mail", task="send"))
        await storage.tune(THIS_TASK, PAUSE)
        answer = await order(storage, ALICE, QUEUE, "mail", room=5)

        assert [lease.ref for lease in answer.leases] == [Ref("mail", "z")]

        await storage.tune(THIS_TASK, RESUME)
        answer = await order(storage, ALICE, QUEUE, "mail", room=5)

        assert [lease.ref for lease in answer.leases] == [Ref(QUEUE, "job"), Ref("mail", "job")]

    async def test_a_task_can_be_paused_before_it_has_jobs(self, storage: Storage) -> None:
        await storage.tune(THIS_TASK, PAUSE)
        await enqueue(storage, new_job())

        assert await claim(storage) == []

    async def test_a_resumed_task_continues_in_its_order(self, storage: Storage, clock: ManualClock) -> None:
        await enqueue(storage, *new_jobs(3))
        await storage.tune(THIS_TASK, PAUSE)
        await claim(storage)
        clock.advance(1)
        await enqueue(storage, new_job("a-later"), new_job("urgent", boost=60 * SECOND))
        await storage.tune(THIS_TASK, RESUME)

        assert [lease.ref.id for lease in await claim(storage)] == [
            "urgent",
            "job-0000",
            "job-0001",
            "job-0002",
            "a-later",
        ]
        assert (await glance(storage)).parked == 0

    async def test_a_resumed_task_wakes_the_listeners_of_its_queues(self, storage: Storage) -> None:
        await enqueue(storage, new_job())
        await storage.tune(THIS_TASK, PAUSE)
        await claim(storage)
        notices = storage.notices([queue_topic(QUEUE)])
        await woken_by(storage, notices, lambda: storage.tune(THIS_TASK, RESUME))
        notices.close()

    async def test_a_run_of_a_paused_task_continues_and_is_not_retried(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await enqueue(storage, *new_jobs(2))
        first, second = await claim(storage)
        await storage.tune(THIS_TASK, PAUSE)

        assert await watch(storage, clock, 30, beating=[first, second]) == []
        assert await settle(storage, ALICE, first) == "done"
        assert await settle(storage, ALICE, second, RAISED) == "done"

        clock.advance(1)

        assert await claim(storage) == []

        await storage.tune(THIS_TASK, RESUME)

        assert [(lease.ref, lease.run) for lease in await claim(storage)] == [(second.ref, 2)]

    async def test_a_survey_shows_what_is_paused(self, storage: Storage) -> None:
        await storage.tune(Target("task", "mail.send"), PAUSE)
        await storage.tune(THIS_TASK, PAUSE)
        await storage.tune(Target("queue", "mail"), PAUSE)
        survey = await storage.survey()

        assert survey.paused_tasks == ("add", "mail.send")
        assert {queue.queue for queue in survey.queues if queue.paused} == {"mail"}

        await storage.tune(THIS_TASK, RESUME)

        assert (await storage.survey()).paused_tasks == ("mail.send",)

    async def test_a_task_and_a_queue_with_one_name_are_paused_separately(self, storage: Storage) -> None:
        await enqueue(storage, new_job("a", queue="add", task="other"), new_job("b", queue="mail", task="add"))
        await storage.tune(Target("queue", "add"), PAUSE)

        assert [lease.ref.id for lease in (await order(storage, ALICE, "add", "mail", room=5)).leases] == ["b"]
        assert (await storage.survey()).paused_tasks == ()

    async def test_a_paused_task_outlives_the_connection(self, storage: Storage) -> None:
        await storage.tune(THIS_TASK, PAUSE)
        await enqueue(storage, new_job())
        await claim(storage)
        await storage.close()
        await storage.open()

        assert await claim(storage) == []
        assert (await storage.survey()).paused_tasks == ("add",)

        await storage.tune(THIS_TASK, RESUME)

        assert len(await claim(storage)) == 1

    async def test_claims_inspect_each_paused_job_once(self, storage: Storage) -> None:
        await enqueue(storage, *new_jobs(SCAN_LIMIT + 50), new_job("z-other", task="send"))
        await storage.tune(THIS_TASK, PAUSE)
        first, second, third = [await order(storage, ALICE, room=1) for _ in range(3)]

        assert (first.leases, first.left) == ((), True)
        assert [lease.ref.id for lease in second.leases] == ["z-other"]
        assert (third.leases, third.left, third.next_due) == ((), False, None)

    async def test_many_paused_jobs_are_all_released_in_bounded_steps(self, storage: Storage) -> None:
        count = 2 * PROMOTE_LIMIT + 50
        await enqueue(storage, *new_jobs(count))
        await storage.tune(THIS_TASK, PAUSE)
        await claim(storage)
        await storage.tune(THIS_TASK, RESUME)

        assert (await glance(storage)).parked == count - PROMOTE_LIMIT

        swept = await storage.sweep(bid())

        assert (swept.more, swept.did["unparked"]) == (True, PROMOTE_LIMIT)

        await sweep_all(storage)
        claimed: list[str] = []
        while leases := await claim(storage):
            claimed += [lease.ref.id for lease in leases]

        assert claimed == [job.id for job in new_jobs(count)]

    @pytest.mark.parametrize("way_off", WAYS_OFF, ids=["cancel", "delete", "reschedule"])
    async def test_a_paused_job_can_be_removed(self, storage: Storage, way_off: Callable[[Ref], Revision]) -> None:
        await enqueue(storage, *new_jobs(2))
        await storage.tune(THIS_TASK, PAUSE)
        await claim(storage)
        revised = await storage.revise([way_off(Ref(QUEUE, "job-0000"))])

        assert [result.verdict for result in revised] == ["done"]
        assert (await glance(storage)).parked == 1

        await storage.tune(THIS_TASK, RESUME)

        assert [lease.ref.id for lease in await claim(storage)] == ["job-0001"]

    async def test_a_paused_job_holds_no_slot(self, storage: Storage) -> None:
        one = (Key("printer"),)
        await enqueue(storage, new_job("kept", keys=one), new_job("z-other", keys=one, task="send"))
        await storage.tune(THIS_TASK, PAUSE)

        assert [lease.ref.id for lease in await claim(storage)] == ["z-other"]

    async def test_a_parked_job_of_a_paused_task_passes_its_turn_on(self, storage: Storage, clock: ManualClock) -> None:
        one = (Key("printer"),)
        holder = await start(storage, new_job("holder", keys=one))
        await enqueue(storage, new_job("kept", keys=one, task="send"), new_job("z-next", keys=one))
        await claim(storage)
        await storage.tune(Target("task", "send"), PAUSE)
        answer = await storage.exchange(ALICE, [settled(holder)], ClaimRequest((QUEUE,), 1))

        assert [lease.ref.id for lease in answer.leases] == ["z-next"]

        await storage.tune(Target("task", "send"), RESUME)

        assert await claim(storage) == []

        await settle(storage, ALICE, answer.leases[0])

        assert [lease.ref.id for lease in await claim(storage)] == ["kept"]

    async def test_a_run_released_under_a_pause_waits_for_its_end(self, storage: Storage) -> None:
        lease = await start(storage)
        await storage.tune(THIS_TASK, PAUSE)
        answer = await storage.exchange(ALICE, [settled(lease, Interrupted("shutdown"))], ClaimRequest((QUEUE,), 1))

        assert answer.leases == ()

        await storage.tune(THIS_TASK, RESUME)

        assert (await claim_one(storage)).run == 2

    async def test_a_task_paused_twice_is_resumed_once(self, storage: Storage) -> None:
        await enqueue(storage, new_job())
        claimed: list[int] = []
        for settings in (PAUSE, PAUSE, Settings(), RESUME, RESUME):
            await storage.tune(THIS_TASK, settings)
            await sweep_all(storage)
            claimed.append(len(await claim(storage)))

        assert claimed == [0, 0, 0, 1, 0]
        assert not [event for event in await all_events(storage) if type(event).__name__.startswith("Queue")]
