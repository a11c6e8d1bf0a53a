"""One run in an isolated process, from sending the job to its outcome, or to the report of its crash."""

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec
from msgspec import structs

from tenure.clock import SECOND, Clock
from tenure.core.document import DATA_LIMIT, PROGRESS_LIMIT, decode_document, read_progress
from tenure.core.job import LogLine, Owner, RunRecord, StallReason
from tenure.core.outcome import Interrupted, Outcome, Stalled
from tenure.core.postmortem import LINES, Ending, Workplace, post_mortem, stall_cause
from tenure.handlers.context import Line, SentProgress
from tenure.processes.exit_status import OomKills, describe
from tenure.processes.process import ProcessExit
from tenure.worker.active_runs import ActiveRun, RunKey, StopReason, overrides
from tenure.worker.isolation.messages import (
    REPORT_INTERVAL,
    AppFailed,
    AppReady,
    ForwardedLog,
    LoopTurned,
    RunBegan,
    RunEnded,
    RunJob,
    RunSettled,
    RunSigns,
    StopRun,
)
from tenure.worker.isolation.process_pool import KILL_AFTER, PoolProcess, log
from tenure.worker.loop_lag import TICK
from tenure.worker.run import stopped, timed_out


class LastSigns:
    """The last signs that were received of a run."""

    def __init__(self) -> None:
        self.began = False
        self.checked_at = 0.0
        """The uptime of the last check of the handler's stack."""
        self.progress: SentProgress | None = None
        self.lines: deque[Line] = deque(maxlen=LINES)


def crash_outcome(
    run: ActiveRun, last_signs: LastSigns, ending: Ending, *, worker: Owner, clock: Clock, max_block: int | None = None
) -> Stalled:
    """Return the outcome of a run whose process ended like this, with its post-mortem.

    `max_block`: in microseconds, if the process was killed because its event loop was blocked for longer than this.
    """
    reason: StallReason = "process_died" if max_block is None else "loop_blocked"
    now, wall, job = clock.uptime(), clock.now(), run.lease.job
    silent = max(0, round((now - max(run.claimed_at, run.signed_at, run.signs.last)) * SECOND))
    record = RunRecord(
        number=job.starts,
        fence=job.fence,
        owner=worker.id,
        worker=worker.name,
        host=worker.host,
        pid=worker.pid,
        start=wall - round((now - run.claimed_at) * SECOND),
        trace=run.isolated_position,
    )
    # The last check may have been of another run.
    report_age = (
        max(0, round((now - last_signs.checked_at) * SECOND)) if last_signs.checked_at > run.claimed_at else None
    )
    progress, note = job.progress, job.progress_note
    if last_signs.progress is not None:
        progress, note = read_progress(last_signs.progress[0]), last_signs.progress[1]
    text = post_mortem(
        structs.replace(job, heard_at=wall, progress=progress, progress_note=note),
        stall_cause(job, reason, silent_for=silent, ending=ending, max_block=max_block),
        silent_for=silent,
        died=True,
        run=record,
        log=[
            LogLine(at=wall - round((now - at) * SECOND), run=job.starts, level=level, message=message, fields=fields)
            for at, level, message, fields, _ in last_signs.lines
        ],
        workplace=Workplace(report_age=report_age),
        ending=ending,
        alone=True,
    )
    return Stalled(reason, silent, worker.id, text)


BEGIN_TIMEOUT = 30.0
"""Seconds in which a ready process must begin a run. After this time it counts as hung and is killed."""

HOOK_TIMEOUT = 35.0
"""Minimum seconds for an on_cancel hook. The process itself enforces the hook's own limits."""

BLOCKED = "its event loop was blocked for longer than max_block"


LONGEST_INTERVAL, SHORTEST_INTERVAL = 0.5, 0.02
"""Maximum and minimum seconds between two checks of a process."""


class LeaseHolder(Protocol):
    """The part of the lease holder that isolated runs notify. Called from the isolation thread."""

    def set_process(self, run: ActiveRun, pid: int, /) -> None:
        """Note that the run is about to be sent to that process."""
        ...

    def begin(self, run: ActiveRun, at: float, /) -> None:
        """Note that the run begins."""
        ...

    def set_suspended(self, run: ActiveRun, suspended: bool, /) -> None:
        """Note that the run's process was suspended, or continues."""
        ...

    def report(self, key: RunKey, /) -> None:
        """Note that the run's handler has reported something that should be sent soon."""
        ...

    def drop(self, key: RunKey, /) -> object:
        """Note that the run is settled, so its lease is not renewed any more."""
        ...

    def finish(self, run: ActiveRun, /) -> None:
        """Note that only the outcome of the run is left."""
        ...


