"""The reaper: sweeps the storage, settles the runs of workers that died or fell silent, and fires schedules.

    sweep ──► leases taken from dead and silent workers, under a new fence ──► Stalled ──► decide ──► settle
          ──► schedules that are due ──► their ticks ──► plan
          ──► ends of jobs that others wait for ──► their tokens ──► revise

It settles by `exchange`, as workers do. If it dies between taking and settling, another reaper takes the jobs from it.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from msgspec import structs

from tenure.client.codec import Codec
from tenure.client.schedules import put_all, put_later
from tenure.core.duration import micros
from tenure.core.events import Event, LeadershipAcquired, LeadershipLost, ReaperFailed
from tenure.core.job import Owner
from tenure.core.leadership import (
    LeaderStatus,
    after_answer,
    after_failure,
    after_resignation,
    longest_skip,
    next_sweep_in,
)
from tenure.errors import StorageError, UsageError
from tenure.events.bus import EventBus, Handlers
from tenure.events.handler_calls import HandlerCalls
from tenure.events.registration import event_class, register
from tenure.maintenance.lost_runs import settle_stalled
from tenure.maintenance.outbox import carry_out
from tenure.maintenance.ticks import tick_all
from tenure.options import LeaderElection, Timing
from tenure.runtime import Runtime, runtime_from_url
from tenure.storage.protocol import RenewRequest, SweepRequest

E = TypeVar("E", bound=Event)

SPREAD = 0.1
"""Each sweep comes earlier by a random share up to this one, so that many reapers do not sweep at the same moments. It
never comes later, because the time until a recovery is bounded."""

RESIGN_WAIT = 1.0
"""Seconds that a reaper's resignation gets to reach the storage."""

HANDLERS_WAIT = 2.0
"""Seconds that running event handlers get to end when their reaper stops."""

OWN_EVENTS = (LeadershipAcquired, LeadershipLost, ReaperFailed)
"""Events of a reaper that its own handlers receive at once; they do not receive those of other reapers."""


