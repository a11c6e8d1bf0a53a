"""Conformance tests of moves: a marked queue is closed, and jobs arrive once, whole, and never in two places."""

from collections.abc import Callable, Sequence
from random import Random

import pytest
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.internal import OPS_QUEUE
from tenure.core.job import (
    CollectKey,
    DebounceKey,
    JobDetail,
    Key,
    NewJob,
    Owner,
    Policy,
    RateKey,
    Redriving,
    Ref,
    StallTerms,
    ThrottleKey,
    UniqueKey,
)
from tenure.core.lease import Lease
from tenure.core.lifecycle import State
from tenure.core.move import Call, CallAnswer, MoveBatch, MoveMark, as_moved
from tenure.core.outcome import Interrupted, Rejected, Snoozed
from tenure.core.retention import KeepRule, RetentionRules
from tenure.core.schedule import Schedule
from tenure.errors import StorageMovedError, UsageError
from tenure.ops.move import MOVABLE, Move
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.moving import MoveTarget
from tenure.storage.protocol import (
    CancelJob,
    DeleteJob,
    LeaseRenewal,
    NewLogLine,
    PutSchedule,
    Query,
    RedriveJob,
    RenewRequest,
    RescheduleJob,
    Settings,
    Storage,
    Target,
    Tick,
    WorkerInfo,
)
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import (
    ALICE,
    BOB,
    ERROR,
    ONCE,
    PLAIN,
    QUEUE,
    RAISED,
    RETURNED,
    Conformance,
    beat,
    claim,
    claim_one,
    counted,
    enqueue,
    glance,
    look,
    new_job,
    order,
    record,
    recover,
    settle,
    start,
    states,
    sweep_all,
)

MARK = MoveMark("redis://elsewhere", "m1")
THIS_QUEUE = Target("queue", QUEUE)


def calls(*jobs: NewJob) -> tuple[Call, ...]:
    """Return calls of an outbox."""
    return tuple(Call(f"{number}/{job.id}", job) for number, job in enumerate(jobs, 1))