@dataclass(frozen=True)
class IsolationSettings:
    """The settings that all isolated runs of a worker share. `max_block`: in seconds."""

    worker: Owner
    clock: Clock
    max_block: float
    lease_holder: LeaseHolder


def _is_valid(signs: RunSigns) -> bool:
    """Return True if progress and data of a message can be stored. A handler can forge the message."""
    value = signs.progress[0] if signs.progress is not None else 0.0
    try:
        if isinstance(value, str):
            decode_document(value)
        if signs.data is not None:
            decode_document(signs.data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return (not isinstance(value, str) or len(value) <= PROGRESS_LIMIT) and len(signs.data or b"") <= DATA_LIMIT


class IsolatedRun:
    """A run in an isolated process. One event loop drives it; `request_stop` and `drop` are safe from any thread."""

    def __init__(self, run: ActiveRun, settings: IsolationSettings) -> None:
        self.run = run
        self.stop: StopReason | None = None
        self.stop_detail: str | None = None
        self._settings = settings
        self._requests: deque[tuple[StopReason, str | None]] = deque()
        self._dropped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[object] | None = None
        self._on_stop: Callable[[], None] = lambda: None

    def request_stop(self, reason: StopReason, detail: str | None) -> None:
        """Stop the run. Idempotent, except for a reason that outranks the earlier one (`overrides`)."""
        self._requests.append((reason, detail))
        self._wake()

    def drop(self) -> None:
        """Abandon the run, because its result is not needed any more."""
        self._dropped = True
        self._wake()

    def begin(self) -> None:
        """Handle stop requests from now on, on the running loop and in the task that drives the run."""
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        # Handle the stop requests that came before.
        self._apply_requests()

    def call_on_stop(self, on_stop: Callable[[], None]) -> None:
        """Set the function that is called when the run is stopped. Called at once if it is stopped already."""
        self._on_stop = on_stop
        if self.stop is not None:
            on_stop()

    def _wake(self) -> None:
        if self._loop is not None:
            # If the loop is closed, the run is over.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._apply_requests)

    def _apply_requests(self) -> None:
        while self._requests:
            reason, detail = self._requests.popleft()
            if overrides(reason, self.stop):
                self.stop, self.stop_detail = reason, detail
                self._on_stop()
        if self._dropped and self._task is not None:
            self._task.cancel()

    async def run_in(self, process: PoolProcess, kills: OomKills | None) -> Outcome:
        """Run the job in a ready process, and return the outcome."""
        if kills is not None:
            # Count earlier kills now: they did not hit this run's process.
            kills.look(self._settings.clock.uptime())
        # Set the limit before sending: a process that does not read any more blocks the sender of a long message.
        process.call_after(BEGIN_TIMEOUT, functools.partial(process.kill, "it did not begin its run in time"))
        # Before the process gets the job: its handler may kill this process before the message that it began arrives.
        self._settings.lease_holder.set_process(self.run, process.child.pid)
        await process.send(RunJob(self.run.lease.job))
        self.call_on_stop(functools.partial(self._send_stop, process))
        process.turned_at = self._settings.clock.uptime()
        watching = asyncio.create_task(self._watch(process, kills))
        try:
            return await self._read_messages(process, kills)
        finally:
            watching.cancel()
            self._on_stop = lambda: None

    async def _watch(self, process: PoolProcess, kills: OomKills | None) -> None:
        """Kill the process if its loop is blocked for too long. Renew no lease while the process is suspended."""
        max_block, clock = self._settings.max_block, self._settings.clock
        rest = max(SHORTEST_INTERVAL, min(LONGEST_INTERVAL, max_block / 4, self.run.beat / 2))
        suspended = False
        while True:
            asked_at = clock.uptime()
            await asyncio.sleep(rest)
            now = clock.uptime()
            if kills is not None:
                # Count kills at each check: the kernel may have killed another process long before this one ends.
                kills.look(now)
            if process.stopped != suspended:
                suspended = not suspended
                self._settings.lease_holder.set_suspended(self.run, suspended)
            if suspended:
                # The process was suspended from outside, so its loop is not to blame.
                process.turned_at = now
            # If this check itself is late, messages from the process may still be unread.
            elif now - asked_at < 2 * rest and now - process.turned_at > max_block + REPORT_INTERVAL + TICK:
                process.kill(BLOCKED)

    async def _read_messages(self, process: PoolProcess, kills: OomKills | None) -> Outcome:
        run, last_signs, sent_at = self.run, LastSigns(), self._settings.clock.uptime()
        job = run.lease.job
        while True:
            match await process.receive():
                case RunBegan(job.fence, at):
                    last_signs.began = True
                    run.pid = process.child.pid
                    # The message may arrive late. A handler can forge it, so limit its time to the possible range.
                    now = self._settings.clock.uptime()
                    began = min(max(at, sent_at), now)
                    self._settings.lease_holder.begin(run, began)
                    if self.stop is None:
                        process.cancel_timers()
                    if job.timeout is not None:
                        process.end_within(began + job.timeout / SECOND - now, "timeout", factor=self._hurry_factor())
                case LoopTurned(at, checked_at):
                    process.turned_at, last_signs.checked_at = at, checked_at
                case RunSigns(fence=job.fence) as signs:
                    self._take_signs(process, signs, last_signs)
                case RunSettled(job.fence):
                    run.settled = run.settling = True
                    self._settings.lease_holder.drop(run.key)
                case ForwardedLog() as record:
                    log(record)
                case RunEnded(job.fence, outcome, spoiled):
                    process.cancel_timers()
                    if spoiled:
                        process.kill("a thread or task of its last run is still at work")
                        await process.wait()
                    return outcome
                case None:
                    return self._outcome_of_exit(process, last_signs, await process.wait(), kills)
                case AppReady() | AppFailed() | RunBegan() | RunSigns() | RunSettled() | RunEnded():
                    # A message of an earlier run.
                    continue

    def _hurry_factor(self) -> float:
        """Return the factor that shortens the time to the kill.

        After the timeout, the lease lasts for only a quarter of its length.
        """
        return min(1.0, self.run.lease.job.stall.lease / SECOND / 4 / KILL_AFTER)

    def _send_stop(self, process: PoolProcess) -> None:
        if self.run.in_hook and self.stop == "cancelled":
            # The handler cancelled the job itself, and its hook must go on.
            return
        process.send_at_once(StopRun(self.run.lease.fence, self.stop or "shutdown", self.stop_detail))
        process.end_within(0.0, "stop")

    def _take_signs(self, process: PoolProcess, signs: RunSigns, last_signs: LastSigns) -> None:
        run = self.run
        progress = signs.progress if _is_valid(signs) else None
        last_signs.progress = progress or last_signs.progress
        last_signs.lines.extend(signs.log)
        for at, level, message, fields, _ in signs.log:
            run.signs.log(at, level, message, fields)
        if signs.at is not None:
            run.signs.sign(signs.at, progress, signs.data if _is_valid(signs) else None)
        if progress is not None or signs.data is not None or signs.log:
            self._settings.lease_holder.report(run.key)
        run.isolated_position = signs.trace or run.isolated_position
        if signs.in_hook and not run.in_hook:
            run.in_hook = True
            process.cancel_timers()
            process.end_within(max(HOOK_TIMEOUT, (run.lease.job.timeout or 0) / SECOND), "stop")

    def _outcome_of_exit(
        self, process: PoolProcess, last_signs: LastSigns, exit_info: ProcessExit, kills: OomKills | None
    ) -> Outcome:
        oom_killed = kills is not None and kills.explains(exit_info, self._settings.clock.uptime())
        if process.kill_reason == "stop" and self.stop is not None:
            return stopped(self)
        if process.kill_reason == "timeout":
            # The run was cancelled earlier, and stopped too slowly.
            return stopped(self) if self.stop == "cancelled" else timed_out(self.run)
        if not last_signs.began:
            # The process died between two runs, so this run has not begun.
            return Interrupted("prefetch")
        kill_reason = "" if process.kill_reason is None else f"killed: {process.kill_reason}"
        how = describe(exit_info, oom_killed=oom_killed, kill_reason=kill_reason)
        return crash_outcome(
            self.run,
            last_signs,
            Ending(how, exit_info.peak_memory),
            worker=self._settings.worker,
            clock=self._settings.clock,
            max_block=round(self._settings.max_block * SECOND) if process.kill_reason == BLOCKED else None,
        )