class Sweeper:
    """The sweep loop of one reaper; `Reaper` and the worker run it."""

    def __init__(self, runtime: Runtime, owner: Owner, election: LeaderElection | None) -> None:
        self.owner = owner
        self.leadership = LeaderStatus()
        self.handlers = Handlers()
        self.handler_tasks = set[asyncio.Task[None]]()
        """The task that calls the handlers, while it has events."""
        self._unhandled = deque[Event]()
        timing = runtime.timing
        self._storage = runtime.storage
        self._metrics = runtime.metrics
        self._clock = runtime.clock
        self._rng = runtime.rng
        self._logger = runtime.logger
        self._calls = HandlerCalls(runtime.codec.decode, runtime.logger)
        self._every = timing.sweep.total_seconds()
        self._max_block = micros(timing.max_block)
        term = election.length(timing) if election is not None else timing.leader_ttl
        self._term_timeout = term.total_seconds()
        self._reported_troubles = dict[str, str]()
        """The reported error of each schedule that failed when it was last due; each sweep finds these again."""
        self._request = SweepRequest(
            self.owner,
            term=micros(term) if election is not None else None,
            every=micros(timing.sweep),
            grace=micros(timing.grace),
        )
        skip = longest_skip(timing.lease.total_seconds(), self._every, self._term_timeout, timing.grace.total_seconds())
        self._periodic_request = structs.replace(self._request, max_skip=round(1_000_000 * skip))
        """The request of the periodic sweeps: some of them may skip parts of the storage that have nothing to do."""

    async def run(self) -> None:
        """Sweep until cancelled, then resign."""
        try:
            wait = 0.0
            while True:
                await asyncio.sleep(wait)
                wait = await self._turn(self._periodic_request)
        finally:
            await self.resign()

    async def turn(self) -> float:
        """Sweep the whole storage once and settle stalled runs; return the seconds until the next turn."""
        return await self._turn(self._request)

    async def _turn(self, bid: SweepRequest) -> float:
        asked_at = self._clock.uptime()
        try:
            # If the storage hangs, a leader must not believe that it leads for longer than its term.
            async with asyncio.timeout(self._term_timeout):
                swept = await self._storage.sweep(bid)
            self.leadership, events = after_answer(self.leadership, swept.terms, asked_at=asked_at)
            self._publish(events)
            self._report(swept.troubles)
            if swept.stalled:
                await settle_stalled(
                    self._storage,
                    self.owner,
                    swept.stalled,
                    self._rng,
                    max_block=self._max_block,
                    metrics=self._metrics,
                )
            async with asyncio.timeout(self._term_timeout):
                ticked = await tick_all(self._storage, swept.due, swept.now)
            self._report([line for name, line in ticked.troubles.items() if self._reported_troubles.get(name) != line])
            for schedule in swept.due:
                self._reported_troubles.pop(schedule.name, None)
            self._reported_troubles.update(ticked.troubles)
            more = swept.more or ticked.more
            if swept.outbox:
                # After the ticks, so that a slow entry delays no schedule.
                async with asyncio.timeout(self._term_timeout):
                    carried = await carry_out(self._storage, swept.outbox)
                more = more or carried.more
                self._report(carried.troubles)
        except Exception as error:
            # Catch every error: a reaper that ends recovers no jobs.
            expected = isinstance(error, StorageError | TimeoutError)
            self.leadership, events = after_failure(self.leadership, at=self._clock.uptime())
            self._logger.warning("a sweep failed, retrying: %r", error, exc_info=None if expected else error)
            self._publish([*events, ReaperFailed(scope="*", error=str(error) or "no answer")])
            return self._spread(self._every)
        if more:
            return 0.0
        retry_in = swept.retry_in / 1_000_000 if swept.retry_in is not None else None
        wait = next_sweep_in(self._spread(self._every), retry_in, self._rng)
        # A tick beyond the next sweep needs no timer: that sweep finds it.
        ticks = (swept.next_tick, ticked.next_tick)
        return min([wait, *(at / 1_000_000 for at in ticks if at is not None)])

    async def resign(self) -> None:
        """Give up leadership. Call event handlers first, because this reaper is not the leader from here on."""
        terms = self.leadership.terms
        self.leadership, events = after_resignation(self.leadership)
        self._publish(events)
        for term in terms:
            try:
                # A storage that hangs must not delay the exit of a worker.
                async with asyncio.timeout(RESIGN_WAIT):
                    await self._storage.resign(term)
            except (StorageError, TimeoutError) as error:
                self._logger.warning("cannot resign; the term will expire: %r", error)

    def close(self) -> None:
        """Let the threads of plain handlers end."""
        self._calls.close()

    def _report(self, troubles: Sequence[str]) -> None:
        for trouble in troubles:
            self._logger.error("one step of the sweep failed, the others succeeded: %s", trouble)
        self._publish([ReaperFailed(scope="*", error=trouble) for trouble in troubles])

    def _spread(self, wait: float) -> float:
        return wait * (1 - SPREAD * self._rng.random())

    def _publish(self, events: Sequence[Event]) -> None:
        if self.handlers.all():
            self._unhandled += events
            if self._unhandled and all(task.done() for task in self.handler_tasks):
                loop = asyncio.get_running_loop()
                task = loop.create_task(self._call_handlers(), name=f"handlers of reaper {self.owner.id}")
                self.handler_tasks.add(task)
                task.add_done_callback(self.handler_tasks.discard)

    async def _call_handlers(self) -> None:
        while self._unhandled:
            await self._calls.call(self._unhandled.popleft(), self.handlers.all())


class ReaperApp(Protocol):
    """The part of an app that a reaper needs."""

    def runtime(self) -> Runtime:
        """Return the runtime that the app gives to its workers and reapers."""
        ...


