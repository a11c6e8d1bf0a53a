"""A whole world of workers, clients and troubles in virtual time, drawn from a seed: `World(seed).run()`.

    clients ──enqueue──►┐                       ┌──► worker nodes: loop and keeper, killed, paused, blocked, cut off
    operator ──revise──►├── network ── storage ─┤
    supervisor─reclaim─►┘   (net.py)   (frozen) └──► a reaper alone
                                          │
                                     the witness (invariants.py) sees every step

Each seed enables some faults with rates of its own. After a while everything is healed, and then every job must come
to its end within `Plan.bound`. `python -m holdfast.testing.world --seed N` replays a world and prints what happened.
"""

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any, Self, cast

from holdfast.core.job import Ref
from holdfast.core.lifecycle import TERMINAL
from holdfast.errors import JobError, StorageError
from holdfast.handle import Job
from holdfast.maintenance.reaper import Reaper
from holdfast.storage.model import Model
from holdfast.testing.invariants import Violation
from holdfast.testing.net import LONGEST_DELAY, SimNet
from holdfast.testing.plan import Plan
from holdfast.testing.simloop import Node, SimLoop, simulate
from holdfast.testing.stage import Stage
from holdfast.testing.station import Station
from holdfast.testing.troubles import Troubles
from holdfast.testing.weather import EVERYWHERE
from holdfast.testing.workload import OVERRUNS, drawn

QUIET = 12.0
"""Seconds that a world at rest is watched, for nothing may stir any more."""

LIMIT = 7 * 86_400.0


