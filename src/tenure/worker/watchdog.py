"""Finds out from another thread that a worker's event loop is blocked, and reports the handler and its line once.

    loop      ──a timer every half second──► records each turn, also in the scoreboard
    keeper's  ──checks as often──► late by more than a second: one warning for each blockage
    thread                         late by more than max_block: given up, its leases are not renewed any more

If the interpreter itself is held (a C call that keeps the GIL), this thread is as late as the loop. Then the supervisor
warns from its own process. Without a supervisor, this thread warns as soon as it runs again.
"""

import asyncio
import contextvars
import sys
import threading
from collections.abc import Callable
from logging import Logger

from tenure.clock import Clock
from tenure.core.events import Event, WorkerHung
from tenure.handlers.context import JobContext, job_of
from tenure.worker.active_runs import ActiveRun, ActiveRuns
from tenure.worker.loop_lag import TICK, LoopMonitor
from tenure.worker.scoreboard import Scoreboard
from tenure.worker.stacks.positions import HandlerPosition, current_frames, frames, in_thread, on_loop

WARN = 1.0
"""Seconds that a loop may be late before a warning is logged."""

SUSPENDED_AFTER = 2.0
"""If a check is later than this, in seconds, this thread itself was suspended, perhaps with the whole machine."""

SUPERVISOR_TIMEOUT = 5.0
"""If the supervisor's last check is older than this, in seconds, the worker counts as unsupervised."""

REMEDY = "await there, make the handler a plain function, or run it in a process of its own"


class Watchdog:
    """The watchdog of one loop: it ticks on the loop and checks from another thread."""

    def __init__(
        self,
        monitor: LoopMonitor,
        active_runs: ActiveRuns,
        *,
        owner: str,
        scoreboard: Scoreboard | None,
        supervised: bool,
        max_block: float,
        clock: Clock,
        logger: Logger,
        announce: Callable[[Event], None],
        claimed_at: Callable[[], float],
    ) -> None:
        self._monitor = monitor
        self._active_runs = active_runs
        self._owner = owner
        self._scoreboard = scoreboard
        self._supervised = supervised
        self._max_block = max_block
        self._clock = clock
        self._logger = logger
        self._announce = announce
        self._claimed_at = claimed_at
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._checked_at = 0.0
        self._excused_at = 0.0
        """Until this uptime a late loop is excused, because this thread did not run either."""
        self._warned = self._hung = 0.0
        """The last turns before the blockages that were reported."""

    def start(self) -> None:
        """Tick on the running loop from now on."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._due = self._clock.uptime()
        self._tick()

    def stop(self) -> None:
        """Stop ticking. From now on no turn of this loop is expected."""
        if self._timer is not None:
            self._timer.cancel()
        self._monitor.ended()

    async def watch(self) -> None:
        """Check repeatedly, until cancelled. Runs in another thread."""
        while True:
            self.check(self._clock.uptime())
            await asyncio.sleep(TICK)

    def check(self, now: float) -> None:
        """Check once whether the loop turns."""
        late = self._checked_at > 0 and now - self._checked_at > TICK + WARN / 2
        if self._was_suspended(now):
            self._excused_at = now
        self._checked_at = now
        if self._scoreboard is not None:
            self._scoreboard.beaten(now, self._monitor.memory)
        last, blocked = self._monitor.turned_at, self._monitor.blocked(now)
        if blocked > 0 and (blocking := self._blocking()) is not None and blocking.key != self._monitor.blocker:
            self._monitor.set_blocker(blocking.key, blocking.row)
        if blocked > WARN and self._warned != last:
            self._warned = last
            self._warn(last, blocked, late=late)
        if self._hangs(now) and self._hung != last:
            self._hung = last
            self._give_up(blocked)

    def given_up(self) -> bool:
        """Return True if the loop was blocked for so long that its worker's leases must not be renewed."""
        now = self._clock.uptime()
        return self._hangs(now) and not self._was_suspended(now)

    def _was_suspended(self, now: float) -> bool:
        return self._checked_at > 0 and now - self._checked_at > TICK + SUSPENDED_AFTER

    def _hangs(self, now: float) -> bool:
        return min(self._monitor.blocked(now), now - self._excused_at) > self._max_block

    def _tick(self) -> None:
        now = self._clock.uptime()
        self._monitor.turned(now, max(0.0, now - self._due))
        if self._scoreboard is not None:
            self._scoreboard.claimed(self._claimed_at())
        self._due = now + TICK
        # Use an empty context, not the context of a run or of the code that starts the worker.
        if self._loop is not None:
            self._timer = self._loop.call_later(TICK, self._tick, context=contextvars.Context())

    def _warn(self, last: float, blocked: float, *, late: bool) -> None:
        if late and self._supervised and self._has_supervisor():
            # The process was suspended, or the interpreter was held. The supervisor knows which, and has warned.
            return
        if self._scoreboard is not None and not self._scoreboard.worker_must_warn(last):
            return
        at = self._on_loop()
        if late and at is None:
            found = [str(position) for position in self._in_threads()]
            self._logger.warning(
                "no code of this process ran for %.1f s: it was stopped, or a call held the interpreter%s",
                blocked,
                f"; handlers in threads are at {', '.join(found)}" if found else "",
            )
            return
        self._logger.warning(
            "%s has blocked the event loop of this worker for %.1f s%s: %s; %s",
            "something" if (run := self._blocking()) is None else f"job {run.lease.job.id} ({run.lease.job.task})",
            blocked,
            ", and held the interpreter" if late else "",
            at or "its line is unknown",
            REMEDY,
        )

    def _give_up(self, blocked: float) -> None:
        self._logger.error("the event loop has been blocked for %.0f s; leases are no longer renewed", blocked)
        if not self._has_supervisor():
            self._announce(WorkerHung(owner=self._owner, blocked_for=blocked, stack=str(self._on_loop() or "")))

    def _has_supervisor(self) -> bool:
        return self._scoreboard is not None and self._clock.uptime() - self._scoreboard.checked_at < SUPERVISOR_TIMEOUT

    def _blocking(self) -> ActiveRun | None:
        """Return the run whose handler the loop is executing."""
        if self._loop is None or (task := asyncio.current_task(self._loop)) is None:
            return None
        job: JobContext | None = None
        if sys.version_info >= (3, 12):
            # It may be a task that the handler has started.
            job = job_of(task.get_context())
        for run in self._active_runs.all():
            if run.task is task or (job is not None and job is run.context):
                return run
        return None

    def _on_loop(self) -> HandlerPosition | None:
        return on_loop(frames(current_frames().get(self._thread)))

    def _in_threads(self) -> list[HandlerPosition]:
        found = [in_thread(frames(frame)) for frame in current_frames().values()]
        return [at for at in found if at is not None]
