"""How a worker ends: what it finishes, what it hands back, and what nobody runs twice."""

import asyncio
from collections.abc import Sequence

import pytest

from holdfast import JobReleased, JobStalled, State, Timing, UsageError, WorkerStopped, current_job
from holdfast.core.job import Owner
from holdfast.core.settlement import Settlement
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.protocol import Exchanged, Order
from holdfast.testing.simloop import SimClock, SimLoop, simulate
from tests.flow.conftest import FAST, Play, Stage


@pytest.mark.fault("W-T5", "W-N9")
@pytest.mark.statement(94, 95)
def test_a_drain_longer_than_the_lease_keeps_renewing_and_lets_the_job_finish(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app(timing=Timing.classic())
        runs: list[int] = []

        @app.task
        async def long() -> str:
            runs.append(current_job().run)
            await asyncio.sleep(45)
            return "finished"

        worker, other = app.worker(), app.worker()
        node = await stage.start(worker, "one")
        job = await long.enqueue()
        await asyncio.sleep(1)
        await stage.start(other, "two")
        late = await long.enqueue()
        await stage.stop(node, worker, timeout="60s")

        assert await job.result() == "finished"
        assert await late.result() == "finished"
        assert runs == [1, 1]
        assert await stage.told(JobStalled) == []

    play(scenario)


@pytest.mark.fault("W-B13", "W-P3")
@pytest.mark.statement(94)
def test_past_its_deadline_a_drain_cancels_and_hands_back_uncharged(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app()

        @app.task
        async def long() -> int:
            await asyncio.sleep(45 if current_job().run == 1 else 1)
            return current_job().run

        worker = app.worker()
        node = await stage.start(worker, "one")
        job = await long.enqueue()
        await asyncio.sleep(1)
        began = stage.now
        await stage.stop(node, worker, timeout="10s")
        took = stage.now - began
        record = (await job.info()).job

        assert 10 <= took < 11
        assert (record.state, record.releases, record.failures, record.stalls) == (State.WAITING, 1, 0, 0)
        assert [event.reason for event in await stage.told(JobReleased)] == ["shutdown"]
        assert [event.released for event in await stage.told(WorkerStopped)] == [1]
        await stage.start(app.worker(), "two")
        assert await job.result() == 2

    play(scenario)


@pytest.mark.statement(94)
def test_a_stopping_worker_claims_no_more(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app()

        @app.task
        async def short() -> None:
            await asyncio.sleep(5)

        worker = app.worker(concurrency=10)
        node = await stage.start(worker, "one")
        first = await short.enqueue()
        await asyncio.sleep(1)
        stopping = stage.loop.start(node, worker.stop())
        await asyncio.sleep(0.1)
        second = await short.enqueue()
        await stopping

        assert (await first.state(), await second.state()) == (State.COMPLETED, State.WAITING)

    play(scenario)


class Slow(MemoryStorage):
    """Memory whose claims take a second to come back."""

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: Order | None = None
    ) -> Exchanged:
        answer = await super().exchange(owner, settlements, order)
        await asyncio.sleep(1)
        return answer


@pytest.mark.fault("W-T6")
@pytest.mark.statement(96)
def test_a_claim_that_comes_back_after_the_stop_is_handed_back_unbegun() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        stage = Stage(loop, clock, Slow(clock=clock))
        app = stage.app()
        begun: list[str] = []

        @app.task
        async def task() -> None:
            begun.append(current_job().id)

        job = await task.enqueue()
        worker = app.worker()
        node = await stage.start(worker)
        await asyncio.sleep(0.5)
        await stage.stop(node, worker)
        record = (await job.info()).job

        assert begun == []
        assert (record.state, record.starts, record.releases, record.stalls) == (State.WAITING, 1, 1, 0)
        assert [event.reason for event in await stage.told(JobReleased)] == ["prefetch"]

    simulate(main)


@pytest.mark.statement(97)
def test_a_forced_stop_returns_at_once_and_the_job_runs_again_once(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app(timing=FAST)

        @app.task
        async def long() -> int:
            await asyncio.sleep(20 if current_job().run == 1 else 1)
            return current_job().run

        worker = app.worker()
        node = await stage.start(worker, "one")
        job = await long.enqueue()
        await asyncio.sleep(1)
        began = stage.now
        await stage.stop(node, worker, force=True)

        assert stage.now - began < 0.5
        await stage.start(app.worker(), "two")
        assert await job.result() == 2
        assert [run.ended for run in (await job.info()).runs] == ["released", "completed"]

    play(scenario)


@pytest.mark.fault("W-P3")
@pytest.mark.statement(97)
def test_a_forced_stop_of_a_handler_that_will_not_end_hands_it_back_with_a_delay(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app(timing=FAST)

        @app.task
        async def stubborn() -> int:
            for _ in range(100):
                try:
                    await asyncio.sleep(1)
                except asyncio.CancelledError:
                    continue
            return current_job().run

        worker = app.worker()
        node = await stage.start(worker, "one")
        job = await stubborn.enqueue()
        await asyncio.sleep(1)
        began = stage.now
        await stage.stop(node, worker, force=True)
        record = (await job.info()).job

        assert stage.now - began < 0.5
        assert (record.state, record.releases) == (State.DELAYED, 1)

    play(scenario)


@pytest.mark.statement(98)
def test_a_second_stop_by_force_hastens_the_first(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app()

        @app.task
        async def long() -> None:
            await asyncio.sleep(1000)

        worker = app.worker()
        node = await stage.start(worker, "one")
        await long.enqueue()
        await asyncio.sleep(1)
        patient = stage.loop.start(node, worker.stop(timeout="500s"))
        await asyncio.sleep(3)
        began = stage.now
        await stage.stop(node, worker, force=True)
        await patient

        assert stage.now - began < 0.5

    play(scenario)


@pytest.mark.statement(114)
def test_starting_and_stopping_twice_is_nothing_new(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app()
        before = len(asyncio.all_tasks())
        worker = app.worker()
        await worker.stop()
        await worker.start()
        await worker.start()
        await asyncio.sleep(1)
        await worker.stop()
        await worker.stop(force=True)
        await asyncio.sleep(0)

        assert len(asyncio.all_tasks()) == before

    play(scenario)


def test_a_burst_ends_when_nothing_is_left_to_do_now(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app()

        @app.task
        async def quick(number: int) -> int:
            await asyncio.sleep(1)
            return number

        jobs = await app.enqueue_many(quick.call(number) for number in range(25))
        later = await quick.options(delay="1h").enqueue(99)
        worker = app.worker(burst=True)
        node = await stage.start(worker)
        await stage.loop.start(node, worker.wait())

        assert [await job.result() for job in jobs] == list(range(25))
        assert await later.state() is State.DELAYED
        assert stage.now < 10

    play(scenario)


def test_a_worker_without_slots_or_queues_is_refused() -> None:
    from holdfast import Holdfast

    app = Holdfast("memory://")
    with pytest.raises(UsageError, match="concurrency"):
        app.worker(concurrency=0)
    with pytest.raises(UsageError, match="queues"):
        app.worker(queues=[])
