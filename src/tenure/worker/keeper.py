"""Renews the leases of this process from beside its loop, and fences it in: it hears who is lost, cancelled, cut off.

It runs on an event loop of its own, in a thread, so a handler that blocks the worker's loop keeps its leases. What it
cannot outlive is a handler that holds the interpreter itself (a C call that keeps the GIL) for a whole lease.

    cancel ──► the record says so ──hint──► a beat at once ─┐
                       │                                    ├──► the answer names the run ──► its handler is stopped
                       └─── the hint is lost ──► next beat ─┘
"""

import asyncio
import contextvars
import logging
import math
from collections import deque
from collections.abc import Callable
from random import Random

from tenure.clock import SECOND, Clock
from tenure.core.events import Event
from tenure.core.exponential_delay import ExponentialDelay
from tenure.core.job import Owner
from tenure.core.lane import Lane
from tenure.core.lease import answer_limit
from tenure.core.postmortem import stall_cause
from tenure.errors import StorageError, StorageUnavailableError
from tenure.options import Timing
from tenure.storage.notification_retry import Hints
from tenure.storage.protocol import (
    RENEW_LIMIT,
    RenewRequest,
    RenewResult,
    Storage,
    WorkerInfo,
    owner_topic,
)
from tenure.worker.active_runs import ActiveRun, ActiveRuns, PendingRenewal, StopReason, outdoes
from tenure.worker.loop_lag import LoopMonitor
from tenure.worker.partitions import PartitionWatch
from tenure.worker.stacks.traces import Traces
from tenure.worker.worker_metrics import WorkerMetrics

SHORTEST = 0.005
"""Seconds that lie at least between two beats, whatever lease a task has chosen."""

FIRST_RETRY, LAST_RETRY = 0.1, 1.0
"""Seconds before a beat that failed is tried again: often enough that a short outage costs no lease."""

FALSE_ALARM = 0.05
"""Seconds until a hint is heeded again after one that came to nothing; doubled each time, up to the usual beat."""


