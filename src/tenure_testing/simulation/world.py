"""A simulated world of workers, clients and faults in virtual time, drawn from a seed: `World(seed).run()`.

    clients ──enqueue──►┐                       ┌──► worker nodes: loop and keeper, killed, paused, blocked, cut off
    operator ──revise──►├── network ── storage ─┤
    supervisor─reclaim─►┘ (network.py) (frozen) └──► a reaper alone
                                          │
                                     the checker (invariants.py) sees every step

Each seed enables some faults, each with its own rate. In some worlds, calls use more features: unique, debounce,
collect and throttle keys, rates, fair keys, and newest first. Clients also repeat calls that they have made before.
Some worlds have schedules; the process that sweeps advances them.

After some time all faults end. Then no schedule may lag behind, and every job must end within `Plan.bound`. `python -m
tenure_testing.simulate --seed N` replays a world and prints what happened.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from random import Random
from typing import Any, Self, cast

from msgspec import json

from tenure.app import Tenure
from tenure.client.handle import Job
from tenure.client.job_template import EncodedCall
from tenure.clock import SECOND
from tenure.core.duration import micros
from tenure.core.events import OnRequest
from tenure.core.job import CollectKey, DebounceKey, RateKey, Ref
from tenure.core.lifecycle import TERMINAL
from tenure.errors import JobError, StorageError, ThrottledError
from tenure.maintenance.reaper import Reaper
from tenure.storage.memory.model import Model
from tenure.storage.protocol import QUEUE_RATE, TASK_RATE, PauseSchedule, PutSchedule, Settings, Target
from tenure_testing.simulation.environment import WorldEnvironment
from tenure_testing.simulation.event_loop import Node, SimLoop, simulate
from tenure_testing.simulation.fault_log import EVERYWHERE
from tenure_testing.simulation.faults import FaultInjector
from tenure_testing.simulation.key_checks import overfull
from tenure_testing.simulation.network import LONGEST_DELAY, SimNet
from tenure_testing.simulation.node import SimulatedNode
from tenure_testing.simulation.plan import WorldPlan
from tenure_testing.simulation.violation import Violation
from tenure_testing.simulation.workload import OTHER, OVERRUNS, drawn, featured, scheduled

QUIET = 12.0
"""Seconds for which a world is watched after its last job has ended. No job may change in that time."""

LIMIT = 7 * 86_400.0

RECORDED: tuple[OnRequest, ...] = ("enqueued", "deduplicated", "debounced", "throttled", "collected")
"""The optional events that some queues record."""


class World:
    """One simulated world: a seed, and a plan that is drawn from the seed unless another plan is given.

    `name`: the name of the plan in `SCENARIOS`. `without`: kinds of fault to leave out of the plan.
    """

    environment: WorldEnvironment

    def __init__(
        self,
        seed: int,
        plan: WorldPlan | None = None,
        *,
        model: type[Model] = Model,
        name: str = "",
        without: Sequence[str] = (),
    ) -> None:
        self.seed = seed
        self.plan = (plan or WorldPlan.drawn(Random(f"plan {seed}"))).without(without)
        self.name = name
        self._without = without
        self._model = model
        self._nodes: list[SimulatedNode] = []
        self._acknowledged: list[Ref] = []

    def run(self) -> Self:
        """Run the world to its end.

        Raises:
            Violation: an invariant did not hold. The message says how to replay the world.
        """
        try:
            simulate(self._course, seed=self.seed, limit=LIMIT)
        except Exception as raised:
            error = _first(raised)
            what = str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
            raise Violation(f"{what}\nseed {self.seed}; replay it: {self.command}") from error
        return self

    @property
    def command(self) -> str:
        """The shell command that replays this world."""
        scenario = f" --scenario '{self.name}'" if self.name else ""
        without = "".join(f" --without {kind}" for kind in self._without)
        return f"python -m tenure_testing.simulate --seed {self.seed}{scenario}{without}"

    def trace_text(self) -> str:
        """Return the trace as text. Two runs of one seed give the same text, byte by byte."""
        return "\n".join(f"{at:10.3f}  {' '.join(map(str, words))}" for at, words in self.environment.trace)

    async def _course(self, loop: SimLoop) -> None:
        self.environment = WorldEnvironment(loop, self.seed, self.plan, self._model)
        dice = Random(f"stations {self.seed}")
        self._nodes += [
            SimulatedNode(
                self.environment,
                f"w{number}",
                supervised=dice.random() < self.plan.supervised,
                old=number < self.plan.old,
            )
            for number in range(self.plan.workers)
        ]
        for host in self._nodes:
            await host.start()
        if self.plan.lone_reaper:
            reaper = Reaper(self.environment.tenure(SimNet(self.environment.server), "reaper"))
            await loop.start(Node("reaper"), reaper.start())
        preparing = self.environment.spawn(Node("planner"), self._prepare())
        troubles = FaultInjector(self.environment, self._nodes)
        clients = [self._client(number) for number in range(self.plan.clients)]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.plan.span):
                await troubles.bring()
                await asyncio.Event().wait()
        self.environment.look()
        await troubles.heal()
        await preparing
        await self._end_schedules()
        await self._rest(troubles, clients)
        await self._leave()
        self._check_journal()
        self._check_hearing()

    async def _prepare(self) -> None:
        """Write the world's schedules, rates and recording options into the storage."""
        dice, environment, net = Random(f"prepare {self.seed}"), self.environment, SimNet(self.environment.server)
        if self.plan.schedules:
            now = environment.clock.now()
            schedules = [
                scheduled(environment.app, dice, number, now, exact=self.plan.exact)
                for number in range(self.plan.schedules)
            ]
            await self._insist(lambda: net.plan([PutSchedule(schedule) for schedule in schedules]))
        if self.plan.features and dice.random() < 0.5:
            await self._insist(lambda: net.tune(Target("queue", "default"), Settings(record=RECORDED)))
        if "rates" in self.plan.features and dice.random() < 0.5:
            rate = RateKey(QUEUE_RATE, SECOND // 2, 2)
            await self._insist(lambda: net.tune(Target("queue", OTHER), Settings(rate=rate)))
        if "rates" in self.plan.features and dice.random() < 0.5:
            limited = RateKey(f"{TASK_RATE}quick", 3 * SECOND // 2, 2)
            await self._insist(lambda: net.tune(Target("task", "quick"), Settings(rate=limited)))

    async def _end_schedules(self) -> None:
        """Check that no tick is left behind after the faults have ended, and pause all schedules."""
        if not self.plan.schedules:
            return
        environment, timing, net = self.environment, self.plan.timing, SimNet(self.environment.server)
        await asyncio.sleep(timing.recovery_bound.total_seconds())
        environment.look()
        environment.accounts.ticking.finish(environment.clock.now(), micros(2 * timing.sweep) + SECOND)
        names = list(environment.accounts.ticking.courses)
        await self._insist(lambda: net.plan([PauseSchedule(name, paused=True) for name in names]))

    async def _insist(self, ask: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Repeat a call until the storage answers."""
        while True:
            try:
                await ask()
            except StorageError:
                await asyncio.sleep(1)
            else:
                return

    def _client(self, number: int) -> "asyncio.Task[None]":
        node = Node(f"client {number}")
        return self.environment.spawn(node, self._enqueue(node, number))

    async def _enqueue(self, node: Node, number: int) -> None:
        app, rng = (
            self.environment.tenure(SimNet(self.environment.server), f"client {number}"),
            Random(f"client {number} {self.seed}"),
        )
        own, newer = range(number, self.plan.jobs, self.plan.clients), Random(f"features {number} {self.seed}")
        made: list[EncodedCall[Any]] = []
        for job_number in own:
            await asyncio.sleep(rng.expovariate(len(own) / (self.plan.span * 0.6)))
            call = drawn(self.environment.app, rng, job_number, plain=self.plan.plain)
            if self.plan.features:
                call = featured(self.environment.app, call, self.plan.features, job_number, newer)
            job = await self._submitted(app, call, rng)
            made.append(call)
            if rng.random() < 0.15 and job.created and not isinstance(call.job.merge, DebounceKey | CollectKey):
                self.environment.spawn(node, self._await(job, job_number))
            if rng.random() < 0.1 and not self.plan.plain:
                await asyncio.sleep(rng.random() * 5)
                # A throttled call has no job to cancel and raises an error.
                with contextlib.suppress(StorageError, JobError, ThrottledError):
                    await job.cancel("a client's whim")
            if newer.random() < self.plan.repeats:
                await self._submitted(app, newer.choice(made), newer)

    async def _submitted(self, app: Tenure, call: EncodedCall[Any], rng: Random) -> Job[Any]:
        """Enqueue a call, repeatedly until there is an answer, and return the job that the answer names."""
        while True:
            try:
                [job] = await app.enqueue_many([call])
            except StorageError:
                await asyncio.sleep(rng.random())
            else:
                self._acknowledged.append(job.ref)
                return job

    async def _await(self, job: Job[Any], number: int) -> None:
        while True:
            try:
                value = await job.result()
            except StorageError:
                await asyncio.sleep(1)
            except JobError:
                return
            else:
                if value != number:
                    self.environment.failed(Violation(f"{job.ref}: its result is {value}, not {number}"))
                return

    async def _rest(self, troubles: FaultInjector, clients: "Sequence[asyncio.Task[None]]") -> None:
        """Wait until every job is over, and check that no job changes after that."""
        environment, time = self.environment, self.environment.loop.time
        # An operator's request that was sent before the faults ended may still be on its way.
        await asyncio.sleep(LONGEST_DELAY if self.plan.rates.late else self.plan.rates.delay)
        await troubles.speak()
        bound = self.plan.bound(max(self.plan.jobs, len(environment.model.records)))
        deadline = time() + bound
        while not (all(client.done() for client in clients) and self._over()):
            environment.look()
            if time() > deadline:
                left = [
                    (job.id, job.task, str(job.state))
                    for job in environment.model.records.values()
                    if not _is_over(job)
                ]
                raise Violation(f"I8 at {time():.3f} s: {bound:.0f} s after the healing not over: {left}")
            await asyncio.sleep(1)
        for client in clients:
            client.result()
        environment.note("at rest")
        ends = dict(environment.model.records)
        await asyncio.sleep(QUIET)
        stirred = [ref for ref, job in environment.model.records.items() if ends.get(ref) != job]
        if stirred:
            raise Violation(f"I3 at {time():.3f} s: stirred after their end: {stirred}")

    def _over(self) -> bool:
        return all(_is_over(job) for job in self.environment.model.records.values())

    async def _leave(self) -> None:
        """Stop all workers. Each must be able to stop."""
        async with asyncio.TaskGroup() as leaving:
            for host in self._nodes:
                leaving.create_task(host.stop(drain=0.0, force=False))
        self.environment.look()

    def _check_journal(self) -> None:
        """Compare what the handlers did with what the storage knows."""
        by_job: dict[Ref, list[Any]] = {}
        for entry in self.environment.journal.entries:
            story = self.environment.accounts.stories.get(entry.ref)
            run = story.runs.get((entry.fence, entry.owner)) if story is not None else None
            if run is None or run.number != entry.run:
                raise Violation(f"I17: {entry} began, and the history has no such run: {run}")
            given = self.environment.accounts.calls.given.get((entry.ref, entry.fence))
            right = None if given is None else tuple(n for call in given for n in json.decode(call)["items"])
            if entry.items != right:
                raise Violation(f"I13: {entry} was given {entry.items}, and has collected {right}")
            by_job.setdefault(entry.ref, []).append(entry)
        for entries in by_job.values():
            for first, second in pairwise(entries):
                if first.ended > second.began and not self._may_overlap(first, second):
                    raise Violation(f"I5: {first} and {second} overlap, and nothing was wrong")
        self._check_keys()
        began = {(entry.ref, entry.fence) for entry in self.environment.journal.entries}
        for item in self.environment.accounts.counted:
            if item not in began:
                raise Violation(f"I18: the put-back of {item} was counted, and it had not begun")
        for item in self.environment.accounts.uncounted:
            if item in began:
                raise Violation(f"I18: the put-back of {item} was not counted, and it had begun")
        for ref in self._acknowledged:
            story = self.environment.accounts.stories.get(ref)
            if story is None or (ref not in self.environment.model.records and not story.deleted):
                raise Violation(f"I8: {ref} was acknowledged and is lost")

    def _check_keys(self) -> None:
        """Check that no key had more handlers at work at one time than its limit allows."""
        entries = self.environment.journal.entries
        stories, faults = self.environment.accounts.stories, self.environment.fault_log
        for key, at_work in overfull((entry, stories[entry.ref].runs[entry.fence, entry.owner]) for entry in entries):
            latest = max(entry.began for entry in at_work)
            troubled = any(
                fault.where in (entry.owner, EVERYWHERE)
                for entry in at_work
                for fault in faults.between(entry.began, latest)
            )
            if not troubled:
                raise Violation(f"I6: {len(at_work)} handlers of the key {key} were at work at once: {at_work}")

    def _troubled(self, first: Any, second: Any) -> bool:
        near = self.environment.fault_log.between(first.began - 60, second.began)
        return any(item.where in (first.owner, EVERYWHERE) for item in near)

    def _may_overlap(self, first: Any, second: Any) -> bool:
        return first.task in (*OVERRUNS, "silent") or self._troubled(first, second)

    def _check_hearing(self) -> None:
        """Check that event handlers got each stall: once, or again if a fault met the worker that handled it."""
        if not self.plan.hearing:
            return
        troubled = any(trouble.kind != "farewell" for trouble in self.environment.fault_log.all)
        for cursor in self.environment.accounts.stalls:
            times = self.environment.heard[cursor]
            if not times or (times > 1 and not troubled):
                raise Violation(f"events: the stall at {cursor} was heard of {times} times")


def _first(error: Exception) -> Exception:
    """Return the first error of a group of errors."""
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    return error


def _is_over(job: Any) -> bool:
    return job.state in TERMINAL and job.redrive_at is None
