"""Conformance tests of unknown tasks: in a rolling deploy, a job waits, uncharged, for a worker that knows its task."""

from collections.abc import Callable

import pytest

from tenure.clock import SECOND
from tenure.core.job import Key, Owner, Policy, RateKey, Ref
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.outcome import Unknown
from tenure.core.retry import Backoff
from tenure.core.settlement import Settlement
from tenure.storage.protocol import (
    LOOK_LIMIT,
    PLACE_LIMIT,
    UNKNOWN,
    CancelJob,
    ClaimRequest,
    DeleteJob,
    ExchangeResult,
    Query,
    RedriveJob,
    RenewRequest,
    RescheduleJob,
    Revision,
    Settings,
    Storage,
    Target,
    UnknownTask,
    WorkerInfo,
    queue_topic,
)
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    QUEUE,
    RAISED,
    Conformance,
    bid,
    counted,
    enqueue,
    glance,
    new_job,
    record,
    settle,
    settled,
    states,
)
from tenure_testing.conformance.notices import woken_by

OLD = {"add": 1}
"""The tasks that a worker with the old code knows."""

NEW = {"add": 1, "ship": 2}
"""The tasks that a worker with the new code knows."""

NEXT = Policy(retry=Backoff(max_attempts=3, kind="fixed", base=1 * SECOND, jitter=0.0), version=2)

WAYS_OFF: tuple[tuple[Callable[[Ref], Revision], State | None], ...] = (
    (CancelJob, State.CANCELLED),
    (DeleteJob, None),
    (lambda ref: RescheduleJob(ref, delay=60 * SECOND), State.DELAYED),
)
"""Every way in which an operator takes a job out of the queue, and the job's state after that."""


async def offered(
    storage: Storage, tasks: dict[str, int] | None, owner: Owner = ALICE, *, room: int = 128, queue: str = QUEUE
) -> ExchangeResult:
    """Claim as a worker that knows the given tasks."""
    return await storage.exchange(owner, order=ClaimRequest((queue,), room, tasks=tasks))


async def put_back(storage: Storage, job: str = "new", **options: object) -> Lease:
    """Enqueue a job of a new task. A worker with the old code claims it and puts it back."""
    await enqueue(storage, new_job(job, task="ship", policy=NEXT, **options))  # type: ignore[arg-type]
    return await wasted(storage, job)


async def wasted(storage: Storage, job: str) -> Lease:
    """Let a worker with the old code claim the next job and put it back."""
    [lease] = (await offered(storage, OLD, room=1)).leases
    assert lease.ref.id == job
    assert await settle(storage, ALICE, lease, Unknown()) == "done"
    return lease


async def park_under_many(storage: Storage, number: int, *, queue: str = QUEUE) -> list[str]:
    """Park one job of a queue under each of `number` tasks. Return the tasks; each is also its job's id."""
    tasks = [f"task-{number:04}" for number in range(number)]
    for begin in range(0, len(tasks), 100):
        some = tasks[begin : begin + 100]
        await enqueue(storage, *(new_job(task, task=task, queue=queue) for task in some))
        leases = (await offered(storage, OLD, queue=queue)).leases
        await storage.exchange(ALICE, [settled(lease, Unknown()) for lease in leases])
    return tasks


async def first_of_rate(storage: Storage, clock: ManualClock, rates: tuple[RateKey, ...]) -> None:
    """Start a job, so that the rates allow one more start now and the next one an hour later."""
    await enqueue(storage, new_job("first", rates=rates))
    assert names(await offered(storage, OLD)) == ["first"]
    clock.advance(1)


def names(answer: ExchangeResult) -> list[str]:
    """Return the ids of the claimed jobs."""
    return [lease.ref.id for lease in answer.leases]


