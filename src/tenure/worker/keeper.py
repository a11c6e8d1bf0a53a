"""Renews the leases of this process from its own thread, and stops runs that are cancelled, lost or unreachable.

It runs on its own event loop in a thread, so a handler that blocks the worker's loop keeps its leases. A handler that
holds the interpreter itself (a C call that keeps the GIL) for a whole lease loses them.

    cancel ──► the record says so ──hint──► a beat at once ─┐
                       │                                    ├──► the answer names the run ──► its handler is stopped
                       └─── the hint is lost ──► next beat ─┘
"""

import asyncio
import contextvars
import math
from collections import deque
from collections.abc import Callable

from msgspec import structs

from tenure.clock import SECOND
from tenure.core.events import Event, WorkerHung, WorkerStarted, WorkerStopped, WorkerStopping
from tenure.core.exponential_delay import ExponentialDelay
from tenure.core.figures import FiguresDelta
from tenure.core.lane import Lane
from tenure.core.lease import answer_limit
from tenure.core.partition import PartitionState
from tenure.core.postmortem import stall_cause
from tenure.errors import SchemaMismatchError, StorageError, StorageUnavailableError
from tenure.options import Timing
from tenure.storage.notification_retry import Hints
from tenure.storage.protocol import (
    RENEW_LIMIT,
    RenewRequest,
    RenewResult,
    WorkerInfo,
    owner_topic,
)
from tenure.worker.active_runs import ActiveRun, PendingRenewal, StopReason, overrides
from tenure.worker.deps import WorkerDeps
from tenure.worker.loop_lag import LoopMonitor
from tenure.worker.partitions import PartitionWatch
from tenure.worker.stacks.traces import Traces

SHORTEST = 0.005
"""Minimum seconds between two beats, even if a task has a very short lease."""

FIRST_RETRY, LAST_RETRY = 0.1, 1.0
"""Seconds before a failed beat is tried again: often enough that a short outage costs no lease."""

REPORT_INTERVAL = 0.5
"""Minimum seconds between two messages about what handlers have reported. The beats come first."""

FALSE_ALARM = 0.05
"""Seconds for which hints are ignored after a hint without news. Doubled each time, up to the usual beat."""


