"""The client of a simulated world that sends flows, seals their groups and sends signals to their jobs."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any

from tenure.core.job import NewJob, Ref
from tenure.core.waiting import WaitToken
from tenure.errors import StorageError
from tenure.storage.waiting import DeliverToken, SealBox
from tenure_testing.simulation.environment import WorldEnvironment
from tenure_testing.simulation.event_loop import Node
from tenure_testing.simulation.flow_workload import MEMBERS, SIGNAL_BOX, SimulatedFlow, flow
from tenure_testing.simulation.network import SimNet

SIGNALS = 4
"""How many signals a flow gets, each perhaps twice."""


class FlowClient:
    """Sends the flows of one world. It never dies, and repeats each call until it is answered."""

    def __init__(self, environment: WorldEnvironment, acknowledged: list[Ref]) -> None:
        self._environment = environment
        self._acknowledged = acknowledged
        self._net = SimNet(environment.server)
        self._node = Node("flow client")
        self._rng = Random(f"flows {environment.seed}")

    def start(self) -> "list[asyncio.Task[None]]":
        """Begin to send flows, if the world has some."""
        if not self._environment.plan.flows:
            return []
        return [self._environment.spawn(self._node, self._run())]

    async def _run(self) -> None:
        plan, environment = self._environment.plan, self._environment
        for number in range(plan.flows):
            await asyncio.sleep(self._rng.expovariate(plan.flows / (plan.span * 0.6)))
            await self._send(flow(environment.app, self._rng, number, environment.clock))

    async def _send(self, sent: SimulatedFlow) -> None:
        environment = self._environment
        environment.sending.update(sent.refs)
        if self._rng.random() < 0.2:
            await self._signal(sent.refs)
        for call in sent.calls:
            await self._enqueue(call)
        if sent.seals:
            seals = [SealBox(group, MEMBERS, total) for group, total in sent.seals]
            await self._insist(lambda: self._net.revise(seals))
        environment.sending.difference_update(sent.refs)
        self._acknowledged += sent.refs
        for _ in range(self._rng.randint(0, SIGNALS)):
            await asyncio.sleep(self._rng.random() * 3)
            await self._signal(sent.refs)

    async def _enqueue(self, call: Sequence[NewJob]) -> None:
        await self._insist(lambda: self._net.enqueue(call))

    async def _signal(self, refs: Sequence[Ref]) -> None:
        signal = DeliverToken(self._rng.choice(refs), WaitToken(SIGNAL_BOX, f"{self._rng.randint(1, 3)}"))
        await self._insist(lambda: self._net.revise([signal]))

    async def _insist(self, ask: Callable[[], Coroutine[Any, Any, object]]) -> None:
        while True:
            try:
                await ask()
            except StorageError:
                await asyncio.sleep(self._rng.random())
            else:
                return
