"""The reaper: a worker whose runs are already over. It sweeps, decides on what stalled, and settles it.

    sweep ──► leases taken from the dead and the silent, under a new fence ──► Stalled ──► decide ──► settle
          ──► schedules that are due ──► their ticks ──► plan

It goes through the same door as everybody: `exchange`. If it dies between taking and settling, what it took is reaped
from it in turn.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from msgspec import structs

from holdfast.bus import Hearers
from holdfast.core.duration import micros
from holdfast.core.events import Event, ReaperFailed
from holdfast.core.job import Owner
from holdfast.core.leadership import Standing, answered, ask_again_in, longest_rest, resigned, unanswered
from holdfast.equipment import Equipment, bare
from holdfast.errors import StorageError, UsageError
from holdfast.maintenance.ticking import tick_all
from holdfast.options import LeaderElection, Timing
from holdfast.schedules import put_all
from holdfast.settle import settle_stalled
from holdfast.storage.protocol import Beat, Bid

E = TypeVar("E", bound=Event)

SPREAD = 0.1
"""A sweep comes up to this share earlier, so that many reapers do not march in step; never later, for the bound."""

RESIGN_WAIT = 1.0
"""Seconds that a reaper's farewell gets to reach the storage."""


class Reaping:
    """One reaper's turns; `Reaper` and the worker drive it."""

    def __init__(self, equipment: Equipment, owner: Owner, election: LeaderElection | None) -> None:
        self.owner = owner
        self.standing = Standing()
        self.hearers = Hearers()
        timing = equipment.timing
        self._storage = equipment.storage
        self._figures = equipment.figures
        self._clock = equipment.clock
        self._rng = equipment.rng
        self._logger = equipment.logger
        self._every = timing.sweep.total_seconds()
        self._max_block = micros(timing.max_block)
        term = election.length(timing) if election is not None else timing.leader_ttl
        self._patience = term.total_seconds()
        self._broken = dict[str, str]()
        """Schedules that could not be dealt with when they were last due, as told; a sweep finds each of them again."""
        self._bid = Bid(
            self.owner,
            term=micros(term) if election is not None else None,
            every=micros(timing.sweep),
            grace=micros(timing.grace),
        )
        rest = longest_rest(timing.lease.total_seconds(), self._every, self._patience)
        self._bid_of_many = structs.replace(self._bid, rest=round(1_000_000 * rest))
        """For turns that come again and again: what has nothing to do may be left alone by some of them."""

    async def run(self) -> None:
        """Sweep until cancelled, then resign."""
        try:
            wait = 0.0
            while True:
                await asyncio.sleep(wait)
                wait = await self._turn(self._bid_of_many)
        finally:
            await self.resign()

    async def turn(self) -> float:
        """Sweep all there is once and settle what stalled; return the seconds until the next turn."""
        return await self._turn(self._bid)

    async def _turn(self, bid: Bid) -> float:
        asked_at = self._clock.uptime()
        try:
            # A storage that hangs answers nobody; whoever leads must not believe it for longer than its term.
            async with asyncio.timeout(self._patience):
                swept = await self._storage.sweep(bid)
            self.standing, told = answered(self.standing, swept.terms, asked_at=asked_at)
            self._tell(told)
            self._report(swept.troubles)
            if swept.stalled:
                await settle_stalled(
                    self._storage,
                    self.owner,
                    swept.stalled,
                    self._rng,
                    max_block=self._max_block,
                    figures=self._figures,
                )
            async with asyncio.timeout(self._patience):
                ticked = await tick_all(self._storage, swept.due, swept.now)
            self._report([line for name, line in ticked.troubles.items() if self._broken.get(name) != line])
            for schedule in swept.due:
                self._broken.pop(schedule.name, None)
            self._broken.update(ticked.troubles)
        except Exception as error:
            # Whatever it is, the next sweep must come: a reaper that dies recovers nobody.
            expected = isinstance(error, StorageError | TimeoutError)
            self.standing, told = unanswered(self.standing, at=self._clock.uptime())
            self._logger.warning("a sweep failed, the next one comes: %r", error, exc_info=None if expected else error)
            self._tell([*told, ReaperFailed(scope="*", error=str(error) or "no answer")])
            return self._spread(self._every)
        if swept.more or ticked.more:
            return 0.0
        retry_in = swept.retry_in / 1_000_000 if swept.retry_in is not None else None
        wait = ask_again_in(self._spread(self._every), retry_in, self._rng)
        # No timer is set for a tick beyond the next sweep, however far ahead it is.
        sooner = (swept.next_tick, ticked.next_tick, swept.again_in)
        return min([wait, *(at / 1_000_000 for at in sooner if at is not None)])

    async def resign(self) -> None:
        """Give up whatever it leads. It acts no more from here on, so it tells so first."""
        terms = self.standing.terms
        self.standing, told = resigned(self.standing)
        self._tell(told)
        for term in terms:
            try:
                # A storage that hangs must not hold up the end of a worker.
                async with asyncio.timeout(RESIGN_WAIT):
                    await self._storage.resign(term)
            except (StorageError, TimeoutError) as error:
                self._logger.warning("cannot resign; the term will run out by itself: %r", error)

    def _report(self, troubles: Sequence[str]) -> None:
        for trouble in troubles:
            self._logger.error("a chore of the sweep failed, the others were done: %s", trouble)
        self._tell([ReaperFailed(scope="*", error=trouble) for trouble in troubles])

    def _spread(self, wait: float) -> float:
        return wait * (1 - SPREAD * self._rng.random())

    def _tell(self, events: Sequence[Event]) -> None:
        for event in events:
            for hearing in self.hearers.everyone():
                if hearing.hears(event):
                    try:
                        hearing.handler(event)
                    except Exception:
                        self._logger.exception("the handler %r failed", hearing.handler)


