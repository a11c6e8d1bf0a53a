"""The pool of a worker's isolated processes: waiting runs, idle processes, processes that start or exit.

    run ──► an idle process, or a new one: enter ──► ready ──► run ──► put away: kept for another run for a while
                                                                └─────► dead or unusable: replaced when needed

There are never more processes than the worker runs jobs at once.
"""

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tenure.client.app_location import AppLocation
from tenure.processes.exit_status import OomKills
from tenure.processes.process import ProcessExit
from tenure.waiting import first
from tenure.worker.isolation.messages import (
    AppFailed,
    AppReady,
    ExitProcess,
    ForwardedLog,
    LoadApp,
    LoopTurned,
    RunBegan,
    RunEnded,
    RunSigns,
)
from tenure.worker.isolation.pool_process import EXIT_WAIT, PoolProcess, log
from tenure.worker.scoreboard import Scoreboard

START_TIMEOUT = 60.0
"""Seconds that a process gets to load the app and to enter its lifespan."""

STARTS = 4
"""The number of processes started at a time. After a crash all runs want one at once, and loading takes a whole
core."""

QUARANTINED = 4
"""The number of quarantined jobs run at a time. After a crash there are as many as the worker runs at once."""

IDLE_LIMIT, EXIT_TIMEOUT = 60.0, 10.0
"""Seconds until an idle process must exit, and seconds that it gets for that."""


class NoProcessError(Exception):
    """No process is available that can run jobs of this app. `ours`: the system refuses it; the app is not at fault."""

    def __init__(self, why: str, *, system: bool = False) -> None:
        super().__init__(why)
        self.system = system


class PoolWaiter:
    """A run that waits for a process. `isolated`: only because its job is in quarantine."""

    def __init__(self, *, isolated: bool) -> None:
        self.isolated = isolated
        self.process: asyncio.Future[PoolProcess | None] = asyncio.get_running_loop().create_future()

    def cancel(self) -> None:
        """Stop waiting."""
        if not self.process.done():
            self.process.set_result(None)

    @property
    def received(self) -> PoolProcess | None:
        """The process that the waiter got, or None."""
        given = self.process.done() and not self.process.cancelled() and self.process.exception() is None
        return self.process.result() if given else None


