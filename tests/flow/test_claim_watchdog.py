"""The supervisor kills a worker whose claim loop is stuck, but not one that merely has nothing to claim."""

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
from tests.flow.conftest import Harness, RunScenario

SUPERVISOR = Owner("supervisor", "supervisor", "host", 1)
AGENTS: set["asyncio.Task[None]"] = set()


@pytest.fixture
def scoreboard() -> Iterator[Scoreboard]:
    made = Scoreboard.new(3)
    yield made
    made.close()


class RefusingMemory(MemoryStorage):
    """A storage that refuses some calls."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.refuses: Callable[[Owner, str], bool] = lambda owner, verb: False
        """Return whether to refuse this verb of this owner."""

    async def exchange(self, owner: Owner, settlements: Any = (), order: ClaimRequest | None = None) -> ExchangeResult:
        if self.refuses(owner, "exchange"):
            raise StorageUnavailableError("gone fishing")
        return await super().exchange(owner, settlements, order)

    async def renew(self, beat: RenewRequest) -> RenewResult:
        if self.refuses(beat.owner, "record" if beat.events else "renew"):
            raise StorageUnavailableError("gone fishing")
        return await super().renew(beat)


async def stacks() -> str:
    return "a stack"


async def watch(
    harness: Harness, worker: Worker, scoreboard: Scoreboard, ask: Callable[[], Awaitable[str]] = stacks
) -> list[tuple[float, KillReason]]:
    """Watch a worker from here on; return a list that will hold each kill's time and reason."""
    killed: list[tuple[float, KillReason]] = []

    claim_watchdog = ClaimWatchdog(
        harness.storage,
        SUPERVISOR,
        worker.owner,
        scoreboard,
        queues=("default",),
        max_block=600.0,
        clock=harness.clock,
        logger=logging.getLogger("test"),
        read_stacks=ask,
        kill=lambda reason: killed.append((harness.clock.uptime(), reason)),
    )

    async def tick() -> None:
        # As the watchdog does on its own loop.
        while True:
            scoreboard.turned(harness.clock.uptime(), 0.0)
            scoreboard.claimed(worker.answered_at)
            await asyncio.sleep(TICK)

    async def look() -> None:
        while True:
            wait = await claim_watchdog.turn()
            await asyncio.sleep(wait)

    # They end with the scenario.
    AGENTS.update({asyncio.create_task(tick()), asyncio.create_task(look())})
    return killed


async def paused(harness: Harness, app: Tenure, worker: Worker) -> None:
    await app.queue("default").pause()
    await app.find_task("nap").enqueue(1)


async def parked(harness: Harness, app: Tenure, worker: Worker) -> None:
    for _ in range(3):
        await app.find_task("single").enqueue(500)


async def rated(harness: Harness, app: Tenure, worker: Worker) -> None:
    for _ in range(3):
        await app.find_task("rare").enqueue(0)


async def unknown(harness: Harness, app: Tenure, worker: Worker) -> None:
    other = harness.app()

    @other.task(name="of another release")
    async def elsewhere() -> None: ...

    await elsewhere.enqueue()


async def full(harness: Harness, app: Tenure, worker: Worker) -> None:
    for _ in range(5):
        await app.find_task("nap").enqueue(500)


async def quiet(harness: Harness, app: Tenure, worker: Worker) -> None:
    await harness.storage.tune(Target("worker", worker.owner.id), Settings(quiet=True))
    await app.find_task("nap").enqueue(1)


async def idle(harness: Harness, app: Tenure, worker: Worker) -> None: ...


Case = Callable[[Harness, Tenure, Worker], Awaitable[None]]


@pytest.mark.parametrize("case", [paused, parked, rated, unknown, full, quiet, idle])
def test_a_worker_that_has_nothing_to_claim_is_left_alone(
    run_scenario: RunScenario, scoreboard: Scoreboard, case: Case
) -> None:
    async def scenario(harness: Harness) -> None:
        app = harness.app(timing=Timing())

        @app.task(name="nap")
        async def nap(seconds: float) -> None:
            await asyncio.sleep(seconds)

        @app.task(name="single", concurrency_key="one")
        async def single(seconds: float) -> None:
            await asyncio.sleep(seconds)

        @app.task(name="rare", rate="1/h")
        async def rare(seconds: float) -> None: ...

        worker = app.worker(concurrency=2)
        await harness.start(worker)
        killed = await watch(harness, worker, scoreboard)
        await case(harness, app, worker)
        await asyncio.sleep(3 * LONGEST_LIMIT)

        assert killed == []
        assert not await harness.events_of(WorkerHung)

    run_scenario(scenario)


def on_refusing_memory(
    scenario: Callable[[Harness, RefusingMemory, Worker, list[tuple[float, KillReason]]], Awaitable[None]],
) -> None:
    """Run a scenario with a watched worker, on a storage that can refuse calls."""

    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage, scoreboard = RefusingMemory(clock), Scoreboard.new(3)
        harness = Harness(loop, clock, storage)
        worker = harness.app().worker()
        await harness.start(worker)
        await scenario(harness, storage, worker, await watch(harness, worker, scoreboard))

    simulate(main)


