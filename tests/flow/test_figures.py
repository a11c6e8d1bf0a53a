"""Figures of running workers: with each beat, at a clean stop, after a stall, and in spite of lost replies."""

import asyncio

from tenure import Reaper, Retry, Stall, State, Tenure, current_job
from tenure.clock import SECOND
from tenure.core.events import name_of
from tenure.core.figures import Figures, FiguresDelta, FiguresQuery
from tenure.errors import StorageError, StorageUnavailableError
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import RenewRequest, RenewResult
from tests.flow.conftest import FAST, Harness, RunScenario


class LossyStorage(MemoryStorage):
    """Memory that carries out the first two beats with an event or figures, but whose answers are lost."""

    lost = 0

    async def renew(self, beat: RenewRequest) -> RenewResult:
        answer = await super().renew(beat)
        if beat.events and self.lost < 2:
            self.lost += 1
            raise StorageUnavailableError("the answer was lost")
        return answer


async def ends(app: Tenure, task: str = "") -> dict[str, int]:
    """Return how many runs ended so far, by outcome, without zeros; and how many durations were counted."""
    now = (await app.storage.survey()).now
    query = FiguresQuery(since=now - 3_600 * SECOND, until=now + 1, task=task)
    cells = (await app.storage.survey(["default"], figures=query)).figures
    found: dict[str, int] = {}
    for figures in (Figures(cell.counts) for cell in cells):
        counted = {**figures.ends, "waited": sum(figures.waited), "ran": sum(figures.ran)}
        found = {name: found.get(name, 0) + count for name, count in counted.items()}
    return {name: count for name, count in found.items() if count}


def test_a_beat_brings_the_figures_of_the_runs_since_the_last_one(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def work() -> None:
            await asyncio.sleep(0.1)

        @app.task(retry=Retry(max_attempts=2, base="1s", jitter=0.0))
        async def fail() -> None:
            await asyncio.sleep(0.1)
            raise ValueError("no")

        await work.enqueue()
        await fail.enqueue()
        await harness.start(app.worker(reaper=False))
        await asyncio.sleep(4)
        before = await ends(app)
        await asyncio.sleep(6.5)

        assert before == {}
        assert await ends(app) == {"completed": 1, "failed": 1, "retried": 1, "waited": 3, "ran": 3}

    run_scenario(scenario)


def test_a_clean_stop_brings_the_last_figures(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app()

        @app.task
        async def work() -> None:
            await asyncio.sleep(0.1)

        @app.task
        async def endless() -> None:
            await asyncio.sleep(3600)

        await work.enqueue()
        await endless.enqueue()
        worker = app.worker(reaper=False)
        node = await harness.start(worker)
        await asyncio.sleep(1)
        await harness.stop(node, worker, timeout="100ms")

        # The run that was handed back is not counted.
        assert await ends(app) == {"completed": 1, "waited": 1, "ran": 1}
        assert (await app.storage.survey()).workers == ()

    run_scenario(scenario)


def test_a_stall_is_counted_by_the_reaper_that_settles_it(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=FAST)

        @app.task(stall=Stall(max_count=1))
        async def hang() -> None:
            await asyncio.sleep(3600)

        await hang.enqueue()
        await harness.start(Reaper(app), "reaper")
        for name in ("first", "second"):
            node = await harness.start(app.worker(reaper=False), name)
            await asyncio.sleep(0.2)
            harness.loop.kill(node)
            await asyncio.sleep(app.timing.recovery_bound.total_seconds())
            if name == "first":
                assert await ends(app) == {"stalled": 1, "waited": 1}

        assert await ends(app) == {"stalled": 2, "failed": 1, "waited": 2}

    run_scenario(scenario)


def test_figures_of_a_lost_reply_count_once(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        storage = LossyStorage(clock=harness.clock)
        app = harness.app(storage=storage)

        @app.task
        async def work() -> None:
            await asyncio.sleep(0.1)

        worker = app.worker(reaper=False)
        await harness.start(worker)
        for _ in range(4):
            await work.enqueue()
            await asyncio.sleep(3)

        await asyncio.sleep(6)
        assert storage.lost == 2
        assert await ends(app) == {"completed": 4, "waited": 4, "ran": 4}

    run_scenario(scenario)


class RefusingStorage(MemoryStorage):
    """A third party's storage that refuses each beat with figures."""

    async def renew(self, beat: RenewRequest) -> RenewResult:
        if any(isinstance(event, FiguresDelta) for event in beat.events):
            raise StorageError("it knows no figures")
        return await super().renew(beat)


def test_a_storage_that_refuses_figures_keeps_leases_and_last_events(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(storage=RefusingStorage(clock=harness.clock))
        runs: list[int] = []

        @app.task
        async def work(seconds: float) -> None:
            runs.append(current_job().run)
            await asyncio.sleep(seconds)

        long = await work.enqueue(55.0)
        worker = app.worker(concurrency=2)
        node = await harness.start(worker)
        for _ in range(30):
            await work.enqueue(0.1)
            await asyncio.sleep(2)
        assert await long.state() is State.COMPLETED
        await work.enqueue(0.1)
        await asyncio.sleep(0.5)
        await harness.stop(node, worker)

        assert set(runs) == {1}
        assert (await app.storage.survey()).workers == ()
        names = [name_of(event) for event in (await app.storage.events(limit=1_000)).events]
        assert (names.count("stalled"), names.count("worker_stopped")) == (0, 1)

    run_scenario(scenario)