class Reaper:
    """Recovers the jobs of workers that died or fell silent.

    Each worker runs a reaper; this class is a separate one, for a process that runs no jobs. Any number of reapers may
    run. With an election one reaper sweeps for all; without it each one sweeps. Jobs are never recovered twice. While
    a reaper runs, the handlers of its app (`app.on`, `task.on`) receive events in this process as they do in a worker.
    """

    def __init__(
        self,
        app_or_url: ReaperApp | Runtime | str,
        *,
        election: LeaderElection | None = LeaderElection(),  # noqa: B008 - frozen
        timing: Timing | None = None,
        logger: logging.Logger | None = None,
        codec: Codec | None = None,
    ) -> None:
        """Take an app, or the URL of a storage with a timing, a logger and the codec of the jobs' results.

        Raises:
            UsageError: the URL names no storage, or one of the other three is given with an app, which has its own.
        """
        own = {"timing": timing, "logger": logger, "codec": codec}
        own_options = [name for name, value in own.items() if value is not None]
        if own_options and not isinstance(app_or_url, str):
            raise UsageError(f"{own_options[0]} is the app's own; leave it out, or give the URL instead of the app")
        if isinstance(app_or_url, str):
            runtime = runtime_from_url(app_or_url, timing=timing, logger=logger, codec=codec)
        else:
            runtime = app_or_url if isinstance(app_or_url, Runtime) else app_or_url.runtime()
        self._runtime = runtime
        self._reaping = Sweeper(runtime, runtime.owner(), election)
        self._storage = runtime.storage
        # A storage that was opened from a URL here is closed here.
        self._owns_storage = isinstance(app_or_url, str)
        self._buses: tuple[EventBus, ...] = ()
        self._task: asyncio.Task[None] | None = None
        self._putting: asyncio.Task[None] | None = None
        self._event_tasks: tuple[asyncio.Task[None], ...] = ()

    @property
    def id(self) -> str:
        """This reaper's owner id."""
        return self._reaping.owner.id

    @property
    def leads(self) -> bool:
        """Return True if this reaper is the leader, as far as it knows."""
        return self._reaping.leadership.leads

    def on(self, kind: type[E], *, scope: str = "once") -> Callable[[Callable[[E], object]], Callable[[E], object]]:
        """Register a handler for an event of any process; it is called while this reaper runs.

        Each event is handled once per app, in one of its reapers; with `scope="every"`, in each reaper. Of
        `LeadershipAcquired`, `LeadershipLost` and `ReaperFailed` the handler receives only those of this reaper, at
        once. Handlers may be coroutine functions, or plain functions, which run in a thread. They are called one after
        another. Their exceptions are logged.

        Raises:
            UsageError: `kind` is not an event class, the scope is unknown, or the handler is not callable.
        """
        hearers = self._reaping.handlers
        return register(
            kind, scope=scope, of=Event, add=lambda handler: hearers.add(kind, handler, scope=scope, task=None)
        )

    def off(self, handler: Callable[[E], object], kind: type[E] | None = None) -> bool:
        """Remove an event handler of this reaper, as `Tenure.off` does; return True if it was registered.

        Raises:
            UsageError: `kind` is not an event class.
        """
        return self._reaping.handlers.remove(handler, None if kind is None else event_class(kind))

    async def start(self) -> None:
        """Begin to sweep. Idempotent.

        Raises:
            StorageError: the storage cannot be opened, or cannot store the schedules that code declares.
        """
        if self._task is None:
            await self._storage.open()
            runtime = self._runtime
            left = await put_all(self._storage, runtime.schedules.values())
            # Subscribe before the first sweep, so that its events are handled, too.
            buses = (
                self._bus(self._runtime.event_handlers, "app"),
                self._bus(self._reaping.handlers, "reaper", OWN_EVENTS),
            )
            for bus in buses:
                await bus.subscribe()
            # These tasks outlive this call; `stop` awaits them.
            self._buses = buses
            self._event_tasks = tuple(
                asyncio.create_task(bus.run(), name=f"events of reaper {self.id}") for bus in buses
            )
            self._putting = asyncio.create_task(
                put_later(self._storage, left, rng=runtime.rng, logger=runtime.logger),
                name=f"schedules of reaper {self.id}",
            )
            self._task = asyncio.create_task(self._reaping.run(), name=f"reaper {self.id}")

    async def stop(self) -> None:
        """Stop sweeping and resign. Idempotent; leaves no task and no thread behind."""
        task, self._task = self._task, None
        if task is not None:
            tasks = [task, *([] if self._putting is None else [self._putting])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stop_handlers()
            with contextlib.suppress(StorageError, TimeoutError):
                # Otherwise a storage that outlives this reaper would keep the record of its owner.
                async with asyncio.timeout(RESIGN_WAIT):
                    await self._storage.renew(RenewRequest(self._reaping.owner, last=True))
        self._reaping.close()
        if self._owns_storage:
            await self._storage.close()

    async def turn(self) -> float:
        """Sweep once, on demand; return the seconds until a running reaper would sweep again.

        Handlers of the reaper's own events get up to 2 s to end.
        """
        await self._storage.open()
        wait = await self._reaping.turn()
        if self._reaping.handler_tasks:
            await asyncio.wait(self._reaping.handler_tasks, timeout=HANDLERS_WAIT)
        return wait

    def _bus(self, hearers: Handlers, whose: str, local: tuple[type[Event], ...] = ()) -> EventBus:
        runtime = self._runtime
        return EventBus(
            runtime.storage,
            hearers,
            reader=f"{whose}:{runtime.app}",
            caller=self.id,
            rng=runtime.rng,
            decode=runtime.codec.decode,
            logger=runtime.logger,
            local=local,
        )

    async def _stop_handlers(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HANDLERS_WAIT):
                await asyncio.gather(*(bus.stop() for bus in self._buses), *self._reaping.handler_tasks)
        left = (*self._event_tasks, *self._reaping.handler_tasks)
        self._buses, self._event_tasks = (), ()
        for task in left:
            task.cancel()
        if left:
            # A handler that ignores its cancellation must not delay the end of its reaper.
            await asyncio.wait(left, timeout=HANDLERS_WAIT)
