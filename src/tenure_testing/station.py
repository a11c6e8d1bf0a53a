"""A simulated place for a worker process, which is started, stopped, killed, recovered and started again."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from tenure.app import Tenure
from tenure.core.events import JobStalled
from tenure.core.job import Owner
from tenure.errors import StorageError
from tenure.metrics import MetricsRegistry
from tenure.options import LeaderElection
from tenure.processes.process import ProcessExit
from tenure.supervisor.recovery import CrashRecovery, DeadWorker
from tenure.worker.prefetch_policy import MOST
from tenure.worker.worker import FORCED_LINGER, LINGER, TELLING, Worker
from tenure_testing.invariants import Violation
from tenure_testing.net import SimNet
from tenure_testing.simloop import Node
from tenure_testing.stage import WorldEnvironment
from tenure_testing.weather import EVERYWHERE
from tenure_testing.workload import OTHER

FAREWELL = 3 * FORCED_LINGER + 0.1
"""Seconds that the steps of a stop take after their time is over: each is still tried, and then cancelled."""

RESTART = 1.0
"""Seconds until a process that found no storage is started again."""

BURIAL = 10.0
"""Seconds that a supervisor allows for the crash recovery of a dead child."""

NOTICED = 0.01
"""Seconds until a supervisor learns that its child has died."""


class NodeSide:
    """Runs a worker's agents on a separate node, so that the keeper continues while the worker's loop is blocked."""

    apart = False

    def __init__(self, stage: WorldEnvironment, node: Node) -> None:
        self._stage = stage
        self._node = node
        self._agents: list[asyncio.Task[None]] = []

    def run(self, agent: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start an agent."""
        self._agents.append(self._stage.spawn(self._node, agent()))

    async def stop(self) -> None:
        """Cancel the agents and wait until they have ended."""
        agents, self._agents = self._agents, []
        for agent in agents:
            agent.cancel()
        await asyncio.gather(*agents, return_exceptions=True)


class SimulatedNode:
    """A place for a worker process, which runs one incarnation after another."""

    def __init__(self, stage: WorldEnvironment, name: str, *, supervised: bool, old: bool = False) -> None:
        self.name = name
        self.old = old
        self.supervised = supervised
        self.net = SimNet(stage.server)
        self.worker: Worker | None = None
        self.nodes: tuple[Node, ...] = ()
        self.busy = False
        """True while the process is being started or stopped, or is down for some time."""

        self._stage = stage
        self._lives = 0
        self._ended = asyncio.Event()
        self._supervisor = Node(f"{name} supervisor")
        self._burial = CrashRecovery(
            Owner(f"supervisor of {name}", f"supervisor of {name}"),
            clock=stage.host_clock,
            rng=Random(f"{stage.seed} {name} supervisor"),
            logger=stage.logger,
            figures=MetricsRegistry(),
        )

    @property
    def owner(self) -> str:
        """The owner id of the running incarnation."""
        return self.worker.owner.id if self.worker is not None else ""

    async def start(self) -> None:
        """Start a new incarnation. If it finds no storage it ends, and another one is started."""
        while not await self._started():
            self._stage.note("no storage for", self.name)
            await asyncio.sleep(RESTART)

    async def _started(self) -> bool:
        stage, plan = self._stage, self._stage.plan
        self._lives += 1
        name = f"{self.name}.{self._lives}"
        main, side = Node(name), Node(f"{name} keeper")
        app = Tenure(
            storage=self.net,
            clock=stage.host_clock,
            rng=Random(f"{stage.seed} {name}"),
            timing=plan.timing,
            logger=stage.logger,
            side=lambda _: NodeSide(stage, side),
        )
        app.tasks.update(list(stage.app.tasks.items())[:: 2 if self.old else 1])
        if plan.hearing:
            app.on(JobStalled)(self._hear)
        worker = app.worker(
            name=name,
            queues=("default", OTHER),
            concurrency=plan.concurrency,
            election=LeaderElection() if plan.election else None,
        )
        if plan.ahead:
            ahead = worker.ahead
            ahead.most, ahead.moment, ahead.short, ahead.patience = MOST, 8.0, 60.0, 2.0
        stage.homes[main] = worker.owner.id
        stage.note("starts", name)
        try:
            await stage.loop.start(main, worker.start())
        except StorageError:
            return False
        self.worker, self.nodes = worker, (main, side)
        self._ended = asyncio.Event()
        stage.spawn(main, self._watched(worker, self._ended))
        return True

    async def _watched(self, worker: Worker, ended: asyncio.Event) -> None:
        try:
            await worker.wait()
        except BaseExceptionGroup:
            if worker.owner.id not in self._stage.failed_workers:
                raise
        finally:
            ended.set()

    async def fail(self) -> None:
        """Make the worker fail. Wait until it has put back the jobs that it can, and its process has ended."""
        stage, worker = self._stage, self.worker
        if worker is None:
            return
        stage.note("fails", worker.owner.name)
        stage.failed_workers.add(self.owner)
        stage.weather.begin("fail", self.owner, stage.loop.time())
        self.net.senseless = True
        await self._ended.wait()
        self.net.senseless = False
        self._gone()

    async def stop(self, *, drain: float, force: bool) -> None:
        """Stop gracefully, as a deploy does, and end the process."""
        worker, nodes = self.worker, self.nodes
        if worker is None:
            return
        stage = self._stage
        stage.note("stops", worker.owner.name, drain, force)
        began = stage.loop.time()
        stage.weather.begin("farewell" if stage.healed else "stop", self.owner, began)
        await stage.loop.start(nodes[0], worker.stop(timeout=drain, force=force))
        took, longest = stage.loop.time() - began, drain + LINGER + TELLING + FAREWELL
        own = [one for one in stage.weather.between(began, stage.loop.time()) if one.where in (self.owner, EVERYWHERE)]
        if took > longest and not any(one.kind in ("pause", "block", "lid") for one in own):
            raise Violation(f"stop: {worker.owner.name} took {took:.1f} s to stop, more than {longest:.1f} s")
        self._gone()

    def kill(self) -> None:
        """Kill the process. Its supervisor, if it has one, recovers its jobs."""
        stage, dead = self._stage, self.owner
        stage.note("killed", self.worker.owner.name if self.worker is not None else "nobody")
        stage.died[dead] = stage.loop.time()
        stage.weather.begin("kill", dead, stage.loop.time())
        self._gone()
        if self.supervised:
            stage.spawn(self._supervisor, self._bury(DeadWorker(dead, 1, ProcessExit(-9), stage.host_clock.now())))

    async def _hear(self, event: JobStalled) -> None:
        """Handle the event of a stall, as a user's handler would."""
        self._stage.heard[event.cursor] += 1

    async def _bury(self, deceased: DeadWorker) -> None:
        """Recover the jobs of a dead process, as its supervisor does."""
        await asyncio.sleep(NOTICED)
        await self._burial.bury(deceased, SimNet(self._stage.server), within=BURIAL)

    def _gone(self) -> None:
        """Remove the process."""
        stage = self._stage
        for node in self.nodes:
            stage.loop.kill(node)
            stage.homes.pop(node, None)
        stage.journal.died(self.owner)
        self.net.cut = None
        self.worker = None
