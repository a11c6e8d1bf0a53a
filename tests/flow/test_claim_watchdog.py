"""A worker whose claim loop is stuck is killed by its supervisor; one that has only nothing to claim never is."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tenure import Tenure, Timing, Worker
from tenure.clock import Clock
from tenure.core.events import WorkerHung
from tenure.core.job import Owner
from tenure.errors import StorageUnavailableError
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import ClaimRequest, ExchangeResult, RenewRequest, RenewResult, Settings, Target
from tenure.supervisor.child import KillReason
from tenure.supervisor.monitor import (
    CHECK_INTERVAL,
    CONFIRM_AFTER,
    LONGEST_LIMIT,
    SHORTEST_LIMIT,
    ClaimWatchdog,
    ScoreboardReading,
    limit,
    stuck,
)
from tenure.worker.loop import POLL
from tenure.worker.loop_lag import TICK
from tenure.worker.scoreboard import Scoreboard
from tenure_testing.simulation.event_loop import SimClock, SimLoop, simulate
from tests.flow.conftest import Play, Stage

SUPERVISOR = Owner("supervisor", "supervisor", "host", 1)
AGENTS: set["asyncio.Task[None]"] = set()


@pytest.fixture
def scoreboard() -> Iterator[Scoreboard]:
    made = Scoreboard.new(3)
    yield made
    made.close()


class Closed(MemoryStorage):
    """A storage that gives some no answer."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.shut: Callable[[Owner, str], bool] = lambda owner, verb: False
        """Whether this verb is out of this one's reach."""

    async def exchange(self, owner: Owner, settlements: Any = (), order: ClaimRequest | None = None) -> ExchangeResult:
        if self.shut(owner, "exchange"):
            raise StorageUnavailableError("gone fishing")
        return await super().exchange(owner, settlements, order)

    async def renew(self, beat: RenewRequest) -> RenewResult:
        if self.shut(beat.owner, "record" if beat.events else "renew"):
            raise StorageUnavailableError("gone fishing")
        return await super().renew(beat)


async def stacks() -> str:
    return "a stack"


async def watched(
    stage: Stage, worker: Worker, scoreboard: Scoreboard, ask: Callable[[], Awaitable[str]] = stacks
) -> list[tuple[float, KillReason]]:
    """Have a worker looked after from here on; return where it will stand when and why it was condemned."""
    condemned: list[tuple[float, KillReason]] = []

    claim_watchdog = ClaimWatchdog(
        stage.storage,
        SUPERVISOR,
        worker.owner,
        scoreboard,
        queues=("default",),
        max_block=600.0,
        clock=stage.clock,
        logger=logging.getLogger("test"),
        read_stacks=ask,
        kill=lambda sentence: condemned.append((stage.clock.uptime(), sentence)),
    )

    async def tick() -> None:
        # As the watchdog does on a loop of its own.
        while True:
            scoreboard.turned(stage.clock.uptime(), 0.0)
            scoreboard.claimed(worker.answered_at)
            await asyncio.sleep(TICK)

    async def look() -> None:
        while True:
            wait = await claim_watchdog.turn()
            await asyncio.sleep(wait)

    # The world ends with the scenario, and they with it.
    AGENTS.update({asyncio.create_task(tick()), asyncio.create_task(look())})
    return condemned


async def paused(stage: Stage, app: Tenure, worker: Worker) -> None:
    await app.queue("default").pause()
    await app.find_task("nap").enqueue(1)


async def parked(stage: Stage, app: Tenure, worker: Worker) -> None:
    for _ in range(3):
        await app.find_task("single").enqueue(500)


async def rated(stage: Stage, app: Tenure, worker: Worker) -> None:
    for _ in range(3):
        await app.find_task("rare").enqueue(0)


async def unknown(stage: Stage, app: Tenure, worker: Worker) -> None:
    other = stage.app()

    @other.task(name="of another release")
    async def elsewhere() -> None: ...

    await elsewhere.enqueue()


async def full(stage: Stage, app: Tenure, worker: Worker) -> None:
    for _ in range(5):
        await app.find_task("nap").enqueue(500)


async def quiet(stage: Stage, app: Tenure, worker: Worker) -> None:
    await stage.storage.tune(Target("worker", worker.owner.id), Settings(quiet=True))
    await app.find_task("nap").enqueue(1)


async def idle(stage: Stage, app: Tenure, worker: Worker) -> None: ...


Case = Callable[[Stage, Tenure, Worker], Awaitable[None]]


@pytest.mark.parametrize("case", [paused, parked, rated, unknown, full, quiet, idle])
def test_a_worker_that_has_nothing_to_claim_is_left_alone(play: Play, scoreboard: Scoreboard, case: Case) -> None:
    async def scenario(stage: Stage) -> None:
        app = stage.app(timing=Timing())

        @app.task(name="nap")
        async def nap(seconds: float) -> None:
            await asyncio.sleep(seconds)

        @app.task(name="single", concurrency_key="one")
        async def single(seconds: float) -> None:
            await asyncio.sleep(seconds)

        @app.task(name="rare", rate="1/h")
        async def rare(seconds: float) -> None: ...

        worker = app.worker(concurrency=2)
        await stage.start(worker)
        condemned = await watched(stage, worker, scoreboard)
        await case(stage, app, worker)
        await asyncio.sleep(3 * LONGEST_LIMIT)

        assert condemned == []
        assert not await stage.events_of(WorkerHung)

    play(scenario)


