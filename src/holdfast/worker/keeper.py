"""Renews the leases of this process from beside its loop, and fences it in: it hears who is lost, cancelled, cut off.

It runs on an event loop of its own, in a thread, so a handler that blocks the worker's loop keeps its leases. What it
cannot outlive is a handler that holds the interpreter itself (a C call that keeps the GIL) for a whole lease.
"""

import asyncio
import contextvars
import logging
import math
from collections import deque
from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.core.events import Event
from holdfast.core.job import Owner
from holdfast.errors import StorageError
from holdfast.options import Timing
from holdfast.storage.protocol import (
    RENEW_LIMIT,
    Beat,
    Pulse,
    Storage,
    WorkerInfo,
)
from holdfast.worker.held import Held, Holdings, Message, StopReason

SHORTEST = 0.005
"""Seconds that lie at least between two beats, whatever lease a task has chosen."""


class Keeper:
    """Beats for one owner: one renewal of everything it holds, a quarter of the shortest lease apart."""

    def __init__(
        self,
        storage: Storage,
        owner: Owner,
        holdings: Holdings,
        *,
        timing: Timing,
        clock: Clock,
        logger: logging.Logger,
        info: Callable[[], WorkerInfo],
        stop: Callable[[Held, StopReason, str | None], None],
        wanted: Callable[[], bool],
    ) -> None:
        self._storage = storage
        self._owner = owner
        self._holdings = holdings
        self._beat = timing.beat.total_seconds()
        self._clock = clock
        self._logger = logger
        self._info = info
        self._stop = stop
        self._wanted = wanted
        self._announcements: deque[Event] = deque()
        self._last_beat = float("-inf")
        self._failed = False

    def announce(self, event: Event) -> None:
        """Record an event of this process with the next beat."""
        self._announcements.append(event)

    async def run(self) -> None:
        """Beat until cancelled, or until the worker is gone that it beats for."""
        loop = asyncio.get_running_loop()
        # Woken as what it is, not as a part of the run that knocked.
        knocked, here = asyncio.Event(), contextvars.copy_context()
        self._holdings.when_urgent(lambda: _knock(loop, knocked, here))
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
        held = self._holdings.all()
        every = self._every(held)
        if now >= self._last_beat + every - SHORTEST:
            await self._renew(held, every, asked_at=now)
        self._fence_in(self._clock.uptime())
        return self._next(self._clock.uptime())

    async def last_beat(self) -> None:
        """Take leave: the worker's record goes, its last events are recorded."""
        await self._storage.renew(Beat(self._owner, events=self._announced(), last=True))

    async def _renew(self, held: list[Held], every: float, *, asked_at: float) -> None:
        due = [one for one in held if self._asks(one, asked_at, every)]
        sent: list[Message] = []
        events = self._announced()
        try:
            # A storage that hangs must not keep this from its other duty, to fence its process in.
            async with asyncio.timeout(max(self._beat, every)):
                for start in range(0, max(len(due), 1), RENEW_LIMIT):
                    sent = [one.message(asked_at) for one in due[start : start + RENEW_LIMIT]]
                    renewals = tuple(message.renewal for message in sent)
                    pulse = await self._storage.renew(Beat(self._owner, renewals, self._info(), events))
                    events = ()
                    self._heed(sent, pulse, asked_at)
                    sent = []
        except Exception as error:
            # Whatever it is: the leases that are held must be tried again, and a keeper that dies renews none.
            self._announcements.extendleft(reversed(events))
            for message in sent:
                message.unsent()
            if not self._failed:
                expected = isinstance(error, StorageError | TimeoutError)
                self._logger.warning(
                    "cannot renew %d leases, trying again: %r", len(due), error, exc_info=None if expected else error
                )
            self._failed = True
            # Back off a little, but try often enough that a short outage costs no lease.
            self._last_beat = self._clock.uptime() - every + min(1.0, every / 4)
            return
        self._failed = False
        self._last_beat = asked_at

    def _announced(self) -> tuple[Event, ...]:
        # The main loop adds while this takes; a deque can bear that.
        return tuple(self._announcements.popleft() for _ in range(len(self._announcements)))

    @staticmethod
    def _asks(one: Held, now: float, every: float) -> bool:
        if one.stop == "lost":
            return False
        # A job that began within this beat has a fresh lease; most end before they ever cost a beat.
        return one.signs.pending or now - one.renewed_at >= every / 2

    def _heed(self, sent: list[Message], pulse: Pulse, asked_at: float) -> None:
        lost = set(pulse.lost)
        for message in sent:
            if message.held.key in lost:
                self._stop(message.held, "lost", None)
            else:
                message.arrived(asked_at)
        for asking in pulse.cancelling:
            asked_to_stop = self._holdings.get((asking.ref, asking.fence))
            if asked_to_stop is not None:
                self._stop(asked_to_stop, "cancelled", asking.reason)

    def _fence_in(self, now: float) -> None:
        for one in self._holdings.all():
            if one.stops_unreachable and one.stop is None and now >= one.trusted_until:
                self._stop(one, "unreachable", None)

    def _every(self, held: list[Held]) -> float:
        return max(SHORTEST, min([self._beat, *(one.beat for one in held)]))

    def _next(self, now: float) -> float:
        held = self._holdings.all()
        ends = [one.trusted_until for one in held if one.stops_unreachable and one.stop is None]
        return max(SHORTEST, min([self._last_beat + self._every(held), *ends]) - now)


def _knock(loop: asyncio.AbstractEventLoop, knocked: asyncio.Event, context: contextvars.Context) -> None:
    # The loop is closed once its thread has been stopped; then there is nobody left who needs to hurry.
    if not loop.is_closed():
        loop.call_soon_threadsafe(knocked.set, context=context)
