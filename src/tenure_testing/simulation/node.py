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
from tenure.worker.prefetch import MOST_HELD
from tenure.worker.shutdown import CANCEL_GRACE, FORCED_GRACE, LAST_CALLS
from tenure.worker.worker import Worker
from tenure_testing.simulation.environment import WorldEnvironment
from tenure_testing.simulation.event_loop import Node
from tenure_testing.simulation.fault_log import EVERYWHERE
from tenure_testing.simulation.network import SimNet
from tenure_testing.simulation.violation import Violation
from tenure_testing.simulation.workload import OTHER

FAREWELL = 3 * FORCED_GRACE + 0.1
"""Seconds that the steps of a stop take after their time is over: each is still tried, and then cancelled."""

RESTART = 1.0
"""Seconds until a process that found no storage is started again."""

RECOVERY_TIME = 10.0
"""Seconds that a supervisor allows for the crash recovery of a dead child."""

NOTICED = 0.01
"""Seconds until a supervisor learns that its child has died."""


class NodeSide:
    """Runs a worker's agents on a separate node, so that the keeper continues while the worker's loop is blocked."""

    own_thread = False

    def __init__(self, environment: WorldEnvironment, node: Node) -> None:
        self._environment = environment
        self._node = node
        self._agents: list[asyncio.Task[None]] = []

    def run(self, agent: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start an agent."""
        self._agents.append(self._environment.spawn(self._node, agent()))

    async def stop(self) -> None:
        """Cancel the agents and wait until they have ended."""
        agents, self._agents = self._agents, []
        for agent in agents:
            agent.cancel()
        await asyncio.gather(*agents, return_exceptions=True)


class SimulatedNode:
    """A place for a worker process, which runs one incarnation after another."""

    def __init__(self, environment: WorldEnvironment, name: str, *, supervised: bool, old: bool = False) -> None:
        self.name = name
        self.old = old
        self.supervised = supervised
        self.net = SimNet(environment.server)
        self.worker: Worker | None = None
        self.nodes: tuple[Node, ...] = ()
        self.busy = False
        """True while the process is being started or stopped, or is down for some time."""

        self._environment = environment
        self._lives = 0
        self._ended = asyncio.Event()
        self._supervisor = Node(f"{name} supervisor")
        self._crash_recovery = CrashRecovery(
            Owner(f"supervisor of {name}", f"supervisor of {name}"),
            clock=environment.host_clock,
            rng=Random(f"{environment.seed} {name} supervisor"),
            logger=environment.logger,
            metrics=MetricsRegistry(),
        )

    @property
    def owner(self) -> str:
        """The owner id of the running incarnation."""
        return self.worker.owner.id if self.worker is not None else ""

    async def start(self) -> None:
        """Start a new incarnation. If it finds no storage it ends, and another one is started."""
        while not await self._started():
            self._environment.note("no storage for", self.name)
            await asyncio.sleep(RESTART)

    async def _started(self) -> bool:
        environment, plan = self._environment, self._environment.plan
        self._lives += 1
        name = f"{self.name}.{self._lives}"
        main, side = Node(name), Node(f"{name} keeper")
        app = Tenure(
            storage=self.net,
            clock=environment.host_clock,
            rng=Random(f"{environment.seed} {name}"),
            timing=plan.timing,
            logger=environment.logger,
            side=lambda _: NodeSide(environment, side),
        )
        app.tasks.update(list(environment.app.tasks.items())[:: 2 if self.old else 1])
        if plan.hearing:
            app.on(JobStalled)(self._hear)
        worker = app.worker(
            name=name,
            queues=("default", OTHER),
            concurrency=plan.concurrency,
            election=LeaderElection() if plan.election else None,
        )
        if plan.ahead:
            policy = worker.prefetch_policy
            policy.most, policy.prefetched_work, policy.short_run, policy.longest_wait = MOST_HELD, 8.0, 60.0, 2.0
        environment.homes[main] = worker.owner.id
        environment.note("starts", name)
        try:
            await environment.loop.start(main, worker.start())
        except StorageError:
            return False
        self.worker, self.nodes = worker, (main, side)
        self._ended = asyncio.Event()
        environment.spawn(main, self._watched(worker, self._ended))
        return True

    async def _watched(self, worker: Worker, ended: asyncio.Event) -> None:
        try:
            await worker.wait()
        except BaseExceptionGroup:
            if worker.owner.id not in self._environment.failed_workers:
                raise
        finally:
            ended.set()

    async def fail(self) -> None:
        """Make the worker fail. Wait until it has put back the jobs that it can, and its process has ended."""
        environment, worker = self._environment, self.worker
        if worker is None:
            return
        environment.note("fails", worker.owner.name)
        environment.failed_workers.add(self.owner)
        environment.fault_log.begin("fail", self.owner, environment.loop.time())
        self.net.senseless = True
        await self._ended.wait()
        self.net.senseless = False
        self._gone()

    async def stop(self, *, drain: float, force: bool) -> None:
        """Stop gracefully, as a deploy does, and end the process."""
        worker, nodes = self.worker, self.nodes
        if worker is None:
            return
        environment = self._environment
        environment.note("stops", worker.owner.name, drain, force)
        began = environment.loop.time()
        environment.fault_log.begin("farewell" if environment.healed else "stop", self.owner, began)
        await environment.loop.start(nodes[0], worker.stop(timeout=drain, force=force))
        took, longest = environment.loop.time() - began, drain + CANCEL_GRACE + LAST_CALLS + FAREWELL
        own = [
            step
            for step in environment.fault_log.between(began, environment.loop.time())
            if step.where in (self.owner, EVERYWHERE)
        ]
        if took > longest and not any(item.kind in ("pause", "block", "lid") for item in own):
            raise Violation(f"stop: {worker.owner.name} took {took:.1f} s to stop, more than {longest:.1f} s")
        self._gone()

    def kill(self) -> None:
        """Kill the process. Its supervisor, if it has one, recovers its jobs."""
        environment, dead = self._environment, self.owner
        environment.note("killed", self.worker.owner.name if self.worker is not None else "no worker")
        environment.died[dead] = environment.loop.time()
        environment.fault_log.begin("kill", dead, environment.loop.time())
        self._gone()
        if self.supervised:
            environment.spawn(
                self._supervisor, self._recover(DeadWorker(dead, 1, ProcessExit(-9), environment.host_clock.now()))
            )

    async def _hear(self, event: JobStalled) -> None:
        """Handle the event of a stall, as a user's handler would."""
        self._environment.heard[event.cursor or ""] += 1

    async def _recover(self, dead: DeadWorker) -> None:
        """Recover the jobs of a dead process, as its supervisor does."""
        await asyncio.sleep(NOTICED)
        await self._crash_recovery.recover(dead, SimNet(self._environment.server), within=RECOVERY_TIME)

    def _gone(self) -> None:
        """Remove the process."""
        environment = self._environment
        for node in self.nodes:
            environment.loop.kill(node)
            environment.homes.pop(node, None)
        environment.journal.died(self.owner)
        self.net.cut = None
        self.worker = None
