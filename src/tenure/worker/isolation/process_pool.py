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
from tenure.worker.isolation.pool_process import GONE, PoolProcess, log
from tenure.worker.scoreboard import Scoreboard

STARTING = 60.0
"""Seconds that a process gets to load the app and to enter its lifespan."""

STARTS = 4
"""The number of processes started at a time. After a crash all runs want one at once, and loading takes a whole
core."""

QUARANTINED = 4
"""The number of quarantined jobs run at a time. After a crash there are as many as the worker runs at once."""

IDLE, LEAVING = 60.0, 10.0
"""Seconds until an idle process must exit, and seconds that it gets for that."""


class NoProcessError(Exception):
    """No process is available that can run jobs of this app. `ours`: the system refuses it; the app is not at fault."""

    def __init__(self, why: str, *, ours: bool = False) -> None:
        super().__init__(why)
        self.ours = ours


class PoolWaiter:
    """A run that waits for a process. `isolated`: only because its job is in quarantine."""

    def __init__(self, *, isolated: bool) -> None:
        self.isolated = isolated
        self.slot: asyncio.Future[PoolProcess | None] = asyncio.get_running_loop().create_future()

    def leave(self) -> None:
        """Stop waiting."""
        if not self.slot.done():
            self.slot.set_result(None)

    @property
    def given(self) -> PoolProcess | None:
        """The process that the waiter got, or None."""
        given = self.slot.done() and not self.slot.cancelled() and self.slot.exception() is None
        return self.slot.result() if given else None


class ProcessPool:
    """The isolated processes of one worker. All of it runs on one event loop."""

    def __init__(self, *, worker: str, slate: Scoreboard | None, fit: Callable[[], None]) -> None:
        """Create a pool. `worker`: the name of the worker. `fit` is called when a process becomes ready."""
        self._worker = worker
        self._slate = slate
        self._fit = fit
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
        self._dismissed: set[PoolProcess] = set()
        """Processes that were ordered to exit."""
        self._all: set[PoolProcess] = set()
        self._closed = False

    async def taken(self, waiting: PoolWaiter) -> PoolProcess | None:
        """Return a ready process, or None if the waiter stopped waiting before.

        Raises:
            NoProcessError: no process is available, and none can be started.
        """
        self._waiting.append(waiting)
        self._serve()
        try:
            return await waiting.slot
        except asyncio.CancelledError:
            if (slot := waiting.given) is not None:
                self.put_away(slot)
            raise
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def put_away(self, slot: PoolProcess) -> None:
        """Keep a process for the next run. Kill it if it is unusable or will not be needed."""
        slot.calm()
        isolated = slot in self._isolating
        self._isolating.discard(slot)
        if slot.lives and not self._closed:
            self._idle.append(slot)
            slot.rest()
            slot.after(IDLE, functools.partial(self._dismiss, slot))
        else:
            slot.kill("its worker ends")
        self._serve()
        if isolated:
            # Most workers never need a process for quarantine again.
            self._dismiss(slot)

    async def leave(self) -> None:
        """End the idle processes, and wait for that. From now on no process is kept."""
        self._closed = True
        for starting in self._starting:
            starting.cancel()
        for slot in list(self._idle):
            self._dismiss(slot)
            # From now on the caller has one limit for all of them.
            slot.calm()
        await _all([slot.death() for slot in self._dismissed])

    async def close(self) -> None:
        """Kill the processes that are left."""
        self._closed = True
        self._idle.clear()
        for starting in self._starting:
            starting.cancel()
        for slot in self._all:
            slot.kill("its worker ends")
        await first(_all([slot.death() for slot in self._all]), within=GONE)

    def _serve(self) -> None:
        """Give idle processes to waiting runs, and start the missing ones."""
        self._waiting = [one for one in self._waiting if not one.slot.done()]
        if self._closed:
            for one in self._waiting:
                one.leave()
            return
        isolated = [one for one in self._waiting if one.isolated]
        too_many = isolated[max(0, QUARANTINED - len(self._isolating)) :]
        wanting = deque(one for one in self._waiting if one not in too_many)
        while wanting and (slot := self._risen()) is not None:
            one = wanting.popleft()
            if one.isolated:
                self._isolating.add(slot)
            one.slot.set_result(slot)
        for _ in range(min(len(wanting), STARTS) - len(self._starting)):
            starting = asyncio.create_task(self._started())
            self._starting.add(starting)
            starting.add_done_callback(self._over)

    def _risen(self) -> PoolProcess | None:
        while self._idle:
            slot = self._idle.pop()
            slot.rise()
            slot.calm()
            if slot.stopped:
                slot.kill("somebody has stopped it")
            if slot.lives:
                return slot
        return None

    def _over(self, starting: "asyncio.Task[PoolProcess]") -> None:
        """Note that a process is ready or has failed. A failure goes to the run that has waited longest."""
        self._starting.discard(starting)
        if starting.cancelled():
            return
        error = starting.exception()
        if error is None:
            self._fit()
            self.put_away(starting.result())
            return
        for one in self._waiting:
            if not one.slot.done():
                one.slot.set_exception(error)
                break
        self._serve()

    async def _started(self) -> PoolProcess:
        """Start a process and return it once it is ready.

        Raises:
            NoProcessError: no process is available.
        """
        if self.app is None:
            raise NoProcessError("the processes of this worker do not find the app")
        self.kills = self.kills or OomKills()
        try:
            slot = PoolProcess.started(self._gone)
        except OSError as error:
            raise NoProcessError(f"no process can be started: {error}", ours=True) from error
        self._all.add(slot)
        if self._slate is not None:
            self._slate.slot_began(slot.process.pid)
        try:
            await self._ready(slot, self.app)
        except BaseException:
            slot.kill("it is of no use")
            raise
        return slot

    async def _ready(self, slot: PoolProcess, app: AppLocation) -> None:
        try:
            async with asyncio.timeout(STARTING):
                await slot.say(LoadApp(app, self._worker, logging.getLogger().level))
                while True:
                    match await slot.hear():
                        case AppReady():
                            return
                        case AppFailed(why):
                            raise NoProcessError(why)
                        case ForwardedLog() as record:
                            log(record)
                        case None:
                            raise NoProcessError(f"the process ended ({await slot.death()}) before it was ready")
                        case RunBegan() | RunSigns() | LoopTurned() | RunEnded():
                            continue
        except TimeoutError:
            raise NoProcessError(f"the process was not ready within {STARTING:g} s") from None

    def _dismiss(self, slot: PoolProcess) -> None:
        """Order an idle process to exit."""
        if slot in self._idle:
            self._idle.remove(slot)
            self._dismissed.add(slot)
            slot.say_at_once(ExitProcess())
            slot.after(LEAVING, functools.partial(slot.kill, "it did not leave"))

    def _gone(self, slot: PoolProcess) -> None:
        self._all.discard(slot)
        self._dismissed.discard(slot)
        if slot in self._idle:
            self._idle.remove(slot)
        if self._slate is not None:
            self._slate.slot_ended(slot.process.pid)


async def _all(deaths: Sequence[Coroutine[Any, Any, ProcessExit]]) -> None:
    if deaths:
        await asyncio.gather(*deaths)
