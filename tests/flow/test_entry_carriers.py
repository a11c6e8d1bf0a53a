"""Workers and sweeps carry the entries of the outbox, although carriers die and targets are away."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence

import pytest
from msgspec import structs

from tenure import Reaper, StorageUnavailableError, Tenure
from tenure.clock import SECOND
from tenure.core.job import NewJob, Ref
from tenure.core.lifecycle import State
from tenure.core.waiting import Dependent, Links, Need, Wait
from tenure.maintenance.outbox import ENTRIES_PER_TARGET, FAILURES_KEPT, LONGEST_RETRY, RETRY_AFTER, OutboxCarrier
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.revisions import Revision, RevisionResult
from tenure.storage.waiting import OUTBOX_LIMIT, RECONCILE_AFTER, AdvanceEntry, DeliverToken, OutboxEntry
from tenure.worker.entry_carrier import EntryCarrier
from tenure_testing.simulation.event_loop import SimClock, SimLoop, simulate
from tests.flow.conftest import FAST, Harness

WIDTH = 20
END = "end"


class Gate(MemoryStorage):
    """A storage that records the revisions, and whose `revise` can hang or fail."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self.loop = clock
        self.sent: list[tuple[int, Revision]] = []
        self.hang: Callable[[Sequence[Revision]], bool] = lambda _: False
        self.hangs = asyncio.Event()
        self.away: set[str] = set()

    async def revise(self, revisions: Sequence[Revision]) -> list[RevisionResult]:
        if self.hang(revisions):
            self.hangs.set()
            await asyncio.Event().wait()
        self.sent += ((self.loop.now(), revision) for revision in revisions)
        if any(isinstance(one, DeliverToken) and one.ref.queue in self.away for one in revisions):
            raise StorageUnavailableError("this queue is away")
        return await super().revise(revisions)

    def tries(self) -> list[float]:
        """Return the seconds at which tokens were delivered to the queues that are away."""
        at = [at for at, one in self.sent if isinstance(one, DeliverToken) and one.ref.queue in self.away]
        return [round(instant / SECOND, 1) for instant in dict.fromkeys(at)]


def play(scenario: Callable[[Harness, Gate], Coroutine[None, None, None]]) -> None:
    """Run a scenario in virtual time, in memory."""

    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage = Gate(clock)
        await scenario(Harness(loop, clock, storage), storage)

    simulate(main)


def sums(harness: Harness) -> Tenure:
    """Return an app with one task."""
    app = harness.app(timing=FAST)

    @app.task(name="add")
    async def add(number: int) -> int:
        return number + 1

    return app


def call(
    app: Tenure, name: str, *, after: Sequence[str] = (), to: Sequence[str] = (), queue: str = "default"
) -> NewJob:
    """Return a job that waits for some jobs, and that others of the queue wait for."""
    needs = tuple(Need(box=one, source=Ref("default", one)) for one in after)
    links = Links(Wait(needs) if needs else None, tuple(Dependent(Ref(queue, one), name, END) for one in to))
    return structs.replace(app.tasks["add"].call(1).job, id=name, links=links, queue="default" if to else queue)


def join(app: Tenure) -> list[NewJob]:
    """Return a job that twenty wait for, and one that waits for the twenty, waiters first."""
    middle = [f"middle-{number}" for number in range(WIDTH)]
    return [
        call(app, "join", after=middle),
        *(call(app, one, after=["first"], to=["join"]) for one in middle),
        call(app, "first", to=middle),
    ]


async def completed(storage: Gate) -> int:
    """Return how many jobs have completed."""
    return sum(job.state is State.COMPLETED for job in storage.model.records.values())


def test_a_worker_carries_the_entries_that_its_own_calls_wrote() -> None:
    async def scenario(harness: Harness, storage: Gate) -> None:
        app = sums(harness)
        await storage.enqueue(join(app))
        await harness.start(app.worker(reaper=False))

        assert await harness.until(lambda: over(storage, WIDTH + 2)) < 0.5
        await asyncio.sleep(0.1)
        assert storage.model.outbox == ()

    play(scenario)


def test_a_burst_ends_only_after_its_entries_are_carried() -> None:
    async def scenario(harness: Harness, storage: Gate) -> None:
        app = sums(harness)
        await storage.enqueue(join(app))
        worker = app.worker(burst=True, reaper=False, concurrency=1)
        await harness.start(worker)
        await worker.wait()

        assert await completed(storage) == WIDTH + 2
        assert storage.model.outbox == ()

    play(scenario)


def test_an_idle_worker_has_carried_its_entries() -> None:
    async def scenario(harness: Harness, storage: Gate) -> None:
        app = sums(harness)
        await storage.enqueue(join(app))
        async with app.worker(reaper=False) as worker:
            await worker.idle()
            assert await completed(storage) == WIDTH + 2

    play(scenario)


@pytest.mark.parametrize("kind", [DeliverToken, AdvanceEntry])
def test_the_sweeps_carry_what_a_dead_worker_has_left(kind: type[Revision]) -> None:
    async def scenario(harness: Harness, storage: Gate) -> None:
        app = sums(harness)
        await storage.enqueue(join(app))
        storage.hang = lambda revisions: isinstance(revisions[0], kind)
        node = await harness.start(app.worker(reaper=False))
        await storage.hangs.wait()
        await asyncio.sleep(0.2)
        harness.loop.kill(node)
        storage.hang = lambda _: False
        await harness.start(Reaper(app))
        await harness.start(app.worker(reaper=False), "another")

        assert await harness.until(lambda: over(storage, WIDTH + 2)) < 6
        assert await harness.until(lambda: struck_off(storage)) < 3

    play(scenario)


