"""One run that is carried out in a slot: from the word to the process to what it has come to."""

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
"""Seconds in which one that is ready begins a run; else it hangs."""

HOOK = 35.0
"""Seconds that an on_cancel hook gets at least, which has limits of its own within the process."""

BLOCKED = "its event loop was blocked for longer than max_block"


LOOK, SHORTEST = 0.5, 0.02
"""Seconds between two looks whether a process goes on, at most and at least."""


class LeaseHolder(Protocol):
    """Whoever keeps the leases, as far as it must know of a run in a slot; told from the slots' thread."""

    def give(self, held: ActiveRun, pid: int, /) -> None:
        """Hear that it is about to be given to that process."""
        ...

    def begin(self, held: ActiveRun, at: float, /) -> None:
        """Hear that it begins."""
        ...

    def stand_still(self, held: ActiveRun, still: bool, /) -> None:
        """Hear that its process was stopped, or goes on."""
        ...

    def finish(self, held: ActiveRun, /) -> None:
        """Hear that nothing of it is left but its outcome."""
        ...


@dataclass(frozen=True)
class IsolationSettings:
    """What all errands of a worker have in common. `max_block`: in seconds."""

    worker: Owner
    clock: Clock
    max_block: float
    keeping: LeaseHolder


class IsolatedRun:
    """A run in a slot. It is carried out on one event loop; `end` and `drop` may be called from any thread."""

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
        """Make it end. Idempotent, but for a reason that outdoes the one it was told before."""
        self._words.append((reason, detail))
        self._knock()

    def drop(self) -> None:
        """Let nobody carry it out any more: nobody waits for what it comes to."""
        self._dropped = True
        self._knock()

    def begin(self) -> None:
        """Listen to what is said to it, on the running loop and in the task that carries it out."""
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        # What was said before had nobody to wake.
        self._listen()

    def heeded_by(self, heed: Callable[[], None]) -> None:
        """Have this called when it has been told to end; at once if that is so already."""
        self._heed = heed
        if self.stop is not None:
            heed()

    def _knock(self) -> None:
        if self._loop is not None:
            # Without that loop nothing of it goes on.
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
        """Have it carried out by a process that is ready, and return what it comes to."""
        if kills is not None:
            # What was killed before was not this run's process.
            kills.look(self._terms.clock.uptime())
        # From before it is told: one that reads nothing any more keeps whoever has much to say to it.
        slot.after(BEGINNING, functools.partial(slot.kill, "it did not begin"))
        # Before the process hears of it: its handler may be the end of this one before we hear that it has begun.
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
        """Have a process killed whose loop does not turn for too long; keep no lease for one that somebody stopped."""
        max_block, clock = self._terms.max_block, self._terms.clock
        rest = max(SHORTEST, min(LOOK, max_block / 4, self.held.beat / 2))
        still = False
        while True:
            asked_at = clock.uptime()
            await asyncio.sleep(rest)
            now = clock.uptime()
            if kills is not None:
                # Whom the kernel has killed long before this process ended was another.
                kills.look(now)
            if slot.stopped != still:
                still = not still
                self._terms.keeping.stand_still(self.held, still)
            if still:
                # Whoever has stopped it is to blame for that.
                slot.turned_at = now
            # Who is late himself has not heard yet what was said meanwhile.
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
                    # It may be heard late; but what a handler might write there is not taken for any time.
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
                    # Of a run that is over.
                    continue

    def _haste(self) -> float:
        """Return by what part it is killed sooner after its timeout: its lease lasts for a quarter of it then."""
        return min(1.0, self.held.lease.job.stall.lease / SECOND / 4 / KILLED)

    def _tell(self, slot: PoolProcess) -> None:
        if self.held.hooking and self.stop == "cancelled":
            # Its handler had cancelled it already.
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
            # One that was cancelled was too slow to stop.
            return stopped(self) if self.stop == "cancelled" else timed_out(self.held)
        if not heard.began:
            # It died between two runs; this one has lost nothing but a moment.
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