class World:
    """One simulated world: a seed, and the plan that is drawn from it unless another is given.

    `name`: what the plan is called among the set pieces. `without`: kinds of fault that are left out of it.
    """

    stage: Stage

    def __init__(
        self,
        seed: int,
        plan: Plan | None = None,
        *,
        model: type[Model] = Model,
        name: str = "",
        without: Sequence[str] = (),
    ) -> None:
        self.seed = seed
        self.plan = (plan or Plan.drawn(Random(f"plan {seed}"))).without(without)
        self.name = name
        self._without = without
        self._model = model
        self._stations: list[Station] = []
        self._acknowledged: list[Ref] = []

    def run(self) -> Self:
        """Let the world run its course.

        Raises:
            Violation: an invariant did not hold; the message says how to see it again.
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
        """What to type to see it again."""
        scenario = f" --scenario '{self.name}'" if self.name else ""
        without = "".join(f" --without {kind}" for kind in self._without)
        return f"python -m holdfast.testing.world --seed {self.seed}{scenario}{without}"

    def told(self) -> str:
        """Return the trace as text; two runs of one seed give the same, byte by byte."""
        return "\n".join(f"{at:10.3f}  {' '.join(map(str, words))}" for at, words in self.stage.trace)

    async def _course(self, loop: SimLoop) -> None:
        self.stage = Stage(loop, self.seed, self.plan, self._model)
        dice = Random(f"stations {self.seed}")
        self._stations += [
            Station(self.stage, f"w{number}", supervised=dice.random() < self.plan.supervised)
            for number in range(self.plan.workers)
        ]
        for station in self._stations:
            await station.start()
        if self.plan.lone_reaper:
            reaper = Reaper(self.stage.holdfast(SimNet(self.stage.server), "reaper"))
            await loop.start(Node("reaper"), reaper.start())
        troubles = Troubles(self.stage, self._stations)
        clients = [self._client(number) for number in range(self.plan.clients)]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.plan.span):
                await troubles.bring()
                await asyncio.Event().wait()
        self.stage.look()
        await troubles.heal()
        await self._rest(troubles, clients)
        await self._leave()
        self._check_journal()
        self._check_hearing()

    def _client(self, number: int) -> "asyncio.Task[None]":
        node = Node(f"client {number}")
        return self.stage.spawn(node, self._enqueue(node, number))

    async def _enqueue(self, node: Node, number: int) -> None:
        app, rng = (
            self.stage.holdfast(SimNet(self.stage.server), f"client {number}"),
            Random(f"client {number} {self.seed}"),
        )
        own = range(number, self.plan.jobs, self.plan.clients)
        for job_number in own:
            await asyncio.sleep(rng.expovariate(len(own) / (self.plan.span * 0.6)))
            call = drawn(self.stage.app, rng, job_number)
            job: Job[Any] | None = None
            while job is None:
                try:
                    (job,) = await app.submit([call])
                except StorageError:
                    await asyncio.sleep(rng.random())
            self._acknowledged.append(job.ref)
            if rng.random() < 0.15:
                self.stage.spawn(node, self._await(job, job_number))
            if rng.random() < 0.1:
                await asyncio.sleep(rng.random() * 5)
                with contextlib.suppress(StorageError, JobError):
                    await job.cancel("a client's whim")

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
                    self.stage.failed(Violation(f"{job.ref}: its result is {value}, not {number}"))
                return

    async def _rest(self, troubles: Troubles, clients: "Sequence[asyncio.Task[None]]") -> None:
        """Wait until every job is over, and see that nothing stirs after that."""
        stage, time = self.stage, self.stage.loop.time
        if self.plan.rates.late:
            # What an operator asked for before the healing may still be under way.
            await asyncio.sleep(LONGEST_DELAY)
        await troubles.speak()
        deadline = time() + self.plan.bound
        while not (all(client.done() for client in clients) and self._over()):
            stage.look()
            if time() > deadline:
                left = [(job.id, job.task, str(job.state)) for job in stage.model.records.values() if not _is_over(job)]
                raise Violation(f"I8 at {time():.3f} s: {self.plan.bound:.0f} s after the healing not over: {left}")
            await asyncio.sleep(1)
        for client in clients:
            client.result()
        stage.note("at rest")
        ends = dict(stage.model.records)
        await asyncio.sleep(QUIET)
        stirred = [ref for ref, job in stage.model.records.items() if ends.get(ref) != job]
        if stirred:
            raise Violation(f"I3 at {time():.3f} s: stirred after their end: {stirred}")

    def _over(self) -> bool:
        return all(_is_over(job) for job in self.stage.model.records.values())

    async def _leave(self) -> None:
        """Stop all workers; each must be able to go."""
        async with asyncio.TaskGroup() as leaving:
            for station in self._stations:
                leaving.create_task(station.stop(drain=0.0, force=False))
        self.stage.look()

    def _check_journal(self) -> None:
        """Hold what the handlers did against what the storage knows."""
        by_job: dict[Ref, list[Any]] = {}
        for entry in self.stage.journal.entries:
            story = self.stage.witness.stories.get(entry.ref)
            run = story.runs.get(entry.fence) if story is not None else None
            if run is None or (run.number, run.owner) != (entry.run, entry.owner):
                raise Violation(f"I17: {entry} began, and there is no such run: {run}")
            by_job.setdefault(entry.ref, []).append(entry)
        for entries in by_job.values():
            for first, second in pairwise(entries):
                if first.ended > second.began and not self._may_overlap(first, second):
                    raise Violation(f"I5: {first} and {second} overlap, and nothing was wrong")
        for ref in self._acknowledged:
            story = self.stage.witness.stories.get(ref)
            if story is None or (ref not in self.stage.model.records and not story.deleted):
                raise Violation(f"I8: {ref} was acknowledged and is lost")

    def _may_overlap(self, first: Any, second: Any) -> bool:
        near = self.stage.weather.between(first.began - 60, second.began)
        return first.task in (*OVERRUNS, "silent") or any(one.where in (first.owner, EVERYWHERE) for one in near)

    def _check_hearing(self) -> None:
        """Make sure that each stall was heard of: once, or again where whoever heard of it was troubled."""
        if not self.plan.hearing:
            return
        troubled = any(trouble.kind != "farewell" for trouble in self.stage.weather.all)
        for cursor in self.stage.witness.stalls:
            times = self.stage.heard[cursor]
            if not times or (times > 1 and not troubled):
                raise Violation(f"events: the stall at {cursor} was heard of {times} times")


def _first(error: Exception) -> Exception:
    """Return what a group of errors began with."""
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    return error


def _is_over(job: Any) -> bool:
    return job.state in TERMINAL and job.redrive_at is None


if __name__ == "__main__":
    from holdfast.testing.replay import main

    sys.exit(main())
