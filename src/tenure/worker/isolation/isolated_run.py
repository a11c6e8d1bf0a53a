"""One run in an isolated process, from sending the job to its outcome."""

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tenure.clock import SECOND, Clock
from tenure.core.job import Owner
from tenure.core.outcome import Interrupted, Outcome
from tenure.core.postmortem import Ending
from tenure.processes.exit_status import OomKills, told
from tenure.processes.process import ProcessExit
from tenure.worker.active_runs import ActiveRun, StopReason, outdoes
from tenure.worker.isolation.crash_report import LastSigns, inquest
from tenure.worker.isolation.messages import (
    TELLING,
    AppFailed,
    AppReady,
    ForwardedLog,
    LoopTurned,
    RunBegan,
    RunEnded,
    RunJob,
    RunSigns,
    StopRun,
)
from tenure.worker.isolation.pool_process import KILLED, PoolProcess, log
from tenure.worker.loop_lag import TICK
from tenure.worker.run import stopped, timed_out

BEGINNING = 30.0
"""Seconds in which a ready process must begin a run. After this time it counts as hung and is killed."""

HOOK = 35.0
"""Minimum seconds for an on_cancel hook. The process itself enforces the hook's own limits."""

BLOCKED = "its event loop was blocked for longer than max_block"


LOOK, SHORTEST = 0.5, 0.02
"""Maximum and minimum seconds between two checks of a process."""


class LeaseHolder(Protocol):
    """The part of the lease holder that isolated runs notify. Called from the isolation thread."""

    def give(self, held: ActiveRun, pid: int, /) -> None:
        """Note that the run is about to be sent to that process."""
        ...

    def begin(self, held: ActiveRun, at: float, /) -> None:
        """Note that the run begins."""
        ...

    def stand_still(self, held: ActiveRun, still: bool, /) -> None:
        """Note that the run's process was suspended, or continues."""
        ...

    def finish(self, held: ActiveRun, /) -> None:
        """Note that only the outcome of the run is left."""
        ...


@dataclass(frozen=True)
class IsolationSettings:
    """The settings that all isolated runs of a worker share. `max_block`: in seconds."""

    worker: Owner
    clock: Clock
    max_block: float
    keeping: LeaseHolder


