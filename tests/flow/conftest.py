"""A harness that runs app, worker, keeper and reaper on one loop, in virtual time, on every storage."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tenure import Event, Reaper, Tenure, Timing, Worker
from tenure.background_loop import SameLoop
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import Storage
from tenure.storage.sqlite.storage import SQLiteStorage
from tenure_testing.simulation.event_loop import Node, SimClock, SimLoop, simulate


class Harness:
    """The environment of a scenario: a clock, a storage, and nodes that can be killed, paused and cut off."""

    def __init__(self, loop: SimLoop, clock: SimClock, storage: Storage) -> None:
        self.loop = loop
        self.clock = clock
        self.storage = storage
        self._seeds = 0

    def app(self, **options: Any) -> Tenure:
        """Return a new app, as another process would create it."""
        self._seeds += 1
        options.setdefault("storage", self.storage)
        return Tenure(clock=self.clock, rng=Random(self._seeds), side=SameLoop, **options)

    async def start(self, agent: Worker | Reaper, name: str = "worker") -> Node:
        """Start a worker or a reaper on a node of its own."""
        node = Node(name)
        await self.loop.start(node, agent.start())
        return node

    async def stop(self, node: Node, worker: Worker | Reaper, **options: Any) -> None:
        """Stop what runs on a node, from within that node."""
        await self.loop.start(node, worker.stop(**options))

    async def events_of(self, *kinds: type[Event]) -> list[Any]:
        """Return the recorded events of these kinds, oldest first."""
        events = (await self.storage.events(limit=10_000)).events
        return [event for event in events if not kinds or isinstance(event, kinds)]

    async def until(self, holds: Callable[[], Coroutine[Any, Any, bool]]) -> float:
        """Wait in virtual time until this holds; return how many seconds that took."""
        began = self.now
        while not await holds():  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.05)
        return self.now - began

    @property
    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self.loop.time()


Scenario = Callable[[Harness], Coroutine[Any, Any, None]]
RunScenario = Callable[[Scenario], None]


@pytest.fixture(params=["memory", pytest.param("sqlite", marks=pytest.mark.sqlite)])
def run_scenario(request: pytest.FixtureRequest, tmp_path: Path, empty_database: Path) -> RunScenario:
    """Return a function that runs a scenario to its end, in virtual time, on each storage."""

    def run(scenario: Scenario) -> None:
        made: list[Storage] = []

        async def main(loop: SimLoop) -> None:
            clock = SimClock(loop)
            storage = _storage(request.param, tmp_path / "queue.db", empty_database, clock)
            made.append(storage)
            await storage.open()
            try:
                await scenario(Harness(loop, clock, storage))
            finally:
                await storage.close()

        try:
            simulate(main)
        finally:
            # This comes last because tasks abandoned at the end of the scenario may still have used the storage.
            for storage in made:
                if isinstance(storage, SingleThreaded):
                    storage.shut()

    return run


def _storage(kind: str, path: Path, empty: Path, clock: SimClock) -> Storage:
    if kind == "memory":
        return MemoryStorage(clock=clock)
    if not path.exists():
        shutil.copyfile(empty, path)
    return SingleThreaded(path, clock=clock)


class SingleThreaded(SQLiteStorage):
    """SQLite that writes on the caller's thread, because a real thread does not follow virtual time."""

    def __init__(self, path: Path, *, clock: SimClock) -> None:
        super().__init__(path, clock=clock)
        writer: Any = self._writer

        def write() -> None:
            while writer._take():
                writer._perform()

        writer._start = write

    def shut(self) -> None:
        """Close the connections, because no writer thread does it."""
        for session in self._sessions:
            session.close()


FAST = Timing(lease="2s", sweep="500ms", grace="500ms")
"""The timing with which jobs are recovered within 3.5 s."""
