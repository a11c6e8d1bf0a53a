"""Runs jobs in isolated processes: decides which runs need one, and returns their outcomes.

    worker's loop ──run──► isolation thread: a process, its socket, its limits ──outcome──► worker's loop

Each run has its own process. So a handler that crashes there cannot end other runs, and cannot stop the worker from
keeping its leases. The processes, their sockets and the limits of their runs live on an event loop in a separate
thread, so a handler that blocks the worker's loop delays none of them. The processes end with the worker: by its order,
because the socket closes, or because the kernel kills them.
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
"""A run fails when it finds no process for this many times in a row. Before that, it is handed back uncharged."""

T = TypeVar("T")


class IsolatedRuns:
    """The isolated runs of one worker. Methods run on the worker's loop; those with `there` on the isolation loop."""

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
        """Create the isolated runs of a worker. `keeping` is notified of the progress of the runs.

        `refused` is called with the reason when the system refuses a process. It is called from any thread.
        """
        self._whereabouts = equipment.app_location
        self._tasks: Mapping[str, Task[..., Any]] = equipment.tasks
        self._clock = equipment.clock
        self._logger = equipment.logger
        self._keeping = keeping
        self._refused = refused
        self._isolates = isolates
        """True if a job in quarantine gets its own process, even if its task does not ask for one."""
        self._terms = IsolationSettings(worker, equipment.clock, equipment.timing.max_block.total_seconds(), keeping)
        self._side = equipment.background_loop("tenure-slots")
        self._unfit_for: Counter[Ref] = Counter()
        """How many times in a row a job found no usable process. Cleared once a process is ready."""
        self._roster = ProcessPool(worker=worker.name, slate=slate, fit=self._unfit_for.clear)
        self._used = self._closed = False

    def find(self) -> None:
        """Find the app's location, which isolated processes import.

        Raises:
            UsageError: a task wants an isolated process, but the app cannot be imported there.
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
        """Return True if a run must have an isolated process."""
        job = held.lease.job
        if job.quarantined and self._isolates and self._roster.app is not None and job.task in self._tasks:
            return True
        task = self._tasks.get(job.task)
        return task is not None and task.settings.run == "process"

    async def run(self, held: ActiveRun) -> Outcome | None:
        """Run one lease to its outcome in an isolated process. A cancellation is an outcome, too.

        Return None if no process is available and the job does not need one.
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
            # Even the isolation thread cannot be started. Other errors there became outcomes.
            return self._unfit(held, error)
        except asyncio.CancelledError:
            errand.drop()
            # The handler runs elsewhere. If the run was not stopped, all tasks of this loop were cancelled.
            return Interrupted("worker_failed") if held.stop is None else stopped(held)
        finally:
            held.make_end = None

    async def leave(self) -> None:
        """End the idle processes, and wait for that. From now on no process is kept."""
        self._closed = True
        if self._used:
            await self._apart(self._roster.leave)

    async def close(self) -> None:
        """Kill the processes that are left."""
        self._closed = True
        if self._used:
            await self._apart(self._roster.close)
            await self._side.stop()

    async def _apart(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work` on the isolation loop, and return its result. If this call is cancelled, `work` still goes on.

        Raises:
            NoProcessError: the system refuses a thread for that loop; nothing has begun.
        """
        here = asyncio.get_running_loop()
        done: asyncio.Future[T] = here.create_future()

        def tell(call: Callable[..., object], *what: object) -> None:
            # If the worker's loop is closed, no task waits for the result.
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
            # The worker's loop may be blocked, and note the outcome much later.
            self._keeping.finish(errand.held)
        return outcome

    def _unfit(self, held: ActiveRun, error: NoProcessError) -> Outcome | None:
        """Return the outcome of a run that got no process, or None if it does not need one."""
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
