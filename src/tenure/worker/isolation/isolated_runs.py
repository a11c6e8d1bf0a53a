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
from tenure.worker.run import NO_PROCESS_DELAY, stopped
from tenure.worker.scoreboard import Scoreboard

TRIES = 3
"""A run fails when it finds no process for this many times in a row. Before that, it is handed back uncharged."""

T = TypeVar("T")


class IsolatedRuns:
    """The isolated runs of one worker. Methods run on the worker's loop; those with `there` on the isolation loop."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        worker: Owner,
        isolates: bool,
        lease_holder: LeaseHolder,
        scoreboard: Scoreboard | None = None,
        refused: Callable[[str], None] = lambda why: None,
    ) -> None:
        """Create the isolated runs of a worker. `keeping` is notified of the progress of the runs.

        `refused` is called with the reason when the system refuses a process. It is called from any thread.
        """
        self._app_location = runtime.app_location
        self._tasks: Mapping[str, Task[..., Any]] = runtime.tasks
        self._clock = runtime.clock
        self._logger = runtime.logger
        self._lease_holder = lease_holder
        self._refused = refused
        self._isolates = isolates
        """True if a job in quarantine gets its own process, even if its task does not ask for one."""
        self._settings = IsolationSettings(
            worker, runtime.clock, runtime.timing.max_block.total_seconds(), lease_holder
        )
        self._isolation_loop = runtime.background_loop("tenure-isolation")
        self._failed_tries: Counter[Ref] = Counter()
        """How many times in a row a job found no usable process. Cleared once a process is ready."""
        self._pool = ProcessPool(worker=worker.name, scoreboard=scoreboard, on_ready=self._failed_tries.clear)
        self._used = self._closed = False

    def find_app(self) -> None:
        """Find the app's location, which isolated processes import.

        Raises:
            UsageError: a task wants an isolated process, but the app cannot be imported there.
        """
        wanting = next((task for task in self._tasks.values() if task.settings.run == "process"), None)
        if wanting is not None or self._isolates:
            self._pool.app = self._app_location()
        if wanting is not None and self._pool.app is None:
            raise UsageError(
                f"task {wanting.name!r} runs in a process of its own, which cannot find its app: make the app and its "
                "tasks at the top of a module or of the script, not in a function or a shell; or leave out "
                'run="process"'
            )

    def needs_process(self, run: ActiveRun) -> bool:
        """Return True if a run must have an isolated process."""
        job = run.lease.job
        if job.quarantined and self._isolates and self._pool.app is not None and job.task in self._tasks:
            return True
        task = self._tasks.get(job.task)
        return task is not None and task.settings.run == "process"

    async def run(self, run: ActiveRun) -> Outcome | None:
        """Run one lease to its outcome in an isolated process. A cancellation is an outcome, too.

        Return None if no process is available and the job does not need one.
        """
        if self._closed:
            return Interrupted("shutdown")
        isolated_run = IsolatedRun(run, self._settings)
        run.stop_isolated = isolated_run.request_stop
        if run.stop is not None:
            isolated_run.request_stop(run.stop, run.stop_detail)
        try:
            return await self._on_isolation_loop(lambda: self._run_there(isolated_run))
        except NoProcessError as error:
            # Even the isolation thread cannot be started. Other errors there became outcomes.
            return self._without_process(run, error)
        except asyncio.CancelledError:
            isolated_run.drop()
            # The handler runs elsewhere. If the run was not stopped, all tasks of this loop were cancelled.
            return Interrupted("worker_failed") if run.stop is None else stopped(run)
        finally:
            run.stop_isolated = None

    async def end_idle(self) -> None:
        """End the idle processes, and wait for that. From now on no process is kept."""
        self._closed = True
        if self._used:
            await self._on_isolation_loop(self._pool.end_idle)

    async def close(self) -> None:
        """Kill the processes that are left."""
        self._closed = True
        if self._used:
            await self._on_isolation_loop(self._pool.close)
            await self._isolation_loop.stop()

    async def _on_isolation_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work` on the isolation loop, and return its result. If this call is cancelled, `work` still goes on.

        Raises:
            NoProcessError: the system refuses a thread for that loop; nothing has begun.
        """
        here = asyncio.get_running_loop()
        done: asyncio.Future[T] = here.create_future()

        def resolve(call: Callable[..., object], *what: object) -> None:
            # If the worker's loop is closed, no task waits for the result.
            with contextlib.suppress(RuntimeError):
                here.call_soon_threadsafe(lambda: done.done() or call(*what))

        async def agent() -> None:
            try:
                value = await work()
            except asyncio.CancelledError:
                resolve(done.cancel)
                raise
            except Exception as error:
                resolve(done.set_exception, error)
            else:
                resolve(done.set_result, value)

        try:
            self._isolation_loop.run(agent)
        except (RuntimeError, OSError) as error:
            raise NoProcessError(f"no thread can be started for it: {error}", system=True) from error
        self._used = True
        return await done

    async def _run_there(self, isolated_run: IsolatedRun) -> Outcome | None:
        process = None
        try:
            isolated_run.begin()
            outcome = None
            task = self._tasks.get(isolated_run.run.lease.job.task)
            waiting = PoolWaiter(isolated=task is None or task.settings.run != "process")
            isolated_run.call_on_stop(waiting.cancel)
            process = await self._pool.acquire(waiting)
            if isolated_run.stop is not None:
                outcome = stopped(isolated_run)
            elif process is None:
                outcome = Interrupted("shutdown")
            else:
                outcome = await isolated_run.run_in(process, self._pool.kills)
        except NoProcessError as error:
            outcome = (
                stopped(isolated_run)
                if isolated_run.stop is not None
                else self._without_process(isolated_run.run, error)
            )
        except asyncio.CancelledError:
            if process is not None:
                process.kill("its worker ends")
            raise
        finally:
            if process is not None:
                self._pool.release(process)
        if outcome is not None:
            # The worker's loop may be blocked, and note the outcome much later.
            self._lease_holder.finish(isolated_run.run)
        return outcome

    def _without_process(self, run: ActiveRun, error: NoProcessError) -> Outcome | None:
        """Return the outcome of a run that got no process, or None if it does not need one."""
        job = run.lease.job
        self._logger.error("job %s (%s): no process is available: %s", job.id, job.task, error)
        if error.system:
            self._refused(str(error))
        task = self._tasks.get(job.task)
        if task is None or task.settings.run != "process":
            return None
        run.signs.log(self._clock.uptime(), "error", f"no process is available: {error}", {})
        self._failed_tries[run.lease.ref] += 1
        if self._failed_tries[run.lease.ref] >= TRIES:
            return Raised(recorded(error))
        return Interrupted("prefetch", NO_PROCESS_DELAY)