class UnknownTasksConformance(Conformance):
    """A job that its worker does not know is offered only to workers that know its task and version."""

    async def test_a_job_put_back_as_unknown_is_parked_with_its_score(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        lease = await put_back(storage)
        clock.advance(5)
        job = await record(storage, lease.ref)

        assert (job.state, job.score, job.reason) == (State.WAITING, lease.job.score, "unknown_task")
        assert (job.failures, job.stalls, job.releases) == (0, 0, 1)
        assert job.parked_under == f"{UNKNOWN}ship:2"
        assert (await glance(storage)).parked == 1

    async def test_any_number_of_old_workers_waste_one_claim(self, storage: Storage) -> None:
        lease = await put_back(storage)
        for number in range(19):
            answer = await offered(storage, OLD, Owner(f"{number:016x}"))

            assert (answer.leases, answer.left, answer.next_due) == ((), False, None)
        [start] = (await offered(storage, NEW, BOB)).leases

        assert (start.ref, start.job.starts, start.job.parked_under) == (lease.ref, 2, None)
        assert await settle(storage, BOB, start) == "done"
        assert await counted(storage) == {State.COMPLETED: 1}

    async def test_nineteen_old_workers_waste_one_claim_for_each_of_a_thousand_jobs(self, storage: Storage) -> None:
        old = [Owner(f"{number:016x}") for number in range(19)]
        for begin in range(0, 1000, 100):
            numbers = range(begin, begin + 100)
            await enqueue(storage, *(new_job(f"new-{number:04}", task="ship", policy=NEXT) for number in numbers))
        held: dict[str, list[Settlement]] = {}
        done: list[str] = []
        while len(done) < 1000:
            for owner in old:
                answer = await storage.exchange(owner, held.pop(owner.id, []), ClaimRequest((QUEUE,), 8, tasks=OLD))
                held[owner.id] = [settled(lease, Unknown()) for lease in answer.leases]
            answer = await storage.exchange(BOB, held.pop(BOB.id, []), ClaimRequest((QUEUE,), 64, tasks=NEW))
            held[BOB.id] = [settled(lease) for lease in answer.leases]
            done += names(answer)
        await storage.exchange(BOB, held.pop(BOB.id))
        jobs = (await storage.find(Query(limit=1000))).jobs

        assert {job.state for job in jobs} == {State.COMPLETED}
        assert {(job.failures, job.stalls) for job in jobs} == {(0, 0)}
        assert {job.starts - job.releases for job in jobs} == {1}
        assert max(job.releases for job in jobs) == 1

    @pytest.mark.parametrize(
        ("tasks", "claimable"),
        [({}, False), ({"ship": 1}, False), ({"ship": 2}, True), ({"ship": 9}, True), (None, True)],
    )
    async def test_a_newer_payload_is_given_to_workers_that_read_it(
        self, storage: Storage, tasks: dict[str, int] | None, claimable: bool
    ) -> None:
        await enqueue(storage, new_job("new", task="ship", policy=NEXT))
        [lease] = (await offered(storage, {"ship": 1})).leases
        await settle(storage, ALICE, lease, Unknown("newer_payload"))
        nothing = await offered(storage, tasks, room=0)
        answer = await offered(storage, tasks, BOB)

        assert nothing.left == claimable
        assert names(answer) == (["new"] if claimable else [])

    async def test_parked_and_other_jobs_are_claimed_in_the_order_of_scores(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        for number in range(6):
            await enqueue(storage, new_job(f"job-{number}", task="ship" if number % 2 else "add", policy=NEXT))
            clock.advance(1)
        leases = (await offered(storage, OLD)).leases
        await storage.exchange(ALICE, [settled(lease, Unknown()) for lease in leases])
        first = await offered(storage, {"add": 2, "ship": 2}, room=3)
        rest = await offered(storage, {"add": 2, "ship": 2})

        assert (names(first), first.left) == (["job-0", "job-1", "job-2"], True)
        assert (names(rest), rest.left) == (["job-3", "job-4", "job-5"], False)

    async def test_a_retry_of_a_new_task_wastes_no_further_claim(self, storage: Storage, clock: ManualClock) -> None:
        lease = await put_back(storage)
        for run in range(2):
            [start] = (await offered(storage, NEW, BOB)).leases
            await settle(storage, BOB, start, RAISED)
            clock.advance(2)

            assert (await offered(storage, OLD)).leases == (), run
        [start] = (await offered(storage, NEW, BOB)).leases
        job = await record(storage, lease.ref)

        assert (job.starts, job.failures, job.releases) == (4, 2, 1)

    async def test_a_redriven_job_of_a_new_task_wastes_no_further_claim(self, storage: Storage) -> None:
        lease = await put_back(storage)
        await storage.revise([CancelJob(lease.ref)])
        await storage.revise([RedriveJob(lease.ref)])

        assert names(await offered(storage, OLD)) == []
        assert names(await offered(storage, NEW, BOB)) == ["new"]

    async def test_workers_are_woken_by_a_job_that_is_put_back_for_them(self, storage: Storage) -> None:
        await enqueue(storage, new_job("new", task="ship", policy=NEXT))
        [lease] = (await offered(storage, OLD)).leases

        await woken_by(storage, storage.notices([queue_topic(QUEUE)]), lambda: settle(storage, ALICE, lease, Unknown()))

    async def test_workers_are_woken_by_a_job_that_a_claim_parks_for_them(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await put_back(storage)
        [start] = (await offered(storage, NEW, BOB)).leases
        await settle(storage, BOB, start, RAISED)
        clock.advance(2)

        await woken_by(storage, storage.notices([queue_topic(QUEUE)]), lambda: offered(storage, OLD))

        assert (await glance(storage)).parked == 1

    async def test_a_full_key_gives_a_job_of_a_new_task_to_no_old_worker(self, storage: Storage) -> None:
        printer = (Key("printer"),)
        await enqueue(
            storage,
            *(new_job(f"new-{number}", task="ship", policy=NEXT, keys=printer) for number in range(2)),
            new_job("old", keys=printer),
        )
        await wasted(storage, "new-0")
        await wasted(storage, "new-1")
        [old] = (await offered(storage, OLD)).leases

        assert names(await offered(storage, NEW, BOB)) == []
        assert await settle(storage, ALICE, old) == "done"
        assert names(await offered(storage, OLD)) == []

        starts: list[str] = []
        while (found := await offered(storage, NEW, BOB)).leases:
            starts += names(found)
            assert await settle(storage, BOB, found.leases[0]) == "done"
            assert names(await offered(storage, OLD)) == []

        assert starts == ["new-0", "new-1"]

    async def test_a_parked_job_of_a_new_task_holds_no_slot(self, storage: Storage) -> None:
        printer = (Key("printer"),)
        await enqueue(storage, new_job("holds", keys=printer))
        [holds] = (await offered(storage, OLD)).leases
        await enqueue(storage, new_job("new", task="ship", policy=NEXT, keys=printer), new_job("old", keys=printer))
        assert names(await offered(storage, OLD)) == []
        await settle(storage, ALICE, holds)
        await wasted(storage, "new")

        assert names(await offered(storage, OLD)) == ["old"]

    async def test_a_put_back_gives_the_time_of_its_rates_back(self, storage: Storage, clock: ManualClock) -> None:
        hourly = (RateKey("hourly", 3600 * SECOND),)
        await first_of_rate(storage, clock, hourly)
        await put_back(storage, rates=hourly)
        await enqueue(storage, new_job("old", rates=hourly))

        assert names(await offered(storage, OLD)) == ["old"]
        assert names(await offered(storage, NEW, BOB)) == []

        clock.advance(3600)

        assert names(await offered(storage, OLD)) == []
        assert names(await offered(storage, NEW, BOB)) == ["new"]

    async def test_jobs_parked_under_a_rate_start_once_its_time_is_given_back(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        hourly = (RateKey("hourly", 3600 * SECOND),)
        await first_of_rate(storage, clock, hourly)
        await enqueue(storage, new_job("new", task="ship", policy=NEXT, rates=hourly), new_job("old", rates=hourly))
        found = await offered(storage, OLD)

        assert found.next_due == 3599 * SECOND + 1

        clock.advance(1)

        assert names(await offered(storage, OLD)) == []

        await settle(storage, ALICE, found.leases[0], Unknown())

        assert names(await offered(storage, OLD)) == ["old"]

    async def test_a_put_back_does_not_give_back_time_that_has_passed(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        hourly = (RateKey("hourly", 3600 * SECOND),)
        await enqueue(
            storage,
            new_job("new", task="ship", policy=NEXT, rates=hourly),
            *(new_job(f"old-{number}", rates=hourly) for number in range(4)),
        )
        [lease] = (await offered(storage, OLD)).leases
        starts: list[str] = []
        for _ in range(2):
            clock.advance(3600)
            starts += names(await offered(storage, OLD))
        await settle(storage, ALICE, lease, Unknown())
        clock.advance(1)
        starts += names(await offered(storage, OLD))

        assert starts == ["old-0", "old-1", "old-2"]

        clock.advance(1)

        assert names(await offered(storage, OLD)) == []

    async def test_a_put_back_gives_the_time_of_its_queues_rate_back(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await storage.tune(Target("queue", QUEUE), Settings(rate=RateKey("queue", 3600 * SECOND)))
        await first_of_rate(storage, clock, ())
        await put_back(storage)
        await enqueue(storage, new_job("old"))

        assert names(await offered(storage, OLD)) == ["old"]

        closed = await offered(storage, NEW, BOB)

        assert (closed.leases, closed.left, closed.next_due) == ((), False, 3599 * SECOND + 1)

        clock.advance(3600)

        assert names(await offered(storage, NEW, BOB)) == ["new"]

    async def test_a_put_back_costs_its_tenant_no_turn(self, storage: Storage) -> None:
        await enqueue(
            storage,
            new_job("a-new", task="ship", policy=NEXT, fair_key="a"),
            *(new_job(f"{tenant}-{number}", fair_key=tenant) for tenant in "ba" for number in range(2)),
        )
        before = {name: (await record(storage, Ref(QUEUE, name))).score for name in await states(storage)}
        await wasted(storage, "a-new")
        await enqueue(storage, new_job("a-last", fair_key="a"), new_job("b-last", fair_key="b"))
        answer = await offered(storage, NEW, BOB)

        assert {name: (await record(storage, Ref(QUEUE, name))).score for name in before} == before
        assert names(answer) == ["a-new", "b-0", "a-0", "b-1", "a-1", "b-last", "a-last"]

    @pytest.mark.parametrize(("way_off", "state"), WAYS_OFF)
    async def test_an_operator_can_remove_a_parked_job(
        self, storage: Storage, clock: ManualClock, way_off: Callable[[Ref], Revision], state: State | None
    ) -> None:
        lease = await put_back(storage)

        assert (await storage.revise([way_off(lease.ref)]))[0].verdict == "done"
        assert await states(storage) == ({} if state is None else {"new": state})
        assert (await glance(storage)).parked == 0
        assert (await offered(storage, NEW, BOB)).leases == ()

        clock.advance(61)

        assert names(await offered(storage, OLD)) == []
        assert names(await offered(storage, NEW, BOB)) == (["new"] if state is State.DELAYED else [])

    async def test_a_parked_job_takes_its_new_priority(self, storage: Storage) -> None:
        await put_back(storage, "one")
        two = await put_back(storage, "two")
        await storage.revise([RescheduleJob(two.ref, priority=1, boost=60 * SECOND)])

        assert names(await offered(storage, OLD)) == []
        assert names(await offered(storage, NEW, BOB)) == ["two", "one"]

    async def test_a_parked_job_expires(self, storage: Storage, clock: ManualClock) -> None:
        await put_back(storage, "swept", ttl=10 * SECOND)
        clock.advance(10)
        await storage.sweep(bid())
        await put_back(storage, "claimed", ttl=10 * SECOND)
        clock.advance(10)

        assert (await offered(storage, NEW, BOB)).leases == ()
        assert await states(storage) == {"swept": State.EXPIRED, "claimed": State.EXPIRED}
        assert (await glance(storage)).parked == 0

    async def test_a_pause_of_a_new_task_gives_its_jobs_to_no_old_worker(self, storage: Storage) -> None:
        await put_back(storage)
        await storage.tune(Target("task", "ship"), Settings(paused=True))

        assert names(await offered(storage, NEW, BOB)) == []

        await storage.tune(Target("task", "ship"), Settings(paused=False))

        assert names(await offered(storage, OLD)) == []
        assert names(await offered(storage, NEW, BOB)) == ["new"]

    async def test_sweeps_leave_parked_jobs_where_they_are(self, storage: Storage, clock: ManualClock) -> None:
        await put_back(storage)
        for _ in range(3):
            clock.advance(2)
            await storage.sweep(bid())

        assert (await glance(storage)).parked == 1
        assert names(await offered(storage, OLD)) == []

    async def test_a_cancel_ends_a_run_that_is_put_back(self, storage: Storage) -> None:
        await enqueue(storage, new_job("new", task="ship", policy=NEXT))
        [lease] = (await offered(storage, OLD)).leases
        await storage.revise([CancelJob(lease.ref)])
        await settle(storage, ALICE, lease, Unknown())

        assert await states(storage) == {"new": State.CANCELLED}

    async def test_a_known_task_is_found_among_very_many_unknown_ones(self, storage: Storage) -> None:
        tasks = await park_under_many(storage, LOOK_LIMIT + 20)

        assert (await glance(storage)).parked == len(tasks)
        assert names(await offered(storage, {tasks[-1]: 1, "add": 1}, BOB)) == [tasks[-1]]
        assert len((await glance(storage)).unknown) == LOOK_LIMIT

    async def test_a_caller_with_very_many_tasks_gets_all_of_very_many_parked_jobs(self, storage: Storage) -> None:
        tasks = await park_under_many(storage, PLACE_LIMIT + 20)
        claimed: list[str] = []
        answer = await offered(storage, dict.fromkeys(tasks, 1), BOB)
        while answer.left:
            claimed += names(answer)
            answer = await offered(storage, dict.fromkeys(tasks, 1), BOB)

        assert sorted([*claimed, *names(answer)]) == tasks

    async def test_no_parked_job_starves_among_more_than_a_claim_looks_at(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        tasks = await park_under_many(storage, PLACE_LIMIT + 20)
        others = [f"other-{number:04}" for number in range(PLACE_LIMIT)]
        known = {tasks[-1]: 1, **dict.fromkeys(others, 1), tasks[0]: 1}
        claimed: set[str] = set()
        for _ in range(4 * PLACE_LIMIT):
            claimed.update(names(await offered(storage, known, BOB)))
            clock.advance(0.000_001)
            if len(claimed) == 2:
                break

        assert claimed == {tasks[0], tasks[-1]}

    async def test_jobs_of_many_tasks_come_in_the_order_of_their_scores(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        order: list[str] = []
        for number in range(60):
            clock.advance(1)
            order.append(f"job-{number:02}")
            await enqueue(storage, new_job(order[-1], task=f"task-{number % 7}"))
        leases = (await offered(storage, OLD)).leases
        await storage.exchange(ALICE, [settled(lease, Unknown()) for lease in leases])
        await enqueue(storage, new_job("later", task="task-0"))
        known = {f"task-{number}": 1 for number in range(6)}
        claimed = [name for _ in range(11) for name in names(await offered(storage, known, BOB, room=5))]

        assert claimed == [name for number, name in enumerate(order) if number % 7 < 6] + ["later"]

    async def test_a_survey_names_unknown_tasks_and_what_workers_know(
        self, storage: Storage, clock: ManualClock
    ) -> None:
        await put_back(storage, "one")
        clock.advance(600)
        await put_back(storage, "two")
        await enqueue(storage, new_job("three", task="other:1"))
        await wasted(storage, "three")
        clock.advance(5)
        await storage.renew(RenewRequest(BOB, worker=WorkerInfo(tasks=NEW)))
        await storage.renew(RenewRequest(ALICE, worker=WorkerInfo()))
        survey = await storage.survey()

        assert survey.queues[0].unknown == (
            UnknownTask("other:1", 1, 5 * SECOND),
            UnknownTask("ship", 2, 605 * SECOND),
        )
        assert {worker.owner.id: worker.tasks for worker in survey.workers} == {BOB.id: NEW, ALICE.id: None}

        await offered(storage, NEW, BOB)

        assert [task.task for task in (await glance(storage)).unknown] == ["other:1"]
