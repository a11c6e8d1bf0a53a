"""Runs the jobs of an app inside a test: in memory, on a clock that the test moves, with the workers of production.

    test ──enqueue──► memory storage ◄──claim, settle── a worker on the test's event loop
                           ▲
      travel("30d") ───────┴── clock, from one due instant to the next; a sweep and a drain at each

A job never runs inside the call that enqueues it ("eager mode"): it is encoded, stored, claimed, decoded, run and
settled as in production.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from datetime import datetime
from random import Random
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from msgspec import Struct, structs

from tenure.app import Tenure
from tenure.background_loop import PORTAL, SameLoop
from tenure.client.handle import Job
from tenure.client.task import Task
from tenure.clock import SECOND
from tenure.core.duration import Duration, duration, micros
from tenure.core.job import JobRecord, NewJob, Owner
from tenure.core.lifecycle import State
from tenure.core.settlement import Settlement
from tenure.errors import StorageUnavailableError, UsageError
from tenure.handlers.middleware import Proceed, RunCall
from tenure.ids import owner_id
from tenure.maintenance.lost_runs import settle_stalled
from tenure.maintenance.reaper import Reaper
from tenure.maintenance.ticks import tick_all
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import (
    ClaimRequest,
    EnqueueResult,
    EventReader,
    ExchangeResult,
    RenewRequest,
    RenewResult,
    SettlementResult,
    SweepRequest,
    SweepResult,
)
from tenure.testing.clock import START, ManualClock

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

SWEEP = 600 * SECOND
"""The longest time between two sweeps, in microseconds: for what is not due at an instant, such as retention."""


class JobTester:
    """Runs the jobs of an app inside a test, in memory and on a clock that the test moves.

        with JobTester(app) as jobs:
            await signup.enqueue("a@example.com")
            await jobs.drain()
            assert jobs.enqueued(welcome, to="a@example.com")
            await jobs.travel("7d")

    Within the context the app uses a storage and a clock of this test alone; what its storage held before is not seen.
    Handlers, retries, keys, rates, schedules, middleware and event handlers behave as in production. Time passes only
    by `travel`, except within a handler: its own `asyncio.sleep` and its time limits take real time. A wait for a job
    that no `drain` or `travel` runs would never end: it raises `UsageError` after a second.

    Each `async` method also exists as a synchronous one whose name ends in `_sync`, for tests without an event loop.

    `start`: the instant at which the clock begins, 2026-01-01 UTC by default.
    """

    def __init__(self, app: Tenure, *, start: datetime | None = None) -> None:
        self._app = app
        self.clock = ManualClock(START if start is None else round(start.timestamp() * SECOND))
        self._base = MemoryStorage(clock=self.clock)
        self._client = CuttableStorage(self._base, self.clock)
        self._links: list[CuttableStorage] = []
        """The connections of workers, the current one last."""
        self._ends: list[asyncio.Task[None]] = []
        """The ends of workers that crashed or were cut off, until this drain ends."""
        self._faults: list[PlannedFault] = []
        self._sweep_at = 0
        """The instant of the next sweep, if none is needed before."""
        self._working_calls = 0
        """How many calls of `drain` and `travel` are in progress."""
        self._rng = Random(0)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(
            self._app.using(
                storage=self._client,
                clock=self.clock,
                rng=self._rng,
                side=SameLoop,
                outermost=self._interfere,
                check_wait=self._check_wait,
            )
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # ── running ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def drain(self) -> int:
        """Run jobs until none can run at this instant; return how many runs that took.

        Jobs that are enqueued meanwhile run, too, and event handlers have handled all events. Delayed jobs and retries
        wait for `travel`. Jobs that enqueue one another without end run without end.
        """
        before = self._runs
        async with self._working():
            await self._settle()
        return self._runs - before

    async def travel(self, time: Duration) -> int:
        """Let time pass, and run each job and each schedule when it is due; return how many runs that took.

        The clock goes from one due instant to the next, so each job, tick, expiry and lease ends at its own instant.

        Raises:
            UsageError: `time` is not a duration.
        """
        before, target = self._runs, self.clock.now() + micros(duration(time, field="time", zero=True))
        async with self._working():
            await self._settle()
            while (now := self.clock.now()) < target:
                sweep_at, tick = self._next_sweep(), self._base.model.next_tick()
                due = [target, sweep_at, self._links[-1].next_due, tick]
                instant = max(now + 1, min(at for at in due if at is not None))
                self.clock.advance((instant - now) / SECOND)
                await self._settle(sweep=instant == target or sweep_at <= instant)
        return self._runs - before

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────

    def enqueued(self, task: Task[P, R], **arguments: Any) -> list[Job[R]]:
        """Return the jobs of a task that were enqueued in this test, oldest first, also those that have run.

        `arguments`: only jobs whose calls have these arguments, by name; the others may have any value.

        Raises:
            UsageError: the task has no argument of such a name.
        """
        return [self._app.job(job.id, task, queue=job.queue) for job in self._matching(task, arguments, 0)]

    @contextlib.contextmanager
    def expect(self, task: Task[P, R], /, *, times: int = 1, **arguments: Any) -> Generator[None]:
        """Check that the block enqueues this many jobs of a task; `arguments` as for `enqueued`.

        Raises:
            AssertionError: it enqueued fewer or more. The message lists what it enqueued.
        """
        self._matching(task, arguments, 0)
        begin = len(self._client.enqueued)
        yield
        found = self._matching(task, arguments, begin)
        if len(found) != times:
            wanted = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
            others = [f"{job.task}({self._call_text(job)})" for job in self._client.enqueued[begin:]]
            raise AssertionError(
                f"expected {times} jobs {task.name}({wanted}), found {len(found)}; "
                f"the block enqueued: {', '.join(others) or 'nothing'}"
            )

    # ── faults ────────────────────────────────────────────────────────────────────────────────────────────────────

    def fail_next(self, task: Task[..., Any], error: Exception, *, times: int = 1) -> None:
        """Make the next runs of a task raise an exception instead of calling the handler."""
        self._faults += [PlannedFault(task.name, error=error)] * times

    def crash_worker(self, task: Task[..., Any], *, times: int = 1) -> None:
        """Make the worker process die, as by `kill -9`, when the next run of a task begins.

        Its supervisor notices: its jobs stall, and run again if their `Stall` allows it. A new worker takes over.
        """
        self._faults += [PlannedFault(task.name, crash=True)] * times

    def cut_off(self, task: Task[..., Any], *, times: int = 1) -> None:
        """Cut the worker off from the storage when the next run of a task begins. The handler goes on.

        The job stalls when its lease and the grace have passed, 27 s by default: see `travel`.
        """
        self._faults += [PlannedFault(task.name)] * times

    # ── synchronous methods for tests without an event loop ───────────────────────────────────────────────────────

    def drain_sync(self) -> int:
        """Call `drain` from a test without a running event loop."""
        return PORTAL.call(self.drain(), verb="drain")

    def travel_sync(self, time: Duration) -> int:
        """Call `travel` from a test without a running event loop."""
        return PORTAL.call(self.travel(time), verb="travel")

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _runs(self) -> int:
        return sum(link.claimed for link in self._links)

    @contextlib.asynccontextmanager
    async def _working(self) -> AsyncGenerator[None]:
        self._working_calls += 1
        try:
            await self._begin()
            try:
                yield
            finally:
                ends, self._ends = self._ends, []
                await asyncio.gather(self._worker.stop(), *ends)
        finally:
            self._working_calls -= 1

    def _check_wait(self, job: JobRecord) -> None:
        if self._working_calls:
            return
        left = job.run_at - self.clock.now()
        due = f" for another {left / SECOND:.6g} s" if job.state is State.DELAYED and left > 0 else ""
        error = "" if job.error is None else f" after {job.error.type}: {job.error.message}"
        raise UsageError(
            f"job {job.id} of task {job.task!r} is {job.state}{due}{error}, and nothing runs now: call drain() of the "
            "JobTester, or travel(time), before you wait for the job"
        )

    async def _begin(self) -> None:
        """Start a worker with a connection of its own."""
        link = CuttableStorage(self._base, self.clock)
        with self._app.using(storage=link):
            self._worker = self._app.worker(reaper=False)
        self._reaper = Reaper(self._app, election=None)
        self._links.append(link)
        await self._worker.start()

    async def _settle(self, *, sweep: bool = True) -> None:
        """Sweep and run until nothing can run at this instant. Without `sweep`, fire schedules instead of a sweep."""
        await (self._sweep() if sweep else self._tick())
        while not await self._worker.idle() or self._links[-1].cut:
            await self._replace_worker()
            await self._sweep()

    def _next_sweep(self) -> int:
        """Return when a sweep is needed next. It has passed if a job needs one already."""
        job_at = self._base.model.next_sweep()
        return self._sweep_at if job_at is None else min(self._sweep_at, job_at)

    async def _sweep(self) -> None:
        """Sweep, and fire the schedules that are due."""
        now = self.clock.now()
        while await self._reaper.turn() == 0:
            pass
        self._sweep_at = now + SWEEP

    async def _tick(self) -> None:
        """Fire the schedules that are due."""
        now = self.clock.now()
        due, _ = self._base.model.due_schedules(now)
        if due:
            ticked = await tick_all(self._client, due, now)
            if ticked.more or ticked.troubles:
                # The reaper continues, and reports the errors.
                await self._sweep()

    async def _replace_worker(self) -> None:
        old, link = self._worker, self._links[-1]
        if link.crashed:
            await self._ends[-1]
        # Give back the events that were lent to the old worker's handlers. In production their loan runs out.
        await self._client.events(limit=0, reader=EventReader(f"app:{self._app.name}", old.owner.id))
        await self._begin()
        if link.crashed:
            taker = Owner(owner_id(self._rng), "supervisor", old.owner.host, old.owner.pid)
            taken = await self._client.reclaim(old.owner.id, taker)
            await settle_stalled(self._client, taker, taken.stalled, self._rng)

    async def _interfere(self, call: RunCall, proceed: Proceed) -> Any:
        """Do what `fail_next` and its like have ordered, around each run; the outermost middleware of the app."""
        link = self._links[-1]
        fault = None if link.cut else next((fault for fault in self._faults if fault.task == call.task), None)
        if fault is None:
            return await proceed()
        self._faults.remove(fault)
        if fault.error is not None:
            raise fault.error
        link.cut, link.crashed = True, fault.crash
        if fault.crash:
            self._end_worker()
            # The end of the worker cancels this run.
            await asyncio.Event().wait()
        try:
            return await proceed()
        finally:
            self._end_worker()

    def _end_worker(self) -> None:
        link = self._links[-1]
        link.ended = True
        self._ends.append(asyncio.create_task(self._worker.stop(force=link.crashed)))

    def _matching(self, task: Task[..., Any], arguments: dict[str, Any], begin: int) -> list[NewJob]:
        known = {name for name, *_ in task.signature.accepted()}
        if unknown := sorted(arguments.keys() - known):
            raise UsageError(f"task {task.name!r} has no argument {unknown[0]!r}; it has {', '.join(sorted(known))}")
        jobs = [job for link in (self._client, *self._links) for job in link.enqueued[begin:]]
        return [
            job for job in jobs if job.task == task.name and arguments.items() <= self._arguments(task, job).items()
        ]

    def _arguments(self, task: Task[..., Any], job: NewJob) -> dict[str, Any]:
        args, kwargs = task.signature.decode(self._app.codec, job.payload)
        return task.signature.arguments(args, kwargs)

    def _call_text(self, job: NewJob) -> str:
        task = self._app.tasks.get(job.task)
        return "..." if task is None else ", ".join(f"{k}={v!r}" for k, v in self._arguments(task, job).items())


class PlannedFault(Struct):
    """What happens when the next run of a task begins: `error` is raised, or its worker is lost."""

    task: str
    error: Exception | None = None
    crash: bool = False


class CuttableStorage(MemoryStorage):
    """The connection of one process to the storage of a test. The test can cut it."""

    def __init__(self, base: MemoryStorage, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.model, self._hub, self._lock = base.model, base._hub, base._lock
        self._clock = clock
        self.cut = False
        self.crashed = False
        """True if the process died, False if only its connection is cut."""
        self.ended = False
        """True if the process takes no part any more. Its calls get empty answers, so that it ends without delay."""
        self.claimed = 0
        """How many jobs were claimed."""
        self.enqueued: list[NewJob] = []
        self.next_due: int | None = None
        """The instant at which the next job is due, by the latest answer. It takes rates into account."""

    def _step(self, step: Callable[[], T]) -> T:
        if self.cut:
            raise StorageUnavailableError("the test has cut this worker off from the storage")
        return super()._step(step)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """See `Storage.enqueue`."""
        results = await super().enqueue(jobs)
        self.enqueued += jobs
        return results

    async def exchange(
        self, owner: Owner, settlements: Sequence[Settlement] = (), order: ClaimRequest | None = None
    ) -> ExchangeResult:
        """See `Storage.exchange`."""
        if self.ended:
            return ExchangeResult(tuple(SettlementResult(each.ref, each.fence, "gone") for each in settlements))
        answer = await super().exchange(owner, settlements, order)
        self.claimed += len(answer.leases)
        if order is not None:
            self.next_due = None if answer.next_due is None else self._clock.now() + answer.next_due
        return answer

    async def renew(self, beat: RenewRequest) -> RenewResult:
        """See `Storage.renew`."""
        return RenewResult() if self.ended else await super().renew(beat)

    async def sweep(self, bid: SweepRequest) -> SweepResult:
        """See `Storage.sweep`. Here time between two sweeps does not mean that the storage stood still."""
        return await super().sweep(structs.replace(bid, every=SWEEP))