def test_a_hanging_carrier_does_not_delay_other_jobs() -> None:
    async def scenario(harness: Harness, storage: Gate) -> None:
        app = sums(harness)
        await storage.enqueue(join(app))
        storage.hang = lambda _: True
        await harness.start(app.worker(reaper=False))
        await storage.hangs.wait()
        await storage.enqueue([call(app, "plain")])

        assert await harness.until(lambda: over(storage, 2)) < 0.2

    play(scenario)


def test_a_target_that_is_away_is_tried_less_and_less_often() -> None:
    async def scenario(harness: Harness, storage: Gate) -> None:
        app = sums(harness)
        names = [f"away-{number}" for number in range(WIDTH)]
        await storage.enqueue([call(app, one, after=["first"], queue="away") for one in names])
        await storage.enqueue([call(app, "first", to=names, queue="away"), *join(app)[:-1]])
        storage.away = {"away"}
        await harness.start(app.worker(queues=["default", "away"]))
        await asyncio.sleep(120)
        waits = [later - earlier for earlier, later in zip(storage.tries()[1:], storage.tries()[2:], strict=False)]

        assert waits == sorted(waits)
        assert 0.9 < waits[0] < 1.7
        assert 29 < waits[-1] < 31
        storage.away = set()
        assert await harness.until(lambda: over(storage, 1 + WIDTH)) < 31

    play(scenario)


def test_a_target_that_is_away_delays_no_other() -> None:
    async def scenario(harness: Harness, storage: Gate) -> None:
        app = sums(harness)
        away, near = ([f"{where}-{number}" for number in range(WIDTH)] for where in ("away", "near"))
        for number in range(2 * ENTRIES_PER_TARGET):
            await storage.enqueue([call(app, f"far-{number}", to=away, queue="away")])
        await storage.enqueue([*(call(app, one, after=["first"]) for one in near), call(app, "first", to=near)])
        storage.away = {"away"}
        storage.hang = lambda revisions: any(one.ref.queue == "away" for one in revisions)
        await harness.start(app.worker())

        assert await harness.until(lambda: over(storage, 2 * ENTRIES_PER_TARGET + 1 + WIDTH)) < 6

    play(scenario)


def test_the_sweeps_deliver_a_token_that_was_lost() -> None:
    async def scenario(harness: Harness, storage: Gate) -> None:
        app = sums(harness)
        # The first job does not know that another one waits for it, as if its token were lost.
        await storage.enqueue([call(app, "second", after=["first"]), call(app, "first")])
        await harness.start(app.worker())
        took = await harness.until(lambda: over(storage, 2))

        assert RECONCILE_AFTER / SECOND <= took < RECONCILE_AFTER / SECOND + 2

    play(scenario)


def test_a_turn_takes_a_bounded_number_of_entries_for_one_queue() -> None:
    async def scenario(harness: Harness, storage: Gate) -> None:
        entries = [entry(number) for number in range(ENTRIES_PER_TARGET + 5)]
        carried = await OutboxCarrier(storage).carry([*entries, entry(99, queue="other")])
        delivered = [one.ref.queue for _, one in storage.sent if isinstance(one, DeliverToken)]

        assert carried.more
        assert carried.troubles == ()
        assert delivered.count("default") == ENTRIES_PER_TARGET
        assert delivered.count("other") == 1

    play(scenario)


def test_a_carrier_remembers_the_failures_of_a_bounded_number_of_entries() -> None:
    async def scenario(harness: Harness, storage: Gate) -> None:
        storage.away = {"default"}
        carrier = OutboxCarrier(storage)
        for _ in range(8):
            await carrier.carry([entry(0)])
        waits = [one.put_off for _, one in storage.sent if isinstance(one, AdvanceEntry)]
        assert waits == [min(LONGEST_RETRY, RETRY_AFTER * 2**number) for number in range(8)]
        for number in range(1, FAILURES_KEPT + 1):
            await carrier.carry([entry(number)])
        await carrier.carry([entry(0)])

        assert [one.put_off for _, one in storage.sent if isinstance(one, AdvanceEntry)][-1] == RETRY_AFTER

    play(scenario)


def test_a_worker_leaves_most_entries_of_a_flood_to_the_sweeps() -> None:
    async def scenario(harness: Harness, storage: Gate) -> None:
        turns: list[int] = []
        carrier = EntryCarrier(storage, logging.getLogger("tenure.test"), lambda: turns.append(len(storage.sent)))
        carrier.add([entry(number, queue=f"q{number % 10}") for number in range(3 * OUTBOX_LIMIT)])
        assert carrier.busy
        running = asyncio.create_task(carrier.run())
        await asyncio.sleep(1)
        running.cancel()

        # A token and a mark for each entry.
        assert turns == [2 * OUTBOX_LIMIT]
        assert not carrier.busy

    play(scenario)


def entry(number: int, queue: str = "default") -> OutboxEntry:
    """Return an entry of a job that is gone, with one dependent that is gone, too."""
    return OutboxEntry(Ref("q", f"{number}"), number, True, (Dependent(Ref(queue, f"to-{number}"), "box", END),))


async def over(storage: Gate, jobs: int) -> bool:
    """Return True if this many jobs have completed."""
    return await completed(storage) == jobs


async def struck_off(storage: Gate) -> bool:
    """Return True if the outbox is empty."""
    return storage.model.outbox == ()