class IsolatedRun:
    """A run in an isolated process. It is driven by one event loop; `end` and `drop` are safe from any thread."""

    def __init__(self, held: ActiveRun, terms: IsolationSettings) -> None:
        self.held = held
        self.stop: StopReason | None = None
        self.stop_detail: str | None = None
        self._terms = terms
        self._words: deque[tuple[StopReason, str | None]] = deque()
        self._dropped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[object] | None = None
        self._heed: Callable[[], None] = lambda: None

    def end(self, reason: StopReason, detail: str | None) -> None:
        """Stop the run. Idempotent, except for a reason that outranks the earlier one (`outdoes`)."""
        self._words.append((reason, detail))
        self._knock()

    def drop(self) -> None:
        """Abandon the run, because its result is no longer needed."""
        self._dropped = True
        self._knock()

    def begin(self) -> None:
        """Handle stop requests from now on, on the running loop and in the task that drives the run."""
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        # Handle the stop requests that came before.
        self._listen()

    def heeded_by(self, heed: Callable[[], None]) -> None:
        """Set the function that is called when the run is stopped. Called at once if it is stopped already."""
        self._heed = heed
        if self.stop is not None:
            heed()

    def _knock(self) -> None:
        if self._loop is not None:
            # If the loop is closed, the run is over.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._listen)

    def _listen(self) -> None:
        while self._words:
            reason, detail = self._words.popleft()
            if outdoes(reason, self.stop):
                self.stop, self.stop_detail = reason, detail
                self._heed()
        if self._dropped and self._task is not None:
            self._task.cancel()

    async def carried_out(self, slot: PoolProcess, kills: OomKills | None) -> Outcome:
        """Run the job in a ready process, and return the outcome."""
        if kills is not None:
            # Count earlier kills now: they did not hit this run's process.
            kills.look(self._terms.clock.uptime())
        # Set the limit before sending: a process that does not read any more blocks the sender of a long message.
        slot.after(BEGINNING, functools.partial(slot.kill, "it did not begin"))
        # Before the process gets the job: its handler may kill this process before the message that it began arrives.
        self._terms.keeping.give(self.held, slot.process.pid)
        await slot.say(RunJob(self.held.lease.job))
        self.heeded_by(functools.partial(self._tell, slot))
        slot.turned_at = self._terms.clock.uptime()
        minding = asyncio.create_task(self._mind(slot, kills))
        try:
            return await self._followed(slot, kills)
        finally:
            minding.cancel()
            self._heed = lambda: None

    async def _mind(self, slot: PoolProcess, kills: OomKills | None) -> None:
        """Kill the process if its loop is blocked for too long. Renew no lease while the process is suspended."""
        max_block, clock = self._terms.max_block, self._terms.clock
        rest = max(SHORTEST, min(LOOK, max_block / 4, self.held.beat / 2))
        still = False
        while True:
            asked_at = clock.uptime()
            await asyncio.sleep(rest)
            now = clock.uptime()
            if kills is not None:
                # Count kills at each check: the kernel may have killed another process long before this one ends.
                kills.look(now)
            if slot.stopped != still:
                still = not still
                self._terms.keeping.stand_still(self.held, still)
            if still:
                # The process was suspended from outside, so its loop is not to blame.
                slot.turned_at = now
            # If this check itself is late, messages from the process may still be unread.
            elif now - asked_at < 2 * rest and now - slot.turned_at > max_block + TELLING + TICK:
                slot.kill(BLOCKED)

    async def _followed(self, slot: PoolProcess, kills: OomKills | None) -> Outcome:
        held, heard, said_at = self.held, LastSigns(), self._terms.clock.uptime()
        job = held.lease.job
        while True:
            match await slot.hear():
                case RunBegan(job.fence, at):
                    heard.began = True
                    held.pid = slot.process.pid
                    # The message may arrive late. A handler can forge it, so limit its time to the possible range.
                    now = self._terms.clock.uptime()
                    began = min(max(at, said_at), now)
                    self._terms.keeping.begin(held, began)
                    if self.stop is None:
                        slot.calm()
                    if job.timeout is not None:
                        slot.expect(began + job.timeout / SECOND - now, "timeout", haste=self._haste())
                case LoopTurned(at, looked_at):
                    slot.turned_at, heard.looked_at = at, looked_at
                case RunSigns(fence=job.fence) as said:
                    self._take(slot, said, heard)
                case ForwardedLog() as record:
                    log(record)
                case RunEnded(job.fence, outcome, spoiled):
                    slot.calm()
                    if spoiled:
                        slot.kill("something of its last run goes on")
                        await slot.death()
                    return outcome
                case None:
                    return self._died(slot, heard, await slot.death(), kills)
                case AppReady() | AppFailed() | RunBegan() | RunSigns() | RunEnded():
                    # A message of an earlier run.
                    continue

    def _haste(self) -> float:
        """Return the factor that shortens the time to the kill.

        After the timeout, the lease lasts for only a quarter of its length.
        """
        return min(1.0, self.held.lease.job.stall.lease / SECOND / 4 / KILLED)

    def _tell(self, slot: PoolProcess) -> None:
        if self.held.hooking and self.stop == "cancelled":
            # The handler cancelled the job itself, and its hook must go on.
            return
        slot.say_at_once(StopRun(self.held.lease.fence, self.stop or "shutdown", self.stop_detail))
        slot.expect(0.0, "stop")

    def _take(self, slot: PoolProcess, said: RunSigns, heard: LastSigns) -> None:
        held = self.held
        heard.progress = said.progress or heard.progress
        heard.lines.extend(said.log)
        for at, level, message, fields, _ in said.log:
            held.signs.log(at, level, message, fields)
        if said.at is not None:
            held.signs.sign(said.at, said.progress)
        held.elsewhere = said.trace or held.elsewhere
        if said.hooking and not held.hooking:
            held.hooking = True
            slot.calm()
            slot.expect(max(HOOK, (held.lease.job.timeout or 0) / SECOND), "stop")

    def _died(self, slot: PoolProcess, heard: LastSigns, death: ProcessExit, kills: OomKills | None) -> Outcome:
        for_memory = kills is not None and kills.took(death, self._terms.clock.uptime())
        if slot.why == "stop" and self.stop is not None:
            return stopped(self)
        if slot.why == "timeout":
            # The run was cancelled earlier, and stopped too slowly.
            return stopped(self) if self.stop == "cancelled" else timed_out(self.held)
        if not heard.began:
            # The process died between two runs, so this run has not begun.
            return Interrupted("prefetch")
        sentence = "" if slot.why is None else f"killed, for {slot.why}"
        how = told(death, for_memory=for_memory, sentence=sentence)
        return inquest(
            self.held,
            heard,
            Ending(how, death.peak_memory),
            worker=self._terms.worker,
            clock=self._terms.clock,
            max_block=round(self._terms.max_block * SECOND) if slot.why == BLOCKED else None,
        )