class MovesConformance(Conformance):
    """What a storage does for a move, as its source and as its target."""

    async def test_marked_queue_gives_out_no_jobs(self, storage: Storage) -> None:
        await enqueue(storage, new_job())
        await storage.tune(THIS_QUEUE, Settings(moved=MARK))
        answer = await order(storage, ALICE, QUEUE, room=1)
        assert (answer.leases, answer.left) == ((), False)
        assert (await glance(storage)).settings.moved == MARK
        await storage.tune(THIS_QUEUE, Settings(moved=MoveMark()))
        await claim_one(storage)

    async def test_marked_queue_refuses_new_jobs(self, storage: Storage) -> None:
        await storage.tune(THIS_QUEUE, Settings(moved=MARK))
        for jobs in ([new_job()], [new_job("a"), new_job("b", delay=5)], [new_job("c", keys=(Key("k"),))]):
            with pytest.raises(StorageMovedError, match="redis://elsewhere") as refused:
                await storage.enqueue(jobs)
            assert (refused.value.queue, refused.value.moved_to) == (QUEUE, MARK.to)
        assert await states(storage) == {}
        await enqueue(storage, new_job(queue="other"))
        await storage.tune(THIS_QUEUE, Settings(moved=MoveMark()))
        await enqueue(storage, new_job())

    async def test_run_settles_in_marked_queue(self, storage: Storage, clock: ManualClock) -> None:
        done, retried = await start(storage, new_job("done")), await start(storage, new_job("retried"))
        lost = await start(storage, new_job("lost"))
        await storage.tune(THIS_QUEUE, Settings(moved=MARK))
        assert await settle(storage, ALICE, done) == "done"
        assert await settle(storage, ALICE, retried, RAISED) == "done"
        await recover(storage, clock)
        assert await states(storage) == {
            "done": State.COMPLETED,
            "retried": State.WAITING,
            "lost": State.WAITING,
        }
        assert await settle(storage, ALICE, lost) == "lost"
        assert await claim(storage) == []

    async def test_schedule_of_marked_queue_does_not_tick(self, storage: Storage, clock: ManualClock) -> None:
        schedule = a_schedule(clock)
        await storage.plan([PutSchedule(schedule)])
        await storage.tune(THIS_QUEUE, Settings(moved=MARK))
        tick = Tick(schedule.name, schedule.last_tick, clock.now(), clock.now() + SECOND, new_job("tick"))
        assert (await storage.plan([tick]))[0].verdict == "superseded"
        assert (await storage.survey()).schedules == (schedule,)
        await storage.tune(THIS_QUEUE, Settings(moved=MoveMark()))
        assert (await storage.plan([tick]))[0].verdict == "done"

    async def test_beat_of_a_worker_names_the_new_storage(self, storage: Storage) -> None:
        await storage.tune(Target("worker", ALICE.id), Settings(quiet=True, moved=MARK))
        assert (await beat(storage, ALICE, [])).orders == ("quiet", "moved:redis://elsewhere")

    async def test_delete_of_a_move_needs_its_mark(self, storage: Storage) -> None:
        [ref] = await enqueue(storage, new_job())
        assert (await storage.revise([DeleteJob(ref, move="m1")]))[0].verdict == "refused"
        await storage.tune(THIS_QUEUE, Settings(moved=structs.replace(MARK, id="m2")))
        assert (await storage.revise([DeleteJob(ref, move="m1")]))[0].verdict == "refused"
        assert (await storage.revise([DeleteJob(ref, move="m2")]))[0].verdict == "done"

    async def test_receive_brings_each_batch_once(self, storage: Storage, clock: ManualClock) -> None:
        target = receiving(storage)
        details = await made_elsewhere(clock, new_job("a"), new_job("b"))
        empty = await target.receive(MoveBatch("m1", QUEUE))
        assert (empty.number, empty.taken, empty.applied) == (0, (), False)
        batch = MoveBatch("m1", QUEUE, 0, details)
        first = await target.receive(batch)
        assert (first.number, first.taken, first.applied) == (1, ("a", "b"), True)
        for lease in await claim(storage):
            await settle(storage, ALICE, lease)
        await storage.revise([DeleteJob(Ref(QUEUE, "a")), DeleteJob(Ref(QUEUE, "b"))])
        again = await target.receive(batch)
        assert (again.number, again.taken, again.applied) == (1, ("a", "b"), False)
        assert await states(storage) == {}
        other = await target.receive(structs.replace(batch, move="m2"))
        assert (other.number, other.taken, other.applied) == (1, ("a", "b"), True)

    async def test_receive_enqueues_each_batch_of_calls_once(self, storage: Storage) -> None:
        target = receiving(storage)
        batch = MoveBatch("outbox", QUEUE, 0, calls=calls(new_job("a"), new_job("b", delay=SECOND)))
        first = await target.receive(batch)
        assert (first.number, first.taken, first.answers, first.applied) == (1, ("1/a", "2/b"), (), True)
        assert await states(storage) == {"a": State.WAITING, "b": State.DELAYED}
        for lease in await claim(storage):
            await settle(storage, ALICE, lease)
        await storage.revise([DeleteJob(Ref(QUEUE, "a")), DeleteJob(Ref(QUEUE, "b"))])
        again = await target.receive(batch)
        assert (again.number, again.taken, again.applied) == (1, ("1/a", "2/b"), False)
        assert await states(storage) == {}
        empty = await target.receive(MoveBatch("outbox", QUEUE, 1))
        assert (empty.number, empty.taken, empty.applied) == (2, (), True)
        assert (await target.receive(structs.replace(batch, expected=1))).applied is False

    async def test_receive_tells_what_calls_did_that_made_no_job_of_their_id(self, storage: Storage) -> None:
        await enqueue(storage, new_job("holder", merge=UniqueKey("k")), new_job("known"))
        throttle = ThrottleKey("t", most=1, window=10 * SECOND)
        collect = CollectKey("c", delay=10 * SECOND, max_size=5)
        some = calls(
            new_job("same", merge=UniqueKey("k")),
            new_job("known"),
            new_job("first", throttle=throttle),
            new_job("second", throttle=throttle),
            new_job("begins", merge=collect),
            new_job("joins", merge=collect),
        )
        receipt = await receiving(storage).receive(MoveBatch("outbox", QUEUE, 0, calls=some))
        assert receipt.answers == (
            CallAnswer("1/same", "duplicate", "holder"),
            CallAnswer("4/second", "throttled", "first", 10 * SECOND),
            CallAnswer("6/joins", "collected", "begins"),
        )
        asked = await receiving(storage).receive(MoveBatch("outbox", QUEUE))
        assert (asked.answers, asked.applied) == (receipt.answers, False)
        assert set(await states(storage)) == {"holder", "known", "first", "begins"}

    async def test_received_calls_keep_their_concurrency_limit(self, storage: Storage) -> None:
        jobs = [new_job(f"job-{number}", keys=(Key("k", 2),)) for number in range(4)]
        await receiving(storage).receive(MoveBatch("outbox", QUEUE, 0, calls=calls(*jobs)))
        assert [lease.ref.id for lease in await claim(storage)] == ["job-0", "job-1"]

    async def test_receive_refuses_a_queue_that_is_moved_on(self, storage: Storage, clock: ManualClock) -> None:
        await storage.tune(THIS_QUEUE, Settings(moved=MARK))
        with pytest.raises(StorageMovedError, match="redis://elsewhere"):
            await receiving(storage).receive(MoveBatch("m1", QUEUE, 0, await made_elsewhere(clock, new_job())))
        with pytest.raises(StorageMovedError, match="redis://elsewhere"):
            await receiving(storage).receive(MoveBatch("outbox", QUEUE, 0, calls=calls(new_job())))
        assert await states(storage) == {}

    async def test_receive_leaves_known_jobs_and_keys_alone(self, storage: Storage, clock: ManualClock) -> None:
        key = UniqueKey("k")
        await enqueue(storage, new_job("known", payload=b"1"), new_job("holder", merge=key))
        details = await made_elsewhere(
            clock, new_job("known", payload=b"2"), new_job("same", merge=key), new_job("new")
        )
        receipt = await receiving(storage).receive(MoveBatch("m1", QUEUE, 0, details))
        assert receipt.taken == ("new",)
        assert (await record(storage, Ref(QUEUE, "known"))).payload == b"1"
        assert set(await states(storage)) == {"known", "holder", "new"}

    async def test_received_job_holds_its_unique_key(self, storage: Storage, clock: ManualClock) -> None:
        key = UniqueKey("k")
        await receiving(storage).receive(
            MoveBatch("m1", QUEUE, 0, await made_elsewhere(clock, new_job("first", merge=key)))
        )
        [result] = await storage.enqueue([new_job("second", merge=key)])
        assert (result.action, result.ref.id) == ("duplicate", "first")

    async def test_received_jobs_keep_their_concurrency_limit(self, storage: Storage, clock: ManualClock) -> None:
        jobs = [new_job(f"job-{number}", keys=(Key("k", 2),)) for number in range(4)]
        await receiving(storage).receive(MoveBatch("m1", QUEUE, 0, await made_elsewhere(clock, *jobs)))
        leases = await claim(storage)
        assert [lease.ref.id for lease in leases] == ["job-0", "job-1"]
        await settle(storage, ALICE, leases[0])
        assert [lease.ref.id for lease in await claim(storage)] == ["job-2"]

    async def test_received_job_collects_further_calls(self, storage: Storage, clock: ManualClock) -> None:
        key = CollectKey("k", delay=10 * SECOND, max_size=5)
        source = MemoryStorage(clock=clock)
        await source.enqueue([new_job("a", merge=key), new_job("b", merge=key)])
        details = [one for one in await source.get([Ref(QUEUE, "a")]) if one is not None]
        await receiving(storage).receive(MoveBatch("m1", QUEUE, 0, tuple(details)))
        for store in (source, storage):
            assert [made.action for made in await store.enqueue([new_job("c", merge=key)])] == ["collected"]
        assert (await record(storage, Ref(QUEUE, "a"))).collected == 3
        assert (await record(storage, Ref(QUEUE, "a"))).payload == (await record(source, Ref(QUEUE, "a"))).payload

    @pytest.mark.parametrize("away", [False, True], ids=["here", "away"])
    async def test_move_carries_the_whole_record(self, storage: Storage, clock: ManualClock, *, away: bool) -> None:
        source, target = direction(storage, clock, away=away)
        await fill(source, clock)
        refs = await movable(source)
        before = {ref: await look(source, ref) for ref in refs}
        counts = await counted(source)
        plan = await Move(source, target, while_running=True).plan()
        report = await Move(source, target, while_running=True).run()
        assert {ref: plain(await look(target, ref)) for ref in refs} == {ref: plain(one) for ref, one in before.items()}
        assert await movable(source) == []
        [queue] = report.queues
        assert [structs.replace(queue, moved=0)] == list(plan.queues)
        assert (queue.moved, queue.active) == (len(refs), 1)
        assert await counted(target) == {state: count for state, count in counts.items() if state in MOVABLE}
        # Listings have the same order, the newest first.
        assert await movable(target) == refs
        # The next run has a higher fence than any run in the source.
        clock.advance(3600)
        await sweep_all(target)
        leases = await claim(target)
        assert {lease.ref for lease in leases} == {ref for ref in refs if ref.id != "rejected"}
        assert all(lease.fence > before[lease.ref].job.fence for lease in leases)
        assert all(lease.job.starts == before[lease.ref].job.starts + 1 for lease in leases)
        for lease in leases:
            assert await settle(target, ALICE, lease) == "done"
            runs = (await look(target, lease.ref)).runs
            assert [run.number for run in runs] == list(range(1, len(before[lease.ref].runs) + 2))

    async def test_move_takes_the_jobs_of_internal_queues_along(self, storage: Storage, clock: ManualClock) -> None:
        source, target = direction(storage, clock, away=True)
        [plain, internal] = await enqueue(source, new_job(), new_job("op", queue=OPS_QUEUE, delay=SECOND))
        report = await Move(source, target).run()
        assert {queue.queue: queue.moved for queue in report.queues} == {QUEUE: 1, OPS_QUEUE: 1}
        assert await source.get([plain, internal]) == [None, None]
        assert None not in await target.get([plain, internal])

    @pytest.mark.parametrize("away", [False, True], ids=["here", "away"])
    async def test_move_carries_settings_and_schedules(
        self, storage: Storage, clock: ManualClock, *, away: bool
    ) -> None:
        source, target = direction(storage, clock, away=away)
        schedule = structs.replace(a_schedule(clock), immediately=True)
        await source.plan([PutSchedule(schedule)])
        clock.advance(5)
        [known] = (await source.survey()).schedules
        tick = Tick(known.name, known.last_tick, clock.now(), clock.now() + 60 * SECOND, new_job("tick"))
        assert (await source.plan([tick]))[0].verdict == "done"
        [known] = (await source.survey()).schedules
        own = Settings(
            paused=True,
            rate=RateKey("queue", SECOND, 2),
            retention=RetentionRules(completed=KeepRule(7 * SECOND, 5)),
            record=("started",),
        )
        await source.tune(THIS_QUEUE, own)
        await source.tune(Target("task", "add"), Settings(paused=True, rate=RateKey("task:add", 2 * SECOND)))
        report = await Move(source, target).run()
        assert (report.schedules, report.complete) == (1, True)
        survey = await target.survey()
        assert survey.schedules == (known,)
        assert (await source.survey()).schedules == ()
        assert (await glance(target)).settings == own
        assert survey.paused_tasks == ("add",)
        assert survey.task_rates == {"add": RateKey("task:add", 2 * SECOND)}
        # A second run finds nothing to do, and leaves later changes alone.
        await target.tune(THIS_QUEUE, Settings(paused=False))
        assert (await Move(source, target).run()).queues == ()
        assert not (await glance(target)).paused

    async def test_move_back_opens_the_queues_again(self, storage: Storage, clock: ManualClock) -> None:
        _, other = direction(storage, clock, away=True)
        await enqueue(storage, new_job("a"), new_job("b"))
        await Move(storage, other).run()
        assert await claim(storage) == []
        clock.advance(1)
        await enqueue(other, new_job("c"))
        await Move(other, storage).run()
        assert set(await states(storage)) == {"a", "b", "c"}
        assert await states(other) == {}
        assert [lease.ref.id for lease in await claim(storage)] == ["a", "b", "c"]
        with pytest.raises(StorageMovedError):
            await other.enqueue([new_job("d")])

    @pytest.mark.parametrize("step", ["marked", "settings", "received", "deleted", "schedule_put", "schedule_removed"])
    @pytest.mark.parametrize("away", [False, True], ids=["here", "away"])
    async def test_interrupted_move_is_finished_by_the_next(
        self, storage: Storage, clock: ManualClock, step: str, *, away: bool
    ) -> None:
        source, target = direction(storage, clock, away=away)
        await source.plan([PutSchedule(a_schedule(clock))])
        jobs = [new_job(f"job-{number:03}") for number in range(60)]
        await enqueue(source, *jobs)
        with pytest.raises(Interruption):
            await Move(source, target, on_step=interrupt_at(step)).run()
        # The jobs that can run there run now, and their records are deleted.
        ran = [lease.ref.id for lease in await claim(target)]
        for lease in await claim(source):
            raise AssertionError(f"{lease.ref} can run in the source, which is marked")
        await storage_forgets(target, ran)
        await Move(source, target).run()
        ran += [lease.ref.id for lease in await claim(target)]
        assert sorted(ran) == [job.id for job in jobs]
        assert await states(source) == {}
        assert [len((await store.survey()).schedules) for store in (source, target)] == [0, 1]

    async def test_interrupted_move_is_turned_back(self, storage: Storage, clock: ManualClock) -> None:
        _, other = direction(storage, clock, away=True)
        await enqueue(storage, *(new_job(f"job-{number:03}") for number in range(60)))
        with pytest.raises(Interruption):
            await Move(storage, other, on_step=interrupt_at("received")).run()
        assert len(await states(storage)) == 60
        ran = [lease.ref.id for lease in await claim(other, room=5)]
        await storage_forgets(other, ran)
        await Move(other, storage).run()
        ran += [lease.ref.id for lease in await claim(storage)]
        assert sorted(ran) == [f"job-{number:03}" for number in range(60)]

    async def test_job_waits_for_the_active_holder_of_its_key(self, storage: Storage, clock: ManualClock) -> None:
        _, other = direction(storage, clock, away=True)
        lease = await start(storage, new_job("first", keys=(Key("k"),)))
        await enqueue(storage, new_job("second", keys=(Key("k"),)), new_job("free"))
        report = await Move(storage, other).run()
        [queue] = report.queues
        assert (queue.moved, queue.held, queue.active, report.complete) == (1, 1, 1, False)
        assert set(await states(other)) == {"free"}
        await settle(storage, ALICE, lease)
        report = await Move(storage, other).run()
        assert (report.queues[0].moved, report.complete) == (1, True)
        assert set(await states(other)) == {"free", "second"}

    async def test_cancellation_that_comes_during_a_move_is_kept(self, storage: Storage, clock: ManualClock) -> None:
        _, other = direction(storage, clock, away=True)
        [ref] = await enqueue(storage, new_job())
        with pytest.raises(Interruption):
            await Move(storage, other, on_step=interrupt_at("received")).run()
        assert (await storage.revise([CancelJob(ref)]))[0].verdict == "done"
        await Move(storage, other).run()
        assert await states(other) == {"job": State.CANCELLED}
        assert await states(storage) == {}

    async def test_move_refuses_living_workers_and_third_storages(self, storage: Storage, clock: ManualClock) -> None:
        other, third = MemoryStorage(clock=clock), MemoryStorage(clock=clock)
        other.url, third.url = "memory://other", "memory://third"
        await enqueue(storage, new_job())
        await storage.renew(RenewRequest(ALICE, worker=WorkerInfo()))
        with pytest.raises(UsageError, match="are running: alice"):
            await Move(storage, other).run()
        assert (await glance(storage)).settings.moved is None
        await Move(storage, other, while_running=True).run()
        assert (await beat(storage, ALICE, [])).orders == ("moved:memory://other",)
        clock.advance(60)
        with pytest.raises(UsageError, match="are moved to memory://other already"):
            await Move(storage, third).run()
        with pytest.raises(UsageError, match="are moved to memory://other; move to that storage instead"):
            await Move(third, storage).run()
        with pytest.raises(UsageError, match="the same storage"):
            await Move(storage, storage).run()

    @pytest.mark.parametrize("seed", range(6))
    async def test_jobs_of_a_random_history_arrive_unchanged(
        self, storage: Storage, clock: ManualClock, seed: int
    ) -> None:
        source, target = direction(storage, clock, away=seed % 2 == 1)
        await replay(source, clock, Random(seed))
        refs = await movable(source)
        before = {ref: await look(source, ref) for ref in refs}
        await Move(source, target).run()
        left = set(await movable(source))
        assert {ref: plain(await look(target, ref)) for ref in refs if ref not in left} == {
            ref: plain(one) for ref, one in before.items() if ref not in left
        }
        # Only keys of active jobs hold jobs back.
        active = [job for job in (await source.find(Query(limit=1000))).jobs if job.state is State.ACTIVE]
        held = {key.name for job in active for key in job.keys}
        assert left == {ref for ref, one in before.items() if held & {key.name for key in one.job.keys}}
        assert await movable(target) == [ref for ref in refs if ref not in left]