@pytest.mark.parametrize("minutes", [1.2, 5.0])
def test_a_worker_survives_an_outage_of_the_storage_for_all_workers(minutes: float) -> None:
    async def scenario(
        harness: Harness, storage: RefusingMemory, worker: Worker, killed: list[tuple[float, KillReason]]
    ) -> None:
        storage.refuses = lambda owner, verb: True
        await asyncio.sleep(60 * minutes)

        # The worker had no answer for longer than its limit, but no other worker had one either.
        assert harness.clock.uptime() - worker.answered_at > LONGEST_LIMIT

        storage.refuses = lambda owner, verb: False
        await asyncio.sleep(3 * LONGEST_LIMIT)

        assert killed == []

    on_refusing_memory(scenario)


def test_a_worker_that_alone_gets_no_answer_is_killed_within_75_s() -> None:
    async def scenario(
        harness: Harness, storage: RefusingMemory, worker: Worker, killed: list[tuple[float, KillReason]]
    ) -> None:
        # An uptime of 0 counts as unset.
        await asyncio.sleep(2 * POLL)
        storage.refuses = lambda owner, verb: owner == worker.owner and verb == "exchange"
        answered_at = worker.answered_at
        await asyncio.sleep(3 * LONGEST_LIMIT)

        [(at, reason)] = killed
        assert (reason.reason, reason.causes, reason.stack) == ("not_claiming", (), "a stack")
        assert (
            LONGEST_LIMIT + CONFIRM_AFTER
            <= at - answered_at
            <= LONGEST_LIMIT + CONFIRM_AFTER + 2 * (CHECK_INTERVAL + TICK)
        )
        [event] = await harness.events_of(WorkerHung)
        assert (event.owner, event.blocked_for) == (worker.owner.id, reason.blocked_for)

    on_refusing_memory(scenario)


def test_no_worker_is_killed_while_the_storage_refuses_events() -> None:
    async def scenario(
        harness: Harness, storage: RefusingMemory, worker: Worker, killed: list[tuple[float, KillReason]]
    ) -> None:
        # An uptime of 0 counts as unset.
        await asyncio.sleep(2 * POLL)
        storage.refuses = lambda owner, verb: (owner == worker.owner and verb == "exchange") or verb == "record"
        await asyncio.sleep(3 * LONGEST_LIMIT)

        assert harness.clock.uptime() - worker.answered_at > LONGEST_LIMIT
        assert killed == []

    on_refusing_memory(scenario)


def test_a_worker_is_not_killed_while_the_storage_answers_no_exchange() -> None:
    async def scenario(
        harness: Harness, storage: RefusingMemory, worker: Worker, killed: list[tuple[float, KillReason]]
    ) -> None:
        await asyncio.sleep(2 * POLL)
        # The storage still accepts recorded events, so only the refused exchanges can save the worker.
        storage.refuses = lambda owner, verb: verb == "exchange"
        await asyncio.sleep(3 * LONGEST_LIMIT)

        assert harness.clock.uptime() - worker.answered_at > LONGEST_LIMIT
        assert killed == []

    on_refusing_memory(scenario)


def test_an_answer_that_comes_while_the_stack_is_read_saves_the_worker() -> None:
    async def main(loop: SimLoop) -> None:
        clock = SimClock(loop)
        storage, scoreboard = RefusingMemory(clock), Scoreboard.new(3)
        harness = Harness(loop, clock, storage)
        worker = harness.app().worker()
        calls = 0

        async def answered_meanwhile() -> str:
            nonlocal calls
            calls += 1
            storage.refuses = lambda owner, verb: False
            await asyncio.sleep(2 * POLL)
            return "a stack"

        await harness.start(worker)
        killed = await watch(harness, worker, scoreboard, answered_meanwhile)
        await asyncio.sleep(2 * POLL)
        storage.refuses = lambda owner, verb: owner == worker.owner and verb == "exchange"
        await asyncio.sleep(3 * LONGEST_LIMIT)

        assert calls == 1
        assert killed == []

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
        # The watchdog for a blocked event loop handles a loop that does not turn.
        (98.0, 30.0, 0.0),
    ],
)
def test_a_claim_loop_is_stuck_only_while_the_event_loop_turns(
    turned_at: float, claimed_at: float, seconds: float
) -> None:
    assert stuck(ScoreboardReading(turned_at, claimed_at), 100.2) == seconds


def test_the_limit_is_max_block_within_its_bounds() -> None:
    assert [limit(seconds) for seconds in (600.0, 30.0, 1.0)] == [LONGEST_LIMIT, 30.0, SHORTEST_LIMIT]
    # A turn comes every `POLL`, and each may take as long as a call's time limit before it fails.
    assert SHORTEST_LIMIT > 2 * POLL