class Equipped(Protocol):
    """An app, as far as a reaper needs it."""

    def equipment(self) -> Equipment:
        """Return what it hands to its workers and reapers."""
        ...


class Reaper:
    """Recovers what was left behind by workers that died or fell silent.

    Every worker has one; this is one alone, for a process that runs no jobs. Any number of them may run: with an
    election one sweeps for all, without it all do, and nothing is recovered twice.
    """

    def __init__(
        self,
        app_or_url: Equipped | str,
        *,
        election: LeaderElection | None = LeaderElection(),  # noqa: B008 - frozen
        timing: Timing | None = None,
    ) -> None:
        """Take an app, or the URL of a storage and a timing.

        Raises:
            UsageError: the URL names no storage, or a timing came with an app, which has its own.
        """
        if not isinstance(app_or_url, str) and timing is not None:
            raise UsageError("timing is the app's own; leave it out, or give the URL instead of the app")
        equipment = bare(app_or_url, timing=timing) if isinstance(app_or_url, str) else app_or_url.equipment()
        self._reaping = Reaping(equipment, equipment.owner(), election)
        self._storage = equipment.storage
        self._schedules = equipment.schedules
        # What was located by its URL here is nobody else's to close.
        self._owns_storage = isinstance(app_or_url, str)
        self._task: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        """This reaper's owner id."""
        return self._reaping.owner.id

    @property
    def leads(self) -> bool:
        """Whether it leads, as far as it knows."""
        return self._reaping.standing.leads

    def on(self, kind: type[E]) -> Callable[[Callable[[E], object]], Callable[[E], object]]:
        """Register a plain function for `LeadershipAcquired`, `LeadershipLost` and `ReaperFailed` of this reaper."""

        def register(handler: Callable[[E], object]) -> Callable[[E], object]:
            self._reaping.hearers.add(kind, handler, scope="every", task=None)
            return handler

        return register

    async def start(self) -> None:
        """Begin to sweep. Idempotent.

        Raises:
            StorageError: the storage cannot be opened, or not told of the schedules that code declares.
        """
        if self._task is None:
            await self._storage.open()
            await put_all(self._storage, self._schedules.values())
            # It outlives the call that starts it; `stop` awaits it.
            self._task = asyncio.create_task(self._reaping.run(), name=f"reaper {self.id}")

    async def stop(self) -> None:
        """Sweep no more and resign. Idempotent; leaves no task and no thread behind."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            with contextlib.suppress(StorageError, TimeoutError):
                # Else a storage that outlives it would keep the life of this owner.
                async with asyncio.timeout(RESIGN_WAIT):
                    await self._storage.renew(Beat(self._reaping.owner, last=True))
        if self._owns_storage:
            await self._storage.close()

    async def turn(self) -> float:
        """Sweep once, by hand; return the seconds until a running reaper would sweep again."""
        await self._storage.open()
        return await self._reaping.turn()
