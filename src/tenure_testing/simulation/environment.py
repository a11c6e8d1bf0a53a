"""The environment of a simulated world: what its workers, clients and faults share, and what they record."""

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine
from random import Random
from typing import Any

from tenure.app import Tenure
from tenure.clock import SECOND
from tenure.storage.memory.model import Model
from tenure.storage.memory.storage import MemoryStorage
from tenure_testing.simulation.accounts import Accounts
from tenure_testing.simulation.event_loop import Node, SimClock, SimLoop
from tenure_testing.simulation.fault_log import EVERYWHERE, FaultLog
from tenure_testing.simulation.invariants import InvariantChecker
from tenure_testing.simulation.network import LONGEST_ECHO, LONGEST_PATIENCE, SimNet, SimServer
from tenure_testing.simulation.plan import WorldPlan
from tenure_testing.simulation.workload import BATCH, OVERRUNS, HandlerJournal, define

SLACK = 0.05
MESSAGES = 10
"""The number of messages between a fault and its recovery. A bound allows their delays and `SLACK` in addition."""

TICKS = 3
"""The number of ticks by which a coarse clock may be late: at the claim, the suspicion and the reclaim."""

AFTERMATH = {"net": LONGEST_ECHO, "cut": LONGEST_PATIENCE}
"""The seconds for which a fault has effects after its end."""


class WorldEnvironment:
    """The loop, the clocks, the storage behind its network, the checker, the handler journal and the trace."""

    def __init__(self, loop: SimLoop, seed: int, plan: WorldPlan, model: type[Model]) -> None:
        self.loop = loop
        self.seed = seed
        self.plan = plan
        self.trace: list[tuple[float, tuple[object, ...]]] = []
        self.fault_log = FaultLog()
        self.died: dict[str, float] = {}
        """When each owner's process was killed."""

        self.failed_workers: set[str] = set()
        """The owners whose workers failed by themselves."""

        self.homes: dict[Node, str] = {}
        """The owner whose process runs on each node."""

        self.heard: Counter[str] = Counter()
        """How often an event handler of a worker got the stall with this cursor."""

        self.deeds: Counter[str] = Counter()
        """How often the operator did each action."""

        self.logger = logging.Logger(f"tenure.world.{seed}", logging.CRITICAL + 1)
        self.healed = False
        self.host_clock, self.clock = SimClock(loop), SimClock(loop, round(plan.tick * SECOND) or 1)
        self.stepped = self.furthest = 0.0
        self._failures: list[BaseException] = []
        storage = MemoryStorage(clock=self.clock)
        storage.model = self.model = model(self.clock)
        self.accounts = Accounts(
            self.model,
            self.clock,
            self.fault_log,
            plan.timing,
            note=self.note,
            overruns=OVERRUNS,
            died=self.died,
            failed_workers=self.failed_workers,
            slack=SLACK + MESSAGES * plan.rates.delay + TICKS * plan.tick,
        )
        self.checker = InvariantChecker(self.accounts)
        self.server = SimServer(loop, storage, self.checker, Random(f"net {seed}"))
        self.server.rates = plan.rates
        if plan.rates.excuses:
            self.fault_log.begin("net", EVERYWHERE, 0.0)
        self.journal = HandlerJournal(loop.time, self.note)
        self.app = self.tenure(SimNet(self.server), "app")
        define(self.app, self.journal, Random(f"work {seed}"), self._here)
        for name in list(self.app.tasks):
            wanted = "collect" in plan.features if name == BATCH else not plan.tasks or name in plan.tasks
            if not wanted:
                del self.app.tasks[name]

    def tenure(self, net: SimNet, name: str) -> Tenure:
        """Return an app for a process with this name."""
        return Tenure(
            storage=net,
            clock=self.host_clock,
            rng=Random(f"{self.seed} {name}"),
            timing=self.plan.timing,
            logger=self.logger,
        )

    def step_clock(self, seconds: float) -> None:
        """Set the storage's wall clock forward or back."""
        self.note("clock stepped", seconds)
        now = self.loop.time()
        self.fault_log.begin("step forward" if seconds > 0 else "step back", EVERYWHERE, now, now)
        self.clock.step(seconds)
        self.stepped += seconds
        self.furthest = max(self.furthest, self.stepped)

    def spawn(self, node: Node, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a coroutine on a node. If it fails, the world fails."""
        task = self.loop.start(node, coroutine)
        task.add_done_callback(self._done)
        return task

    def failed(self, error: BaseException) -> None:
        """Record a failure that must not happen."""
        self._failures.append(error)

    def look(self) -> None:
        """Raise the first recorded failure, if there is one."""
        if self._failures:
            raise self._failures[0]

    def note(self, *words: object) -> None:
        """Add an entry to the trace."""
        self.trace.append((self.loop.time(), words))

    def _done(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(error)

    def _here(self) -> str:
        node = self.loop.node
        return self.homes.get(node, "") if node is not None else ""
