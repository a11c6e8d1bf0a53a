"""Runs in processes of their own, the slots: which ones go there, and what they come to there.

    worker's loop ──run──► a thread of their own: a process, the line to it, its limits ──outcome──► worker's loop

Each run has a process of its own, so nothing that a handler does there can take another run along, or keep the worker
from what it promises. The processes, their lines and the limits of their runs live on an event loop in a thread of
their own: a handler that blocks the worker's loop delays none of them. They end with the worker: told to, or by the end
of the line, or by the kernel.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from tenure.client.task import Task
from tenure.core.job import Owner, Ref
from tenure.core.outcome import Interrupted, Outcome, Raised
from tenure.errors import UsageError
from tenure.failures import recorded
from tenure.runtime import Runtime
from tenure.worker.active_runs import ActiveRun
from tenure.worker.isolation.isolated_run import IsolatedRun, IsolationSettings, LeaseHolder
from tenure.worker.isolation.process_pool import NoProcessError, PoolWaiter, ProcessPool
from tenure.worker.run import UNFIT_DELAY, stopped
from tenure.worker.scoreboard import Scoreboard

TRIES = 3
"""The first so many times in a row, less one, a run that finds no process is handed back uncharged; then it fails."""

T = TypeVar("T")


class IsolatedRuns:
    """The slots of one worker. Its methods belong to the worker's loop, those with `there` to the slots' own."""

    def __init__(
        self,
        equipment: Runtime,
        *,
        worker: Owner,
        isolates: bool,
        keeping: LeaseHolder,
        slate: Scoreboard | None = None,
        refused: Callable[[str], None] = lambda why: None,
    ) -> None:
        """Take what the processes need; `keeping` is told how far their runs are.

        `refused` is called, from any thread, when the machine refuses a process, with the reason.
        """
        self._whereabouts = equipment.whereabouts
        self._tasks: Mapping[str, Task[..., Any]] = equipment.tasks
        self._clock = equipment.clock
        self._logger = equipment.logger
        self._keeping = keeping
        self._refused = refused
        self._isolates = isolates
        """Whether a job in quarantine gets a process to itself, whatever its task says."""
        self._terms = IsolationSettings(worker, equipment.clock, equipment.timing.max_block.total_seconds(), keeping)
        self._side = equipment.side("tenure-slots")
        self._unfit_for: Counter[Ref] = Counter()
        """How many times in a row no process was fit to run a job; forgotten once any is."""
        self._roster = ProcessPool(worker=worker.name, slate=slate, fit=self._unfit_for.clear)
        self._used = self._closed = False

    def find(self) -> None:
        """Look where other processes find the app.

        Raises:
            UsageError: a task wants a process, and they do not find it.
        """
        wanting = next((task for task in self._tasks.values() if task.settings.run == "process"), None)
        if wanting is not None or self._isolates:
            self._roster.app = self._whereabouts()
        if wanting is not None and self._roster.app is None:
            raise UsageError(
                f"task {wanting.name!r} runs in a process of its own, which cannot find its app: make the app and its "
                "tasks at the top of a module or of the script, not in a function or a shell; or leave out "
                'run="process"'
            )

    def wanted(self, held: ActiveRun) -> bool:
        """Say whether a run is to be carried out in a process of its own."""
        job = held.lease.job
        if job.quarantined and self._isolates and self._roster.app is not None and job.task in self._tasks:
            return True
        task = self._tasks.get(job.task)
        return task is not None and task.settings.run == "process"

    async def run(self, held: ActiveRun) -> Outcome | None:
        """Run one lease to its outcome in a process of its own. Being cancelled is an outcome, too.

        None: no process can be had, and the job can do without.
        """
        if self._closed:
            return Interrupted("shutdown")
        errand = IsolatedRun(held, self._terms)
        held.make_end = errand.end
        if held.stop is not None:
            errand.end(held.stop, held.stop_detail)
        try:
            return await self._apart(lambda: self._carried_out_there(errand))
        except NoProcessError as error:
            # Not even the slots' own thread; whatever they came to there is an outcome.
            return self._unfit(held, error)
        except asyncio.CancelledError:
            errand.drop()
            # Its handler runs elsewhere. If we have not asked for this, all tasks of this loop were cancelled.
            return Interrupted("worker_failed") if held.stop is None else stopped(held)
        finally:
            held.make_end = None

    async def leave(self) -> None:
        """Let the processes end that are idle, and wait for that. From now on none is kept."""
        self._closed = True
        if self._used:
            await self._apart(self._roster.leave)

    async def close(self) -> None:
        """Kill what is left of them."""
        self._closed = True
        if self._used:
            await self._apart(self._roster.close)
            await self._side.stop()

    async def _apart(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Have something done on the slots' own loop, and return what it comes to; cancelled, it goes on there.

        Raises:
            NoProcessError: the machine has no thread for that loop; nothing has begun.
        """
        here = asyncio.get_running_loop()
        done: asyncio.Future[T] = here.create_future()

        def tell(call: Callable[..., object], *what: object) -> None:
            # Without the worker's loop there is nobody who waits for it.
            with contextlib.suppress(RuntimeError):
                here.call_soon_threadsafe(lambda: done.done() or call(*what))

        async def agent() -> None:
            try:
                value = await work()
            except asyncio.CancelledError:
                tell(done.cancel)
                raise
            except Exception as error:
                tell(done.set_exception, error)
            else:
                tell(done.set_result, value)

        try:
            self._side.run(agent)
        except (RuntimeError, OSError) as error:
            raise NoProcessError(f"there is no thread to see to it: {error}", ours=True) from error
        self._used = True
        return await done

    async def _carried_out_there(self, errand: IsolatedRun) -> Outcome | None:
        slot = None
        try:
            errand.begin()
            outcome = None
            task = self._tasks.get(errand.held.lease.job.task)
            waiting = PoolWaiter(isolated=task is None or task.settings.run != "process")
            errand.heeded_by(waiting.leave)
            slot = await self._roster.taken(waiting)
            if errand.stop is not None:
                outcome = stopped(errand)
            elif slot is None:
                outcome = Interrupted("shutdown")
            else:
                outcome = await errand.carried_out(slot, self._roster.kills)
        except NoProcessError as error:
            outcome = stopped(errand) if errand.stop is not None else self._unfit(errand.held, error)
        except asyncio.CancelledError:
            if slot is not None:
                slot.kill("its worker ends")
            raise
        finally:
            if slot is not None:
                self._roster.put_away(slot)
        if outcome is not None:
            # The worker's loop may be blocked, and take note of it much later.
            self._keeping.finish(errand.held)
        return outcome

    def _unfit(self, held: ActiveRun, error: NoProcessError) -> Outcome | None:
        """Return what a run has come to that has no process, None if it can do without."""
        job = held.lease.job
        self._logger.error("job %s (%s) has no process to run in: %s", job.id, job.task, error)
        if error.ours:
            self._refused(str(error))
        task = self._tasks.get(job.task)
        if task is None or task.settings.run != "process":
            return None
        held.signs.log(self._clock.uptime(), "error", f"there is no process to run in: {error}", {})
        self._unfit_for[held.lease.ref] += 1
        if self._unfit_for[held.lease.ref] >= TRIES:
            return Raised(recorded(error))
        return Interrupted("prefetch", UNFIT_DELAY)
