"""Injects the faults of a simulated world other than those of messages, each kind at the rate of the plan."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any

from tenure.core.lifecycle import REDRIVABLE, TERMINAL, State
from tenure.errors import StorageError
from tenure.storage.protocol import CancelJob, DeleteJob, RedriveJob, Revision, Settings, Target
from tenure_testing.simulation.environment import AFTERMATH, WorldEnvironment
from tenure_testing.simulation.event_loop import Node
from tenure_testing.simulation.fault_log import EVERYWHERE
from tenure_testing.simulation.network import Rates, SimNet
from tenure_testing.simulation.node import SimulatedNode
from tenure_testing.simulation.workload import OTHER

SPREAD = 10.0
"""A fault of `WorldPlan.at` occurs up to this many seconds later, so that it can meet any moment."""


class FaultInjector:
    """Injects faults, and ends them all when the world heals."""

    def __init__(self, environment: WorldEnvironment, hosts: Sequence[SimulatedNode]) -> None:
        self._environment = environment
        self._hosts = hosts
        self._operator = Node("operator")
        self._net = SimNet(environment.server)
        self._lid_closed = False
        self._hushed: dict[Target, None] = {}

    async def bring(self) -> None:
        """Inject faults until cancelled."""
        async with asyncio.TaskGroup() as all_kinds:
            for kind, gap in sorted(self._environment.plan.faults.items()):
                all_kinds.create_task(self._repeat(kind, gap))
            for second, kind in self._environment.plan.at:
                all_kinds.create_task(self._once(kind, second))

    async def heal(self) -> None:
        """End all faults. Everything works from here on."""
        environment = self._environment
        environment.note("healed")
        environment.healed = True
        if environment.server.frozen:
            environment.server.thaw()
        environment.server.rates = Rates(delay=environment.plan.rates.delay)
        # Due times were set by clocks that were stepped. Step to the furthest clock, so that none lies far ahead.
        if environment.furthest > environment.stepped:
            environment.step_clock(environment.furthest - environment.stepped)
        for host in self._hosts:
            host.net.cut = None
            for node in host.nodes:
                environment.loop.wake(node)
        now = environment.loop.time()
        for trouble in environment.fault_log.all:
            if trouble.kind not in ("kill", "stop", "fail"):
                # Messages on their way are still late, and callers still wait for lost answers.
                trouble.until = min(trouble.until, now + AFTERMATH.get(trouble.kind, 0.0))
        for host in self._hosts:
            if not host.busy and host.worker is None:
                await host.start()

    async def speak(self) -> None:
        """Resume all that was paused. Call this once no request to pause is on its way any more."""
        for target in self._hushed:
            await self._pause(target, paused=False)

    async def _repeat(self, kind: str, gap: float) -> None:
        rng = Random(f"{kind} {self._environment.seed}")
        while True:
            await asyncio.sleep(rng.expovariate(1 / gap))
            self._strike(kind, rng)

    async def _once(self, kind: str, second: float) -> None:
        rng = Random(f"{kind} once {self._environment.seed}")
        await asyncio.sleep(second + rng.random() * SPREAD)
        self._strike(kind, rng)

    def _strike(self, kind: str, rng: Random) -> None:
        trouble: Callable[[Random], Coroutine[Any, Any, None]] = getattr(self, f"_do_{kind}")
        self._environment.spawn(self._operator, trouble(rng))

    async def _do_kill(self, rng: Random) -> None:
        host = self._idle_host(rng)
        if host is None:
            return
        host.busy = True
        host.kill()
        await asyncio.sleep(rng.uniform(0.1, 30))
        await host.start()
        host.busy = False

    async def _do_stop(self, rng: Random) -> None:
        host = self._idle_host(rng)
        if host is None:
            return
        host.busy = True
        await host.stop(drain=rng.choice((0.0, 0.0, 5.0, 25.0)), force=rng.random() < 0.2)
        await asyncio.sleep(rng.uniform(0.0, 3))
        await host.start()
        host.busy = False

    async def _do_fail(self, rng: Random) -> None:
        host = self._idle_host(rng)
        if host is None:
            return
        host.busy = True
        await host.fail()
        await asyncio.sleep(rng.uniform(0.0, 3))
        await host.start()
        host.busy = False

    async def _do_pause(self, rng: Random) -> None:
        await self._hold("pause", rng, rng.uniform(1, 120), keeper=True)

    async def _do_block(self, rng: Random) -> None:
        await self._hold("block", rng, rng.uniform(1, 60), keeper=False)

    async def _hold(self, kind: str, rng: Random, length: float, *, keeper: bool) -> None:
        host = self._idle_host(rng)
        if host is None:
            return
        nodes = host.nodes if keeper else host.nodes[:1]
        self._environment.note(kind, host.name, round(length, 3))
        trouble = self._environment.fault_log.begin(kind, host.owner, self._environment.loop.time())
        for node in nodes:
            self._environment.loop.pause(node)
        await asyncio.sleep(length)
        if trouble.until > self._environment.loop.time():
            for node in nodes:
                self._environment.loop.wake(node)
            trouble.until = self._environment.loop.time()

    async def _do_cut(self, rng: Random) -> None:
        host = self._idle_host(rng)
        if host is None or host.net.cut is not None:
            return
        owner, length = host.owner, rng.uniform(1, 60)
        self._environment.note("cut off", host.name, round(length, 3))
        trouble = self._environment.fault_log.begin("cut", owner, self._environment.loop.time())
        host.net.cut = rng.choice(("both", "requests", "answers"))
        await asyncio.sleep(length)
        if host.owner == owner:
            host.net.cut = None
        trouble.until = min(trouble.until, self._environment.loop.time() + AFTERMATH["cut"])

    async def _do_freeze(self, rng: Random) -> None:
        if self._environment.healed or self._environment.server.frozen:
            return
        length = rng.uniform(*self._environment.plan.freezes)
        self._environment.note("frozen", round(length, 3))
        trouble = self._environment.fault_log.begin("freeze", EVERYWHERE, self._environment.loop.time())
        self._environment.server.freeze()
        await asyncio.sleep(length)
        if trouble.until > self._environment.loop.time():
            self._environment.server.thaw()
            trouble.until = self._environment.loop.time()
            self._environment.note("thawed")

    async def _do_step(self, rng: Random) -> None:
        seconds = rng.choice(self._environment.plan.steps) * rng.choice((-1, 1))
        self._environment.step_clock(seconds)

    async def _do_lid(self, rng: Random) -> None:
        """Stop the whole host, including the storage, as when the lid of a laptop is closed."""
        hosts = [host for host in self._hosts if host.worker is not None and not host.busy]
        if self._environment.healed or self._environment.server.frozen or len(hosts) < len(self._hosts):
            return
        length = rng.uniform(1, 120)
        self._environment.note("lid closed", round(length, 3))
        trouble = self._environment.fault_log.begin("lid", EVERYWHERE, self._environment.loop.time())
        self._lid_closed = True
        self._environment.server.freeze()
        for host in hosts:
            for node in host.nodes:
                self._environment.loop.pause(node)
        await asyncio.sleep(length)
        if trouble.until > self._environment.loop.time():
            self._environment.server.thaw()
            for host in hosts:
                for node in host.nodes:
                    self._environment.loop.wake(node)
            trouble.until = self._environment.loop.time()
            self._lid_closed = False
            self._environment.note("lid opened")

    async def _do_storm(self, rng: Random) -> None:
        """Cancel many jobs at once, in any state."""
        refs = [ref for ref, job in self._environment.model.records.items() if job.state not in TERMINAL]
        await self._revise("storm", [CancelJob(ref, "storm") for ref in rng.sample(refs, rng.randint(0, len(refs)))])

    async def _do_hush(self, rng: Random) -> None:
        """Pause a queue or a task for some time, as an operator does."""
        queues, tasks = ("default", OTHER), list(self._environment.app.tasks)
        target = Target("queue", rng.choice(queues)) if rng.random() < 0.5 else Target("task", rng.choice(tasks))
        length = rng.uniform(1, 30)
        self._hushed[target] = None
        self._environment.note("hush", target.kind, target.name, round(length, 3))
        await self._pause(target, paused=True)
        await asyncio.sleep(length)
        await self._pause(target, paused=False)

    async def _do_redrive(self, rng: Random) -> None:
        refs = [ref for ref, job in self._environment.model.records.items() if job.state in REDRIVABLE]
        await self._revise("redrive", [RedriveJob(ref) for ref in rng.sample(refs, min(len(refs), 2))])

    async def _do_delete(self, rng: Random) -> None:
        refs = [ref for ref, job in self._environment.model.records.items() if job.state is not State.ACTIVE]
        await self._revise("delete", [DeleteJob(ref) for ref in rng.sample(refs, min(len(refs), 1))])

    async def _revise(self, kind: str, revisions: Sequence[Revision]) -> None:
        self._environment.deeds[kind] += 1
        with contextlib.suppress(StorageError):
            await self._net.revise(revisions)

    async def _pause(self, target: Target, *, paused: bool) -> None:
        self._environment.deeds["hush"] += paused
        with contextlib.suppress(StorageError):
            await self._net.tune(target, Settings(paused=paused), by="operator")

    def _idle_host(self, rng: Random) -> SimulatedNode | None:
        if self._environment.healed or self._lid_closed:
            return None
        idle = [host for host in self._hosts if host.worker is not None and not host.busy]
        return rng.choice(idle) if idle else None