class Keeper:
    """Beats for one owner. A beat renews all of its leases; beats are a quarter of the shortest lease apart."""

    def __init__(
        self,
        deps: WorkerDeps,
        monitor: LoopMonitor,
        *,
        timing: Timing,
        info: Callable[[], WorkerInfo],
        stop: Callable[[ActiveRun, StopReason, str | None], None],
        on_orders: Callable[[tuple[str, ...]], None],
        is_needed: Callable[[], bool],
        given_up: Callable[[], bool],
        lanes: Callable[[], tuple[Lane, ...]],
        partitions: PartitionWatch,
        listed: bool = True,
    ) -> None:
        self._storage, self._owner, self._active_runs = deps.storage, deps.owner, deps.active_runs
        self._clock, self._rng, self._logger, self._metrics = deps.clock, deps.rng, deps.logger, deps.metrics
        self._monitor = monitor
        self._beat = timing.beat.total_seconds()
        self._info = info
        self._stop = stop
        self._on_orders = on_orders
        self._orders: tuple[str, ...] = ()
        self._is_needed = is_needed
        self._partitions = partitions
        self._listed = listed
        self._traces = Traces()
        self._given_up = given_up
        self._lanes = lanes
        self._announcements: deque[Event | FiguresDelta] = deque()
        self._recorded = 0
        """The number of events, and deltas of figures, that the storage has recorded."""
        self._figures_taken_at = -math.inf
        """The uptime of the last beat that was given figures. Each costs a storage a row of each task and queue."""
        self._last_beat = -math.inf
        self._partitions_read_at = -math.inf
        """The uptime of the last answered beat that asked for the state of the partitions."""
        self._reported_at = -math.inf
        """The uptime of the last message that carried reports of handlers."""
        self._retry_at = -math.inf
        self._failures = 0
        self._hinted = False
        self._hint: Callable[[], None] = lambda: None
        """Notifies the keeper's loop of a hint. Safe from any thread."""
        self._ignore_hints_until = -math.inf
        """The uptime until which hints are ignored."""
        self._false_alarms = 0

    def announce(self, event: Event) -> None:
        """Record an event of this process with the next beat, but not those of a worker of internal queues alone."""
        if self._listed or not isinstance(event, WorkerStarted | WorkerStopping | WorkerStopped | WorkerHung):
            self._announcements.append(event)

    @property
    def unrecorded(self) -> int:
        """The number of events that wait for a beat."""
        return sum(not isinstance(event, FiguresDelta) for event in list(self._announcements))

    async def run(self) -> None:
        """Beat until cancelled, or until the worker that this keeper beats for has ended."""
        loop = asyncio.get_running_loop()
        # Run the callback in the keeper's own context, not in the context of the run that notifies it.
        woken, here = asyncio.Event(), contextvars.copy_context()

        def hinted() -> None:
            self._hinted = True
            self._active_runs.hinted_at = self._clock.uptime()
            woken.set()

        self._active_runs.when_urgent(lambda: _call_soon(loop, woken.set, here))
        self._hint = lambda: _call_soon(loop, hinted, here)
        # A worker whose loop ended without a stop holds jobs that no task runs. They must pass to other workers.
        while self._is_needed():
            self._active_runs.next_beat = math.inf
            wait = await self.turn()
            self._active_runs.next_beat = self._clock.uptime() + wait
            try:
                async with asyncio.timeout(wait):
                    await woken.wait()
                    woken.clear()
            except TimeoutError:
                continue

    async def turn(self) -> float:
        """Beat if it is time, stop the runs that must not go on, and return the seconds until the next turn."""
        now = self._clock.uptime()
        self._active_runs.read_external_renewals()
        # A loop that was blocked for too long is given up, and its leases are not renewed.
        runs = [] if self._given_up() else self._active_runs.all()
        if now >= self._due(runs) - SHORTEST:
            await self._renew(runs, asked_at=now)
        elif now >= self._reports_due - SHORTEST:
            # An outage is handled by the beats. Then a beat carries the reports.
            await self._renew(runs, asked_at=now, reports=self._active_runs.take_reports(RENEW_LIMIT))
        self._active_runs.read_external_renewals()
        self._stop_expired(self._clock.uptime())
        return self._next(self._clock.uptime())

    async def listen(self) -> None:
        """Listen for hints that an order or a cancellation waits, until cancelled.

        Runs on the worker's own loop, which stops runs and already listens: a process has one listener. If a hint is
        lost, the next beat asks anyway.
        """
        hints = Hints(self._storage, [owner_topic(self._owner.id)], rng=self._rng, logger=self._logger)
        try:
            while True:
                await hints.next()
                self._hint()
        finally:
            hints.close()

    async def last_beat(self) -> None:
        """Send the last beat: it deletes the worker's record and records its last events.

        Figures come with a beat of their own before it: without the worker's record, a storage cannot tell that it has
        received them before.
        """
        events = self._announced(figures=True)
        while any(isinstance(event, FiguresDelta) for event in events):
            try:
                await self._record(events, worker=self._info())
            except StorageUnavailableError:
                raise
            except StorageError as error:
                # The figures are dropped then. The worker's record and its last events must not depend on them.
                self._logger.warning("the figures of the last runs are lost: %r", error)
            events = self._announced(figures=True)
        await self._record(events, last=True)

    async def _record(
        self, events: tuple[Event | FiguresDelta, ...], *, worker: WorkerInfo | None = None, last: bool = False
    ) -> None:
        """Send a beat without renewals."""
        beat = RenewRequest(self._owner, (), worker, events, last, first_event=self._recorded + 1, lanes=self._lanes())
        try:
            await self._storage.renew(beat)
        except BaseException as error:
            self._put_back(events, error)
            raise
        self._recorded += len(events)

    def _put_back(self, events: tuple[Event | FiguresDelta, ...], error: BaseException) -> None:
        """Keep the events of a failed beat for the next one, under the same numbers: it may have been received."""
        if isinstance(error, StorageError) and not isinstance(error, StorageUnavailableError):
            # It may be the figures that the storage refuses, and leases and events matter more.
            events = tuple(event for event in events if not isinstance(event, FiguresDelta))
        self._announcements.extendleft(reversed(events))

    async def _renew(self, runs: list[ActiveRun], *, asked_at: float, reports: list[ActiveRun] | None = None) -> None:
        """Beat, or only send the reports of some runs."""
        every, hinted = self._interval(runs), False
        self._reported_at = asked_at
        if reports is None:
            hinted, self._hinted = self._has_unanswered_hint(runs), False
            due = [run for run in runs if self._needs_renewal(run, asked_at, every)]
            # Short leases make beats more frequent, but figures need not be newer than those of other workers.
            events = self._announced(figures=asked_at - self._figures_taken_at >= self._beat - SHORTEST)
        elif reports:
            due, events = reports, tuple[Event | FiguresDelta, ...]()
        else:
            return
        sent: list[PendingRenewal] = []
        news = incomplete = 0
        # If too many reports wait, the beat does not carry them: they cost a storage far more than a lease.
        only_signs = reports is None and self._active_runs.reports_waiting > RENEW_LIMIT
        # Short leases make beats more frequent, but not these looks, which ask every partition of the worker's queues.
        looks = reports is None and asked_at - self._partitions_read_at >= self._beat - SHORTEST
        # A storage that hangs must not delay the keeper's other duty, to stop runs before their leases end.
        limit = max(SHORTEST, min([self._beat, *self._times_to_stop(runs, asked_at)]))
        within = round(answer_limit(every, limit) * SECOND)
        try:
            async with asyncio.timeout(limit):
                for start in range(0, max(len(due), 1), RENEW_LIMIT):
                    some = due[start : start + RENEW_LIMIT]
                    traces = self._traces.new_texts(some, asked_at) if reports is None else [None] * len(some)
                    sent = [
                        run.renewal(asked_at, at, self._monitor, only_sign=only_signs)
                        for run, at in zip(some, traces, strict=True)
                    ]
                    renewals = tuple(message.renewal for message in sent)
                    beat = RenewRequest(self._owner, renewals, answer_within=within)
                    if reports is None:
                        beat = structs.replace(
                            beat,
                            worker=self._info(),
                            events=events,
                            first_event=self._recorded + 1,
                            lanes=self._lanes(),
                            seen=self._partitions.seen if looks else None,
                        )
                    read = self._partitions.read
                    pulse = await self._timed(beat)
                    # If `orders` is missing, the part of the storage that keeps the events has not answered.
                    if pulse.orders is not None:
                        self._recorded += len(events)
                        events = ()
                    news += self._apply(sent, pulse, asked_at)
                    incomplete += len(pulse.incomplete)
                    sent = []
                    if looks:
                        self._partitions_read_at, looks = asked_at, False
                        self._compare(pulse.partitions, read, asked_at)
            if incomplete:
                raise StorageUnavailableError("a part of the storage does not answer")
            self._announcements.extendleft(reversed(events))
        except asyncio.CancelledError as error:
            self._put_back(events, error)
            raise
        except Exception as error:
            # On any exception: the leases must be tried again, and a keeper that ends renews none.
            self._put_back(events, error)
            for message in sent:
                message.take_back()
            if isinstance(error, SchemaMismatchError):
                self._partitions.mismatched(error)
            self._active_runs.put_back_reports(reports or ())
            self._metrics.renewed(renewed=0, lost=0, failed=len(sent))
            if not self._failures:
                expected = isinstance(error, StorageError | TimeoutError)
                failed = incomplete or len(due)
                self._logger.warning(
                    "cannot renew %d leases, retrying: %r", failed, error, exc_info=None if expected else error
                )
            self._failures += 1
            patience = ExponentialDelay(FIRST_RETRY, min(LAST_RETRY, every / 4))
            self._retry_at = self._clock.uptime() + patience.rest(self._failures, self._rng)
            self._hinted = self._hinted or hinted
            return
        self._failures = 0
        if reports is not None:
            return
        self._last_beat = asked_at
        self._monitor.reported(asked_at)
        if hinted:
            self._false_alarms = 0 if news else self._false_alarms + 1
            # A storage may send false hints. If beats cause hints, the rate must come down to the usual beat.
            rest = (
                ExponentialDelay(FALSE_ALARM, every).rest(self._false_alarms, self._rng) if self._false_alarms else 0.0
            )
            self._ignore_hints_until = asked_at + rest

    def _compare(self, found: tuple[PartitionState, ...], read: tuple[int, ...], asked_at: float) -> None:
        try:
            self._partitions.compare(found, read, asked_at)
        except Exception as error:
            # The beat was answered: its leases are renewed and its events recorded.
            self._logger.error("cannot compare the state of the storage", exc_info=error)

    async def _timed(self, beat: RenewRequest) -> RenewResult:
        asked_at = self._clock.uptime()
        try:
            return await self._storage.renew(beat)
        finally:
            self._metrics.called("renew", self._clock.uptime() - asked_at)

    def _announced(self, *, figures: bool) -> tuple[Event | FiguresDelta, ...]:
        # The main loop may add events at the same time. A deque is safe for this.
        events = [self._announcements.popleft() for _ in range(len(self._announcements))]
        # A delta that was not answered is sent again under its number, so nothing is added to it meanwhile.
        if figures and not any(isinstance(event, FiguresDelta) for event in events):
            self._figures_taken_at = self._clock.uptime()
            delta = self._metrics.figures.take()
            events += [] if delta is None else [delta]
        return tuple(events)

    def _needs_renewal(self, run: ActiveRun, now: float, every: float) -> bool:
        if run.stop == "lost":
            return False
        # A job that began within this beat has a fresh lease. Most jobs end before they need a renewal.
        return run.signs.pending or now - run.renewed_at >= every / 2 or run.renewed_at <= self._active_runs.hinted_at

    def _apply(self, sent: list[PendingRenewal], pulse: RenewResult, asked_at: float) -> int:
        """Apply the answer. Return the number of runs with news; new orders for the worker count as one."""
        news = 0
        if pulse.orders is not None and pulse.orders != self._orders:
            self._orders = pulse.orders
            self._on_orders(pulse.orders)
            news = 1
        lost, incomplete = set(pulse.lost), set(pulse.incomplete)
        done = len(sent) - len(lost) - len(incomplete)
        self._metrics.renewed(renewed=done, lost=len(lost), failed=len(incomplete))
        for message in sent:
            if message.run.key in incomplete:
                message.take_back()
                continue
            message.answered(asked_at, lost=message.run.key in lost)
            if message.run.key in lost:
                self._stop(message.run, "lost", None)
        self._active_runs.note_renewed([message.run for message in sent])
        for request in pulse.cancelling:
            cancelled = self._active_runs.get((request.ref, request.fence))
            if cancelled is not None:
                news += cancelled.stop is None
                self._stop(cancelled, "cancelled", request.reason)
        return news

    def _stop_expired(self, now: float) -> None:
        """Stop exclusive runs whose handlers are silent, and runs that the storage has not renewed in time.

        These are two conditions with separate facts: the time of the handler's last sign, and the time of the last beat
        that the storage answered.
        """
        for run in self._active_runs.all():
            if run.exclusive and (clock := run.silence(now, self._monitor)) is not None:
                run.silenced = True
                silent_for = max(0, round((now - run.signed) * SECOND))
                self._stop(run, clock, stall_cause(run.lease.job, clock, silent_for=silent_for))
            if _may_not_outlive(run) and now >= run.trusted_until:
                # Its loop may be blocked and handle the stop much later.
                run.fenced = True
                # The storage may answer, but the lease of a run whose process was suspended is not renewed.
                self._stop(run, "lease_expired" if run.suspended else "unreachable", None)

    def _times_to_stop(self, runs: list[ActiveRun], now: float) -> list[float]:
        """Return the seconds after which the runs that must not outlive their leases must stop."""
        return [run.trusted_until - now for run in runs if _may_not_outlive(run)]

    def _interval(self, runs: list[ActiveRun]) -> float:
        return max(SHORTEST, min([self._beat, *(run.beat for run in runs)]))

    def _due(self, runs: list[ActiveRun]) -> float:
        """Return the uptime of the next beat."""
        if self._failures:
            return self._retry_at
        return self._ignore_hints_until if self._has_unanswered_hint(runs) else self._last_beat + self._interval(runs)

    @property
    def _reports_due(self) -> float:
        """The uptime of the next message about what handlers have reported."""
        if not self._active_runs.reports_waiting or self._failures or self._given_up():
            return math.inf
        return self._reported_at + REPORT_INTERVAL

    def _has_unanswered_hint(self, runs: list[ActiveRun]) -> bool:
        """Return True if no beat followed a hint yet, or a run was claimed before the hint and not renewed since."""
        return self._hinted or any(run.renewed_at < self._active_runs.hinted_at and run.stop is None for run in runs)

    def _next(self, now: float) -> float:
        runs = self._active_runs.all()
        silent = [run.next_check - now for run in runs if run.exclusive]
        due = min(self._due(runs), self._reports_due)
        return max(SHORTEST, min([due - now, *self._times_to_stop(runs, now), *silent]))


def _may_not_outlive(run: ActiveRun) -> bool:
    return run.stops_unreachable and not run.fenced and overrides("unreachable", run.stop)


def _call_soon(loop: asyncio.AbstractEventLoop, news: Callable[[], object], context: contextvars.Context) -> None:
    # The loop is closed once its thread has been stopped. Then a hint is not needed any more.
    if not loop.is_closed():
        loop.call_soon_threadsafe(news, context=context)