class Interruption(Exception):
    """Stands for the death of a process that moves jobs."""


def interrupt_at(step: str) -> Callable[[str], None]:
    """Return a function that raises `Interruption` at a step of a move."""

    def on_step(reached: str) -> None:
        if reached == step:
            raise Interruption(step)

    return on_step


def receiving(storage: Storage) -> MoveTarget:
    """Return a storage as one that can receive jobs."""
    assert isinstance(storage, MoveTarget)
    return storage


def direction(storage: Storage, clock: ManualClock, *, away: bool) -> tuple[Storage, Storage]:
    """Return the source and the target of a move: from the model to the storage under test, or away from it."""
    other = MemoryStorage(clock=clock)
    other.url = "memory://other"
    return (storage, other) if away else (other, storage)


async def made_elsewhere(clock: ManualClock, *jobs: NewJob) -> tuple[JobDetail, ...]:
    """Return the records of jobs of another storage."""
    source = MemoryStorage(clock=clock)
    return tuple([await look(source, ref) for ref in await enqueue(source, *jobs)])


def a_schedule(clock: ManualClock) -> Schedule:
    """Return a schedule that ticks every minute."""
    now = clock.now()
    job = new_job("", payload=b"[]")
    return Schedule(
        name="nightly", job=job, every=60 * SECOND, created=now, last_tick=now, next_tick=now + SECOND, overlap="allow"
    )