def on_closed(scenario: Callable[[Stage, Closed, Worker, list[tuple[float, KillReason]]], Awaitable[None]]) -> None:
    """Play a scenario with a worker that is looked after, on a storage that can be closed."""

    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage, scoreboard = Closed(clock), Scoreboard.new(3)
        stage = Stage(loop, clock, storage)
        worker = stage.app().worker()
        await stage.start(worker)
        await scenario(stage, storage, worker, await watched(stage, worker, scoreboard))

    simulate(main)


@pytest.mark.parametrize("minutes", [1.2, 5.0])
def test_nor_is_one_whose_storage_is_out_of_reach_for_all_and_comes_back(minutes: float) -> None:
    async def scenario(
        stage: Stage, storage: Closed, worker: Worker, condemned: list[tuple[float, KillReason]]
    ) -> None:
        storage.shut = lambda owner, verb: True
        await asyncio.sleep(60 * minutes)

        # It had no answer for longer than it may be without one, and nobody had.
        assert stage.clock.uptime() - worker.answered_at > LONGEST_LIMIT

        storage.shut = lambda owner, verb: False
        await asyncio.sleep(3 * LONGEST_LIMIT)

        assert condemned == []

    on_closed(scenario)


def test_a_worker_that_alone_gets_no_answer_is_killed_within_75_s() -> None:
    async def scenario(
        stage: Stage, storage: Closed, worker: Worker, condemned: list[tuple[float, KillReason]]
    ) -> None:
        # An uptime of 0 would be none.
        await asyncio.sleep(2 * POLL)
        storage.shut = lambda owner, verb: owner == worker.owner and verb == "exchange"
        answered_at = worker.answered_at
        await asyncio.sleep(3 * LONGEST_LIMIT)

        [(at, sentence)] = condemned
        assert (sentence.reason, sentence.causes, sentence.stack) == ("not_claiming", (), "a stack")
        assert (
            LONGEST_LIMIT + CONFIRM_AFTER
            <= at - answered_at
            <= LONGEST_LIMIT + CONFIRM_AFTER + 2 * (CHECK_INTERVAL + TICK)
        )
        [event] = await stage.events_of(WorkerHung)
        assert (event.owner, event.blocked_for) == (worker.owner.id, sentence.blocked_for)

    on_closed(scenario)


def test_no_worker_is_killed_while_the_storage_refuses_events() -> None:
    async def scenario(
        stage: Stage, storage: Closed, worker: Worker, condemned: list[tuple[float, KillReason]]
    ) -> None:
        # An uptime of 0 would be none.
        await asyncio.sleep(2 * POLL)
        storage.shut = lambda owner, verb: (owner == worker.owner and verb == "exchange") or verb == "record"
        await asyncio.sleep(3 * LONGEST_LIMIT)

        assert stage.clock.uptime() - worker.answered_at > LONGEST_LIMIT
        assert condemned == []

    on_closed(scenario)


def test_a_worker_is_not_killed_while_the_storage_answers_no_exchange() -> None:
    async def scenario(
        stage: Stage, storage: Closed, worker: Worker, condemned: list[tuple[float, KillReason]]
    ) -> None:
        await asyncio.sleep(2 * POLL)
        # Records of events are taken all the same, so only the missing answer can save the worker.
        storage.shut = lambda owner, verb: verb == "exchange"
        await asyncio.sleep(3 * LONGEST_LIMIT)

        assert stage.clock.uptime() - worker.answered_at > LONGEST_LIMIT
        assert condemned == []

    on_closed(scenario)


def test_an_answer_that_comes_while_the_stack_is_read_saves_the_worker() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage, scoreboard = Closed(clock), Scoreboard.new(3)
        stage = Stage(loop, clock, storage)
        worker = stage.app().worker()
        calls = 0

        async def answered_meanwhile() -> str:
            nonlocal calls
            calls += 1
            storage.shut = lambda owner, verb: False
            await asyncio.sleep(2 * POLL)
            return "a stack"

        await stage.start(worker)
        condemned = await watched(stage, worker, scoreboard, answered_meanwhile)
        await asyncio.sleep(2 * POLL)
        storage.shut = lambda owner, verb: owner == worker.owner and verb == "exchange"
        await asyncio.sleep(3 * LONGEST_LIMIT)

        assert calls == 1
        assert condemned == []

    simulate(main)


@pytest.mark.parametrize(
    ("turned_at", "claimed_at", "seconds"),
    [
        (100.0, 100.0, 0.0),
        (100.0, 30.0, 70.0),
        (100.0, 100.4, 0.0),
        # Nothing is expected of a worker that has not begun, or has ended.
        (0.0, 30.0, 0.0),
        (100.0, 0.0, 0.0),
        # A loop that does not turn is a matter for the watcher.
        (98.0, 30.0, 0.0),
    ],
)
def test_a_claim_loop_is_stuck_only_while_the_event_loop_turns(
    turned_at: float, claimed_at: float, seconds: float
) -> None:
    assert stuck(ScoreboardReading(turned_at, claimed_at), 100.2) == seconds


def test_the_limit_is_max_block_within_its_bounds() -> None:
    assert [limit(seconds) for seconds in (600.0, 30.0, 1.0)] == [LONGEST_LIMIT, 30.0, SHORTEST_LIMIT]
    # A turn comes every `POLL`; each may fail after as long as a call may take.
    assert SHORTEST_LIMIT > 2 * POLL