class Keeper:
    """Beats for one owner: one renewal of everything it holds, a quarter of the shortest lease apart."""

    def __init__(
        self,
        storage: Storage,
        owner: Owner,
        holdings: ActiveRuns,
        turns: LoopMonitor,
        *,
        timing: Timing,
        clock: Clock,
        rng: Random,
        logger: logging.Logger,
        info: Callable[[], WorkerInfo],
        stop: Callable[[ActiveRun, StopReason, str | None], None],
        obey: Callable[[tuple[str, ...]], None],
        wanted: Callable[[], bool],
        given_up: Callable[[], bool],
        lanes: Callable[[], tuple[Lane, ...]],
        tally: WorkerMetrics,
        partitions: PartitionWatch,
    ) -> None:
        self._storage = storage
        self._owner = owner
        self._holdings = holdings
        self._turns = turns
        self._beat = timing.beat.total_seconds()
        self._clock = clock
        self._rng = rng
        self._logger = logger
        self._info = info
        self._stop = stop
        self._obey = obey
        self._orders: tuple[str, ...] = ()
        self._wanted = wanted
        self._tally = tally
        self._partitions = partitions
        self._traces = Traces()
        self._given_up = given_up
        self._lanes = lanes
        self._announcements: deque[Event] = deque()
        self._recorded = 0
        """How many events the storage has recorded."""
        self._last_beat = -math.inf
        self._retry_at = -math.inf
        self._failures = 0
        self._hinted = False
        self._hint: Callable[[], None] = lambda: None
        """Tells the loop that beats of a hint; from any thread."""
        self._heeds_at = -math.inf
        """The uptime until which no hint is heeded."""
        self._false_alarms = 0

    def announce(self, event: Event) -> None:
        """Record an event of this process with the next beat."""
        self._announcements.append(event)

    @property
    def unrecorded(self) -> int:
        """How many events wait for a beat that carries them."""
        return len(self._announcements)

    async def run(self) -> None:
        """Beat until cancelled, or until the worker is gone that it beats for."""
        loop = asyncio.get_running_loop()
        # Woken as what it is, not as a part of the run that knocked.
        knocked, here = asyncio.Event(), contextvars.copy_context()

        def hinted() -> None:
            self._hinted = True
            self._holdings.hinted_at = self._clock.uptime()
            knocked.set()

        self._holdings.when_urgent(lambda: _tell(loop, knocked.set, here))
        self._hint = lambda: _tell(loop, hinted, here)
        # A worker whose loop has ended without a stop holds jobs that nobody runs: they must pass to others.
        while self._wanted():
            self._holdings.next_look = math.inf
            wait = await self.turn()
            self._holdings.next_look = self._clock.uptime() + wait
            try:
                async with asyncio.timeout(wait):
                    await knocked.wait()
                    knocked.clear()
            except TimeoutError:
                continue

    async def turn(self) -> float:
        """Beat if it is time, stop what may no longer run, and return the seconds until the next turn."""
        now = self._clock.uptime()
        self._holdings.trust_watcher()
        # A loop that has been blocked for too long is none that anybody waits for any more.
        held = [] if self._given_up() else self._holdings.all()
        if now >= self._due(held) - SHORTEST:
            await self._renew(held, asked_at=now)
        self._holdings.trust_watcher()
        self._fence_in(self._clock.uptime())
        return self._next(self._clock.uptime())

    async def listen(self) -> None:
        """Hear that somebody wants to be asked for, until cancelled. Nothing rests on it: the next beat asks anyway.

        On the worker's own loop, which is the one that stops runs, and which listens already: a process listens once.
        """
        hints = Hints(self._storage, [owner_topic(self._owner.id)], rng=self._rng, logger=self._logger)
        try:
            while True:
                await hints.next()
                self._hint()
        finally:
            hints.close()

    async def last_beat(self) -> None:
        """Take leave: the worker's record goes, its last events are recorded."""
        events = self._announced()
        try:
            beat = RenewRequest(
                self._owner, events=events, last=True, first_event=self._recorded + 1, lanes=self._lanes()
            )
            await self._storage.renew(beat)
        except BaseException:
            self._announcements.extendleft(reversed(events))
            raise

    async def _renew(self, held: list[ActiveRun], *, asked_at: float) -> None:
        every = self._every(held)
        hinted, self._hinted = self._doubted(held), False
        due = [one for one in held if self._asks(one, asked_at, every)]
        sent: list[PendingRenewal] = []
        events = self._announced()
        news = unanswered = 0
        # A storage that hangs must not keep this from its other duty, to fence its process in, and in time.
        limit = max(SHORTEST, min([self._beat, *self._ends(held, asked_at)]))
        within = round(answer_limit(every, limit) * SECOND)
        try:
            async with asyncio.timeout(limit):
                for start in range(0, max(len(due), 1), RENEW_LIMIT):
                    some = due[start : start + RENEW_LIMIT]
                    traces = self._traces.news(some, asked_at)
                    sent = [one.message(asked_at, at, self._turns) for one, at in zip(some, traces, strict=True)]
                    renewals = tuple(message.renewal for message in sent)
                    beat = RenewRequest(
                        self._owner,
                        renewals,
                        self._info(),
                        events,
                        first_event=self._recorded + 1,
                        answer_within=within,
                        lanes=self._lanes(),
                        seen=self._partitions.seen,
                    )
                    read = self._partitions.read
                    pulse = await self._timed(beat)
                    self._partitions.compare(pulse.partitions, read)
                    # Without its orders the part that keeps the events has not answered either.
                    if pulse.orders is not None:
                        self._recorded += len(events)
                        events = ()
                    news += self._heed(sent, pulse, asked_at)
                    unanswered += len(pulse.unanswered)
                    sent = []
            if unanswered:
                raise StorageUnavailableError("a part of the storage does not answer")
            self._announcements.extendleft(reversed(events))
        except Exception as error:
            # Whatever it is: the leases that are held must be tried again, and a keeper that dies renews none.
            self._announcements.extendleft(reversed(events))
            for message in sent:
                message.unsent()
            self._tally.renewed(renewed=0, lost=0, failed=len(sent))
            if not self._failures:
                expected = isinstance(error, StorageError | TimeoutError)
                failed = unanswered or len(due)
                self._logger.warning(
                    "cannot renew %d leases, trying again: %r", failed, error, exc_info=None if expected else error
                )
            self._failures += 1
            patience = ExponentialDelay(FIRST_RETRY, min(LAST_RETRY, every / 4))
            self._retry_at = self._clock.uptime() + patience.rest(self._failures, self._rng)
            self._hinted = self._hinted or hinted
            return
        self._failures = 0
        self._last_beat = asked_at
        self._turns.told(asked_at)
        if hinted:
            self._false_alarms = 0 if news else self._false_alarms + 1
            # A storage may hint at more than there is; beats that beget hints must come down to the usual ones.
            rest = (
                ExponentialDelay(FALSE_ALARM, every).rest(self._false_alarms, self._rng) if self._false_alarms else 0.0
            )
            self._heeds_at = asked_at + rest

    async def _timed(self, beat: RenewRequest) -> RenewResult:
        asked_at = self._clock.uptime()
        try:
            return await self._storage.renew(beat)
        finally:
            self._tally.called("renew", self._clock.uptime() - asked_at)

    def _announced(self) -> tuple[Event, ...]:
        # The main loop adds while this takes; a deque can bear that.
        return tuple(self._announcements.popleft() for _ in range(len(self._announcements)))

    def _asks(self, one: ActiveRun, now: float, every: float) -> bool:
        if one.stop == "lost":
            return False
        # A job that began within this beat has a fresh lease; most end before they ever cost a beat.
        return one.signs.pending or now - one.renewed_at >= every / 2 or one.renewed_at <= self._holdings.hinted_at

    def _heed(self, sent: list[PendingRenewal], pulse: RenewResult, asked_at: float) -> int:
        """Do as the answer says; return how many runs heard something new, the worker itself counted as one."""
        news = 0
        if pulse.orders is not None and pulse.orders != self._orders:
            self._orders = pulse.orders
            self._obey(pulse.orders)
            news = 1
        lost, unanswered = set(pulse.lost), set(pulse.unanswered)
        done = len(sent) - len(lost) - len(unanswered)
        self._tally.renewed(renewed=done, lost=len(lost), failed=len(unanswered))
        for message in sent:
            if message.held.key in unanswered:
                message.unsent()
                continue
            message.arrived(asked_at, lost=message.held.key in lost)
            if message.held.key in lost:
                self._stop(message.held, "lost", None)
        self._holdings.note_renewed([message.held for message in sent])
        for asking in pulse.cancelling:
            asked_to_stop = self._holdings.get((asking.ref, asking.fence))
            if asked_to_stop is not None:
                news += asked_to_stop.stop is None
                self._stop(asked_to_stop, "cancelled", asking.reason)
        return news

    def _fence_in(self, now: float) -> None:
        """Stop exclusive runs whose handlers are silent, and runs that the storage has not renewed in time.

        These are two questions, so each has a fact of its own: when the handler gave its last sign, and when the
        storage last answered a beat.
        """
        for one in self._holdings.all():
            if one.exclusive and (clock := one.silence(now, self._turns)) is not None:
                one.silenced = True
                silent_for = max(0, round((now - one.signed) * SECOND))
                self._stop(one, clock, stall_cause(one.lease.job, clock, silent_for=silent_for))
            if _may_not_outlive(one) and now >= one.trusted_until:
                # Its loop may be blocked, and hear of it much later.
                one.fenced = True
                # The storage may well answer, but nobody renews a run whose process was stopped.
                self._stop(one, "lease_expired" if one.still else "unreachable", None)

    def _ends(self, held: list[ActiveRun], now: float) -> list[float]:
        """Return in how many seconds those must stop that may not outlive their leases."""
        return [one.trusted_until - now for one in held if _may_not_outlive(one)]

    def _every(self, held: list[ActiveRun]) -> float:
        return max(SHORTEST, min([self._beat, *(one.beat for one in held)]))

    def _due(self, held: list[ActiveRun]) -> float:
        """Return the uptime of the next beat."""
        if self._failures:
            return self._retry_at
        return self._heeds_at if self._doubted(held) else self._last_beat + self._every(held)

    def _doubted(self, held: list[ActiveRun]) -> bool:
        """Say whether a hint has not been followed up: by any beat, or for a run whose claim it overtook."""
        return self._hinted or any(one.renewed_at < self._holdings.hinted_at and one.stop is None for one in held)

    def _next(self, now: float) -> float:
        held = self._holdings.all()
        silent = [one.looks_at - now for one in held if one.exclusive]
        return max(SHORTEST, min([self._due(held) - now, *self._ends(held, now), *silent]))


def _may_not_outlive(one: ActiveRun) -> bool:
    return one.stops_unreachable and not one.fenced and outdoes("unreachable", one.stop)


def _tell(loop: asyncio.AbstractEventLoop, news: Callable[[], object], context: contextvars.Context) -> None:
    # The loop is closed once its thread has been stopped; then there is nobody left who needs to hurry.
    if not loop.is_closed():
        loop.call_soon_threadsafe(news, context=context)