def plain(detail: JobDetail) -> JobDetail:
    """Return a job without what depends on the storage: where it is parked."""
    return structs.replace(detail, job=as_moved(detail.job))


async def movable(storage: Storage) -> list[Ref]:
    """Return the jobs that a move takes, the newest first."""
    return [job.ref for job in (await storage.find(Query(states=MOVABLE, limit=1000))).jobs]


async def storage_forgets(storage: Storage, ids: Sequence[str]) -> None:
    """Complete jobs that run and delete their records, as retention does."""
    refs = [Ref(QUEUE, id_) for id_ in ids]
    leases = [Lease(one.job) for one in await storage.get(refs) if one is not None]
    for lease in leases:
        assert await settle(storage, ALICE, lease) == "done"
    await storage.revise([DeleteJob(ref) for ref in refs])


async def fill(storage: Storage, clock: ManualClock) -> None:
    """Give a storage jobs in all states, with all kinds of fields, runs and logs."""
    await enqueue(storage, new_job("busy"))
    await claim_one(storage)
    await enqueue(storage, new_job("retried", policy=PLAIN, payload=b"x" * 5000, tags=("a", "b")))
    retried = await claim_one(storage)
    report = LeaseRenewal(
        retried.ref,
        retried.fence,
        progress='{"done":1}',
        note="half",
        data=b'{"page":3}',
        data_number=2,
        log=(NewLogLine("info", "a line", {"k": "v"}, number=1), NewLogLine("error", "another", {}, number=4)),
        trace="line 3",
    )
    await storage.renew(RenewRequest(ALICE, (report,)))
    clock.advance(1)
    await settle(storage, ALICE, retried, RAISED)
    await enqueue(storage, new_job("failed", policy=structs.replace(ONCE, redrive=Redriving(50 * SECOND, 2))))
    await settle(storage, ALICE, await claim_one(storage), RAISED)
    await enqueue(storage, new_job("rejected"))
    await settle(storage, ALICE, await claim_one(storage), Rejected(ERROR))
    await enqueue(storage, new_job("released"))
    for number in range(3):
        await settle(
            storage,
            ALICE if number else BOB,
            await claim_one(storage, ALICE if number else BOB),
            Interrupted("shutdown"),
        )
    await enqueue(storage, new_job("done"))
    await settle(storage, BOB, await claim_of(storage, "done", BOB))
    await enqueue(
        storage,
        new_job(
            "special",
            priority=3,
            boost=9 * SECOND,
            ttl=7200 * SECOND,
            timeout=SECOND,
            deadline=clock.now() + 7200 * SECOND,
            heartbeat_timeout=SECOND,
            rates=(RateKey("r", 1000, 5),),
            keys=(Key("k", 3),),
            stall=StallTerms(9 * SECOND, 2, SECOND, renewed=False, pinned=("lease",)),
            merge=UniqueKey("u"),
            policy=Policy(on_worker_lost="fail", on_expire="discard", version=3),
        ),
        new_job("later", delay=600 * SECOND, payload=b"", merge=DebounceKey("d", 600 * SECOND)),
        new_job("collected", merge=CollectKey("c", delay=600 * SECOND, max_size=9)),
        new_job("lifo", lifo=True),
        new_job("ended"),
    )
    await storage.enqueue([new_job("another call", merge=CollectKey("c", delay=600 * SECOND, max_size=9))])
    await storage.revise([CancelJob(Ref(QUEUE, "ended"))])


