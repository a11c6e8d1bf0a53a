"""The shutdown of a worker: its steps, each with a time limit.

    claim no more ──► let runs end and record their outcomes (drain) ──► cancel the runs that are left (2 s)
        ──► hand back the runs that do not end ──► record the outcomes ──► let event handlers finish
        ──► stop the keeper last, because it renews until nothing is held; delete the worker's record
        └─► leave the lifespan at the same time

All storage calls after the cancellation share one time budget: 1.5 s, plus the part of the 2 s that is left. So a
storage that does not answer delays the end by no more than that. The reaper recovers the jobs whose outcomes could not
be recorded, and one log line names them. The lifespan has the same time, plus the rest of the drain.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from tenure.clock import SECOND
from tenure.core.events import WorkerStopped, WorkerStopping
from tenure.core.job import Owner
from tenure.waiting import first
from tenure.worker.assembly import WorkerParts

CANCEL_GRACE = 2.0
"""Seconds that cancelled handlers get to end. A run that does not end is due again after this time at the earliest."""

FORCED_GRACE = 0.1

LAST_CALLS = 1.5
"""Seconds after `CANCEL_GRACE` for the last storage calls. The process ends at most 5 s after its drain."""

LAST_STEPS = 0.5
"""The part of `LAST_CALLS` that the last steps get: resign, delete the worker's record, leave the lifespan."""


class Shutdown:
    """Ends the parts of one worker in order, within the time that its drain and the last storage calls have."""

    def __init__(self, parts: WorkerParts, *, owner: Owner, logger: logging.Logger) -> None:
        self._parts = parts
        self._owner = owner
        self._logger = logger
        self._forced = asyncio.Event()
        self._last_call_at = 0.0
        """Loop time after which no more storage calls are made."""
        self._drain_ends_at = 0.0
        """Loop time at which the drain is over at the latest."""

    def force(self) -> None:
        """Skip the waiting from now on, also in a shutdown that is in progress. Idempotent."""
        self._forced.set()

    def begin_drain(self, seconds: float) -> None:
        """Set the time that runs and lifespans get, from now on."""
        self._drain_ends_at = asyncio.get_running_loop().time() + seconds

    async def drained(self) -> None:
        """Wait until the drain is over or the shutdown is forced."""
        await first(self._forced.wait(), within=self._drain_ends_at - asyncio.get_running_loop().time())

    async def run(self, main: "asyncio.Task[None] | None", drain: float, reason: str) -> None:
        """Take all steps. `main` is the task that runs the tasks of the worker."""
        exchange = self._parts.exchange
        self.begin_drain(drain)
        exchange.stop_claiming()
        self._parts.keeper.announce(WorkerStopping(owner=self._owner.id, reason=reason))
        try:
            if drain and not self._forced.is_set():
                await self._step(first(exchange.settled(), self._forced.wait(), within=drain))
            self._allow_calls_for(CANCEL_GRACE + LAST_CALLS)
            exchange.stop_all()
            await self._step(self._bounded(exchange.runs_over(), within=CANCEL_GRACE))
            if self._forced.is_set():
                # A forced stop also hands back runs. A shorter time would be less than a slow storage's round trip.
                self._allow_calls_for(LAST_CALLS)
            exchange.release_rest(round(CANCEL_GRACE * SECOND))
            await self._step(first(self._settled(main), within=self._time_left(LAST_STEPS)))
            await self._bounded(self._parts.bus.stop(), within=self._time_left(LAST_STEPS))
        finally:
            await self._leave(main)

    async def leave_lifespan(self) -> None:
        """Leave the lifespan of the app. Cancel it if it takes longer than its time."""
        lifespan = self._parts.lifespan
        # Cleanup that waits for an abandoned thread may use resources that the lifespan is about to close.
        await first(self._parts.runner.tidied(), within=FORCED_GRACE)
        lifespan.end()
        if not self._forced.is_set():
            await first(lifespan.ended(), self._forced.wait(), within=self._lifespan_time())
        if self._forced.is_set():
            await first(lifespan.ended(), within=self._time_left())
        await lifespan.cut_off()

    async def _step(self, step: Coroutine[Any, Any, None]) -> None:
        """Complete a step. A handler that cancels every task of the loop ends this step, but not the steps after it."""
        try:
            await step
        except asyncio.CancelledError:
            if not self._parts.guard.known:
                raise

    async def _bounded(self, awaited: Coroutine[Any, Any, object], *, within: float) -> None:
        """Wait until this is done or the time is over. Once the stop is forced, wait only a moment longer."""
        if not self._forced.is_set():
            await first(awaited, self._forced.wait(), within=within)
            return
        await first(awaited, within=min(within, FORCED_GRACE))

    def _allow_calls_for(self, seconds: float) -> None:
        self._last_call_at = asyncio.get_running_loop().time() + seconds

    def _time_left(self, kept: float = 0.0) -> float:
        """Return the seconds that are left for storage calls, minus `kept`. At least `FORCED_GRACE`."""
        return max(FORCED_GRACE, self._last_call_at - kept - asyncio.get_running_loop().time())

    def _lifespan_time(self) -> float:
        """Return the seconds that lifespans get to end."""
        left = self._time_left()
        return left if self._forced.is_set() else max(left, self._drain_ends_at - asyncio.get_running_loop().time())

    async def _settled(self, main: "asyncio.Task[None] | None") -> None:
        if self._parts.guard.cancelled or (main is not None and main.done()):
            # The exchange loop, which would send them, is gone.
            await self._parts.exchange.flush()
        await self._parts.exchange.settled()

    async def _leave(self, main: "asyncio.Task[None] | None") -> None:
        parts = self._parts
        leaving = asyncio.create_task(self.leave_lifespan())
        closing = asyncio.create_task(self._close_isolated_runs())
        # The background tasks may also hang in a storage call. They are cancelled; their thread blocks no exit.
        await first(parts.keeper_loop.stop(), within=self._time_left())
        parts.watchdog.stop()
        parts.keeper.announce(WorkerStopped(owner=self._owner.id, released=parts.exchange.released))
        try:
            async with asyncio.timeout(self._time_left()):
                await parts.keeper.last_beat()
        except Exception as error:
            # The worker must end, no matter which error this is.
            self._log_unrecorded(error)
        else:
            self._log_unrecorded(None)
        parts.guard.release()
        if main is not None:
            main.cancel()
            # A handler that swallows its cancellation must not hold up the end of its worker.
            await asyncio.wait({main}, timeout=FORCED_GRACE)
        await leaving
        await closing
        parts.threads.close()

    async def _close_isolated_runs(self) -> None:
        # The lifespans of these processes have the same time as the one of this worker.
        await first(self._parts.isolated_runs.end_idle(), self._forced.wait(), within=self._lifespan_time())
        await self._parts.isolated_runs.close()

    def _log_unrecorded(self, error: Exception | None) -> None:
        """Log which outcomes and events the storage did not record. The reaper recovers these jobs."""
        unsettled = self._parts.exchange.unsettled
        if not unsettled and error is None:
            return
        self._logger.error(
            "worker %s stopped with %d unrecorded outcomes, %d unrecorded events%s; reapers will recover "
            "the jobs when their leases have expired%s",
            self._owner.name,
            len(unsettled),
            self._parts.keeper.unrecorded,
            "" if error is None else f", and its record not deleted ({error!r})",
            "".join([": ", ", ".join(unsettled[:20])] if unsettled else []),
        )