class ProcessPool:
    """The isolated processes of one worker. All of it runs on one event loop."""

    def __init__(self, *, worker: str, scoreboard: Scoreboard | None, on_ready: Callable[[], None]) -> None:
        """Create a pool. `worker`: the name of the worker. `fit` is called when a process becomes ready."""
        self._worker = worker
        self._scoreboard = scoreboard
        self._on_ready = on_ready
        self.app: AppLocation | None = None
        """The app's location, once it is known."""
        self.kills: OomKills | None = None
        """The out-of-memory kills, counted from the first process on."""
        self._idle: list[PoolProcess] = []
        self._waiting: list[PoolWaiter] = []
        """The waiting runs, in order."""
        self._starting: set[asyncio.Task[PoolProcess]] = set()
        self._isolating: set[PoolProcess] = set()
        """Processes with a quarantined job whose task does not otherwise want a process."""
        self._exiting: set[PoolProcess] = set()
        """Processes that were ordered to exit."""
        self._all: set[PoolProcess] = set()
        self._closed = False

    async def acquire(self, waiting: PoolWaiter) -> PoolProcess | None:
        """Return a ready process, or None if the waiter stopped waiting before.

        Raises:
            NoProcessError: no process is available, and none can be started.
        """
        self._waiting.append(waiting)
        self._serve()
        try:
            return await waiting.process
        except asyncio.CancelledError:
            if (process := waiting.received) is not None:
                self.release(process)
            raise
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def release(self, process: PoolProcess) -> None:
        """Keep a process for the next run. Kill it if it is unusable or will not be needed."""
        process.cancel_timers()
        isolated = process in self._isolating
        self._isolating.discard(process)
        if process.usable and not self._closed:
            self._idle.append(process)
            process.begin_idle()
            process.call_after(IDLE_LIMIT, functools.partial(self._order_exit, process))
        else:
            process.kill("its worker ends")
        self._serve()
        if isolated:
            # Most workers never need a process for quarantine again.
            self._order_exit(process)

    async def end_idle(self) -> None:
        """End the idle processes, and wait for that. From now on no process is kept."""
        self._closed = True
        for starting in self._starting:
            starting.cancel()
        for process in list(self._idle):
            self._order_exit(process)
            # From now on the caller has one limit for all of them.
            process.cancel_timers()
        await _all([process.wait() for process in self._exiting])

    async def close(self) -> None:
        """Kill the processes that are left."""
        self._closed = True
        self._idle.clear()
        for starting in self._starting:
            starting.cancel()
        for process in self._all:
            process.kill("its worker ends")
        await first(_all([process.wait() for process in self._all]), within=EXIT_WAIT)

    def _serve(self) -> None:
        """Give idle processes to waiting runs, and start the missing ones."""
        self._waiting = [waiter for waiter in self._waiting if not waiter.process.done()]
        if self._closed:
            for waiter in self._waiting:
                waiter.cancel()
            return
        isolated = [waiter for waiter in self._waiting if waiter.isolated]
        too_many = isolated[max(0, QUARANTINED - len(self._isolating)) :]
        wanting = deque(waiter for waiter in self._waiting if waiter not in too_many)
        while wanting and (process := self._take_idle()) is not None:
            waiter = wanting.popleft()
            if waiter.isolated:
                self._isolating.add(process)
            waiter.process.set_result(process)
        for _ in range(min(len(wanting), STARTS) - len(self._starting)):
            starting = asyncio.create_task(self._started())
            self._starting.add(starting)
            starting.add_done_callback(self._start_ended)

    def _take_idle(self) -> PoolProcess | None:
        while self._idle:
            process = self._idle.pop()
            process.end_idle()
            process.cancel_timers()
            if process.stopped:
                process.kill("it is stopped (SIGSTOP)")
            if process.usable:
                return process
        return None

    def _start_ended(self, starting: "asyncio.Task[PoolProcess]") -> None:
        """Note that a process is ready or has failed. A failure goes to the run that has waited longest."""
        self._starting.discard(starting)
        if starting.cancelled():
            return
        error = starting.exception()
        if error is None:
            self._on_ready()
            self.release(starting.result())
            return
        for waiter in self._waiting:
            if not waiter.process.done():
                waiter.process.set_exception(error)
                break
        self._serve()

    async def _started(self) -> PoolProcess:
        """Start a process and return it once it is ready.

        Raises:
            NoProcessError: no process is available.
        """
        if self.app is None:
            raise NoProcessError("the location of the app is unknown to other processes")
        self.kills = self.kills or OomKills()
        try:
            process = PoolProcess.start(self._process_ended)
        except OSError as error:
            raise NoProcessError(f"no process can be started: {error}", system=True) from error
        self._all.add(process)
        if self._scoreboard is not None:
            self._scoreboard.isolated_started(process.child.pid)
        try:
            await self._ready(process, self.app)
        except BaseException:
            process.kill("it cannot be used")
            raise
        return process

    async def _ready(self, process: PoolProcess, app: AppLocation) -> None:
        try:
            async with asyncio.timeout(START_TIMEOUT):
                await process.send(LoadApp(app, self._worker, logging.getLogger().level))
                while True:
                    match await process.receive():
                        case AppReady():
                            return
                        case AppFailed(why):
                            raise NoProcessError(why)
                        case ForwardedLog() as record:
                            log(record)
                        case None:
                            raise NoProcessError(f"the process ended ({await process.wait()}) before it was ready")
                        case RunBegan() | RunSigns() | LoopTurned() | RunEnded():
                            continue
        except TimeoutError:
            raise NoProcessError(f"the process was not ready within {START_TIMEOUT:g} s") from None

    def _order_exit(self, process: PoolProcess) -> None:
        """Order an idle process to exit."""
        if process in self._idle:
            self._idle.remove(process)
            self._exiting.add(process)
            process.send_at_once(ExitProcess())
            process.call_after(EXIT_TIMEOUT, functools.partial(process.kill, "it did not exit in time"))

    def _process_ended(self, process: PoolProcess) -> None:
        self._all.discard(process)
        self._exiting.discard(process)
        if process in self._idle:
            self._idle.remove(process)
        if self._scoreboard is not None:
            self._scoreboard.isolated_ended(process.child.pid)


async def _all(deaths: Sequence[Coroutine[Any, Any, ProcessExit]]) -> None:
    if deaths:
        await asyncio.gather(*deaths)