async def claim_of(storage: Storage, id_: str, owner: Owner) -> Lease:
    """Claim jobs until a certain one comes, and hand back the others."""
    leases = {lease.ref.id: lease for lease in await claim(storage, owner)}
    wanted = leases.pop(id_)
    for lease in leases.values():
        await settle(storage, owner, lease, Interrupted("shutdown"))
    return wanted


async def replay(storage: Storage, clock: ManualClock, rng: Random) -> None:
    """Make a random history."""
    leases: list[Lease] = []
    keys: tuple[tuple[Key, ...], ...] = ((), (), (Key("one"),), (Key("two", 2),))
    for number in range(120):
        match rng.randrange(7):
            case 0 | 1 | 2:
                job = new_job(
                    f"job-{number:03}",
                    payload=rng.randbytes(rng.choice((0, 10, 3000))),
                    delay=rng.choice((0, 0, 0, 5, 500)) * SECOND,
                    boost=rng.choice((0, 0, 60)) * SECOND,
                    ttl=rng.choice((None, None, 900 * SECOND)),
                    keys=rng.choice(keys),
                    rates=rng.choice(((), (), (RateKey("slow", 20 * SECOND),))),
                    merge=rng.choice((None, None, UniqueKey(f"u{rng.randrange(9)}"))),
                    policy=rng.choice((PLAIN, ONCE)),
                )
                await storage.enqueue([job])
            case 3:
                leases += await claim(storage, room=rng.randint(1, 4))
            case 4 if leases:
                lease = leases.pop(rng.randrange(len(leases)))
                line = NewLogLine("info", f"line {number}", {}, number=1)
                renewal = LeaseRenewal(
                    lease.ref, lease.fence, progress=rng.random(), log=(line,), data=b"1", data_number=1
                )
                await storage.renew(RenewRequest(ALICE, (renewal,)))
                outcomes = (RAISED, RAISED, RETURNED, Interrupted("shutdown"), Rejected(ERROR), Snoozed(30 * SECOND))
                await settle(storage, ALICE, lease, rng.choice(outcomes))
            case 5:
                refs = await movable(storage)
                if refs:
                    ref = rng.choice(refs)
                    ways = CancelJob(ref), RedriveJob(ref), RescheduleJob(ref, delay=9 * SECOND), DeleteJob(ref)
                    await storage.revise([rng.choice(ways)])
            case _:
                clock.advance(rng.choice((1, 1, 3)))
                await sweep_all(storage)
